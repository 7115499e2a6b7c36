//! The page of `report --html`, looked at and clicked in a real Chromium.
//!
//! What the tests rely on: a page is known by its roles, names and heads, as a person knows it.

mod looks;
mod sample;
mod verb;

use crate::harness::browser::Browser;
use crate::harness::command::{clean, run};
use crate::harness::dir::Dir;
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use synclater_recording::report::html::page;
use synclater_text::number;

/// The page of a report, open in a browser; `None` where there is no browser.
struct Open {
    browser: Browser,
    file: PathBuf,
    took_ms: f64,
    _dir: Dir,
}

fn open(name: &str, report: &Value) -> Option<Open> {
    let mut browser = Browser::start(name)?;
    browser.resize(1280, 900);
    browser.prefer("light", "screen");
    let dir = Dir::new("page");
    let file = dir.join("report.html");
    std::fs::write(&file, page(&report.to_string())).expect("the page");
    let took_ms = browser.open(&file);
    let _dir = dir;
    Some(Open {
        browser,
        file,
        took_ms,
        _dir,
    })
}

/// The texts of all elements that a selector finds.
fn texts(browser: &mut Browser, selector: &str) -> Vec<String> {
    let selector = json!(selector);
    let all = browser.ask(&format!(
        "[...document.querySelectorAll({selector})].map((e) => e.textContent.trim())"
    ));
    let text = |v: &Value| v.as_str().expect("a text").to_owned();
    all.as_array().expect("texts").iter().map(text).collect()
}

fn text(browser: &mut Browser, selector: &str) -> String {
    texts(browser, selector).join("\n")
}

const FILES: &str = "#panel-by_file tbody tr";

/// The names in the order of the table.
fn names(browser: &mut Browser) -> Vec<String> {
    texts(browser, &format!("{FILES} .choose"))
}

/// The names of a report's files, sorted by a figure; equal ones stay in their places.
fn by_figure(report: &Value, figure: &str, order: &str) -> Vec<String> {
    let mut rows = report["by_file"].as_array().expect("files").clone();
    let value = |r: &Value| r[figure].as_i64().expect("a figure");
    rows.sort_by_key(|r| match order {
        "descending" => -value(r),
        _ => value(r),
    });
    let name = |r: &Value| r["name"].as_str().expect("a name").to_owned();
    rows.iter().map(name).collect()
}

#[test]
fn a_table_sorts_by_the_head_that_is_clicked_or_chosen_by_key() {
    let mut report = sample::report();
    report["by_file"]
        .as_array_mut()
        .expect("files")
        .truncate(19);
    let Some(mut open) = open("a_table_sorts_by_the_head_that_is_clicked", &report) else {
        return;
    };
    let browser = &mut open.browser;
    let head = |by: &str| format!("#panel-by_file th[data-by={by}]");
    let sort = |browser: &mut Browser, by: &str| {
        let of = json!(head(by));
        browser.ask(&format!(
            "document.querySelector({of}).getAttribute('aria-sort')"
        ))
    };
    assert_eq!(sort(browser, "sync_s"), "descending");
    browser.click(&format!("{} button", head("requests")));
    assert_eq!(names(browser), by_figure(&report, "requests", "descending"));
    assert_eq!(sort(browser, "requests"), "descending");
    assert_eq!(sort(browser, "sync_s"), Value::Null);
    browser.click(&format!("{} button", head("requests")));
    assert_eq!(names(browser), by_figure(&report, "requests", "ascending"));
    assert_eq!(sort(browser, "requests"), "ascending");
    let button = json!(format!("{} button", head("max_ns")));
    browser.ask(&format!("document.querySelector({button}).focus()"));
    browser.press("Enter");
    assert_eq!(names(browser), by_figure(&report, "max_ns", "descending"));
    browser.click(&format!("{} button", head("name")));
    let found = names(browser);
    assert!(
        found.windows(2).all(|w| w[0] != w[1]) && found[0].starts_with("/srv"),
        "{found:?}"
    );
    assert_eq!(sort(browser, "name"), "ascending");
}

#[test]
fn what_is_not_known_stands_last_in_both_orders() {
    let row = |name: &str, bytes: Option<u64>| {
        let mut row = json!({ "name": name, "requests": 1, "sync_s": 1.0 });
        if let Some(bytes) = bytes {
            row["bytes"] = json!(bytes);
        }
        row
    };
    let rows = [
        row("few", Some(7)),
        row("unknown", None),
        row("many", Some(4_096)),
    ];
    let report = json!({ "version": 1, "by_file": rows });
    let Some(mut open) = open("what_is_not_known_stands_last_in_both_orders", &report) else {
        return;
    };
    let browser = &mut open.browser;
    for want in [["many", "few", "unknown"], ["few", "many", "unknown"]] {
        browser.click("#panel-by_file th[data-by=bytes] button");
        assert_eq!(names(browser), want);
    }
    let written = texts(browser, &format!("{FILES} td.bytes"));
    assert_eq!(written, ["7 B", "4.0 KiB", "–"]);
}

