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
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use synclater_proc::status::Status;
use synclater_recording::record::title::{common_words, role};
use synclater_sys::patient::Patient;

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

struct CachedPerson {
    person: Arc<Person>,
    looked: Instant,
    titles: u32,
    /// It said itself who it is, and so will the next program that it executes: what is seen of
    /// that one may be ahead of what is read of this one.
    told: bool,
}

/// The processes that were asked for.
#[derive(Default)]
pub struct People {
    known: HashMap<u32, CachedPerson>,
    patient: Patient,
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
                let person = Arc::new(look(pid, &mut self.patient).unwrap_or_default());
                let fresh = CachedPerson {
                    person: person.clone(),
                    looked: now,
                    titles: 0,
                    told: false,
                };
                self.known.insert(pid, fresh);
                return person;
            }
        };
        known.looked = now;
        if let Some(seen) = look(pid, &mut self.patient) {
            known.update(seen);
        }
        known.person.clone()
    }

    /// Process `pid` said itself who it is, at its first request: believed until it is looked at.
    pub fn tell(&mut self, pid: u32, person: Person, now: Instant) {
        if person.exe.is_empty() {
            // It sees no /proc; we may.
            self.forget(pid);
            return;
        }
        self.make_room(now);
        let exe = person.exe.strip_suffix(" (deleted)");
        let person = Person {
            command: role(&person.command),
            exe: exe.unwrap_or(&person.exe).to_owned(),
            ..person
        };
        let fresh = CachedPerson {
            person: Arc::new(person),
            looked: now,
            titles: 0,
            told: true,
        };
        self.known.insert(pid, fresh);
    }

    /// The process is gone, or its number is another one's now.
    pub fn forget(&mut self, pid: u32) {
        self.known.remove(&pid);
    }

    fn make_room(&mut self, now: Instant) {
        if self.known.len() >= PEOPLE_MAX {
            self.known
                .retain(|_, k| now.saturating_duration_since(k.looked) < FORGET);
            if self.known.len() >= PEOPLE_MAX {
                self.known.clear();
            }
        }
    }
}

