//! What a process opens while it is attached. With `O_SYNC`: the flag is taken off, and comes back,
//! also when nobody is attached any more. A block device: it stays real.

use super::*;
use crate::follow::in_go;
use crate::harness::limits::skip;
use crate::harness::trace::{calls_in, Call};
use crate::odd_victims::Device;
use crate::sessions::stage::{as_root, pass};
use rustix::process::{kill_process, Signal};
use std::time::Duration;

const O_DSYNC: i32 = 0o10000;
const O_SYNC: i32 = 0o4010000;
const O_CLOEXEC: i32 = 0o2000000;

fn victim(stage: &Stage, name: &str) -> Running {
    let mut command = clean(program(name));
    command.arg(stage.work());
    let mut victim = Running::start(stage, command);
    victim.be_ready();
    victim
}

fn told(victim: &mut Running, line: &str) -> i32 {
    victim.tell(line);
    let said = victim.hear();
    let word = line.split(' ').next().expect("a word");
    let number = said.strip_prefix(word).expect("an answer").trim();
    number.parse().expect("a number")
}

/// What a victim sees of a file's flags after it has opened it with `flags`.
fn open(victim: &mut Running, name: &str, flags: i32) -> i32 {
    told(victim, &format!("open {name} {flags}")) & O_SYNC
}

/// The flags that the kernel has for what is open under a name.
fn real_flags(victim: Pid, name: &str) -> i32 {
    let proc = format!("/proc/{}", number(victim));
    let fds = std::fs::read_dir(format!("{proc}/fd")).expect("fds");
    let is_it = |fd: &std::fs::DirEntry| {
        std::fs::read_link(fd.path()).is_ok_and(|to| to.ends_with(format!("work/{name}")))
    };
    let fd = fds.flatten().find(is_it).expect("it is open").file_name();
    let info = std::fs::read_to_string(format!("{proc}/fdinfo/{}", fd.to_string_lossy()));
    let info = info.expect("fdinfo");
    let flags = info.lines().find_map(|l| l.strip_prefix("flags:"));
    i32::from_str_radix(flags.expect("flags").trim(), 8).expect("octal") & O_SYNC
}

/// Requests, and those of them that were put off, that one write makes.
fn of_a_write(stage: &Stage, victim: &mut Running, name: &str) -> (u64, u64) {
    counted_by(stage, victim, &format!("put {name}"))
}

fn counted_by(stage: &Stage, victim: &mut Running, line: &str) -> (u64, u64) {
    let before = stage.counted();
    assert_eq!(told(victim, line), 0);
    let after = stage.counted();
    (after.0 - before.0, after.1 - before.1)
}

/// What strace sees of a process while something is done.
fn traced(stage: &Stage, victim: Pid, what: &str, meanwhile: impl FnOnce()) -> Vec<Call> {
    let log = stage.file("strace");
    // Of an earlier one.
    let _ = std::fs::remove_file(&log);
    let mut command = clean("strace");
    command.args(["-f", "-qq", "-e", &format!("trace={what}"), "-o"]);
    command.arg(&log).args(["-p", &number(victim)]);
    let mut strace = command.spawn().expect("strace");
    // It may be the tracer, and see no call yet. This signal does nothing, and is seen.
    let sees = until(LIMIT, || {
        kill_process(victim, Signal::CONT).expect("it lives");
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("SIGCONT"))
    });
    assert!(sees, "strace does not trace");
    meanwhile();
    let pid = Pid::from_child(&strace);
    kill_process(pid, Signal::TERM).expect("strace lives");
    strace.wait().expect("strace ends");
    calls_in(&log)
}

/// The names of the calls that one write makes, as strace sees them.
fn calls_of_a_write(stage: &Stage, victim: &mut Running, name: &str) -> Vec<String> {
    calls_by(stage, victim, &format!("put {name}"))
}

