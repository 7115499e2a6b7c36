//! Programs of several classes that start each other: the library is in each, `ld.so` says nothing,
//! no call is lost.

use crate::harness::backend::{backends, Backend, Scene};
use crate::harness::command::{clean, run};
use crate::harness::trace::Trace;
use crate::harness::victims::{victim, Class};
use std::path::{Path, PathBuf};

/// What each member of the chain does.
const SYNCS: usize = 23;

const EXPECTED: &str = "\
    32 bit: 23 good, a bad one: -1\n\
    64 bit: 23 good, a bad one: -1\n\
    64 bit: 23 good, a bad one: -1\n";

/// A 64-bit shell that becomes a 32-bit program, a musl one and a 64-bit one, in this order.
fn chain(work: &Path) -> Vec<PathBuf> {
    let mut words: Vec<PathBuf> = ["sh", "-c", "\"$@\"", "sh"].map(Into::into).into();
    for class in [Class::Small, Class::Musl, Class::Native] {
        words.push(victim("chain", class));
        words.push(work.into());
    }
    words
}

#[test]
fn a_mixed_tree_runs_without_a_word_from_the_loader() {
    for backend in backends().filter(|b| !matches!(b, Backend::Attached(_))) {
        let scene = Scene::new("mixed");
        let outcome = run(scene.command(backend).args(chain(&scene.work())));
        assert_eq!(outcome.stderr, "", "{backend:?}: {outcome}");
        assert_eq!(outcome.stdout, EXPECTED, "{backend:?}: {outcome}");
        outcome.must_succeed();
    }
}

#[test]
fn no_call_of_a_mixed_tree_is_lost() {
    let scene = Scene::new("mixed");
    let words = chain(&scene.work());
    let words: Vec<&Path> = words.iter().map(PathBuf::as_path).collect();
    let trace = Trace::of(&scene, Backend::Alone, &words);
    assert_eq!(trace.outcome.stdout, EXPECTED, "{}", trace.outcome);
    assert!(trace.io().is_empty(), "{:?}", trace.io());
    // Each was checked by a call that makes no I/O, so each was seen.
    assert_eq!(trace.count("sync_file_range"), 3 * SYNCS);
}

#[test]
fn every_request_of_a_mixed_tree_is_in_the_report() {
    let scene = Scene::new("mixed");
    let report = scene.file("report.json");
    let mut command = clean(env!("CARGO_BIN_EXE_synclater"));
    command.env("SYNCLATER_RUN_DIR", scene.file("run"));
    command.env("SYNCLATER_STATE_DIR", scene.state());
    command
        .args(["run", "--quiet", "-u", "exit", "--json"])
        .arg(&report)
        .arg("--");
    let outcome = run(command.args(chain(&scene.work()))).must_succeed();
    let text = std::fs::read_to_string(&report).expect("the report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let number = |key: &str| {
        report[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {text}"))
    };
    // The one with a bad descriptor was asked for too; it was neither put off nor carried out.
    assert_eq!(
        number("requests"),
        3 * (SYNCS as u64 + 1),
        "{text}\n{outcome}"
    );
    assert_eq!(
        number("skipped") + number("real"),
        3 * SYNCS as u64,
        "{text}\n{outcome}"
    );
    assert_eq!(report["until"], "exit", "{text}");
    assert_eq!(report["exit_status"], 0, "{text}");
}
