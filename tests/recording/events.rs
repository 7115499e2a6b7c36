//! What a recording tells of the requests of a command.

use super::{by_path, how_many, kinds, recorded};
use crate::harness::limits::{count, is_root, needs_root};
use crate::harness::victims::{victim, Class, CLASSES};
use crate::sessions::stage::{program, Stage};
use std::collections::BTreeMap;
use std::path::Path;
use synclater_recording::record::table::{Done, Table, UNKNOWN};

/// What strace -y saw: calls by name and path. Failed calls too.
fn by_path_in_strace(log: &Path) -> BTreeMap<(String, String), usize> {
    let text = std::fs::read_to_string(log).expect("strace's log");
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|l| l.contains("sync(")) {
        let Some((_, call)) = line.split_once(' ') else {
            continue;
        };
        let (name, rest) = call.trim_start().split_once('(').expect("a call");
        let path = rest.split_once('<').and_then(|(_, p)| p.split_once('>'));
        let path = path.map_or(String::new(), |(p, _)| p.to_owned());
        *found.entry((name.to_owned(), path)).or_default() += 1;
    }
    found
}

#[test]
fn a_recording_of_sqlite_has_what_strace_sees_file_by_file() {
    let stage = Stage::new("record_sqlite");
    let log = stage.file("strace");
    let mut script = String::from("create table t(a);");
    for i in 0..50 {
        script += &format!("insert into t values({i});");
    }
    let log_name = log.to_string_lossy().into_owned();
    let strace = [
        "strace",
        "-f",
        "-y",
        "-qq",
        "-e",
        "trace=fsync,fdatasync",
        "-o",
        &log_name,
    ];
    let words = [&strace[..], &["sqlite3", "mail.db", &script]].concat();
    let (outcome, table) = recorded(&stage, &["-u", "now"], &words);
    outcome.must_succeed();
    let seen = by_path_in_strace(&log);
    assert!(seen.values().sum::<usize>() > 150, "{seen:?}");
    assert_eq!(by_path(&table), seen);
    assert_eq!(how_many(&table, Done::Real), table.rows.len());
    assert!(table.is_whole() && table.lost.is_empty());
    let exe = |p: &u32| table.processes[*p as usize].exe.ends_with("sqlite3");
    assert!(table.rows.process.iter().all(exe), "{:?}", table.processes);
    assert!(table.rows.took_ns.iter().all(|t| *t != UNKNOWN && *t > 0));
    assert!(
        table.callers.iter().any(|c| c.contains("libsqlite3.so")),
        "{:?}",
        table.callers
    );
}

#[test]
fn a_request_that_had_nothing_to_do_is_needless_and_one_with_data_is_not() {
    let stage = Stage::new("record_needless");
    let script = "import os\n\
                  fd = os.open('f', os.O_RDWR | os.O_CREAT)\n\
                  for turn in range(5):\n    os.write(fd, b'x' * 1000)\n    os.fsync(fd)\n    \
                  os.fsync(fd)\n";
    let (outcome, table) = recorded(&stage, &["-u", "now"], &["python3", "-c", script]);
    outcome.must_succeed();
    let dirty = &table.rows.dirty;
    assert_eq!(dirty[0], None, "of the first nothing is known");
    assert_eq!(dirty[1..].iter().filter(|d| **d == Some(true)).count(), 4);
    // On a kernel with coarse time stamps some are not known.
    let needless = dirty.iter().filter(|d| **d == Some(false)).count();
    assert!(needless <= 5 && dirty[1..].iter().step_by(2).all(|d| *d != Some(true)));
    assert_eq!(table.rows.bytes, [1000, 0].repeat(5));
}

#[test]
fn every_victim_s_requests_are_in_its_recording_as_they_are_counted() {
    for class in CLASSES {
        for name in [
            "fsync",
            "fdatasync",
            "syncfs",
            "msync",
            "pwritev2",
            "syscall",
            "threads",
        ] {
            for until in ["now", "exit"] {
                let stage = Stage::new("record_victim");
                let file = victim(name, class);
                let json = stage.file("json").to_string_lossy().into_owned();
                let options = ["-u", until, "--json", &json];
                let work = stage.work();
                let words = [file.to_str().expect("text"), work.to_str().expect("text")];
                let (_, table) = recorded(&stage, &options, &words);
                let report = std::fs::read_to_string(&json).expect("a report");
                let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
                let hints = kinds(&table).get("sync_file_range").copied().unwrap_or(0);
                let counted = report["requests"].as_u64();
                let have = table.rows.len() - hints;
                assert_eq!(
                    counted,
                    Some(have as u64),
                    "{name} {class:?} {until}: {report:#}"
                );
                assert_eq!(report["recorded"], table.rows.len(), "{report:#}");
            }
        }
    }
}