fn calls_by(stage: &Stage, victim: &mut Running, line: &str) -> Vec<String> {
    let pid = victim.pid();
    let calls = traced(stage, pid, "write,pwritev2,fsync,fdatasync", || {
        assert_eq!(told(victim, line), 0);
    });
    // One tells us.
    let of_files = calls.into_iter().filter(|c| !c.arguments.starts_with("1,"));
    let flag = |c: &Call| c.arguments.rsplit(", ").next().map(str::to_owned);
    of_files
        .map(|c| match flag(&c).filter(|flag| flag.starts_with("RWF_")) {
            Some(flag) => format!("{} {flag}", c.name),
            None => c.name,
        })
        .collect()
}

fn comes_and_goes(name: &str) {
    let stage = Stage::new(name);
    let mut victim = victim(&stage, name);
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);

    for (file, flag) in [("synced", O_SYNC), ("datasynced", O_DSYNC)] {
        assert_eq!(open(&mut victim, file, flag | O_CLOEXEC), flag, "{file}");
        assert_eq!(real_flags(victim.pid(), file), 0, "{file}");
        assert_eq!(of_a_write(&stage, &mut victim, file), (1, 1), "{file}");
    }
    // A program that it executes would not bring the flag back.
    assert_eq!(open(&mut victim, "inherited", O_SYNC), O_SYNC);
    assert_eq!(real_flags(victim.pid(), "inherited"), O_SYNC);
    assert_eq!(open(&mut victim, "ordinary", O_CLOEXEC), 0);
    assert_eq!(of_a_write(&stage, &mut victim, "ordinary"), (0, 0));

    stage.ask(&["set", &session, "-u", "now"]).must_succeed();
    assert_eq!(of_a_write(&stage, &mut victim, "synced"), (1, 0));
    assert_eq!(open(&mut victim, "later", O_SYNC | O_CLOEXEC), O_SYNC);
    assert_eq!(real_flags(victim.pid(), "later"), O_SYNC);

    let report = stage.detach(&session);
    let left = report["escaped"].to_string();
    assert!(left.contains("2 descriptors lost O_SYNC"), "{report:#}");
    assert!(left.contains("O_SYNC meanwhile keep it"), "{report:#}");
    let calls = |victim: &mut Running, file| calls_of_a_write(&stage, victim, file);
    assert_eq!(calls(&mut victim, "synced"), ["pwritev2 RWF_SYNC"]);
    assert_eq!(calls(&mut victim, "datasynced"), ["pwritev2 RWF_DSYNC"]);
    assert_eq!(calls(&mut victim, "ordinary"), ["write"]);
    assert_eq!(calls(&mut victim, "later"), ["write"]);
    if name != "demand_musl" {
        // By pwritev2, which has a site of its own; without RWF_DSYNC.
        let by_another = calls_by(&stage, &mut victim, "plain synced");
        assert_eq!(by_another, ["pwritev2 RWF_SYNC"]);
    }

    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    assert_eq!(of_a_write(&stage, &mut victim, "synced"), (1, 1));
    stage.detach(&session);
    assert_eq!(calls(&mut victim, "synced"), ["pwritev2 RWF_SYNC"]);
}

#[test]
fn o_sync_comes_back_in_a_process_that_was_let_go_of() {
    comes_and_goes("demand");
}

#[test]
fn o_sync_comes_back_in_a_static_process_that_was_let_go_of() {
    comes_and_goes("demand_static");
}

#[test]
fn o_sync_comes_back_in_a_musl_process_that_was_let_go_of() {
    comes_and_goes("demand_musl");
}

#[test]
fn o_sync_comes_back_in_a_32_bit_process_that_was_let_go_of() {
    comes_and_goes("demand_32");
}

#[test]
fn o_sync_comes_back_in_a_static_32_bit_process_that_was_let_go_of() {
    comes_and_goes("demand_32_static");
}

