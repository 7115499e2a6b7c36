//! Which superblock a descriptor lies on, and a descriptor of our own there.
//!
//! Promise: what is [`Finding::Tested`] is the superblock whose number was asked for, of that type:
//! each of its facts was true while a descriptor of it was open, and its own descriptor goes on
//! from there. What cannot be told is not guessed. Relies on: a mount and its id showing one
//! superblock, and a superblock having its own number, as long as they exist; an open file keeps
//! both. A btrfs subvolume loses its number when it is deleted, whoever has it open.

use super::durable;
use super::health;
use super::mounts::{dev_of, first_mounts_of, mounts_of};
use super::names::Number;
use super::opening::{found_at, known_at, Opening};
use rustix::fs::{open, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use synclater_policy::filesystem::{kind, FsKind};
use synclater_proc::mountinfo::Mount;
use synclater_shim::page;
use synclater_sys::mount::{
    self, id_of_fd, place_of_fd, unique_id_of_fd, what_is, DescriptorPlace, MNT_ID,
};

/// A request that was made for a number that nobody knows. All of it is the asker's word.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Who asks, as we number it.
    pub pid: u32,
    /// Which of its descriptors has the number.
    pub fd: Option<i32>,
    /// The number, as stat shows it.
    pub dev: u64,
}

/// A superblock that may owe.
pub struct Found {
    /// Its mount, as it was found.
    pub mount: Mount,
    /// Whether it is mounted in our own sight.
    pub in_sight: bool,
    /// A descriptor that keeps it.
    pub fd: OwnedFd,
    /// A file on it that flushes its disk, where one is needed, or that we may write to, where
    /// what is held of it may be none.
    pub file: Option<OwnedFd>,
    /// The number that was asked about.
    pub number: Number,
    /// What keeps the mount that it counts on, where the mount's id may be used again.
    pub pin: Option<OwnedFd>,
}

/// What a question led to.
pub enum Finding {
    /// What was asked about is not there any more.
    Gone,
    /// A superblock of a tested type.
    Tested(Box<Found>),
    /// The number is not one that may owe: what the page is to say of it.
    Named(Number, u32),
}

/// A superblock in the tables that were read.
struct Seen {
    mount: Mount,
    /// Its mounts in our own table: it is in our sight where there are some.
    in_sight: Vec<Mount>,
    /// Its mounts in our own mount namespace, by their ids: what is held lies on one of these. In
    /// another namespace alone it would be unmounted as that ends, whoever ends it and however: the
    /// kernel writes it out before the parent hears of the end. A descriptor of ours would keep it
    /// mounted, and whoever copies, checks or mounts its device next would find it incomplete.
    ours: Vec<u64>,
}

impl Seen {
    /// A mount in our own table.
    fn at(mount: &Mount) -> Seen {
        Seen {
            mount: mount.clone(),
            in_sight: vec![mount.clone()],
            ours: vec![mount.id],
        }
    }

    fn is_on_ours(&self, fd: &OwnedFd) -> bool {
        lies_on(fd, &self.ours)
    }
}

/// Whether a descriptor lies on a mount with one of these ids.
fn lies_on(fd: &OwnedFd, ids: &[u64]) -> bool {
    id_of_fd(fd, MNT_ID).is_ok_and(|id| ids.contains(&id))
}

/// Whether a process is in our mount namespace; behind another root it may see other mounts.
fn shares_mounts(pid: u32) -> bool {
    let ours = std::process::id();
    pid == ours || (mount_namespace(pid) != 0 && mount_namespace(pid) == mount_namespace(ours))
}

/// The number of a process's mount namespace; 0 where it is not known.
fn mount_namespace(pid: u32) -> u64 {
    mount::namespace_number(format!("/proc/{pid}/ns/mnt").as_ref())
}

/// The mount that our root folder lies on, where that has one of these numbers: behind a chroot no
/// table need show it.
fn at_our_root(numbers: &[u64]) -> Option<u64> {
    let root = known_at("/".as_ref(), OFlags::DIRECTORY)?;
    let is_it = numbers.contains(&what_is(&root).ok()?.0);
    is_it.then(|| id_of_fd(&root, MNT_ID).ok()).flatten()
}

/// Whoever asks, and what of it could be had.
struct Asked {
    question: Question,
    /// The same place, for as long as we look: not its open file, whose locks would live longer.
    theirs: Option<(OwnedFd, DescriptorPlace)>,
    dev: u64,
}

