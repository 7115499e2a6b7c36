//! Durations, written as systemd writes time spans: `250ms`, `1min30s`, `1min 30s`, `1.5s`.
//!
//! Promise: a unit is always required, so that nobody has to guess whether `5` means seconds or
//! minutes; what [`format_duration`] writes, [`parse_duration`] reads back as the same duration,
//! except for zero, which is no dial.
//!
//! By hand, since each error has to say what was seen and what to write instead, and a month (`1M`
//! of humantime, beside `1m`) is no dial.
//!
//! What it does not do: months and years (their length is a convention), bare numbers, `infinity`.
//!
//! Relies on: systemd.time(7), PARSING TIME SPANS, for the units' names.

use std::time::Duration;

use thiserror::Error;

/// The longest duration that is accepted: 100 years of 365.25 days.
pub const LONGEST: Duration = Duration::from_secs(100 * 31_557_600);

/// Why a text is not a duration. Each message says what was seen and what to write.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DurationError {
    /// Nothing, or white space only.
    #[error("the duration is empty: write 1s, 250ms or 2h")]
    Empty,
    /// A number stands without a unit.
    #[error("\"{seen}\" has no unit: write 1s, 250ms or 2h")]
    NoUnit {
        /// The whole text.
        seen: String,
    },
    /// A unit that is not in the table.
    #[error("\"{unit}\" in \"{seen}\" is not a unit: write ns, us, ms, s, min, h, d or w")]
    UnknownUnit {
        /// The whole text.
        seen: String,
        /// The word that stands where a unit should.
        unit: String,
    },
    /// Something else stands where a number should.
    #[error("\"{seen}\" is not a duration: write a number and a unit, as in 1s, 250ms or 2h")]
    NotANumber {
        /// The whole text.
        seen: String,
    },
    /// The sum is less than a nanosecond.
    #[error("\"{seen}\" is less than a nanosecond: write a longer time, as in 1s, 250ms or 2h")]
    Zero {
        /// The whole text.
        seen: String,
    },
    /// There is a minus sign.
    #[error("\"{seen}\" is negative: write a time that lies ahead, as in 1s, 250ms or 2h")]
    Negative {
        /// The whole text.
        seen: String,
    },
    /// More than [`LONGEST`].
    #[error("\"{seen}\" is too long: write at most 100 years, that is 36525d")]
    TooLong {
        /// The whole text.
        seen: String,
    },
}

/// Units that [`parse_duration`] takes, with their length in nanoseconds.
/// Both micro signs are there: U+00B5 from keyboards, U+03BC from Greek text.
const UNITS: &[(&str, u128)] = &[
    ("ns", 1),
    ("nsec", 1),
    ("us", 1_000),
    ("usec", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("msec", 1_000_000),
    ("s", SECOND),
    ("sec", SECOND),
    ("second", SECOND),
    ("seconds", SECOND),
    ("m", 60 * SECOND),
    ("min", 60 * SECOND),
    ("minute", 60 * SECOND),
    ("minutes", 60 * SECOND),
    ("h", 3_600 * SECOND),
    ("hr", 3_600 * SECOND),
    ("hour", 3_600 * SECOND),
    ("hours", 3_600 * SECOND),
    ("d", 86_400 * SECOND),
    ("day", 86_400 * SECOND),
    ("days", 86_400 * SECOND),
    ("w", 604_800 * SECOND),
    ("week", 604_800 * SECOND),
    ("weeks", 604_800 * SECOND),
];

const SECOND: u128 = 1_000_000_000;

/// Units that [`format_duration`] writes, longest first. A week is written as 7d: fewer units to
/// read, and nobody thinks of a bound in weeks.
const WRITTEN: &[(&str, u128)] = &[
    ("d", 86_400 * SECOND),
    ("h", 3_600 * SECOND),
    ("min", 60 * SECOND),
    ("s", SECOND),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Reads a time span such as `250ms`, `1min30s`, `1min 30s` or `1.5s`.
///
/// Parts are added up, as systemd does. What is finer than a nanosecond is cut off.
///
/// # Errors
/// One variant of [`DurationError`] for each way to be wrong; the text is always quoted.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(DurationError::Empty);
    }
    if is_negative(rest) {
        return Err(DurationError::Negative {
            seen: text.to_owned(),
        });
    }
    let mut total_ns = 0u128;
    while !rest.is_empty() {
        let part_ns;
        (part_ns, rest) = take_part(text, rest)?;
        total_ns = total_ns.saturating_add(part_ns);
    }
    if total_ns == 0 {
        return Err(DurationError::Zero {
            seen: text.to_owned(),
        });
    }
    if total_ns > LONGEST.as_nanos() {
        return Err(DurationError::TooLong {
            seen: text.to_owned(),
        });
    }
    Ok(from_ns(total_ns))
}

