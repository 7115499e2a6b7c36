//! `synclater settle`: pay now.

use super::paid::{lost_elsewhere, FOR_ERRORS, NOT_KNOWN};
use super::set::ask_named;
use super::{paid, OURS};
use crate::session::belongings::memory_of;
use crate::session::control::{self, Listens, Living, Request};
use crate::session::debtor::Debtor;
use crate::session::device;
use crate::session::durable::{self, Settled};
use crate::session::ledger::Ledger;
use crate::session::life;
use crate::session::losses::KILLED;
use crate::session::marks::{SyncMark, SyncedFs};
use crate::session::orphans::{self, PATIENCE};
use crate::session::shared;
use crate::session::stale::{self, Cleared, Debt};
use crate::session::told;
use crate::session::underway;
use crate::voice;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use synclater_account::run::SettleError;
use synclater_sys::clock::Reading;
use synclater_sys::job::{self, Job};
use synclater_sys::{mount, process, signal};
use synclater_text::layout::shown;
use synclater_text::message::Trouble;

/// Makes durable what was asked for so far: of one session, of file systems, or of all sessions.
///
/// "All sessions" are those of one user, in one run folder.
///
/// Exit status: 0 (also where a file system was written, and more is not known: a line says so), or
/// 125 where something could not be settled, the ledger could not be read, or a
/// session lives in another run folder or container; the rest is settled.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Sessions, as `synclater ps` names them, or paths (with a /) on the file systems to settle,
    /// or of their devices.
    #[arg(value_name = "SESSION|PATH")]
    what: Vec<OsString>,
}

/// How often it is looked whether a session listens or is gone.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a session may take from its last answer until its name is gone.
const ENDING: Duration = Duration::from_secs(2);

const OF_DEVICE: &str = "\
device settled; what a file system on it holds in memory is not: none was found that is mounted";

const EXAMPLES: &str = "\
EXAMPLES
  synclater settle
  synclater settle kelp
  synclater settle /srv/mail";

/// Settles each, also behind one that cannot be; waits for the end.
///
/// # Errors
/// Those of the output; what could not be settled is told, and gives the status 125.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    super::needs_time("settle", &Reading::now(), NOT_KNOWN)?;
    let killed = underway::note_killed();
    // First: one that ends while others are settled may leave something behind.
    let debtors = args.what.is_empty().then(listed);
    let cleared = super::clear_stale();
    let is_whole = are_settled(&cleared);
    let is_done = match debtors {
        None => each(&args.what, &killed)?,
        Some(Ok(debtors)) => all(debtors, &cleared)?,
        Some(Err(trouble)) => {
            voice::say(&format!("{trouble}\n"));
            let _ = settle_orphans(&cleared);
            false
        }
    };
    Ok(if is_whole && is_done { 0 } else { OURS })
}

/// Settles what is named; some may have been `killed` who did. Whether all could be settled.
fn each(what: &[OsString], killed: &[SyncedFs]) -> anyhow::Result<bool> {
    let mut is_whole = true;
    for name in what {
        let shown = name.to_string_lossy();
        let said = if name.as_bytes().contains(&b'/') || name == "." {
            path(Path::new(name), killed)
        } else {
            session(&shown)
        };
        is_whole &= is_told(&shown, said)?;
    }
    Ok(is_whole)
}

/// Settles what these sessions owe, but for those that were `cleared` just now, and what others owe
/// that are gone. Whether all could be settled.
fn all(mut debtors: Vec<Debtor>, cleared: &[Cleared]) -> anyhow::Result<bool> {
    let mut is_whole = settle_orphans(cleared);
    // What became of a dead one was told just now.
    debtors.retain(|d| !cleared.iter().any(|c| c.id == d.id()));
    if debtors.is_empty() && is_whole && are_settled(cleared) {
        voice::print("no sessions\n")?;
    }
    let mut ended = Vec::new();
    for debtor in &debtors {
        let id = debtor.id();
        let said = session(id);
        // Names are used again: then it was another one that answered.
        if debtor.is_there() && (said.is_ok() || !has_ended_since(id)) {
            is_whole &= is_told(id, said)?;
        } else {
            ended.push(debtor);
        }
    }
    if are_paid(&ended) {
        for debtor in ended {
            voice::print(&format!("{}: ended meanwhile\n", debtor.id()))?;
        }
    } else {
        is_whole = false
    }
    Ok(is_whole)
}

