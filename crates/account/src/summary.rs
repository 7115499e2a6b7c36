//! The summary that `run` writes to standard error when it is over.
//!
//! Promise: it claims durability only where everything was settled; whatever was not covered is
//! named: requests that stayed real, processes that escaped, a bound that is no order. A figure
//! that is not known is left out.
//!
//! What it does not do: it measures nothing; the estimate stands with what it was made from.

use super::escape::{remedies, told};
use super::run::{RunFilesystem, RunReport, SettleError};
use synclater_policy::dial::Until;
use synclater_text::layout::{shown, wrapped, wrapped_clauses};
use synclater_text::number::{count, counted, seconds, seconds_up};

const LEAD: &str = "synclater: ";
const MARGIN: &str = "           ";

/// Of fewer requests nobody asks how much time they have saved.
const SAVED_MIN: u64 = 10;

/// Writes the summary: lines of at most 80 columns, the last one with its newline.
pub fn summary(report: &RunReport) -> String {
    let mut text = wrapped_clauses(LEAD, &outcome(report));
    if let Some(error) = &report.error {
        text.push_str(&wrapped_clauses(MARGIN, &lost(error)));
    }
    for doubt in report.doubts.iter().flatten() {
        text.push_str(&warning(MARGIN, doubt));
    }
    for clauses in [
        never(report),
        saved(report),
        bound(report),
        kept_real(report),
        unmatched(report),
        aside(report),
        recorded(report),
    ] {
        if !clauses.is_empty() {
            text.push_str(&wrapped_clauses(MARGIN, &clauses));
        }
    }
    text.push_str(&escaped(report));
    text
}

/// What may be wrong though the command's status says nothing of it: a line each, or nothing.
pub fn warnings(report: &RunReport) -> String {
    let doubts = report.doubts.iter().flatten();
    doubts.map(|doubt| warning(LEAD, doubt)).collect()
}

/// The lines of one doubt, of which the first begins with `lead`.
fn warning(lead: &str, doubt: &str) -> String {
    wrapped_clauses(lead, &[format!("warning: {}", shown(doubt))])
}

/// The first line: what was asked for, what was done, what is durable.
fn outcome(report: &RunReport) -> Vec<String> {
    if report.requests == 0 {
        return vec![match &report.error {
            None if report.escapes_unknown.is_some() => "no sync requests were seen".to_owned(),
            None => "no sync requests".to_owned(),
            Some(_) => "no sync requests; NOT durable".to_owned(),
        }];
    }
    if report.skipped == 0 {
        return all_real(report);
    }
    let owed = report
        .filesystems
        .iter()
        .filter(|fs| fs.requests != Some(0));
    let places = match owed.count() as u64 {
        0 => String::new(),
        number => format!(" in {}", counted(number, "file system")),
    };
    let requests = counted(report.skipped, "sync request");
    let answered = format!("{requests}{places} answered at once,");
    if is_never(report) {
        return vec![answered, "never settled".to_owned()];
    }
    vec![answered, settled(report)]
}

/// Rules that decided about nothing: a name that is misspelt relaxes nothing, without a word.
fn unmatched(report: &RunReport) -> Vec<String> {
    const SHOWN: usize = 3;
    let all = &report.unmatched_rules;
    if all.is_empty() || report.requests == 0 {
        return Vec::new();
    }
    let rules = counted(all.len() as u64, "rule");
    let mut named: Vec<String> = all.iter().take(SHOWN).map(|rule| shown(rule)).collect();
    if all.len() > SHOWN {
        named.push(format!("{} more", all.len() - SHOWN));
    }
    let last = named.len() - 1;
    named[..last].iter_mut().for_each(|name| name.push(','));
    std::iter::once(format!("{rules} decided about nothing:"))
        .chain(named)
        .collect()
}

fn all_real(report: &RunReport) -> Vec<String> {
    let requests = counted(report.requests, "sync request");
    let time = report
        .real_s
        .map(|time_s| format!("{} spent in them", seconds(time_s)));
    let durable = report.error.as_ref().map(|_| "NOT durable".to_owned());
    let mut clauses = if is_too_short(report) {
        vec![
            "too short to gain:".to_owned(),
            format!("{} ran normally", counted(report.real, "sync")),
            "while the session was starting".to_owned(),
        ]
    } else {
        vec![format!("{requests}, all kept real")]
    };
    for clause in time.into_iter().chain(durable) {
        push_after(&mut clauses, ";", clause);
    }
    clauses
}

