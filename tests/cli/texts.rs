//! Help, man pages and completions: made from one table, so they say the same.

use crate::harness::command::{clean, run};
use crate::sessions::stage::{Stage, SYNCLATER};
use std::collections::BTreeSet;

const VERBS: [&str; 18] = [
    "run", "attach", "detach", "record", "report", "diff", "export", "ps", "set", "settle",
    "status", "doctor", "probe", "env", "generate", "explain", "top", "crash",
];

/// Long options that a text names.
fn options(text: &str) -> BTreeSet<String> {
    let plain = text.replace("\\-", "-");
    let ends = |c: char| !(c.is_ascii_lowercase() || c == '-');
    let words = plain.split(|c: char| ends(c) && c != '-');
    words
        .filter(|w| w.starts_with("--") && w.len() > 2)
        .map(|w| w.trim_end_matches('-').to_owned())
        .collect()
}

#[test]
fn help_of_each_verb_has_examples() {
    let stage = Stage::new("help");
    let top = stage.ask(&["--help"]).must_succeed();
    for verb in VERBS {
        assert!(top.stdout.contains(verb), "{verb}: {top}");
        for help in [stage.ask(&[verb, "--help"]), stage.ask(&["help", verb])] {
            let help = help.must_succeed();
            let example = format!("  synclater {verb}");
            let (_, after) = help.stdout.split_once("EXAMPLES\n").expect("examples");
            assert!(after.contains(&example), "{help}");
            assert!(
                help.stdout.lines().all(|l| l.chars().count() <= 80),
                "{help}"
            );
        }
    }
    let version = stage.ask(&["--version"]).must_succeed();
    assert!(
        version.stdout.contains(env!("CARGO_PKG_VERSION")),
        "{version}"
    );
}

#[test]
fn man_pages_and_help_name_the_same_options() {
    let stage = Stage::new("man");
    let dir = stage.file("man");
    run(stage.synclater(&["generate", "man"]).arg(&dir)).must_succeed();
    for verb in VERBS {
        let help = stage.ask(&[verb, "--help"]).must_succeed();
        let page = std::fs::read_to_string(dir.join(format!("synclater-{verb}.1")));
        let page = page.expect("a man page");
        assert!(page.contains("EXAMPLES"), "{verb}");
        assert_eq!(options(&help.stdout), options(&page), "{verb}");
    }
    let main = std::fs::read_to_string(dir.join("synclater.1")).expect("a man page");
    assert!(VERBS.iter().all(|v| main.contains(v)), "{main}");
    let shown = stage.ask(&["generate", "man"]).must_succeed();
    assert!(shown.stdout.starts_with(".ie"), "{shown}");
}

#[test]
fn completions_are_made_for_three_shells_and_name_every_verb() {
    let stage = Stage::new("completions");
    let dir = stage.file("completions");
    run(stage.synclater(&["generate", "completions"]).arg(&dir)).must_succeed();
    for name in ["synclater.bash", "_synclater", "synclater.fish"] {
        let text = std::fs::read_to_string(dir.join(name)).expect("a file");
        assert!(VERBS.iter().all(|v| text.contains(v)), "{name}");
    }
    run(clean("bash").arg("-n").arg(dir.join("synclater.bash"))).must_succeed();
    let script = "source \"$1\"; COMP_WORDS=(synclater st); COMP_CWORD=1; \
        _synclater synclater st synclater; echo \"${COMPREPLY[*]}\"";
    let mut command = clean("bash");
    command
        .args(["-c", script, "bash"])
        .arg(dir.join("synclater.bash"));
    let completed = run(&mut command).must_succeed();
    assert_eq!(completed.stdout, "status\n", "{completed}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let stage = Stage::new("pipe");
    let script = "for verb in ps status doctor env 'generate man' 'generate completions'; do \
        \"$1\" $verb | :; \"$1\" $verb | head -c 1 >/dev/null; done";
    let mut command = stage.with_folders("sh");
    let outcome = run(command.args(["-c", script, "sh", SYNCLATER])).must_succeed();
    assert_eq!(outcome.stderr, "", "{outcome}");
}