#[test]
fn tabs_switch_by_click_and_by_arrow_keys() {
    let Some(mut open) = open("tabs_switch_by_click_and_by_arrow_keys", &sample::report()) else {
        return;
    };
    let browser = &mut open.browser;
    let visible = |browser: &mut Browser| text(browser, "[role=tabpanel]:not([hidden]) caption");
    assert_eq!(visible(browser), "Requests by file");
    browser.click("#tab-by_process");
    assert_eq!(visible(browser), "Requests by process");
    assert_eq!(text(browser, "[aria-selected=true]"), "Processes 13");
    for (key, want) in [
        ("ArrowRight", "Requests by program"),
        ("ArrowRight", "Requests by kind of sync"),
        ("End", "Requests by code that asked"),
        ("ArrowRight", "Requests by file"),
        ("ArrowLeft", "Requests by code that asked"),
        ("Home", "Requests by file"),
    ] {
        browser.press(key);
        assert_eq!(visible(browser), want, "{key}");
        let focus = browser.ask("document.activeElement.getAttribute('aria-selected')");
        assert_eq!(focus, "true", "{key}");
    }
}

#[test]
fn a_row_shows_its_own_distribution_and_the_way_back() {
    let report = sample::report();
    let Some(mut open) = open("a_row_shows_its_own_distribution_and_the_way_back", &report) else {
        return;
    };
    let browser = &mut open.browser;
    let bars = |browser: &mut Browser| texts(browser, "#distribution .column").len();
    let cells = |of: &Value| {
        let cells = of["histogram"].as_array().expect("cells");
        cells.iter().filter(|c| c["n"] != 0).count()
    };
    assert_eq!(bars(browser), cells(&report));
    assert_eq!(text(browser, "#distribution h2"), "How long requests took");
    assert_eq!(
        text(browser, "#distribution .modes"),
        report["modes_sentence"]
    );
    browser.click("#tab-by_kind");
    browser.click("#panel-by_kind tbody tr:nth-child(2) td");
    let second = &report["by_kind"][1];
    assert_eq!(second["name"], "fsync");
    assert_eq!(
        text(browser, "#distribution h2"),
        "How long they took: fsync"
    );
    assert_eq!(bars(browser), cells(second));
    assert_eq!(
        texts(browser, "tr.chosen .choose[aria-pressed=true]"),
        ["fsync"]
    );
    for (by, tallest) in [("log", 170.0), ("time", 60.0), ("number", 60.0)] {
        browser.click(&format!("#distribution input[value={by}]"));
        let height = browser.ask(
            "Math.max(...[...document.querySelectorAll('#distribution .column')]
              .map((b) => Number(b.getAttribute('height'))))",
        );
        let height = height.as_f64().expect("a height");
        assert!((tallest..=170.5).contains(&height), "{by}: {height}");
    }
    browser.click("#distribution .quiet");
    assert_eq!(bars(browser), cells(&report));
    assert!(texts(browser, "tr.chosen").is_empty());
}

#[test]
fn a_filter_leaves_the_rows_that_hold_its_text() {
    let report = sample::report();
    let Some(mut open) = open("a_filter_leaves_the_rows_that_hold_its_text", &report) else {
        return;
    };
    let browser = &mut open.browser;
    let all = report["by_file"].as_array().expect("files").len();
    assert_eq!(names(browser).len(), 25);
    browser.click("#panel-by_file .quiet");
    assert_eq!(names(browser).len(), all);
    browser.click("#panel-by_file input");
    browser.call("Input.insertText", json!({ "text": "PG_WAL" }));
    let found = names(browser);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().all(|name| name.contains("/pg_wal/")));
    let said = text(browser, "#panel-by_file .said");
    assert!(
        said.starts_with(&format!("3 of {all}. The report holds")),
        "{said}"
    );
    browser.call("Input.insertText", json!({ "text": " not there" }));
    assert!(names(browser).is_empty());
    let said = text(browser, "#panel-by_file .said");
    assert!(said.starts_with("None of "), "{said}");
}

