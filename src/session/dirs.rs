//! Where sessions and the ledger lie, and whether these folders can be trusted.
//!
//! Promise: a folder is used only if it is a real directory (no link), ours, and nobody else may
//! write it; so no other user can plant a session, a page or a library there.

use super::mounts::mounts_of;
use std::ffi::OsStr;
use std::fs::{DirBuilder, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use synclater_policy::filesystem::{kind, FsKind};
use synclater_proc::mountinfo::mount_of;
use synclater_sys::{mount, process};
use synclater_text::message::Trouble;

const UNTOUCHED: &str = "nothing was started and nothing was changed";

/// Where we were started.
static HERE: OnceLock<PathBuf> = OnceLock::new();

/// Notes the folder that relative names are meant in: processes of ours leave it.
pub fn begin_here() {
    if let Ok(here) = std::env::current_dir() {
        HERE.get_or_init(|| here);
    }
}

/// What a name means to whoever started us; where our folder is gone, the name itself.
#[must_use]
pub fn from_here(name: &Path) -> PathBuf {
    HERE.get().map_or(name.into(), |here| here.join(name))
}

/// A folder that a variable names.
fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|v| !v.is_empty())?;
    std::path::absolute(from_here(Path::new(&value))).ok()
}

/// The folder of running sessions (not created).
#[must_use]
pub fn run_dir() -> PathBuf {
    let user = process::effective_user();
    variable("SYNCLATER_RUN_DIR").unwrap_or_else(|| match (user, variable("XDG_RUNTIME_DIR")) {
        (0, _) => "/run/synclater".into(),
        (_, Some(dir)) => dir.join("synclater"),
        (_, None) => format!("/tmp/synclater-{user}").into(),
    })
}

/// The folder of the ledger (not created); `None` where no home is known.
#[must_use]
pub fn state_dir() -> Option<PathBuf> {
    if let Some(dir) = variable("SYNCLATER_STATE_DIR") {
        return Some(dir);
    }
    if process::effective_user() == 0 {
        return Some("/var/lib/synclater".into());
    }
    variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .map(|d| d.join("synclater"))
}

/// The folder for the shared memory of a session: the session's own where that lies in memory,
/// otherwise the first of ours under /dev/shm, since a page on a disk would be written back at
/// every heartbeat and could make a victim wait for that disk.
#[must_use]
pub fn memory_dir(run: &Path) -> PathBuf {
    let shm = Path::new("/dev/shm");
    if mount::is_tmpfs(run) || !mount::is_tmpfs(shm) {
        return run.to_path_buf();
    }
    // Where all are others', the first is named with whose it is.
    in_shm()
        .find(|dir| !is_anothers(dir))
        .or_else(|| in_shm().next())
        .unwrap_or_else(|| run.to_path_buf())
}

fn is_anothers(dir: &Path) -> bool {
    let seen = dir.symlink_metadata();
    seen.is_ok_and(|seen| distrust(&seen).is_some())
}

/// Each folder that may be, or may have been, the [`memory_dir`] of this run folder, and is ours:
/// which is the first may change, as others take names and give them back.
#[must_use]
pub fn memory_dirs(run: &Path) -> Vec<PathBuf> {
    let first = format!("synclater-{}", process::effective_user());
    let there = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten();
    let named = there.filter(|dir| is_name_in_shm(&dir.file_name(), &first));
    std::iter::once(run.to_path_buf())
        .chain(named.map(|dir| dir.path()))
        .filter(|dir| is_folder_of_ours(dir))
        .collect()
}

fn is_folder_of_ours(dir: &Path) -> bool {
    let seen = dir.symlink_metadata();
    seen.is_ok_and(|seen| seen.is_dir() && distrust(&seen).is_none())
}

/// Whether [`in_shm`] may give this name, the `first` of them or one with a number behind that.
fn is_name_in_shm(name: &OsStr, first: &str) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(first));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn in_shm() -> impl Iterator<Item = PathBuf> {
    let user = process::effective_user();
    let first = std::iter::once(format!("synclater-{user}"));
    let others = (2..=NAMES).map(move |n| format!("synclater-{user}-{n}"));
    let shm = Path::new("/dev/shm");
    first.chain(others).map(|name| shm.join(name))
}

