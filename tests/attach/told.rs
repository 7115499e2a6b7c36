//! What attach and detach say, and whether it is so: names, statuses, what could not be done.

use super::*;
use crate::harness::disk::SmallFolder;
use crate::harness::limits::count;
use crate::sessions::stage::{as_root, has_four_parts, AS_NOBODY, SYNCLATER};
use rustix::process::{kill_process, Signal};

/// The supervisor of the only session.
pub(super) fn supervisor(stage: &Stage) -> Pid {
    let pid = stage.session()["pid"].as_i64().expect("a number");
    Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid")
}

#[test]
fn relative_names_mean_the_callers_folder() {
    let stage = Stage::new("relative");
    let mut victim = demand(&stage);
    let here = |words: &[&str]| {
        let mut command = stage.synclater(words);
        command.current_dir(stage.work().parent().expect("above"));
        command.env("SYNCLATER_RUN_DIR", "run");
        command.env("SYNCLATER_STATE_DIR", "state");
        crate::harness::command::run(&mut command).must_succeed()
    };
    let pid = number(victim.pid());
    here(&[
        "attach",
        "--pid",
        &pid,
        "-u",
        "1h",
        "--record",
        "victim.rec",
    ]);
    stage.warm(&mut victim);
    assert_eq!(stage.entries().len(), 1);
    here(&["detach", &stage.id()]);
    let recorded = stage.file("victim.rec").display().to_string();
    let report = stage.ask(&["report", &recorded]).must_succeed();
    assert!(report.stdout.contains("fsync"), "{report}");
}

/// What traces a process, from before it returns until it is told to end.
fn trace(stage: &Stage, pid: &str) -> Running {
    trace_by(stage, clean("strace"), pid)
}

fn trace_by(stage: &Stage, mut command: Command, pid: &str) -> Running {
    command
        .args(["-f", "-p", pid, "-o"])
        .arg(stage.file("strace"));
    let tracer = Running::start(stage, command);
    let is_traced = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        !status.contains("TracerPid:\t0")
    };
    assert!(until(LIMIT, is_traced), "{}", tracer.stderr());
    tracer
}

/// Letting go fails, with this in the message and the status; the jumps are still there.
fn stuck_for(outcome: &Outcome, victim: &Running, why: &[&str]) {
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    for words in why {
        assert!(outcome.stderr.contains(words), "{words}: {outcome}");
    }
    assert_ne!(changed_code(victim.pid()), Vec::<String>::new());
}

#[test]
fn a_process_that_is_traced_meanwhile_is_not_said_to_be_let_go_of() {
    let stage = Stage::new("traced-late");
    let mut victim = demand(&stage);
    let pid = number(victim.pid());
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    let mut tracer = trace(&stage, &pid);
    let by = format!("it is traced by {} (strace)", number(tracer.pid()));
    let said = [by.as_str(), "cannot let go of", "detach"];
    stuck_for(&stage.ask(&["detach", &session]), &victim, &said);
    assert_eq!(stage.entries(), Vec::<std::path::PathBuf>::new());
    // The session is over; what is left of it is no easier to take out.
    stuck_for(&stage.ask(&["detach", &session]), &victim, &said);
    tracer.send(Signal::INT);
    tracer.end();
    stage.ask(&["detach", &session]).must_succeed();
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
}

/// As `synclater-wait` does when it ends a wait, a moment behind another attach or detach.
#[test]
fn a_process_that_one_of_ours_traces_for_a_moment_is_attached() {
    let stage = Stage::new("traced-by-ours");
    let mut victim = demand(&stage);
    let ours = stage.file("synclater-wait");
    let strace = crate::harness::command::run(clean("sh").args(["-c", "command -v strace"]));
    std::fs::copy(strace.must_succeed().stdout.trim(), &ours).expect("a copy");
    let mut command = clean("timeout");
    command.arg("0.3").arg(&ours);
    let mut tracer = trace_by(&stage, command, &number(victim.pid()));
    let session = stage.attach_to(&victim, "1s");
    tracer.end();
    stage.detach(&session);
    victim.end();
}

