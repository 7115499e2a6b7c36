//! The message for when something went wrong, always in the same four parts.
//!
//! Promise: the last part, what state things are in, is never left out: it is what a tool that
//! deals in durability is asked for first.
//!
//! What it does not do: it neither prints nor chooses the exit status. Lines are not wrapped,
//! because they hold commands to copy.

use std::fmt;

/// What failed, why, what to do about it, and how things stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What failed, on what.
    pub what: String,
    /// Why, with the value that was observed.
    pub why: String,
    /// What to do; a command where there is one.
    pub try_: String,
    /// What was changed and what was not; what is durable and what is not.
    pub state: String,
}

impl Trouble {
    /// Makes a message of its four parts.
    pub fn new(
        what: impl Into<String>,
        why: impl Into<String>,
        try_: impl Into<String>,
        state: impl Into<String>,
    ) -> Trouble {
        Trouble {
            what: what.into(),
            why: why.into(),
            try_: try_.into(),
            state: state.into(),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        part(f, "synclater: ", &self.what)?;
        part(f, "\n  why:   ", &self.why)?;
        part(f, "\n  try:   ", &self.try_)?;
        part(f, "\n  state: ", &self.state)
    }
}

impl std::error::Error for Trouble {}

/// Writes one part; its further lines begin in the column of the first one's text.
fn part(f: &mut fmt::Formatter<'_>, label: &str, text: &str) -> fmt::Result {
    let margin = label.trim_start_matches('\n').len();
    f.write_str(label)?;
    for (number, line) in text.trim_end().lines().enumerate() {
        if number > 0 {
            write!(f, "\n{:margin$}", "")?;
        }
        // Others' words may be among them.
        f.write_str(&super::layout::shown(line))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_parts_stand_under_each_other() {
        let trouble = Trouble::new(
            "cannot settle /srv",
            "syncfs: EIO",
            "look at the disk:\ndmesg | tail\n",
            "not durable: what was written to /srv",
        );
        let want = "synclater: cannot settle /srv\n  \
             why:   syncfs: EIO\n  \
             try:   look at the disk:\n         dmesg | tail\n  \
             state: not durable: what was written to /srv";
        assert_eq!(trouble.to_string(), want);
    }

    #[test]
    fn the_last_part_is_there_even_when_empty() {
        assert!(Trouble::new("a", "", "", "")
            .to_string()
            .ends_with("\n  state: "));
    }
}
