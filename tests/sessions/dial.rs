//! The dial of a live session: `set`, `settle`, `--for`.

use super::stage::{as_root, pass, program, progress, Running, Stage, SYNCLATER};
use crate::harness::command::{run, LIMIT};
use crate::harness::disk::SlowDisk;
use crate::wait::until;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The promise is 100 ms; five times that for a busy machine.
const AT_ONCE: Duration = Duration::from_millis(500);

const THREADS: u64 = 2;

/// Requests and late answers of each process of the only session that made any.
fn rows(stage: &Stage) -> BTreeMap<u64, (u64, u64)> {
    let session = stage.session();
    let row = |r: &Value| {
        let number = |key: &str| r[key].as_u64().expect("a number");
        (number("pid"), (number("requests"), number("skipped")))
    };
    let all = session["processes"].as_array().expect("processes");
    all.iter().map(row).filter(|(_, (n, _))| *n > 0).collect()
}

/// Whether nobody's late answers grow while everybody's requests do. A real request that is under
/// way is counted among the late ones until it comes back.
fn all_real(stage: &Stage) -> bool {
    let before = rows(stage);
    let grown = until(LIMIT, || {
        rows(stage)
            .iter()
            .all(|(pid, r)| before.get(pid).is_some_and(|b| r.0 > b.0 + 20))
    });
    assert!(grown, "the victims stand still");
    rows(stage)
        .iter()
        .all(|(pid, r)| before.get(pid).is_some_and(|b| r.1 <= b.1 + THREADS))
}

fn all_later(stage: &Stage) -> bool {
    let before = rows(stage);
    until(AT_ONCE, || {
        rows(stage)
            .iter()
            .all(|(pid, r)| before.get(pid).is_some_and(|b| r.1 > b.1))
    })
}

#[test]
fn set_reaches_every_process_at_once() {
    let stage = Stage::new("set");
    let dirs: Vec<PathBuf> = ["a", "b", "c"].map(|n| stage.work().join(n)).into();
    let script = "h=$1; shift; for d in \"$@\"; do mkdir \"$d\"; \"$h\" \"$d\" 2 & done; wait";
    let mut command = stage.synclater(&["run", "--quiet", "--", "sh", "-c", script, "sh"]);
    command.arg(program("hammer")).args(&dirs);
    let _running = Running::start(&stage, command);
    let relaxed = until(LIMIT, || {
        dirs.iter().all(|d| progress(d).0 > 1000) && rows(&stage).values().all(|r| r.1 > 500)
    });
    assert!(relaxed, "{:?}", rows(&stage));
    let id = stage.id();
    for _ in 0..3 {
        stage.ask(&["set", &id, "-u", "now"]).must_succeed();
        pass(AT_ONCE);
        assert!(all_real(&stage), "{:?}", rows(&stage));
        assert_eq!(stage.session()["until"], "now");
        assert_eq!(stage.session()["debt"], 0, "{:#}", stage.session());
        stage.ask(&["set", &id, "-u", "exit"]).must_succeed();
        assert!(all_later(&stage), "{:?}", rows(&stage));
        assert_eq!(stage.session()["until"], "exit");
    }
}

#[test]
fn set_waits_for_a_disk_that_takes_its_time() {
    if !as_root("set_waits_for_a_disk_that_takes_its_time") {
        return;
    }
    let (disk, stage) = (SlowDisk::new("ext4", 64, 2000), Stage::new("set-slow"));
    let mut victim = stage.demand_on(&disk.path(), &["-u", "exit"]);
    stage.warm(&mut victim);
    let id = stage.id();
    let told = stage.ask(&["set", &id, "-u", "now"]).must_succeed();
    assert!(told.stdout.contains("now"), "{told}");
    assert_eq!(stage.session()["debt"], 0);
    victim.end().must_succeed();
}

