//! Reads, writes, opens, renames and closes in recordings (`--io`): the slow ones each, the rest
//! counted, and what is no file not at all.

use super::{read, recorded};
use crate::harness::disk::SlowFolder;
use crate::harness::limits::needs_root;
use crate::harness::victims::{victim, CLASSES};
use crate::sessions::stage::{Stage, SYNCLATER};
use std::collections::BTreeMap;
use std::path::Path;
use synclater_recording::record::table::{Table, UNKNOWN};

/// How many calls of each kind.
type Counts = BTreeMap<&'static str, u64>;

/// Calls of the libc's functions, by the kind that they are in a recording.
const CALLS: [(&str, &[&str]); 5] = [
    ("read", &["read", "readv", "pread64", "preadv"]),
    ("write", &["write", "writev", "pwrite64", "pwritev"]),
    ("open", &["open", "openat"]),
    ("rename", &["rename", "renameat"]),
    ("close", &["close"]),
];

/// What strace -y saw that names something in `work`.
fn counts_in_strace(log: &Path, work: &Path) -> Counts {
    let text = std::fs::read_to_string(log).expect("strace's log");
    let below = format!("{}/", work.display());
    let mut found = Counts::new();
    for line in text.lines().filter(|l| l.contains(&below)) {
        let call = line
            .split_once(' ')
            .map_or("", |(_, call)| call.trim_start());
        let name = call.split_once('(').map_or("", |(name, _)| name);
        let kind = CALLS.iter().find(|(_, names)| names.contains(&name));
        if let Some((kind, _)) = kind {
            *found.entry(kind).or_default() += 1;
        }
    }
    found
}

/// Rows and counts of the program whose executable ends with `name`.
fn counts_in(table: &Table, name: &str) -> Counts {
    let is_it = |p: u32| table.processes[p as usize].exe.ends_with(name);
    let kind = |k: u16| {
        let word = table.kinds[usize::from(k)].as_str();
        let known = CALLS.iter().find(|(kind, _)| *kind == word);
        known.unwrap_or_else(|| panic!("{word}")).0
    };
    let mut found = Counts::new();
    for (p, k) in table.io.process.iter().zip(&table.io.kind) {
        if is_it(*p) {
            *found.entry(kind(*k)).or_default() += 1;
        }
    }
    for rest in table.io_rest.iter().filter(|r| is_it(r.process)) {
        *found.entry(kind(rest.kind)).or_default() += rest.count;
    }
    found
}

/// `words` with `options` and a recording that has other calls too.
fn timed(stage: &Stage, options: &[&str], words: &[&str]) -> Table {
    let options = [&["-u", "now", "--io"], options].concat();
    let (outcome, table) = recorded(stage, &options, words);
    outcome.must_succeed();
    assert!(table.is_whole() && table.lost.is_empty());
    table
}

/// The slow calls: kind and path, in the order of their begin.
fn slow_ones(table: &Table) -> Vec<(String, String)> {
    let mut all: Vec<usize> = (0..table.io.len()).collect();
    all.sort_by_key(|i| table.io.time_ns[*i]);
    let one = |i: &usize| {
        let kind = table.kinds[usize::from(table.io.kind[*i])].clone();
        let path = table.files[table.io.file[*i] as usize].path.clone();
        (kind, path)
    };
    all.iter().map(one).collect()
}

#[test]
fn calls_on_files_are_counted_as_strace_counts_them() {
    for class in CLASSES {
        let stage = Stage::new("io_counts");
        let (log, program, work) = (stage.file("strace"), victim("files", class), stage.work());
        let words = [
            "strace",
            "-f",
            "-y",
            "-qq",
            "-e",
            "signal=none",
            "-e",
            "trace=/^(p?readv?(64)?|p?writev?(64)?|open(at)?|rename(at)?|close)$",
            "-o",
            log.to_str().expect("text"),
            program.to_str().expect("text"),
            work.to_str().expect("text"),
        ];
        let table = timed(&stage, &["--slower", "1h"], &words);
        let seen = counts_in_strace(&log, &work);
        assert_eq!(seen.len(), CALLS.len(), "{class:?} {seen:?}");
        assert!(
            seen["read"] > 3000 && seen["write"] > 600,
            "{class:?} {seen:?}"
        );
        assert_eq!(counts_in(&table, "files"), seen, "{class:?}");
        assert_eq!(table.io.len(), 0, "{class:?}: an hour has not passed");
    }
}