/// Writes a duration in one word, longest unit first: `1min30s`, `1s500ms`; zero is `0s`.
pub fn format_duration(duration: Duration) -> String {
    let mut rest_ns = duration.as_nanos();
    if rest_ns == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, unit_ns) in WRITTEN {
        let count = rest_ns / unit_ns;
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
            rest_ns %= unit_ns;
        }
    }
    text
}

/// True for a minus sign in front of a number; `-x` is rather not a number at all.
fn is_negative(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '\u{2212}']).map(str::trim_start);
    digits.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

/// Takes one number and its unit from the front of `rest`; returns nanoseconds and what is left.
fn take_part<'a>(text: &str, rest: &'a str) -> Result<(u128, &'a str), DurationError> {
    let seen = text.to_owned();
    let (number, rest) = split_while(rest, |c| c.is_ascii_digit() || c == '.');
    if number.is_empty() {
        return Err(DurationError::NotANumber { seen });
    }
    let (unit, rest) = split_while(rest.trim_start(), |c| c.is_alphabetic());
    if unit.is_empty() {
        let next_is_number = rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_digit());
        return Err(if next_is_number {
            DurationError::NoUnit { seen }
        } else {
            DurationError::NotANumber { seen }
        });
    }
    let Some(&(_, unit_ns)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(DurationError::UnknownUnit {
            seen,
            unit: unit.to_owned(),
        });
    };
    match number_ns(number, unit_ns) {
        Some(ns) => Ok((ns, rest.trim_start())),
        None => Err(DurationError::NotANumber { seen }),
    }
}

fn split_while(text: &str, keep: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !keep(c)).unwrap_or(text.len()))
}

/// Nanoseconds of a decimal number of units; `None` for `.`, `1.` and `1.2.3`.
/// A number that does not fit saturates: the caller refuses anything over [`LONGEST`].
fn number_ns(number: &str, unit_ns: u128) -> Option<u128> {
    let (whole, fraction) = match number.split_once('.') {
        Some((_, fraction)) if fraction.is_empty() || fraction.contains('.') => return None,
        Some(parts) => parts,
        None => (number, ""),
    };
    let mut ns = digits_value(whole).saturating_mul(unit_ns);
    let mut place_ns = unit_ns * FRACTION_SCALE;
    for digit in fraction.bytes() {
        place_ns /= 10;
        ns = ns.saturating_add(u128::from(digit - b'0') * place_ns / FRACTION_SCALE);
    }
    Some(ns)
}

/// Keeps the places after the decimal point exact: a week is less than 10^15 ns.
const FRACTION_SCALE: u128 = 1_000_000_000_000_000_000;

fn digits_value(digits: &str) -> u128 {
    digits.bytes().fold(0u128, |value, digit| {
        value
            .saturating_mul(10)
            .saturating_add(u128::from(digit - b'0'))
    })
}