/// By a session that follows it, for as long as that goes on.
#[test]
fn a_process_that_another_session_follows_is_refused_at_once() {
    let (stage, other) = (Stage::new("followed"), Stage::new("other"));
    let mut command = other.synclater(&["run", "--follow", "--quiet", "-u", "1s", "--"]);
    command.arg(program("made_static")).arg(other.work());
    let mut victim = Running::start(&other, command);
    victim.be_ready();
    let child = crate::sessions::death::named_child(victim.pid(), "made_static");
    let pid = number(child);
    let refused = stage.ask(&["attach", "--json", "--pid", &pid, "-u", "1s"]);
    assert_eq!(refused.status.code(), Some(125), "{refused}");
    let told: Value = serde_json::from_str(&refused.stdout).expect("JSON");
    let no = &told["refused"][0];
    assert_eq!(no["pid"].to_string(), pid, "{told}");
    let why = no["why"].as_str().expect("why");
    assert!(why.contains("(synclater-trace)"), "{told}");
    victim.end().must_succeed();
}

#[test]
fn a_process_that_hides_its_memory_meanwhile_is_not_said_to_be_let_go_of() {
    const NAME: &str = "a_process_that_hides_its_memory_meanwhile_is_not_said_to_be_let_go_of";
    if !as_root(NAME) {
        return;
    }
    let (stage, roots) = (Stage::for_nobody("hidden"), Stage::new("roots"));
    let as_nobody = |program: &std::path::Path, words: &[&str]| {
        let mut command = stage.with_folders(AS_NOBODY[0]);
        command.args(&AS_NOBODY[1..]).arg(program).args(words);
        command
    };
    let synclater =
        |words: &[&str]| crate::harness::command::run(&mut as_nobody(SYNCLATER.as_ref(), words));
    let work = stage.work().display().to_string();
    let mut victim = Running::start(&stage, as_nobody(&program("demand"), &[&work]));
    victim.be_ready();
    let pid = number(victim.pid());
    let words = ["attach", "--json", "--pid", &pid, "-u", "1h"];
    let told = synclater(&words).must_succeed().stdout;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let session = told["id"].as_str().expect("an id");
    victim.tell("hide");
    assert_eq!(victim.hear(), "hide 0");
    // It is in the session as before, at more than one look.
    let shown = until(LIMIT, || {
        assert_eq!(victim.sync("file"), 0);
        let all: Value = serde_json::from_str(&synclater(&["ps", "--json"]).stdout).expect("JSON");
        all[0]["processes"][0]["skipped"].as_u64().unwrap_or(0) > 0
    });
    assert!(shown, "{}", synclater(&["ps", "--json"]));
    let outcome = synclater(&["detach", session, "--json"]);
    stuck_for(&outcome, &victim, &["it hides its memory", "become root"]);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(report["exit_status"], 125, "{report:#}");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
    roots.ask(&["detach", session]).must_succeed();
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
}

#[test]
fn a_living_session_of_another_folder_is_left_alone() {
    let (stage, other) = (Stage::new("living"), Stage::new("other"));
    let mut victim = demand(&stage);
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    let said = ["is not let go of", "which lives", "SYNCLATER_RUN_DIR"];
    stuck_for(&other.ask(&["detach", &session]), &victim, &said);
    assert!(stage.is_later(&mut victim));
    // Nor if its supervisor stands still for so long that its lease is over.
    let supervisor = supervisor(&stage);
    kill_process(supervisor, Signal::STOP).expect("it runs");
    crate::sessions::stage::pass(std::time::Duration::from_secs(2));
    let outcome = other.ask(&["attach", "--pid", &number(victim.pid())]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("which lives"), "{outcome}");
    stuck_for(&other.ask(&["detach", &session]), &victim, &said);
    kill_process(supervisor, Signal::CONT).expect("it is there");
    stage.detach(&session);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
}

/// A file of rules with this dial, for every program.
fn rules(stage: &Stage, until: &str) -> String {
    let file = stage.file("rules.toml");
    let text = format!("[[rule]]\nexe = \"*\"\nuntil = \"{until}\"\n");
    std::fs::write(&file, text).expect("rules");
    file.display().to_string()
}

