//! What `top` draws: figures, two graphs, a table, one line of keys.
//!
//! Promise: it fits whatever area there is, says everything without colour, and no name that a
//! victim chose reaches the terminal with a character that steers it.

use super::lines;
use super::typing::Typing;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use synclater_account::ps::by_rules;
use synclater_recording::analysis::live::{By, Point};
use synclater_recording::report::top::{sort, Line, Sort, Top, TopSession};
use synclater_text::layout::{command_line, shown, truncated};
use synclater_text::number::{count, counted, seconds};

/// Below this height the graphs are left out.
const GRAPHS_FROM: u16 = 13;
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

const KEYS: &str = "? help  q quit  tab group  s sort  / filter  space pause  u dial  S settle";
const HELP: [&str; 16] = [
    "q, Ctrl-C        quit",
    "tab, 1 to 5      group by process, file, device, kind, caller",
    "s, left, right   sort by another column, marked by ▼",
    "up, down, page   move through the table",
    "/                show only lines that contain a text; Esc shows all",
    "space            pause, go on",
    "u                change the dial: now, a time such as 1s, exit, never",
    "S                settle: make everything durable that is owed",
    "",
    "REQ/S            requests a second        REAL/S   made for real",
    "TIME             share of all the time that programs waited",
    "P50 P99 MAX      what the real ones took, to 3 %",
    "NEEDLESS         share of the real ones that had nothing to write",
    "debt             requests answered, not yet carried out",
    "escaped          processes that the session does not reach; `synclater ps`",
    "lost             not seen: a ring was full; counted in requests/s",
];

/// Everything that is drawn.
#[derive(Clone, Debug)]
pub struct Screen {
    /// The figures; `None` before the first interval is over.
    pub top: Option<Top>,
    /// The session's own figures, which come apart.
    pub session: Option<TopSession>,
    /// Who is watched where it is no session.
    pub machine: Option<String>,
    /// How it went.
    pub history: Vec<Point>,
    /// Length of an interval of the history, in seconds.
    pub interval_s: f64,
    /// What the table is grouped by.
    pub by: By,
    /// What it is sorted by.
    pub sort: Sort,
    /// Lines must contain it.
    pub filter: String,
    /// Lines that have been scrolled away.
    pub skipped: usize,
    /// What the keyboard is for.
    pub typing: Typing,
    /// What was typed.
    pub input: String,
    /// What the session said.
    pub message: Option<String>,
    /// What is wrong at the moment.
    pub note: Option<String>,
    /// Whether it stands still.
    pub paused: bool,
    /// Whether the keys are explained.
    pub help: bool,
    /// Whether there is to be colour.
    pub colour: bool,
    /// Whether anybody is at the keyboard.
    pub keys: bool,
}

impl Screen {
    /// Nothing known yet.
    #[must_use]
    pub fn new(by: By, interval_s: f64, keys: bool) -> Screen {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Screen {
            top: None,
            session: None,
            machine: None,
            history: Vec::new(),
            interval_s,
            by,
            sort: Sort::Time,
            filter: String::new(),
            skipped: 0,
            typing: Typing::Nothing,
            input: String::new(),
            message: None,
            note: None,
            paused: false,
            help: false,
            colour: keys && !no_colour,
            keys,
        }
    }

    /// The lines of the table, in order, that the filter leaves.
    fn chosen(&self) -> Vec<Line> {
        let all = self.top.iter().flat_map(|top| &top.lines);
        let mut chosen: Vec<Line> = all.filter(|l| l.contains(&self.filter)).cloned().collect();
        sort(&mut chosen, self.sort);
        chosen
    }

    fn warning(&self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colour {
            style.fg(Color::Yellow)
        } else {
            style
        }
    }

    /// The lines above the table.
    fn head(&self, columns: usize, graphs: bool) -> Vec<(String, Style)> {
        let (plain, bold) = (Style::new(), Style::new().add_modifier(Modifier::BOLD));
        let mut head = vec![
            (self.title(columns), bold),
            (clauses(&self.facts(), ", ", columns), plain),
            (self.rates(columns), bold),
            (clauses(&self.times(), "   ", columns), plain),
        ];
        if graphs {
            head.extend(self.graphs(columns).map(|line| (line, plain)));
        }
        let lost = self.top.as_ref().filter(|top| top.lost_per_s > 0.0);
        if let Some(top) = lost {
            let n = lines::rate(top.lost_per_s);
            let line = format!("lost: {n} requests/s are counted but not seen, a ring was full");
            head.push((truncated(&line, columns), self.warning()));
        }
        if let Some(note) = &self.note {
            head.push((truncated(&shown(note), columns), self.warning()));
        }
        head
    }

