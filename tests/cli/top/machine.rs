//! `top` without a session: what the kernel sees.

use super::*;

/// A program outside of any session that syncs without a pause.
fn hammering_alone(stage: &Stage) -> Running {
    let victim = Running::start(stage, command_in(clean(program("hammer")), stage));
    let runs = until(LIMIT, || progress(&stage.work()).0 > 20);
    assert!(runs, "it does not run: {}", victim.stderr());
    victim
}

#[test]
fn a_process_outside_of_any_session_is_seen_by_the_kernel_and_has_no_dial() {
    let name = "a_process_outside_of_any_session_is_seen_by_the_kernel_and_has_no_dial";
    if !can_watch(name) {
        return;
    }
    let stage = Stage::new("top_kernel");
    let victim = hammering_alone(&stage);
    let pid = victim.pid().as_raw_nonzero().to_string();
    let tmux = top(&stage, &format!("--pid {pid}"));
    let screen = tmux.wait_for("requests", shows_requests);
    let title = format!("this machine  process {pid}");
    assert!(screen.starts_with(&title), "{screen}");
    assert_eq!(figure(&screen, " skipped/s"), Some(0.0), "{screen}");
    let lines = table(&screen);
    assert!(lines.len() == 1 && lines[0].starts_with(&pid), "{screen}");
    tmux.press(&["2"]);
    let screen = tmux.wait_for("files", |s| s.contains("[file]"));
    assert!(table(&screen)[0].contains("/hammered-"), "{screen}");
    for key in ["u", "S"] {
        tmux.press(&["?"]);
        tmux.wait_for("help", |s| s.contains("Ctrl-C        quit"));
        tmux.press(&[key]);
        tmux.wait_for("a refusal", |s| s.contains("only a session has a dial"));
    }
    tmux.press(&["q"]);
    tmux.wait_for("the end", |s| s.contains("status 0"));
    ends_of(victim, Signal::TERM);
}

#[test]
fn figures_of_the_machine_are_printed_without_a_terminal() {
    let name = "figures_of_the_machine_are_printed_without_a_terminal";
    if !can_watch(name) {
        return;
    }
    let stage = Stage::new("top_kernel_json");
    let victim = hammering_alone(&stage);
    let work = stage.work();
    let device = work.to_str().expect("text");
    // Of another device there is nothing.
    for (words, some) in [
        (vec!["--system"], true),
        (vec!["--exe", "hammer", "--device", device], true),
        (vec!["--exe", "no-such-program"], false),
    ] {
        let mut command = stage.synclater(&["top", "--once", "--json", "--by", "kind"]);
        let outcome = run(command.args(words)).must_succeed();
        let top: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        assert!(top.get("session").is_none(), "{outcome}");
        let fsync = top["lines"]
            .as_array()
            .expect("lines")
            .iter()
            .find(|l| l["name"] == "fsync");
        assert_eq!(fsync.is_some(), some, "{outcome}");
        if let Some(fsync) = fsync {
            assert_eq!(fsync["requests_per_s"], fsync["real_per_s"], "{outcome}");
        }
    }
    ends_of(victim, Signal::TERM);
}

#[test]
fn what_cannot_be_watched_is_told() {
    let stage = Stage::new("top_kernel_error");
    let told = |words: &[&str]| {
        let outcome = run(stage.synclater(&["top", "--once"]).args(words));
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
        outcome.stderr
    };
    assert!(told(&["--pid", "4194305"]).contains("cannot watch process 4194305"));
    assert!(told(&["--unit", "no-such-unit"]).contains("cannot watch unit no-such-unit"));
    assert!(told(&["--device", "/no/such"]).contains("cannot watch device /no/such"));
    assert!(told(&["kelp", "--exe", "a"]).contains("names both"));
    let mut command = stage.synclater(&["top", "kelp", "--system"]);
    let outcome = run(&mut command);
    assert!(outcome.stderr.contains("cannot be used with"), "{outcome}");
}
