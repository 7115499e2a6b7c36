//! Odd names, files and limits: what is said of them is so, and nothing hangs.

use crate::harness::command::{clean, run, Outcome, LIMIT};
use crate::harness::disk::Disk;
use crate::sessions::stage::{as_root, has_four_parts, program, Running, Stage, SYNCLATER};
use crate::wait::until;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What is said of a command line that fails with a status of ours.
fn told(stage: &Stage, words: &[&str]) -> Outcome {
    let outcome = run(&mut stage.synclater(words));
    assert!(has_four_parts(&outcome.stderr), "{words:?}: {outcome}");
    outcome
}

fn pipe(stage: &Stage, name: &str) -> String {
    let path = stage.work().join(name).display().to_string();
    run(clean("mkfifo").arg(&path)).must_succeed();
    path
}

#[test]
fn what_is_no_program_is_named_and_nobody_waits_for_it() {
    let stage = Stage::new("no-program");
    for (what, is) in [
        (pipe(&stage, "pipe"), "it is a named pipe"),
        ("/dev/null".into(), "it is a device"),
        (".".into(), "it is a folder"),
    ] {
        let outcome = told(&stage, &["run", "--", &what]);
        assert_eq!(outcome.status.code(), Some(126), "{outcome}");
        assert!(outcome.stderr.contains(is), "{outcome}");
        assert!(!outcome.stderr.contains("chmod"), "{outcome}");
    }
}

#[test]
fn a_page_for_a_pipe_that_nobody_reads_is_not_waited_for() {
    let stage = Stage::new("page-pipe");
    let record = stage.work().join("a.rec").display().to_string();
    run(&mut stage.synclater(&["record", "-o", &record, "--", "true"])).must_succeed();
    let outcome = told(
        &stage,
        &["report", "--html", &pipe(&stage, "pipe"), &record],
    );
    assert!(outcome.stderr.contains("nobody reads it"), "{outcome}");
}

#[test]
fn an_earlier_report_stays_where_the_command_is_not_there() {
    let stage = Stage::new("json-stays");
    let [option, file] = stage.json();
    std::fs::write(&file, "earlier\n").expect("a file");
    told(&stage, &["run", &option, &file, "--", "/no/such/program"]);
    let new = stage.work().join("new").display().to_string();
    for verb in ["--json", "--record"] {
        told(&stage, &["run", verb, &new, "--", "/no/such/program"]);
        assert!(!Path::new(&new).exists(), "{verb}");
    }
    assert_eq!(std::fs::read(&file).expect("it is there"), b"earlier\n");
    run(&mut stage.synclater(&["run", &option, &file, "--", "true"])).must_succeed();
    assert_eq!(stage.report()["exit_status"], 0);
}

#[test]
fn a_file_is_settled_whatever_its_name_is() {
    let stage = Stage::new("odd-names");
    let file = stage.work().join(OsStr::from_bytes(b"no\xfftext"));
    std::fs::write(&file, "").expect("a file");
    run(stage.synclater(&["settle"]).arg(&file)).must_succeed();
    let mut beside = stage.synclater(&["settle", "plain"]);
    std::fs::write(stage.work().join("plain"), "").expect("a file");
    let outcome = run(beside.current_dir(stage.work()));
    assert!(
        outcome.stderr.contains("of that name: ./plain"),
        "{outcome}"
    );
}

#[test]
fn who_has_too_few_descriptors_is_told_to_raise_their_number() {
    let stage = Stage::new("few-files");
    for (limit, verb) in [
        (4, "settle /"),
        (8, "probe ."),
        (20, "run --follow -- true"),
    ] {
        let line = format!("ulimit -n {limit}; exec {SYNCLATER} {verb}");
        let outcome = run(stage.with_folders("sh").args(["-c", &line]));
        assert!(outcome.stderr.contains("ulimit -n"), "{verb}: {outcome}");
    }
}

