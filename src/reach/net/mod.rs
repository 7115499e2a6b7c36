//! Net: a seccomp filter in the command asks about every sync request that nothing else sees
//! (inline system calls of static programs, Go and the like), and two processes answer.
//!
//! Promise: no single death leaves a program without answers. The filter cannot be taken off, and
//! without a listener the kernel fails every call that it asks about with `ENOSYS`, so two
//! processes hold it: one answers, one watches, and whichever ends is replaced by the other. They
//! go on until the last program with the filter has ended, also after the session; then what they
//! are asked is made by the program itself.
//! In doubt the request is made: where a descriptor cannot be looked at, where too many are being
//! made at once, where the lease has run out.
//!
//! Map: [`desk`] decides about one request, for the program in [`visitor`]; [`clerk`] is the two
//! processes, and [`threads`] those of the one that answers.

mod clerk;
mod desk;
mod threads;
mod visitor;

use crate::session::compile::Users;
use crate::session::shared::Shared;
use rustix::net::sockopt::Timeout;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use synclater_patching::filter;
use synclater_policy::dial::Until;
use synclater_policy::rules::RuleSet;
use synclater_shim::page;
use synclater_sys::job::{self, Job};
use synclater_sys::seccomp::{has_x32, try_out, Filter, Listener, Seats};
use synclater_sys::{process, socket};

/// Who is sent the listener: the two that answer, and the supervisor, should both end.
const HOLDERS: usize = 3;

/// What the answering processes are called.
pub const NAME: &std::ffi::CStr = c"synclater-net";

/// How many firsts there may be at the same time: those that stand still count.
const PAIRS: usize = 3;

/// How long the first of them may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the answering processes work with: page and slots, rules, and the dial of each class.
#[derive(Clone)]
pub struct Terms {
    /// Page and slots.
    pub shared: &'static Shared,
    /// The rules, if any.
    pub rules: Option<RuleSet>,
    /// Which of the page's rules each of them is.
    pub places: Vec<Range<usize>>,
    /// The dial of each class that the rules name, as they were compiled.
    pub classes: Vec<Until>,
    /// Users, where the rules ask for them.
    pub users: Users,
    /// The session's supervisor.
    pub supervisor: u32,
}

/// The supervisor's end.
pub struct Net {
    terms: Terms,
    seats: &'static Seats,
    clerks: Vec<Job>,
    door: Option<(OwnedFd, OwnedFd)>,
    listener: Option<Listener>,
    /// At how many looks in a row a request stood there and nobody took any, and how many had been
    /// taken.
    unanswered: u32,
    received: u64,
}

impl Net {
    /// Starts the two processes; they have nothing to do yet. From now on real calls of the library
    /// carry the session's cookie.
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had, `ENOMEM`, `ETIMEDOUT`.
    pub fn start(terms: Terms) -> io::Result<Net> {
        if !process::proc_is_ours() {
            return Err(io::Error::other(
                "/proc is not there, or shows another pid namespace than ours",
            ));
        }
        // Before there are threads.
        let _ = has_x32();
        let seats: &'static Seats =
            Box::leak(Box::new(Seats::new(clerk::DESKS, threads::THREADS)?));
        let (door, behind) = socket::pair()?;
        let (ready, to) = socket::pair()?;
        rustix::net::sockopt::set_socket_timeout(&ready, Timeout::Recv, Some(PATIENCE))?;
        let (inside, of_clerk) = (behind.as_fd(), terms.clone());
        let first = Job::start(move || {
            let mut kept = job::keep_only(&[inside, to.as_fd()]);
            // `kept` owns both now.
            std::mem::forget(to);
            let to = kept.pop();
            let Some((behind, to)) = kept.pop().zip(to) else {
                return 1;
            };
            clerk::begin(of_clerk, seats, behind, to)
        })?;
        let page = terms.shared.page();
        page.net.store(cookie(), SeqCst);
        // What the command begins with is one more than what we have.
        page.filters.fetch_add(1, SeqCst);
        let net = Net {
            terms,
            seats,
            clerks: vec![first],
            door: Some((door, behind)),
            listener: None,
            unanswered: 0,
            received: 0,
        };
        let mut buf = [0; 1];
        match socket::receive(&ready, &mut buf) {
            Ok((1, _)) => Ok(net),
            Ok(_) => Err(io::Error::other("the one that answers has ended at once")),
            Err(e) => Err(e),
        }
    }

