//! Processes by control group and by number: whose way or number is another's later.

use super::whom::is_attached;
use super::*;
use crate::harness::limits::skip;
use crate::sessions::stage::{as_root, SYNCLATER};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A control group of version 2, gone with its guard.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Group {
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
        let root = mounts
            .lines()
            .find_map(|l| Some(l.split(' ').nth(1)?).filter(|_| l.contains(" cgroup2 ")));
        let root = Path::new(root.expect("control groups of version 2"));
        Group::below(root, name)
    }

    fn below(root: &Path, name: &str) -> Group {
        let dir = root.join(name);
        std::fs::create_dir(&dir).expect("a control group");
        Group(dir)
    }

    /// So many empty ones in it.
    fn has(&self, count: usize) {
        for n in 0..count {
            std::fs::create_dir(self.0.join(n.to_string())).expect("a control group");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let empty = || {
            // Nobody dies in a frozen one.
            let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
            let procs = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
            for pid in procs.lines().filter_map(|l| Pid::from_raw(l.parse().ok()?)) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
            entries.for_each(|e| drop(std::fs::remove_dir(e.path())));
            std::fs::remove_dir(&self.0).is_ok()
        };
        if !until(LIMIT, empty) {
            eprintln!("still there: {}", self.0.display());
        }
    }
}

/// Attaches a unit by the only mount of control groups, whose folder is moved away then: another
/// one lies there, with the number of another process.
const MOVES_AWAY: &str = "\
set -e
at=$1/jail/groups moved=$1/moved
findmnt -nt cgroup2 -o TARGET | while read -r mount; do umount -l \"$mount\"; done
mkdir -p \"$at\"; mount -t cgroup2 none \"$at\"
\"$2\" attach --unit \"$3\" -u never --for 1h
mv \"$1/jail\" \"$moved\"
mkdir -p \"$at/$3\"; echo \"$4\" > \"$at/$3/cgroup.procs\"
cat > /dev/null
umount \"$moved/groups\"";

#[test]
fn a_unit_is_not_what_its_way_leads_to_later() {
    if !as_root("a_unit_is_not_what_its_way_leads_to_later") {
        return;
    }
    let stage = Stage::new("way");
    let group = Group::new("synclater-test-way.service");
    let (first, mut second, mut stranger) = (demand(&stage), demand(&stage), demand(&stage));
    let member =
        |victim: &Running| std::fs::write(group.0.join("cgroup.procs"), number(victim.pid()));
    member(&first).expect("a member");
    let jail = stage.work().join("of-a-user");
    let mut command = stage.with_folders("unshare");
    command.args([
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        MOVES_AWAY,
        "sh",
    ]);
    command.arg(&jail).arg(SYNCLATER);
    command.args(["/synclater-test-way.service", &number(stranger.pid())]);
    let mut mover = Running::start(&stage, command);
    let lies = jail.join("jail/groups/synclater-test-way.service/cgroup.procs");
    assert!(until(LIMIT, || lies.exists() && !stage.sessions().is_empty()));
    assert!(is_attached(&stage, &first));
    // Whoever is looked at later than this one has been looked at by now.
    member(&second).expect("a member");
    assert!(until(LIMIT, || is_attached(&stage, &second)));
    assert!(!is_attached(&stage, &stranger));
    stage.detach(&stage.id());
    mover.end().must_succeed();
    second.end();
    stranger.end();
}

#[test]
fn the_whole_machine_is_no_unit() {
    if !as_root("the_whole_machine_is_no_unit") {
        return;
    }
    let stage = Stage::new("root-unit");
    for unit in ["/", "//", "/..", "./", "/./"] {
        let outcome = stage.ask(&["attach", "--unit", unit, "-u", "1h"]);
        assert_eq!(outcome.status.code(), Some(125), "{unit}: {outcome}");
        assert!(
            outcome.stderr.contains("no running unit has that name"),
            "{outcome}"
        );
    }
}

#[test]
fn processes_of_a_unit_are_attached() {
    if !as_root("processes_of_a_unit_are_attached") {
        return;
    }
    let stage = Stage::new("unit");
    let group = Group::new("synclater-test-unit.service");
    let mut victim = demand(&stage);
    std::fs::write(group.0.join("cgroup.procs"), number(victim.pid())).expect("a member");
    let session = stage.attach(&["--unit", "synclater-test-unit", "-u", "1h"]);
    assert!(is_attached(&stage, &victim));
    stage.warm(&mut victim);
    stage.detach(&session);
    victim.end();
}