#[test]
fn each_call_is_slow_or_counted_and_never_both() {
    for class in CLASSES {
        let count = |slower: &str| {
            let stage = Stage::new("io_threshold");
            let (program, work) = (victim("files", class), stage.work());
            let words = [
                program.to_str().expect("text"),
                work.to_str().expect("text"),
            ];
            let table = timed(&stage, &["--slower", slower], &words);
            (counts_in(&table, "files"), table)
        };
        let (all, none) = (count("1ns"), count("1h"));
        assert_eq!(all.0, none.0, "{class:?}");
        assert!(
            all.1.io_rest.is_empty() && none.1.io.is_empty(),
            "{class:?}"
        );
        let between = count("8us");
        assert_eq!(between.0, all.0, "{class:?}");
        // Places of the histogram are powers of two; the last one below the threshold is 8192 ns.
        assert!(
            between.1.io_rest.iter().all(|r| r.below_ns <= 8192),
            "{class:?}"
        );
        assert!(
            between.1.io.took_ns.iter().all(|t| *t >= 7_900),
            "{class:?}"
        );
        let at_least = none.1.io_rest.iter().filter(|r| r.below_ns > 16384);
        let at_least: u64 = at_least.map(|r| r.count).sum();
        assert!(
            at_least < all.1.io.len() as u64 / 2,
            "{class:?}: {at_least} of them"
        );
    }
}

#[test]
fn a_slow_call_on_a_file_has_its_path_and_where_that_lies() {
    if !needs_root("a_slow_call_on_a_file_has_its_path_and_where_that_lies") {
        return;
    }
    for class in CLASSES {
        let (folder, stage) = (SlowFolder::new(20), Stage::new("io_slow"));
        let (program, mount) = (victim("files", class), folder.path());
        let words = [
            program.to_str().expect("text"),
            mount.to_str().expect("text"),
            "few",
        ];
        let table = timed(&stage, &["--slower", "15ms"], &words);
        let one = |kind: &str, name: &str| {
            let path = mount.join(name).to_string_lossy().into_owned();
            (kind.to_owned(), path)
        };
        let expected = [
            one("open", "one"),
            one("write", "one"),
            one("read", "one"),
            one("close", "one"),
            one("rename", "two"),
            one("open", "two"),
            one("read", "two"),
            one("close", "two"),
        ];
        assert_eq!(slow_ones(&table), expected, "{class:?}");
        for i in 0..table.io.len() {
            assert!(table.io.took_ns[i] >= 20_000_000 && table.io.took_ns[i] != UNKNOWN);
            let file = &table.files[table.io.file[i] as usize];
            let place = &table.filesystems[file.filesystem as usize];
            assert_eq!(place.mount, mount.to_string_lossy(), "{class:?}: {file:?}");
            assert!(place.fstype.starts_with("fuse"), "{class:?}: {place:?}");
            let caller = &table.callers[table.io.caller[i] as usize];
            assert!(caller.contains("files+0x"), "{class:?}: {caller}");
        }
    }
}

#[test]
fn what_waits_for_people_is_not_in_it() {
    let stage = Stage::new("io_people");
    let script = "import os, socket, threading, time\n\
                  def late(fd):\n    time.sleep(0.05)\n    os.write(fd, b'x')\n\
                  os.mkfifo('fifo')\n\
                  a, b = socket.socketpair()\n\
                  for r, w in [os.pipe(), (a.fileno(), b.fileno()), os.openpty()]:\n\
                  \x20   t = threading.Thread(target=late, args=(w,))\n    t.start()\n\
                  \x20   os.read(r, 1)\n    t.join()\n\
                  def other():\n    time.sleep(0.05)\n    os.open('fifo', os.O_RDONLY)\n\
                  threading.Thread(target=other).start()\n\
                  os.write(os.open('fifo', os.O_WRONLY), b'x')\n";
    let table = timed(&stage, &["--slower", "30ms"], &["python3", "-c", script]);
    // On a busy machine a file of Python's own may be slow.
    let no_file = |(_, path): &&(String, String)| !Path::new(path).is_file();
    let slow = slow_ones(&table);
    assert_eq!(slow.iter().find(no_file), None, "{slow:?}");
    assert!(!counts_in(&table, "").contains_key("write"));
}

#[test]
fn what_a_process_was_counted_for_stays_with_the_program_that_it_was() {
    let stage = Stage::new("io_exec");
    std::fs::write(stage.work().join("f"), "hello\n").expect("a file");
    // The shell reads byte by byte; wc what there is, and the end.
    let script = "exec <f; read x; exec wc -l f";
    let table = timed(&stage, &["--slower", "1h"], &["dash", "-c", script]);
    let reads = |name: &str| counts_in(&table, name).get("read").copied();
    assert_eq!((reads("/dash"), reads("/wc")), (Some(6), Some(2)));
    let pids: Vec<_> = table
        .io_rest
        .iter()
        .map(|r| table.processes[r.process as usize].pid)
        .collect();
    assert!(pids.windows(2).all(|p| p[0] == p[1]), "{pids:?}");
}

