//! The ledger: what is to be read after a power cut about sessions that owed something.
//!
//! Promise: an entry says enough to find the damage without the machine it was written on: file
//! systems by UUID and source, because mount ids and device numbers die at a reboot. An entry of a
//! version that is not known is refused, never half read; so is one that is named after another
//! session than it says. The advice says both what a cut may have
//! taken (*when*) and what it may have torn (*order*).
//!
//! What it does not do: it writes no file; that an entry is on disk before the first request is
//! put off is the session's promise. An entry is open as long as it exists.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What one session owes, or owed when the power went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Version of this form: 1.
    pub version: u32,
    /// Session id: the stem of the file's name too.
    pub id: String,
    /// A random number that tells the session from others of its name, which live in other run
    /// folders; absent in entries of releases that did not write one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The boot during which it ran: `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Process id of the supervisor, in that boot.
    pub pid: u32,
    /// The pid namespace in which it has that number, as in `/proc/PID/ns/pid`; absent where it
    /// could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_ns: Option<u64>,
    /// When it was started, in clock ticks since that boot: its number may be another's by now.
    /// Absent in entries of releases that did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_started: Option<u64>,
    /// The session's folder, which tells that it has an entry; absent where its name is no text,
    /// and in entries of releases that did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// When the session began: RFC 3339, UTC.
    pub started: String,
    /// The laxest dial that was in force, as `--until` takes it.
    pub until: String,
    /// Nothing of it is to be settled: each dial is `never`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_never: bool,
    /// Something was to be settled at any time: what is known to be lost counts at `never`, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub promised: bool,
    /// The name of the error of a write that was lost: no settle can bring it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// sync() was put off, or might be: every file system of the machine owes, those too that are
    /// mounted nowhere in sight.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sync: bool,
    /// File systems that owed: at least these; they are added as they become known.
    #[serde(default)]
    pub filesystems: Vec<LedgerFs>,
}

/// A file system that owed, named so that it is found again after a reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerFs {
    /// Where it was mounted.
    pub mount: String,
    /// Type of the file system.
    pub fstype: String,
    /// What was mounted there.
    pub source: String,
    /// UUID of the file system; absent when it has none, or none could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The mount that it was found on, by the number that no other mount of that boot has
    /// (STATX_MNT_ID_UNIQUE, Linux 6.8); absent where the kernel tells none. It means nothing after
    /// a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_id: Option<u64>,
}

/// In which boot an entry was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boot {
    /// In this one.
    This,
    /// In an earlier one: the session was cut.
    Another,
    /// Its name, or that of this one, could not be read.
    NotKnown,
}

/// Why a text is not an entry.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// Written by a version of the program that this one does not know.
    #[error(
        "the entry has version {found}, this program knows version {}",
        Entry::VERSION
    )]
    UnknownVersion {
        /// The version that was found.
        found: u64,
    },
    /// Not JSON, or without a key that every entry has.
    #[error("line {line}, column {column}: {message}")]
    Malformed {
        /// Line, from 1; 0 when the text is empty.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// The parser's words.
        message: String,
    },
    /// It says that it is another session's than its file's, or one that no session can have.
    #[error("it says that it is of session {id:?}, and its name that it is of {name:?}")]
    NotItsName {
        /// The id that it says.
        id: String,
        /// The stem of its file's name.
        name: String,
    },
}

/// What is read first: whether the rest can be understood at all.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

impl Entry {
    /// Whether nothing was ever promised, so that nothing can be lost.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.is_never && !self.promised
    }

    /// Version of the form that this crate writes.
    pub const VERSION: u32 = 1;

    /// The entry as JSON, indented, with a newline at its end.
    pub fn to_json(&self) -> String {
        synclater_text::json(self)
    }

    /// Reads the entry in the file `NAME.json`: its id is `name`, and one that a session can have.
    /// So no word of an entry can lead to another file.
    ///
    /// # Errors
    /// As [`Entry::from_json`]; [`LedgerError::NotItsName`].
    pub fn of_file(name: &str, text: &str) -> Result<Entry, LedgerError> {
        let entry = Entry::from_json(text)?;
        if entry.id == name && is_name(name) {
            return Ok(entry);
        }
        let (id, name) = (entry.id, name.to_owned());
        Err(LedgerError::NotItsName { id, name })
    }

    /// Reads an entry. Keys that are not known are passed over: a later version may add some.
    ///
    /// # Errors
    /// [`LedgerError::UnknownVersion`] before anything else is looked at;
    /// [`LedgerError::Malformed`] with the position.
    pub fn from_json(text: &str) -> Result<Entry, LedgerError> {
        let versioned: Versioned = serde_json::from_str(text).map_err(malformed)?;
        if versioned.version != u64::from(Entry::VERSION) {
            return Err(LedgerError::UnknownVersion {
                found: versioned.version,
            });
        }
        serde_json::from_str(text).map_err(malformed)
    }

    /// In which boot it was written, where both have a name. White space around either, as files
    /// have it, makes no difference.
    pub fn boot(&self, this_boot: &str) -> Boot {
        match (self.boot_id.trim(), this_boot.trim()) {
            ("", _) | (_, "") => Boot::NotKnown,
            (its, this) if its == this => Boot::This,
            _ => Boot::Another,
        }
    }

    /// True when the session was cut: its entry is still there, but the boot is another one.
    pub fn is_cut(&self, this_boot: &str) -> bool {
        self.boot(this_boot) == Boot::Another
    }
}

