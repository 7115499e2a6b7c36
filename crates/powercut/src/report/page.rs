//! The report as one page: what was found, and when, on a line in time.
//!
//! Promise: the page runs no script and asks nothing of any network (its own policy forbids both);
//! whatever a program said stands in it as text. It can be read without colours.

use super::{CrashReport, Failure, Line};
use std::fmt::Write;
use synclater_text::layout::{command_line, shown};
use synclater_text::number::{count, counted, seconds};
use synclater_text::STYLE;

const OWN_STYLE: &str = include_str!("page.css");

/// Pixels of the line, and of one lane of it.
const WIDTH: f64 = 1160.0;
const LANE: f64 = 34.0;
const NAMES: f64 = 130.0;
/// Marks of one lane, at most: of more, those that lie on the same pixel are one.
const MARKS_MAX: usize = 4000;

/// Text as it may stand anywhere in the page.
fn text(of: &str) -> String {
    let of = shown(of);
    let mut out = String::with_capacity(of.len());
    for c in of.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Writes the page.
#[must_use]
pub fn page(report: &CrashReport, line: &Line) -> String {
    let mut out = String::from(concat!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
        "<meta http-equiv=\"Content-Security-Policy\" ",
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n",
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
        "<meta name=\"referrer\" content=\"no-referrer\">\n",
        "<meta name=\"color-scheme\" content=\"light dark\">\n",
        "<title>synclater crash</title>\n<style>",
    ));
    let command = text(&command_line(&report.command));
    let (fs, until) = (text(&report.fs), text(&report.until));
    let _ = write!(
        out,
        "{STYLE}{OWN_STYLE}</style>\n</head>\n<body>\n<header class=\"top\">\
         <p class=\"brand\"><b>synclater</b> crash <span>{command}</span></p></header>\n\
         <main>\n<section class=\"hero\"><h1>{}</h1>\n<p class=\"of\">{fs}, dial {until}: {}, {}, \
         {}, in {}.{}</p>\n",
        verdict(report),
        counted(report.acknowledged, "acknowledgement"),
        counted(report.writes, "write"),
        super::flushes(report.flushes),
        seconds(line.seconds),
        if report.complete {
            ""
        } else {
            " More states are possible."
        },
    );
    for note in &report.notes {
        let _ = writeln!(out, "<p class=\"warning\">{}</p>", text(note));
    }
    out.push_str("</section>\n");
    time_line(&mut out, line);
    kinds(&mut out, report);
    for failure in &report.failures {
        one(&mut out, failure);
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn verdict(report: &CrashReport) -> String {
    let states = counted(report.states, "state");
    match report.bad {
        0 => format!("{states}, none is bad"),
        bad => format!(
            "{} of {states} {} bad",
            count(bad),
            if bad == 1 { "is" } else { "are" }
        ),
    }
}

/// A mark of a lane: from, to, its words, and whether it is bad.
type Mark = (f64, f64, String, bool);

/// The mark of a moment, with its words.
fn mark_of((at, words): &(f64, String)) -> Mark {
    (*at, *at, words.clone(), false)
}

/// The mark of a cut: when, how many states were tried, how many of them were bad.
fn mark_of_cut((at, states, bad): &(f64, u64, u64)) -> Mark {
    let words = format!("{}, {} bad", counted(*states, "state"), count(*bad));
    (*at, *at, words, *bad > 0)
}

fn time_line(out: &mut String, line: &Line) {
    let said: Vec<Mark> = line.said.iter().map(mark_of).collect();
    let syncs = line
        .syncs
        .iter()
        .map(|(a, b, words)| (*a, *b, words.clone(), false))
        .collect();
    let writes = line.writes.iter().map(mark_of).collect();
    let flushes = line
        .flushes
        .iter()
        .map(|at| (*at, *at, "flush".into(), false))
        .collect();
    let cuts = line.cuts.iter().map(mark_of_cut).collect();
    let lanes: [(&str, &str, Vec<Mark>); 5] = [
        ("acknowledged", "said", said),
        ("sync requests", "sync", syncs),
        ("disk writes", "write", writes),
        ("disk flushes", "flush", flushes),
        ("power cuts", "cut", cuts),
    ];
    let height = LANE * lanes.len() as f64 + 24.0;
    let _ = write!(
        out,
        "<section><h2>In time</h2>\n<div class=\"scroll\"><svg class=\"timeline\" \
         viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-label=\"The run in time, lane by lane\">\n",
    );
    let end = line.seconds.max(1e-9);
    for (n, (name, class, marks)) in lanes.iter().enumerate() {
        let y = LANE * n as f64;
        let _ = writeln!(
            out,
            "<text class=\"name\" x=\"0\" y=\"{:.0}\">{name}</text><text class=\"many\" x=\"0\" \
             y=\"{:.0}\">{}</text><line class=\"base\" x1=\"{NAMES}\" x2=\"{WIDTH}\" y1=\"{:.0}\" \
             y2=\"{:.0}\"/>",
            y + 13.0,
            y + 26.0,
            count(marks.len() as u64),
            y + 30.0,
            y + 30.0,
        );
        draw(out, marks, class, y, end);
    }
    ticks(out, end, height);
    out.push_str(
        "</svg></div>\n<p><small>Where a mark is, its words come up. Cuts with a bad state \
                  are the tall ones.</small></p></section>\n",
    );
}

/// Where a moment lies on a line that ends with the moment `end`.
fn x_of(at: f64, end: f64) -> f64 {
    NAMES + (WIDTH - NAMES - 10.0) * (at / end).clamp(0.0, 1.0)
}

fn draw(out: &mut String, marks: &[Mark], class: &str, y: f64, end: f64) {
    let crowded = marks.len() > MARKS_MAX;
    let mut last = (f64::NEG_INFINITY, false);
    for (from, to, words, bad) in marks {
        let (left, right) = (x_of(*from, end), x_of(*to, end));
        let pixel = (left * 2.0).floor();
        if crowded && (pixel, *bad) == last {
            continue;
        }
        last = (pixel, *bad);
        let (top, tall) = if *bad {
            (y + 2.0, 28.0)
        } else {
            (y + 10.0, 20.0)
        };
        let class = if *bad { "bad" } else { class };
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.0}\" width=\"{:.1}\" \
             height=\"{tall:.0}\"><title>{}: {}</title></rect>",
            (right - left).max(1.2),
            seconds(*from),
            text(words),
        );
    }
}