    fn title(&self, columns: usize) -> String {
        let state = if self.paused { "paused" } else { "" };
        if let Some(whose) = &self.machine {
            let title = format!("this machine  {}", shown(whose));
            return lines::spread(&title, state, columns);
        }
        let Some(s) = &self.session else {
            return lines::spread("synclater top", state, columns);
        };
        let title = format!("{}  {}", shown(&s.session), command_line(&s.command));
        lines::spread(&title, state, columns)
    }

    fn facts(&self) -> Vec<String> {
        if self.machine.is_some() {
            return vec![
                "as the kernel sees them: what a session puts off is not among them".into(),
            ];
        }
        let Some(s) = &self.session else {
            return vec!["the session has not answered yet".into()];
        };
        let by_rules = by_rules(s.rules_until.as_deref());
        let mut facts = vec![format!("until {}{by_rules}", shown(&s.until))];
        facts.push(format!("debt {}", counted(s.debt, "request")));
        facts.extend(s.oldest_s.map(|age| format!("oldest {}", seconds(age))));
        facts.extend(s.lease_left_s.map(|left| {
            if left > 0.0 {
                format!("lease left {}", seconds(left))
            } else {
                "its time is over".into()
            }
        }));
        facts.extend((s.escaped > 0).then(|| format!("{} escaped", count(s.escaped as u64))));
        facts
    }

    fn rates(&self, columns: usize) -> String {
        let Some(top) = &self.top else {
            return truncated("waiting for the first interval to be over", columns);
        };
        let f = &top.figures;
        let rates = [
            format!("{} requests/s", lines::rate(f.requests_per_s)),
            format!("{} real/s", lines::rate(f.real_per_s)),
            format!("{} skipped/s", lines::rate(f.skipped_per_s)),
        ];
        let span = format!("last {}", seconds(top.seconds));
        lines::spread(&rates.join("   "), &span, columns)
    }

    fn times(&self) -> Vec<String> {
        let Some(top) = &self.top else {
            return Vec::new();
        };
        let f = &top.figures;
        let (Some(p50), Some(p99), Some(max)) = (f.p50_s, f.p99_s, f.max_s) else {
            return vec!["no real one has ended yet".into()];
        };
        vec![
            format!("real ones: p50 {}", seconds(p50)),
            format!("p99 {}", seconds(p99)),
            format!("max {}", seconds(max)),
        ]
    }

    /// Requests and 99th percentile, the last of each at the right.
    fn graphs(&self, columns: usize) -> [String; 2] {
        let room = columns.saturating_sub(WORDS);
        let shown = &self.history[self.history.len().saturating_sub(room)..];
        let per_second: Vec<f64> = shown
            .iter()
            .map(|p| p.requests as f64 / self.interval_s)
            .collect();
        let p99: Vec<f64> = shown
            .iter()
            .map(|p| p.p99_ns.map_or(0.0, |ns| ns as f64 / 1e9))
            .collect();
        [
            line("requests", &per_second, columns, |r| {
                format!("{}/s", lines::rate(r))
            }),
            line("p99", &p99, columns, seconds),
        ]
    }

    fn grouping(&self, columns: usize, chosen: usize) -> String {
        let names = By::ALL.map(|by| {
            if by == self.by {
                format!("[{}]", by.name())
            } else {
                format!(" {} ", by.name())
            }
        });
        let all = self.top.as_ref().map_or(0, |top| top.lines.len());
        let filter = if self.filter.is_empty() {
            String::new()
        } else {
            let text = truncated(&shown(&self.filter), columns / 4);
            format!("filter: {text} ({chosen} of {all})")
        };
        lines::spread(&format!("by {}", names.concat()), &filter, columns)
    }

