//! Looks at processes that may keep whoever looks waiting.
//!
//! `/proc/PID/maps` and its like wait for a lock of that process, which it may hold for as long as
//! it likes: while it unmaps a file of a file system whose server it is itself, say (FUSE). So a
//! child looks, and who keeps it waiting is passed over.
//!
//! Relies on: the wait for that lock ending with a SIGKILL (Linux 5.8, `mmap_read_lock_killable`).

use crate::{job, wait};
use rustix::pipe::{pipe_with, PipeFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long one may keep a child waiting.
pub(crate) const STUCK: Duration = Duration::from_millis(100);

/// How long one may that is looked at for the second time: a busy machine, too, keeps a child
/// waiting.
const STUCK_AGAIN: Duration = Duration::from_millis(300);

/// How often whoever keeps a child waiting is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// Once.
    One,
    /// Twice: in doubt something is said of it.
    Two,
}

/// So many a child looks at: of each it says a byte, and a pipe has room for all.
const AT_ONCE: usize = 1 << 15;

/// What `look` tells of each of these processes, in their order; `None` of those that kept it
/// waiting, and of those that nobody looked at within `patience`.
pub fn of_each(
    pids: &[u32],
    patience: Duration,
    looks: Looks,
    look: impl Fn(u32) -> u8,
) -> Vec<Option<u8>> {
    let until = Instant::now() + patience;
    let mut told = one_round(pids, until, STUCK, &look);
    if looks == Looks::Two {
        let silent: Vec<usize> = (0..pids.len()).filter(|i| told[*i].is_none()).collect();
        let again: Vec<u32> = silent.iter().map(|i| pids[*i]).collect();
        let again = one_round(&again, until, STUCK_AGAIN, &look);
        silent
            .into_iter()
            .zip(again)
            .for_each(|(i, now)| told[i] = now);
    }
    told
}

fn one_round(
    pids: &[u32],
    until: Instant,
    stuck: Duration,
    look: &impl Fn(u32) -> u8,
) -> Vec<Option<u8>> {
    let mut told = Vec::with_capacity(pids.len());
    while told.len() < pids.len() && Instant::now() < until {
        let next = &pids[told.len()..];
        let next = &next[..next.len().min(AT_ONCE)];
        let Ok(more) = in_a_child(next, until, stuck, look) else {
            break;
        };
        let is_stuck = more.len() < next.len();
        told.extend(more.into_iter().map(Some));
        if Instant::now() < until {
            told.extend(is_stuck.then_some(None));
        }
    }
    told.resize(pids.len(), None);
    told
}

/// What a child tells of these, up to the first one that keeps it waiting for as long as `stuck`.
fn in_a_child(
    pids: &[u32],
    until: Instant,
    stuck: Duration,
    look: &impl Fn(u32) -> u8,
) -> io::Result<Vec<u8>> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let job = job::beside_us(c"synclater-look", &[theirs.as_fd()], |kept| {
        let mut pids = pids.iter();
        let all_told = pids.all(|pid| rustix::io::write(&kept[0], &[look(*pid)]).is_ok());
        i32::from(!all_told)
    })?;
    drop(theirs);
    let told = hear(&ours, until, stuck, pids.len());
    job.end();
    Ok(told)
}

/// Up to `most` bytes, as long as the next one comes soon.
fn hear(from: &OwnedFd, until: Instant, soon: Duration, most: usize) -> Vec<u8> {
    let (mut all, mut some) = (Vec::new(), [0; 4096]);
    while all.len() < most {
        let left = until.saturating_duration_since(Instant::now());
        if !wait::for_input(from, soon.min(left)) {
            break;
        }
        match rustix::io::read(from, &mut some) {
            Ok(0) | Err(_) => break,
            Ok(n) => all.extend_from_slice(&some[..n]),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_of_but_who_keeps_the_child_waiting() {
        let look = |pid: u32| {
            if pid == 3 {
                let _ = wait::any(&[], Duration::from_secs(600));
            }
            pid as u8
        };
        let pids: Vec<u32> = (1..=5).collect();
        for looks in [Looks::One, Looks::Two] {
            let told = of_each(&pids, Duration::from_secs(60), looks, look);
            assert_eq!(told, [Some(1), Some(2), None, Some(4), Some(5)]);
            assert_eq!(of_each(&pids, Duration::ZERO, looks, look), [None; 5]);
            assert_eq!(of_each(&[], Duration::from_secs(1), looks, look), []);
        }
    }
}