fn ticks(out: &mut String, end: f64, height: f64) {
    for part in 0..=4 {
        let at = end * f64::from(part) / 4.0;
        let anchor = ["start", "middle", "middle", "middle", "end"][part as usize];
        let _ = writeln!(
            out,
            "<text class=\"many\" x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{}</text>",
            x_of(at, end),
            height - 4.0,
            seconds(at),
        );
    }
}

fn kinds(out: &mut String, report: &CrashReport) {
    let _ = write!(
        out,
        "<section><h2>What was tried</h2>\n<p>{} cuts gave {}; {} a minute.</p>\n\
         <table><thead><tr><th>kind</th><th class=\"number\">states</th>\
         <th class=\"number\">bad</th></tr></thead><tbody>\n",
        count(report.cuts),
        counted(report.states, "different state"),
        count(report.per_minute()),
    );
    for row in &report.kinds {
        let bad = if row.bad > 0 {
            count(row.bad)
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{bad}</td></tr>",
            text(&row.kind),
            count(row.states),
        );
    }
    out.push_str("</tbody></table></section>\n");
}

fn one(out: &mut String, failure: &Failure) {
    let _ = write!(
        out,
        "<section class=\"failure\"><h2>{}: {}</h2>\n<p>{}</p>\n<dl>\n",
        text(&failure.id),
        text(super::gist(&failure.said)),
        text(&failure.sentence),
    );
    row(out, "the state", &text(&failure.differences.join("; ")));
    row(out, "the last syncs", &text(&failure.requests.join(", ")));
    let missing = failure.missing.as_deref().unwrap_or("");
    row(out, "missing", &text(missing));
    let remaining = failure.remaining.as_deref().unwrap_or("");
    row(out, "remains", &text(remaining));
    let advice = failure.advice.as_deref().unwrap_or("");
    row(out, "advice", &text(advice));
    let seen = counted(failure.states, "state");
    row(out, "seen", &format!("in {seen}"));
    if let Some(replay) = &failure.replay {
        let replay = format!("<code>{}</code>", text(replay));
        row(out, "to look at it", &replay);
    }
    out.push_str("</dl>\n");
    if !failure.steps.is_empty() {
        out.push_str("<ol class=\"steps\">");
        for step in &failure.steps {
            let kind = step.split(' ').next().unwrap_or("");
            let class = match kind {
                "write" => "write",
                "flush" => "flush",
                "\u{2026}" => "more",
                _ => "said",
            };
            let _ = write!(out, "<li class=\"{class}\">{}</li>", text(step));
        }
        out.push_str("<li class=\"bad\">the power is cut</li></ol>\n");
    }
    out.push_str("</section>\n");
}

