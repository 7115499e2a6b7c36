//! The superblocks of a session: which are held, under which numbers they are known, and which may
//! owe.
//!
//! One entry a superblock, at the index that the shim uses. Promise: a superblock owes only while a
//! descriptor on it is held, and the page names it only while it owes. So its own number cannot be
//! another's meanwhile, whatever is mounted, moved or made anew by others; a number that can (a
//! subvolume's) counts on one mount of it.

use super::durable::Holding;
use super::find::{find_mounted, lacks_file, unique_id_at, Found};
use super::mounts::{dev_of, mounts_of};
use super::names::{self, Number};
use super::opening::Opening;
use super::settle;
use super::shared::Shared;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use synclater_policy::filesystem::{kind, FsKind};
use synclater_policy::ledger::LedgerFs;
use synclater_proc::mountinfo::Mount;
use synclater_shim::page;
use synclater_sys::job::{self, Job};
use synclater_sys::mount::{self, MNT_ID};
use synclater_sys::wait;

/// One superblock.
pub struct Filesystem {
    /// `major << 32 | minor` as in mountinfo.
    pub dev: u64,
    /// Where it is mounted, as we or the victim see it.
    pub point: PathBuf,
    /// Its type.
    pub fstype: String,
    /// Its source: a device, usually.
    pub source: String,
    /// Its UUID, where it has one.
    pub uuid: Option<String>,
    /// The mount that it was found on, by a number that is never given again.
    mount_id: Option<u64>,
    /// Victims wait for its umount, or it is mounted nowhere any more: it is settled and let go of.
    pub leaving: bool,
    /// Members of the session write to it, or its keeper has met an error there.
    pub is_used: bool,
    held: Option<Holding>,
    /// By what it is held next, once it was let go of: another of its mounts, in our sight.
    moves_to: Option<Box<Found>>,
    /// The numbers that it has been known by since it was held, its own first, with what keeps the
    /// mounts that they count on.
    numbers: Vec<(Number, Option<OwnedFd>)>,
    in_sight: bool,
    /// Whether the keeper has a descriptor on it, too.
    is_kept: bool,
}

impl Filesystem {
    /// What settles it, as long as it is held.
    #[must_use]
    pub fn held(&self) -> Option<&Holding> {
        self.held.as_ref()
    }

    /// Whether we hold it on one of these mounts, by their numbers in mountinfo; also where that
    /// cannot be told, and where only the keeper does.
    #[must_use]
    pub fn stands_on(&self, mounts: &BTreeSet<u64>) -> bool {
        let held = self.held.as_ref().map(|held| held.parts().0);
        let pins = self
            .numbers
            .iter()
            .filter_map(|(_, pin)| Some(pin.as_ref()?.as_fd()));
        let fds = held.iter().flatten().copied().chain(pins);
        let mut ids = fds.map(|fd| mount::id_of_fd(fd, MNT_ID).ok());
        held.is_none() || ids.any(|id| id.is_none_or(|id| mounts.contains(&id)))
    }

    fn is_known_by(&self, number: Number) -> bool {
        self.numbers.iter().any(|(n, _)| n.covers(number))
    }

    /// Gives it a number. Of those of one mount the oldest goes where they are too many, and is
    /// returned.
    fn get_number(&mut self, number: Number, pin: Option<OwnedFd>) -> Option<Number> {
        if self.is_known_by(number) {
            return None;
        }
        self.numbers.push((number, pin));
        let oldest = self.numbers.iter().position(|(n, _)| n.mount != 0)?;
        (self.numbers.len() > NUMBERS_MAX).then(|| self.numbers.remove(oldest).0)
    }

    fn is_at(&self, mount: &Mount) -> bool {
        self.point == mount.path() && self.source == mount.source && self.fstype == mount.fstype
    }

    /// Whether its index may be another one's.
    fn is_free(&self) -> bool {
        self.held.is_none() && !self.leaving
    }

    /// It does not leave any more, and has no numbers: those that it had.
    fn forget(&mut self) -> Vec<u64> {
        self.leaving = false;
        let numbers = self.numbers.drain(..);
        numbers.map(|(number, _)| number.dev).collect()
    }

    /// What the ledger says of it.
    fn for_ledger(&self) -> LedgerFs {
        LedgerFs {
            mount: self.point.to_string_lossy().into_owned(),
            fstype: self.fstype.clone(),
            source: self.source.clone(),
            uuid: self.uuid.clone(),
            mount_id: self.mount_id,
        }
    }
}

