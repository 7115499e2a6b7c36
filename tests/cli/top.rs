//! `synclater top`, driven in a terminal, and what it prints without one.

mod machine;

use crate::harness::command::{clean, run, Outcome, LIMIT};
use crate::harness::tmux::Tmux;
use crate::kernel::stage::can_watch;
use crate::recording::read;
use crate::sessions::stage::{
    as_root, has_four_parts, pass, program, progress, Running, Stage, AS_NOBODY, SYNCLATER,
};
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::mem::offset_of;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};
use synclater_shim::page::Page;

/// A session whose victim syncs without a pause.
fn hammering(stage: &Stage, options: &[&str]) -> Running {
    let mut command = stage.synclater(&["run", "--quiet"]);
    command.args(options).arg("--").arg(program("hammer"));
    let victim = Running::start(stage, command_in(command, stage));
    let runs = until(LIMIT, || progress(&stage.work()).0 > 20);
    assert!(runs, "it does not run: {}", victim.stderr());
    victim
}

fn command_in(mut command: std::process::Command, stage: &Stage) -> std::process::Command {
    command.arg(stage.work()).arg("1");
    command
}

/// `top` in a terminal; behind it the screen says how it ended.
fn top(stage: &Stage, words: &str) -> Tmux {
    static STARTED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = STARTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let script = format!("echo before; {SYNCLATER} top {words}; echo status $?; exec cat");
    let socket = stage.file(&format!("tmux-{number}"));
    Tmux::start(stage.with_folders("tmux"), socket, (80, 24), &script)
}

/// The number that stands before `unit` on the screen.
fn figure(screen: &str, unit: &str) -> Option<f64> {
    let line = screen.lines().find(|l| l.contains(unit))?;
    let (before, _) = line.split_once(unit)?;
    let word = before.split_whitespace().last()?;
    word.replace(',', "").parse().ok()
}

fn shows_requests(screen: &str) -> bool {
    figure(screen, " requests/s").is_some_and(|n| n > 0.0)
}

/// The lines of the table.
fn table(screen: &str) -> Vec<&str> {
    let lines = screen.lines().skip_while(|l| !l.contains("REQ/S")).skip(1);
    lines.take_while(|l| !l.trim().is_empty()).collect()
}