#[test]
fn the_heat_map_tells_each_cell_to_the_mouse_and_to_the_keys() {
    let report = json!({
        "requests": 26,
        "heatmap": {
            "from_ns": 1_773_454_269_000_000_000u64, "step_ns": 1_000_000_000, "columns": 10,
            "edges_ns": [1_000, 10_000, 100_000, 1_000_000], "cells": [[0, 0, 3], [7, 2, 23]],
        },
        "samples": {
            "seconds": [0.5, 7.5], "devices": [{ "device": "sda", "utilisation": [0.25, 0.75] }],
            "machine": { "psi_io_some": [0.1, Value::Null] },
        },
    });
    let name = "the_heat_map_tells_each_cell_to_the_mouse_and_to_the_keys";
    let Some(mut open) = open(name, &report) else {
        return;
    };
    let browser = &mut open.browser;
    let place = browser.ask(
        "(() => { const plot = document.getElementById('heat');
          plot.scrollIntoView({ block: 'center', behavior: 'instant' });
          const r = plot.querySelector('.shade6').getBoundingClientRect();
          return [r.left + r.width / 2, r.top + r.height / 2]; })()",
    );
    let at = |k: usize| place[k].as_f64().expect("a place");
    browser.point(at(0), at(1));
    let tip = text(browser, "#heat .tip:not([hidden])");
    assert!(tip.contains("23 requests took 100 µs to 1.0 ms"), "{tip}");
    assert!(tip.contains("of 23 that began 7 s to 8 s"), "{tip}");
    assert!(tip.contains("2026-03-14 02:11:16 UTC"), "{tip}");
    assert_eq!(
        texts(browser, "#samples .said"),
        ["then 75 %", "at most 10 %"]
    );
    browser.point(1.0, 1.0);
    assert!(texts(browser, "#heat .tip:not([hidden])").is_empty());
    assert_eq!(
        texts(browser, "#samples .said"),
        ["at most 75 %", "at most 10 %"]
    );
    browser.tap(at(0), at(1));
    let tip = text(browser, "#heat .tip:not([hidden])");
    assert!(tip.contains("23 requests"), "{tip}");
    browser.ask("document.getElementById('heat').focus()");
    for key in ["ArrowDown", "ArrowDown", "ArrowDown"]
        .iter()
        .chain(&["ArrowLeft"; 9])
    {
        browser.press(key);
    }
    let tip = text(browser, "#heat .tip:not([hidden])");
    assert!(tip.contains("3 requests took 1.0 µs to 10 µs"), "{tip}");
    assert_eq!(texts(browser, "#samples .said"), ["then 25 %", "then 10 %"]);
}

#[test]
fn numbers_are_written_as_in_the_terminal() {
    let times: [u64; 17] = [
        1,
        99,
        420,
        998,
        999,
        1_000,
        6_400,
        99_499,
        999_900,
        4_213_000,
        98_999_999,
        99_000_001,
        999_000_000,
        9_960_000_000,
        118_600_000_000,
        151_000_000_000,
        11_100_000_000_000,
    ];
    let sizes = [
        0,
        1_023,
        4_096,
        10_239,
        1_047_552,
        1_048_575,
        1_288_490_189,
        1 << 52,
    ];
    let row = |(k, ns): (usize, &u64)| {
        json!({
            "name": format!("{k}"), "requests": ns, "sync_s": *ns as f64 / 1e9, "p50_ns": ns,
            "bytes": sizes[k % sizes.len()],
        })
    };
    let rows: Vec<Value> = times.iter().enumerate().map(row).collect();
    let report = json!({ "by_file": rows });
    let Some(mut open) = open("numbers_are_written_as_in_the_terminal", &report) else {
        return;
    };
    let browser = &mut open.browser;
    browser.click("#panel-by_file th[data-by=name] button");
    let column = |browser: &mut Browser, of: &str| texts(browser, &format!("{FILES} td.{of}"));
    let took = times.map(|ns| number::seconds(ns as f64 / 1e9));
    assert_eq!(column(browser, "p50_ns"), took);
    assert_eq!(column(browser, "sync_s"), took);
    assert_eq!(column(browser, "requests"), times.map(number::count));
    let sizes = (0..times.len()).map(|k| number::bytes(sizes[k % sizes.len()]));
    assert_eq!(column(browser, "bytes"), sizes.collect::<Vec<_>>());
}