#[test]
fn what_ended_programs_owe_is_debt_too() {
    let stage = Stage::new("debt");
    let hammer = program("hammer").display().to_string();
    let work = stage.work().display().to_string();
    let mut command = stage.with_folders(SYNCLATER);
    command.args(["run", "-q", "-u", "1h", "--", "sh", "-c"]);
    command.arg(format!(
        "{hammer} {work} 1 2000; {hammer} {work} 1 2000; echo ready; read x"
    ));
    let mut shell = Running::start(&stage, command);
    assert_eq!(shell.hear(), "ready");
    let owed = || stage.session()["debt"].as_u64().unwrap_or(0);
    assert!(until(LIMIT, || owed() > 2000), "{:#}", stage.session());
    // Who has ended is forgotten at the next look for what escaped.
    let least = (0..30).map(|_| owed()).min();
    assert!(least > Some(2000), "{least:?}");
    shell.tell("on");
    shell.end();
}

#[test]
fn a_check_that_fails_judges_nothing() {
    if !as_root("a_check_that_fails_judges_nothing") {
        return;
    }
    let stage = Stage::new("no-check");
    let words = [
        "crash",
        "--budget",
        "4",
        "--check",
        "/no/such/check",
        "--",
        "sync",
    ];
    let outcome = run(&mut stage.synclater(&words));
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert_eq!(outcome.stdout, "", "{outcome}");
    let why = "the check itself failed on the disk as the command has left it";
    assert!(outcome.stderr.contains(why), "{outcome}");
}

#[test]
fn doctor_names_an_ext4_that_has_counted_errors() {
    if !as_root("doctor_names_an_ext4_that_has_counted_errors") {
        return;
    }
    let (stage, disk) = (Stage::new("ill"), Disk::new("ext4", 64));
    let name = disk.device().replace("/dev/", "");
    let trigger = format!("/sys/fs/ext4/{name}/trigger_fs_error");
    std::fs::write(Path::new(&trigger), "odd").expect("the kernel takes it");
    let outcome = run(&mut stage.synclater(&["doctor"]));
    let line = format!("file system {}", disk.path().display());
    let told = outcome.stdout.split(&line).nth(1).unwrap_or_default();
    let of_it = told.split("\nfile system").next().unwrap_or_default();
    assert!(of_it.contains("it has met an error before"), "{outcome}");
}

#[test]
fn a_script_whose_interpreter_may_not_run_is_told_from_one_that_is_not_executable() {
    let stage = Stage::new("scripts");
    let script = stage.work().join("script");
    std::fs::write(&script, "#!/etc/passwd\n").expect("a script");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("its mode");
    let outcome = told(&stage, &["run", "--", &script.display().to_string()]);
    let says = "names /etc/passwd, which may not be executed";
    assert!(outcome.stderr.contains(says), "{outcome}");
}

#[test]
fn a_recording_is_written_over_by_nobody_while_it_is_written() {
    let stage = Stage::new("two-recorders");
    let record = stage.work().join("a.rec").display().to_string();
    let mut first = stage.synclater(&["record", "-q", "-o", &record, "--"]);
    first.arg(program("demand")).arg(stage.work());
    let mut victim = Running::start(&stage, first);
    victim.be_ready();
    let words = ["record", "-q", "--force", "-o", &record, "--", "true"];
    let outcome = told(&stage, &words);
    assert!(
        outcome.stderr.contains("another one is writing it"),
        "{outcome}"
    );
    victim.end();
    run(&mut stage.synclater(&words)).must_succeed();
    let [option, file] = stage.json();
    let both = ["run", "--record", &file, &option, &file, "--", "true"];
    let outcome = told(&stage, &both);
    assert!(outcome.stderr.contains("the file of --json"), "{outcome}");
}

#[test]
fn a_probe_that_measured_nothing_leaves_what_was_known() {
    let stage = Stage::new("no-probe");
    let work = stage.work().display().to_string();
    let outcome = told(&stage, &["probe", "--for", "1ns", "--threads", "1", &work]);
    assert!(outcome.stderr.contains("nothing was measured"), "{outcome}");
    assert!(outcome.stdout.is_empty(), "{outcome}");
}

