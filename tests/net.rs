//! `run --net`: requests that nothing but the kernel sees are answered, counted and settled, and go
//! on being answered whoever is killed.

mod ends;

use crate::follow::{
    all_were_seen, answered_late_around_now, hammer, hammer_in_go, number, reaching, requests,
};
use crate::harness::command::{run, Outcome, LIMIT};
use crate::harness::disk::{Disk, SlowDisk};
use crate::harness::limits::{count, is_root, needs_net, needs_root, seed, skip};
use crate::sessions::stage::{
    as_root, pass, program, progress, Running, Stage, AS_NOBODY, SYNCLATER,
};
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};
use std::process::Command;
use std::time::Duration;

const NET: [&str; 1] = ["--net"];

/// The words of a program with requests of its own, and what it makes beside them: how many, and
/// how many of those fail.
fn inline(stage: &Stage, name: &str) -> (Vec<String>, u64, u64) {
    let dir = stage.work().display().to_string();
    let n = requests().to_string();
    let words = vec![program(name).display().to_string(), dir, n];
    // Bad descriptors, pipes; x32 where the kernel has it, and msync, of 64-bit ones.
    if name.contains("_32") {
        (words, 4, 4)
    } else {
        (words, 8, 7)
    }
}

#[test]
fn soak_a_program_without_libc_is_answered_as_the_kernel_does() {
    if !needs_net("soak_a_program_without_libc_is_answered_as_the_kernel_does") {
        return;
    }
    for name in ["inline", "inline_static", "inline_32"] {
        for until in ["exit", "now"] {
            let stage = Stage::new("inline");
            let (words, more, fail) = inline(&stage, name);
            let mut command = reaching(&stage, &["--net", "-u", until]);
            run(command.args(&words)).must_succeed();
            let report = stage.report();
            let counted = number(&report, "requests");
            assert_eq!(counted, requests() + more, "{name} {until}: {report:#}");
            assert_eq!(report["escaped"], json!([]), "{report:#}");
            if until == "exit" {
                assert_eq!(number(&report, "failed"), fail, "{name}: {report:#}");
                // Until its ledger entry is on disk a session makes all for real.
                assert_eq!(report["settled"], report["skipped"], "{report:#}");
            } else {
                assert_eq!(number(&report, "skipped"), 0, "{report:#}");
            }
        }
    }
}

#[test]
fn soak_every_kind_of_program_is_seen_without_the_library() {
    if !needs_net("soak_every_kind_of_program_is_seen_without_the_library") {
        return;
    }
    let cleaned: &[&str] = &["env", "-i", "PATH=/usr/bin:/bin"];
    for name in ["hammer", "hammer_static", "hammer_musl", "hammer_32"] {
        let stage = Stage::new("net");
        let words = hammer(name, &stage.work());
        let outcome = run(reaching(&stage, &NET).args(cleaned).args(words));
        all_were_seen(&stage, &outcome, 1);
    }
}

#[test]
fn soak_a_go_program_is_seen() {
    if !needs_net("soak_a_go_program_is_seen") {
        return;
    }
    let stage = Stage::new("net-go");
    let Some(words) = hammer_in_go(&stage) else {
        return skip(
            "soak_a_go_program_is_seen",
            "no Go compiler (go) is installed",
        );
    };
    let outcome = run(reaching(&stage, &NET).args(words));
    all_were_seen(&stage, &outcome, 1);
}

/// It asks for the errors of each file, once.
#[test]
fn what_the_library_asks_is_no_hint_of_the_program() {
    if !needs_net("what_the_library_asks_is_no_hint_of_the_program") {
        return;
    }
    let stage = Stage::new("no-hints");
    let script = "for i in $(seq 80); do \
        dd if=/dev/zero of=\"$1/f$i\" bs=1 count=1 conv=fsync status=none; done";
    let mut command = reaching(&stage, &NET);
    command.args(["sh", "-c", script, "sh"]).arg(stage.work());
    run(&mut command).must_succeed();
    let report = stage.report();
    assert!(number(&report, "skipped") > 0, "{report:#}");
    assert!(report["hints"].is_null(), "{report:#}");
}