fn session(name: &str) -> Result<String, Trouble> {
    let done = ask_named(name, &Request::Settle).map_err(|mut trouble| {
        if Path::new(name).symlink_metadata().is_ok() {
            trouble.try_ = format!("{}; for the file of that name: ./{name}", trouble.try_);
        }
        trouble
    })?;
    match lost_elsewhere(name, format!("cannot settle {name}")) {
        None => Ok(done.said),
        Some(trouble) => Err(trouble),
    }
}

fn is_told(name: &str, said: Result<String, Trouble>) -> anyhow::Result<bool> {
    match &said {
        Ok(said) => voice::print(&format!("{}: {said}\n", shown(name)))?,
        Err(trouble) => voice::say(&format!("{trouble}\n")),
    }
    Ok(said.is_ok())
}

/// The sessions, and what says where the entry of each is: read at once, as one may be gone while
/// another is waited for. The folder of one that begins may still be as an earlier one left it,
/// until it listens; that of one that is gone says nothing any more.
fn listed() -> Result<Vec<Debtor>, Trouble> {
    let at_once: Vec<Debtor> = control::listed()?.iter().map(Debtor::of).collect();
    Ok(at_once.into_iter().map(as_it_is).collect())
}

/// A session as its folder tells of it now, or as it did `before` where that says nothing more.
fn as_it_is(before: Debtor) -> Debtor {
    if has_ended(before.id()) {
        before
    } else {
        Some(Debtor::named(before.id()))
            .filter(Debtor::is_told)
            .unwrap_or(before)
    }
}

/// Whether all that these sessions owed is settled, which ended meanwhile; says why not. Their
/// keepers are at it, if they have been killed; what those leave is settled in their place.
fn are_paid(ended: &[&Debtor]) -> bool {
    ended
        .iter()
        .for_each(|debtor| paid::wait_for(debtor, PATIENCE));
    let mut is_whole = ended.is_empty() || are_settled(&clear_for(ended));
    for debtor in ended {
        is_whole &= match debtor.settle() {
            Ok(done) => super::tell_cleared(done.as_slice()),
            Err(unread) => {
                voice::say(&format!("{}\n", unread.trouble()));
                false
            }
        };
    }
    // Not where it was said just now.
    is_whole && ended.iter().all(|debtor| paid::is_paid(debtor, PATIENCE))
}

/// Clears up behind the dead, until it has come to these: one that is just being killed has held
/// its lock for some milliseconds still.
fn clear_for(ended: &[&Debtor]) -> Vec<Cleared> {
    let begun = Instant::now();
    let mut cleared = super::clear_stale();
    while ended.iter().any(|d| is_missed(d, &cleared)) && begun.elapsed() < PATIENCE {
        sleep(PAUSE);
        let mut more = stale::clear();
        // What cannot be settled is found each time.
        more.retain(|one| !cleared.contains(one));
        let _ = super::tell_cleared(&more);
        cleared.extend(more);
    }
    cleared
}

/// Whether a session is dead and owes, and was not cleared up behind.
fn is_missed(debtor: &Debtor, cleared: &[Cleared]) -> bool {
    let is_new = cleared.iter().all(|one| one.id != debtor.id());
    is_new && debtor.is_there() && matches!(debtor.debt(), Ok(Debt::Open(_)))
}

fn are_settled(cleared: &[Cleared]) -> bool {
    cleared.iter().all(Cleared::is_whole)
}

/// Whether a session that was there is not any more. One that begins listens last, and one that
/// clears up behind itself takes its name away last: it waits for either.
fn has_ended(id: &str) -> bool {
    is_gone(id, ENDING, |_| false)
}

/// The same of one that has hung up: somebody who is being killed may still listen, and who clears
/// up behind it may wait for its lease.
fn has_ended_since(id: &str) -> bool {
    is_gone(id, shared::RELAXES_ON + ENDING, |session| {
        let answer = control::ask(session, &Request::Hello);
        answer.is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock)
    })
}

