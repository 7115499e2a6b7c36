//! From the clock of the trace programs to the time of day.

use rustix::time::{clock_gettime, ClockId, Timespec};

/// How far CLOCK_REALTIME is from CLOCK_BOOTTIME, at one moment.
///
/// Take a new one whenever events are drained: the time of day may be set, the boot clock cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootClock {
    offset_ns: i64,
}

fn nanoseconds(t: Timespec) -> i64 {
    t.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(t.tv_nsec)
}

impl BootClock {
    /// Compares the clocks: of several tries, the one that took the least time.
    #[must_use]
    pub fn now() -> BootClock {
        let best = (0..5).map(|_| compare()).min();
        BootClock {
            offset_ns: best.map_or(0, |(_, offset)| offset),
        }
    }

    /// Nanoseconds since 1970, UTC, of a time on the boot clock.
    #[must_use]
    pub fn utc_ns(self, boot_ns: u64) -> i64 {
        i64::try_from(boot_ns)
            .unwrap_or(i64::MAX)
            .saturating_add(self.offset_ns)
    }
}

/// How long it took to look at the clocks, and how far one is from the other.
fn compare() -> (i64, i64) {
    let before = nanoseconds(clock_gettime(ClockId::Boottime));
    let day = nanoseconds(clock_gettime(ClockId::Realtime));
    let after = nanoseconds(clock_gettime(ClockId::Boottime));
    let took = after.saturating_sub(before);
    (took, day.saturating_sub(before.saturating_add(took / 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_leads_to_the_time_of_day() {
        let boot = nanoseconds(clock_gettime(ClockId::Boottime));
        let day = nanoseconds(clock_gettime(ClockId::Realtime));
        let told = BootClock::now().utc_ns(u64::try_from(boot).expect("since the boot"));
        assert!((told - day).abs() < 1_000_000_000, "{told} is not {day}");
    }
}