#[test]
fn what_rules_say_later_than_the_dial_is_shown_and_settled() {
    let stage = Stage::new("rules-later");
    let rules = stage.file("rules.toml");
    std::fs::write(&rules, "[[rule]]\nexe = \"demand\"\nuntil = \"never\"\n").expect("rules");
    let rules = rules.display().to_string();
    let mut victim = stage.demand(&["-u", "exit", "--rules", &rules]);
    stage.warm(&mut victim);
    let id = stage.id();
    stage.ask(&["set", &id, "-u", "now"]).must_succeed();
    let shown = stage.ask(&["ps"]).must_succeed().stdout;
    assert!(shown.contains("until now (never by its rules)"), "{shown}");
    victim.end().must_succeed();

    std::fs::write(&rules, "[[rule]]\nexe = \"hammer\"\nuntil = \"200ms\"\n").expect("rules");
    let mut command = stage.synclater(&["run", "--summary", "-u", "never", "--rules", &rules]);
    command.args(stage.json()).arg("--").arg(program("hammer"));
    let outcome = run(command.arg(stage.work()).args(["1", "3000"])).must_succeed();
    let report = stage.report();
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
    assert!(report["never_settled"].is_null(), "{report:#}");
    assert!(outcome.stderr.contains("all durable"), "{outcome}");
}

#[test]
fn without_a_ledger_nobody_is_said_to_have_set_the_dial_to_now() {
    let stage = Stage::new("no-ledger");
    for state in ["/proc/x", "/dev/null"] {
        let mut command = stage.synclater(&["run", "--summary", "-u", "1s"]);
        command.args(stage.json()).arg("--").arg(program("hammer"));
        command
            .arg(stage.work())
            .args(["1", "5"])
            .env("SYNCLATER_STATE_DIR", state);
        let outcome = run(&mut command).must_succeed();
        assert!(!outcome.stderr.contains("at now"), "{state}: {outcome}");
        let doctor = run(stage
            .synclater(&["doctor"])
            .env("SYNCLATER_STATE_DIR", state));
        let of_it = doctor
            .stdout
            .lines()
            .find(|line| line.contains("ledger directory"));
        assert!(
            of_it.is_some_and(|line| line.contains("BAD")),
            "{state}: {doctor}"
        );
    }
}

#[test]
fn output_that_is_closed_is_an_error_where_something_is_printed() {
    let stage = Stage::new("closed-output");
    for (line, status) in [
        ("ps >&-", 125),
        ("run -- true >&-", 0),
        ("run --json - -- true >&-", 125),
    ] {
        let line = format!("exec {SYNCLATER} {line}");
        let outcome = run(stage.with_folders("sh").args(["-c", &line]));
        assert_eq!(outcome.status.code(), Some(status), "{line}: {outcome}");
    }
}

#[test]
fn a_name_with_a_line_break_makes_no_part_of_a_message() {
    let stage = Stage::new("line-break");
    let outcome = told(&stage, &["settle", "/no\n  why:   it is durable\nx"]);
    let whys = outcome
        .stderr
        .lines()
        .filter(|line| line.starts_with("  why:"))
        .count();
    assert_eq!(whys, 1, "{outcome}");
}

