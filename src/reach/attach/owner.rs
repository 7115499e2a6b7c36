//! Whose a process is: the session whose page its library looks at, and whether that one lives.
//!
//! Promise: nothing here changes or stops anything. A session lives as long as its supervisor
//! listens, if only a stopped one; where nobody can be asked (another mount namespace), as long as
//! its lease runs.

use super::code::{Library, Survey};
use super::refusal::Refusal;
use super::tracer::Failure;
use crate::reach::program;
use crate::session::belongings::memory_of;
use crate::session::control::{self, Listens};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use synclater_account::escape::ATTACHED_TO;
use synclater_proc::maps::{self, Mapping};
use synclater_shim::page::Page;
use synclater_sys::clock::LeaseClock;
use synclater_sys::process;
use synclater_sys::remote::Memory;

/// What a page is among the mappings of a process: device and inode.
pub type PageFile = (u64, u64);

/// Out of which session a process is taken: one with this page, or one that is dead.
#[derive(Clone, Copy, Debug)]
pub struct SourceSession {
    /// The page; `Some(None)`: not known, any.
    pub page: Option<Option<PageFile>>,
    /// The clock of leases.
    pub clock: LeaseClock,
}

/// What the page is in a list of mappings, as ours has it: on btrfs stat(2) has another device.
pub fn mapped_as(page: &Page) -> Option<PageFile> {
    let at = std::ptr::from_ref(page).addr() as u64;
    let text = process::text("/proc/self/maps").ok()?;
    let all = maps::read(&text);
    let mapping = all.iter().find(|m| m.range.contains(&at))?;
    Some((mapping.device, mapping.inode))
}

/// The page that the library of a process looks at.
fn page_of<'a>(library: &Library, found: &'a Survey) -> Option<&'a Mapping> {
    let (_, page) = library.shared();
    found.mappings.iter().find(|m| m.range.start == page)
}

/// Whether the library looks at this very page; true where that is not known.
pub fn has_page(library: &Library, found: &Survey, page: Option<PageFile>) -> bool {
    let file = page_of(library, found).map(|m| (m.device, m.inode));
    page.is_none() || file == page
}

/// Whether the library still looks at the page that it was found with: a tracer of ours whose
/// supervisor was killed may have been slower than the next session.
pub fn is_as_it_was(pid: u32, found: &Survey) -> bool {
    let Some(library) = &found.library else {
        return true;
    };
    let (_, page) = library.shared();
    let text = process::text(format!("/proc/{pid}/maps")).unwrap_or_default();
    file_at(page, &maps::read(&text)) == file_at(page, &found.mappings)
}

/// The file that is mapped from an address on.
fn file_at(address: u64, mappings: &[Mapping]) -> Option<PageFile> {
    let mapping = mappings.iter().find(|m| m.range.start == address)?;
    Some((mapping.device, mapping.inode))
}

/// How many sites lead into this very session already; `None` where none does.
pub fn is_ours(library: &Library, found: &Survey, page: Option<PageFile>) -> Option<u64> {
    page_of(library, found)?;
    let sites = found.redirected().count() as u64;
    (page.is_some() && has_page(library, found, page) && sites > 0).then_some(sites)
}

/// The name of the session that a process is, or was, in.
fn session_of(library: &Library, found: &Survey) -> Option<String> {
    let name = program::without_mark(&page_of(library, found)?.name);
    Some(session_in(Path::new(&name).parent()?))
}

/// The session whose gate a process leads through, with more than what descriptors need that lost
/// their `O_SYNC`.
pub fn led_to(found: &Survey) -> Option<String> {
    let id = session_of(found.library.as_ref()?, found)?;
    let is_left = found.redirected().any(|s| !s.may_write());
    is_left.then_some(id)
}

/// The name of the session that keeps, or kept, its page in this folder.
fn session_in(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let id = name.split('.').next().filter(|id| !id.is_empty());
    id.unwrap_or("?").to_owned()
}

/// Whether the session that a process was in before is over.
///
/// # Errors
/// `Refused` where its supervisor is there; `Busy` where nobody answers and its lease runs: it may
/// have been killed within the last two seconds.
pub fn is_free(
    library: &Library,
    found: &Survey,
    memory: &Memory,
    clock: LeaseClock,
) -> Result<(), Failure> {
    let Some(page) = page_of(library, found).filter(|_| found.redirected().next().is_some()) else {
        return Ok(());
    };
    let path = program::without_mark(&page.name);
    let folder = Path::new(&path).parent().unwrap_or(Path::new("/"));
    let id = session_in(folder);
    // Its folder may be another session's by now, or another one as we see it.
    let is_there = std::fs::metadata(&page.name).is_ok_and(|seen| seen.ino() == page.inode);
    if let Listens::Supervisor { pid, uid } = asked(is_there, folder) {
        let why = format!("{ATTACHED_TO}{id} of user {uid}, which lives (supervisor {pid})");
        let try_ = format!(
            "{}synclater set {id} ..., or synclater detach {id}",
            in_whose_place(folder, pid, uid)
        );
        return Err(Refusal::new(why, try_).into());
    }
    if lease_runs(library, memory, clock) {
        let why = format!("{ATTACHED_TO}{id}, whose lease still runs");
        return Err(Failure::Busy(why));
    }
    Ok(())
}

/// Who listens beside a page that is there.
fn asked(is_there: bool, folder: &Path) -> Listens {
    if is_there {
        control::listens_in(folder)
    } else {
        Listens::NotKnown
    }
}

/// What has to be done first to reach a session of user `uid`.
fn in_whose_place(memory: &Path, pid: u32, uid: u32) -> String {
    if uid != process::effective_user() {
        return format!("as user {uid}: ");
    }
    let sessions = control::sessions();
    if sessions.iter().any(|s| memory_of(&s.dir) == memory) {
        String::new()
    } else {
        format!("with the SYNCLATER_RUN_DIR of process {pid} (/proc/{pid}/environ): ")
    }
}

/// Whether the lease in the page that the process has mapped still runs.
fn lease_runs(library: &Library, memory: &Memory, clock: LeaseClock) -> bool {
    let (_, page) = library.shared();
    let until = std::mem::offset_of!(Page, lease_until) as u64;
    let span = std::mem::offset_of!(Page, lease_span) as u64;
    let lease = number_at(memory, page + until);
    let span = number_at(memory, page + span);
    lease
        .zip(span)
        .is_some_and(|(lease, span)| lease.wrapping_sub(clock.now()) <= span)
}

/// Eight bytes of a process's memory.
fn number_at(memory: &Memory, at: u64) -> Option<u64> {
    let bytes = memory.bytes(at, 8).ok()?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