#[test]
fn the_largest_report_is_small_and_opens_in_under_two_seconds() {
    let report = sample::largest();
    let name = "the_largest_report_is_small_and_opens_in_under_two_seconds";
    let Some(mut open) = open(name, &report) else {
        return;
    };
    let size = std::fs::metadata(&open.file).expect("the page").len();
    assert!(size <= 3_000_000, "{size} bytes");
    // The best of some: what else the machine does is not the page's.
    let again = (0..4).map(|_| open.browser.open(&open.file));
    let took_ms = again.fold(open.took_ms, f64::min);
    println!("{size} bytes, drawn after {took_ms:.0} ms");
    assert!(took_ms < 2_000.0, "{took_ms} ms");
    assert_eq!(names(&mut open.browser).len(), 25);
    let said = text(&mut open.browser, "#panel-by_file .said");
    assert!(
        said.contains("25 of 100 shown.") && said.contains("of 100,003."),
        "{said}"
    );
}

#[test]
fn a_report_that_lacks_a_part_shows_the_others() {
    let whole = sample::report();
    let name = "a_report_that_lacks_a_part_shows_the_others";
    let Some(mut open) = open(name, &whole) else {
        return;
    };
    let sections = texts(&mut open.browser, "section").len();
    assert!(sections >= 8, "{sections}");
    let mut show = |json: &str| {
        std::fs::write(&open.file, page(json)).expect("the page");
        open.browser.open(&open.file);
        let complaints = open.browser.complaints();
        assert!(complaints.is_empty(), "{complaints:?}\n{json:.400}");
        let heads = texts(&mut open.browser, "h1").len();
        (heads, texts(&mut open.browser, "section").len())
    };
    let keys = whole.as_object().expect("an object").keys();
    for key in keys {
        let mut without = whole.clone();
        without.as_object_mut().expect("an object").remove(key);
        let (heads, left) = show(&without.to_string());
        assert!(heads == 1 && left + 1 >= sections, "{key}: {left}");
        without[key] = if whole[key].is_array() {
            json!([])
        } else {
            Value::Null
        };
        let (heads, left) = show(&without.to_string());
        assert!(heads == 1 && left + 1 >= sections, "{key}: {left}");
    }
    assert_eq!(show("{}"), (1, 0));
    for json in ["null", "", "no { JSON", "[]", "7"] {
        assert_eq!(show(json), (0, 0), "{json}");
    }
    let said = text(&mut open.browser, ".warning");
    assert!(said.contains("cannot be read"), "{said}");
}

#[test]
fn what_was_lost_or_is_missing_is_a_warning_at_the_top() {
    let mut report = sample::report();
    report["lost"] = json!(4_813);
    report["lost_by_process"] = json!([{ "pid": 23, "exe": "/usr/bin/mail", "lost": 4_813 }]);
    report["recording"]["complete"] = json!(false);
    report["recording"]["missing"] = json!("cut off in the middle of a batch");
    report["failed"] = json!(7);
    let name = "what_was_lost_or_is_missing_is_a_warning_at_the_top";
    let Some(mut open) = open(name, &report) else {
        return;
    };
    let warnings = text(&mut open.browser, ".warning");
    for words in [
        "Warning: This recording is not whole. cut off in the middle of a batch",
        "4,813 requests were not recorded",
        "/usr/bin/mail (pid 23): 4,813",
        "7 requests failed.",
    ] {
        assert!(warnings.contains(words), "{words}: {warnings}");
    }
    let top = "document.querySelector('.warning').getBoundingClientRect().top";
    assert!(open.browser.ask(top).as_f64().expect("a place") < 400.0);
}

#[test]
fn the_page_runs_only_its_own_script_and_style() {
    // The page names the hashes of both; a browser refuses what differs.
    let html = page("{}");
    let between = |open: &str, close: &str| {
        let (_, rest) = html.split_once(open).expect("its begin");
        rest.split_once(close).expect("its end").0.to_owned()
    };
    let dir = Dir::new("hash");
    for (what, text) in [
        ("style-src", between("<style>", "</style>")),
        (
            "script-src",
            between("<script type=\"module\">", "</script>"),
        ),
    ] {
        let hash = sha256(&dir.join("text"), &text);
        let want = format!("{what} 'sha256-{hash}'");
        assert!(html.contains(&want), "page.html must say: {want}");
    }
}

fn sha256(file: &Path, text: &str) -> String {
    std::fs::write(file, text).expect("a file");
    let script = "import base64, hashlib, sys; data = open(sys.argv[1], 'rb').read(); \
        print(base64.b64encode(hashlib.sha256(data).digest()).decode())";
    let outcome = run(clean("python3").args(["-c", script]).arg(file)).must_succeed();
    outcome.stdout.trim().to_owned()
}