/// How many numbers of one superblock are known at once: subvolumes come and go.
const NUMBERS_MAX: usize = 256;

/// All superblocks of a session.
#[derive(Default)]
pub struct Filesystems {
    list: Vec<Filesystem>,
    /// Own numbers of those that were let go of while files there may have lost their `O_SYNC`:
    /// what is written to these nobody sees, so they owe from the moment that they are held again.
    /// With the mount that each was held on, by a number that is never given again.
    owe_unseen: BTreeMap<u64, Option<u64>>,
}

/// Whether our root directory lies on the mount that is the root of process 1, or of our mount
/// namespace: then nobody unmounts what a process of ours that outlives us would hold. False in a
/// chroot, and where it cannot be seen.
#[must_use]
pub fn root_stays() -> bool {
    let ours = root_mount();
    let theirs = mounts_of("1").into_iter().rfind(|m| m.point == b"/");
    ours.is_some() && (ours == theirs.map(|m| m.id) || root_mount_of_namespace() == ours)
}

fn root_mount() -> Option<u64> {
    mount::id_of_path(Path::new("/"), MNT_ID).ok()
}

/// The mount at the root of our mount namespace, as a process finds it that enters that anew
/// (setns(2)); it takes root.
fn root_mount_of_namespace() -> Option<u64> {
    use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
    let job = Job::start(|| {
        let kept = job::keep_only(&[writer.as_fd()]);
        let entered = std::fs::File::open("/proc/self/ns/mnt").is_ok_and(|namespace| {
            let kind = Some(LinkNameSpaceType::Mount);
            move_into_link_name_space(namespace.as_fd(), kind).is_ok()
        });
        let found = entered.then(root_mount).flatten().map(u64::to_ne_bytes);
        let told = found.is_some_and(|id| rustix::io::write(&kept[0], &id).is_ok());
        std::mem::forget(kept);
        i32::from(!told)
    });
    drop(writer);
    let job = job.ok()?;
    if !wait::any(&[(job.as_fd(), wait::For::Input)], Duration::from_secs(1))[0] {
        job.kill();
        return None;
    }
    let mut id = [0; 8];
    let told = rustix::io::read(&reader, &mut id) == Ok(8);
    told.then(|| u64::from_ne_bytes(id))
}

/// The UUID of what was found, by itself or by udev. What an overlay names as its source is any
/// text, and no device: a path that may lead to where a program answers.
#[must_use]
pub fn uuid_of(found: &Found) -> Option<String> {
    let source = Path::new(&found.mount.source);
    let device = (found.mount.fstype != "overlay").then_some(source);
    mount::uuid_of_fd(&found.fd).or_else(|| mount::uuid_of_device(device?))
}

/// Whether what is held of a superblock lies on a mount that has left our sight, by our table now.
fn has_left() -> impl Fn(&Filesystem) -> bool {
    let table = mounts_of("self");
    let numbers: BTreeSet<u64> = table.iter().map(dev_of).collect();
    // Behind a chroot no line need show what our root lies on.
    let ids = table.iter().map(|m| m.id).chain(root_mount());
    let ids: BTreeSet<u64> = ids.collect();
    move |f| {
        // Something is mounted always: else it is /proc that is gone, or another's.
        let held = f.held.as_ref().filter(|_| f.in_sight && !table.is_empty());
        let Some(held) = held else {
            return false;
        };
        let id = held.parts().0.first().map(|fd| mount::id_of_fd(fd, MNT_ID));
        let stands = id.is_none_or(|id| id.is_ok_and(|id| ids.contains(&id)));
        !(numbers.contains(&f.dev) && stands)
    }
}

fn counts_as_disk(m: &Mount) -> bool {
    m.writable && matches!(kind(&m.fstype), FsKind::Tested | FsKind::Untested(_))
}

/// The writable disks in our sight, each once.
fn disks() -> Vec<Mount> {
    let mut disks: Vec<Mount> = mounts_of("self")
        .into_iter()
        .filter(counts_as_disk)
        .collect();
    disks.sort_by_key(dev_of);
    disks.dedup_by_key(|m| dev_of(m));
    disks
}