/// Whether the command was over before anything could be put off.
fn is_too_short(report: &RunReport) -> bool {
    let were_early = report.kept_real.get(RunReport::STARTING) == Some(&report.real);
    report.skipped == 0 && report.real > 0 && were_early
}

fn settled(report: &RunReport) -> String {
    let time = report
        .settle_s
        .map_or(String::new(), |time_s| format!(" in {}", seconds(time_s)));
    if report.is_durable() {
        let all = if report.doubts.is_none() {
            "all durable"
        } else {
            "durable, but for the warning"
        };
        let but = match report.in_memory {
            None => String::new(),
            Some(n) => format!(", but {} in memory (tmpfs), which keeps nothing", count(n)),
        };
        return format!("settled{time}; {all}{but}");
    }
    if report.error.is_some() {
        return "settling failed; NOT durable".to_owned();
    }
    let left = report.skipped - report.settled;
    format!("{} of them NOT settled; NOT durable", count(left))
}

fn lost(error: &SettleError) -> Vec<String> {
    let (mount, device) = (shown(&error.mount), shown(&error.device));
    let first = if error.was_killed() {
        vec![
            format!("{mount} ({device}):"),
            "a process that settled there was killed,".to_owned(),
            "and with it what the disk answered:".to_owned(),
        ]
    } else {
        vec![format!(
            "{mount} ({device}) failed with {} (errno {}):",
            shown(&error.name),
            error.errno
        )]
    };
    let rest = vec![
        "data written there during the run may be lost;".to_owned(),
        "settling again will not bring it back".to_owned(),
    ];
    [first, rest].concat()
}

fn is_never(report: &RunReport) -> bool {
    report.never_settled == Some(true)
}

fn never(report: &RunReport) -> Vec<String> {
    if !is_never(report) || report.skipped == 0 {
        return Vec::new();
    }
    vec![
        "nothing was settled:".to_owned(),
        "a power cut may take or tear any of it".to_owned(),
    ]
}

fn saved(report: &RunReport) -> Vec<String> {
    let (Some(saved_s), Some(from_s), Some(to_s), Some(each_s)) = (
        report.saved_s_estimate,
        report.saved_s_from,
        report.saved_s_to,
        report.saved_s_each,
    ) else {
        return how_to_know_what_was_saved(report);
    };
    let basis = report.saved_basis.as_deref().unwrap_or_default();
    let about = if saved_s > 0.0 {
        format!("about {} saved", seconds(saved_s))
    } else {
        "no time was saved".to_owned()
    };
    let range = if to_s > 0.0 {
        format!(" ({} to {})", seconds(from_s), seconds(to_s))
    } else {
        String::new()
    };
    vec![
        format!("{about}{range}:"),
        format!("each would have cost {},", seconds(each_s)),
        format!("the median of {}", shown(basis)),
    ]
}

fn how_to_know_what_was_saved(report: &RunReport) -> Vec<String> {
    let filesystems = report.filesystems.iter();
    let most = filesystems.max_by_key(|fs| requests_known(fs));
    let is_worth_it = report.skipped >= SAVED_MIN && report.error.is_none();
    let Some(most) = most.filter(|most| is_worth_it && requests_known(most) > 0) else {
        return Vec::new();
    };
    let mount = shown(&most.mount);
    let probe = if report.not_writable.contains(&most.mount) {
        format!("`synclater probe` of a folder of yours on {mount} measures what one costs,")
    } else {
        format!("`synclater probe {mount}` measures what one costs there,")
    };
    vec![
        "time saved: not known.".to_owned(),
        probe,
        "`synclater run -u now` what all of them do".to_owned(),
    ]
}

/// The requests of a file system, 0 where they are not known.
fn requests_known(filesystem: &RunFilesystem) -> u64 {
    filesystem.requests.unwrap_or(0)
}

/// A bound. Where the dial is nearly all of it, a settle would make another minute of an hour.
pub(super) fn bound_words(dial: &str, bound_s: f64) -> String {
    let settle_s = match dial.parse() {
        Ok(Until::Within(t)) => bound_s - t.as_secs_f64(),
        _ => bound_s,
    };
    // Binary fractions do not add up.
    if settle_s <= 4.0 * f64::EPSILON * bound_s {
        format!("{} + settle time, of which none was measured", shown(dial))
    } else if settle_s < 0.01 * bound_s && bound_s >= 119.0 {
        format!("{} and {}", shown(dial), seconds_up(settle_s))
    } else {
        seconds_up(bound_s)
    }
}