#[test]
fn settle_pays_what_is_owed_now() {
    let stage = Stage::new("settle");
    let mut command = stage.with_folders("env");
    let log = stage.traced(&mut command, "syncfs", "synclater.log");
    command.args([super::stage::SYNCLATER, "run", "--quiet", "--"]);
    command.arg(program("demand")).arg(stage.work());
    let mut victim = Running::start(&stage, command);
    stage.warm(&mut victim);
    assert!(stage.session()["debt"].as_u64() > Some(0));
    assert!(stage.session()["oldest_s"].as_f64() > Some(0.0));
    let before = log.count("syncfs");
    let id = stage.id();
    let told = stage.ask(&["settle", &id]).must_succeed();
    assert!(told.stdout.contains("durable"), "{told}");
    assert!(log.count("syncfs") > before, "nothing reached the kernel");
    let session = stage.session();
    assert_eq!(session["debt"], 0, "{session:#}");
    assert!(session.get("oldest_s").is_none(), "{session:#}");
    // Of all sessions, and of a path.
    assert!(stage.is_later(&mut victim));
    stage.ask(&["settle"]).must_succeed();
    assert_eq!(stage.session()["debt"], 0);
    let work = stage.work().display().to_string();
    stage.ask(&["settle", &work]).must_succeed();
    victim.end().must_succeed();
}

#[test]
fn settle_and_set_refuse_what_is_not_there() {
    let stage = Stage::new("nobody-there");
    for words in [
        &["settle", "kelp"][..],
        &["settle", "/not/there"],
        &["set", "kelp", "-u", "now"],
        &["status", "--forget", "kelp"],
    ] {
        let outcome = stage.ask(words);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(super::stage::has_four_parts(&outcome.stderr), "{outcome}");
    }
}

/// Syncs a file, the folder that it is in, or one beside that, as it is told.
const SYNCS: &str = "\
import os, sys
folder = sys.argv[1]
os.makedirs(folder + '/inner')
flags = os.O_CREAT | os.O_RDWR
files = {'file': os.open(folder + '/inner/a', flags), 'beside': os.open(folder + '/b', flags)}
files['folder'] = os.open(folder + '/inner', os.O_RDONLY)
print('ready', flush=True)
for line in sys.stdin:
    os.fsync(files[line.strip()])
    print('synced', flush=True)
";

#[test]
fn a_rule_about_a_folder_is_about_it_and_what_is_in_it() {
    for form in ["inner", "inner/", "inner/**"] {
        let stage = Stage::new("folder-rule");
        let folder = stage.work().join("below");
        let only = format!("path={}/{form}", folder.display());
        let mut command = stage.synclater(&["run", "--quiet", "--only", &only, "--"]);
        command.args(["/usr/bin/python3", "-c", SYNCS]).arg(&folder);
        let mut victim = Running::start(&stage, command);
        victim.be_ready();
        let mut is_put_off = |what: &str| {
            let before = stage.counted().1;
            victim.tell(what);
            assert_eq!(victim.hear(), "synced");
            stage.counted().1 > before
        };
        assert!(until(LIMIT, || is_put_off("file")), "{form}");
        assert!(is_put_off("folder"), "{form}");
        assert!(!is_put_off("beside"), "{form}");
        victim.end().must_succeed();
    }
}

#[test]
fn a_rule_that_decided_about_nothing_is_said_at_the_end() {
    for (name, options) in [("hammer", &[][..]), ("hammer_static", &["--net"])] {
        let test = "a_rule_that_decided_about_nothing_is_said_at_the_end";
        if !options.is_empty() && !as_root(test) {
            return;
        }
        let stage = Stage::new("unmatched");
        let folder = stage.work().display().to_string();
        let rules = format!(
            "[[rule]]\nexe = \"{name}\"\npath = \"{folder}/**\"\n\
             [[rule]]\npath = \"/not/there/**\"\nuntil = \"never\"\n\
             [[rule]]\nexe = \"nobody's\"\n"
        );
        let file = stage.file("rules.toml");
        std::fs::write(&file, rules).expect("the rules");
        let mut command = stage.with_folders(SYNCLATER);
        command
            .args(["run", "--summary", "-u", "1s", "--rules"])
            .arg(&file);
        command.args(stage.json()).args(options).arg("--");
        command.arg(program(name)).arg(stage.work());
        command.args(["1", "2003"]);
        let outcome = run(&mut command).must_succeed();
        let said = stage.report()["unmatched_rules"].clone();
        let want = serde_json::json!(["path=/not/there/** until=never", "exe=nobody's"]);
        assert_eq!(said, want, "{name}: {outcome}");
        assert!(
            outcome.stderr.contains("2 rules decided about nothing:"),
            "{outcome}"
        );
    }
}