#[test]
fn what_the_library_makes_for_real_is_not_asked_about_again() {
    if !needs_net("what_the_library_makes_for_real_is_not_asked_about_again") {
        return;
    }
    for (name, how) in [
        ("hammer", &["--net", "-u", "now"][..]),
        ("hammer_32", &["--net", "-u", "now"]),
        ("hammer_musl", &["--net", "-u", "now"]),
        ("hammer", &["--net", "-u", "1s"]),
        ("hammer_static", &["--net", "--follow", "-u", "now"]),
        ("hammer_static", &["--net", "--follow", "-u", "exit"]),
    ] {
        let stage = Stage::new("net-once");
        let words = hammer(name, &stage.work());
        let outcome = run(reaching(&stage, how).args(words)).must_succeed();
        let report = stage.report();
        assert_eq!(number(&report, "requests"), requests(), "{how:?} {outcome}");
        assert_eq!(report["escaped"], json!([]), "{report:#}");
    }
}

/// A static `busy`, which checks every answer, among signals, threads and forks.
#[test]
fn soak_every_answer_is_right_while_threads_and_signals_come_and_go() {
    if !needs_net("soak_every_answer_is_right_while_threads_and_signals_come_and_go") {
        return;
    }
    for until in ["now", "exit"] {
        let stage = Stage::new("net-busy");
        let mut command = reaching(&stage, &["--net", "-u", until]);
        command
            .arg(program("busy_static"))
            .arg(stage.work())
            .arg("4");
        let mut victim = Running::start(&stage, command);
        victim.be_ready();
        pass(Duration::from_secs(count(2, 120) as u64));
        let outcome = victim.end().must_succeed();
        assert!(outcome.stdout.contains(" wrong 0"), "{outcome}");
    }
}

#[test]
fn a_rule_is_about_the_program_and_the_file_also_here() {
    if !needs_net("a_rule_is_about_the_program_and_the_file_also_here") {
        return;
    }
    let stage = Stage::new("net-rules");
    for dir in ["a", "b"] {
        std::fs::create_dir(stage.work().join(dir)).expect("a folder");
    }
    let own = if is_root() { "user=root" } else { "user=*" };
    let table = [
        ("path=**/a/**", "a", true),
        ("path=**/a/**", "b", false),
        ("exe=demand_static", "a", true),
        ("exe=other", "a", false),
        (own, "a", true),
        ("user=daemon", "a", false),
    ];
    for (rule, dir, is_later) in table {
        let options = ["--net", "-u", "never", "--only", rule];
        let mut command = reaching(&stage, &options);
        command
            .arg(program("demand_static"))
            .arg(stage.work().join(dir));
        let mut victim = Running::start(&stage, command);
        if is_later {
            stage.warm(&mut victim);
        }
        for _ in 0..20 {
            assert_eq!(victim.sync("file"), 0);
        }
        victim.end();
        let skipped = number(&stage.report(), "skipped");
        assert_eq!(skipped > 0, is_later, "{rule} {dir}: {skipped}");
    }
}

#[test]
fn a_dial_that_is_set_holds_for_the_next_request() {
    if !needs_net("a_dial_that_is_set_holds_for_the_next_request") {
        return;
    }
    let stage = Stage::new("net-set");
    let mut command = reaching(&stage, &["--net", "-u", "never"]);
    command.arg(program("demand_static")).arg(stage.work());
    let mut victim = Running::start(&stage, command);
    stage.warm(&mut victim);
    let how = stage.session()["processes"][0]["how"].clone();
    assert_eq!(how, "net");
    stage.ask(&["set", &stage.id(), "-u", "now"]).must_succeed();
    assert!(!stage.is_later(&mut victim));
    victim.end();
}

#[test]
fn an_open_with_o_sync_is_left_as_it_is_and_counted() {
    if !needs_net("an_open_with_o_sync_is_left_as_it_is_and_counted") {
        return;
    }
    let stage = Stage::new("net-osync");
    let script = "import os\nfd = os.open('f', os.O_WRONLY | os.O_CREAT | os.O_SYNC)\n\
                  os.write(fd, b'x')\nimport fcntl\n\
                  assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_SYNC\n\
                  os.open('f', os.O_RDONLY | os.O_SYNC)\n";
    let mut command = reaching(&stage, &NET);
    command.current_dir(stage.work());
    run(command.args(["env", "-i", "/usr/bin/python3", "-c", script])).must_succeed();
    let report = stage.report();
    let kept = &report["kept_real"]["O_SYNC that could not be taken off"];
    assert_eq!(kept, &json!(1), "{report:#}");
    assert_eq!(report["escaped"], json!([]), "{report:#}");
}