fn bound(report: &RunReport) -> Vec<String> {
    let mut clauses = Vec::new();
    if let Some(bound_s) = report.bound_s {
        let dial = report.rules_until.as_ref().unwrap_or(&report.until);
        let bound = bound_words(dial, bound_s);
        let of_what = match dial.parse() {
            // What settling takes is the rest.
            Ok(Until::Within(t)) if bound_s > 2.0 * t.as_secs_f64() => {
                "twice the settle time".into()
            }
            _ => format!("{} + settle time", shown(dial)),
        };
        clauses.push(if bound.contains("settle time") {
            format!("bound {bound}")
        } else {
            format!("bound {bound} ({of_what})")
        });
    }
    if let Some(oldest_s) = report.oldest_s {
        push_after(
            &mut clauses,
            ",",
            format!("oldest request settled after {}", seconds_up(oldest_s)),
        );
    }
    if report.bound_s.is_some() {
        push_after(
            &mut clauses,
            ";",
            "it bounds when, not in which order".to_owned(),
        );
    }
    clauses
}

fn push_after(clauses: &mut Vec<String>, mark: &str, clause: String) {
    if let Some(last) = clauses.last_mut() {
        last.push_str(mark);
    }
    clauses.push(clause);
}

fn kept_real(report: &RunReport) -> Vec<String> {
    // Where all were real at the dial `now`, the first line has said it.
    let says_nothing = report.kept_real.is_empty() && (report.real == 0 || report.skipped == 0);
    if says_nothing || is_too_short(report) {
        return Vec::new();
    }
    let mut clauses = vec![format!("{} kept real", counted(report.real, "request"))];
    for (place, (reason, number)) in report.kept_real.iter().enumerate() {
        let mark = if place == 0 { ":" } else { "," };
        let why = if *number == report.real {
            shown(reason)
        } else {
            format!("{} ({})", shown(reason), count(*number))
        };
        push_after(&mut clauses, mark, why);
    }
    clauses
}

fn aside(report: &RunReport) -> Vec<String> {
    let mut clauses = Vec::new();
    if let Some(failed) = report.failed.filter(|&number| number > 0) {
        clauses.push(format!(
            "{} answered with an error",
            counted(failed, "request")
        ));
    }
    if let Some(hints) = report.hints.filter(|&number| number > 0) {
        let hints = format!("{} of sync_file_range apart", counted(hints, "hint"));
        push_after(&mut clauses, ";", hints);
    }
    clauses
}

fn recorded(report: &RunReport) -> Vec<String> {
    let (Some(file), Some(number)) = (&report.recording, report.recorded) else {
        return Vec::new();
    };
    let mut clauses = vec![format!(
        "{} recorded in {}",
        counted(number, "request"),
        shown(file)
    )];
    if let Some(lost) = report.recording_lost.filter(|&number| number > 0) {
        let lost = format!("{} NOT recorded: a ring was full (--ring)", count(lost));
        push_after(&mut clauses, ";", lost);
    }
    clauses
}