/// Waits for `patience` at most. `is_going` tells of a session that is listened to whether that is
/// to be waited for, too.
fn is_gone(id: &str, patience: Duration, is_going: impl Fn(&Living) -> bool) -> bool {
    let begun = Instant::now();
    loop {
        let Some(session) = control::session(id) else {
            return true;
        };
        let changes = match control::listens_in(&memory_of(&session.dir)) {
            Listens::Nobody => return true,
            Listens::NotKnown => true,
            Listens::Supervisor { .. } => is_going(&session),
        };
        if !changes || begun.elapsed() > patience {
            return false;
        }
        sleep(PAUSE);
    }
}

/// Settles what sessions owe that are gone without a trace. Whether all of the ledger could be
/// read, and is durable. What was `tried` just now is not tried again.
fn settle_orphans(tried: &[Cleared]) -> bool {
    match Ledger::existing(told::note_of_ledger) {
        Ok(None) => true,
        Ok(Some(ledger)) => {
            let (cleared, unread) = orphans::settle_all(&ledger, tried, paid::say_that_it_waits);
            unread
                .iter()
                .for_each(|u| voice::say(&format!("{}\n", u.trouble())));
            tell_of_the_cut(&ledger);
            super::tell_cleared(&cleared) && unread.is_empty()
        }
        Err(trouble) => {
            voice::say(&format!("{trouble}\n"));
            false
        }
    }
}

/// Sessions of another boot owe nothing that could be settled.
fn tell_of_the_cut(ledger: &Ledger) {
    let (filed, _) = ledger.entries();
    let cut = filed.iter().filter(|f| life::was_cut(&f.entry, ledger));
    let cut: Vec<&str> = cut.map(|f| f.entry.id.as_str()).collect();
    if !cut.is_empty() {
        let names = cut.join(", ");
        voice::say(&format!(
            "synclater: cut by a reboot, and not settled: {names}; see `synclater status`\n"
        ));
    }
}

/// What is said of session `id` where an error of this name is known of it.
fn lost_of(id: &str, name: &str) -> String {
    match name {
        SettleError::KILLED => {
            let why = SettleError::WAS_KILLED;
            format!("{why}: writes of session {id} may be lost")
        }
        _ => format!("{name}: writes of session {id} were lost"),
    }
}

/// What failed: that a path is settled.
fn trouble(path: &Path, why: String, try_: &str) -> Trouble {
    let what = format!("cannot settle {}", path.display());
    Trouble::new(what, why, try_, NOT_KNOWN)
}

/// The same, of writes that were or may be lost there.
fn lost(path: &Path, why: String) -> Trouble {
    trouble(path, why, FOR_ERRORS)
}

