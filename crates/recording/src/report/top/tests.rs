//! Tables that are sorted, searched and written.

use super::*;

fn line(name: &str, requests_per_s: f64, p99_s: Option<f64>) -> Line {
    Line {
        pid: Some(41),
        name: name.into(),
        detail: "imap Alice".into(),
        figures: Figures {
            requests_per_s,
            p99_s,
            ..Figures::default()
        },
    }
}

fn names(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(|l| l.name.as_str()).collect()
}

#[test]
fn the_greatest_comes_first_and_what_is_not_known_last() {
    let mut lines = vec![
        line("b", 1.0, None),
        line("a", 1.0, Some(0.0)),
        line("c", 5.0, Some(0.2)),
    ];
    for (by, want) in [
        (Sort::Requests, ["c", "a", "b"]),
        (Sort::P99, ["c", "a", "b"]),
        (Sort::Name, ["a", "b", "c"]),
        (Sort::Max, ["a", "b", "c"]),
    ] {
        sort(&mut lines, by);
        assert_eq!(names(&lines), want, "{by:?}");
    }
}

#[test]
fn going_through_the_columns_comes_back_to_the_first() {
    let mut at = Sort::Requests;
    for want in Sort::ALL {
        assert_eq!(at, want);
        at = at.moved(1);
    }
    assert_eq!(at, Sort::Requests);
    assert_eq!(at.moved(-1), Sort::Name);
    assert_eq!(at.moved(isize::MIN).moved(isize::MAX), Sort::Name);
}

#[test]
fn a_line_is_found_by_any_of_its_words_in_whatever_case() {
    let line = line("/usr/bin/Imap", 1.0, None);
    for text in ["imap", "ALICE", "41", "p A", ""] {
        assert!(line.contains(text), "{text}");
    }
    assert!(!line.contains("42"));
}

fn sums(requests: u64, took_ns: u64) -> Sums {
    Sums {
        requests,
        took_ns,
        skipped: requests,
        ..Sums::default()
    }
}

fn key(name: &str) -> Key {
    Key {
        name: name.into(),
        ..Key::default()
    }
}

fn top(lines: usize) -> Top {
    let window = Window {
        seconds: 2.0,
        total: sums(100, 1000),
        lost: 10,
        members: vec![
            (key("light"), sums(60, 100)),
            (key("heavy\u{1b}[2J"), sums(10, 700)),
            (key("middle"), sums(20, 150)),
        ],
        others: sums(10, 50),
    };
    Top::new(window, By::File, None, "2024-01-01T00:00:00Z".into(), lines)
}

#[test]
fn what_a_limit_leaves_out_is_in_the_others() {
    let top = top(2);
    assert_eq!(names(&top.lines), ["heavy\u{1b}[2J", "middle"]);
    let others = top.others.expect("two kinds of others");
    assert_eq!(others.requests_per_s, 35.0);
    assert_eq!(others.time_share, Some(0.15));
    assert_eq!(top.lines[0].figures.time_share, Some(0.7));
    assert_eq!((top.figures.requests_per_s, top.lost_per_s), (55.0, 5.0));
}

#[test]
fn one_look_is_one_line_of_json_without_what_is_not_known() {
    let text = top(9).to_json();
    assert_eq!(text.matches('\n').count(), 1);
    assert!(!text.contains('\u{1b}'), "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&json["version"], &json["by"]), (&1.into(), &"file".into()));
    assert_eq!(json["lines"].as_array().map(Vec::len), Some(3));
    assert_eq!(json["lines"][0]["requests_per_s"], 5.0);
    for absent in ["session", "p50_s", "max_s", "needless_share", "time_share"] {
        assert!(json.get(absent).is_none(), "{absent}: {text}");
    }
}