/// Why it could not be looked at what an asker has open.
enum Unseen {
    /// It was closed, or its number is another file's: who comes back asks again.
    Closed,
    /// It is not shown to us, or nothing is open.
    Hidden,
}

/// Answers a question. Mostly a mount in our sight has the number: then what the asker has open is
/// not touched.
#[must_use]
pub fn find(question: &Question) -> Finding {
    let number = Number::everywhere(question.dev);
    let mut mounts = mounts_of("self");
    mounts.retain(|m| dev_of(m) == question.dev);
    if let Some(named) = mounts.first().and_then(refused) {
        return Finding::Named(number, named);
    }
    let Some(mut found) = mounts.first().and_then(find_mounted) else {
        return find_by_descriptor(question);
    };
    if lacks_file(&found) {
        // The asker's own mount is tried, too: others there may be in any number.
        let asked = match Asked::of(question) {
            Ok(asked) => Some(asked),
            Err(Unseen::Closed) => return Finding::Gone,
            Err(Unseen::Hidden) => None,
        };
        let own = asked.as_ref().and_then(Asked::mount_id);
        let of_asker = mounts.iter().skip(1).find(|m| Some(m.id) == own);
        found = with_file(found, &mounts[0], asked.as_ref());
        if let Some(mount) = of_asker.filter(|_| lacks_file(&found)) {
            let own = find_mounted(mount).map(|own| {
                if lacks_file(&own) {
                    with_file(own, mount, asked.as_ref())
                } else {
                    own
                }
            });
            found = own.unwrap_or(found);
        }
    }
    if lacks_file(&found) {
        Finding::Named(number, page::NAME_UNKNOWN)
    } else {
        Finding::Tested(Box::new(found))
    }
}

/// What was found on a mount, with a file to ask by, which whoever asked may have a folder for.
fn with_file(mut found: Found, mount: &Mount, asked: Option<&Asked>) -> Found {
    let folder = asked.and_then(|asked| asked.folder_on(mount));
    found.file = file_to_ask_by(mount, &[mount.id], [None, folder.as_ref()]);
    found
}

/// Whether nothing would tell of a commit that failed there: then nothing may be put off.
#[must_use]
pub fn lacks_file(found: &Found) -> bool {
    found.file.is_none() && durable::asks_by_file(&found.mount, &found.fd)
}

fn find_by_descriptor(question: &Question) -> Finding {
    let asked = question.fd.map(|fd| Asked::by(question, fd));
    let theirs = match asked {
        Some(Err(Unseen::Closed)) => return Finding::Gone,
        Some(Ok(asked)) => asked.theirs.filter(|(_, place)| is_file(place)),
        Some(Err(Unseen::Hidden)) | None => None,
    };
    let asked = Asked {
        question: *question,
        dev: question.dev,
        theirs,
    };
    let Some(seen) = asked.mount() else {
        return Finding::Named(asked.anywhere(), page::NAME_UNKNOWN);
    };
    let number = asked.number(&seen.mount).unwrap_or(asked.anywhere());
    if let Some(named) = refused(&seen.mount) {
        return Finding::Named(number, named);
    }
    if seen.ours.is_empty() {
        return Finding::Named(number, page::NAME_AWAY);
    }
    match asked.taken(&seen) {
        Ok(found) if !lacks_file(&found) => Finding::Tested(Box::new(found)),
        Ok(_) | Err(page::NAME_UNKNOWN) => Finding::Named(asked.anywhere(), page::NAME_UNKNOWN),
        Err(named) => Finding::Named(number, named),
    }
}

fn is_file(place: &DescriptorPlace) -> bool {
    matches!(place.kind, FileType::RegularFile | FileType::Directory)
}

/// What process `pid` has open on superblocks with these numbers: a question for each number.
#[must_use]
pub fn open_on(pid: u32, left: &[Vec<u64>]) -> Vec<Question> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let files = files.into_iter().flatten().flatten();
    let numbers = files.filter_map(|f| f.file_name().to_str()?.parse().ok());
    let questions = numbers.filter_map(|fd| question_of(pid, fd, left));
    let each: BTreeMap<u64, Question> = questions.map(|asked| (asked.dev, asked)).collect();
    each.into_values().collect()
}

/// What asks for the number of a process's descriptor, where that is one of these.
fn question_of(pid: u32, fd: i32, left: &[Vec<u64>]) -> Option<Question> {
    let dev = place_of_fd(&place_of(pid, fd).ok()?).ok()?.dev;
    let is_left = left.iter().flatten().any(|n| *n == dev);
    let fd = Some(fd);
    is_left.then_some(Question { pid, fd, dev })
}