#[test]
fn a_unit_of_a_container_is_not_meant_by_its_name_alone() {
    if !as_root("a_unit_of_a_container_is_not_meant_by_its_name_alone") {
        return;
    }
    let stage = Stage::new("container");
    let scope = Group::new("synclater-test-machine.scope");
    let theirs = Group::new("synclater-test-machine.scope/synclater-test-theirs.service");
    let mut victim = demand(&stage);
    std::fs::write(theirs.0.join("cgroup.procs"), number(victim.pid())).expect("a member");
    let outcome = stage.ask(&["attach", "--unit", "synclater-test-theirs"]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(
        outcome.stderr.contains("no running unit has that name"),
        "{outcome}"
    );
    let way = "synclater-test-machine.scope/synclater-test-theirs.service";
    let session = stage.attach(&["--unit", way, "-u", "1h"]);
    assert!(is_attached(&stage, &victim));
    stage.detach(&session);
    victim.end();
    drop((theirs, scope));
}

/// Executes what follows in a process of this number.
const AS_NUMBER: &str = "\
import ctypes, os, struct, sys
number = ctypes.c_int(int(sys.argv[1]))
arguments = struct.pack('11Q', 0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(number), 1, 0)
child = ctypes.CDLL(None, use_errno=True).syscall(435, arguments, len(arguments))
if child == 0:
    os.execv(sys.argv[2], sys.argv[2:])
os._exit(1 if child < 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))";

#[test]
fn who_has_the_number_of_a_process_that_has_ended_is_not_attached() {
    if !as_root("who_has_the_number_of_a_process_that_has_ended_is_not_attached") {
        return;
    }
    let stage = Stage::new("number");
    let (mut first, mut second) = (demand(&stage), demand(&stage));
    let (pid, other) = (number(first.pid()), number(second.pid()));
    let session = stage.attach(&["--pid", &pid, "--pid", &other, "-u", "1h"]);
    stage.warm(&mut first);
    first.end();
    let mut command = clean("/usr/bin/python3");
    command.args(["-c", AS_NUMBER, &pid]).arg(program("demand"));
    command.arg(stage.work());
    let mut third = Running::start(&stage, command);
    third.be_ready();
    third.tell("pid");
    assert_eq!(third.hear(), format!("pid {pid}"));
    // What is there is looked for four times a second.
    crate::sessions::stage::pass(Duration::from_secs(1));
    let code = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    assert!(!code.contains("synclater ("), "{code}");
    stage.warm(&mut second);
    stage.detach(&session);
    third.end();
    second.end();
}

#[test]
fn who_has_the_number_of_one_that_was_to_be_followed_is_not_followed() {
    if !as_root("who_has_the_number_of_one_that_was_to_be_followed_is_not_followed") {
        return;
    }
    let stage = Stage::new("follow-number");
    let group = Group::new("synclater-test-follow.service");
    let join =
        |victim: &Running| std::fs::write(group.0.join("cgroup.procs"), number(victim.pid()));
    let (mut keeps, mut first) = (demand(&stage), demand(&stage));
    join(&keeps).expect("a member");
    let words = ["--unit", "synclater-test-follow", "--follow", "-u", "1h"];
    let session = stage.attach(&words);
    let is_tracer = |pid: &Pid| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
        name.is_ok_and(|name| name.trim() == "synclater-trace")
    };
    let tracer = stage.of_synclater().into_iter().find(is_tracer);
    let tracer = tracer.expect("a tracer");
    // It is asked for the next one, and busy, until another has that one's number.
    rustix::process::kill_process(tracer, rustix::process::Signal::STOP).expect("it runs");
    join(&first).expect("a member");
    assert!(until(LIMIT, || is_attached(&stage, &first)));
    let pid = number(first.pid());
    first.end();
    let mut command = clean("/usr/bin/python3");
    command.args(["-c", AS_NUMBER, &pid, "/bin/sh", "-c"]);
    let script = "echo $$; read go; \"$0\" \"$1\"; exit $?";
    command.arg(script).arg(program("demand")).arg(stage.work());
    let mut third = Running::start(&stage, command);
    assert_eq!(third.hear(), pid);
    rustix::process::kill_process(tracer, rustix::process::Signal::CONT).expect("it is there");
    // It is asked again four times a second.
    crate::sessions::stage::pass(Duration::from_secs(1));
    third.tell("go");
    assert_eq!(third.hear(), "ready");
    third.tell("pid");
    let said = third.hear();
    let child = said.strip_prefix("pid ").expect("a number");
    let maps = std::fs::read_to_string(format!("/proc/{child}/maps")).expect("maps");
    assert!(
        !maps.contains("synclater-") && !maps.contains("/page"),
        "{maps}"
    );
    stage.warm(&mut keeps);
    stage.detach(&session);
    third.end();
    keeps.end();
}

