//! What is refused, with which status, and what the message says.

use crate::harness::command::{clean, run, Outcome};
use crate::harness::limits::count;
use crate::sessions::stage::{has_four_parts, program, Stage, SYNCLATER};
use serde_json::Value;
use std::fmt::Write;

/// The command has not run, and the status is ours.
fn is_refused(stage: &Stage, options: &[&str]) -> Outcome {
    let mut command = stage.synclater(options);
    command.arg("--").arg("touch").arg(stage.work().join("ran"));
    let outcome = run(&mut command);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(!outcome.stderr.is_empty(), "{outcome}");
    assert!(!stage.work().join("ran").exists(), "{outcome}");
    assert!(stage.entries().is_empty(), "{outcome}");
    outcome
}

#[test]
fn a_dial_that_is_none_is_refused_with_what_to_write() {
    let stage = Stage::new("dials");
    for dial in [
        "1",
        "0s",
        "-1s",
        "",
        "reply",
        "1x",
        "99999999h",
        "nan",
        "1e9s",
        "Exit",
        "0",
        " ",
    ] {
        for option in ["-u", "--until"] {
            let outcome = is_refused(&stage, &["run", option, dial]);
            let known = ["1s", "never", "write ns, us, ms", "36525d"];
            let helps = known.iter().any(|word| outcome.stderr.contains(word));
            assert!(helps, "{dial:?}: {outcome}");
        }
    }
    for time in ["0", "0s", "1", "-1s", "exit"] {
        is_refused(&stage, &["run", "--for", time]);
    }
}

#[test]
fn verbs_and_options_that_do_not_exist_are_refused() {
    let stage = Stage::new("unknown");
    for words in [
        &["attach"][..],
        &["record"],
        &["crash"],
        &["rnu"],
        &["run", "--consistent", "/x"],
        &["run", "--quiet", "--summary"],
        &["run", "-x"],
        &[],
    ] {
        is_refused(&stage, words);
    }
    for words in [
        &["run"][..],
        &["set"],
        &["set", "kelp"],
        &["generate"],
        &["generate", "x"],
    ] {
        let outcome = stage.ask(words);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(!outcome.stderr.is_empty(), "{outcome}");
    }
}

#[test]
fn rules_and_only_together_are_refused() {
    let stage = Stage::new("both");
    let rules = stage.file("rules.toml");
    std::fs::write(&rules, "[[rule]]\nexe = \"sh\"\n").expect("rules");
    let rules = rules.display().to_string();
    is_refused(&stage, &["run", "--rules", &rules, "--only", "exe=sh"]);
}

#[test]
fn a_mistake_in_the_rules_is_named_with_its_line_and_column() {
    let stage = Stage::new("rules");
    let rules = stage.file("rules.toml");
    let path = rules.display().to_string();
    for (text, line, column, word) in [
        (
            "[[rule]]\nexe = \"sh\"\n  colour = \"red\"\n",
            3,
            3,
            "colour",
        ),
        ("[[rule]]\nuntil = \"1\"\n", 2, 9, "unit"),
        ("[[rule]]\nuntil = \"reply\"\n", 2, 9, "reply"),
        ("[[rule]]\npath = \"srv/**\"\n", 2, 8, "srv"),
        ("[[rule]]\nexe = \"sh\n", 2, 0, ""),
        ("[rules]\nexe = \"sh\"\n", 1, 0, "rule"),
    ] {
        std::fs::write(&rules, text).expect("rules");
        let outcome = is_refused(&stage, &["run", "--rules", &path]);
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
        assert!(outcome.stderr.contains(&path), "{outcome}");
        assert!(
            outcome.stderr.contains(&format!("line {line}")),
            "{text}{outcome}"
        );
        let place = format!("column {column}");
        assert!(
            column == 0 || outcome.stderr.contains(&place),
            "{text}{outcome}"
        );
        assert!(outcome.stderr.contains(word), "{text}{outcome}");
    }
}

/// A hammer's report under a rule file whose rules in the middle are about its directory.
fn under_many_rules(many: usize, first: &str, second: &str) -> Value {
    let stage = Stage::new("many-rules");
    let rules = stage.file("rules.toml");
    let mut text = String::new();
    for n in 0..many - 2 {
        if n == many / 2 {
            for dial in [first, second] {
                let work = stage.work();
                let rule = format!("path = \"{}/**\"\nuntil = \"{dial}\"", work.display());
                writeln!(text, "[[rule]]\n{rule}").expect("text");
            }
        }
        writeln!(
            text,
            "[[rule]]\npath = \"/nowhere/{n}/**\"\nuntil = \"never\""
        )
        .expect("text");
    }
    std::fs::write(&rules, text).expect("rules");
    let json = stage.json();
    let mut command = stage.synclater(&["run", "--quiet", "--rules"]);
    command.arg(&rules).args(json).arg("--");
    command
        .arg(program("hammer"))
        .arg(stage.work())
        .args(["2", "1009"]);
    run(&mut command).must_succeed();
    stage.report()
}