/// While one program's request takes its time on a slow disk, another's are answered.
#[test]
fn a_request_that_is_made_keeps_nobody_else_waiting() {
    if !needs_net("a_request_that_is_made_keeps_nobody_else_waiting") {
        return;
    }
    const NAME: &str = "a_request_that_is_made_keeps_nobody_else_waiting";
    if !needs_root(NAME) {
        return;
    }
    let stage = Stage::new("net-slow");
    let disk = SlowDisk::new("ext4", 64, 400);
    let hammer = program("hammer_static").display().to_string();
    let fast = |n: u32| format!("{hammer} {} 1 {n}", stage.work().display());
    let slow = |n: u32| format!("{hammer} {} 1 {n}", disk.path().display());
    // The slow one's dial is `now`: its file lies elsewhere. The first of the fast ones have the
    // ledger written meanwhile.
    let only = format!("path={}/**", stage.work().display());
    let script = format!(
        "{}; {}; {} & {}; kill -9 $!",
        fast(100),
        slow(3),
        slow(0),
        fast(1000)
    );
    let mut command = reaching(&stage, &["--net", "--only", &only]);
    run(command.args(["sh", "-c", &script])).must_succeed();
    let (made, _) = progress(&disk.path());
    let report = stage.report();
    assert!(number(&report, "skipped") >= 1000, "{report:#}");
    assert!(made < 100, "{made} slow ones meanwhile");
}

#[test]
fn a_file_system_that_owes_can_be_unmounted_by_a_program_without_the_library() {
    if !needs_net("a_file_system_that_owes_can_be_unmounted_by_a_program_without_the_library") {
        return;
    }
    const NAME: &str = "a_file_system_that_owes_can_be_unmounted_by_a_program_without_the_library";
    if !needs_root(NAME) {
        return;
    }
    let stage = Stage::new("net-umount");
    let disk = Disk::new("ext4", 64);
    let words = hammer("hammer_static", disk.path()).join(" ");
    let script = format!("{words} && env -i umount {}", disk.path().display());
    let outcome = run(reaching(&stage, &NET).args(["sh", "-c", &script]));
    assert_eq!(outcome.status.code(), Some(0), "{outcome}");
    assert!(!disk.is_mounted());
}

#[test]
fn without_rights_it_says_what_no_program_gains_any_more() {
    if !needs_net("without_rights_it_says_what_no_program_gains_any_more") {
        return;
    }
    if !as_root("without_rights_it_says_what_no_program_gains_any_more") {
        return;
    }
    let stage = Stage::for_nobody("net-nobody");
    let words = hammer("hammer_static", &stage.work());
    let asked = |options: &[&str]| {
        let mut command = stage.with_folders("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            SYNCLATER,
            "run",
        ]);
        command
            .args(stage.json())
            .args(options)
            .arg("--")
            .args(&words);
        run(&mut command)
    };
    std::fs::write(stage.file("report.json"), "").expect("a report");
    crate::sessions::stage::give_to_nobody(&stage.file("report.json"));
    let outcome = asked(&["--net"]);
    assert!(outcome.stderr.contains("no_new_privs"), "{outcome}");
    all_were_seen(&stage, &outcome, 1);
    let outcome = asked(&["--net", "--quiet"]);
    assert!(!outcome.stderr.contains("no_new_privs"), "{outcome}");
    all_were_seen(&stage, &outcome, 1);
}