/// One row of a failure's list, where there is something to say.
fn row(out: &mut String, name: &str, words: &str) {
    if !words.is_empty() {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{words}</dd>");
    }
}

#[cfg(test)]
mod tests {
    use super::super::KindRow;
    use super::*;

    fn report() -> CrashReport {
        CrashReport {
            version: 1,
            fs: "ext4".into(),
            until: "now".into(),
            command: vec!["./w".into(), "<script>alert(1)</script>".into()],
            status: Some(0),
            acknowledged: 1,
            writes: 2,
            zeroed: 0,
            flushes: 1,
            cuts: 5,
            states: 3,
            bad: 1,
            flaky: 0,
            flaky_said: None,
            kinds: vec![KindRow {
                kind: "a torn write".into(),
                states: 3,
                bad: 1,
            }],
            failures: vec![Failure {
                id: "F1".into(),
                after: Some("</title><img src=x>".into()),
                missing: Some("fsync of \"a\"".into()),
                remaining: None,
                sentence: "Right after it had said \u{201c}</title><img src=x>\u{201d}".into(),
                differences: vec!["a is missing".into()],
                requests: vec!["fsync of b".into()],
                steps: vec![
                    "write 1 sector at 7".into(),
                    "flush".into(),
                    "\u{201c}<b>".into(),
                ],
                advice: None,
                said: "lost & gone".into(),
                states: 1,
                replay: Some("synclater crash --replay x/F1".into()),
            }],
            complete: true,
            seconds: 1.0,
            check_failed_on: None,
            notes: vec!["<i>odd</i>".into()],
        }
    }

    fn line() -> Line {
        Line {
            seconds: 0.5,
            said: vec![(0.4, "</svg><script>".into())],
            syncs: vec![(0.1, 0.2, "fsync of b".into())],
            writes: vec![(0.1, "4 KiB".into()), (0.3, "4 KiB".into())],
            flushes: vec![0.2],
            cuts: vec![(0.4, 3, 1)],
        }
    }

    #[test]
    fn the_page_has_everything_and_nothing_said_is_markup() {
        let page = page(&report(), &line());
        for has in [
            "1 of 3 states is bad",
            "lost &amp; gone",
            "a is missing",
            "--replay x/F1",
            "fsync of b",
            "the power is cut",
            "0.4",
        ] {
            assert!(page.contains(has), "{has}");
        }
        for not in ["<script", "<img", "<i>", "<b>&", "javascript:"] {
            assert!(!page.contains(not), "{not}");
        }
        assert!(page.contains("default-src 'none'") && page.ends_with("</html>\n"));
    }

    #[test]
    fn a_long_run_makes_no_large_page() {
        let mut line = line();
        line.writes = (0..300_000)
            .map(|n| (f64::from(n) / 600_000.0, "4 KiB".into()))
            .collect();
        let page = page(&report(), &line);
        assert!(page.len() < 1 << 20, "{}", page.len());
    }
}