#[test]
fn a_write_to_an_o_sync_descriptor_is_a_request_also_when_the_dial_is_at_now() {
    let stage = Stage::new("record_osync");
    let script = "import os\n\
                  a = os.open('a', os.O_WRONLY | os.O_CREAT | os.O_SYNC)\n\
                  b = os.open('b', os.O_WRONLY | os.O_CREAT | os.O_DSYNC)\n\
                  for k in range(3):\n    os.write(a, b'aaaa')\n    os.write(b, b'b')\n";
    for until in ["now", "exit"] {
        let words = ["python3", "-c", script];
        let (outcome, table) = recorded(&stage, &["-u", until], &words);
        outcome.must_succeed();
        let expected = [("O_DSYNC write", 3), ("O_SYNC write", 3)];
        assert_eq!(kinds(&table), expected.into(), "{until}");
        let name = |f: &u32| {
            table.files[*f as usize]
                .path
                .rsplit('/')
                .next()
                .map(str::to_owned)
        };
        let names: Vec<_> = table.rows.file.iter().filter_map(name).collect();
        assert_eq!(names, ["a", "b"].repeat(3), "{until}");
    }
}

#[test]
fn a_request_that_is_put_off_names_the_settle_that_pays_it() {
    let stage = Stage::new("record_debts");
    let words = [
        "python3",
        "-c",
        "import os, time\n\
         fd = os.open('f', os.O_RDWR | os.O_CREAT)\n\
         end = time.time() + 1.5\n\
         while time.time() < end:\n    \
         os.write(fd, b'x')\n    os.fsync(fd)\n    time.sleep(0.001)\n",
    ];
    let (outcome, table) = recorded(&stage, &["-u", "200ms"], &words);
    outcome.must_succeed();
    if how_many(&table, Done::Owed) == 0 {
        // Off the tested list (an unusual scratch directory): nothing is put off there.
        assert!(!is_root(), "{:?}", table.filesystems);
        return;
    }
    assert!(table.settles.len() >= 3, "{:?}", table.settles);
    let debts: Vec<u64> = table.settles.iter().filter_map(|s| s.debt).collect();
    assert_eq!(debts, (1..=debts.len() as u64).collect::<Vec<_>>());
    assert!(table
        .settles
        .iter()
        .all(|s| s.errno == 0 && s.took_ns < 60_000_000_000));
}

#[test]
fn soak_short_processes_are_named_although_they_are_gone_when_the_recorder_looks() {
    let stage = Stage::new("record_short");
    let number = count(100, 2_000);
    let file = stage.work().join("f");
    let words = format!(
        "for i in $(seq {number}); do dd if=/dev/zero of={0} bs=10 count=1 conv=fsync \
         2>/dev/null; done",
        file.display()
    );
    let (outcome, table) = recorded(&stage, &["-u", "exit"], &["sh", "-c", &words]);
    outcome.must_succeed();
    assert_eq!(
        (table.rows.len(), &table.lost),
        (number, &Default::default())
    );
    let mut pids = std::collections::BTreeSet::new();
    for process in &table.rows.process {
        let p = &table.processes[*process as usize];
        assert!(
            p.exe.ends_with("/dd") && p.command.starts_with("dd if=/dev/zero"),
            "{p:?}"
        );
        pids.insert(p.pid);
    }
    assert_eq!(pids.len(), number);
    let path = |f: &u32| table.files[*f as usize].path == file.to_string_lossy();
    assert!(table.rows.file.iter().all(path), "{:?}", table.files);
}

#[test]
fn soak_what_a_full_ring_loses_is_counted_exactly() {
    let stage = Stage::new("record_lost");
    let work = stage.work();
    let hammer = program("hammer");
    // It ends by itself: a thread that is killed has counted a request that it never recorded.
    let each = count(10_000, 100_000).to_string();
    let words = [
        hammer.to_str().expect("text"),
        work.to_str().expect("text"),
        "8",
        &each,
    ];
    let json = stage.file("json").to_string_lossy().into_owned();
    let options = ["-u", "never", "--ring", "16K", "--json", &json];
    let (_, table) = recorded(&stage, &options, &words);
    let report = std::fs::read_to_string(&json).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let lost: u64 = table.lost.values().sum();
    assert!(
        lost > 0,
        "a ring of 256 events cannot hold them: {report:#}"
    );
    assert_eq!(report["recording_lost"], lost);
    assert_eq!(
        report["requests"],
        table.rows.len() as u64 + lost,
        "{report:#}"
    );
    let known = |pid: &u32| table.processes.iter().any(|p| p.pid == Some(*pid));
    assert!(table.lost.keys().all(known), "{:?}", table.lost);
}

