//! The report as text for a terminal of 80 columns.
//!
//! Names come from whoever was recorded: each is shown without control characters.

use super::picture::{heat, histogram};
use super::{GroupRow, LostBy, RecordingReport};
use crate::analysis::stats::seconds as of_ns;
use std::fmt::Write as _;
use synclater_account::escape::told;
use synclater_text::layout::{
    columns, command_line, padded, shown, truncated, width, wrapped, COLUMNS,
};
use synclater_text::number::{bytes, count, counted, seconds, Unit};

/// What requests are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The file.
    File,
    /// The process.
    Process,
    /// The program and role: all its processes together.
    Program,
    /// The call or flag.
    Kind,
    /// The file system.
    Filesystem,
    /// The device.
    Device,
    /// The code that asked.
    Caller,
}

/// What is to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Tables, in this order; without any, those that tell most.
    pub by: Vec<By>,
    /// The most lines of each.
    pub top: usize,
}

impl View {
    fn tables(&self, report: &RecordingReport) -> Vec<By> {
        if !self.by.is_empty() {
            return self.by.clone();
        }
        let mut tables = vec![By::Process, By::Kind, By::File, By::Device];
        // Many processes of one program say less than the program.
        if report.by_program_total < report.by_process_total {
            tables.insert(0, By::Program);
        }
        tables
    }
}