#[test]
fn what_a_killed_process_was_counted_for_is_in_it() {
    let stage = Stage::new("io_killed");
    std::fs::write(stage.work().join("f"), "x\n".repeat(50)).expect("a file");
    let script = "(while read x; do :; done <f; kill -9 $(cut -d' ' -f4 /proc/self/stat)); :";
    let table = timed(&stage, &["--slower", "1h"], &["dash", "-c", script]);
    assert_eq!(counts_in(&table, "/dash").get("read"), Some(&101));
}

/// Files of ours that are mapped in a command's processes.
fn libraries_in(maps: &str) -> Vec<&str> {
    let names = maps.lines().filter_map(|l| l.rsplit('/').next());
    let mut ours: Vec<&str> = names.filter(|n| n.starts_with("libsynclater")).collect();
    ours.dedup();
    ours
}

#[test]
fn an_ordinary_session_has_nothing_of_it_and_no_process_has_both_libraries() {
    const ORDINARY: &str = "libsynclater.so";
    const IO: &str = "libsynclater-io.so";
    let io: &[&str] = &["--io"];
    for (outer, inner, library) in [
        (&[][..], &[][..], ORDINARY),
        (io, &[], IO),
        (&[], io, IO),
        (io, io, IO),
    ] {
        let stage = Stage::new("io_libraries");
        let file = stage.file("inner").to_string_lossy().into_owned();
        let cat = ["cat", "/proc/self/maps"];
        let again = [SYNCLATER, "run", "--quiet", "--record", &file];
        let words = [&again[..], inner, &["--"], &cat].concat();
        let (outcome, table) = recorded(&stage, outer, &words);
        let outcome = outcome.must_succeed();
        assert_eq!(libraries_in(&outcome.stdout), [library], "{outcome}");
        let has_io = |t: &Table| counts_in(t, "/cat").get("read").is_some_and(|n| *n > 1);
        assert_eq!(has_io(&table), !outer.is_empty());
        assert_eq!(has_io(&read(Path::new(&file))), !inner.is_empty());
    }
}

#[test]
fn each_of_two_nested_sessions_has_its_own_threshold() {
    let stage = Stage::new("io_nested");
    let file = stage.file("inner").to_string_lossy().into_owned();
    let (program, work) = (victim("files", CLASSES[0]), stage.work());
    let again = [
        SYNCLATER, "run", "--quiet", "--record", &file, "--io", "--slower", "1ns", "--",
    ];
    let victim = [
        program.to_str().expect("text"),
        work.to_str().expect("text"),
    ];
    let outer = timed(&stage, &["--slower", "1h"], &[&again[..], &victim].concat());
    let inner = read(Path::new(&file));
    assert_eq!(counts_in(&outer, "files"), counts_in(&inner, "files"));
    let hour_ns = 3_600_000_000_000;
    let thresholds = [&outer, &inner].map(|table| table.header.slower_ns);
    assert_eq!(thresholds, [Some(hour_ns), Some(1)]);
    assert!(outer.io.is_empty() && inner.io_rest.is_empty());
    // The child closes what its parent has opened: with two sessions nobody knows what that was.
    let slow = slow_ones(&inner);
    let elsewhere = |(_, path): &&(String, String)| !path.starts_with(work.to_str().expect("text"));
    let elsewhere: Vec<_> = slow.iter().filter(elsewhere).collect();
    assert!(slow.len() > 4000, "{}", slow.len());
    assert_eq!(elsewhere, [&("close".to_owned(), String::new())]);
}

#[test]
fn a_threshold_without_calls_to_time_is_refused() {
    let stage = Stage::new("io_usage");
    let wrong: [&[&str]; 5] = [
        &["record", "-o", "f", "--slower", "1ms", "--", "true"],
        &["run", "--io", "--", "true"],
        &[
            "run", "--record", "f", "--io", "--slower", "2h", "--", "true",
        ],
        &[
            "run", "--record", "f", "--io", "--slower", "0ms", "--", "true",
        ],
        &[
            "run", "--record", "f", "--io", "--slower", "-1ms", "--", "true",
        ],
    ];
    for words in wrong {
        let outcome = stage.ask(words);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(
            outcome.stderr.contains("--"),
            "it says which option: {outcome}"
        );
    }
}