/// Also what is open in the table of a thread alone.
#[test]
fn o_sync_comes_back_whoever_of_a_process_has_it() {
    let stage = Stage::new("own-table");
    let mut victim = victim(&stage, "demand");
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    let flags = O_SYNC | O_CLOEXEC;
    assert_eq!(open(&mut victim, "synced", flags), O_SYNC);
    assert_eq!(told(&mut victim, "leave"), 0);
    let report = stage.detach(&session);
    let left = report["escaped"].to_string();
    assert!(left.contains("1 descriptor lost O_SYNC"), "{report:#}");
    let calls = calls_of_a_write(&stage, &mut victim, "synced");
    assert_eq!(calls, ["pwritev2 RWF_SYNC"]);
}

#[test]
fn o_sync_that_only_a_thread_had_open_before_is_named() {
    let stage = Stage::new("own-table-before");
    let mut victim = victim(&stage, "demand");
    assert_eq!(open(&mut victim, "synced", O_SYNC), O_SYNC);
    assert_eq!(told(&mut victim, "leave"), 0);
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    let escaped = stage.detach(&session)["escaped"].to_string();
    let named = "1 of its descriptors had O_SYNC before";
    assert!(escaped.contains(named), "{escaped}");
}

#[test]
fn o_sync_that_is_inherited_is_taken_off_where_everything_is_followed() {
    let stage = Stage::new("followed");
    let mut command = stage.synclater(&["run", "--quiet", "--follow", "-u", "1h", "--"]);
    command.args(["env", "-i"]).arg(program("demand_static"));
    command.arg(stage.work());
    let mut victim = Running::start(&stage, command);
    stage.warm(&mut victim);
    assert_eq!(open(&mut victim, "synced", O_SYNC), O_SYNC);
    let itself = Pid::from_raw(told(&mut victim, "pid")).expect("a number");
    assert_eq!(real_flags(itself, "synced"), 0);
    assert_eq!(of_a_write(&stage, &mut victim, "synced"), (1, 1));
}

#[test]
fn nothing_is_left_of_us_once_what_lost_its_o_sync_is_closed() {
    let stage = Stage::new("closed");
    let mut victim = victim(&stage, "demand");
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    assert_eq!(open(&mut victim, "synced", O_SYNC | O_CLOEXEC), O_SYNC);
    stage.detach(&session);
    assert_ne!(changed_code(victim.pid()), Vec::<String>::new());
    assert_eq!(told(&mut victim, "close synced"), 0);
    let session = stage.attach_to(&victim, "1h");
    stage.detach(&session);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
}

/// Attaches a victim of whose requests only those for `file` are put off.
fn attach_for_one_file(stage: &Stage, victim: &mut Running) -> String {
    let pid = number(victim.pid());
    let only = ["--only", "path=/**/work/file"];
    let session = stage.attach(&[&["--pid", &pid, "-u", "1h"][..], &only].concat());
    stage.warm(victim);
    session
}

#[test]
fn a_flagged_write_is_real_where_nothing_is_put_off() {
    let stage = Stage::new("flagged");
    let mut victim = victim(&stage, "demand");
    let session = attach_for_one_file(&stage, &mut victim);
    assert_eq!(counted_by(&stage, &mut victim, "flag file"), (1, 1));
    assert_eq!(counted_by(&stage, &mut victim, "flag other"), (1, 0));
    for (line, is_real) in [("flag file", false), ("flag other", true)] {
        let pid = victim.pid();
        let calls = traced(&stage, pid, "pwritev2,fdatasync", || {
            assert_eq!(told(&mut victim, line), 0);
        });
        // Where it is real the kernel gets the flag.
        let flagged = |c: &Call| (c.name.clone(), c.arguments.ends_with("RWF_DSYNC"));
        let calls: Vec<_> = calls.iter().map(flagged).collect();
        assert_eq!(calls, [("pwritev2".to_owned(), is_real)], "{line}");
    }
    stage.detach(&session);
}