/// What the session's page says about recording.
fn recorded(stage: &Stage) -> u32 {
    let session = stage.run_dir().join(stage.id());
    let lock = std::fs::read_to_string(session.join("lock")).expect("the lock");
    let page = session
        .join(lock.lines().next().expect("a line"))
        .join("page");
    let bytes = std::fs::read(page).expect("the page");
    let at = offset_of!(Page, record);
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn is_switched_off(stage: &Stage) {
    assert!(
        until(LIMIT, || recorded(stage) == 0),
        "it goes on recording"
    );
}

/// The `top` that a shell in a pane has started.
fn process_of(tmux: &Tmux) -> Pid {
    let shell = tmux.pid();
    let children = format!("/proc/{shell}/task/{shell}/children");
    let text = std::fs::read_to_string(children).expect("its children");
    let pid = text.split_whitespace().next().expect("a child");
    Pid::from_raw(pid.parse().expect("a number")).expect("a process")
}

fn ends_of(mut victim: Running, signal: Signal) -> Outcome {
    victim.send(signal);
    let outcome = victim.end();
    assert_eq!(outcome.status.signal(), Some(signal.as_raw()), "{outcome}");
    outcome
}

#[test]
fn a_session_is_seen_grouped_sorted_filtered_and_resized_and_left_as_it_was() {
    let stage = Stage::new("top");
    let victim = hammering(&stage, &["-u", "now"]);
    assert_eq!(recorded(&stage), 0);
    let tmux = top(&stage, "");
    let id = stage.id();
    let knows = |s: &str| shows_requests(s) && s.starts_with(&id);
    let screen = tmux.wait_for("requests", knows);
    assert!(table(&screen)[0].contains("hammer"), "{screen}");
    assert!(recorded(&stage) > 0);
    tmux.press(&["2"]);
    let screen = tmux.wait_for("files", |s| s.contains("[file]"));
    assert!(table(&screen)[0].contains("/hammered-"), "{screen}");
    tmux.press(&["Tab", "Tab"]);
    let screen = tmux.wait_for("kinds", |s| s.contains("[kind]"));
    assert!(table(&screen)[0].starts_with("fsync "), "{screen}");
    for marked in ["▼P50", "▼P99"] {
        tmux.press(&["s"]);
        tmux.wait_for("another order", |s| s.contains(marked));
    }
    tmux.press(&["Left", "Left"]);
    tmux.wait_for("the first order", |s| s.contains("▼TIME"));
    tmux.press(&["/", "mkdir", "Enter"]);
    let screen = tmux.wait_for("a filter", |s| s.contains("filter: mkdir (0 of 1)"));
    assert!(
        table(&screen).is_empty() || !screen.contains("fsync "),
        "{screen}"
    );
    tmux.press(&["Escape"]);
    tmux.wait_for("no filter", |s| s.contains("fsync "));
    tmux.resize(60, 15);
    let fits = |s: &str| s.lines().count() == 15 && !s.contains("NEEDLESS");
    let screen = tmux.wait_for("the new size", fits);
    assert!(
        shows_requests(&screen) && screen.contains("fsync "),
        "{screen}"
    );
    tmux.press(&["?"]);
    tmux.wait_for("help", |s| s.contains("Ctrl-C        quit"));
    tmux.press(&["q"]);
    let screen = tmux.wait_for("the end", |s| s.contains("status 0"));
    assert!(screen.starts_with("before\nstatus 0\n"), "{screen}");
    is_switched_off(&stage);
    ends_of(victim, Signal::TERM);
}

#[test]
fn a_paused_screen_stands_still_while_the_session_goes_on() {
    let stage = Stage::new("top_pause");
    let victim = hammering(&stage, &["-u", "now"]);
    let tmux = top(&stage, "--interval 200ms");
    tmux.wait_for("requests", shows_requests);
    tmux.press(&["Space"]);
    let screen = tmux.wait_for("a pause", |s| s.contains("paused"));
    let before = progress(&stage.work()).0;
    let goes_on = || progress(&stage.work()).0 > before + 5;
    assert!(until(LIMIT, goes_on), "the victim waits");
    pass(Duration::from_secs(2));
    assert_eq!(tmux.screen(), screen);
    // What stands still can be looked at from another side.
    tmux.press(&["2"]);
    let files = tmux.wait_for("files", |s| s.contains("[file]"));
    assert!(table(&files)[0].contains("/hammered-"), "{files}");
    tmux.press(&["Space"]);
    tmux.wait_for("no pause", |s| !s.contains("paused") && *s != files);
    let one = tmux.screen();
    tmux.wait_for("other figures", |s| *s != one);
    tmux.press(&["C-c"]);
    tmux.wait_for("the end", |s| s.contains("status 0"));
    ends_of(victim, Signal::TERM);
}

#[test]
fn the_dial_is_turned_from_the_keyboard_and_a_refusal_is_told() {
    let stage = Stage::new("top_dial");
    let victim = hammering(&stage, &["-u", "exit"]);
    let tmux = top(&stage, "");
    tmux.wait_for("requests", shows_requests);
    tmux.press(&["u", "soon", "Enter"]);
    tmux.wait_for("a refusal", |s| {
        s.contains("refused: unknown value \"soon\"")
    });
    assert_eq!(stage.session()["until"], "exit");
    tmux.press(&["u", "now", "Enter"]);
    tmux.wait_for("the answer", |s| s.contains(": until now"));
    assert_eq!(stage.session()["until"], "now");
    let real = |s: &str| s.contains("until now, debt 0 ") && figure(s, " real/s") > Some(0.0);
    tmux.wait_for("real requests", real);
    tmux.press(&["S", "y"]);
    tmux.wait_for("a settle", |s| {
        s.contains("every request made before this is durable")
    });
    tmux.press(&["q"]);
    tmux.wait_for("the end", |s| s.contains("status 0"));
    ends_of(victim, Signal::TERM);
}

#[test]
fn the_end_of_the_session_is_the_end_and_changes_nothing_of_it() {
    let stage = Stage::new("top_end");
    let json = stage.json();
    let mut victim = stage.demand(&["-u", "now", &json[0], &json[1]]);
    assert_eq!(victim.sync("file"), 0);
    let id = stage.id();
    let tmux = top(&stage, &id);
    tmux.wait_for("figures", |s| s.contains("requests/s"));
    victim.end().must_succeed();
    let screen = tmux.wait_for("the end", |s| s.contains("status "));
    let want = format!("before\nsynclater: session {id} has ended\nstatus 0\n");
    assert!(screen.starts_with(&want), "{screen}");
    let report = stage.report();
    assert_eq!(report["exit_status"], 0, "{report:#}");
    for absent in ["recorded", "recording", "recording_lost"] {
        assert!(report.get(absent).is_none(), "{report:#}");
    }
    assert!(stage.left_in_run_dir().is_empty());
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let stage = Stage::new("top_signal");
    let victim = hammering(&stage, &["-u", "now"]);
    for (signal, status) in [
        (Signal::TERM, 143),
        (Signal::HUP, 129),
        (Signal::ABORT, 134),
    ] {
        let status = format!("status {status}");
        let tmux = top(&stage, "");
        tmux.wait_for("requests", shows_requests);
        kill_process(process_of(&tmux), signal).expect("it runs");
        let screen = tmux.wait_for("the end", |s| s.contains(&status));
        assert!(screen.starts_with("before\n"), "{screen}");
        assert!(!screen.contains("REQ/S"), "{screen}");
    }
    is_switched_off(&stage);
    ends_of(victim, Signal::TERM);
}

#[test]
fn a_shell_that_takes_the_terminal_for_a_while_gets_it_as_it_was() {
    let stage = Stage::new("top_shell");
    let victim = hammering(&stage, &["-u", "now"]);
    let shell = "echo before; set -m; exec bash --norc --noprofile -i";
    let tmux = Tmux::start(
        stage.with_folders("tmux"),
        stage.file("tmux"),
        (80, 24),
        shell,
    );
    tmux.press(&[&format!("{SYNCLATER} top; echo status $?"), "Enter"]);
    tmux.wait_for("requests", shows_requests);
    tmux.press(&["C-z"]);
    let screen = tmux.wait_for("the shell", |s| s.contains("Stopped"));
    assert!(
        screen.starts_with("before\n") && !screen.contains("REQ/S"),
        "{screen}"
    );
    tmux.press(&["stty -a | grep -o .icanon", "Enter"]);
    tmux.wait_for("lines", |s| s.lines().any(|l| l.trim() == "icanon"));
    tmux.press(&["fg", "Enter"]);
    tmux.wait_for("requests", |s| shows_requests(s) && !s.contains("before"));
    tmux.press(&["q"]);
    let screen = tmux.wait_for("the shell", |s| s.contains("before"));
    assert!(
        !screen.contains("REQ/S") && !screen.contains("requests/s"),
        "{screen}"
    );
    ends_of(victim, Signal::TERM);
}

#[test]
fn a_top_that_is_stopped_stops_neither_the_victim_nor_the_end_of_the_session() {
    let stage = Stage::new("top_stopped");
    let json = stage.json();
    let victim = hammering(&stage, &["-u", "exit", &json[0], &json[1]]);
    let tmux = top(&stage, "");
    tmux.wait_for("requests", shows_requests);
    let stopped = process_of(&tmux);
    kill_process(stopped, Signal::STOP).expect("it runs");
    // More than connection and rings hold.
    let before = progress(&stage.work()).0;
    let goes_on = || progress(&stage.work()).0 > before + 100_000;
    assert!(until(LIMIT, goes_on), "the victim waits");
    let begun = Instant::now();
    ends_of(victim, Signal::TERM);
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    assert!(stage.report().get("recorded").is_none());
    kill_process(stopped, Signal::CONT).expect("it is there");
    tmux.wait_for("the end", |s| {
        s.contains("has ended") && s.contains("status 0")
    });
}

#[test]
fn who_does_not_read_is_hung_up_on_and_sees_figures_again_when_he_goes_on() {
    let stage = Stage::new("top_silent");
    let victim = hammering(&stage, &["-u", "exit"]);
    let tmux = top(&stage, "");
    tmux.wait_for("requests", shows_requests);
    let stopped = process_of(&tmux);
    let first = recorded(&stage);
    kill_process(stopped, Signal::STOP).expect("it runs");
    is_switched_off(&stage);
    kill_process(stopped, Signal::CONT).expect("it is there");
    assert!(
        until(LIMIT, || recorded(&stage) > first),
        "it does not watch again"
    );
    let one = tmux.screen();
    tmux.wait_for("requests", |s| shows_requests(s) && *s != one);
    tmux.press(&["q"]);
    tmux.wait_for("the end", |s| s.contains("status 0"));
    ends_of(victim, Signal::TERM);
}

#[test]
fn what_one_left_unread_is_not_shown_to_the_next() {
    let stage = Stage::new("top_unread");
    // More than connection and ring hold, by a process that is gone in the end.
    let script = "echo ready; read go; \"$1\" \"$2\" 1 250000; echo done; exec cat";
    let mut command = stage.synclater(&["run", "--quiet", "--", "sh", "-c", script, "sh"]);
    command.arg(program("hammer")).arg(stage.work());
    let mut victim = Running::start(&stage, command);
    assert_eq!(victim.hear(), "ready");
    let first = Running::start(&stage, stage.synclater(&["top", "--json"]));
    assert!(until(LIMIT, || recorded(&stage) > 0), "{}", first.stderr());
    first.send(Signal::STOP);
    victim.tell("go");
    is_switched_off(&stage);
    assert_eq!(victim.hear(), "done");
    drop(first);
    let second = stage.ask(&["top", "--once"]).must_succeed();
    assert_eq!(figure(&second.stdout, " requests/s"), Some(0.0), "{second}");
    assert!(!second.stdout.contains("lost"), "{second}");
    victim.end().must_succeed();
}

#[test]
fn a_session_whose_supervisor_is_killed_is_over_for_who_watches() {
    let stage = Stage::new("top_killed");
    let victim = hammering(&stage, &["-u", "now"]);
    let tmux = top(&stage, "");
    tmux.wait_for("requests", shows_requests);
    victim.send(Signal::KILL);
    tmux.wait_for("the end", |s| {
        s.contains("has ended") && s.contains("status 0")
    });
    let pid = Pid::from_raw(progress(&stage.work()).1).expect("the victim");
    kill_process(pid, Signal::KILL).expect("it goes on");
}

#[test]
fn one_watches_at_a_time_and_the_next_one_when_he_has_gone() {
    let stage = Stage::new("top_two");
    let victim = hammering(&stage, &["-u", "now"]);
    let tmux = top(&stage, "");
    tmux.wait_for("requests", shows_requests);
    let first = process_of(&tmux).as_raw_nonzero();
    let second = stage.ask(&["top", "--once"]);
    assert_eq!(second.status.code(), Some(125), "{second}");
    assert!(has_four_parts(&second.stderr), "{second}");
    let who = format!("process {first} is watching it already");
    assert!(second.stderr.contains(&who), "{second}");
    let one = tmux.screen();
    tmux.wait_for("other figures", |s| shows_requests(s) && *s != one);
    tmux.press(&["q"]);
    tmux.wait_for("the end", |s| s.contains("status 0"));
    for _ in 0..3 {
        let next = stage.ask(&["top", "--once", "--interval", "200ms"]);
        assert!(next.must_succeed().stdout.contains("requests/s"));
    }
    is_switched_off(&stage);
    ends_of(victim, Signal::TERM);
}

#[test]
fn a_session_that_is_being_recorded_is_watched_by_as_many_as_like_and_recorded_whole() {
    let stage = Stage::new("top_recorded");
    let (json, file) = (stage.json(), stage.file("recording"));
    let name = file.display().to_string();
    let options = ["-u", "now", "--record", &name, &json[0], &json[1]];
    let victim = hammering(&stage, &options);
    let first = recorded(&stage);
    let tmux = top(&stage, "--by file");
    let screen = tmux.wait_for("requests", shows_requests);
    assert!(table(&screen)[0].contains("/hammered-"), "{screen}");
    let second = stage.ask(&["top", "--once"]).must_succeed();
    assert!(shows_requests(&second.stdout), "{second}");
    assert_eq!(recorded(&stage), first);
    let id = stage.id();
    ends_of(victim, Signal::TERM);
    let ended = format!("session {id} has ended");
    tmux.wait_for("the end", |s| s.contains(&ended) && s.contains("status 0"));
    let (table, report) = (read(&file), stage.report());
    assert!(table.is_whole() && table.lost.is_empty());
    assert_eq!(report["recorded"], table.rows.len(), "{report:#}");
    // The signal may have come between the count of a request and its end.
    let requests = report["requests"].as_u64().expect("a number") as usize;
    assert!(
        (table.rows.len()..=table.rows.len() + 1).contains(&requests),
        "{report:#}"
    );
}

#[test]
fn without_a_terminal_it_prints_json_or_one_frame_and_else_says_what_to_use() {
    let stage = Stage::new("top_print");
    let none = stage.ask(&["top", "--json"]);
    assert_eq!(none.status.code(), Some(125), "{none}");
    assert!(has_four_parts(&none.stderr), "{none}");
    let mut victim = stage.demand(&["-u", "now"]);
    assert_eq!(victim.sync("file"), 0);
    let blind = stage.ask(&["top"]);
    assert_eq!(blind.status.code(), Some(125), "{blind}");
    assert!(has_four_parts(&blind.stderr), "{blind}");
    assert!(["--once", "synclater ps", "report"]
        .iter()
        .all(|w| blind.stderr.contains(w)));
    let id = stage.id();
    let watching = stage.synclater(&["top", "--json", "--by", "file", "--interval", "300ms"]);
    let mut watching = Running::start(&stage, watching);
    let on = until(LIMIT, || recorded(&stage) > 0);
    assert!(on, "{}", watching.stderr());
    for _ in 0..50 {
        assert_eq!(victim.sync("file"), 0);
    }
    let objects = |text: &str| -> Vec<Value> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let parse = |l| serde_json::from_str(l).expect("JSON");
        whole.lines().map(parse).collect()
    };
    // Each request is in one interval.
    let counted = || {
        let per_s = |o: &Value| o["requests_per_s"].as_f64().expect("a number") * 0.3;
        objects(&watching.stdout()).iter().map(per_s).sum::<f64>()
    };
    assert!(
        until(LIMIT, || counted().round() == 50.0),
        "{}",
        watching.stdout()
    );
    let all = objects(&watching.stdout());
    let busy = all
        .iter()
        .find(|o| o["requests_per_s"] != 0.0)
        .expect("one");
    assert_eq!(
        (&busy["version"], &busy["session"]),
        (&1.into(), &id.clone().into())
    );
    let line = &busy["lines"][0];
    let name = line["name"].as_str().expect("a name");
    assert!(Path::new(name).ends_with("work/file"), "{busy:#}");
    assert!(line["p50_s"].as_f64() > Some(0.0), "{busy:#}");
    assert_eq!(busy["real_per_s"], busy["requests_per_s"]);
    victim.end().must_succeed();
    let ended = watching.end().must_succeed();
    assert_eq!(ended.stderr, format!("synclater: session {id} has ended\n"));
}