/// Folders in which whoever started us may mostly make a file.
fn places_of_ours() -> impl Iterator<Item = PathBuf> {
    let named = ["HOME", "TMPDIR"].into_iter().filter_map(std::env::var_os);
    let known = ["/tmp", "/var/tmp"].into_iter().map(PathBuf::from);
    named
        .map(PathBuf::from)
        .chain(super::dirs::state_dir())
        .chain(known)
        .filter(|dir| dir.is_absolute())
}

/// A new file that takes a question about its journal.
fn file_to_ask_by(mount: &Mount, ids: &[u64], dirs: [Option<&OwnedFd>; 2]) -> Option<OwnedFd> {
    file_among(mount, ids, dirs, health::takes_question)
}

/// A new file that is `good`, below one of `dirs` or where we may mostly write, on the mount with
/// one of these ids: on another one it would keep that busy as well.
fn file_among(
    mount: &Mount,
    ids: &[u64],
    dirs: [Option<&OwnedFd>; 2],
    is_good: impl Fn(&OwnedFd) -> bool,
) -> Option<OwnedFd> {
    let given = dirs.into_iter().flatten();
    let mut given = given.filter(|dir| lies_on(dir, ids) && may_write(dir));
    let found = places_of_ours().filter_map(|dir| found_at(&dir, OFlags::DIRECTORY));
    let mut ours = found
        .filter(|dir| lies_on(dir, ids))
        .filter_map(|dir| Opening::of(mount).again(dir).ok())
        .filter(may_write);
    let made = given.find_map(|dir| file_below_if(&is_good, dir));
    made.or_else(|| ours.find_map(|dir| file_below_if(&is_good, &dir)))
}

fn file_below_if(is_good: impl Fn(&OwnedFd) -> bool, dir: &OwnedFd) -> Option<OwnedFd> {
    durable::file_below(dir.as_fd()).filter(is_good)
}

