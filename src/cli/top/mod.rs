//! `synclater top`: a live view of a session, or of the machine.

mod keys;
mod lines;
mod source;
mod typing;
mod view;

use super::requesters::{Purpose, RequesterFilter};
use super::OURS;
use crate::session::control::{listed, Living};
use crate::voice;
use keys::Act;
use ratatui::crossterm::{event, execute, terminal};
use ratatui::DefaultTerminal;
use rustix::process::Signal;
use source::Watched;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use synclater_bpf::Filter;
use synclater_policy::duration::parse_duration;
use synclater_recording::analysis::live::{By, Live, KEPT};
use synclater_recording::report::top::{Top, TopSession};
use synclater_sys::process;
use synclater_sys::signal;
use synclater_sys::signal::Signals;
use synclater_sys::wait::{self, For};
use synclater_text::layout::{columns, visible};
use synclater_text::message::Trouble;
use view::Screen;

/// Shows what a session, or the machine, asks for at the moment: requests, what they took, and
/// whose they are.
///
/// Nothing needs to have been recorded: the session tells of its requests from now on, as long as
/// this looks. One at a time can watch a session that is not being recorded; another user's cannot
/// be watched. With --system, --pid, --unit, --exe or --device the kernel is asked instead (root):
/// of all processes or of these, in a session or not.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The session, as `synclater ps` names it; needed where there are several.
    session: Option<String>,

    /// Ask the kernel: all processes.
    #[arg(long, conflicts_with = "session")]
    system: bool,

    #[command(flatten)]
    whose: RequesterFilter,

    /// How often the figures change, from 0.2 s to an hour.
    #[arg(long, value_name = "T", default_value = "1s", value_parser = interval)]
    interval: Duration,

    /// What to group by: process, file, device, kind, caller.
    #[arg(long, value_name = "WHAT", default_value = "process")]
    by: By,

    /// Print the figures of one interval as text and end; no terminal is needed.
    #[arg(long)]
    once: bool,

    /// Print JSON, one object a line and interval, until the session ends.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater top
  synclater top kelp --by file
  synclater top --once --interval 10s
  synclater top --system
  synclater top --unit postgresql --by file
  synclater top --json | jq .real_per_s

Keys: ? shows them.";

const NOTHING_CHANGED: &str = "nothing was changed";
const PURPOSE: Purpose = Purpose {
    verb: "watch",
    state: NOTHING_CHANGED,
};
/// Lines of a table that is printed, and of JSON.
const LINES_ONCE: usize = 20;
const LINES_JSON: usize = 100;
/// How long the keyboard and the clock are left alone at most.
const LOOK: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|e| e.to_string())?;
    let fits = (Duration::from_millis(200)..=Duration::from_secs(3600)).contains(&time);
    fits.then_some(time)
        .ok_or_else(|| "not from 200ms to 1h".to_owned())
}

/// Watches until told to end, or until the session ends.
///
/// # Errors
/// A [`Trouble`] where there is no session to watch, or no terminal.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let on_screen = !(args.once || args.json);
    if on_screen && !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
        return Err(Trouble::new(
            "cannot show a live view here",
            "stdin and stdout are not both a terminal",
            "`synclater top --once` or --json; `synclater ps`; `synclater report` of a recording",
            NOTHING_CHANGED,
        )
        .into());
    }
    let _ = super::clear_stale();
    let what = what(args)?;
    // Where we were started from may be unmounted while we look.
    let _ = std::env::set_current_dir("/");
    if !on_screen {
        return print_figures(args, &what.begin(args.interval, false)?);
    }
    // Before there are threads, which would be interrupted.
    let signals = Signals::take()?;
    let watched = what.begin(args.interval, true)?;
    let mut view = View::open(args, watched)?;
    let ended = view.run(&signals);
    drop(view.terminal);
    match ended? {
        Ended::Quit => Ok(0),
        Ended::Over => Ok(over(&view.watched)),
        Ended::Signal(signal) => {
            signal::die_of(signal);
            Ok(OURS)
        }
    }
}

/// What is to be watched.
enum What {
    Session(Living),
    Machine { filter: Filter, whose: String },
}