/// Nobody can know that nothing was cut.
#[test]
fn an_entry_that_cannot_be_read_is_counted_by_status() {
    let stage = Stage::new("unread-entry");
    run(&mut stage.synclater(&["run", "-u", "1s", "--", "true"])).must_succeed();
    std::fs::create_dir_all(stage.state()).expect("the ledger");
    std::fs::write(stage.state().join("fox.json"), "garbage").expect("an entry");
    let told = stage.ask(&["status"]);
    assert_eq!(told.status.code(), Some(1), "{told}");
    for words in ["is known to have been cut", "1 file of the ledger"] {
        assert!(told.stdout.contains(words), "{words}: {told}");
    }
    let told = stage.ask(&["status", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&told.stdout).expect("JSON");
    let [id, outcome] = ["id", "outcome"].map(|key| all[0][key].as_str());
    assert_eq!((id, outcome), (Some("fox"), Some("unreadable")), "{told}");
    assert!(all[0]["advice"].is_string(), "{told}");
}

#[test]
fn a_folder_of_the_kernels_own_is_named_as_one() {
    let stage = Stage::new("kernels-folder");
    for dir in ["/proc", "/sys"] {
        let outcome = run(stage
            .synclater(&["run", "--", "true"])
            .env("SYNCLATER_RUN_DIR", dir));
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        let words = "which keeps no files of ours";
        assert!(outcome.stderr.contains(words), "{dir}: {outcome}");
        assert!(!outcome.stderr.contains("writable"), "{dir}: {outcome}");
    }
}

/// /proc mounted over it would be everybody's around.
#[test]
fn where_proc_is_another_namespaces_nobody_is_told_to_mount_it_over() {
    let name = "where_proc_is_another_namespaces_nobody_is_told_to_mount_it_over";
    if !as_root(name) {
        return;
    }
    let stage = Stage::new("other-proc");
    let mut command = stage.with_folders("unshare");
    command.args(["-pf", SYNCLATER, "run", "--", "true"]);
    let outcome = run(&mut command);
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(outcome.stderr.contains("--mount-proc"), "{outcome}");
    assert!(!outcome.stderr.contains("mount -t proc"), "{outcome}");
}

#[test]
fn who_is_root_in_a_user_namespace_alone_is_told_so() {
    let stage = Stage::new("user-namespace");
    let mut victim = Running::start(&stage, {
        let mut command = clean(program("demand"));
        command.arg(stage.work());
        command
    });
    victim.be_ready();
    let pid = victim.pid().as_raw_nonzero().to_string();
    let mut command = stage.with_folders("unshare");
    command.args([
        "-Ur", SYNCLATER, "attach", "--for", "1s", "-u", "1s", "--pid", &pid,
    ]);
    let outcome = run(&mut command);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("of a user namespace"), "{outcome}");
    assert!(!outcome.stderr.contains("sudo"), "{outcome}");
    victim.end().must_succeed();
}

#[test]
fn a_relaxation_that_is_over_is_why_requests_were_real() {
    let stage = Stage::new("for-is-over");
    let mut command = stage.synclater(&["run", "-u", "exit", "--for", "1ms"]);
    command.args(stage.json()).arg("--").arg(program("hammer"));
    run(command.arg(stage.work()).args(["1", "300"])).must_succeed();
    let report = stage.report();
    let reasons = report["kept_real"].as_object().expect("some were real");
    let has = |words: &str| reasons.keys().any(|reason| reason.contains(words));
    assert!(
        has("--for was over") && !has("dial was at now"),
        "{report:#}"
    );
}

#[test]
fn a_rule_about_a_user_whom_nobody_knows_is_warned_of() {
    let stage = Stage::new("nobody-known");
    let rules = stage.work().join("rules.toml");
    let rule = |user: &str| format!("[[rule]]\nuser = {user:?}\nuntil = \"exit\"\n");
    std::fs::write(&rules, rule("nosuch") + &rule("root")).expect("rules");
    let rules = rules.display().to_string();
    let outcome = stage
        .ask(&["run", "--rules", &rules, "--", "true"])
        .must_succeed();
    let warned: Vec<&str> = outcome
        .stderr
        .lines()
        .filter(|line| line.contains("/etc/passwd"))
        .collect();
    assert!(
        matches!(warned[..], [one] if one.contains("user nosuch")),
        "{outcome}"
    );
}

/// With a status and a message of its own, where it writes to nothing.
#[test]
fn a_command_begins_without_the_streams_that_were_closed() {
    let stage = Stage::new("closed-streams");
    for redirected in ["<&-", ">&-", "2>&-"] {
        for options in ["", "-u now", "--follow"] {
            let line = format!(
                "exec {SYNCLATER} run -q {options} -- sh -c 'for n in 0 1 2; do \
                 test -e /proc/$$/fd/$n || exit $((40 + n)); done' {redirected}"
            );
            let outcome = run(stage.with_folders("sh").args(["-c", &line]));
            let closed = ["<&-", ">&-", "2>&-"].iter().position(|r| *r == redirected);
            let want = closed.and_then(|n| i32::try_from(40 + n).ok());
            assert_eq!(outcome.status.code(), want, "{line}: {outcome}");
        }
    }
}