/// Ends with our own status, and says why.
/// Without the right to count in the kernel whoever lacks the library is suspected.
#[test]
fn whom_the_net_answers_is_not_said_to_escape() {
    let name = "whom_the_net_answers_is_not_said_to_escape";
    if !needs_net(name) || !as_root(name) {
        return;
    }
    let stage = Stage::for_nobody("net-suspects");
    let report = stage.file("report.json");
    std::fs::write(&report, "").expect("a report");
    crate::sessions::stage::give_to_nobody(&report);
    let mut command = stage.with_folders(AS_NOBODY[0]);
    command.args(&AS_NOBODY[1..]).arg(SYNCLATER);
    command.args(["run", "--quiet", "--net"]).args(stage.json());
    command
        .arg("--")
        .arg(program("hammer_static"))
        .arg(stage.work());
    // So many that it is looked at meanwhile.
    run(command.args(["1", "40000"])).must_succeed();
    let report = stage.report();
    assert!(report["skipped"].as_u64() > Some(30_000), "{report:#}");
    assert_eq!(report["escaped"], json!([]), "{report:#}");
}

fn is_refused(outcome: &Outcome, why: &str) {
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("cannot cast the net"), "{outcome}");
    assert!(outcome.stderr.contains(why), "{outcome}");
}

#[test]
fn a_net_inside_of_another_session_is_refused_and_a_session_inside_of_a_net_is_not() {
    if !needs_net("a_net_inside_of_another_session_is_refused_and_a_session_inside_of_a_net_is_not")
    {
        return;
    }
    let stage = Stage::new("net-nested");
    let inner = [SYNCLATER, "run", "--net", "--", "true"];
    for outer in [&[][..], &NET] {
        let outcome = run(reaching(&stage, outer).args(inner));
        is_refused(&outcome, "inside of another synclater session");
    }
    let outcome = run(reaching(&stage, &NET)
        .args(["env", "-u", "SYNCLATER_PAGE"])
        .args(inner));
    is_refused(&outcome, "asks somebody already");
    let mut command = reaching(&stage, &NET);
    command.args([SYNCLATER, "run", "--quiet", "--"]);
    let outcome = run(command.args(hammer("hammer", &stage.work())));
    all_were_seen(&stage, &outcome, 1);
    assert!(stage.left_in_run_dir().is_empty());
}

#[test]
fn what_a_session_inside_takes_for_real_is_not_answered_late() {
    if !needs_net("what_a_session_inside_takes_for_real_is_not_answered_late") {
        return;
    }
    // One that does not know of the net, and one that does not reach its program; and programs
    // whose ancestors end while they ask.
    let unknown = &["-u", "SYNCLATER_PAGE", "-u", "LD_PRELOAD"][..];
    let ways: [(&[&str], &[&str]); 3] = [
        (unknown, &["hammer", "1", "503"]),
        (&[], &["hammer_static", "1", "503"]),
        (unknown, &["orphans_static", "300", "4"]),
    ];
    for (unknown, victim) in ways {
        let late = answered_late_around_now("--net", unknown, victim);
        assert_eq!(late, 0, "{victim:?}");
    }
}

#[test]
fn a_command_that_is_not_there_is_not_found() {
    if !needs_net("a_command_that_is_not_there_is_not_found") {
        return;
    }
    let stage = Stage::new("net-not-there");
    let outcome = run(reaching(&stage, &NET).arg("/no/such/command"));
    assert_eq!(outcome.status.code(), Some(127), "{outcome}");
    let outcome = run(reaching(&stage, &NET).arg("/etc/passwd"));
    assert_eq!(outcome.status.code(), Some(126), "{outcome}");
    let nobody = until(LIMIT, || ends::of_this_stage(&stage).is_empty());
    assert!(nobody, "{:?}", ends::of_this_stage(&stage));
}

#[test]
fn doctor_tells_whether_a_net_can_be_cast() {
    if !needs_net("doctor_tells_whether_a_net_can_be_cast") {
        return;
    }
    let stage = Stage::new("net-doctor");
    let outcome = stage.ask(&["doctor", "--json"]);
    let told: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let checks = told["checks"].as_array().expect("checks");
    let net = checks.iter().find(|c| c["name"] == "net");
    assert_eq!(net.expect("a check")["status"], "ok", "{told:#}");
    // Not where somebody is asked already.
    let mut command: Command = reaching(&stage, &NET);
    let outcome = run(command.args([SYNCLATER, "doctor"]));
    assert!(
        outcome.stdout.contains("asks somebody already"),
        "{outcome}"
    );
}