    /// The filter that the command puts on itself.
    #[must_use]
    pub fn filter(&self) -> Option<Filter> {
        let (door, _) = self.door.as_ref()?;
        let net = self.terms.shared.page().net.load(SeqCst);
        let program = filter::program(page::cookie(net));
        Some(Filter::new(
            &program,
            door.as_fd(),
            HOLDERS,
            gives_up_rights(),
        ))
    }

    /// Takes the listener that a command has sent which was started.
    pub fn command_started(&mut self) {
        let Some((_, behind)) = self.door.take() else {
            return;
        };
        let mut buf = [0; 4];
        let sent = socket::receive(&behind, &mut buf);
        let fd = sent.ok().and_then(|(_, mut fds)| fds.pop());
        self.listener = fd.map(Listener::new);
    }

    /// Why a command was not started that could not put the filter on itself; `None` where that
    /// was not why. Ends the two processes.
    pub fn command_failed(&mut self) -> Option<io::Error> {
        let (door, behind) = self.door.take()?;
        // Whoever would write is gone: there is an end to what can be read.
        drop(door);
        let mut buf = [0; 4];
        let sent = socket::receive(&behind, &mut buf);
        let errno = matches!(sent, Ok((4, _))).then(|| i32::from_ne_bytes(buf));
        errno.map(io::Error::from_raw_os_error)
    }

    /// Looks whether requests are answered, about four times a second.
    pub fn look(&mut self) {
        self.clerks.retain(|job| job.finished().is_none());
        let received = std::mem::replace(&mut self.received, self.seats.received());
        let stands = self.listener.as_ref().is_some_and(Listener::has_call);
        let stands = stands && received == self.received;
        let stands = stands || clerk::has_orphans(self.seats);
        self.unanswered = if stands { self.unanswered + 1 } else { 0 };
        if self.unanswered < 4 || self.clerks.len() > PAIRS {
            return;
        }
        self.unanswered = 0;
        // Both have ended, or stand still.
        let Some(listener) = &self.listener else {
            return;
        };
        let (fd, terms, seats) = (listener.as_fd(), self.terms.clone(), self.seats);
        let another = Job::start(move || clerk::take_over(terms, seats, fd));
        self.clerks.extend(another);
    }
}

/// A number that is not 0, and that no program's register holds by chance.
fn cookie() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    // Seeded by the kernel, anew in each process.
    let random = std::hash::RandomState::new().build_hasher().finish();
    (random as u32) | 1
}

/// Whether the command has to give up the rights that setuid programs would gain.
#[must_use]
pub fn gives_up_rights() -> bool {
    use rustix::thread::{capabilities, no_new_privs, CapabilitySet};
    let may = capabilities(None).is_ok_and(|c| c.effective.contains(CapabilitySet::SYS_ADMIN));
    !may && !no_new_privs().unwrap_or(false)
}

/// Whether a net can be had here.
///
/// # Errors
/// Those of [`try_out`]; `EAGAIN` where no process can be had to try it.
pub fn can_be_had() -> io::Result<()> {
    let trial = Job::start(|| match try_out(gives_up_rights()) {
        Ok(()) => 0,
        Err(e) => e.raw_os_error().unwrap_or(1),
    })?;
    let _ = synclater_sys::wait::any(
        &[(trial.as_fd(), synclater_sys::wait::For::Input)],
        PATIENCE,
    );
    match trial.finished() {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// What an error of seccomp(2) means here.
#[must_use]
pub fn explain(e: &io::Error) -> String {
    use rustix::io::Errno;
    match Errno::from_io_error(e) {
        Some(Errno::BUSY) => "a filter around us asks somebody already (a container's runtime, \
                              or another --net)"
            .into(),
        Some(Errno::INVAL) => format!(
            "this kernel has no seccomp user notification that waits ({}; Linux 5.19 has)",
            rustix::system::uname().release().to_string_lossy()
        ),
        _ => e.to_string(),
    }
}
