//! By what requests are grouped, and what a group is called in every recording alike.
//!
//! Promise: nothing in a name changes from run to run by itself: no process number, no connection.
//!
//! What it does not do: files whose names are new each time (a Maildir's) have no counterpart in
//! another recording.

use crate::analysis::roles;
use crate::record::table::{File, Filesystem, Process, Table};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::HashMap;
use std::str::FromStr;

/// By what requests are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum By {
    /// The call or flag.
    Kind,
    /// Base name of the executable; of PostgreSQL's processes also their role.
    Process,
    /// Path.
    File,
    /// Mount point.
    Filesystem,
    /// Device.
    Device,
}

impl By {
    /// All of them, in the order in which they are shown.
    pub const ALL: [By; 5] = [By::Kind, By::Process, By::File, By::Filesystem, By::Device];

    /// As on the command line and in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            By::Kind => "kind",
            By::Process => "process",
            By::File => "file",
            By::Filesystem => "filesystem",
            By::Device => "device",
        }
    }

    /// The groups of `table`, by number.
    pub(super) fn names(self, table: &Table) -> Named<'_> {
        let files = table.files.iter();
        match self {
            By::Kind => {
                let kinds = table.kinds.iter();
                Named::new(self, table, kinds.map(|k| or(k, "(no kind)").into()))
            }
            By::Process => {
                let processes = table.processes.iter();
                Named::new(self, table, processes.map(|p| process(p).into()))
            }
            By::File => Named::new(self, table, files.map(|f| or(&f.path, "(no file)").into())),
            By::Filesystem => {
                let mounts = files.map(|f| filesystem(table, f).map_or("", |fs| &fs.mount));
                Named::new(self, table, mounts.map(|m| or(m, "(unknown)").into()))
            }
            By::Device => {
                let devices = files.map(|f| filesystem(table, f).map_or("", |fs| &fs.device));
                Named::new(self, table, devices.map(|d| or(d, "(unknown)").into()))
            }
        }
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(word: &str) -> Result<By, String> {
        let found = By::ALL.into_iter().find(|by| by.word() == word);
        found.ok_or_else(|| "write kind, process, file, filesystem or device".to_owned())
    }
}

impl Serialize for By {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.word())
    }
}

fn or<'a>(text: &'a str, unknown: &'a str) -> &'a str {
    if text.is_empty() {
        unknown
    } else {
        text
    }
}

/// The file system that a file lies on.
fn filesystem<'a>(table: &'a Table, file: &File) -> Option<&'a Filesystem> {
    table.filesystems.get(file.filesystem as usize)
}

/// The program, and of PostgreSQL's processes the role. Other programs' titles hold users and
/// addresses, which two recordings need not have in common.
fn process(process: &Process) -> String {
    let program = roles::program(process);
    match roles::of_postgres(process) {
        Some(role) => format!("{program}: {role}"),
        None => program,
    }
}

/// The groups of one table.
pub(super) struct Named<'a> {
    by: By,
    table: &'a Table,
    /// For each kind, process or file its group.
    group: Vec<u32>,
    /// The names of the groups.
    pub names: Vec<Cow<'a, str>>,
}

impl<'a> Named<'a> {
    fn new(by: By, table: &'a Table, name: impl Iterator<Item = Cow<'a, str>>) -> Named<'a> {
        let mut known: HashMap<Cow<'a, str>, u32> = HashMap::new();
        let mut names = Vec::new();
        let group = name
            .map(|name| number(name, &mut known, &mut names))
            .collect();
        Named {
            by,
            table,
            group,
            names,
        }
    }

    /// The group of the request at `row`.
    pub fn group(&self, row: usize) -> usize {
        let rows = &self.table.rows;
        let part = match self.by {
            By::Kind => usize::from(rows.kind[row]),
            By::Process => rows.process[row] as usize,
            _ => rows.file[row] as usize,
        };
        self.group[part] as usize
    }
}

/// The number of a name; one that is not known yet is the next of `names`.
fn number<'a>(
    name: Cow<'a, str>,
    known: &mut HashMap<Cow<'a, str>, u32>,
    names: &mut Vec<Cow<'a, str>>,
) -> u32 {
    let next = u32::try_from(names.len()).unwrap_or(u32::MAX);
    *known.entry(name).or_insert_with_key(|name| {
        names.push(name.clone());
        next
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(exe: &str, command: &str) -> String {
        process(&Process {
            pid: Some(7),
            exe: exe.into(),
            command: command.into(),
            ..Process::default()
        })
    }

    #[test]
    fn a_process_is_named_by_its_executable_and_postgresql_s_by_their_role() {
        let postgres = "/usr/lib/postgresql/15/bin/postgres";
        for (exe, command, want) in [
            ("/usr/lib/dovecot/imap", "dovecot/imap", "imap"),
            ("/usr/bin/old (deleted)", "old", "old"),
            ("", "", "(not known)"),
            (
                postgres,
                "postgres: 15/main: checkpointer ",
                "postgres: checkpointer",
            ),
            (postgres, "postgres: walwriter ", "postgres: walwriter"),
            (
                postgres,
                "postgres: 15/main: ann shop [local] COMMIT",
                "postgres: client backend",
            ),
            (
                postgres,
                "postgres: ann shop 10.0.0.1(5432) idle",
                "postgres: client backend",
            ),
            (
                postgres,
                "/usr/lib/postgresql/15/bin/postgres -D /srv",
                "postgres: postmaster",
            ),
        ] {
            assert_eq!(named(exe, command), want);
        }
    }
}