#[test]
fn soak_the_first_of_many_rules_that_matches_wins() {
    let many = count(500, 10_000);
    let relaxed = under_many_rules(many, "exit", "now");
    assert!(relaxed["skipped"].as_u64() > Some(0), "{relaxed:#}");
    let real = under_many_rules(many, "now", "exit");
    assert_eq!(real["skipped"], 0, "{real:#}");
    assert_eq!(real["real"], 2018, "{real:#}");
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_command_starts() {
    let stage = Stage::new("report");
    let work = stage.work().display().to_string();
    for file in ["/not/there/report.json", &work] {
        let outcome = is_refused(&stage, &["run", "--json", file]);
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
    }
}

#[test]
fn a_command_that_cannot_run_is_told_from_one_that_is_not_there() {
    let stage = Stage::new("commands");
    let file = stage.file("plain");
    std::fs::write(&file, "text").expect("a file");
    let (plain, dir) = (
        file.display().to_string(),
        stage.work().display().to_string(),
    );
    for (name, status) in [
        ("no-such-command", 127),
        ("/not/there", 127),
        (plain.as_str(), 126),
        (dir.as_str(), 126),
        ("", 127),
    ] {
        let outcome = stage.ask(&["run", "--", name]);
        assert_eq!(outcome.status.code(), Some(status), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
        let left = stage.left_in_run_dir();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn every_message_has_what_why_what_to_try_and_how_things_stand() {
    let stage = Stage::new("parts");
    let work = stage.work().display().to_string();
    let file = stage.file("plain").display().to_string();
    std::fs::write(&file, "").expect("a file");
    let below_file = format!("{file}/below");
    let wrong: Vec<Outcome> = [
        &["run", "--only", "exe", "--", "true"][..],
        &["run", "--only", "colour=red", "--", "true"],
        &["run", "--only", "path=relative", "--", "true"],
        &["run", "--rules", "/not/there", "--", "true"],
        &["run", "--rules", &work, "--", "true"],
        &["run", "--quiet", "--json", "/dev/full", "--", "true"],
        &["set", "kelp", "-u", "now"],
        &["settle", "kelp"],
        &["settle", "/not/there"],
        &["status", "--forget", "kelp"],
        &["env", "-u", "exit"],
        &["generate", "man", &below_file],
        &["generate", "completions", &below_file],
        &["generate", "library", &below_file],
        &["generate", "library"],
    ]
    .into_iter()
    .map(|words| stage.ask(words))
    .collect();
    let told = |o: &&Outcome| o.status.code() == Some(125) && has_four_parts(&o.stderr);
    let bad: Vec<String> = wrong
        .iter()
        .filter(|o| !told(o))
        .map(Outcome::to_string)
        .collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn what_cannot_be_printed_is_an_error() {
    let stage = Stage::new("full_stdout");
    for words in [
        &["--help"][..],
        &["ps"],
        &["ps", "--json"],
        &["status"],
        &["doctor"],
        &["env"],
        &["generate", "man"],
        &["generate", "completions"],
    ] {
        let mut command = stage.with_folders("sh");
        command.args(["-c", "exec \"$@\" >/dev/full", "sh", SYNCLATER]);
        let outcome = run(command.args(words));
        assert_eq!(outcome.status.code(), Some(125), "{words:?}: {outcome}");
        assert!(has_four_parts(&outcome.stderr), "{words:?}: {outcome}");
    }
}

#[test]
fn eatmydata_is_the_command_with_the_library_alone() {
    let stage = Stage::new("eatmydata");
    let name = stage.file("eatmydata");
    std::os::unix::fs::symlink(SYNCLATER, &name).expect("a link");
    let help = run(stage.with_folders(&name).arg("--help")).must_succeed();
    for said in ["no session", "never", "EXAMPLES"] {
        assert!(help.stdout.contains(said), "{said}: {help}");
    }
    let mut command = stage.with_folders(&name);
    let log = stage.traced(&mut command, "fsync", "victim.log");
    command.arg(program("hammer")).arg(stage.work());
    run(command.args(["2", "23"])).must_succeed();
    assert_eq!(log.count("fsync"), 0);
    assert_eq!(std::fs::read_dir(stage.run_dir()).expect("run").count(), 0);
    assert_eq!(std::fs::read_dir(stage.state()).expect("state").count(), 0);
    for (words, status) in [
        (&["--", "sh", "-c", "exit 23"][..], 23),
        (&["sh", "-c", "exit 23"], 23),
        (&["no-such-command"], 127),
        (&["/dev/null"], 126),
        (&[], 125),
    ] {
        let outcome = run(stage.with_folders(&name).args(words));
        assert_eq!(outcome.status.code(), Some(status), "{outcome}");
    }
}

#[test]
fn what_env_prints_works_in_a_shell() {
    let stage = Stage::new("env");
    let script = "eval \"$(\"$1\" env)\"; shift; exec \"$@\"";
    let mut command = stage.with_folders("sh");
    command.args(["-ec", script, "sh", SYNCLATER]);
    let log = stage.traced(&mut command, "fsync", "victim.log");
    command.arg(program("hammer")).arg(stage.work());
    let outcome = run(command.args(["2", "23"])).must_succeed();
    assert_eq!(
        (outcome.stdout.as_str(), outcome.stderr.as_str()),
        ("", ""),
        "{outcome}"
    );
    assert_eq!(log.count("fsync"), 0);
    let json = stage.ask(&["env", "--json"]).must_succeed();
    let object: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(object["version"], 1, "{object:#}");
    assert_eq!(object["SYNCLATER_UNTIL"], "never", "{object:#}");
    let preload = object["LD_PRELOAD"].as_str().expect("a path");
    let mut command = clean("env");
    command
        .arg(format!("LD_PRELOAD={preload}"))
        .args(["sh", "-c", "exit 23"]);
    let outcome = run(&mut command);
    assert_eq!(
        (outcome.status.code(), outcome.stderr.as_str()),
        (Some(23), ""),
        "{outcome}"
    );
}

#[test]
fn an_earlier_recording_is_not_written_over_unless_that_is_asked_for() {
    let stage = Stage::new("over");
    let file = stage.file("a.rec").display().to_string();
    let record = |more: &[&str]| {
        let words = [&["record", "-o", &file][..], more, &["--", "true"]].concat();
        stage.ask(&words)
    };
    record(&[]).must_succeed();
    let before = std::fs::read(&file).expect("a recording");
    for words in [
        &["record", "-o", &file, "--", "touch", "ran"][..],
        &["run", "--record", &file, "--", "touch", "ran"],
    ] {
        let outcome = run(stage.synclater(words).current_dir(stage.work()));
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
        assert!(
            outcome.stderr.contains("--force writes over it"),
            "{outcome}"
        );
        assert!(!stage.work().join("ran").exists(), "{outcome}");
        assert_eq!(std::fs::read(&file).expect("a recording"), before);
    }
    // What is advised does it.
    record(&["--force"]).must_succeed();
    assert_ne!(std::fs::read(&file).expect("a recording"), before);
}

#[test]
fn a_recording_goes_to_standard_output_alone() {
    let stage = Stage::new("stdout");
    let file = stage.file("a.rec");
    let hammer = program("hammer");
    let mut command = stage.synclater(&["record", "-o", "-", "--", "sh", "-c"]);
    command
        .arg("echo said; \"$1\" \"$2\" 1 7")
        .arg("sh")
        .arg(hammer)
        .arg(stage.work());
    command.stdout(std::fs::File::create(&file).expect("a file"));
    let status = command.status().expect("it runs");
    assert!(status.success(), "{status}");
    let text = stage
        .ask(&["report", &file.display().to_string()])
        .must_succeed();
    assert!(text.stdout.contains(" 7 requests"), "{text}");
    assert!(!stage.work().join("-").exists());
    let attach = stage.ask(&["attach", "--pid", "1", "--record", "-"]);
    assert_eq!(attach.status.code(), Some(125), "{attach}");
    assert!(has_four_parts(&attach.stderr), "{attach}");
}

#[test]
fn ranges_are_written_as_people_do_and_no_verb_is_offered_that_is_not_for_them() {
    let stage = Stage::new("usage");
    for words in [
        &["probe", "--threads", "1000"][..],
        &["report", "--top", "0", "x"],
    ] {
        let said = stage.ask(words).stderr;
        assert!(
            said.contains(" is not in 1 to ") && !said.contains("..="),
            "{said}"
        );
    }
    let said = stage.ask(&["crash-chek"]).stderr;
    assert!(
        said.contains("'crash'") && !said.contains("crash-check"),
        "{said}"
    );
    let help = stage.ask(&["crash-check", "--help"]).must_succeed().stdout;
    assert!(
        help.contains("Usage: synclater crash-check <CHECK>"),
        "{help}"
    );
}