impl By {
    /// All, by name.
    pub const ALL: [(&'static str, By); 7] = [
        ("file", By::File),
        ("process", By::Process),
        ("program", By::Program),
        ("kind", By::Kind),
        ("filesystem", By::Filesystem),
        ("device", By::Device),
        ("caller", By::Caller),
    ];

    /// One and many.
    fn nouns(self) -> (&'static str, &'static str) {
        match self {
            By::File => ("file", "files"),
            By::Process => ("process", "processes"),
            By::Program => ("program", "programs"),
            By::Kind => ("kind", "kinds"),
            By::Filesystem => ("file system", "file systems"),
            By::Device => ("device", "devices"),
            By::Caller => ("caller", "callers"),
        }
    }

    fn rows(self, report: &RecordingReport) -> (&[GroupRow], usize) {
        match self {
            By::File => (&report.by_file, report.by_file_total),
            By::Process => (&report.by_process, report.by_process_total),
            By::Program => (&report.by_program, report.by_program_total),
            By::Kind => (&report.by_kind, report.by_kind_total),
            By::Filesystem => (&report.by_filesystem, report.by_filesystem_total),
            By::Device => (&report.by_device, report.by_device_total),
            By::Caller => (&report.by_caller, report.by_caller_total),
        }
    }

    /// A group's name, with what tells it from others of the same name.
    fn name(self, row: &GroupRow) -> String {
        let name = shown(&row.name);
        match self {
            By::Process => match row.pid {
                Some(pid) => format!("{name} ({pid})"),
                None => name,
            },
            By::Filesystem => match &row.fstype {
                Some(fstype) => format!("{name} ({})", shown(fstype)),
                None => name,
            },
            By::Device => match &row.parents {
                Some(parents) => format!("{name} ({})", shown(parents)),
                None => name,
            },
            _ => name,
        }
    }
}

/// Seconds with one digit after the point, for sentences that compare two of them.
fn plain_seconds(s: f64) -> String {
    if s >= 1.0 {
        format!("{s:.1}")
    } else {
        format!("{s:.3}")
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 1.0 {
        "<1 %".to_owned()
    } else {
        format!("{percent:.0} %")
    }
}

/// How much was lost of one process.
fn lost_by(l: &LostBy) -> String {
    let exe = l.exe.as_deref().unwrap_or("a process");
    let pid = l.pid.map_or(String::new(), |pid| format!(" ({pid})"));
    format!("{} of {}{pid}", count(l.lost), shown(exe))
}

/// The units of total, p50, p99 and longest in a table of these rows.
fn units(rows: &[GroupRow]) -> [Unit; 4] {
    [
        Unit::of(rows.iter().filter_map(|row| row.sync_s)),
        unit(rows, |row| row.p50_ns),
        unit(rows, |row| row.p99_ns),
        unit(rows, |row| row.max_ns),
    ]
}

fn unit(rows: &[GroupRow], ns: fn(&GroupRow) -> Option<u64>) -> Unit {
    Unit::of(rows.iter().filter_map(ns).map(of_ns))
}

/// A field of a table, where its time is known.
fn field(unit: Unit, time_s: Option<f64>) -> String {
    time_s.map_or("-".to_owned(), |s| unit.show(s))
}

/// The field of real requests, in a table that has it.
fn field_of_real(text: &str, has_it: bool) -> String {
    if has_it {
        format!("{text:>9}")
    } else {
        String::new()
    }
}

fn time(ns: u64) -> String {
    seconds(of_ns(ns))
}

fn time_or_dash(ns: Option<u64>) -> String {
    ns.map_or("-".to_owned(), time)
}

impl RecordingReport {
    /// As text for a terminal.
    #[must_use]
    pub fn render(&self, view: &View) -> String {
        let mut out = String::new();
        self.head(&mut out);
        out.push_str(&self.headline());
        self.escapes(&mut out);
        if self.requests > 0 {
            for by in view.tables(self) {
                self.table(&mut out, by, view.top);
            }
        }
        self.pictures(&mut out);
        self.needless_and_hints(&mut out);
        self.together(&mut out, view.top);
        self.dials(&mut out);
        self.limits_and_settings(&mut out);
        self.settles_and_io(&mut out, view.top);
        out
    }

    fn head(&self, out: &mut String) {
        let r = &self.recording;
        let mut about = shown(&r.file);
        if !r.host.is_empty() {
            let _ = write!(about, ": {}", shown(&r.host));
        }
        if !r.started.is_empty() {
            let _ = write!(about, ", {}", shown(&r.started));
        }
        if !r.kernel.is_empty() {
            let _ = write!(about, ", Linux {}", shown(&r.kernel));
        }
        if !r.until.is_empty() {
            let _ = write!(about, ", dial {}", shown(&r.until));
        }
        out.push_str(&wrapped("", &about));
        if !r.command.is_empty() {
            let line = truncated(&command_line(&r.command), columns());
            let _ = writeln!(out, "{line}");
        } else if !r.whose.is_empty() {
            let _ = writeln!(out, "{}", truncated(&shown(&r.whose), columns()));
        } else if r.engine == "kernel" {
            out.push_str("the whole machine\n");
        }
        if let Some(missing) = &r.missing {
            let words = format!("not whole: {}", shown(missing));
            out.push_str(&wrapped("synclater: ", &words));
        }
        if self.lost > 0 {
            let by = self.lost_by_process.iter().take(3).map(lost_by);
            let by = by.collect::<Vec<_>>().join(", ");
            let words =
                format!(
                "{} were made but not recorded, since a ring was full: {by}; every figure below \
                 lacks them",
                counted(self.lost, if self.io.is_empty() { "request" } else { "call" })
            );
            out.push_str(&wrapped("synclater: ", &words));
        }
        out.push('\n');
    }

    /// The one sentence.
    fn headline(&self) -> String {
        if self.requests == 0 {
            let hints = match self.hints {
                0 => String::new(),
                n => format!(" ({}, which keep nothing)", counted(n, "write-back hint")),
            };
            return wrapped("", &format!("{}{hints}.", self.nothing()));
        }
        let mut words = String::new();
        match (self.waiting_s, self.wall_s) {
            (Some(waiting), Some(wall)) if self.real > 0 => {
                let share = percent(self.waiting_share.unwrap_or(0.0));
                let _ = if wall >= 1.0 && waiting >= 0.01 {
                    let (waiting, wall) = (plain_seconds(waiting), plain_seconds(wall));
                    write!(
                        words,
                        "{waiting} of {wall} s were spent in syncs ({share})."
                    )
                } else {
                    let (waiting, wall) = (seconds(waiting), seconds(wall));
                    write!(words, "{waiting} of {wall} were spent in syncs ({share}).")
                };
            }
            _ if self.real > 0 => words.push_str("How long syncs took is not known."),
            _ => words.push_str("Nobody waited for a sync: none was made for real."),
        }
        let _ = write!(words, " {}", counted(self.requests, "request"));
        if self.real < self.requests {
            let _ = write!(words, ", {} made for real", count(self.real));
        }
        if self.failed > 0 {
            let _ = write!(words, ", {} failed", count(self.failed));
        }
        words.push('.');
        let at_once = self.sync_s.unwrap_or(0.0) / self.waiting_s.unwrap_or(f64::INFINITY);
        if at_once > 1.05 {
            let _ = write!(
                words,
                " Several threads waited at once: {} in all, {at_once:.1} threads on the average.",
                seconds(self.sync_s.unwrap_or(0.0))
            );
        }
        if self.untimed > 0 {
            let _ = write!(
                words,
                " The end of {} was not seen; they are in no time below.",
                counted(self.untimed, "request")
            );
        }
        wrapped("", &words)
    }

    /// What is said where no request is in it.
    fn nothing(&self) -> &'static str {
        match (&self.recording.missing, self.escaped.is_empty()) {
            (_, false) => "No sync request could be recorded: whoever made some escaped",
            (Some(_), _) => "No sync request is in what there is of it",
            (None, _) if self.escapes_unknown.is_some() => "No sync request was seen",
            (None, _) => "No sync request was recorded",
        }
    }

    /// Who is missing in it.
    fn escapes(&self, out: &mut String) {
        out.push_str(&told(&self.escaped, "  "));
        if let Some(why) = &self.escapes_unknown {
            let words = format!("What else escaped cannot be known: {}.", shown(why));
            out.push_str(&wrapped("", &words));
        }
    }

    fn table(&self, out: &mut String, by: By, top: usize) {
        let (rows, total) = by.rows(self);
        if rows.is_empty() {
            return;
        }
        let relaxed = self.real < self.requests;
        let figures = if relaxed { 61 } else { 52 };
        let longest = rows.iter().take(top).map(|row| width(&by.name(row))).max();
        // What is wider than the longest name keeps the figures from their names.
        let room = longest
            .unwrap_or(0)
            .clamp(COLUMNS - figures, (columns().max(COLUMNS)) - figures);
        let (one, many) = by.nouns();
        let [total_in, p50_in, p99_in, max_in] = units(&rows[..rows.len().min(top)]);
        let _ = writeln!(
            out,
            "\n{:<room$}{:>10}{}{:>10}{:>6}{:>9}{:>9}{:>8}",
            format!("by {one}"),
            "requests",
            field_of_real("real", relaxed),
            format!("total {}", total_in.name),
            "share",
            format!("p50 {}", p50_in.name),
            format!("p99 {}", p99_in.name),
            format!("max {}", max_in.name)
        );
        for row in rows.iter().take(top) {
            let mut name = by.name(row);
            if width(&name) > room {
                let _ = writeln!(out, "{}", tail(&name, columns()));
                name.clear();
            }
            let line = format!(
                "{}{:>10}{}{:>10}{:>6}{:>9}{:>9}{:>8}",
                padded(&name, room),
                count(row.requests),
                field_of_real(&count(row.real), relaxed),
                field(total_in, row.sync_s),
                row.share.map_or("-".to_owned(), percent),
                field(p50_in, row.p50_ns.map(of_ns)),
                field(p99_in, row.p99_ns.map(of_ns)),
                field(max_in, row.max_ns.map(of_ns))
            );
            let _ = writeln!(out, "{line}");
        }
        let more = total - rows.len().min(top).min(total);
        if more > 0 {
            let noun = if more == 1 { one } else { many };
            let _ = writeln!(out, "… and {} more {noun}", count(more as u64));
        }
    }

    fn pictures(&self, out: &mut String) {
        let Some(q) = &self.quantiles else { return };
        let line = format!(
            "How long a sync took: p50 {}, p90 {}, p99 {}, p99.9 {}, longest {}",
            time(q.p50_ns),
            time(q.p90_ns),
            time(q.p99_ns),
            time(q.p999_ns),
            time(q.max_ns)
        );
        let _ = write!(out, "\n{}", wrapped("", &line));
        out.push_str(&histogram(&self.histogram));
        match &self.modes_sentence {
            Some(sentence) => {
                let words = format!("Syncs here have {} speeds: {sentence}.", self.modes.len());
                out.push_str(&wrapped("", &words));
            }
            None => out.push_str("Syncs here have one speed.\n"),
        }
        if self.heatmap.columns > 1 {
            out.push_str("\nWhen, and how long (darker: more of them)\n");
            out.push_str(&heat(&self.heatmap));
        }
    }

    fn needless_and_hints(&self, out: &mut String) {
        if let Some(needless) = self.needless {
            let share = needless as f64 / self.needless_known_of.max(1) as f64;
            let words = format!(
                "Needless: {} of the {} real requests of which it is known ({}) found nothing to \
                 make durable.",
                count(needless),
                count(self.needless_known_of),
                percent(share)
            );
            let _ = write!(out, "\n{}", wrapped("", &words));
        }
        if self.hints > 0 && self.requests > 0 {
            let words = format!(
                "Apart from these: {} (sync_file_range), which start write-back and make nothing \
                 durable.",
                counted(self.hints, "hint")
            );
            let _ = write!(out, "\n{}", wrapped("", &words));
        }
    }

    fn together(&self, out: &mut String, top: usize) {
        if self.together.is_empty() {
            return;
        }
        out.push_str("\nRequests that come together\n");
        for row in self.together.iter().take(top) {
            out.push_str(&wrapped("  ", &(shown(&row.sentence) + ".")));
        }
    }

    fn dials(&self, out: &mut String) {
        if self.real == 0 || self.dials.iter().all(|d| d.saved_s.is_none()) {
            return;
        }
        out.push_str("\nWhat each dial (--until) would save, at most, and what it puts at stake\n");
        for dial in &self.dials {
            let name = format!("  {:<6}", dial.until);
            let saved = dial.saved_s.map_or("-".to_owned(), seconds);
            let words = format!("{saved}. {}", dial.at_stake);
            out.push_str(&wrapped(&name, &words));
        }
    }

    fn limits_and_settings(&self, out: &mut String) {
        if !self.thresholds.is_empty() {
            out.push_str("\nLimits\n");
        }
        for t in &self.thresholds {
            let lead = if t.ok { "  kept:   " } else { "  broken: " };
            out.push_str(&wrapped(
                lead,
                &format!("{}. Source: {}", t.sentence, t.source),
            ));
        }
        if !self.settings.is_empty() {
            out.push_str("\nThe programs' own settings, which know what they give up\n");
        }
        for s in &self.settings {
            let words = format!(
                "{}: {}: {}. Risk: {}. {}",
                s.program, s.setting, s.values, s.risk, s.source
            );
            out.push_str(&wrapped("  ", &words));
        }
    }

    fn settles_and_io(&self, out: &mut String, top: usize) {
        if !self.settles.is_empty() {
            out.push_str("\nSettles\n");
        }
        for row in self.settles.iter().take(top) {
            let mut words = format!("{}: {}", shown(&row.mount), counted(row.n, "settle"));
            if let (Some(sum), Some(max)) = (row.sync_s, row.max_ns) {
                let max = time(max);
                let _ = write!(words, ", {} in all, the longest {max}", seconds(sum));
            }
            if row.failed > 0 {
                let _ = write!(words, "; {} failed", count(row.failed));
            }
            out.push_str(&wrapped("  ", &words));
        }
        if !self.io.is_empty() {
            let from = match self.recording.slower_ns.map(time) {
                Some(slow) => {
                    format!(" (slow: {slow} or more; times of the others are upper bounds)")
                }
                None => String::new(),
            };
            let _ = writeln!(out, "\nOther calls{from}");
        }
        for row in self.io.iter().take(top) {
            let mut words = format!(
                "{}: {}, p50 {}, p99 {}, longest {}",
                shown(&row.name),
                count(row.requests),
                time_or_dash(row.p50_ns),
                time_or_dash(row.p99_ns),
                time_or_dash(row.max_ns)
            );
            if let Some(n) = row.bytes {
                let _ = write!(words, ", {}", bytes(n));
            }
            out.push_str(&wrapped("  ", &words));
        }
    }
}

/// The end of a text, which tells a path's file; the first character is `…` where it was cut.
fn tail(text: &str, columns: usize) -> String {
    let n = width(text);
    if n <= columns {
        return text.to_owned();
    }
    let kept: String = text.chars().skip(n - columns + 1).collect();
    format!("…{kept}")
}