    fn last_line(&self) -> (String, Style) {
        let prompt = match self.typing {
            Typing::Filter => format!("filter: {}_", shown(&self.input)),
            Typing::Dial => {
                format!("until (now, a time, exit, never): {}_", shown(&self.input))
            }
            Typing::Settle => "settle everything that is owed? y, or any other key".into(),
            Typing::Nothing => match &self.message {
                Some(message) => shown(message),
                None => return (KEYS.into(), Style::new().add_modifier(Modifier::DIM)),
            },
        };
        (prompt, Style::new().add_modifier(Modifier::BOLD))
    }

    /// The whole screen as lines, at most so many.
    fn lines(&self, columns: usize, rows: usize) -> Vec<(String, Style)> {
        let graphs = rows >= GRAPHS_FROM.into() && self.history.len() > 1;
        let mut all = self.head(columns, graphs);
        let keys = usize::from(self.keys);
        if self.help {
            all.truncate(1);
            all.extend(HELP.map(|line| (truncated(line, columns), Style::new())));
        } else {
            let chosen = self.chosen();
            all.push((self.grouping(columns, chosen.len()), Style::new()));
            let layout = lines::Layout::of(columns, &chosen);
            let head = Style::new().add_modifier(Modifier::REVERSED);
            all.push((layout.head(self.by, self.sort), head));
            let room = rows.saturating_sub(all.len() + keys);
            all.extend(self.table(&layout, &chosen, room));
        }
        all.truncate(rows.saturating_sub(keys));
        if self.keys && rows > 0 {
            all.resize(rows - 1, (String::new(), Style::new()));
            let (text, style) = self.last_line();
            all.push((lines::cut_in_front(&text, columns, self.typing), style));
        }
        all
    }

    fn table(&self, layout: &lines::Layout, chosen: &[Line], room: usize) -> Vec<(String, Style)> {
        let others = self.top.as_ref().and_then(|top| top.others.as_ref());
        let others = others.filter(|_| self.filter.is_empty());
        let room = room.saturating_sub(others.iter().count());
        let skipped = self.skipped.min(chosen.len().saturating_sub(room.max(1)));
        let some = chosen.iter().skip(skipped).take(room);
        let mut table: Vec<String> = some
            .map(|line| layout.line(&lines::name(line, self.by), self.by, &line.figures))
            .collect();
        table.extend(others.map(|f| layout.line("(others)", By::Kind, f)));
        table.into_iter().map(|line| (line, Style::new())).collect()
    }
}

/// Draws the screen.
pub fn draw(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let (columns, rows) = (usize::from(area.width), usize::from(area.height));
    for (y, (text, style)) in (area.y..area.bottom()).zip(screen.lines(columns, rows)) {
        let text = format!("{text:columns$}");
        buffer.set_stringn(area.x, y, text, columns, style);
    }
}

/// The screen as text, at most so many lines.
#[must_use]
pub fn text(screen: &Screen, columns: usize, rows: usize) -> String {
    let lines = screen.lines(columns, rows);
    let lines = lines
        .iter()
        .map(|(line, _)| format!("{}\n", line.trim_end()));
    lines.collect()
}

/// Columns beside a graph: its name, and what is highest.
const WORDS: usize = 24;

/// A graph with its name. What is highest is said at the end, so that it has a scale.
fn line(name: &str, values: &[f64], columns: usize, most: fn(f64) -> String) -> String {
    let highest = values.iter().copied().fold(0.0, f64::max);
    let (graph, most) = (graph(values, highest), most(highest));
    let room = columns.saturating_sub(WORDS);
    truncated(&format!("{name:<10}{graph:>room$} ≤ {most}"), columns)
}

/// As many of the clauses as there is room for.
fn clauses(clauses: &[String], between: &str, columns: usize) -> String {
    truncated(&clauses.join(between), columns)
}

/// A column for each value; the highest fills its column.
fn graph(values: &[f64], highest: f64) -> String {
    values.iter().map(|v| block(*v, highest)).collect()
}

fn block(value: f64, highest: f64) -> char {
    // 0 / 0 is no number, and becomes 0.
    BLOCKS[((value / highest * 8.0).ceil() as usize).min(8)]
}

#[cfg(test)]
mod tests;