/// How many names are tried. All user namespaces (those of rootless containers) have one /dev/shm,
/// and each may have a user of this number.
const NAMES: u32 = 100;

/// The mode of our folders: root's victims may be other users, who must reach the page.
#[must_use]
pub fn mode() -> u32 {
    if process::effective_user() == 0 {
        0o711
    } else {
        0o700
    }
}

/// Makes `dir` and checks it. Another one is had by naming it as `instead` says.
///
/// # Errors
/// What failed, as a message for the user.
pub fn make(dir: &Path, what: &str, instead: &str) -> Result<(), Trouble> {
    let made = DirBuilder::new().recursive(true).mode(mode()).create(dir);
    let (why, remedy) = match made.and_then(|()| dir.symlink_metadata()) {
        Err(e) => why_not_made(dir, &e),
        Ok(seen) => match distrust(&seen) {
            Some(why) => (why, "make it a folder of yours that nobody else may write"),
            None => return Ok(()),
        },
    };
    Err(Trouble::new(
        format!("cannot use {} as {what}", dir.display()),
        why,
        format!("{remedy}, or name another one in {instead}"),
        UNTOUCHED,
    ))
}

/// Why a folder cannot be made or looked at, and what helps.
fn why_not_made(dir: &Path, e: &std::io::Error) -> (String, &'static str) {
    match (e.kind(), keeps_no_files(dir)) {
        (ErrorKind::AlreadyExists, _) => ("it is no folder".into(), "move it away"),
        (ErrorKind::NotADirectory, _) => {
            ("what it would lie in is no folder".into(), "move that away")
        }
        (_, Some(why)) => (why, "name a folder on a disk"),
        _ => (e.to_string(), "make it writable"),
    }
}

/// Why no files of ours can lie in a folder, or where it would be made: on one of the kernel's own
/// views, or where nothing may be written.
#[must_use]
pub fn keeps_no_files(dir: &Path) -> Option<String> {
    let table = mounts_of("self");
    let mount = mount_of(&table, dir)?;
    let at = mount.path().display();
    match kind(&mount.fstype) {
        FsKind::Pseudo => Some(format!(
            "it is on {}, which keeps no files of ours",
            mount.fstype
        )),
        _ if !mount.writable => Some(format!("{at} is mounted read-only")),
        _ => None,
    }
}

/// Why a folder or file cannot be trusted, if it cannot.
#[must_use]
pub fn distrust(seen: &Metadata) -> Option<String> {
    let user = process::effective_user();
    if seen.is_symlink() {
        return Some("it is a symbolic link".into());
    }
    if seen.uid() != user {
        return Some(format!(
            "it belongs to user {}, and you are {user}",
            seen.uid()
        ));
    }
    // Root's number never stands for others, and root's /proc is not kept busy for that.
    if user != 0 && may_be_anybody(user) {
        return Some(format!(
            "it may be anybody's: {user} stands for all that this user namespace has no number for"
        ));
    }
    (seen.mode() & 0o022 != 0)
        .then(|| format!("others may write it (mode {:04o})", seen.mode() & 0o7777))
}

/// Whether a user's number stands for all that this user namespace does not know (a sandbox's,
/// say), root among them; user_namespaces(7).
fn may_be_anybody(user: u32) -> bool {
    let nobody = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    nobody.trim().parse() == Ok(user) && process::is_in_user_namespace()
}

/// Why somebody else could put another folder into the place of what lies in this one.
#[must_use]
pub fn distrust_above(seen: &Metadata) -> Option<String> {
    let is_ours = seen.uid() == 0 || seen.uid() == process::effective_user();
    if !is_ours && !may_be_anybody(seen.uid()) {
        return Some(format!("it belongs to user {}", seen.uid()));
    }
    // In a sticky folder nobody renames what is another's.
    let is_open = seen.mode() & 0o022 != 0 && seen.mode() & 0o1000 == 0;
    is_open.then(|| format!("others may write it (mode {:04o})", seen.mode() & 0o7777))
}

/// Where the kernel names this boot; a `/proc` with processes alone (`subset=pid`) has it not.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// This boot, as the kernel names it; empty where it cannot be read.
#[must_use]
pub fn boot_id() -> String {
    let id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    id.trim().to_owned()
}
