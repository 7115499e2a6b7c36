//! The processes that sleep on the doorbells for the loop, and hold trace points until the end.
//!
//! One that is killed is started again at once, but once a heartbeat at most. Without one the loop
//! looks at every heartbeat only, which a bound of milliseconds does not allow for.

use super::{Supervisor, BEAT};
use crate::session::filesystems::root_stays;
use std::io;
use std::time::{Duration, Instant};
use synclater_sys::attendant::{attend, Held};
use synclater_sys::job::Job;
use synclater_sys::mount::namespace_number;

/// How long one that has just been started may take to go away, and how often it is looked.
const BEGINS: Duration = Duration::from_millis(20);
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Whose doorbell is listened to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bell {
    /// That of the session's owner.
    Own,
    /// That of another user.
    Of {
        /// Where that user's slots are.
        room: usize,
    },
}

/// All of them.
#[derive(Default)]
pub(super) struct Attendants {
    jobs: Vec<(Job, Option<Bell>)>,
    /// Those that nobody listens to.
    unheard: Vec<Bell>,
    /// So many other users' doorbells have been looked at.
    others: usize,
    /// When one was started again last.
    again: Option<Instant>,
}

impl Attendants {
    fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Ends them, and waits until they are gone with all that they held.
    fn end(self) {
        self.jobs.into_iter().for_each(|(job, _)| job.end());
    }

    /// Whether all are in the mount namespace of process 1, which they go to as they begin: in ours
    /// they would keep that, and what is mounted there alone.
    fn are_away(&self) -> bool {
        let begun = Instant::now();
        self.jobs.iter().all(|(job, _)| is_away(job.pid(), begun))
    }
}

/// Whether process `pid` is in the mount namespace of process 1; where it is not, that is waited
/// for, for a moment from `begun` on.
fn is_away(pid: u32, begun: Instant) -> bool {
    loop {
        let (its, of_init) = (mount_namespace_of(pid), mount_namespace_of(1));
        if of_init == 0 || its == of_init || begun.elapsed() > BEGINS {
            return of_init != 0 && its == of_init;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn mount_namespace_of(pid: u32) -> u64 {
    namespace_number(format!("/proc/{pid}/ns/mnt").as_ref())
}

impl Supervisor {
    /// Starts what listens to the doorbell and switches the kernel's trace points off in the end.
    pub(super) fn attend(&mut self) {
        self.listen_to(Bell::Own);
    }

    /// Starts what only switches the trace points off.
    pub(super) fn hold_for_later(&mut self) {
        let job = attend(None, &self.seen.escapes.held());
        self.is_attended_by(job, None);
    }

    /// At the end of the session: they stay for a second, where nothing of ours is kept by that. In
    /// a chroot, say, that is unmounted next, nothing of ours may be left.
    pub(super) fn leave_attendants(&mut self) {
        let stays = root_stays();
        if stays && self.ways.attendants.is_empty() {
            self.hold_for_later();
        }
        if !stays || !self.ways.attendants.are_away() {
            std::mem::take(&mut self.ways.attendants).end();
        }
    }

    /// Listens to the doorbells of other users that have joined since, too.
    pub(super) fn attend_others(&mut self) {
        let taken = self.session.shared.others().taken();
        let begun = std::mem::replace(&mut self.ways.attendants.others, taken);
        for room in begun..taken {
            self.listen_to(Bell::Of { room });
        }
    }

    /// Takes note of those that were killed.
    pub(super) fn forget_attendants_that_ended(&mut self) {
        let Attendants { jobs, unheard, .. } = &mut self.ways.attendants;
        jobs.retain(|(job, bell)| {
            let is_there = job.finished().is_none();
            if !is_there {
                unheard.extend(*bell);
            }
            is_there
        });
    }

    /// Starts those again that were killed, or could not be started.
    pub(super) fn attend_again(&mut self) {
        let all = &mut self.ways.attendants;
        if all.unheard.is_empty() || all.again.is_some_and(|at| at.elapsed() < BEAT) {
            return;
        }
        all.again = Some(Instant::now());
        for bell in std::mem::take(&mut self.ways.attendants.unheard) {
            self.listen_to(bell);
        }
    }

    fn listen_to(&mut self, bell: Bell) {
        let job = match bell {
            Bell::Own => {
                let word = &self.session.shared.slots().doorbell;
                attend(
                    Some((&self.doors.doorbell, word)),
                    &self.seen.escapes.held(),
                )
            }
            Bell::Of { room } => {
                let word = &self.session.shared.others().slots(room).doorbell;
                let bell = self.doors.doorbell.beside();
                bell.and_then(|bell| attend(Some((&bell, word)), &Held::default()))
            }
        };
        self.is_attended_by(job, Some(bell));
    }

    pub(super) fn is_attended_by(&mut self, job: io::Result<Job>, bell: Option<Bell>) {
        match job {
            Ok(job) => self.ways.attendants.jobs.push((job, bell)),
            Err(_) => self.ways.attendants.unheard.extend(bell),
        }
    }
}
