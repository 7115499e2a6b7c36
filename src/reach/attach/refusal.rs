//! Why a process is not attached, as it is told.

use crate::reach::program::incarnation;
use serde::{Deserialize, Serialize};
use std::path::Path;
use synclater_text::message::Trouble;

/// Why a process is not attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Why, with the value that was observed.
    pub why: String,
    /// What to do.
    #[serde(rename = "try")]
    pub try_: String,
}

impl Refusal {
    /// Of two parts.
    pub fn new(why: impl Into<String>, try_: impl Into<String>) -> Refusal {
        let (why, try_) = (why.into(), try_.into());
        Refusal { why, try_ }
    }

    /// As it is told.
    #[must_use]
    pub fn trouble(&self, pid: u32, exe: &str) -> Trouble {
        let name = Path::new(exe)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let what = if name.is_empty() {
            format!("cannot attach to {pid}")
        } else {
            format!("cannot attach to {pid} ({name})")
        };
        let state = match incarnation(pid) {
            Some(_) => format!("nothing was changed; {pid} runs as before"),
            None => "nothing was changed".to_owned(),
        };
        Trouble::new(what, &self.why, &self.try_, state)
    }
}

/// What is said of a process that has ended while it was looked at.
#[must_use]
pub fn has_ended() -> Refusal {
    Refusal::new("it has ended meanwhile", "look for it: pgrep NAME")
}
