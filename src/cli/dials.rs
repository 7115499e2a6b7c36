//! What `run` and `attach` have in common: the dials, and the session that is made of them.

use crate::session::belongings::{Belongings, NOT_STARTED};
use crate::session::compile::{self, Users};
use crate::session::control::Server;
use crate::session::dirs;
use crate::session::escape::Escapes;
use crate::session::folder::random_name;
use crate::session::ledger::Ledger;
use crate::session::shared::{seccomp_filters, Shared};
use crate::session::told;
use crate::supervisor::{Parts, Plan, Supervisor};
use crate::voice;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use synclater_policy::dial::Until;
use synclater_policy::duration::parse_duration;
use synclater_policy::rules::RuleSet;
use synclater_sys::attendant::Doorbell;
use synclater_sys::clock::Reading;
use synclater_sys::signal::Signals;
use synclater_sys::{children, socket};
use synclater_text::layout::visible;
use synclater_text::message::Trouble;

/// For how long and for whom requests are relaxed.
#[derive(clap::Args, Default)]
pub struct Dials {
    /// Ends the relaxation after this time, while the command goes on.
    #[arg(long = "for", value_name = "T", value_parser = parse_duration)]
    #[arg(allow_hyphen_values = true)]
    pub for_: Option<Duration>,

    /// Relax only what matches: exe=GLOB (base name, or full path with a /), user=GLOB (effective
    /// user, name or number), path=GLOB (absolute; a folder means what is below it, too; * stops at
    /// /, ** does not). Repeatable: same key = or, different keys = and.
    #[arg(long, value_name = "KEY=GLOB", conflicts_with = "rules")]
    only: Vec<String>,

    /// Rules in TOML: `[[rule]]` tables with exe, user, path, until; the first that matches
    /// wins, and what none matches stays at now.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
}

/// Where a session is recorded.
#[derive(clap::Args)]
pub struct Recorded {
    /// Record every sync request into FILE, for `synclater report` and its kin.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Write over a recording that is in FILE already.
    #[arg(long, requires = "record")]
    pub force: bool,

    /// Memory in which a process's requests wait to be recorded: a power of two, 16K to 256M.
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = ring_bytes)]
    #[arg(requires = "record")]
    pub ring: usize,
}

impl Dials {
    /// The rules, where there are any.
    ///
    /// # Errors
    /// A [`Trouble`] where they are not valid, or cannot be read.
    pub fn rules(&self) -> Result<Option<RuleSet>, Trouble> {
        if let Some(file) = &self.rules {
            let name = file.display();
            let text = std::fs::read_to_string(file).map_err(|e| {
                let what = format!("cannot read the rules {name}");
                let try_ = match e.kind() {
                    std::io::ErrorKind::InvalidData => "write it as UTF-8",
                    std::io::ErrorKind::PermissionDenied => "make it readable for this user",
                    _ => "check the file's name",
                };
                Trouble::new(what, e.to_string(), try_, NOT_STARTED)
            })?;
            let set = RuleSet::from_toml(&text).map_err(|e| {
                let what = format!("the rules in {name} are not valid");
                let try_ = "correct it; keys are exe, user, path, until";
                Trouble::new(what, e.to_string(), try_, NOT_STARTED)
            })?;
            if set.rules.is_empty() {
                voice::say(&format!(
                    "synclater: no rule is in {name}: every request is made for real\n"
                ));
            }
            // No error: other machines may have that user.
            for user in about_nobody(&set) {
                let user = visible(&user);
                voice::say(&format!(
                    "synclater: the rules in {name} name user {user}, whom /etc/passwd does not \
                     have\n"
                ));
            }
            return Ok(Some(set));
        }
        if self.only.is_empty() {
            return Ok(None);
        }
        let set = RuleSet::from_only(&self.only).map_err(|e| {
            let try_ = "write exe=GLOB, user=GLOB or path=/GLOB";
            Trouble::new("--only is not valid", e.to_string(), try_, NOT_STARTED)
        })?;
        if let Some(user) = about_nobody(&set).first() {
            return Err(Trouble::new(
                format!("--only user={user} is about nobody"),
                "no user in /etc/passwd has that name, and no user can have it as number",
                "a name, or a number: id -u NAME",
                NOT_STARTED,
            ));
        }
        Ok(Some(set))
    }
}

/// What rules say of users that is about nobody, each once.
fn about_nobody(set: &RuleSet) -> BTreeSet<String> {
    let users = Users::asked_for_by(Some(set));
    let named = set.rules.iter().filter_map(|rule| rule.user.clone());
    named.filter(|user| !users.have(user)).collect()
}

/// A session that is to be made.
pub struct Wanted {
    /// The dial.
    pub until: Until,
    /// When the relaxation ends by itself.
    pub for_: Option<Duration>,
    /// The rules, where there are any.
    pub rules: Option<RuleSet>,
    /// What the session is called by, for people.
    pub command: Vec<String>,
    /// Whether a net is cast around the command: a filter of ours is on it.
    pub net: bool,
    /// How things stand where there is no ledger.
    pub state: &'static str,
}

