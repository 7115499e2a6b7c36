//! Numbers for people: thousands separators, units, two digits that matter.
//!
//! Promise: the unit is always there, and a rounded value is never shown as zero unless it is.
//!
//! What it does not do: no locale; programs read the JSON, which has plain numbers.

/// Writes a count with separators: `4,813`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes a count with its noun: `1 request`, `4,813 requests`. The plural is the noun and `s`, or
/// `es` (processes).
pub fn counted(number: u64, noun: &str) -> String {
    let plural = match number {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{plural}", count(number))
}

/// Writes a time given in seconds: `420 ns`, `6.4 ms`, `0.21 s`, `31 s`, `2 min 31 s`, `3 h 5 min`.
/// A negative time, or one that is no number, is `an unknown time`.
pub fn seconds(time_s: f64) -> String {
    time(time_s, f64::round)
}

/// As [`seconds`], but rounded up: for bounds, which must not be shown smaller than they are.
pub fn seconds_up(time_s: f64) -> String {
    if time_s > 0.0 && time_s <= 1e-9 {
        return "1 ns".to_owned();
    }
    // Values such as 1.1 are a hair more than they look in binary; a billionth is no bound's worth.
    time(time_s * (1.0 - 1e-9), f64::ceil)
}

fn time(time_s: f64, round: fn(f64) -> f64) -> String {
    if !time_s.is_finite() || time_s < 0.0 {
        return "an unknown time".to_owned();
    }
    match time_s {
        0.0 => "0 s".to_owned(),
        t if t < 1e-9 => "less than 1 ns".to_owned(),
        t if t < 0.999e-6 => in_unit(t * 1e9, "ns", round),
        t if t < 0.999e-3 => in_unit(t * 1e6, "µs", round),
        t if t < 0.099 => in_unit(t * 1e3, "ms", round),
        t if t < 119.0 => in_unit(t, "s", round),
        t if t < 3_540.0 => parts(round(t), "min", "s"),
        t => parts(round(t / 60.0), "h", "min"),
    }
}

/// A time in one unit.
fn in_unit(scaled: f64, unit: &str, round: fn(f64) -> f64) -> String {
    format!("{} {unit}", two_digits(scaled, round))
}

/// The one unit of the times in a column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its name, for the head of the column.
    pub name: &'static str,
    /// How many of it are a second.
    a_second: u32,
}

impl Unit {
    /// By the longest of these seconds.
    pub fn of(times_s: impl IntoIterator<Item = f64>) -> Unit {
        let longest = times_s.into_iter().fold(0.0, f64::max);
        let (name, a_second) = match longest {
            t if t < 0.999e-6 => ("ns", 1_000_000_000),
            t if t < 0.999e-3 => ("µs", 1_000_000),
            t if t < 0.999 => ("ms", 1_000),
            _ => ("s", 1),
        };
        Unit { name, a_second }
    }

    /// Writes a time without its unit: `31`, `7.7`, `0.064`; `<0.001` where that would be shown as
    /// nothing, and `?` for a negative time, or one that is no number.
    pub fn show(self, time_s: f64) -> String {
        let number = time_s * f64::from(self.a_second);
        match number {
            n if !n.is_finite() || n < 0.0 => "?".to_owned(),
            0.0 => "0".to_owned(),
            n if n < 0.000_95 => "<0.001".to_owned(),
            n if n < 0.095 => format!("{n:.3}"),
            n if n < 999.5 => two_digits(n, f64::round),
            n => count(n.round() as u64),
        }
    }
}

/// Writes a number of bytes in binary units: `512 B`, `4.0 KiB`, `1.2 GiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut size = number as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1023.5 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{} {}", two_digits(size, f64::round), UNITS[unit])
}

/// At least two digits that matter, and no fraction from ten up.
fn two_digits(number: f64, round: fn(f64) -> f64) -> String {
    match number {
        n if round(n * 100.0) < 100.0 => format!("{:.2}", round(n * 100.0) / 100.0),
        n if round(n * 10.0) < 100.0 => format!("{:.1}", round(n * 10.0) / 10.0),
        n => format!("{:.0}", round(n)),
    }
}

fn parts(total: f64, large: &str, small: &str) -> String {
    // Saturates for times that no clock reaches.
    let total = total as u64;
    match (total / 60, total % 60) {
        (whole, 0) => format!("{} {large}", count(whole)),
        (whole, rest) => format!("{} {large} {rest} {small}", count(whole)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn thousands_are_separated() {
        for (number, want) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (4_813, "4,813"),
            (1_234_567, "1,234,567"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(count(number), want);
        }
        assert_eq!(counted(1, "request"), "1 request");
        assert_eq!(counted(0, "request"), "0 requests");
    }

    #[test]
    fn the_times_of_a_column_have_one_unit() {
        let shown = |times: &[f64]| {
            let unit = Unit::of(times.iter().copied());
            let shown: Vec<String> = times.iter().map(|t| unit.show(*t)).collect();
            (unit.name, shown.join(" "))
        };
        let want = ("s", "18 7.7 0.32 0.064 <0.001 0".to_owned());
        assert_eq!(shown(&[18.0, 7.7, 0.32, 0.064, 420e-9, 0.0]), want);
        assert_eq!(
            shown(&[0.18, 0.012, 13e-6]),
            ("ms", "180 12 0.013".to_owned())
        );
        assert_eq!(shown(&[420e-9, 20e-9]), ("ns", "420 20".to_owned()));
        assert_eq!(
            shown(&[7200.0, -1.0, f64::NAN]),
            ("s", "7,200 ? ?".to_owned())
        );
        assert_eq!(shown(&[]), ("ns", String::new()));
    }

    #[test]
    fn a_time_has_two_digits_that_matter_and_a_unit() {
        for (time_s, want) in [
            (0.0, "0 s"),
            (1e-12, "less than 1 ns"),
            (4.2e-9, "4.2 ns"),
            (420e-9, "420 ns"),
            (6.4e-6, "6.4 µs"),
            (999.9e-6, "1.0 ms"),
            (0.0042, "4.2 ms"),
            (0.0642, "64 ms"),
            (0.21, "0.21 s"),
            (0.999, "1.0 s"),
            (1.26, "1.3 s"),
            (31.4, "31 s"),
            (118.6, "119 s"),
            (119.6, "2 min"),
            (3_539.0, "58 min 59 s"),
            (151.0, "2 min 31 s"),
            (3_600.0, "1 h"),
            (11_100.0, "3 h 5 min"),
            (-1.0, "an unknown time"),
            (f64::NAN, "an unknown time"),
        ] {
            assert_eq!(seconds(time_s), want, "{time_s}");
        }
    }

    #[test]
    fn a_bound_is_never_shown_smaller_than_it_is() {
        for (time_s, want) in [
            (1.21, "1.3 s"),
            (1.1, "1.1 s"),
            (0.201, "0.21 s"),
            (12.01, "13 s"),
            (120.1, "2 min 1 s"),
        ] {
            assert_eq!(seconds_up(time_s), want);
        }
    }

    #[test]
    fn bytes_have_binary_units() {
        for (number, want) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (4_096, "4.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (1_288_490_189, "1.2 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(number), want);
        }
    }

    proptest! {
        #[test]
        fn a_time_is_never_rounded_to_zero(time_s in 1e-15f64..1e12) {
            prop_assert!(!seconds(time_s).starts_with("0 "), "{}", seconds(time_s));
        }
    }
}