/// What was real before the rules were asked says nothing of them.
#[test]
fn a_rule_that_was_not_asked_is_not_said_to_match_nothing() {
    const INNER: [&str; 6] = ["run", "-u", "1s", "--only", "path=/nonexistent", "--"];
    let ways: [(&[&str], bool); 4] = [
        (&["-u", "now"], false),
        (&["-u", "never", "--for", "1us"], false),
        (&["-u", "1s"], true),
        (&["-u", "1s"], false),
    ];
    for (options, is_nested) in ways {
        let stage = Stage::new("unasked");
        let mut command = stage.with_folders(SYNCLATER);
        command.args(["run", "--summary"]).args(options);
        command.arg(format!("--only=path={}", stage.work().display()));
        command.args(stage.json()).arg("--");
        if is_nested {
            command.arg(SYNCLATER).args(INNER);
        }
        command
            .arg(program("hammer"))
            .arg(stage.work())
            .args(["1", "307"]);
        let outcome = run(&mut command).must_succeed();
        let report = stage.report();
        assert_eq!(report["requests"], 307, "{outcome}");
        // The rules of the last way were asked, and match.
        assert!(
            report["unmatched_rules"].is_null(),
            "{options:?}: {report:#}"
        );
    }
}

#[test]
fn a_lease_ends_and_its_debt_is_paid() {
    let stage = Stage::new("lease");
    let mut victim = stage.demand(&["--for", "3s"]);
    stage.warm(&mut victim);
    let left = stage.session()["lease_left_s"].as_f64();
    assert!(left > Some(0.0) && left <= Some(3.0), "{left:?}");
    let ended = until(LIMIT, || stage.session()["lease_left_s"] == 0.0);
    assert!(ended, "{:#}", stage.session());
    assert!(until(LIMIT, || stage.session()["debt"] == 0));
    assert!(!stage.is_later(&mut victim));
    victim.end().must_succeed();
}

#[test]
fn a_short_lease_ends_in_time() {
    let stage = Stage::new("short");
    let mut victim = stage.demand(&[]);
    stage.warm(&mut victim);
    let id = stage.id();
    let begin = Instant::now();
    stage.ask(&["set", &id, "--for", "300ms"]).must_succeed();
    let over = until(LIMIT, || !stage.is_later(&mut victim));
    assert!(
        over && begin.elapsed() < Duration::from_secs(2),
        "{begin:?}"
    );
    assert_eq!(stage.session()["lease_left_s"], 0.0);
    victim.end().must_succeed();
}

#[test]
fn a_dial_that_is_set_after_the_lease_holds_or_is_refused() {
    let stage = Stage::new("revived");
    let mut victim = stage.demand(&[]);
    stage.warm(&mut victim);
    let id = stage.id();
    stage.ask(&["set", &id, "--for", "1ms"]).must_succeed();
    assert!(until(LIMIT, || !stage.is_later(&mut victim)));
    let answer = stage.ask(&["set", &id, "-u", "exit"]);
    if answer.status.success() {
        assert!(stage.is_later(&mut victim), "it said {}", answer.stdout);
    }
    stage
        .ask(&["set", &id, "-u", "exit", "--for", "1h"])
        .must_succeed();
    assert!(stage.is_later(&mut victim), "{:#}", stage.session());
    victim.end().must_succeed();
}

/// Processor time of a process, in clock ticks (10 ms).
fn ticks(pid: rustix::process::Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.expect("it runs");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("a name")
        .split(' ')
        .collect();
    [12, 13]
        .map(|i| fields[i].parse::<u64>().expect("ticks"))
        .iter()
        .sum()
}

#[test]
fn a_session_that_waits_uses_no_processor() {
    for options in [&["--for", "1ms"][..], &["-u", "now"], &["-u", "1s"], &[]] {
        let stage = Stage::new("idle");
        let mut victim = stage.demand(options);
        victim.sync("file");
        pass(Duration::from_millis(300));
        let before = ticks(victim.pid());
        pass(Duration::from_secs(1));
        let used = ticks(victim.pid()) - before;
        assert!(used <= 10, "{options:?}: {used} ticks of 10 ms in a second");
        victim.end().must_succeed();
    }
}
