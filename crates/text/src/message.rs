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
    /// Makes a message of its four parts. What the kernel has run out of decides what helps.
    pub fn new(
        what: impl Into<String>,
        why: impl Into<String>,
        try_: impl Into<String>,
        state: impl Into<String>,
    ) -> Trouble {
        let (why, try_): (String, String) = (why.into(), try_.into());
        let enough = enough_of(&why).filter(|enough| !try_.contains(enough.1));
        Trouble {
            what: what.into(),
            try_: enough.map_or(try_, |enough| enough.0.to_owned()),
            why,
            state: state.into(),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What failed is one line: whatever names are in it, it makes no other part.
        part(f, "synclater: ", &self.what.replace('\n', "\\u{a}"))?;
        part(f, "\n  why:   ", &self.why)?;
        part(f, "\n  try:   ", &self.try_)?;
        part(f, "\n  state: ", &self.state)
    }
}

impl std::error::Error for Trouble {}

/// What helps where the kernel has run out of something (errno(3)), and the word by which a remedy
/// is known to say so already.
fn enough_of(why: &str) -> Option<(&'static str, &'static str)> {
    let table = [
        (
            "(os error 23)",
            "end what has so many files open, or raise fs.file-max",
            "file-max",
        ),
        (
            "(os error 24)",
            "raise the limit of open files: ulimit -n 1024",
            "ulimit -n",
        ),
        (
            "(os error 27)",
            "raise the limit of the size of files: ulimit -f unlimited",
            "ulimit -f",
        ),
        ("(os error 28)", "free space there", "space"),
        ("(os error 36)", "a shorter name", "shorter"),
    ];
    let (_, remedy, known_by) = table.into_iter().find(|(errno, ..)| why.contains(errno))?;
    Some((remedy, known_by))
}

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
    fn what_the_kernel_has_run_out_of_decides_what_helps() {
        let remedy = |errno, remedy| {
            let why = std::io::Error::from_raw_os_error(errno).to_string();
            Trouble::new("", why, remedy, "").try_
        };
        assert_eq!(
            remedy(24, "look at `dmesg`"),
            "raise the limit of open files: ulimit -n 1024"
        );
        assert_eq!(remedy(28, "make it writable"), "free space there");
        assert_eq!(remedy(28, "make some space"), "make some space");
        assert_eq!(remedy(36, "make it writable"), "a shorter name");
        assert_eq!(remedy(13, "make it writable"), "make it writable");
    }

    #[test]
    fn the_last_part_is_there_even_when_empty() {
        assert!(Trouble::new("a", "", "", "")
            .to_string()
            .ends_with("\n  state: "));
    }
}