impl Wanted {
    /// Makes the session.
    ///
    /// # Errors
    /// A [`Trouble`] where something of it cannot be had; nothing is left behind.
    pub fn make(
        self,
        start: Reading,
        escapes: impl FnOnce() -> Escapes,
    ) -> anyhow::Result<Supervisor> {
        super::needs_time("make a session", &start, NOT_STARTED)?;
        let (ledger, no_ledger) = ledger(&self);
        let rules = self.rules;
        let mut compiled = compiled(rules.as_ref(), self.until);
        if ledger.is_none() {
            without_ledger(&mut compiled.classes);
            compiled.now_mask = compile::now_mask(&compiled.classes);
        }
        let run = dirs::run_dir();
        dirs::make(&run, "the folder of running sessions", "SYNCLATER_RUN_DIR")?;
        let filters = seccomp_filters() + u32::from(self.net);
        let belongings = Belongings::make(&run, ledger.as_ref(), filters)?;
        // Mostly a matter of the memory that it shares.
        let above = belongings
            .memory
            .parent()
            .filter(|dir| *dir != belongings.dir);
        let memory = format!(
            "the session's memory in {}",
            above.unwrap_or(&run).display()
        );
        let door = door_name();
        let shared = Shared::create(&belongings.memory, &compiled, &door, start);
        let shared = shared.map_err(|e| cannot_make(&belongings, &memory, e))?;
        let server = Server::open(&belongings.memory)
            .map_err(|e| cannot_make(&belongings, "its control socket", e))?;
        let slots_door = socket::listen_abstract(&door)
            .map_err(|e| cannot_make(&belongings, "the socket for other users of it", e))?;
        children::adopt_orphans();
        let signals = Signals::take()
            .map_err(|e| cannot_make(&belongings, "a descriptor for its signals", e))?;
        let doorbell = Doorbell::new(&shared.slots().doorbell);
        let doorbell = doorbell
            .map_err(|e| cannot_make(&belongings, "the thread that hears its programs", e))?;
        let mountinfo = mount_table()
            .map_err(|e| cannot_make(&belongings, "a descriptor for its mounts", e))?;
        let plan = Plan {
            id: belongings.id.clone(),
            command: self.command,
            rules,
            classes: compiled.classes,
            lacks_ledger: no_ledger.is_some(),
            ends: self.for_.map(|t| Instant::now() + t),
            started: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
        };
        if let Some(trouble) = no_ledger {
            voice::say(&format!("{trouble}\n"));
        }
        let parts = Parts {
            plan,
            shared: Box::leak(Box::new(shared)),
            signals,
            server,
            slots_door,
            ledger,
            escapes: escapes(),
            belongings,
            doorbell,
            mountinfo,
        };
        Ok(Supervisor::new(parts))
    }
}

/// Gives back what a session has of which something cannot be made, and says so.
fn cannot_make(belongings: &Belongings, what: &str, e: std::io::Error) -> Trouble {
    belongings.give_back(false);
    let what = format!("cannot make {what}");
    Trouble::new(what, e.to_string(), remedy_of(&e), NOT_STARTED)
}

/// The rules, as programs read them: what none of them matches stays at `now`.
fn compiled(rules: Option<&RuleSet>, until: Until) -> compile::Compiled {
    let users = Users::asked_for_by(rules);
    match rules {
        Some(rules) if rules.rules.is_empty() => compile::compile(rules, Until::Now, &users),
        Some(rules) => compile::compile(rules, until, &users),
        None => compile::compile(&RuleSet::default(), until, &users),
    }
}

/// Tells of changes of the mounts. Without /proc nothing is put off that would have to be settled:
/// no mount matters.
fn mount_table() -> std::io::Result<File> {
    if let Ok(table) = File::open("/proc/self/mountinfo") {
        return Ok(table);
    }
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    Ok(File::from(rustix::fs::memfd_create("no mounts", flags)?))
}

/// What to try where something of a session cannot be made.
fn remedy_of(e: &std::io::Error) -> &'static str {
    match Errno::from_io_error(e) {
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit of open files (ulimit -n)",
        Some(Errno::FBIG) => "raise the limit of the size of files (ulimit -f)",
        _ => "free space there, or name another folder in SYNCLATER_RUN_DIR",
    }
}

/// The ledger, or why there is none where a dial would need one.
fn ledger(wanted: &Wanted) -> (Option<Ledger>, Option<Trouble>) {
    // Who is a member, and what it has open, is read in /proc.
    // Without that programs do not even join, at any dial.
    let blind = crate::cli::needs_proc("put requests off, or count them");
    let state = wanted.state.into();
    if let Err(trouble) = blind {
        return (None, Some(Trouble { state, ..trouble }));
    }
    let trouble = match Ledger::open(told::note_of_ledger) {
        Ok(ledger) => return (Some(ledger), None),
        Err(trouble) => trouble,
    };
    let mut dials = wanted.rules.iter().flat_map(|r| r.dials());
    let any = needs_ledger(wanted.until) || dials.any(needs_ledger);
    (None, any.then_some(Trouble { state, ..trouble }))
}

/// Whether something is owed at a dial that has to be settled.
fn needs_ledger(until: Until) -> bool {
    until != Until::Now && until != Until::Never
}

/// The dials that are possible without a ledger: nothing may owe that would have to be settled.
fn without_ledger(classes: &mut [Until]) {
    for until in classes.iter_mut().filter(|u| **u != Until::Never) {
        *until = Until::Now;
    }
}

/// An abstract socket name that nobody guesses in advance.
fn door_name() -> [u8; 32] {
    let mut name = *b"synclater-0000000000000000000000";
    name[10..].copy_from_slice(random_name().as_bytes());
    name
}

/// A size such as 64K or 4M, a power of two.
pub fn ring_bytes(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let bytes = digits
        .parse::<usize>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .filter(|n| n.is_power_of_two() && (16 << 10..=256 << 20).contains(n));
    bytes.ok_or_else(|| format!("{text} is no power of two from 16K to 256M"))
}