/// What is advised is not what a library without a session would settle: nothing.
#[test]
fn who_lost_the_library_keeps_it_by_what_is_advised() {
    let stage = Stage::new("handed-on");
    let mut command = stage.synclater(&["run", "-u", "exit"]);
    command.args(stage.json()).args(["--", "sh", "-c"]);
    command.arg(
        "exec env -i LD_PRELOAD=\"$LD_PRELOAD\" SYNCLATER_PAGE=\"$SYNCLATER_PAGE\" \
         SYNCLATER_UNTIL=\"$SYNCLATER_UNTIL\" \"$@\"",
    );
    command.arg("sh").arg(program("hammer")).arg(stage.work());
    run(command.args(["1", "2000"])).must_succeed();
    let report = stage.report();
    assert!(report["skipped"].as_u64() > Some(0), "{report:#}");
    assert_eq!(report["skipped"], report["settled"], "{report:#}");
    assert_eq!(report["escaped"], serde_json::json!([]), "{report:#}");
}

#[test]
fn a_folder_that_is_not_there_is_named_where_a_file_is_to_be_exported() {
    let stage = Stage::new("no-folder");
    let record = stage.work().join("a.rec").display().to_string();
    run(&mut stage.synclater(&["record", "-o", &record, "--", "true"])).must_succeed();
    for file in ["gone/x", "gone/x.parquet"] {
        let to = stage.work().join(file).display().to_string();
        let outcome = told(&stage, &["export", &record, "--parquet", &to]);
        assert!(outcome.stderr.contains("gone does not exist"), "{outcome}");
    }
}

#[test]
fn a_file_without_a_rule_puts_nothing_off() {
    let stage = Stage::new("no-rule");
    let rules = stage.work().join("rules.toml");
    std::fs::write(&rules, "# nothing yet\n").expect("rules");
    let mut command = stage.synclater(&["run", "-u", "never", "--rules"]);
    command.arg(&rules).args(stage.json()).arg("--");
    command
        .arg(program("hammer"))
        .arg(stage.work())
        .args(["1", "100"]);
    let outcome = run(&mut command).must_succeed();
    assert_eq!(stage.report()["skipped"], 0, "{outcome}");
    assert!(outcome.stderr.contains("no rule is in"), "{outcome}");
}

#[test]
fn what_lies_in_memory_is_not_said_to_be_durable() {
    if !as_root("what_lies_in_memory_is_not_said_to_be_durable") {
        return;
    }
    let (memory, stage) = (Disk::in_memory(), Stage::new("in-memory"));
    let at = memory.path().display().to_string();
    let mut command = stage.synclater(&["run", "--summary", "-u", "exit", "--"]);
    // A request takes less than a microsecond there: many are made before the first is put off.
    command.arg(program("hammer")).args([&at, "1", "1000000"]);
    let told = run(&mut command).must_succeed().stderr;
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        told.contains("in memory (tmpfs), which keeps nothing"),
        "{told}"
    );
    for place in [at.as_str(), "/proc", "/dev/null"] {
        let settled = stage.ask(&["settle", place]).must_succeed();
        let words = "nothing there can be made durable";
        assert!(settled.stdout.contains(words), "{place}: {settled}");
    }
}

#[test]
fn the_first_process_of_a_namespace_is_not_the_machines() {
    if !as_root("the_first_process_of_a_namespace_is_not_the_machines") {
        return;
    }
    let stage = Stage::new("first-process");
    let line = format!("{SYNCLATER} attach --pid 1 -u 1s --for 1s; true");
    let mut command = stage.with_folders("unshare");
    let outcome = run(command.args(["-pf", "--mount-proc", "sh", "-c", &line]));
    assert!(outcome.stderr.contains("from outside of that"), "{outcome}");
    assert!(!outcome.stderr.contains("the machine"), "{outcome}");
}

#[test]
fn advice_makes_no_program_of_what_is_none() {
    let stage = Stage::new("no-advice");
    let outcome = stage.ask(&["run", "--utnil", "exit", "--", "true"]);
    assert!(outcome.stderr.contains("--until"), "{outcome}");
    assert!(!outcome.stderr.contains("-- --utnil"), "{outcome}");
    let file = stage.work().join("text");
    std::fs::write(&file, "a text\n").expect("a file");
    let file = file.display().to_string();
    let outcome = told(&stage, &["run", "--", &file]);
    assert!(outcome.stderr.contains("name a program"), "{outcome}");
    assert!(!outcome.stderr.contains("chmod"), "{outcome}");
}
