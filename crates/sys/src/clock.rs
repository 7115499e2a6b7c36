//! The lease clock: ticks that every process of the machine reads alike.
//!
//! Relies on: an invariant time stamp counter (`constant_tsc nonstop_tsc` in /proc/cpuinfo), or the
//! architected counter of aarch64; elsewhere nanoseconds of `CLOCK_REALTIME`. Neither is shifted by
//! time namespaces, as `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` are (time_namespaces(7)).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Which counter the ticks come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The processor's counter.
    Counter,
    /// Nanoseconds of `CLOCK_REALTIME`.
    Realtime,
}

/// A lease clock with its measured speed.
#[derive(Clone, Copy, Debug)]
pub struct LeaseClock {
    source: Source,
    ticks_per_second: f64,
}

/// Counter and time together, to measure the counter's speed by.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    counter: u64,
    /// The counter was read between these, of the kernel's monotonic clock.
    before: Duration,
    after: Duration,
    /// So was this: what the C library says, or what was loaded in front of that.
    told: Instant,
}

/// The kernel's monotonic clock, past the C library: one that stands still is waited for in vain.
fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).unwrap_or_default()
}

/// Whether the monotonic clock runs as fast as the machine's, to a thousandth: it may be set right
/// by that (slewed), but nobody has given its ticks another length (adjtimex(2)).
#[must_use]
pub fn runs_evenly() -> bool {
    const USUAL: libc::c_long = 10_000; // microseconds: USER_HZ is 100
    let mut told = std::mem::MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: with no mode it only reads, into a structure of integers for which zero is a value.
    let state = unsafe { libc::adjtimex(told.as_mut_ptr()) };
    // SAFETY: as above.
    state >= 0 && unsafe { told.assume_init() }.tick == USUAL
}

impl Reading {
    /// Reads both now: of some tries that which was interrupted least.
    #[must_use]
    pub fn now() -> Reading {
        const TRIES: usize = 8;
        const SOON: Duration = Duration::from_micros(1);
        let mut best = Reading::once();
        for _ in 1..TRIES {
            if best.doubt() <= SOON {
                break;
            }
            let next = Reading::once();
            best = if next.doubt() < best.doubt() {
                next
            } else {
                best
            };
        }
        best
    }

    fn once() -> Reading {
        let before = monotonic();
        let (counter, told) = (counter(), Instant::now());
        Reading {
            counter,
            before,
            after: monotonic(),
            told,
        }
    }

    /// How fast the clock of the C library goes since then, where that differs from the kernel's by
    /// more than a tenth. Time is told by it everywhere, and libfaketime (`LD_PRELOAD`) may answer.
    #[must_use]
    pub fn wrong_speed(&self) -> Option<f64> {
        const TRIES: u32 = 20;
        let mut speed = 1.0;
        // Once more where it was interrupted between the two.
        for span in 1..=TRIES {
            self.wait_until(Duration::from_millis(1) * span);
            let (told, went) = (self.told.elapsed(), monotonic() - self.before);
            speed = told.as_secs_f64() / went.as_secs_f64();
            if (0.9..1.1).contains(&speed) {
                return None;
            }
        }
        Some(speed)
    }

    fn wait_until(&self, age: Duration) {
        while monotonic() - self.before < age {
            std::hint::spin_loop();
        }
    }

    fn doubt(&self) -> Duration {
        self.after - self.before
    }

    /// Ticks a second since `start`, and no more than there were: a lease that is measured by it is
    /// never longer than it should be, whoever interrupted us.
    fn speed_since(&self, start: &Reading) -> f64 {
        let took = self.after.saturating_sub(start.before);
        (self.counter.saturating_sub(start.counter)) as f64 / took.as_secs_f64()
    }
}

impl LeaseClock {
    /// The clock of this machine, whose counter is measured over the time since `start`: at least
    /// 1 ms, which is waited for.
    #[must_use]
    pub fn new(start: Reading) -> LeaseClock {
        if !counter_is_invariant() {
            return LeaseClock {
                source: Source::Realtime,
                ticks_per_second: 1e9,
            };
        }
        start.wait_until(Duration::from_millis(1));
        LeaseClock {
            source: Source::Counter,
            ticks_per_second: Reading::now().speed_since(&start),
        }
    }

    /// Which counter this is.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// Now, in ticks.
    #[must_use]
    pub fn now(&self) -> u64 {
        match self.source {
            Source::Counter => counter(),
            Source::Realtime => {
                let now = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
            }
        }
    }