/// The kernel tells root of every program that anybody executes.
#[test]
fn a_session_of_many_groups_goes_on_while_others_execute_programs() {
    if !as_root("a_session_of_many_groups_goes_on_while_others_execute_programs") {
        return;
    }
    let stage = Stage::new("groups");
    let group = Group::new("synclater-test-groups.service");
    group.has(2000);
    let mut victim = demand(&stage);
    std::fs::write(group.0.join("cgroup.procs"), number(victim.pid())).expect("a member");
    let session = stage.attach(&["--unit", "synclater-test-groups", "-u", "1h"]);
    stage.warm(&mut victim);
    let again = stage.file("again");
    std::fs::write(&again, "exec sh \"$0\"\n").expect("a script");
    let others = [(); 2].map(|()| {
        let mut command = clean("sh");
        command.arg(&again);
        Running::start(&stage, command)
    });
    // Its lease would be over twice.
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        assert!(stage.is_later(&mut victim), "{:#}", stage.session());
    }
    drop(others);
    stage.detach(&session);
    victim.end();
}

/// So `docker pause` does it. What it is sent on an errand with stays with it until it is thawed.
#[test]
fn a_frozen_process_is_refused_and_goes_on_when_it_is_thawed() {
    if !as_root("a_frozen_process_is_refused_and_goes_on_when_it_is_thawed") {
        return;
    }
    let stage = Stage::new("frozen-group");
    let group = Group::new("synclater-test-frozen.service");
    let write = |file: &str, text: &str| std::fs::write(group.0.join(file), text);
    let mut victim = demand(&stage);
    victim.be_ready();
    let pid = number(victim.pid());
    write("cgroup.procs", &pid).expect("a member");
    write("cgroup.freeze", "1").expect("frozen");
    let events = || std::fs::read_to_string(group.0.join("cgroup.events")).expect("events");
    assert!(until(LIMIT, || events().contains("frozen 1")));
    let attach = stage.ask(&["attach", "--pid", &pid, "-u", "1h"]);
    assert_eq!(attach.status.code(), Some(125), "{attach}");
    assert!(attach.stderr.contains("may be frozen"), "{attach}");
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    write("cgroup.freeze", "0").expect("thawed");
    let begun = Instant::now();
    assert_eq!(victim.sync("file"), 0);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?} behind the thaw");
    let session = stage.attach(&["--pid", &pid, "-u", "1h"]);
    stage.warm(&mut victim);
    stage.detach(&session);
    victim.end();
}

/// By control groups of version 1, where nothing of it can be stopped, and put back.
#[test]
fn nothing_is_changed_in_a_process_of_which_no_thread_can_be_had() {
    const NAME: &str = "nothing_is_changed_in_a_process_of_which_no_thread_can_be_had";
    if !as_root(NAME) {
        return;
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    let is_freezer = |l: &&str| l.contains(" cgroup ") && l.contains("freezer");
    let Some(mount) = mounts.lines().find(is_freezer) else {
        return skip(NAME, "there is no freezer of version 1");
    };
    let root = Path::new(mount.split(' ').nth(1).expect("its point"));
    let group = Group::below(root, "synclater-test-freezer");
    let stage = Stage::new("freezer");
    let mut victim = demand(&stage);
    let pid = number(victim.pid());
    let state = |to: &str| std::fs::write(group.0.join("freezer.state"), to);
    std::fs::write(group.0.join("cgroup.procs"), &pid).expect("a member");
    state("FROZEN").expect("it is frozen");
    let attach = ["attach", "--json", "--pid", &pid, "-u", "1h"];
    let mut attach = Running::start(&stage, stage.synclater(&attach));
    let is_traced = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        !status.expect("its status").contains("TracerPid:\t0")
    };
    // A try, and the next one.
    for is_to_be in [true, false, true] {
        assert!(
            until(LIMIT, || is_traced() == is_to_be),
            "{}",
            attach.stderr()
        );
    }
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    state("THAWED").expect("it is thawed");
    let session = session_of(&attach.end());
    stage.warm(&mut victim);
    stage.detach(&session);
    victim.end();
}