/// The superblock whose own number is the first of these, where it is mounted.
fn find_again(numbers: &[u64], table: &[Mount]) -> Option<Found> {
    let its = table.iter();
    let mut its = its.filter(|m| numbers.first() == Some(&dev_of(m)));
    // One may be covered by another mount.
    its.find_map(find_mounted)
}

impl Filesystems {
    /// The superblock at an index that the shim gave; it may be any number.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Filesystem> {
        self.list.get(index)
    }

    /// As [`Filesystems::get`].
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Filesystem> {
        self.list.get_mut(index)
    }

    fn indexes(&self, which: impl Fn(&Filesystem) -> bool) -> Vec<usize> {
        let all = self.list.iter().enumerate();
        all.filter(|(_, f)| which(f)).map(|(i, _)| i).collect()
    }

    /// Indexes of the superblocks that are held: those that may owe, or will.
    #[must_use]
    pub fn owing(&self) -> Vec<usize> {
        self.indexes(|f| f.held.is_some())
    }

    /// The own numbers of those that are held: none of them can be another's meanwhile.
    #[must_use]
    pub fn own_numbers(&self) -> BTreeSet<u64> {
        let held = self.list.iter().filter(|f| f.held.is_some());
        held.map(|f| f.dev).collect()
    }

    /// Indexes of the superblocks that we let go of, and the keeper has not yet.
    #[must_use]
    pub fn kept_only(&self) -> Vec<usize> {
        self.indexes(|f| f.held.is_none() && f.is_kept)
    }

    /// Whether superblock `index` is held and may go on owing.
    #[must_use]
    pub fn stays(&self, index: usize) -> bool {
        self.get(index)
            .is_some_and(|f| f.held.is_some() && !f.leaving)
    }

    /// The superblock that has a number now, or had it when somebody wanted to unmount it.
    #[must_use]
    pub fn by_number(&self, number: Number) -> Option<usize> {
        let mut all = self.list.iter();
        let held = all.position(|f| f.held.is_some() && f.is_known_by(number));
        held.or_else(|| self.list.iter().position(|f| f.is_known_by(number)))
    }

    /// Whether the superblock that has this number is held.
    fn holds(&self, number: Number) -> bool {
        self.by_number(number)
            .is_some_and(|i| self.list[i].held.is_some())
    }

    /// Whether sync() may be put off: every writable disk in sight is held, and by `is_in` in the
    /// ledger.
    #[must_use]
    pub fn all_disks_are(&self, is_in: impl Fn(usize) -> bool) -> bool {
        let disks = disks();
        let all = disks.iter().all(|m| {
            let own = Number::everywhere(dev_of(m));
            let at = self.by_number(own).filter(|i| self.stays(*i));
            at.is_some_and(&is_in)
        });
        all && !disks.is_empty()
    }

    /// Holds each tested disk in sight that may owe (find.rs); the indexes of those that were not
    /// held before.
    pub fn hold_all_disks(&mut self, shared: &Shared) -> Vec<usize> {
        self.hold_disks(shared, |found| !lacks_file(found))
    }

    /// Holds the others, too, to be settled: requests that name them stay real.
    pub fn hold_what_cannot_be_asked(&mut self, shared: &Shared) {
        let _ = self.hold_disks(shared, |_| true);
    }

    fn hold_disks(&mut self, shared: &Shared, wanted: impl Fn(&Found) -> bool) -> Vec<usize> {
        let fresh = disks()
            .into_iter()
            .filter(|m| self.by_number(Number::everywhere(dev_of(m))).is_none());
        let found = fresh.filter_map(|m| find_mounted(&m)).filter(wanted);
        let found: Vec<Found> = found.collect();
        found
            .into_iter()
            .filter_map(|f| self.take(f, shared))
            .collect()
    }

    /// Holds what was found, at the index that it gets; `None` where there is no room, and it stays
    /// real. One that is held already gets another number.
    pub fn take(&mut self, found: Found, shared: &Shared) -> Option<usize> {
        let dev = dev_of(&found.mount);
        let own = Number::everywhere(dev);
        if let Some(index) = self.by_number(own).filter(|i| self.list[*i].held.is_some()) {
            let f = &mut self.list[index];
            if let Some(oldest) = f.get_number(found.number, found.pin) {
                names::remove(shared.page(), oldest);
            }
            let stays = !f.leaving;
            if stays && self.may_owe(index, shared) {
                self.publish(index, shared);
            }
            return Some(index);
        }
        let index = self.room_for(&found.mount)?;
        let opening = Opening::of(&found.mount);
        let mut fresh = Filesystem {
            dev,
            point: found.mount.path().to_path_buf(),
            uuid: uuid_of(&found),
            mount_id: mount::unique_id_of_fd(&found.fd),
            fstype: found.mount.fstype,
            source: found.mount.source,
            leaving: false,
            is_used: false,
            held: Some(Holding::new(found.fd, found.file, opening)),
            moves_to: None,
            numbers: vec![(own, None)],
            in_sight: found.in_sight,
            is_kept: false,
        };
        fresh.get_number(found.number, found.pin);
        let place = &shared.page().fs[index];
        place.dev.store(dev, SeqCst);
        place.held.fetch_add(1, SeqCst);
        shared.forget_owed(index);
        // What was noted of the one before it, behind the last settle of that.
        let _ = settle::take_debt(shared, index);
        if self.owe_unseen.contains_key(&dev) {
            shared.owes(index);
        }
        match self.list.get_mut(index) {
            Some(place) => *place = fresh,
            None => self.list.push(fresh),
        }
        Some(index)
    }

    /// An index for the superblock of a mount: its own of before, or a new one, or the first of
    /// those that nobody holds.
    fn room_for(&self, mount: &Mount) -> Option<usize> {
        let mut all = self.list.iter();
        let again = all.position(|f| f.is_free() && f.is_at(mount));
        again
            .or_else(|| (self.list.len() < page::FS_MAX).then_some(self.list.len()))
            .or_else(|| self.list.iter().position(Filesystem::is_free))
    }

    /// Has the page name superblock `index`: from now on it may owe.
    pub fn publish(&self, index: usize, shared: &Shared) {
        let Some(f) = self.list.get(index) else {
            return;
        };
        shared.page().fs[index].state.store(page::FS_OWES, SeqCst);
        let name = u32::try_from(index).unwrap_or(page::NAME_UNKNOWN);
        for (number, _) in &f.numbers {
            names::put(shared.page(), *number, name);
        }
    }

    /// Whether superblock `index` may owe now.
    #[must_use]
    pub fn may_owe(&self, index: usize, shared: &Shared) -> bool {
        shared.page().fs[index].state.load(SeqCst) == page::FS_OWES
    }

    /// Ends that superblock `index` may owe: what was put off before is covered by a settle that
    /// begins after this.
    pub fn unpublish(&self, index: usize, shared: &Shared) {
        let Some(f) = self.list.get(index) else {
            return;
        };
        shared.page().fs[index].state.store(page::FS_REAL, SeqCst);
        f.numbers
            .iter()
            .for_each(|(n, _)| names::remove(shared.page(), *n));
    }

    /// Lets go of superblock `index`. Its numbers are remembered until
    /// [`Filesystems::forget_left`].
    pub fn release(&mut self, index: usize, shared: &Shared) {
        self.unpublish(index, shared);
        let owes_unseen = shared.any_stripped() && shared.was_owed(index);
        if let Some(f) = self.list.get_mut(index) {
            if owes_unseen {
                self.owe_unseen.insert(f.dev, f.mount_id);
            }
            f.held = None;
            f.numbers.iter_mut().for_each(|(_, pin)| *pin = None);
        }
    }

    /// Does without superblock `index`, which is held and has not owed: it stays real.
    pub fn do_without(&mut self, index: usize, shared: &Shared) {
        self.release(index, shared);
        let numbers = self.list.get(index).map_or(&[][..], |f| &f.numbers);
        for (number, _) in numbers {
            names::put(shared.page(), *number, page::NAME_UNKNOWN);
        }
    }

    /// Whether superblock `index`, whose mount has left, is held on another one of ours that stands
    /// as soon as it was let go of.
    pub fn moves(&mut self, index: usize) -> bool {
        let Some(f) = self.get(index).filter(|f| has_left()(f)) else {
            return false;
        };
        let table = mounts_of("self");
        let mut its = table.iter().filter(|m| dev_of(m) == f.dev);
        let found = its.find_map(|m| find_mounted(m).filter(|found| !lacks_file(found)));
        let f = &mut self.list[index];
        if let Some(found) = found {
            f.mount_id = mount::unique_id_of_fd(&found.fd);
            f.moves_to = Some(Box::new(found));
        }
        f.moves_to.is_some()
    }

    /// Superblock `index` was let go of, by the keeper, too: holds it where it moves to. Its index.
    pub fn arrive(&mut self, index: usize, shared: &Shared) -> Option<usize> {
        let f = self.list.get_mut(index).filter(|f| f.held.is_none())?;
        let found = f.moves_to.take()?;
        f.leaving = false;
        f.numbers.clear();
        self.take(*found, shared)
    }

    /// Nobody is about to unmount any more: what was let go of may be found again. Its numbers, of
    /// each its own first.
    pub fn forget_left(&mut self) -> Vec<Vec<u64>> {
        let all = self.list.iter_mut();
        let left = all.filter(|f| f.leaving && f.held.is_none() && !f.is_kept);
        left.map(Filesystem::forget).collect()
    }

    /// Holds the superblocks with these numbers that are mounted in our sight; their indexes.
    pub fn hold_again(&mut self, left: &[Vec<u64>], shared: &Shared) -> Vec<usize> {
        let table = mounts_of("self");
        let found = left.iter().filter_map(|n| find_again(n, &table));
        let found: Vec<Found> = found.collect();
        found
            .into_iter()
            .filter_map(|f| self.take(f, shared))
            .collect()
    }

    /// The numbers of the superblocks that were let go of while files there may have lost their
    /// `O_SYNC`, and are not held.
    #[must_use]
    pub fn unseen(&self) -> Vec<Vec<u64>> {
        let all = self.owe_unseen.keys();
        all.filter(|dev| !self.holds(Number::everywhere(**dev)))
            .map(|dev| vec![*dev])
            .collect()
    }

    /// The same as far as the mount that they were held on is still in our sight.
    #[must_use]
    pub fn unseen_in_sight(&self) -> Vec<Mount> {
        let left = self.unseen().concat();
        let mut there = mounts_of("self");
        there.retain(|m| left.contains(&dev_of(m)) && self.was_held_on(m));
        there
    }

    /// Whether an unseen one was held on this very mount.
    fn was_held_on(&self, m: &Mount) -> bool {
        let was = self.owe_unseen.get(&dev_of(m)).copied().flatten();
        was.is_some() && unique_id_at(m) == was
    }

    /// Superblock `index` is one that the session writes to.
    pub fn is_used(&mut self, index: usize) {
        if let Some(f) = self.list.get_mut(index) {
            f.is_used = true;
        }
    }

    /// The session writes to the superblocks with these numbers; `None`: to any.
    pub fn are_used(&mut self, numbers: Option<&BTreeSet<u64>>) {
        let held = self.list.iter_mut().filter(|f| f.held.is_some());
        for f in held {
            f.is_used |= numbers.is_none_or(|numbers| numbers.contains(&f.dev));
        }
    }

    /// The keeper has a descriptor on superblock `index`, or has no more.
    pub fn is_kept(&mut self, index: usize, yes: bool) {
        if let Some(f) = self.list.get_mut(index) {
            f.is_kept = yes;
        }
    }

    /// The superblocks with this number, on any mount, of which we or the keeper have a descriptor:
    /// one, or the same one again that the keeper has not let go of yet, or one that had it before.
    #[must_use]
    pub fn ours_with(&self, dev: u64) -> Vec<usize> {
        self.indexes(|f| {
            let is_ours = f.held.is_some() || f.is_kept;
            is_ours && f.numbers.iter().any(|(n, _)| n.dev == dev)
        })
    }

    /// Superblocks that owe, were mounted in our sight, and are not any more; and those whose mount
    /// that we hold is not: whoever unmounts another one of theirs would not find us in the way.
    #[must_use]
    pub fn gone(&self) -> Vec<usize> {
        let has_left = has_left();
        self.indexes(|f| !f.leaving && has_left(f))
    }

    /// Whether superblock `index` is held on a mount that was in our sight, and is not any more.
    #[must_use]
    pub fn has_left(&self, index: usize) -> bool {
        self.get(index).is_some_and(has_left())
    }

    /// Lets go of every superblock, at the end of the session.
    pub fn release_all(&mut self) {
        for f in &mut self.list {
            f.held = None;
            f.moves_to = None;
            f.numbers.clear();
        }
    }

    /// What the ledger says of the superblocks `indexes`.
    #[must_use]
    pub fn for_ledger(&self, indexes: &[usize]) -> Vec<LedgerFs> {
        let them = indexes.iter().filter_map(|&i| self.list.get(i));
        them.map(Filesystem::for_ledger).collect()
    }
}