    /// A span in ticks.
    #[must_use]
    pub fn ticks(&self, span: Duration) -> u64 {
        (span.as_secs_f64() * self.ticks_per_second) as u64
    }

    /// Ticks as a span.
    #[must_use]
    pub fn span(&self, ticks: u64) -> Duration {
        Duration::from_secs_f64(ticks as f64 / self.ticks_per_second)
    }

    /// How long ago `tick` was, which others have written: never more than `longest`. One in the
    /// future counts as that old: a clock that was set back or a hostile word makes what is owed
    /// fall due at once, and never later.
    #[must_use]
    pub fn age(&self, tick: u64, longest: Duration) -> Duration {
        let behind = self.now().wrapping_sub(tick).cast_signed();
        match u64::try_from(behind) {
            Ok(ticks) => self.span(ticks).min(longest),
            // Processors read the counter a little apart.
            Err(_) if self.span(behind.unsigned_abs()) < SKEW => Duration::ZERO,
            Err(_) => longest,
        }
    }
}

/// How far apart two processors may read the clock.
const SKEW: Duration = Duration::from_millis(1);

/// Notices where the clock went on less than time did: what was noted before is older than its
/// ticks tell.
#[derive(Clone, Copy, Debug)]
pub struct Setback {
    clock: LeaseClock,
    last: (u64, Instant),
}

impl Setback {
    /// Looks from now on.
    #[must_use]
    pub fn new(clock: LeaseClock) -> Setback {
        let last = (clock.now(), Instant::now());
        Setback { clock, last }
    }

    /// Whether the clock was set back since the last look.
    pub fn happened(&mut self) -> bool {
        let now = (self.clock.now(), Instant::now());
        let before = std::mem::replace(&mut self.last, now);
        let ticks = now.0.wrapping_sub(before.0).cast_signed();
        let went = u64::try_from(ticks).map_or(Duration::ZERO, |ticks| self.clock.span(ticks));
        lags(went, now.1 - before.1)
    }
}

/// Whether a clock that `went` so far was set back within a time that `took` so long: more than its
/// measured speed, and how it is kept in step, account for.
fn lags(went: Duration, took: Duration) -> bool {
    went + took / 50 + Duration::from_millis(10) < took
}

/// How long the machine has slept since it was started, to a few microseconds.
fn slept() -> Duration {
    use rustix::time::ClockId;
    // In this order the difference is never below nothing.
    let awake = time_of(ClockId::Monotonic);
    time_of(ClockId::Boottime).saturating_sub(awake)
}

fn time_of(clock: rustix::time::ClockId) -> Duration {
    let t = rustix::time::clock_gettime(clock);
    Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec.unsigned_abs() as u32)
}

/// Ticks of the lease clock as time of day.
#[derive(Clone, Copy, Debug)]
pub struct Timeline {
    clock: LeaseClock,
    begin: (u64, Instant),
    /// How long the machine had slept at the begin.
    slept: Duration,
    /// Tick and time of day of the last [`Timeline::refresh`].
    anchor: (u64, SystemTime),
}

impl Timeline {
    /// From now on; the clock's speed is that measured so far.
    #[must_use]
    pub fn new(clock: LeaseClock) -> Timeline {
        let tick = clock.now();
        Timeline {
            clock,
            begin: (tick, Instant::now()),
            slept: slept(),
            anchor: (tick, SystemTime::now()),
        }
    }

    /// Looks at both clocks again: speed over all the time since the begin, and the time of day as
    /// it is set now. Where the machine has slept meanwhile, one of them has stood still or begun
    /// anew: the speed stays as it was known before, and all the time is that from now on. Returns
    /// whether the counter has gone back, so that earlier ticks say nothing any more.
    pub fn refresh(&mut self) -> bool {
        let tick = self.clock.now();
        let went_back = tick.wrapping_sub(self.anchor.0) > u64::MAX / 2;
        self.anchor = (tick, SystemTime::now());
        let slept = slept();
        if went_back || slept.abs_diff(self.slept) > Duration::from_millis(100) {
            (self.begin, self.slept) = ((tick, Instant::now()), slept);
            return went_back;
        }
        let took = self.begin.1.elapsed();
        // A shorter time tells less than what the clock was measured by.
        if self.clock.source == Source::Counter && took > Duration::from_millis(10) {
            let ticks = tick.wrapping_sub(self.begin.0) as f64;
            self.clock.ticks_per_second = ticks / took.as_secs_f64();
        }
        false
    }