impl CachedPerson {
    fn update(&mut self, mut seen: Person) {
        if lacks(&seen.exe, &self.person.exe) || lacks(&seen.command, &self.person.command) {
            // It was ending while we looked.
            return;
        }
        if self.told {
            // The same program, seen from elsewhere; another would have said so.
            seen.exe.clone_from(&self.person.exe);
        }
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

/// Whether what was known is not seen any more.
fn lacks(seen: &str, known: &str) -> bool {
    seen.is_empty() && !known.is_empty()
}

/// Looks; `None` of a process that is gone or a zombie, whose files are empty.
fn look(pid: u32, patient: &mut Patient) -> Option<Person> {
    let status = Status::parse(read(&format!("/proc/{pid}/status"), COMMAND_BYTES)?);
    if status
        .field("State")
        .unwrap_or_default()
        .starts_with(['Z', 'X', 'x'])
    {
        return None;
    }
    // Whoever is executing something keeps waiting who asks for this (Linux 6.18).
    let exe = patient.exe(pid).unwrap_or_default();
    let exe = exe.to_string_lossy();
    let command = format!("/proc/{pid}/cmdline");
    let command = patient.read(Path::new(&command), COMMAND_BYTES);
    let command = text(command.unwrap_or_default(), COMMAND_BYTES);
    Some(Person {
        exe: exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned(),
        command: role(command.trim_end_matches('\0').replace('\0', " ").trim_end()),
        uid: status.users().get(1).copied().unwrap_or_default(),
    })
}

/// The beginning of a file, as text. One read gets all of it: a process may end before a second.
fn read(path: &str, most: u64) -> Option<String> {
    let mut bytes = Vec::with_capacity(usize::try_from(most).ok()?);
    let file = std::fs::File::open(path).ok()?;
    file.take(most).read_to_end(&mut bytes).ok()?;
    Some(text(bytes, most))
}

/// The text of the first `most` bytes of a file.
fn text(mut bytes: Vec<u8>, most: u64) -> String {
    if bytes.len() as u64 == most {
        // A character that was cut in two is left out.
        let last = (1..=3)
            .find(|k| bytes[bytes.len() - k] & 0xc0 == 0xc0)
            .unwrap_or(0);
        let whole = std::str::from_utf8(&bytes[bytes.len() - last..]).is_ok();
        bytes.truncate(bytes.len() - if whole { 0 } else { last });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::stage::{needs_root, until, Folder, Process, LIMIT};
    use std::os::fd::AsRawFd;
    use std::process::Command;

    #[test]
    fn a_process_has_its_executable_its_command_and_its_user() {
        let person = People::new().of(std::process::id(), Instant::now());
        let exe = std::env::current_exe().expect("our path");
        assert_eq!(person.exe, exe.to_string_lossy());
        let words: Vec<String> = std::env::args().collect();
        assert_eq!(person.command, words.join(" "));
        assert_eq!(person.uid, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn the_user_is_the_effective_one() {
        if !needs_root("the_user_is_the_effective_one") {
            return;
        }
        let mut command = Command::new("setpriv");
        // No shell: many take the real user's place.
        let process = Process::new(command.args(["--euid", "4711", "--", "cat"]), None);
        let mut people = People::new();
        let told = || people.of(process.id(), Instant::now()).uid == 4711;
        assert!(until(LIMIT, told));
    }

    #[test]
    fn a_process_that_runs_another_program_is_told_soon_and_stays_known_when_it_is_gone() {
        let script = "echo ready; read line; exec sort -u";
        let mut command = Command::new("sh");
        let mut process = Process::new(command.args(["-c", script]), Some("ready"));
        let mut people = People::new();
        let begin = Instant::now();
        assert_eq!(
            people.of(process.id(), begin).command,
            format!("sh -c {script}")
        );
        use std::io::Write;
        let mut input = process.0.stdin.take().expect("its input");
        input.write_all(b"go on\n").expect("written");
        let told = || people.of(process.id(), Instant::now()).command == "sort -u";
        assert!(until(LIMIT, told));
        let known = people.of(process.id(), Instant::now());
        assert!(known.exe.ends_with("sort"), "{}", known.exe);
        process.end();
        let later = Instant::now() + AGE * 2;
        assert_eq!(people.of(process.id(), later), known);
        people.forget(process.id());
        assert_eq!(*people.of(process.id(), later), Person::default());
    }

    #[test]
    fn within_50_ms_nothing_is_looked_at_again() {
        let mut command = Command::new("cat");
        let mut process = Process::new(&mut command, None);
        let mut people = People::new();
        let begin = Instant::now();
        let first = people.of(process.id(), begin);
        process.end();
        let again = people.of(process.id(), begin + AGE / 2);
        assert!(std::sync::Arc::ptr_eq(&first, &again));
    }

    #[test]
    fn a_title_that_changes_all_the_time_gives_few_commands() {
        let mut known = CachedPerson {
            person: Arc::default(),
            looked: Instant::now(),
            titles: 0,
            told: false,
        };
        let mut seen = std::collections::BTreeSet::new();
        for k in 0..1000 {
            let command = format!("imap [alice 10.0.0.{} {k}]", k % 7);
            known.update(Person {
                command,
                ..Person::default()
            });
            seen.insert(known.person.command.clone());
        }
        assert_eq!(known.person.command, "imap [alice");
        assert!(seen.len() <= TITLES_MAX as usize + 2, "{seen:?}");
        // Another program has titles of its own.
        known.update(Person {
            exe: "/bin/other".into(),
            command: "other 1".into(),
            uid: 0,
        });
        assert_eq!(known.person.command, "other 1");
    }

    #[test]
    fn a_process_that_ends_while_it_is_looked_at_stays_as_it_was_known() {
        let person = |exe: &str, command: &str| Person {
            exe: exe.into(),
            command: command.into(),
            uid: 4,
        };
        let mut known = CachedPerson {
            person: Arc::new(person("/bin/a", "a b")),
            looked: Instant::now(),
            titles: 0,
            told: false,
        };
        for seen in [person("/bin/a", ""), person("", "a b"), person("", "")] {
            known.update(seen);
            assert_eq!(*known.person, person("/bin/a", "a b"));
        }
        known.update(person("/bin/c", "c"));
        assert_eq!(*known.person, person("/bin/c", "c"));
    }

    #[test]
    fn a_text_is_read_at_once() {
        // What a read leaves of a packet is gone, as a command line is with its process.
        let (from, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::DIRECT).expect("a pipe");
        let words = "a command line that is longer than thirty-two bytes";
        rustix::io::write(&to, words.as_bytes()).expect("written");
        drop(to);
        let path = format!("/proc/self/fd/{}", from.as_raw_fd());
        assert_eq!(read(&path, COMMAND_BYTES).as_deref(), Some(words));
    }

    #[test]
    fn a_thread_of_the_kernel_and_a_process_that_is_none_have_empty_texts() {
        let mut people = People::new();
        assert_eq!(*people.of(u32::MAX, Instant::now()), Person::default());
        let kernel = std::fs::read_to_string("/proc/2/comm");
        if kernel.is_ok_and(|name| name == "kthreadd\n") {
            assert_eq!(*people.of(2, Instant::now()), Person::default());
        }
    }

    #[test]
    fn a_long_command_is_cut_between_characters() {
        let dir = Folder::new();
        let path = dir.join("long");
        for lead in 0..4 {
            let text = "x".repeat(lead) + &"é€😀".repeat(1000);
            std::fs::write(&path, &text).expect("a file");
            let seen = read(&path, COMMAND_BYTES).expect("its text");
            assert!(
                text.starts_with(&seen) && seen.len() > 4092,
                "{}",
                seen.len()
            );
        }
        std::fs::write(&path, [0xff; 5000]).expect("a file");
        assert!(read(&path, COMMAND_BYTES).is_some());
    }
}