/// Whether it is worth a process to try.
fn may_write(dir: &OwnedFd) -> bool {
    use rustix::fs::{accessat, Access, AtFlags, CWD};
    let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
    accessat(CWD, link, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// Where a process's descriptor leads to, as the kernel has it: the same mount and the same file.
fn place_of(pid: u32, fd: i32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    open(format!("/proc/{pid}/fd/{fd}"), flags, Mode::empty())
}

/// The superblock of a mount in our own sight.
#[must_use]
pub fn find_mounted(mount: &Mount) -> Option<Found> {
    let dev = dev_of(mount);
    let question = Question {
        pid: std::process::id(),
        fd: None,
        dev,
    };
    let asked = Asked {
        question,
        theirs: None,
        dev,
    };
    refused(mount)
        .is_none()
        .then(|| asked.taken(&Seen::at(mount)).ok())
        .flatten()
}

/// The number that no other mount has had, of what is mounted at a mount's point.
#[must_use]
pub fn unique_id_at(mount: &Mount) -> Option<u64> {
    unique_id_of_fd(known_at(mount.path(), OFlags::NOFOLLOW)?)
}

/// What the page is to say of a mount that may not owe.
fn refused(mount: &Mount) -> Option<u32> {
    match kind(&mount.fstype) {
        FsKind::Memory => Some(page::NAME_MEMORY),
        FsKind::Pseudo | FsKind::Untested(_) => Some(page::NAME_REAL),
        FsKind::Tested if durable::distrust(mount).is_some() => Some(page::NAME_REAL),
        FsKind::Tested => None,
    }
}

impl Asked {
    /// Where what is asked about lies; of a mapping, what else the asker has open there.
    fn of(question: &Question) -> Result<Asked, Unseen> {
        let (pid, dev) = (question.pid, question.dev);
        let fd = question.fd;
        let fd = fd.or_else(|| open_on(pid, &[vec![dev]]).first()?.fd);
        Asked::by(question, fd.ok_or(Unseen::Hidden)?)
    }

    /// Where the asker's descriptor `fd` leads to. One look tells that and whether it is still the
    /// one that was asked about: a second one would find what has the number next.
    fn by(question: &Question, fd: i32) -> Result<Asked, Unseen> {
        let theirs = place_of(question.pid, fd).map_err(|errno| match errno {
            Errno::NOENT => Unseen::Closed,
            _ => Unseen::Hidden,
        })?;
        let place = place_of_fd(&theirs).map_err(|_| Unseen::Hidden)?;
        if place.dev != question.dev {
            return Err(Unseen::Closed);
        }
        Ok(Asked {
            question: *question,
            dev: question.dev,
            theirs: Some((theirs, place)),
        })
    }

    /// The mount that the asker's file lies on.
    fn mount_id(&self) -> Option<u64> {
        id_of_fd(&self.theirs.as_ref()?.0, MNT_ID).ok()
    }

    /// The mount that it lies on, or another one of the same superblock.
    fn mount(&self) -> Option<Seen> {
        // Read while the descriptor is open: its mount and its superblock are the same all the
        // time.
        let id = self.mount_id();
        let theirs = first_mounts_of(self.question.pid);
        let tables = [mounts_of("self"), theirs, mounts_of("1")];
        let mut all = tables.iter().flatten();
        let its = all.clone().find(|m| id == Some(m.id));
        let mount = its.or_else(|| all.find(|m| dev_of(m) == self.dev))?;
        let dev = dev_of(mount);
        let in_sight = tables[0].iter().filter(|m| dev_of(m) == dev);
        let in_sight: Vec<Mount> = in_sight.cloned().collect();
        let whose = [std::process::id(), self.question.pid, 1];
        let ours = tables
            .iter()
            .zip(whose)
            .filter(|(table, pid)| table.iter().any(|m| dev_of(m) == dev) && shares_mounts(*pid))
            .flat_map(|(table, _)| table.iter().filter(|m| dev_of(m) == dev))
            .map(|m| m.id);
        Some(Seen {
            ours: ours.chain(at_our_root(&[self.dev, dev])).collect(),
            // Rather our own: theirs may be unmounted any moment, and nobody tells us.
            mount: in_sight.first().unwrap_or(mount).clone(),
            in_sight,
        })
    }

    /// The number, and where it counts; `None` where that cannot be told.
    fn number(&self, mount: &Mount) -> Option<Number> {
        // An overlay's numbers, too, live as long as its superblock.
        if mount.fstype != "btrfs" || self.dev == dev_of(mount) {
            return Some(self.anywhere());
        }
        let mount = self.theirs.as_ref()?.1.mount;
        let dev = self.dev;
        (mount != 0).then_some(Number { dev, mount })
    }

    fn anywhere(&self) -> Number {
        Number::everywhere(self.dev)
    }

    /// What keeps the mount that it lies on: one of `dirs` where they lie there, rather than a file
    /// that may be deleted.
    fn pin(&self, dirs: [Option<&OwnedFd>; 2]) -> Option<OwnedFd> {
        let (theirs, place) = self.theirs.as_ref()?;
        let mut dirs = dirs.into_iter().flatten();
        let there = dirs.find(|fd| place_of_fd(fd).is_ok_and(|p| p.mount == place.mount));
        there.unwrap_or(theirs).try_clone().ok()
    }

    /// A descriptor of our own on a superblock; else what the page is to say of it.
    fn taken(&self, seen: &Seen) -> Result<Found, u32> {
        let found = self.taken_by(seen).ok_or(page::NAME_UNKNOWN)?;
        if durable::is_below_known(&found.mount, found.file.as_ref()) {
            Ok(found)
        } else {
            Err(page::NAME_REAL)
        }
    }

    /// The asker's own file, opened again.
    fn file_again(&self, opening: Opening) -> Option<OwnedFd> {
        opening.again(&self.theirs.as_ref()?.0).ok()
    }

    fn taken_by(&self, seen: &Seen) -> Option<Found> {
        // One may be covered by another mount.
        let mut in_sight = seen.in_sight.iter();
        let opened = in_sight.find_map(|m| Some((m, at_point(m)?)));
        let (mount, at_point) = match opened {
            Some((mount, fd)) => (mount.clone(), Some(fd)),
            None => (seen.mount.clone(), None),
        };
        let there = [dev_of(&mount), self.dev];
        let opening = Opening::of(&mount);
        let folder = self.folder(there, opening);
        let folder = folder.filter(|fd| seen.is_on_ours(fd));
        let dirs = [at_point.as_ref(), folder.as_ref()];
        let number = self.number(&mount)?;
        let theirs = self.theirs.as_ref();
        let is_unique = theirs.is_some_and(|(_, place)| place.is_unique);
        let pin = if number.mount == 0 || is_unique {
            None
        } else {
            Some(self.pin(dirs)?)
        };
        let file_alone = match (&at_point, &folder) {
            (None, None) => {
                let file = self.file_again(opening);
                Some(file.filter(|fd| seen.is_on_ours(fd))?)
            }
            _ => None,
        };
        let folders = dirs.into_iter().flatten();
        let on_it = folders.chain(file_alone.as_ref()).next()?;
        let ids = [mount.id, self.mount_id().unwrap_or(mount.id)];
        let file = if durable::asks_by_file(&mount, on_it) {
            // Whoever finds that there is none has it real.
            file_to_ask_by(&mount, &ids, dirs)
        } else if durable::needs_file(&mount) {
            let mut folders = dirs.into_iter().flatten();
            let made = folders.find_map(|d| durable::file_below(d.as_fd()));
            let theirs = made.or_else(|| self.own_file(opening).filter(|fd| seen.is_on_ours(fd)));
            Some(theirs.or_else(|| file_among(&mount, &ids, [None; 2], |_| true))?)
        } else {
            None
        };
        let fd = at_point.or(folder).or(file_alone)?;
        Some(Found {
            mount,
            in_sight: !seen.in_sight.is_empty(),
            fd,
            file,
            number,
            pin,
        })
    }

    /// The folder that it lies in, on this mount.
    fn folder_on(&self, mount: &Mount) -> Option<OwnedFd> {
        self.folder([dev_of(mount); 2], Opening::of(mount))
    }

    /// The asker's file itself, where its `fsync` flushes the disk: behind an overlay it does so
    /// only for what was written to, which cannot be told from here.
    fn own_file(&self, opening: Opening) -> Option<OwnedFd> {
        let (theirs, _) = self.theirs.as_ref().filter(|_| !self.is_folder())?;
        (opening == Opening::Direct)
            .then(|| opening.again(theirs).ok())
            .flatten()
    }

    fn is_folder(&self) -> bool {
        let theirs = self.theirs.as_ref();
        theirs.is_some_and(|(_, place)| place.kind == FileType::Directory)
    }

    /// The folder that it is, or lies in, with one of these numbers.
    fn folder(&self, numbers: [u64; 2], opening: Opening) -> Option<OwnedFd> {
        let (theirs, _) = self.theirs.as_ref()?;
        if self.is_folder() {
            return opening.again(theirs).ok();
        }
        let name = std::fs::read_link(format!("/proc/self/fd/{}", theirs.as_raw_fd())).ok()?;
        // Their path may lead anywhere in our sight: not opened before it is known what it is.
        let above = known_at(name.parent()?, OFlags::DIRECTORY)
            .filter(|fd| what_is(fd).is_ok_and(|(dev, _)| numbers.contains(&dev)))?;
        opening.again(above).ok()
    }
}

/// What is mounted at a mount's point, where that is this mount and this superblock.
fn at_point(mount: &Mount) -> Option<OwnedFd> {
    // Not opened before it is known what it is.
    let there = known_at(mount.path(), OFlags::NOFOLLOW)?;
    let kind = what_is(&there).ok()?.1;
    let is_it = id_of_fd(&there, MNT_ID).is_ok_and(|id| id == mount.id);
    let opening = Opening::of(mount);
    // To close a file is to have it flushed, which a program may do (FUSE); a folder is not.
    let file_opens = kind == FileType::RegularFile && opening == Opening::Direct;
    let opens = kind == FileType::Directory || file_opens;
    // The line was read before it was held: all of it may have been another's.
    (is_it && opens && mounts_of("self").contains(mount))
        .then(|| opening.again(&there).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn opened(path: &Path) -> OwnedFd {
        open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("it opens")
    }

    fn mount_of(fd: &OwnedFd) -> u64 {
        place_of_fd(fd).expect("a place").mount
    }

    // What is used before Linux 6.8 only.
    #[test]
    fn a_mount_is_kept_by_a_folder_on_it_and_else_by_the_file() {
        let exe = std::env::current_exe().expect("our own path");
        let file = opened(&exe);
        let (on, place) = (mount_of(&file), place_of_fd(&file).expect("a place"));
        let asked = Asked {
            question: Question {
                pid: std::process::id(),
                fd: None,
                dev: place.dev,
            },
            dev: place.dev,
            theirs: Some((file, place)),
        };
        let (near, far) = (
            opened(exe.parent().expect("its folder")),
            opened("/proc".as_ref()),
        );
        assert_ne!(mount_of(&far), on);
        let kind = |dirs| what_is(asked.pin(dirs).expect("a pin")).expect("a kind").1;
        assert_eq!(kind([Some(&far), Some(&near)]), FileType::Directory);
        assert_eq!(kind([Some(&far), None]), FileType::RegularFile);
        let pin = asked.pin([Some(&far), Some(&near)]).expect("a pin");
        assert_eq!(mount_of(&pin), on);
    }
}