#[test]
fn the_session_that_is_meant_has_to_be_named_where_there_are_several() {
    let stage = Stage::new("top_several");
    let mut victims = [stage.demand(&["-u", "now"]), stage.demand(&["-u", "now"])];
    for victim in &mut victims {
        victim.be_ready();
    }
    let sessions = stage.sessions();
    let ids: Vec<&str> = sessions.iter().filter_map(|s| s["id"].as_str()).collect();
    for words in [&["top", "--once"][..], &["top", "--once", "nobody"]] {
        let refused = stage.ask(words);
        assert_eq!(refused.status.code(), Some(125), "{refused}");
        assert!(has_four_parts(&refused.stderr), "{refused}");
        assert!(
            ids.iter().all(|id| refused.stderr.contains(id)),
            "{refused}"
        );
    }
    for id in ids {
        let once = stage
            .ask(&["top", "--once", "--interval", "200ms", id])
            .must_succeed();
        assert!(once.stdout.starts_with(id), "{once}");
    }
    for victim in &mut victims {
        victim.end().must_succeed();
    }
}

#[test]
fn another_user_cannot_watch() {
    if !as_root("another_user_cannot_watch") {
        return;
    }
    let stage = Stage::new("top_other");
    let mut victim = stage.demand(&["-u", "now"]);
    assert_eq!(victim.sync("file"), 0);
    stage.open_to_others(0o755);
    // Also where the way to the socket is open to him.
    let id = stage.id();
    let session = stage.run_dir().join(&id);
    let open = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    };
    let refused = run(stage
        .with_folders(AS_NOBODY[0])
        .args(&AS_NOBODY[1..])
        .args([SYNCLATER, "top", "--once", &id]));
    assert_eq!(refused.status.code(), Some(125), "{refused}");
    assert!(has_four_parts(&refused.stderr), "{refused}");
    let lock = std::fs::read_to_string(session.join("lock")).expect("the lock");
    let memory = lock.lines().next().filter(|l| !l.is_empty());
    let memory = memory.map_or_else(|| session.clone(), Into::into);
    for path in [&memory, &memory.join("control")] {
        open(path);
    }
    let ask = "import socket, sys\n\
               s = socket.socket(socket.AF_UNIX)\n\
               s.connect(sys.argv[1])\n\
               print(s.makefile().read())\n";
    let mut command = stage.with_folders(AS_NOBODY[0]);
    command
        .args(&AS_NOBODY[1..])
        .args(["/usr/bin/python3", "-c", ask]);
    let answer = run(command.arg(memory.join("control"))).must_succeed();
    assert!(
        answer.stdout.contains("belongs to another user"),
        "{answer}"
    );
    assert_eq!(recorded(&stage), 0);
    victim.end().must_succeed();
}