#[test]
fn rules_ask_for_no_dial_that_attach_itself_refuses() {
    let stage = Stage::new("rules");
    let victim = demand(&stage);
    let pid = number(victim.pid());
    for (until, why) in [
        ("exit", "none that would end"),
        ("never", "has no end here"),
    ] {
        let rules = rules(&stage, until);
        let outcome = stage.ask(&["attach", "--pid", &pid, "--rules", &rules]);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(outcome.stderr.contains(why), "{outcome}");
        assert!(
            outcome.stderr.contains(&format!("until = {until}")),
            "{outcome}"
        );
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
    }
    assert_eq!(stage.sessions(), Vec::<Value>::new());
    let rules = rules(&stage, "never");
    let words = ["--pid", &pid, "--rules", &rules, "--for", "1h"];
    stage.attach(&words);
    // What is told to be the bound is that of the longest dial: there is none.
    assert_eq!(stage.session().get("bound_s"), None);
    stage.detach(&stage.id());
}

#[test]
fn the_bound_is_that_of_the_longest_dial_of_the_rules() {
    let stage = Stage::new("longest");
    let mut victim = demand(&stage);
    let rules = rules(&stage, "1min");
    let words = ["attach", "--pid", &number(victim.pid()), "--rules", &rules];
    let outcome = stage.ask(&words).must_succeed();
    assert!(
        outcome.stdout.contains("until 1s (1min by its rules)"),
        "{outcome}"
    );
    stage.warm(&mut victim);
    let bound = stage.session()["bound_s"].as_f64().expect("a bound");
    assert!(bound >= 60.0, "{bound}");
    let report = stage.detach(&stage.id());
    assert!(
        report["bound_s"].as_f64().expect("a bound") >= 60.0,
        "{report:#}"
    );
    assert_eq!(report["rules_until"], "1min");
}

#[test]
fn nothing_is_left_of_a_session_whose_processes_are_all_refused() {
    let stage = Stage::new("refused");
    let program = stage.file("an-exe-41");
    crate::harness::command::copy_program(super::refusals::bare_32(&stage), &program);
    let mut command = clean(&program);
    command.arg(stage.work().join("file"));
    let mut victim = Running::start(&stage, command);
    victim.be_ready();
    let earlier = stage.file("earlier.rec").display().to_string();
    let words = ["run", "-u", "now", "--record", &earlier, "--", "true"];
    stage.ask(&words).must_succeed();
    let recorded = std::fs::read(&earlier).expect("a recording");
    for by in [
        &["--exe", "an-exe-41"][..],
        &["--pid", &number(victim.pid())],
    ] {
        let words = [&["attach", "--json", "--force", "--record", &earlier], by].concat();
        let outcome = stage.ask(&words);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(outcome.stderr.contains("no system-call site"), "{outcome}");
        if !outcome.stdout.is_empty() {
            let told: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
            assert_eq!(told.get("id"), None, "{told:#}");
            assert!(told["refused"][0]["try"].is_string(), "{told:#}");
        }
        assert_eq!(stage.left_in_run_dir(), Vec::<std::path::PathBuf>::new());
        assert_eq!(stage.entries(), Vec::<std::path::PathBuf>::new());
        assert!(until(LIMIT, || stage.of_synclater().is_empty()));
        // What is not attached is not recorded either.
        assert_eq!(std::fs::read(&earlier).expect("a recording"), recorded);
    }
}

#[test]
fn soak_who_detaches_beside_another_is_told_that_it_has_ended() {
    let stage = Stage::new("detached");
    for _ in 0..count(5, 200) {
        let victim = demand(&stage);
        let session = stage.attach_to(&victim, "1s");
        let all: Vec<Running> = (0..16)
            .map(|_| Running::start(&stage, stage.synclater(&["detach", &session])))
            .collect();
        for mut one in all {
            let told = one.end();
            // There is one report; who comes later finds no session any more.
            assert!(!told.stderr.contains("is as it was"), "{told}");
        }
    }
}