/// Whether a session can have this name: a word, and a number where the word is taken.
pub fn is_name(name: &str) -> bool {
    let word = name.trim_end_matches(|c: char| c.is_ascii_digit());
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase())
}

fn malformed(error: serde_json::Error) -> LedgerError {
    let text = error.to_string();
    let message = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(words, _)| words);
    let message = message.to_owned();
    LedgerError::Malformed {
        line: error.line(),
        column: error.column(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            version: Entry::VERSION,
            id: "kelp".into(),
            token: None,
            boot_id: "1d5e2c5c-0f1c-4a54-8e39-0d4f9a3c0c11".into(),
            pid: 4100,
            pid_ns: None,
            pid_started: None,
            sync: false,
            folder: None,
            command: vec!["make".into(), "install".into()],
            started: "2025-01-31T12:00:00Z".into(),
            until: "exit".into(),
            is_never: false,
            promised: true,
            error: None,
            filesystems: vec![LedgerFs {
                mount: "/srv".into(),
                fstype: "ext4".into(),
                source: "/dev/sdb1".into(),
                uuid: None,
                mount_id: None,
            }],
        }
    }

    #[test]
    fn an_entry_reads_back() {
        assert_eq!(Entry::from_json(&entry().to_json()), Ok(entry()));
    }

    #[test]
    fn keys_that_are_not_known_are_passed_over() {
        let text = entry().to_json().replacen('{', "{\"colour\": [1, 2],", 1);
        assert_eq!(Entry::from_json(&text), Ok(entry()));
    }

    #[test]
    fn a_version_that_is_not_known_is_refused_before_anything_else() {
        let error = Entry::from_json("{\"version\": 2, \"id\": 7}").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the entry has version 2, this program knows version 1"
        );
    }

    #[test]
    fn a_broken_entry_is_told_with_its_place() {
        let torn = &entry().to_json()[..60];
        let error = Entry::from_json(torn).unwrap_err().to_string();
        assert!(error.starts_with("line 4, column "), "{error}");
        assert!(!error.contains(" at line "), "{error}");
        let missing = Entry::from_json("{\"version\": 1}")
            .unwrap_err()
            .to_string();
        assert!(missing.contains("missing field `id`"), "{missing}");
        assert!(Entry::from_json("").is_err());
    }

    #[test]
    fn an_entry_is_of_the_session_that_its_file_is_named_after() {
        let text = entry().to_json();
        assert_eq!(Entry::of_file("kelp", &text), Ok(entry()));
        let error = Entry::of_file("reef", &text).unwrap_err().to_string();
        assert!(
            error.contains("\"kelp\"") && error.contains("\"reef\""),
            "{error}"
        );
        for id in ["../kelp", "a/b", "", ".kelp", "23", "kelp-2", "Kelp"] {
            let text = Entry {
                id: id.into(),
                ..entry()
            }
            .to_json();
            assert!(Entry::of_file(id, &text).is_err(), "{id}");
        }
        assert!(is_name("kelp23"));
    }

    #[test]
    fn a_session_of_another_boot_was_cut() {
        assert!(!entry().is_cut("1d5e2c5c-0f1c-4a54-8e39-0d4f9a3c0c11\n"));
        assert!(entry().is_cut("4a5d64a7-1d9e-4d3f-b2b0-3a4a4b6a9d2e"));
        let nameless = Entry {
            boot_id: String::new(),
            ..entry()
        };
        assert_eq!(nameless.boot(""), Boot::NotKnown);
        assert_eq!(entry().boot("\n"), Boot::NotKnown);
        assert!(!nameless.is_cut("4a5d64a7-1d9e-4d3f-b2b0-3a4a4b6a9d2e"));
    }
}
