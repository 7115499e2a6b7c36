//! One event, or one ring of events, for each processor, also where processors go and come back.
//!
//! The kernel takes an event off for good when its processor goes, as in a suspend all but one do
//! (perf_event_exit_cpu, Linux 6.18): the descriptor stays, and nothing is told by it any more.
//! That shows in the time that the event has been on, which then stands still.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How far two looks at an event have to be apart for its time to have gone on.
const APART: Duration = Duration::from_millis(20);

/// What is open on each processor.
pub(crate) struct EachProcessor<T> {
    open: Box<dyn Fn(usize) -> io::Result<T> + Send>,
    all: Vec<One<T>>,
    looked: Instant,
}

struct One<T> {
    cpu: usize,
    it: T,
    /// How long it had been on at the last look, in nanoseconds.
    on_for: u64,
    has_ended: bool,
}

impl<T> One<T> {
    fn new(cpu: usize, it: T) -> One<T> {
        One {
            cpu,
            it,
            on_for: 0,
            has_ended: false,
        }
    }
}

impl<T: AsFd> EachProcessor<T> {
    /// Opens one on each processor that is there.
    ///
    /// # Errors
    /// Those of `open`, but for one that has gone meanwhile.
    pub(crate) fn open(
        open: impl Fn(usize) -> io::Result<T> + Send + 'static,
    ) -> io::Result<EachProcessor<T>> {
        let mut all = Vec::new();
        for cpu in online_processors() {
            match open(cpu) {
                Ok(it) => all.push(One::new(cpu, it)),
                Err(e) if has_gone(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(EachProcessor {
            open: Box::new(open),
            all,
            looked: Instant::now(),
        })
    }

    /// Opens one anew on each processor that has come back, or is new. What it finds to have ended
    /// is still there until the next call: what that has told can be read.
    /// Returns whether one was opened: what happened on its processor before is not known.
    pub(crate) fn look(&mut self) -> bool {
        if self.looked.elapsed() < APART {
            return false;
        }
        self.looked = Instant::now();
        self.all.retain(|one| !one.has_ended);
        for one in &mut self.all {
            // One that cannot be read is taken to go on.
            let now = counted(one.it.as_fd()).map_or(u64::MAX, |c| c.on_for);
            one.has_ended = now == std::mem::replace(&mut one.on_for, now) && now != u64::MAX;
        }
        let online = online_processors().into_iter();
        let missing = online.filter(|cpu| !self.has_one(*cpu));
        // Where it cannot be opened, the next look tries again.
        let opened = missing.filter_map(|cpu| Some(One::new(cpu, (self.open)(cpu).ok()?)));
        let opened: Vec<One<T>> = opened.collect();
        let is_new = !opened.is_empty();
        self.all.extend(opened);
        is_new
    }

    /// Whether there is one that goes on, on this processor.
    fn has_one(&self, cpu: usize) -> bool {
        let mut all = self.all.iter();
        all.any(|one| one.cpu == cpu && !one.has_ended)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter().map(|one| &one.it)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.all.iter_mut().map(|one| &mut one.it)
    }
}

fn has_gone(e: &io::Error) -> bool {
    e.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

/// What an event tells of itself.
#[derive(Default)]
pub(crate) struct Counted {
    /// How often it has happened.
    pub times: u64,
    /// For how many nanoseconds it has been on.
    pub on_for: u64,
    /// How many of its records found no room, where it was asked for that.
    pub lost: Option<u64>,
}

pub(crate) fn counted(event: BorrowedFd<'_>) -> Option<Counted> {
    let mut all = [0u8; 24];
    let len = rustix::io::read(event, &mut all).ok()?;
    let told = &all[..len];
    Some(Counted {
        times: word(told, 0)?,
        on_for: word(told, 8)?,
        lost: word(told, 16),
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

/// The processors of the machine, whatever this process may run on: "0-3,6".
fn online_processors() -> Vec<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online");
    let list = list.unwrap_or_else(|_| {
        // Where /sys is not mounted: "cpu0 ...", each on a line (proc_stat(5)).
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let numbers = stat
            .lines()
            .filter_map(|l| l.strip_prefix("cpu")?.split(' ').next());
        numbers.collect::<Vec<_>>().join(",")
    });
    list.split(',').filter_map(range).flatten().collect()
}

/// The range that a part of a list stands for: "0-3", or "6".
fn range(part: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (from, to) = part.split_once('-').unwrap_or((part, part));
    Some(from.trim().parse().ok()?..=to.trim().parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    /// Looks until one is opened anew.
    fn is_opened_anew(each: &mut EachProcessor<File>, within: Duration) -> bool {
        let until = Instant::now() + within;
        while Instant::now() < until {
            if each.look() {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    #[test]
    fn what_stands_still_is_opened_anew() {
        let opened = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&opened);
        // The time of the first one stands still, that of others does not.
        let open = move |_| match count.fetch_add(1, Ordering::SeqCst) {
            0 => File::open("/dev/zero"),
            _ => File::open("/dev/urandom"),
        };
        let mut each = EachProcessor::open(open).unwrap();
        let before = opened.load(Ordering::SeqCst);
        assert_eq!(before, online_processors().len());

        assert!(is_opened_anew(&mut each, Duration::from_secs(10)));
        assert_eq!(opened.load(Ordering::SeqCst), before + 1);
        assert_eq!(each.iter().count(), before + 1, "what it told is lost");
        assert!(!is_opened_anew(&mut each, APART * 5));
        assert_eq!(each.iter().count(), before);
    }

    #[test]
    fn a_processor_that_goes_meanwhile_is_passed_over() {
        let gone = |_| Err::<File, _>(rustix::io::Errno::NODEV.into());
        assert_eq!(EachProcessor::open(gone).unwrap().iter().count(), 0);
        let refused = |_| Err::<File, _>(rustix::io::Errno::ACCESS.into());
        assert!(EachProcessor::open(refused).is_err());
    }
}