fn from_ns(total_ns: u128) -> Duration {
    // Both parts fit: the caller has checked the sum against LONGEST.
    Duration::new((total_ns / SECOND) as u64, (total_ns % SECOND) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(text: &str) -> u128 {
        parse_duration(text)
            .unwrap_or_else(|error| panic!("{error}"))
            .as_millis()
    }

    #[test]
    fn every_spelling_of_systemd_is_read() {
        for (text, want_ms) in [
            ("250ms", 250),
            ("250 msec", 250),
            ("1s", 1_000),
            ("1 sec", 1_000),
            ("2seconds", 2_000),
            ("1min30s", 90_000),
            ("1min 30s", 90_000),
            (" 1 m 30 s ", 90_000),
            ("1.5s", 1_500),
            (".5s", 500),
            ("0s 1ms", 1),
            ("2h", 7_200_000),
            ("1hr", 3_600_000),
            ("1.5 hours", 5_400_000),
            ("1d", 86_400_000),
            ("2 weeks", 1_209_600_000),
            ("5000us", 5),
            ("5000\u{b5}s", 5),
            ("5000\u{3bc}s", 5),
            ("5000000ns", 5),
        ] {
            assert_eq!(ms(text), want_ms, "{text:?}");
        }
    }

    #[test]
    fn decimals_are_exact_to_the_nanosecond() {
        assert_eq!(
            parse_duration("0.000000001s").unwrap(),
            Duration::from_nanos(1)
        );
        assert_eq!(parse_duration("0.1s").unwrap(), Duration::from_millis(100));
        assert_eq!(parse_duration("0.1w").unwrap(), Duration::from_secs(60_480));
    }

    #[test]
    fn each_way_to_be_wrong_has_its_own_error() {
        let kind = |text: &str| parse_duration(text).unwrap_err();
        assert_eq!(kind(""), DurationError::Empty);
        assert_eq!(kind(" \t"), DurationError::Empty);
        assert!(matches!(kind("1"), DurationError::NoUnit { .. }));
        assert!(matches!(kind("1min 30"), DurationError::NoUnit { .. }));
        assert!(matches!(kind("0"), DurationError::NoUnit { .. }));
        assert!(matches!(kind("0s"), DurationError::Zero { .. }));
        assert!(matches!(kind("0.1ns"), DurationError::Zero { .. }));
        assert!(matches!(kind("-1s"), DurationError::Negative { .. }));
        assert!(matches!(kind("- 1"), DurationError::Negative { .. }));
        assert!(matches!(kind("101w 36525d"), DurationError::TooLong { .. }));
        assert!(matches!(
            kind("99999999999999999999999999999999999999999w"),
            DurationError::TooLong { .. }
        ));
        assert!(matches!(
            kind("1 fortnight"),
            DurationError::UnknownUnit { .. }
        ));
        assert!(matches!(kind("1S"), DurationError::UnknownUnit { .. }));
        assert!(matches!(kind("1M"), DurationError::UnknownUnit { .. }));
        for text in [
            "soon", "s", "1.s", "1..2s", "1.2.3s", "+1s", "1s,", "1,5s", "1s-1s", "\u{661}s",
        ] {
            assert!(
                matches!(kind(text), DurationError::NotANumber { .. }),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_message_says_what_was_seen_and_what_to_write() {
        let said = |text: &str| parse_duration(text).unwrap_err().to_string();
        assert_eq!(said("1"), "\"1\" has no unit: write 1s, 250ms or 2h");
        assert!(said("3 apples").starts_with("\"apples\" in \"3 apples\" is not a unit: write "));
    }

    #[test]
    fn a_duration_is_written_in_one_word() {
        for (millis, want) in [
            (90_000, "1min30s"),
            (1_500, "1s500ms"),
            (7_200_000, "2h"),
            (250, "250ms"),
            (0, "0s"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), want);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(ns in 1u128..=LONGEST.as_nanos()) {
            let duration = from_ns(ns);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "[-0-9. a-zµ]{0,24}|\\PC{0,12}") {
            let _ = parse_duration(&text);
        }
    }
}
