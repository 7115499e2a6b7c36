//! The dial: when are sync requests kept — later, until when?
//!
//! Promise: the order of [`Until`] is the order of strictness, so the stricter of two dials is the
//! lesser; what is displayed parses back to the same dial.
//!
//! What it does not do: it takes no action, and sets no limit of its own to a DURATION. Whoever
//! settles knows how short a time makes sense on a disk.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::duration::{format_duration, parse_duration, DurationError};

/// Until when a sync request may wait. Lesser is stricter: `now < 1s < 2h < exit < never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Until {
    /// Each request is kept when it is made; it is only measured.
    Now,
    /// Settling starts so that it should end within this time of the oldest request.
    Within(Duration),
    /// The debt is settled once, before the program's exit status is handed on.
    Exit,
    /// Nothing is settled.
    Never,
}

/// The values that a dial takes, as error messages and help texts list them.
pub const KNOWN: &str = "now, a duration such as 1s, exit or never";

/// Why a text is not a dial.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UntilError {
    /// Neither a word that is known nor the beginning of a number.
    #[error("unknown value \"{seen}\": write {KNOWN}")]
    Unknown {
        /// The whole text.
        seen: String,
    },
    /// It begins as a number but is no duration.
    #[error(transparent)]
    Duration(#[from] DurationError),
}

impl Until {
    /// The dial that keeps requests sooner: what holds where two sessions overlap.
    pub fn stricter(self, other: Until) -> Until {
        self.min(other)
    }
}

impl FromStr for Until {
    type Err = UntilError;

    fn from_str(text: &str) -> Result<Until, UntilError> {
        match text {
            "now" => Ok(Until::Now),
            "exit" => Ok(Until::Exit),
            "never" => Ok(Until::Never),
            _ if looks_like_a_number(text) => Ok(Until::Within(parse_duration(text)?)),
            _ => Err(UntilError::Unknown {
                seen: text.to_owned(),
            }),
        }
    }
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Until::Now => f.pad("now"),
            Until::Within(duration) => f.pad(&format_duration(*duration)),
            Until::Exit => f.pad("exit"),
            Until::Never => f.pad("never"),
        }
    }
}

impl TryFrom<String> for Until {
    type Error = UntilError;

    fn try_from(text: String) -> Result<Until, UntilError> {
        text.parse()
    }
}

impl From<Until> for String {
    fn from(until: Until) -> String {
        until.to_string()
    }
}

/// A text that begins so deserves an answer about durations; any other one, the list of words.
fn looks_like_a_number(text: &str) -> bool {
    text.trim_start()
        .starts_with(|c: char| c.is_ascii_digit() || ".+-\u{2212}".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn within(ms: u64) -> Until {
        Until::Within(Duration::from_millis(ms))
    }

    #[test]
    fn the_order_is_the_order_of_strictness() {
        let order = [
            Until::Now,
            within(1),
            within(1_000),
            Until::Exit,
            Until::Never,
        ];
        assert!(order.is_sorted());
        for (rank, one) in order.iter().enumerate() {
            for (other_rank, other) in order.iter().enumerate() {
                assert_eq!(one.stricter(*other), order[rank.min(other_rank)]);
            }
        }
    }

    #[test]
    fn words_and_durations_are_read() {
        assert_eq!("now".parse(), Ok(Until::Now));
        assert_eq!("1min 30s".parse(), Ok(within(90_000)));
        assert_eq!("exit".parse(), Ok(Until::Exit));
        assert_eq!("never".parse(), Ok(Until::Never));
    }

    #[test]
    fn an_unknown_word_is_answered_with_the_list() {
        for word in ["reply", "Now", "", "NEVER", " exit"] {
            let error = word.parse::<Until>().unwrap_err().to_string();
            let want = format!("unknown value \"{word}\": write {KNOWN}");
            assert_eq!(error, want);
        }
    }

    #[test]
    fn a_bad_number_is_answered_about_durations() {
        let error = "1".parse::<Until>().unwrap_err().to_string();
        assert_eq!(error, "\"1\" has no unit: write 1s, 250ms or 2h");
        let negative = "-1s".parse::<Until>();
        assert!(matches!(
            negative,
            Err(UntilError::Duration(DurationError::Negative { .. }))
        ));
    }

    #[test]
    fn json_holds_the_text() {
        assert_eq!(
            serde_json::to_string(&within(90_000)).unwrap(),
            "\"1min30s\""
        );
        assert_eq!(
            serde_json::from_str::<Until>("\"exit\"").unwrap(),
            Until::Exit
        );
        assert!(serde_json::from_str::<Until>("\"reply\"").is_err());
    }

    proptest! {
        #[test]
        fn what_is_displayed_reads_back(ms in 1u64..1 << 40) {
            prop_assert_eq!(within(ms).to_string().parse(), Ok(within(ms)));
        }
    }
}