#[test]
fn o_sync_that_lies_where_nothing_is_put_off_stays() {
    let stage = Stage::new("rules");
    let mut victim = victim(&stage, "demand");
    let session = attach_for_one_file(&stage, &mut victim);
    assert_eq!(open(&mut victim, "other", O_SYNC | O_CLOEXEC), O_SYNC);
    assert_eq!(real_flags(victim.pid(), "other"), O_SYNC);
    stage.detach(&session);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
}

#[test]
fn a_block_device_that_is_opened_meanwhile_stays_real() {
    if !as_root("a_block_device_that_is_opened_meanwhile_stays_real") {
        return;
    }
    for name in ["demand", "demand_static", "demand_32"] {
        let stage = Stage::new("devices");
        let device = Device::new(&stage);
        let mut victim = victim(&stage, name);
        let session = stage.attach_to(&victim, "1h");
        stage.warm(&mut victim);
        let on_device = format!("sync {}", device.path.display());
        for _ in 0..3 {
            assert_eq!(
                counted_by(&stage, &mut victim, &on_device),
                (1, 0),
                "{name}"
            );
        }
        // Each looks where it lies from now on.
        assert_eq!(
            counted_by(&stage, &mut victim, "sync file"),
            (1, 1),
            "{name}"
        );
        stage.detach(&session);
    }
}

/// Go's gate has stacks of its own, fewer than these threads.
const WRITERS: usize = 40;

#[test]
fn writes_of_many_go_threads_are_synced_when_it_was_let_go_of() {
    let stage = Stage::new("go-writers");
    let Some(program) = in_go(&stage, "tests/attach/writers.go") else {
        const NAME: &str = "writes_of_many_go_threads_are_synced_when_it_was_let_go_of";
        return skip(NAME, "no Go compiler (go) is installed");
    };
    let mut command = clean(program);
    command.arg(stage.work()).arg(WRITERS.to_string());
    let mut victim = Running::start(&stage, command);
    assert_eq!(victim.hear(), "begun");
    let session = stage.attach_to(&victim, "1h");
    // What is opened before the ledger has said it keeps its O_SYNC.
    let entered = until(LIMIT, || {
        victim.tell("sync");
        assert_eq!(victim.hear(), "synced");
        stage.counted().1 > 0
    });
    assert!(entered, "{:#}", stage.session());
    victim.tell("open");
    assert_eq!(victim.hear(), "ready");
    let put_off = until(LIMIT, || stage.counted().1 > 1000);
    assert!(put_off, "{:#}", stage.session());
    let report = stage.detach(&session);
    assert!(
        report["escaped"].to_string().contains("lost O_SYNC"),
        "{report:#}"
    );
    let what = "pwrite64,pwritev2,fsync";
    let calls = traced(&stage, victim.pid(), what, || pass(Duration::from_secs(1)));
    let is_synced = |c: &&Call| c.name == "pwritev2" && c.arguments.ends_with("RWF_SYNC");
    let synced = calls.iter().filter(is_synced).count();
    // Some are under way when strace begins.
    let others = calls.len() - synced;
    assert!(
        others <= 2 * WRITERS,
        "{others} beside {synced} that are synced"
    );
    assert!(synced > 2 * WRITERS, "{synced} writes tell too little");
    must_be_right(&mut victim);
}

#[test]
fn who_lets_go_waits_for_no_file_system_that_a_process_has_open() {
    if !as_root("who_lets_go_waits_for_no_file_system_that_a_process_has_open") {
        return;
    }
    let stage = Stage::new("served-open");
    let mut command = clean("unshare");
    command.args(["-m", "--propagation", "private"]);
    command
        .arg(program("closing"))
        .arg(stage.work())
        .arg("hold");
    let mut victim = Running::start(&stage, command);
    victim.be_ready();
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    // The flag of what is opened from then on is taken off.
    assert_eq!(victim.sync("file"), 0);
    let report = stage.detach(&session);
    assert!(report["skipped"].as_u64() > Some(0), "{report:#}");
    assert_eq!(victim.sync("file"), 0);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    victim.end().must_succeed();
}
