//! A process beside the supervisor for what the supervisor cannot do by itself: sleep on a futex
//! word while it waits for descriptors, and close trace points when it is gone.
//!
//! A thread would do for the first, but not without cost: the supervisor forks, and ends 0.3 ms
//! later for a second thread. The second takes the kernel tens of milliseconds a trace point.

use crate::job::{keep_only, Job};
use crate::{process, signal, wait};
use rustix::event::{eventfd, EventfdFlags};
use rustix::thread::futex;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::OnceLock;
use std::time::Duration;

/// How long trace points stay on after the supervisor's end: runs that follow each other find them
/// on, instead of waiting for them to be switched off and on again (60 ms).
const LINGER: Duration = Duration::from_secs(1);

/// A futex word that victims move on and wake, as a descriptor to wait for.
pub struct Doorbell {
    fd: OwnedFd,
    /// The word as it was when nobody could have rung.
    quiet: u32,
}

impl Doorbell {
    /// A bell that is `word`; nobody listens to it before [`attend`].
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn new(word: &AtomicU32) -> io::Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let quiet = word.load(Ordering::SeqCst);
        Ok(Doorbell { fd, quiet })
    }

    /// Another word that rings this bell: one that was 0 when nobody could have rung.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn beside(&self) -> io::Result<Doorbell> {
        let fd = self.fd.try_clone()?;
        Ok(Doorbell { fd, quiet: 0 })
    }

    /// Forgets the rings so far.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What an attendant holds for its parent.
#[derive(Default)]
pub struct Held<'a> {
    /// Closed when the parent ends.
    pub until_the_end: Vec<BorrowedFd<'a>>,
    /// Closed a second later.
    pub longer: Vec<BorrowedFd<'a>>,
}

/// Closed by number in the attendant when its parent ends.
static AT_THE_END: OnceLock<Vec<RawFd>> = OnceLock::new();
/// Whether the attendant has anything to hold longer.
static LINGERS: AtomicBool = AtomicBool::new(false);

/// Starts the attendant: it listens to the bell, if any (`word` is shared memory), also to what
/// rang since [`Doorbell::new`], and holds the descriptors. It ends by itself after this process.
///
/// # Errors
/// `EAGAIN` where no process can be had.
pub fn attend(bell: Option<(&Doorbell, &AtomicU32)>, held: &Held<'_>) -> io::Result<Job> {
    let parent = std::process::id();
    Job::start(move || {
        let mut all = held.longer.clone();
        all.extend(&held.until_the_end);
        all.extend(bell.iter().map(|(bell, _)| bell.as_fd()));
        // This process uses them by number, until _exit.
        std::mem::forget(keep_only(&all));
        let at_the_end = held.until_the_end.iter().map(AsRawFd::as_raw_fd).collect();
        let _ = AT_THE_END.set(at_the_end);
        LINGERS.store(!held.longer.is_empty(), Ordering::Relaxed);
        // A session of its own: what is sent to the terminal's processes is not for it.
        process::leave_session();
        leave_namespaces();
        process::move_to_init();
        process::set_name(c"synclater-attend");
        signal::handle(libc::SIGTERM, end);
        process::send_at_parents_death(libc::SIGTERM);
        if process::parent() != parent {
            end(0);
        }
        match bell {
            Some((bell, word)) => listen(bell, word),
            None => loop {
                let _ = wait::any(&[], Duration::from_secs(3600));
            },
        }
    })
}

/// Goes to process 1's network, and to the root of its mount namespace, where that is allowed
/// (root; setns(2)): it outlives its parent, and would keep the parent's, with what is there alone.
fn leave_namespaces() {
    use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
    let kinds = [
        ("net", LinkNameSpaceType::Network),
        ("mnt", LinkNameSpaceType::Mount),
    ];
    for (name, kind) in kinds {
        if let Ok(namespace) = std::fs::File::open(format!("/proc/1/ns/{name}")) {
            let _ = move_into_link_name_space(namespace.as_fd(), Some(kind));
        }
    }
}

fn listen(bell: &Doorbell, word: &AtomicU32) -> ! {
    let mut seen = bell.quiet;
    loop {
        let _ = futex::wait(word, futex::Flags::empty(), seen, None);
        let now = word.load(Ordering::SeqCst);
        if now != seen {
            seen = now;
            let _ = rustix::io::write(&bell.fd, &1u64.to_ne_bytes());
        }
    }
}

/// The parent has ended. A signal handler: only system calls, and it does not return.
extern "C" fn end(_: i32) {
    for fd in AT_THE_END.get().into_iter().flatten() {
        // SAFETY: a descriptor of this process that nothing uses any more.
        unsafe { libc::close(*fd) };
    }
    if LINGERS.load(Ordering::Relaxed) {
        let linger = i32::try_from(LINGER.as_millis()).unwrap_or(0);
        // SAFETY: no descriptors are looked at.
        unsafe { libc::poll(std::ptr::null_mut(), 0, linger) };
    }
    // SAFETY: ends this process, which is a fork, without running exit handlers.
    unsafe { libc::_exit(0) }
}
