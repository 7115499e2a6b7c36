//! A look at who of a session writes where, by a child: it takes as long as the members have files
//! open, and longer where the kernel keeps one of them waiting.

use super::mounts::mounts_of;
use super::usage::{written_by, About};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use synclater_sys::job::{self, Job};
use synclater_sys::socket;
use synclater_sys::wait::{self, For};

/// Device numbers of the superblocks that members write to, as mountinfo shows them; `None` where
/// that cannot be told: any.
pub type Written = Option<BTreeSet<u64>>;

/// How long one look may take: then it is not known.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// So many descriptors of one process a child looks at.
const DESCRIPTORS_MAX: usize = 1 << 16;

/// So many we do, whose heartbeat waits for that.
const DESCRIPTORS_MAX_HERE: usize = 1024;

/// More superblocks than these are any.
const SUPERBLOCKS_MAX: usize = 4096;

/// How often the members are looked at, as long as new ones are found, where one that is not seen
/// would be lost: it may have started another meanwhile, given it the file, and ended.
const ROUNDS_MAX: usize = 4;

/// One that has been begun.
pub struct Look {
    way: Way,
    begun: Instant,
}

enum Way {
    Child(Job, OwnedFd),
    /// No child could be had: it was done at once.
    Here(Written),
}

impl Look {
    /// Begins to look at `members`, who are asked for as often as it takes. `held` are the own
    /// numbers of the superblocks that are held.
    #[must_use]
    pub fn begin(about: About, held: &BTreeSet<u64>, members: impl Fn() -> BTreeSet<u32>) -> Look {
        let begun = Instant::now();
        let way = match in_a_child(|| look(about, held, &members, DESCRIPTORS_MAX)) {
            Ok((job, answer)) => Way::Child(job, answer),
            Err(_) => Way::Here(look(about, held, &members, DESCRIPTORS_MAX_HERE)),
        };
        Look { way, begun }
    }

    /// The child that does it.
    #[must_use]
    pub fn job(&self) -> Option<&Job> {
        match &self.way {
            Way::Child(job, _) => Some(job),
            Way::Here(_) => None,
        }
    }

    /// How long ago it was begun.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Ends it: what was seen nobody wants any more.
    pub fn end(self) {
        if let Way::Child(job, _) = self.way {
            job.end();
        }
    }

    /// What was seen, once that is known.
    #[must_use]
    pub fn finished(&self) -> Option<Written> {
        let (job, answer) = match &self.way {
            Way::Here(written) => return Some(written.clone()),
            Way::Child(job, answer) => (job, answer),
        };
        match job.finished() {
            Some(0) => Some(told(answer)),
            Some(_) => Some(None),
            None if self.age() > LOOK_MAX => {
                job.kill();
                Some(None)
            }
            None => None,
        }
    }

    /// As [`Look::finished`], waiting for it for as long as a look may take.
    #[must_use]
    pub fn result(&self) -> Written {
        loop {
            if let Some(written) = self.finished() {
                return written;
            }
            let left = LOOK_MAX.saturating_sub(self.age()) + Duration::from_millis(1);
            let job = self.job().map(|job| (job.as_fd(), For::Input));
            let _ = wait::any(job.as_slice(), left);
        }
    }
}

fn in_a_child(look: impl FnOnce() -> Written) -> io::Result<(Job, OwnedFd)> {
    let (answer, theirs) = socket::pair()?;
    let job = job::beside_us(c"synclater-look", &[theirs.as_fd()], |kept| {
        let done = tell(kept[0].as_fd(), &look());
        i32::from(done.is_err())
    })?;
    Ok((job, answer))
}

/// Where others start all the time each round finds new ones: what so many have open is answer
/// enough.
fn look(
    about: About,
    held: &BTreeSet<u64>,
    members: &impl Fn() -> BTreeSet<u32>,
    most: usize,
) -> Written {
    let ours = mounts_of("self");
    let mut written = BTreeSet::new();
    let mut before = BTreeSet::new();
    let rounds = match about {
        About::Sync => 1,
        About::Umount => ROUNDS_MAX,
    };
    for _ in 0..rounds {
        let mut now = members();
        now.remove(&std::process::id());
        for pid in &now {
            written.extend(written_by(*pid, (&ours, held), (about, most))?);
        }
        if now.is_subset(&before) {
            break;
        }
        before = now;
    }
    Some(written).filter(|w| w.len() <= SUPERBLOCKS_MAX)
}

fn tell(to: BorrowedFd<'_>, written: &Written) -> io::Result<()> {
    let mut bytes = vec![u8::from(written.is_some())];
    let numbers = written.iter().flatten();
    bytes.extend(numbers.flat_map(|number| number.to_le_bytes()));
    socket::send(to, &bytes, &[])
}

fn told(answer: &OwnedFd) -> Written {
    let mut bytes = vec![0; 1 + SUPERBLOCKS_MAX * size_of::<u64>()];
    let (length, _) = socket::receive(answer, &mut bytes).ok()?;
    let (is_known, numbers) = bytes.get(..length)?.split_first()?;
    let (numbers, _) = numbers.as_chunks();
    (*is_known == 1).then(|| numbers.iter().map(|n| u64::from_le_bytes(*n)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_tells_what_it_has_seen() {
        let (ours, theirs) = socket::pair().expect("a pair");
        let most: BTreeSet<u64> = (0..4096).collect();
        for written in [None, Some(BTreeSet::new()), Some(most)] {
            tell(theirs.as_fd(), &written).expect("told");
            assert_eq!(told(&ours), written);
        }
        drop(theirs);
        assert_eq!(told(&ours), None);
    }

    #[test]
    fn what_cannot_be_told_of_one_is_not_told_of_all() {
        let us = std::process::id();
        let none = BTreeSet::new();
        let seen = Look::begin(About::Sync, &none, || BTreeSet::from([us])).result();
        assert!(seen.is_some());
        let nobody = Look::begin(About::Umount, &none, BTreeSet::new).result();
        assert_eq!(nobody, Some(BTreeSet::new()));
    }
}