fn escaped(report: &RunReport) -> String {
    let mut text = told(&report.escaped, MARGIN);
    for remedy in remedies(&report.escaped, &report.ways) {
        text.push_str(&wrapped(MARGIN, remedy));
    }
    if let Some(why) = &report.escapes_unknown {
        let unknown = format!("what else escaped cannot be known: {}", shown(why));
        text.push_str(&wrapped(MARGIN, &unknown));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::escape::{Escape, CLEARED_ENVIRONMENT, STATIC_PROGRAM};
    use super::super::run::RunFilesystem;
    use super::*;
    use synclater_text::layout::{width, COLUMNS};

    fn report(until: &str) -> RunReport {
        let command = ["apt-get".to_owned(), "install".to_owned()];
        let mut report = RunReport::new("kelp", &command, until);
        report.requests = 4_813;
        report.skipped = 4_813;
        report.settled = 4_813;
        report.settle_s = Some(0.21);
        let filesystem = |mount: &str| RunFilesystem {
            mount: mount.into(),
            fstype: "ext4".into(),
            device: "/dev/sda2".into(),
            requests: None,
        };
        report.filesystems = ["/", "/srv", "/home"].map(filesystem).to_vec();
        report
    }

    fn error() -> SettleError {
        SettleError {
            mount: "/srv".into(),
            device: "/dev/sdb1".into(),
            errno: 5,
            name: "EIO".into(),
        }
    }

    #[test]
    fn a_run_that_was_settled_is_durable() {
        let mut report = report("exit");
        saves(&mut report, 30.8, "`synclater probe /`, 12 min ago");
        let want = "\
synclater: 4,813 sync requests in 3 file systems answered at once,
           settled in 0.21 s; all durable
           about 31 s saved (15 s to 62 s): each would have cost 6.4 ms,
           the median of `synclater probe /`, 12 min ago
";
        assert_eq!(summary(&report), want);
        saves(&mut report, 0.0, "240 real ones of this run");
        let text = summary(&report);
        assert!(text.contains("no time was saved: each"), "{text}");
    }

    fn saves(report: &mut RunReport, about_s: f64, basis: &str) {
        report.saved_s_estimate = Some(about_s);
        report.saved_s_from = Some(about_s / 2.0);
        report.saved_s_to = Some(about_s * 2.0);
        report.saved_s_each = Some(0.0064);
        report.saved_basis = Some(basis.into());
    }

    #[test]
    fn what_is_not_known_to_be_saved_is_said_how_to_measure() {
        let mut report = report("exit");
        report.filesystems[1].requests = Some(4_813);
        let want = "           time saved: not known.
           `synclater probe /srv` measures what one costs there,
           `synclater run -u now` what all of them do
";
        let text = summary(&report);
        assert!(text.ends_with(want), "{text}");
        report.not_writable = vec!["/srv".to_owned()];
        let text = summary(&report);
        assert!(text.contains("of a folder of yours on /srv"), "{text}");
        (report.skipped, report.settled) = (9, 9);
        assert!(!summary(&report).contains("time saved"));
        (report.skipped, report.real) = (0, 4_813);
        assert!(!summary(&report).contains("time saved"));
    }

    #[test]
    fn the_bound_is_that_of_the_longest_dial() {
        let mut report = report("1s");
        (report.bound_s, report.rules_until) = (Some(61.2), Some("1min".into()));
        assert!(
            summary(&report).contains(" (1min + settle time)"),
            "{}",
            summary(&report)
        );
    }

    #[test]
    fn a_settle_that_takes_longer_than_the_dial_is_waited_for_twice() {
        let mut report = report("100ms");
        report.bound_s = Some(0.84);
        let text = summary(&report);
        assert!(
            text.contains("bound 0.84 s (twice the settle time)"),
            "{text}"
        );
    }

    #[test]
    fn never_says_what_a_power_cut_may_do() {
        let mut report = report("never");
        report.never_settled = Some(true);
        report.settled = 0;
        report.settle_s = None;
        let want = "\
synclater: 4,813 sync requests in 3 file systems answered at once, never settled
           nothing was settled: a power cut may take or tear any of it
";
        assert_eq!(summary(&report), want);
    }

    #[test]
    fn rules_that_decided_about_nothing_are_shown_up_to_three() {
        let mut report = report("exit");
        let rule = |k: u32| format!("path=/srv/mail{k}/**");
        report.unmatched_rules = vec![rule(1)];
        let text = summary(&report);
        assert!(
            text.contains("1 rule decided about nothing: path=/srv/mail1/**\n"),
            "{text}"
        );
        report.unmatched_rules = (1..=5).map(rule).collect();
        let text = summary(&report);
        assert!(
            text.contains("5 rules decided about nothing:") && text.contains("2 more"),
            "{text}"
        );
        assert!(!text.contains("mail4"), "{text}");
    }

    #[test]
    fn a_duration_shows_its_bound_and_that_it_is_no_order() {
        let mut report = report("1s");
        report.bound_s = Some(1.21);
        report.oldest_s = Some(1.03);
        let text = summary(&report);
        let want = "           bound 1.3 s (1s + settle time), oldest request settled after 1.1 s;
           it bounds when, not in which order\n";
        assert!(text.ends_with(want), "{text}");
    }

    #[test]
    fn a_recording_is_named_with_what_it_lost() {
        let mut report = report("exit");
        report.recording = Some("a.rec".into());
        report.recorded = Some(4_813);
        assert!(summary(&report).ends_with("           4,813 requests recorded in a.rec\n"));
        report.recording_lost = Some(12);
        let want = "           4,813 requests recorded in a.rec;\n           \
                    12 NOT recorded: a ring was full (--ring)\n";
        assert!(summary(&report).ends_with(want), "{}", summary(&report));
    }

    #[test]
    fn what_failed_to_settle_is_not_durable() {
        let mut report = report("exit");
        report.error = Some(error());
        let want = "\
synclater: 4,813 sync requests in 3 file systems answered at once,
           settling failed; NOT durable
           /srv (/dev/sdb1) failed with EIO (errno 5):
           data written there during the run may be lost;
           settling again will not bring it back
";
        assert_eq!(summary(&report), want);
    }

    #[test]
    fn what_lies_in_memory_is_not_called_durable() {
        let mut report = report("exit");
        report.in_memory = Some(23);
        let text = summary(&report);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            text.contains("all durable, but 23 in memory (tmpfs), which keeps"),
            "{text}"
        );
    }

    #[test]
    fn a_claim_of_durability_needs_all_of_it() {
        let mut left = report("exit");
        left.settled = 4_790;
        assert!(summary(&left).contains("23 of them NOT settled; NOT durable"));
        for requests in [0, 4_813] {
            let mut failed = report("now");
            (failed.requests, failed.skipped, failed.settled) = (requests, 0, 0);
            failed.error = Some(error());
            assert!(summary(&failed).contains("NOT durable"));
            assert!(!summary(&failed).contains("all durable"));
        }
    }

    #[test]
    fn now_is_only_measured() {
        let mut report = report("now");
        (report.skipped, report.settled, report.real) = (0, 0, 4_813);
        report.settle_s = None;
        report.real_s = Some(30.8);
        assert_eq!(
            summary(&report),
            "synclater: 4,813 sync requests, all kept real; 31 s spent in them\n"
        );
    }

    #[test]
    fn a_command_that_was_over_before_the_session_had_begun_is_said_to_gain_nothing() {
        let mut report = report("exit");
        (report.requests, report.skipped, report.settled, report.real) = (4, 0, 0, 4);
        (report.settle_s, report.real_s) = (None, Some(0.033));
        report.kept_real.insert(RunReport::STARTING.into(), 4);
        let want =
            "synclater: too short to gain: 4 syncs ran normally\n           while the session \
                    was starting; 33 ms spent in them\n";
        assert_eq!(summary(&report), want);
        report.kept_real.insert("on a block device".into(), 1);
        report.real = 5;
        assert!(summary(&report).contains("all kept real"));
    }

    #[test]
    fn what_was_kept_real_is_named_with_its_reasons() {
        let mut report = report("exit");
        report.requests += 23;
        report.real = 23;
        report.failed = Some(2);
        report.hints = Some(7);
        report.kept_real.insert("on a block device".into(), 17);
        report
            .kept_real
            .insert("on a network file system".into(), 6);
        let text = summary(&report);
        let want = "
           23 requests kept real: on a block device (17),
           on a network file system (6)
           2 requests answered with an error; 7 hints of sync_file_range apart\n";
        assert!(text.ends_with(want), "{text}");
    }

    #[test]
    fn what_escaped_is_named_with_how_to_reach_it() {
        let mut report = report("exit");
        let escape = |pid, why: &str| Escape {
            pid,
            exe: "/usr/sbin/cron".into(),
            why: why.into(),
            requests: Some(3),
        };
        report.escaped = vec![
            escape(4121, CLEARED_ENVIRONMENT),
            escape(4122, STATIC_PROGRAM),
        ];
        report.escaped.extend((1..9).map(|pid| Escape {
            exe: format!("/usr/bin/c{pid}"),
            ..escape(pid, STATIC_PROGRAM)
        }));
        report.escapes_unknown = Some("140 records of the kernel".into());
        let text = summary(&report);
        assert!(text.contains("escaped: cron (4121), 3 requests kept real: lost the library"));
        assert!(text.contains("escaped: 5 programs more, all of them in --json"));
        let unknown = "           what else escaped cannot be known: 140 records of the kernel\n";
        let text = text.strip_suffix(unknown).expect("that it is not all");
        assert!(text.contains("to keep the library: --follow, or hand on LD_PRELOAD"));
    }

    #[test]
    fn nothing_is_wider_than_a_terminal_nor_steers_it() {
        let mut report = report("exit");
        report.error = Some(SettleError {
            mount: "/\x1b[2J a b".repeat(20),
            ..error()
        });
        report.saved_s_estimate = Some(31.0);
        report.saved_basis = Some("word ".repeat(40));
        report.kept_real = (0..40).map(|n| (format!("for reason {n}"), n)).collect();
        let text = summary(&report);
        assert!(!text.contains('\x1b'));
        for line in text.lines().filter(|line| line.trim_start().contains(' ')) {
            assert!(width(line) <= COLUMNS, "{line}");
        }
    }

    #[test]
    fn no_request_is_no_claim() {
        assert_eq!(
            summary(&RunReport::new("kelp", &[], "exit")),
            "synclater: no sync requests\n"
        );
    }
}
