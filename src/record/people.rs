//! Who asks: executable, command line and user of a process.
//!
//! Promise: a process is looked at again at most every 50 ms; of one that is gone the last known
//! stays. One process gives few distinct commands, however often it changes its title.
//!
//! What it does not do: a program that starts another is told from it up to 50 ms late.
//!
//! Relies on: /proc/PID/exe, cmdline and status. The kernel marks the path of an executable that
//! was replaced with ` (deleted)`.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};
use synclater_model::record::title::{common_words, role};

const AGE: Duration = Duration::from_millis(50);
const COMMAND_BYTES: u64 = 4096;
/// Titles of one program in one process; from then on only what they have in common is told.
const TITLES_MAX: u32 = 4;
const PEOPLE_MAX: usize = 1 << 16;
/// Who was not asked for in this time goes first when there are too many.
const FORGET: Duration = Duration::from_secs(60);

/// Who a process is; what cannot be read is empty, and the user 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Person {
    /// Path of the executable.
    pub exe: String,
    /// Command line, with blanks between; of PostgreSQL's processes their role.
    pub command: String,
    /// Effective user.
    pub uid: u32,
}

struct Known {
    person: Arc<Person>,
    looked: Instant,
    titles: u32,
}

/// The processes that were asked for.
#[derive(Default)]
pub struct People {
    known: HashMap<u32, Known>,
}

impl People {
    /// Nobody yet.
    #[must_use]
    pub fn new() -> People {
        People::default()
    }

    /// Who process `pid` is, as of `now` or up to 50 ms before. To be called when it does
    /// something, so that one that is idle is not looked at.
    pub fn of(&mut self, pid: u32, now: Instant) -> Arc<Person> {
        let known = match self.known.get_mut(&pid) {
            Some(known) if now.saturating_duration_since(known.looked) < AGE => {
                return known.person.clone();
            }
            Some(known) => known,
            None => {
                self.make_room(now);
                let person = Arc::new(look(pid).unwrap_or_default());
                let fresh = Known {
                    person: person.clone(),
                    looked: now,
                    titles: 0,
                };
                self.known.insert(pid, fresh);
                return person;
            }
        };
        known.looked = now;
        if let Some(seen) = look(pid) {
            known.update(seen);
        }
        known.person.clone()
    }

    /// Process `pid` said itself who it is, at its first request: believed until it is looked at.
    pub fn tell(&mut self, pid: u32, person: Person, now: Instant) {
        self.make_room(now);
        let person = Person {
            command: role(&person.command),
            ..person
        };
        let fresh = Known {
            person: Arc::new(person),
            looked: now,
            titles: 0,
        };
        self.known.insert(pid, fresh);
    }

    /// The process is gone, or its number is another one's now.
    pub fn forget(&mut self, pid: u32) {
        self.known.remove(&pid);
    }

    fn make_room(&mut self, now: Instant) {
        if self.known.len() >= PEOPLE_MAX {
            let recent = |k: &Known| now.saturating_duration_since(k.looked) < FORGET;
            self.known.retain(|_, k| recent(k));
            if self.known.len() >= PEOPLE_MAX {
                self.known.clear();
            }
        }
    }
}

impl Known {
    fn update(&mut self, mut seen: Person) {
        if seen.exe != self.person.exe {
            self.titles = 0;
        } else if seen.command != self.person.command {
            self.titles = self.titles.saturating_add(1);
            if self.titles > TITLES_MAX {
                seen.command = common_words(&self.person.command, &seen.command);
            }
        }
        if seen != *self.person {
            self.person = Arc::new(seen);
        }
    }
}

/// Looks; `None` of a process that is gone or a zombie, whose files are empty.
fn look(pid: u32) -> Option<Person> {
    let status = read(&format!("/proc/{pid}/status"), COMMAND_BYTES)?;
    let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    let state = field("State:").unwrap_or_default().trim_start();
    if state.starts_with(['Z', 'X', 'x']) {
        return None;
    }
    let effective = |ids: &str| ids.split_ascii_whitespace().nth(1)?.parse().ok();
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let exe = exe.to_string_lossy();
    let command = read(&format!("/proc/{pid}/cmdline"), COMMAND_BYTES).unwrap_or_default();
    Some(Person {
        exe: exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned(),
        command: role(command.trim_end_matches('\0').replace('\0', " ").trim_end()),
        uid: field("Uid:").and_then(effective).unwrap_or_default(),
    })
}

/// The beginning of a file, as text.
fn read(path: &str, most: u64) -> Option<String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(most).read_to_end(&mut bytes).ok()?;
    if bytes.len() as u64 == most {
        // A character that was cut in two is left out.
        let cut = |k: &usize| bytes[bytes.len() - k] & 0xc0 == 0xc0;
        let last = (1..=3).find(cut).unwrap_or(0);
        let whole = std::str::from_utf8(&bytes[bytes.len() - last..]).is_ok();
        bytes.truncate(bytes.len() - if whole { 0 } else { last });
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