#[test]
fn processes_in_a_pid_namespace_and_a_chroot_are_recorded_under_our_numbers() {
    if !needs_root("processes_in_a_pid_namespace_and_a_chroot_are_recorded_under_our_numbers") {
        return;
    }
    let stage = Stage::new("record_ns");
    let script = "dd if=/dev/zero of=f bs=10 count=1 conv=fsync 2>/dev/null; echo $$";
    let words = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        script,
    ];
    let (outcome, table) = recorded(&stage, &["-u", "now"], &words);
    outcome.must_succeed();
    assert_eq!(table.rows.len(), 1);
    let p = &table.processes[table.rows.process[0] as usize];
    assert!(p.exe.ends_with("/dd"), "{p:?}");
    // Its own number there is 2 or 3; ours is not, unless it was gone before it could be asked.
    assert!(p.pid.is_none_or(|pid| pid > 3), "{p:?}");
}

#[test]
fn who_synced_in_a_pid_namespace_and_is_gone_has_not_escaped() {
    if !needs_root("who_synced_in_a_pid_namespace_and_is_gone_has_not_escaped") {
        return;
    }
    let stage = Stage::new("record_ns_gone");
    let mut command = stage.synclater(&["run", "--quiet", "-u", "now"]);
    command
        .args(stage.json())
        .args(["--", "unshare", "--pid", "--fork", "--mount-proc", "dd"]);
    command.args([
        "if=/dev/zero",
        "of=f",
        "bs=10",
        "count=1",
        "conv=fsync",
        "status=none",
    ]);
    crate::harness::command::run(command.current_dir(stage.work())).must_succeed();
    let report = stage.report();
    assert_eq!(report["requests"], 1, "{report:#}");
    assert_eq!(report["escaped"], serde_json::json!([]), "{report:#}");
}

#[test]
fn time_before_the_first_request_counts() {
    let stage = Stage::new("record_idle");
    let script = "import os, time; time.sleep(0.6); os.fsync(os.open('f', os.O_CREAT | os.O_RDWR))";
    let (outcome, table) = recorded(&stage, &["-u", "now"], &["python3", "-c", script]);
    outcome.must_succeed();
    let (first, last) = table.span_ns().expect("a span");
    assert!(last - first >= 600_000_000, "{} ns", last - first);
}

#[test]
fn both_of_two_nested_sessions_record_the_inner_command() {
    let stage = Stage::new("record_nested");
    let inner = stage.file("inner").to_string_lossy().into_owned();
    let synclater = crate::sessions::stage::SYNCLATER;
    let sync = [
        "dd",
        "if=/dev/zero",
        "of=f",
        "bs=10",
        "count=1",
        "conv=fsync",
    ];
    let words = [
        &[synclater, "run", "--quiet", "--record", &inner, "--"][..],
        &sync,
    ]
    .concat();
    let (outcome, outer) = recorded(&stage, &["-u", "now"], &words);
    outcome.must_succeed();
    let inner = super::read(Path::new(&inner));
    let of_dd = |t: &Table| {
        let is_dd = |p: &&u32| t.processes[**p as usize].exe.ends_with("/dd");
        t.rows.process.iter().filter(is_dd).count()
    };
    assert_eq!((of_dd(&inner), of_dd(&outer)), (1, 1));
}

#[test]
fn a_process_that_gave_up_its_rights_is_recorded() {
    if !needs_root("a_process_that_gave_up_its_rights_is_recorded") {
        return;
    }
    let stage = Stage::new("record_rights");
    stage.open_to_others(0o777);
    let words = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    let sync = [
        "dd",
        "if=/dev/zero",
        "of=f",
        "bs=10",
        "count=1",
        "conv=fsync",
    ];
    let (outcome, table) = recorded(&stage, &["-u", "now"], &[&words[..], &sync].concat());
    outcome.must_succeed();
    assert_eq!((table.rows.len(), &table.lost), (1, &Default::default()));
    let p = &table.processes[table.rows.process[0] as usize];
    assert_eq!(p.uid, Some(65534));
}

#[test]
fn asynchronous_requests_are_recorded_without_an_end() {
    for (name, kind) in [("aio_fsync", "aio_fsync"), ("io_submit", "libaio fsync")] {
        let stage = Stage::new("record_async");
        let (file, work) = (victim(name, Class::Native), stage.work());
        let words = [file.to_str().expect("text"), work.to_str().expect("text")];
        let (_, table) = recorded(&stage, &["-u", "now"], &words);
        let found = kinds(&table).get(kind).copied().unwrap_or(0);
        assert!(found > 0, "{name}: {:?}", kinds(&table));
        let at = table
            .kinds
            .iter()
            .position(|k| k == kind)
            .expect("it is there");
        let rows = (0..table.rows.len()).filter(|i| usize::from(table.rows.kind[*i]) == at);
        assert!(
            rows.map(|i| table.rows.took_ns[i]).all(|t| t == UNKNOWN),
            "{name}"
        );
    }
}