fn why(errno: i32) -> String {
    match errno {
        KILLED => SettleError::WAS_KILLED.into(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    }
}

/// What a path leads to, open to be synced. One that was shut down says EIO to that, which is
/// noted.
fn opened(path: &Path, ledger: Option<&Ledger>) -> Result<OwnedFd, Trouble> {
    const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
    mount::open_for_sync(path).map_err(|e| {
        if e.raw_os_error() != Some(EIO) {
            let try_ = "name a file or folder there, or a disk, that you may open";
            return trouble(path, e.to_string(), try_);
        }
        if let Some(ledger) = ledger {
            told::note_for_others_at(ledger, EIO, path);
        }
        trouble(path, e.to_string(), FOR_ERRORS)
    })
}

/// Settles the file system that a path is on, or its device; some may have been `killed` there who
/// did.
fn path(path: &Path, killed: &[SyncedFs]) -> Result<String, Trouble> {
    let ledger = Ledger::existing(told::note_of_ledger).ok().flatten();
    let fd = opened(path, ledger.as_ref())?;
    let on_it = if mount::is_block_device(&fd) {
        let disk = SyncedFs::on_disk(fd.as_fd());
        let was_killed = killed.iter().any(|fs| fs.may_be(&disk));
        match sync_device(&fd, ledger.as_ref()).map_err(|errno| lost(path, why(errno)))? {
            Some(on_it) => on_it,
            None if was_killed => return Err(lost(path, why(KILLED))),
            None => return Ok(OF_DEVICE.into()),
        }
    } else {
        fd
    };
    // First: they are told by nobody else.
    let left = ledger
        .as_ref()
        .map(|ledger| orphans::settle_on(ledger, on_it.as_fd(), paid::say_that_it_waits));
    let (cleared, unread) = left.unwrap_or_default();
    unread
        .iter()
        .for_each(|u| voice::say(&format!("{}\n", u.trouble())));
    super::tell_cleared(&cleared);
    if let Some(unread) = unread.first() {
        // What could not be noted is not asked for.
        return Err(lost(path, unread.why.clone()));
    }
    let settled = durable::settle_at(&on_it, |errno, fd| match &ledger {
        Some(ledger) => told::note_for_others(ledger, errno, fd),
        None => told::note_without_ledger(errno, Some(fd)),
    });
    let killed = [killed, &underway::note_killed()].concat();
    let here = SyncedFs::of(on_it.as_fd());
    let was_killed = killed.iter().any(|fs| fs.may_be(&here));
    let known = ledger
        .as_ref()
        .and_then(|ledger| told::known_on(ledger, on_it.as_fd()));
    if let Some((id, name)) = known.filter(|_| settled.is_ok()) {
        return Err(lost(path, lost_of(&id, &name)));
    }
    match settled {
        Ok(_) if was_killed => Err(lost(path, why(KILLED))),
        Ok(Settled::Durable) => Ok("file system settled".into()),
        Ok(Settled::Never(why)) => Ok(format!("nothing there can be made durable: {why}")),
        Ok(Settled::Written(why)) => Ok(format!(
            "file system written; whether it is durable is not known: {why}"
        )),
        Err(e) => Err(lost(
            path,
            e.raw_os_error().map_or_else(|| e.to_string(), why),
        )),
    }
}

/// Syncs a disk by a process that goes on if we are interrupted, and notes what it is told, as that
/// of [`durable::Holding::begin`] does: what is mounted that lies on it.
///
/// # Errors
/// An errno, or [`KILLED`].
fn sync_device(disk: &OwnedFd, ledger: Option<&Ledger>) -> Result<Option<OwnedFd>, i32> {
    let on_it = device::mounted_of(disk);
    let fds = std::iter::once(disk).chain(&on_it).map(AsFd::as_fd);
    let fds: Vec<BorrowedFd<'_>> = fds.collect();
    let job = Job::start(|| {
        process::leave_session();
        signal::hold_back_all();
        let kept = job::keep_only(&fds);
        sync_marked(ledger, kept[0].as_fd(), kept.get(1).map(AsFd::as_fd))
    });
    let errno = match job {
        Ok(job) => job.ending().unwrap_or_else(|| {
            note(ledger, KILLED, fds[0], fds.get(1).copied());
            let _ = underway::note_killed();
            KILLED
        }),
        Err(_) => {
            let _until_it_is_noted = signal::HeldBack::all();
            sync_marked(ledger, fds[0], fds.get(1).copied())
        }
    };
    match errno {
        0 => Ok(on_it),
        errno => Err(errno),
    }
}

/// Syncs a disk, and notes what that is told; an errno, or 0.
fn sync_marked(
    ledger: Option<&Ledger>,
    disk: BorrowedFd<'_>,
    on_it: Option<BorrowedFd<'_>>,
) -> i32 {
    let synced = on_it.map_or_else(|| SyncedFs::on_disk(disk), SyncedFs::of);
    let _until_it_is_noted = SyncMark::of(&synced);
    let synced = rustix::fs::fsync(disk);
    let errno = synced.map_or_else(rustix::io::Errno::raw_os_error, |()| 0);
    if errno != 0 {
        note(ledger, errno, disk, on_it);
    }
    errno
}

/// Notes what a sync of a disk was told, of what lies on it where that is known.
fn note(ledger: Option<&Ledger>, errno: i32, disk: BorrowedFd<'_>, on_it: Option<BorrowedFd<'_>>) {
    match (ledger, on_it) {
        (Some(ledger), Some(on_it)) => told::note_for_others(ledger, errno, on_it),
        (Some(ledger), None) => told::note_for_device(ledger, errno, disk),
        (None, on_it) => told::note_without_ledger(errno, on_it),
    }
}
