//! Sessions inside of sessions: the stricter dial wins, both settle.

use super::stage::{program, Stage, SYNCLATER};
use crate::harness::command::run;
use serde_json::Value;

const REQUESTS: u64 = 2003;

/// Runs a hammer at `inner` in a session at `outer`; the reports of both, and how many of the
/// victim's syncs reached the kernel.
fn nest(outer: &str, inner: &str) -> (Value, Value, u64) {
    let stage = Stage::new("nested");
    let (one, two) = (stage.file("outer.json"), stage.file("inner.json"));
    let mut command = stage.synclater(&["run", "--quiet", "-u", outer, "--json"]);
    command
        .arg(&one)
        .args(["--", SYNCLATER, "run", "--quiet", "-u", inner]);
    command.arg("--json").arg(&two).arg("--");
    let log = stage.traced(&mut command, "fsync", "victim.log");
    command.arg(program("hammer")).arg(stage.work());
    command.args(["1", &REQUESTS.to_string()]);
    run(&mut command).must_succeed();
    let read = |path| std::fs::read_to_string(path).expect("a report");
    let parse = |text: String| serde_json::from_str(&text).expect("JSON");
    assert!(stage.entries().is_empty(), "{:?}", stage.entries());
    (parse(read(one)), parse(read(two)), log.count("fsync"))
}

fn number(report: &Value, key: &str) -> u64 {
    report[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key}: {report:#}"))
}

#[test]
fn a_laxer_session_inside_still_owes_to_the_outer_one() {
    let (outer, inner, real) = nest("exit", "never");
    for report in [&outer, &inner] {
        assert_eq!(number(report, "requests"), REQUESTS, "{report:#}");
        assert!(number(report, "skipped") > REQUESTS / 2, "{report:#}");
        assert_eq!(number(report, "real"), real, "{report:#}");
        assert_eq!(report["escaped"], serde_json::json!([]), "{report:#}");
    }
    assert_eq!(
        number(&outer, "settled"),
        number(&outer, "skipped"),
        "{outer:#}"
    );
    assert_eq!(number(&inner, "settled"), 0, "{inner:#}");
}

#[test]
fn a_session_inside_of_one_at_now_relaxes_nothing() {
    for (one, two) in [("now", "exit"), ("exit", "now")] {
        let (outer, inner, real) = nest(one, two);
        assert_eq!(real, REQUESTS, "{one} {two}");
        for report in [&outer, &inner] {
            assert_eq!(number(report, "requests"), REQUESTS, "{report:#}");
            assert_eq!(number(report, "skipped"), 0, "{report:#}");
            assert_eq!(number(report, "real"), REQUESTS, "{report:#}");
        }
    }
}

#[test]
fn both_of_two_sessions_settle_what_they_owe() {
    let (outer, inner, _) = nest("1h", "exit");
    for report in [&outer, &inner] {
        assert!(number(report, "skipped") > REQUESTS / 2, "{report:#}");
        assert_eq!(
            number(report, "settled"),
            number(report, "skipped"),
            "{report:#}"
        );
    }
}