fn what(args: &Args) -> Result<What, Trouble> {
    if args.session.is_some() && !args.whose.is_everybody() {
        return Err(Trouble::new(
            "cannot watch a session and what the kernel sees",
            "the command line names both",
            "leave one of them out",
            NOTHING_CHANGED,
        ));
    }
    if !args.system && args.whose.is_everybody() {
        return chosen(args.session.as_deref()).map(What::Session);
    }
    Ok(What::Machine {
        filter: args.whose.filter(PURPOSE)?,
        whose: args.whose.words(),
    })
}

impl What {
    fn begin(self, interval: Duration, spanning: bool) -> Result<Watched, Trouble> {
        match self {
            What::Session(session) => Watched::begin(session, interval, spanning),
            What::Machine { filter, whose } => Watched::kernel(&filter, whose, interval, spanning),
        }
    }
}

/// Tells why there are no more figures; the exit status.
fn over(watched: &Watched) -> i32 {
    let (text, status) = match (watched.id(), watched.note()) {
        (Some(id), _) => (format!("session {id} has ended"), 0),
        (None, note) => (
            note.unwrap_or_else(|| "the kernel tells no more".into()),
            OURS,
        ),
    };
    voice::say(&format!("synclater: {text}\n"));
    status
}

/// The session that is meant.
fn chosen(id: Option<&str>) -> Result<Living, Trouble> {
    let mut all = listed()?;
    let names: Vec<&str> = all.iter().map(|s| s.id.as_str()).collect();
    let there = if names.is_empty() {
        "there are none".to_owned()
    } else {
        names.join(", ")
    };
    let at = match id {
        Some(id) => all.iter().position(|s| s.id == id),
        None => (all.len() == 1).then_some(0),
    };
    match at {
        Some(at) => Ok(all.swap_remove(at)),
        None => Err(Trouble::new(
            match id {
                Some(id) => format!("there is no session {}", visible(id)),
                None if all.is_empty() => "there is no session to watch".into(),
                None => "there are several sessions to watch".into(),
            },
            format!("running sessions of this user: {there}"),
            match all.first() {
                Some(first) => format!("synclater top {}", first.id),
                None => "start one with `synclater run`".into(),
            },
            NOTHING_CHANGED,
        )),
    }
}

fn time(ns: i64) -> String {
    let since = Duration::from_nanos(u64::try_from(ns).unwrap_or(0));
    let at = UNIX_EPOCH
        .checked_add(since)
        .unwrap_or(SystemTime::UNIX_EPOCH);
    humantime::format_rfc3339_millis(at).to_string()
}

fn look(live: &Live, by: By, session: Option<TopSession>, lines: usize) -> Option<Top> {
    let at = time(live.closed_until_ns());
    Some(Top::new(live.window(by)?, by, session, at, lines))
}

/// For pipes: each interval as JSON, or one as text.
fn print_figures(args: &Args, watched: &Watched) -> anyhow::Result<i32> {
    loop {
        while !watched.advance() {
            if watched.is_over() {
                return if args.once {
                    Err(too_short(watched).into())
                } else {
                    Ok(over(watched))
                };
            }
            std::thread::sleep(LOOK / 4);
        }
        let session = watched.session().as_ref().map(TopSession::of);
        let live = watched.live();
        let lines = if args.json { LINES_JSON } else { LINES_ONCE };
        let top = look(&live, args.by, session.clone(), lines);
        let interval_s = live.interval_s();
        drop(live);
        let Some(top) = top else {
            continue;
        };
        let text = if args.json {
            top.to_json()
        } else {
            let mut screen = Screen::new(args.by, interval_s, false);
            (screen.top, screen.session, screen.note) = (Some(top), session, watched.note());
            screen.machine = watched.machine().map(str::to_owned);
            view::text(&screen, columns(), usize::MAX)
        };
        if !voice::print_to_reader(&text)? || args.once {
            return Ok(0);
        }
    }
}

fn too_short(watched: &Watched) -> Trouble {
    Trouble::new(
        match watched.id() {
            Some(id) => format!("there are no figures of session {id}"),
            None => "there are no figures of the machine".into(),
        },
        watched
            .note()
            .filter(|_| watched.id().is_none())
            .unwrap_or_else(|| "it ended before one interval was over".into()),
        "record it, from its begin on: synclater record",
        NOTHING_CHANGED,
    )
}