#[test]
fn without_proc_it_says_so() {
    if !as_root("without_proc_it_says_so") {
        return;
    }
    let stage = Stage::new("no-proc");
    let victim = demand(&stage);
    let pid = number(victim.pid());
    for words in [&["attach", "--pid", &pid][..], &["detach", "kelp"]] {
        let mut command = stage.with_folders("unshare");
        let script = "umount -l /proc && exec \"$@\"";
        command
            .args(["--mount", "sh", "-c", script, "sh", SYNCLATER])
            .args(words);
        let outcome = crate::harness::command::run(&mut command);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(outcome.stderr.contains("/proc is not mounted"), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
    }
}

#[test]
fn a_ledger_that_cannot_be_written_is_told_and_tried_again() {
    if !as_root("a_ledger_that_cannot_be_written_is_told_and_tried_again") {
        return;
    }
    let stage = Stage::new("full-ledger");
    let small = SmallFolder::over(&stage.state());
    small.fill();
    let mut victim = demand(&stage);
    let session = stage.attach_to(&victim, "1h");
    let trouble = |stage: &Stage| stage.session().get("trouble").cloned();
    let told = until(LIMIT, || {
        assert_eq!(victim.sync("file"), 0);
        trouble(&stage).is_some()
    });
    assert!(told);
    let why = trouble(&stage).expect("trouble").to_string();
    let entry = stage.state().join(format!("{session}.json"));
    for words in ["(os error 28)", &entry.display().to_string()] {
        assert!(why.contains(words), "{why}");
    }
    let shown = stage.ask(&["ps"]).must_succeed();
    assert!(shown.stdout.contains("  trouble: cannot write"), "{shown}");
    let set = stage.ask(&["set", &session, "-u", "2h"]).must_succeed();
    assert!(set.stdout.contains("but cannot write"), "{set}");
    assert_eq!(stage.counted().1, 0);
    small.has_room_again();
    assert!(until(LIMIT, || trouble(&stage).is_none()));
    stage.warm(&mut victim);
    assert_eq!(stage.entries().len(), 1);
    stage.detach(&session);
    assert_eq!(stage.entries().len(), 0);
}

#[test]
fn never_without_a_ledger_is_settled_when_that_is_asked_for() {
    let stage = Stage::new("never-settled");
    let mut victim = demand(&stage);
    let mut command = stage.synclater(&["attach", "--until", "never", "--for", "1h"]);
    command.args(["--pid", &number(victim.pid())]);
    command.env("SYNCLATER_STATE_DIR", "/proc/nowhere");
    crate::harness::command::run(&mut command).must_succeed();
    stage.warm(&mut victim);
    let session = stage.session();
    assert_ne!(session["debt"], 0, "{session:#}");
    let id = session["id"].as_str().expect("an id");
    let supervisor = session["pid"].to_string();
    // A settle is a process of the supervisor's.
    let log = crate::sessions::stage::SyncLog(stage.file("settle.log"));
    let mut strace = clean("strace");
    strace
        .args(["-f", "-qq", "-e", "trace=syncfs", "-p", &supervisor, "-o"])
        .arg(&log.0);
    let mut tracer = Running::start(&stage, strace);
    let status = format!("/proc/{supervisor}/status");
    let is_traced = || !std::fs::read_to_string(&status).is_ok_and(|s| s.contains("TracerPid:\t0"));
    assert!(until(LIMIT, is_traced));
    let said = stage.ask(&["settle", id]).must_succeed();
    assert!(said.stdout.contains("settled; every request"), "{said}");
    assert!(
        until(LIMIT, || log.count("syncfs") > 0),
        "nothing was settled"
    );
    tracer.send(Signal::INT);
    tracer.end();
    assert_eq!(stage.session()["debt"], 0);
    assert!(stage.is_later(&mut victim));
    stage.detach(id);
}

#[test]
fn a_dial_that_is_refused_changes_nothing() {
    let stage = Stage::new("set");
    let victim = demand(&stage);
    let session = stage.attach_to(&victim, "1h");
    let outcome = stage.ask(&["set", &session, "-u", "never"]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("needs an end"), "{outcome}");
    stage
        .ask(&["set", &session, "-u", "never", "--for", "1h"])
        .must_succeed();
    assert_eq!(stage.session()["until"], "never");
    stage.detach(&session);
    let mut command = stage.synclater(&["attach", "-u", "now", "--pid", &number(victim.pid())]);
    command.env("SYNCLATER_STATE_DIR", "/proc/nowhere");
    crate::harness::command::run(&mut command).must_succeed();
    let session = stage.id();
    let outcome = stage.ask(&["set", &session, "-u", "1s", "--for", "1h"]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert_eq!(stage.session().get("lease_left_s"), None);
    stage.detach(&session);
}

#[test]
fn requests_of_nobody_are_not_relaxed() {
    let stage = Stage::new("nobody");
    let victim = demand(&stage);
    let pid = number(victim.pid());
    for verb in [&["attach", "--pid", &pid][..], &["run", "--", "true"]] {
        let mut words = verb.to_vec();
        words.splice(1..1, ["--only", "user=no-such-user"]);
        let outcome = stage.ask(&words);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(outcome.stderr.contains("is about nobody"), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
        assert_eq!(stage.sessions(), Vec::<Value>::new());
    }
    let session = stage.attach(&["--pid", &pid, "--only", "user=23456"]);
    stage.detach(&session);
}

#[test]
fn doctor_says_where_the_pages_of_sessions_lie() {
    let stage = Stage::new("pages");
    let victim = demand(&stage);
    let session = stage.attach_to(&victim, "1s");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", number(victim.pid())));
    let maps = maps.expect("maps");
    let page = maps
        .lines()
        .find_map(|l| l.split(' ').next_back()?.strip_suffix("/page"));
    let page = std::path::Path::new(page.expect("a page"));
    let said = stage.ask(&["doctor", "--json"]).stdout;
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let checks = said["checks"].as_array().expect("checks");
    let check = checks.iter().find(|c| c["name"] == "session directory");
    let seen = check.expect("the check")["seen"].as_str().expect("seen");
    let names = |above: &std::path::Path| seen.ends_with(&above.display().to_string());
    assert!(page.ancestors().any(names), "{seen}: {}", page.display());
    stage.detach(&session);
}

#[test]
fn a_session_that_ends_by_itself_has_its_report_kept_for_detach() {
    let stage = Stage::new("last-report");
    // A name that no other test's session has: `detach` would name that one, which lives.
    stage.leave_one_name();
    std::fs::create_dir(stage.run_dir().join("inlet")).expect("a folder");
    let mut victim = demand(&stage);
    let words = ["--pid", &number(victim.pid()), "-u", "1h", "--for", "1h"];
    let session = stage.attach(&words);
    stage.warm(&mut victim);
    stage.ask(&["set", &session, "--for", "1ms"]).must_succeed();
    assert!(until(LIMIT, || stage.of_synclater().is_empty()));
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    let outcome = stage.ask(&["detach", &session]).must_succeed();
    assert!(outcome.stdout.contains("1 process let go of"), "{outcome}");
    assert!(outcome.stdout.contains("all durable"), "{outcome}");
    // It is told once, and nowhere counts as a session.
    let again = stage.ask(&["detach", &session]).must_succeed();
    assert!(!again.stdout.contains("all durable"), "{again}");
    assert_eq!(stage.entries(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn settle_goes_on_behind_what_cannot_be_settled() {
    let stage = Stage::new("settle");
    let mut victim = demand(&stage);
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    let work = stage.work().display().to_string();
    let outcome = stage.ask(&["settle", "nobody", &session, "/no/such/place", &work]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    for said in [
        format!("{session}: settled;"),
        format!("{work}: file system settled"),
    ] {
        assert!(outcome.stdout.contains(&said), "{outcome}");
    }
    for said in ["there is no session nobody", "cannot settle /no/such/place"] {
        assert!(outcome.stderr.contains(said), "{outcome}");
    }
    stage.detach(&session);
}

#[test]
fn why_nobody_was_attached_is_told_of_each() {
    let stage = Stage::new("too-short");
    let mut victim = demand(&stage);
    let pid = number(victim.pid());
    let told = stage.ask(&["attach", "--pid", &pid, "--until", "1s", "--for", "1us"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    let why = format!("--for was over before; {pid} is there, and was not attached");
    assert!(told.stderr.contains(&why), "{told}");
    assert!(told.stderr.contains("a longer --for"), "{told}");
    assert!(has_four_parts(&told.stderr), "{told}");
    assert_eq!(stage.sessions(), Vec::<Value>::new());
    victim.end().must_succeed();
}
