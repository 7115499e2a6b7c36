//! Where sessions and the ledger lie: whose the directories are, who may write, what they lie on.
//!
//! Looks and does not create. The names are those that docs/INTERNALS.md gives; a variable that
//! overrides a place is checked in its place.

use super::mounts::{is_memory, is_noexec};
use super::{Check, Status};
use crate::session::dirs;
use std::env;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use synclater_proc::mountinfo::{mount_of, Mount};
use synclater_sys::process::effective_user;

/// Who asks, and what the environment says.
struct Asker {
    uid: u32,
    run_dir: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    runtime_dir: Option<PathBuf>,
    state_home: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl Asker {
    fn of_this_process() -> Self {
        Asker {
            uid: effective_user(),
            run_dir: path_in("SYNCLATER_RUN_DIR"),
            state_dir: path_in("SYNCLATER_STATE_DIR"),
            runtime_dir: path_in("XDG_RUNTIME_DIR"),
            state_home: path_in("XDG_STATE_HOME"),
            home: path_in("HOME"),
        }
    }

    /// The directory of running sessions.
    fn sessions(&self) -> PathBuf {
        match (&self.run_dir, &self.runtime_dir) {
            (Some(dir), _) => dir.clone(),
            (None, _) if self.uid == 0 => "/run/synclater".into(),
            (None, Some(dir)) => dir.join("synclater"),
            (None, None) => format!("/tmp/synclater-{}", self.uid).into(),
        }
    }

    /// The ledger's directory; none where nothing says which.
    fn ledger(&self) -> Option<PathBuf> {
        match (&self.state_dir, &self.state_home, &self.home) {
            (Some(dir), ..) => Some(dir.clone()),
            _ if self.uid == 0 => Some("/var/lib/synclater".into()),
            (None, Some(dir), _) => Some(dir.join("synclater")),
            (None, None, Some(home)) => Some(home.join(".local/state/synclater")),
            (None, None, None) => None,
        }
    }
}

/// What a variable of the environment says, if anything.
fn path_in(variable: &str) -> Option<PathBuf> {
    env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Checks both directories for the user who asks.
pub fn directory_checks(table: &[Mount]) -> Vec<Check> {
    let asker = Asker::of_this_process();
    let sessions = session_directory_check(&asker, table);
    vec![sessions, ledger_check(&asker, table)]
}

fn session_directory_check(asker: &Asker, table: &[Mount]) -> Check {
    let (name, dir) = ("session directory", asker.sessions());
    if let Err(fault) = usable(&dir, asker.uid) {
        let means = "No session can be started: its files would not be safe from other users, or \
                     cannot be written.";
        let advice = format!(
            "{}, or set SYNCLATER_RUN_DIR to a directory of your own",
            fault.advice
        );
        return Check::new(name, Status::Bad, fault.seen, means).advise(advice);
    }
    let exec = match mount_of(table, &dir) {
        Some(mount) if is_noexec(mount) => {
            ", noexec (only data lies here, nothing is mapped for execution)"
        }
        _ => "",
    };
    let mut seen = format!("{}{exec}", dir.display());
    let pages = where_pages_lie(&dir);
    if pages != dir {
        if let Err(fault) = usable(&pages, asker.uid) {
            let means = "No session can be started: what it shares with processes would not be \
                         safe from other users, or cannot be written.";
            let advice = format!(
                "{}, or set SYNCLATER_RUN_DIR to a directory of your own in memory (tmpfs)",
                fault.advice
            );
            return Check::new(name, Status::Bad, fault.seen, means).advise(advice);
        }
        seen.push_str(&format!(", pages in {}", pages.display()));
    }
    let means = "Sessions lie here, their pages in memory, writable by their owner alone.";
    Check::new(name, Status::Ok, seen, means)
}

/// Where sessions of this folder, which may not be there yet, keep what they share with processes.
fn where_pages_lie(dir: &Path) -> PathBuf {
    let there = dir.ancestors().find(|d| d.exists()).unwrap_or(dir);
    match dirs::memory_dir(there) {
        in_place if in_place == there => dir.to_owned(),
        memory => memory,
    }
}

fn ledger_check(asker: &Asker, table: &[Mount]) -> Check {
    let name = "ledger directory";
    let limit = "Without a ledger only `never` and `now` can be used: a session must be on disk \
                 before it owes anything.";
    let variable = "set SYNCLATER_STATE_DIR to a directory of your own on a disk";
    let Some(dir) = asker.ledger() else {
        let seen = "HOME and XDG_STATE_HOME name no folder";
        return Check::new(name, Status::Bad, seen, limit).advise(variable);
    };
    if let Err(fault) = usable(&dir, asker.uid) {
        return Check::new(name, Status::Bad, fault.seen, limit)
            .advise(format!("{}, or {variable}", fault.advice));
    }
    match mount_of(table, &dir) {
        Some(mount) if is_memory(mount) => {
            let seen = format!("{} on {}", dir.display(), mount.fstype);
            let means = "The ledger lies in memory: after a power cut nobody knows what was owed.";
            Check::new(name, Status::Bad, seen, means).advise(variable)
        }
        Some(mount) => {
            let means =
                "Sessions that owe are written down here and found again after a power cut.";
            Check::new(
                name,
                Status::Ok,
                format!("{} on {}", dir.display(), mount.fstype),
                means,
            )
        }
        None => {
            let means = "Which file system this is could not be found out.";
            Check::new(name, Status::Unknown, dir.display().to_string(), means)
        }
    }
}

/// What others may not do to a directory of ours: write it. Looking is allowed: daemons of root's
/// sessions change their user and read the page.
const FORBIDDEN: u32 = 0o022;

/// Why a directory cannot be used, and the way out.
#[derive(Debug)]
struct Fault {
    seen: String,
    advice: String,
}

/// Whether `dir` is, or could be made, a directory that `uid` alone writes.
fn usable(dir: &Path, uid: u32) -> Result<(), Fault> {
    let shown = dir.display();
    if let Some(why) = dirs::keeps_no_files(dir) {
        return Err(Fault {
            seen: format!("{shown}: {why}"),
            advice: "name a directory on a disk".into(),
        });
    }
    let (seen, advice) = match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return can_be_made(dir, uid),
        Err(error) => (
            format!("{shown}: {error}"),
            format!("look at: ls -ld {shown}"),
        ),
        Ok(meta) if meta.is_symlink() => {
            (format!("{shown} is a symbolic link"), format!("rm {shown}"))
        }
        Ok(meta) if !meta.is_dir() => (format!("{shown} is no directory"), format!("rm {shown}")),
        Ok(meta) if meta.uid() != uid => (
            format!("{shown} belongs to user {}, not {uid}", meta.uid()),
            format!("have its owner or root remove {shown}"),
        ),
        Ok(meta) if meta.mode() & FORBIDDEN != 0 => (
            format!("{shown} has mode {:o}", meta.mode() & 0o7777),
            format!("chmod {:o} {shown}", 0o777 & !FORBIDDEN),
        ),
        Ok(_) => return Ok(()),
    };
    Err(Fault { seen, advice })
}

/// The nearest directory above that exists must let `uid` create entries.
fn can_be_made(dir: &Path, uid: u32) -> Result<(), Fault> {
    let above = dir
        .ancestors()
        .skip(1)
        .find_map(|a| fs::metadata(a).ok().map(|m| (a, m)));
    match above {
        Some((_, meta)) if uid == 0 || may_write(&meta, uid) => Ok(()),
        Some((path, _)) => Err(Fault {
            seen: format!(
                "{} is missing and {} is not writable",
                dir.display(),
                path.display()
            ),
            advice: format!("have root make {} for you", dir.display()),
        }),
        None => Err(Fault {
            seen: format!("{}: nothing above it exists", dir.display()),
            advice: "give an absolute path".to_owned(),
        }),
    }
}

/// By owner and "others" only: a group's right is not looked up, it would be no safe place anyway.
fn may_write(meta: &Metadata, uid: u32) -> bool {
    let bit = if meta.uid() == uid { 0o200 } else { 0o002 };
    meta.mode() & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    fn nobody() -> Asker {
        Asker {
            uid: 7,
            run_dir: None,
            state_dir: None,
            runtime_dir: None,
            state_home: None,
            home: None,
        }
    }

    fn scratch(name: &str) -> PathBuf {
        let dir = env::temp_dir().join(format!("synclater-doctor-{name}-{}", std::process::id()));
        fs::create_dir(&dir).expect("scratch directory");
        dir
    }

    #[test]
    fn a_variable_overrides_every_default() {
        let asker = Asker {
            run_dir: Some("/r".into()),
            runtime_dir: Some("/x".into()),
            ..nobody()
        };
        assert_eq!(asker.sessions(), Path::new("/r"));
        assert_eq!(
            Asker {
                run_dir: None,
                ..asker
            }
            .sessions(),
            Path::new("/x/synclater")
        );
        assert_eq!(nobody().sessions(), Path::new("/tmp/synclater-7"));
    }

    #[test]
    fn a_user_without_a_home_has_no_ledger() {
        assert_eq!(nobody().ledger(), None);
        let asker = Asker {
            home: Some("/h".into()),
            ..nobody()
        };
        assert_eq!(asker.ledger(), Some("/h/.local/state/synclater".into()));
        assert_eq!(
            Asker { uid: 0, ..asker }.ledger(),
            Some("/var/lib/synclater".into())
        );
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let dir = scratch("mode");
        let uid = fs::metadata(&dir).expect("metadata").uid();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o775)).expect("chmod");
        let fault = usable(&dir, uid).expect_err("mode 775");
        assert!(fault.advice.starts_with("chmod 755"), "{}", fault.advice);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("chmod");
        usable(&dir, uid).expect("others may look");
        usable(&dir, uid + 1).expect_err("another user's");
        fs::remove_dir(dir).expect("clean up");
    }

    #[test]
    fn a_symbolic_link_is_refused_wherever_it_leads() {
        let dir = scratch("link");
        symlink(&dir, dir.join("link")).expect("symlink");
        let uid = fs::metadata(&dir).expect("metadata").uid();
        let fault = usable(&dir.join("link"), uid).expect_err("a link");
        assert!(fault.seen.ends_with("is a symbolic link"), "{}", fault.seen);
        fs::remove_dir_all(dir).expect("clean up");
    }
}