/// The terminal in our hands; given back with its guard. A panic gives it back too.
struct Terminal(DefaultTerminal);

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Why the view has ended.
enum Ended {
    Quit,
    Over,
    Signal(i32),
}

/// The live view.
struct View {
    terminal: Terminal,
    watched: Watched,
    screen: Screen,
    /// What is shown while it stands still.
    frozen: Option<Live>,
}

impl View {
    fn open(args: &Args, watched: Watched) -> anyhow::Result<View> {
        let terminal = ratatui::try_init().map_err(|e| {
            let try_ = "`synclater top --once` needs no terminal";
            Trouble::new(
                "cannot use this terminal",
                e.to_string(),
                try_,
                NOTHING_CHANGED,
            )
        })?;
        let mut screen = Screen::new(args.by, args.interval.as_secs_f64(), true);
        screen.machine = watched.machine().map(str::to_owned);
        Ok(View {
            terminal: Terminal(terminal),
            watched,
            screen,
            frozen: None,
        })
    }

    fn run(&mut self, signals: &Signals) -> anyhow::Result<Ended> {
        let mut changed = true;
        loop {
            if changed {
                self.refresh();
                let screen = &self.screen;
                self.terminal
                    .0
                    .draw(|f| view::draw(screen, f.area(), f.buffer_mut()))?;
            }
            let input = std::io::stdin();
            let fds = [(input.as_fd(), For::Input), (signals.as_fd(), For::Input)];
            let ready = wait::any(&fds, LOOK);
            // A terminal that is gone is always ready, and never has a key.
            if ready[0] && rustix::termios::tcgetattr(&input).is_err() {
                return Ok(Ended::Signal(Signal::HUP.as_raw()));
            }
            changed = false;
            while let Some(signal) = signals.next() {
                if signal.ends() {
                    return Ok(Ended::Signal(signal.number));
                }
                if signal.number == Signal::CONT.as_raw() {
                    self.take_back()?;
                }
                // A new size, or a new beginning.
                changed = true;
            }
            while event::poll(Duration::ZERO)? {
                changed = true;
                if let event::Event::Key(key) = event::read()? {
                    if let Some(ended) = self.act(key)? {
                        return Ok(ended);
                    }
                }
            }
            let news = self.watched.advance() | self.watched.has_news();
            changed |= news && self.frozen.is_none();
            if let Some(answer) = self.watched.answer() {
                self.screen.message = Some(answer);
                changed = true;
            }
            if self.watched.is_over() {
                return Ok(Ended::Over);
            }
        }
    }

    fn act(&mut self, key: event::KeyEvent) -> anyhow::Result<Option<Ended>> {
        match keys::press(&mut self.screen, key) {
            Act::Draw => {}
            Act::Pause => {
                self.screen.paused = !self.screen.paused;
                let live = self.screen.paused.then(|| self.watched.live().clone());
                self.frozen = live;
            }
            Act::Ask(request) => {
                self.screen.message = Some("asked; no answer yet".into());
                self.watched.command(request);
            }
            Act::Suspend => {
                ratatui::restore();
                let _ = process::kill(std::process::id(), Signal::STOP.as_raw());
                // Somebody has made us go on.
                self.take_back()?;
            }
            Act::Quit => return Ok(Some(Ended::Quit)),
        }
        Ok(None)
    }

    /// Makes the terminal ours again after somebody else had it.
    fn take_back(&mut self) -> std::io::Result<()> {
        terminal::disable_raw_mode()?;
        terminal::enable_raw_mode()?;
        execute!(std::io::stdout(), terminal::EnterAlternateScreen)?;
        self.terminal.0.clear()
    }

    /// Brings the screen up to date.
    fn refresh(&mut self) {
        let screen = &mut self.screen;
        if !screen.paused || screen.session.is_none() {
            screen.session = self.watched.session().as_ref().map(TopSession::of);
            screen.note = self.watched.note();
        }
        let live;
        let from = match &self.frozen {
            Some(frozen) => frozen,
            None => {
                live = self.watched.live();
                &*live
            }
        };
        screen.top = look(from, screen.by, None, KEPT);
        screen.history = from.history().copied().collect();
    }
}