    /// Nanoseconds since 1970 at `tick`.
    #[must_use]
    pub fn utc_ns(&self, tick: u64) -> i64 {
        let since_1970 = self.anchor.1.duration_since(UNIX_EPOCH);
        let anchor = i64::try_from(since_1970.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX);
        let ticks = tick.wrapping_sub(self.anchor.0).cast_signed() as f64;
        anchor.saturating_add((ticks / self.clock.ticks_per_second * 1e9) as i64)
    }

    /// Nanoseconds in a span of ticks.
    #[must_use]
    pub fn span_ns(&self, ticks: u64) -> u64 {
        (ticks as f64 / self.clock.ticks_per_second * 1e9) as u64
    }
}

#[cfg(target_arch = "x86_64")]
fn counter_is_invariant() -> bool {
    // Where the kernel keeps time by the counter, it has found it good. Guests keep theirs by the
    // host's word (kvm-clock), but see the processor's flags.
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    if std::fs::read_to_string(source).is_ok_and(|s| s.trim() == "tsc") {
        return true;
    }
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|l| l.starts_with("flags")).unwrap_or("");
    let both = ["constant_tsc", "nonstop_tsc"];
    both.iter()
        .all(|name| flags.split_whitespace().any(|f| f == *name))
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: rdtsc has no precondition on x86-64; a process that set PR_SET_TSC to trap is not us.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
fn counter_is_invariant() -> bool {
    true
}

#[cfg(target_arch = "aarch64")]
fn counter() -> u64 {
    let t: u64;
    // SAFETY: reading the virtual counter has no effect but on `t`.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) t, options(nomem, nostack)) };
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_day() -> LeaseClock {
        LeaseClock {
            source: Source::Realtime,
            ticks_per_second: 1e9,
        }
    }

    #[test]
    fn a_tick_in_the_future_is_as_old_as_can_be_and_none_is_older() {
        let (clock, longest) = (of_day(), Duration::from_secs(7));
        let hour = clock.ticks(Duration::from_secs(3600));
        let now = clock.now();
        for tick in [now + hour, now - hour, 1, u64::MAX, 1 << 62] {
            assert_eq!(clock.age(tick, longest), longest, "{tick}");
        }
        let second = clock.age(now - clock.ticks(Duration::from_secs(1)), longest);
        assert!(second >= Duration::from_secs(1) && second < longest);
    }

    #[test]
    fn whoever_is_interrupted_while_he_measures_finds_no_faster_clock() {
        let (ms, told) = (Duration::from_millis, Instant::now());
        // A counter of nanoseconds, read at some time between two others.
        let reading = |before, at: u64, after| Reading {
            counter: 1_000_000 * at,
            before: ms(before),
            after: ms(after),
            told,
        };
        for (start, end) in [
            (reading(0, 0, 0), reading(5, 5, 5)),
            (reading(0, 0, 0), reading(5, 35, 35)),
            (reading(0, 0, 0), reading(5, 5, 35)),
            (reading(0, 30, 30), reading(35, 35, 35)),
            (reading(0, 0, 30), reading(35, 65, 65)),
        ] {
            let speed = end.speed_since(&start);
            assert!(speed <= 1e9 && speed > 0.0, "{speed} of {start:?} {end:?}");
        }
        let now = Reading::now();
        assert!(now.counter > 0 && now.before <= now.after);
    }

    #[test]
    fn a_library_that_tells_another_time_is_noticed() {
        assert_eq!(Reading::now().wrong_speed(), None);
        let mut start = Reading::now();
        start.wait_until(Duration::from_millis(20));
        start.told = Instant::now();
        assert!(
            start.wrong_speed().is_some_and(|s| s < 0.9),
            "it stood still"
        );
    }

    #[test]
    fn a_clock_that_is_set_back_is_noticed_and_one_that_is_slow_is_not() {
        let ms = Duration::from_millis;
        for (went, took) in [(0, 250), (100, 250), (3_000, 3_600)] {
            assert!(lags(ms(went), ms(took)), "{went} of {took}");
        }
        for (went, took) in [(0, 0), (249, 250), (251, 250), (9_000, 250), (3_550, 3_600)] {
            assert!(!lags(ms(went), ms(took)), "{went} of {took}");
        }
    }
}
