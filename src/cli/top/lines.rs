//! Lines of `top`'s table: which columns there is room for, and what stands in them.

use super::typing::Typing;
use synclater_recording::analysis::live::By;
use synclater_recording::report::top::{Figures, Line, Sort};
use synclater_text::layout::{padded, shown, truncated, width};
use synclater_text::number::{count, Unit};

/// Columns of the table behind the name: what it is, its title, its width, and how soon it is left
/// out where there is no room.
const COLUMNS: [(Sort, &str, usize, u8); 7] = [
    (Sort::Requests, "REQ/S", 10, 0),
    (Sort::Real, "REAL/S", 8, 1),
    (Sort::Time, "TIME", 6, 2),
    (Sort::P50, "P50", 8, 5),
    (Sort::P99, "P99", 8, 3),
    (Sort::Max, "MAX", 8, 4),
    (Sort::Needless, "NEEDLESS", 10, 6),
];
/// A name has at least so much room before a column is left out.
const NAME_MIN: usize = 20;

/// The columns that there is room for.
pub struct Layout {
    name: usize,
    columns: Vec<(Sort, &'static str, usize)>,
    /// Of each column of times.
    units: [Unit; 3],
}

/// The columns of times.
const TIMES: [Sort; 3] = [Sort::P50, Sort::P99, Sort::Max];

/// The time in a column of times.
fn time_in(what: Sort, f: &Figures) -> Option<f64> {
    match what {
        Sort::P50 => f.p50_s,
        Sort::P99 => f.p99_s,
        Sort::Max => f.max_s,
        _ => None,
    }
}

impl Layout {
    /// For a table of a width, with these lines.
    #[must_use]
    pub fn of(columns: usize, lines: &[Line]) -> Layout {
        let mut kept = COLUMNS.to_vec();
        while taken_by(&kept) + NAME_MIN > columns && !kept.is_empty() {
            let least = kept.iter().map(|c| c.3).max().unwrap_or(0);
            kept.retain(|c| c.3 != least);
        }
        Layout {
            name: columns - taken_by(&kept),
            columns: kept.into_iter().map(|c| (c.0, c.1, c.2)).collect(),
            units: TIMES
                .map(|what| Unit::of(lines.iter().filter_map(|l| time_in(what, &l.figures)))),
        }
    }

    fn unit(&self, what: Sort) -> Option<Unit> {
        let at = TIMES.iter().position(|time| *time == what)?;
        Some(self.units[at])
    }

    fn value(&self, what: Sort, f: &Figures) -> String {
        match self.unit(what) {
            Some(unit) => time_in(what, f).map_or("-".into(), |s| unit.show(s)),
            None => value(what, f),
        }
    }

    /// The titles; what it is sorted by is marked.
    #[must_use]
    pub fn head(&self, by: By, sort: Sort) -> String {
        let name = format!("{}{}", mark(sort == Sort::Name), by.name().to_uppercase());
        let name = truncated(&name, self.name);
        let mut head = padded(&name, self.name);
        for (what, title, columns) in &self.columns {
            let unit = self.unit(*what);
            let unit = unit.map_or(String::new(), |unit| format!(" {}", unit.name));
            let title = format!("{}{title}{unit}", mark(sort == *what));
            head.push_str(&format!("{title:>columns$}"));
        }
        head
    }

    /// A line of the table.
    #[must_use]
    pub fn line(&self, name: &str, by: By, figures: &Figures) -> String {
        let room = self.name.saturating_sub(1);
        let name = match by {
            // The end of a path tells more than its beginning.
            By::File | By::Caller => end_of(name, room),
            _ => truncated(name, room),
        };
        let mut line = padded(&name, self.name);
        for (what, _, columns) in &self.columns {
            let value = truncated(&self.value(*what, figures), columns.saturating_sub(1));
            line.push_str(&format!("{value:>columns$}"));
        }
        line
    }
}

/// The room that these columns take.
fn taken_by(columns: &[(Sort, &str, usize, u8)]) -> usize {
    columns.iter().map(|c| c.2).sum()
}

/// What stands before the title of a column.
fn mark(is_sorted_by: bool) -> &'static str {
    if is_sorted_by {
        "▼"
    } else {
        ""
    }
}

fn value(what: Sort, f: &Figures) -> String {
    let value = match what {
        Sort::Requests => Some(rate(f.requests_per_s)),
        Sort::Real => Some(rate(f.real_per_s)),
        Sort::Time => f.time_share.map(percent),
        Sort::Needless => f.needless_share.map(percent),
        Sort::P50 | Sort::P99 | Sort::Max | Sort::Name => None,
    };
    value.unwrap_or_else(|| "-".into())
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// What is shown of a member of a grouping.
#[must_use]
pub fn name(line: &Line, by: By) -> String {
    let text = match by {
        By::Process => {
            let pid = line.pid.map_or("?".into(), |pid| pid.to_string());
            return format!("{pid} {}", shown(&without_folders(line)));
        }
        By::Device if !line.detail.is_empty() => format!("{} ({})", line.name, line.detail),
        _ => line.name.clone(),
    };
    match (text.is_empty(), by) {
        (false, _) => shown(&text),
        (true, By::File) => "(no file)".into(),
        (true, _) => "(not known)".into(),
    }
}

/// A command line, or an executable, without the folders of its first word.
fn without_folders(line: &Line) -> String {
    let text = if line.detail.is_empty() {
        (line.name.as_str(), "")
    } else {
        line.detail.split_once(' ').unwrap_or((&line.detail, ""))
    };
    let base = text.0.rsplit('/').next().unwrap_or_default();
    format!("{base} {}", text.1).trim_end().to_owned()
}

/// A number of things a second: a fraction where there are few.
#[must_use]
pub fn rate(per_s: f64) -> String {
    match per_s {
        r if r <= 0.0 => "0".into(),
        r if r < 9.95 => format!("{:.1}", r.max(0.1)),
        r => count(r.round() as u64),
    }
}

/// Two texts, one at each end of a line; the second stays whole.
#[must_use]
pub fn spread(left: &str, right: &str, columns: usize) -> String {
    let right = truncated(right, columns);
    let room = columns.saturating_sub(width(&right) + usize::from(!right.is_empty()));
    let left = truncated(left, room);
    let gap = columns.saturating_sub(width(&left) + width(&right));
    format!("{left}{:gap$}{right}", "")
}

/// The end of a text, with a mark where something was cut off in front.
fn end_of(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let ends = text.char_indices().map(|(at, _)| &text[at..]);
    let end = ends.skip(1).find(|end| width(end) < columns);
    truncated(&format!("…{}", end.unwrap_or_default()), columns)
}

/// A line that fits: of what is being typed the end stays in sight.
#[must_use]
pub fn cut_in_front(text: &str, columns: usize, typing: Typing) -> String {
    match typing {
        Typing::Filter | Typing::Dial => end_of(text, columns),
        Typing::Nothing | Typing::Settle => truncated(text, columns),
    }
}
