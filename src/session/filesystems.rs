//! Which file systems are in sight, which of them may owe, and the descriptors that settle them.
//!
//! One entry a superblock, at the index that the shim uses. Promise: a file system is put into the
//! page as tested only from its type in mountinfo; whatever cannot be told stays real.
//! Relies on: mountinfo's device numbers being those of the superblock (on btrfs too, where stat's
//! are the subvolume's), and mount ids of statx not being reused (Linux 6.8) or rarely (before).

use super::shared::Shared;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use synclater_model::ledger::LedgerFs;
use synclater_model::policy::filesystem::{kind, parse_mountinfo, FsKind, Mount};
use synclater_shim::page::{self, mount_place};
use synclater_sys::listmount::{self, InSight};
use synclater_sys::mount;

/// A place in the mount table whose mount is gone.
const GONE: u64 = u64::MAX;

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
    /// Whether it is on the tested list, and if not why.
    pub kind: FsKind,
    /// The descriptor that settles it, held from the moment it may owe.
    pub fd: Option<OwnedFd>,
    /// Its UUID, looked up when it enters the ledger.
    pub uuid: Option<String>,
    /// How a process sees it that is in another mount namespace: through this process's root.
    pub through: Option<u32>,
    /// Victims wait for its umount: it may not be taken up again yet.
    pub leaving: bool,
    /// It was let go of: another file system may have its device number next.
    forgotten: bool,
}

/// All superblocks of a session.
pub struct Filesystems {
    list: Vec<Filesystem>,
    mounts: BTreeMap<u64, usize>,
    /// Mounts of superblocks that we let go of, while the keeper may still hold them.
    leaving: BTreeMap<u64, usize>,
    /// Whether the mount table was published because requests look.
    looked: bool,
}

fn dev_of(m: &Mount) -> u64 {
    u64::from(m.dev.0) << 32 | u64::from(m.dev.1)
}

/// The mounts that process `pid` sees; empty where /proc is not mounted.
#[must_use]
pub fn mounts_of(pid: &str) -> Vec<Mount> {
    parse_mountinfo(&std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default())
}

/// Whether our root directory lies on the root file system of process 1: then nobody unmounts what
/// a process of ours that outlives us would hold. False in most chroots, and where it cannot be
/// seen.
#[must_use]
pub fn root_is_that_of_init() -> bool {
    let root = |pid| {
        let mounts = mounts_of(pid).into_iter().rfind(|m| m.point == b"/");
        mounts.as_ref().map(dev_of)
    };
    // Behind a chroot to a folder that is no mount point there is no line for it.
    let by_folder = || mount::dev_of_fd(mount::open_point(Path::new("/")).ok()?).ok();
    let ours = root("self").or_else(by_folder);
    ours.is_some() && ours == root("1")
}

/// The numbers of the mounts in our own sight, as statx tells them by `mask`; `None` where only a
/// look at each path tells, which can make an unmount of that moment fail with `EBUSY`.
fn numbers(mounts: &[Mount], mask: u32) -> Option<Vec<InSight>> {
    if mask == mount::UNIQUE {
        return listmount::in_sight().ok();
    }
    let same = |m: &Mount| InSight {
        id: m.id,
        old_id: m.id,
        dev: m.dev,
    };
    Some(mounts.iter().map(same).collect())
}

/// Whether both are the same mount. A number of mountinfo may be another mount's a moment later,
/// but hardly of the same superblock.
fn is_same_mount(m: &Mount, seen: &InSight) -> bool {
    (m.id, m.dev) == (seen.old_id, seen.dev)
}

fn counts_as_disk(m: &Mount) -> bool {
    m.writable && matches!(kind(&m.fstype), FsKind::Tested | FsKind::Untested(_))
}

impl Filesystems {
    /// Nothing in sight yet.
    #[must_use]
    pub fn new() -> Filesystems {
        Filesystems {
            list: Vec::new(),
            mounts: BTreeMap::new(),
            leaving: BTreeMap::new(),
            looked: false,
        }
    }

    /// The superblock at an index that the shim gave; it may be any number.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Filesystem> {
        self.list.get(index)
    }

    /// As [`Filesystems::get`].
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Filesystem> {
        self.list.get_mut(index)
    }

    /// Indexes of the superblocks that hold a descriptor: those that owe.
    pub fn owing(&self) -> impl Iterator<Item = usize> + '_ {
        self.list
            .iter()
            .enumerate()
            .filter(|(_, f)| f.fd.is_some())
            .map(|(i, _)| i)
    }

    /// Whether sync() may be put off: every writable disk in sight is tested.
    #[must_use]
    pub fn all_tested(&self) -> bool {
        mounts_of("self")
            .iter()
            .filter(|m| counts_as_disk(m))
            .all(|m| kind(&m.fstype) == FsKind::Tested)
    }

    /// Indexes of the tested, writable superblocks in sight.
    #[must_use]
    pub fn all_disks(&mut self, shared: &Shared) -> Vec<usize> {
        let mounts = mounts_of("self");
        let disks: Vec<&Mount> = mounts.iter().filter(|m| counts_as_disk(m)).collect();
        disks
            .into_iter()
            .filter_map(|m| self.index_of(m, None, shared))
            .collect()
    }

    /// [`Filesystems::refresh`], where the kernel says that the mount table changed or a victim
    /// asks that every request looks.
    pub fn refresh_if_changed(&mut self, shared: &Shared, mountinfo: &std::fs::File) -> Vec<usize> {
        use synclater_sys::wait::{any, For};
        let changed = any(
            &[(mountinfo.as_fd(), For::Change)],
            std::time::Duration::ZERO,
        )[0];
        let looks = shared.slots().look.load(SeqCst) != 0;
        if changed || (looks && !std::mem::replace(&mut self.looked, looks)) {
            return self.refresh(shared);
        }
        Vec::new()
    }

    /// Reads our mount table again and publishes what changed. Returns superblocks that owe and are
    /// mounted nowhere in our sight any more.
    pub fn refresh(&mut self, shared: &Shared) -> Vec<usize> {
        let mounts = mounts_of("self");
        let mut disks: Vec<u64> = mounts
            .iter()
            .filter(|m| counts_as_disk(m))
            .map(dev_of)
            .collect();
        disks.sort_unstable();
        disks.dedup();
        let looks = shared.slots().look.load(SeqCst) != 0;
        let one = disks.len() == 1;
        let publishes = !one || looks;
        let mask = shared.page().mount_mask.load(SeqCst);
        let numbers = publishes.then(|| numbers(&mounts, mask)).flatten();
        for m in &mounts {
            let wanted = counts_as_disk(m) || publishes;
            let Some(index) = wanted.then(|| self.index_of(m, None, shared)).flatten() else {
                continue;
            };
            if !publishes {
                continue;
            }
            match &numbers {
                Some(all) => {
                    let number = all.iter().find(|seen| is_same_mount(m, seen));
                    number
                        .into_iter()
                        .for_each(|n| self.publish(n.id, index, shared));
                }
                None => self.publish_by_path(m, index, shared),
            }
        }
        self.publish_single(&disks, shared);
        let seen: Vec<u64> = mounts.iter().map(dev_of).collect();
        let gone = |f: &Filesystem| f.fd.is_some() && f.through.is_none() && !seen.contains(&f.dev);
        self.list
            .iter()
            .enumerate()
            .filter(|(_, f)| gone(f))
            .map(|(i, _)| i)
            .collect()
    }

    fn publish_single(&self, disks: &[u64], shared: &Shared) {
        let tested = |f: &&Filesystem| f.kind == FsKind::Tested && disks == [f.dev];
        let at = self
            .list
            .iter()
            .find(tested)
            .and_then(|f| self.list.iter().position(|g| g.dev == f.dev));
        let single = at.map_or(0, |i| u32::try_from(i + 1).unwrap_or(0));
        shared.page().single.store(single, SeqCst);
    }

    /// The index of a mount's superblock; a new one gets one, where there is room.
    fn index_of(&mut self, m: &Mount, through: Option<u32>, shared: &Shared) -> Option<usize> {
        let dev = dev_of(m);
        let known = self.list.iter().position(|f| f.dev == dev);
        if let Some(i) = known.filter(|&i| !self.list[i].forgotten) {
            return Some(i);
        }
        let index = known.unwrap_or(self.list.len());
        let slot = shared.page().fs.get(index)?;
        let kind = kind(&m.fstype);
        let fresh = Filesystem {
            dev,
            point: m.path().to_path_buf(),
            fstype: m.fstype.clone(),
            source: m.source.clone(),
            kind,
            fd: None,
            uuid: None,
            through,
            leaving: false,
            forgotten: false,
        };
        match known {
            Some(i) => self.list[i] = fresh,
            None => self.list.push(fresh),
        }
        slot.dev.store(dev, SeqCst);
        slot.state.store(
            match kind {
                FsKind::Tested => page::FS_KNOWN,
                FsKind::Memory => page::FS_NOTHING,
                FsKind::Pseudo | FsKind::Untested(_) => page::FS_REAL,
            },
            SeqCst,
        );
        Some(index)
    }

    fn publish(&mut self, id: u64, index: usize, shared: &Shared) {
        if !self.mounts.contains_key(&id) {
            self.insert(id, index, shared);
        }
    }

    fn publish_by_path(&mut self, m: &Mount, index: usize, shared: &Shared) {
        let path = m.path().to_path_buf();
        let mask = shared.page().mount_mask.load(SeqCst);
        // Another mount may lie on top of this one: then the path shows that one.
        let on_top = || mount::id_of_path(&path, 0x1000).is_ok_and(|id| id == m.id);
        if let Ok(id) = mount::id_of_path(&path, mask) {
            if on_top() {
                self.publish(id, index, shared);
            }
        }
    }

    fn insert(&mut self, id: u64, index: usize, shared: &Shared) {
        let table = &shared.page().mounts;
        let first = mount_place(id);
        let places = (0..page::PROBE_MAX).map(|k| &table[(first + k) % page::MOUNT_MAX]);
        for place in places {
            let there = place.id.load(SeqCst);
            if there == 0 || there == GONE {
                place
                    .fs
                    .store(u32::try_from(index).unwrap_or(u32::MAX), SeqCst);
                place.id.store(id, SeqCst);
                self.mounts.insert(id, index);
                return;
            }
        }
    }

    /// Finds the mount `id` in the view of process `pid` and publishes it; a mount that cannot be
    /// told is published as one that stays real, so that it is not asked for again.
    pub fn resolve(&mut self, id: u64, pid: u32, shared: &Shared) {
        if self.mounts.contains_key(&id) {
            return;
        }
        let mask = shared.page().mount_mask.load(SeqCst);
        // Our own table first: a process that changed its root sees less of it.
        let ours = mounts_of("self");
        let found = match numbers(&ours, mask) {
            Some(all) => {
                let seen = all.iter().find(|seen| seen.id == id);
                seen.and_then(|seen| ours.iter().find(|m| is_same_mount(m, seen)))
            }
            None => by_path(&ours, None, id, mask),
        };
        let index = match found {
            Some(m) => self.index_of(m, None, shared),
            None => match by_path(&mounts_of(&pid.to_string()), Some(pid), id, mask) {
                Some(m) => self.index_of(m, Some(pid), shared),
                None => self.unknown(shared),
            },
        };
        if let Some(index) = index {
            self.insert(id, index, shared);
        }
    }

    fn unknown(&mut self, shared: &Shared) -> Option<usize> {
        let nowhere = Mount {
            id: 0,
            parent: 0,
            dev: (u32::MAX, u32::MAX),
            root: Vec::new(),
            point: b"(not in sight)".to_vec(),
            fstype: "unknown".into(),
            options: String::new(),
            source: String::new(),
            writable: true,
            super_options: String::new(),
        };
        self.index_of(&nowhere, None, shared)
    }

    /// The superblock that the mount `id` belongs to.
    #[must_use]
    pub fn by_mount(&self, id: u64) -> Option<usize> {
        self.mounts.get(&id).copied()
    }

    /// Whether the mount `id` belongs to a superblock that the keeper may still hold.
    #[must_use]
    pub fn is_leaving(&self, id: u64) -> bool {
        self.leaving.contains_key(&id)
    }

    /// The keeper holds superblock `index` no more.
    pub fn has_left(&mut self, index: usize) {
        self.leaving.retain(|_, i| *i != index);
    }

    /// Whether superblock `index` is of a type on the tested list.
    #[must_use]
    pub fn is_tested(&self, index: usize) -> bool {
        self.get(index).is_some_and(|f| f.kind == FsKind::Tested)
    }

    /// Opens the descriptor that settles superblock `index`; `None` where that is not possible, and
    /// the superblock stays real.
    pub fn hold(&mut self, index: usize, shared: &Shared) -> Option<()> {
        let f = self.list.get_mut(index)?;
        if f.kind != FsKind::Tested || f.leaving {
            return None;
        }
        if f.fd.is_some() {
            return Some(());
        }
        let path = match f.through {
            Some(pid) => {
                use std::os::unix::ffi::OsStrExt;
                mount::through_root(pid, f.point.as_os_str().as_bytes())
            }
            None => f.point.clone(),
        };
        match mount::open_point(&path)
            .ok()
            .filter(|fd| is_same(fd, f.dev))
        {
            Some(fd) => {
                f.uuid =
                    mount::uuid_of_fd(&fd).or_else(|| mount::uuid_of_device(Path::new(&f.source)));
                f.fd = Some(fd);
                Some(())
            }
            None => {
                self.set_state(index, page::FS_REAL, shared);
                None
            }
        }
    }

    /// Closes the descriptor of superblock `index`, which may be held again.
    pub fn put_down(&mut self, index: usize) {
        if let Some(f) = self.list.get_mut(index) {
            f.fd = None;
        }
    }

    /// Publishes what the shim is to do with superblock `index`.
    pub fn set_state(&self, index: usize, state: u32, shared: &Shared) {
        if let Some(slot) = shared.page().fs.get(index) {
            slot.state.store(state, SeqCst);
        }
    }

    /// Lets go of superblock `index`; its mounts are looked up anew.
    pub fn release(&mut self, index: usize, shared: &Shared) {
        if let Some(f) = self.list.get_mut(index) {
            f.fd = None;
            f.forgotten = true;
        }
        let ids: Vec<u64> = self
            .mounts
            .iter()
            .filter(|(_, i)| **i == index)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.mounts.remove(&id);
            self.leaving.insert(id, index);
            let place = shared
                .page()
                .mounts
                .iter()
                .find(|p| p.id.load(SeqCst) == id);
            if let Some(place) = place {
                place.id.store(GONE, SeqCst);
            }
        }
    }

    /// Lets go of every superblock, at the end of the session.
    pub fn release_all(&mut self) {
        self.list.iter_mut().for_each(|f| f.fd = None);
    }

    /// What the ledger says of the superblocks `indexes`.
    #[must_use]
    pub fn for_ledger(&self, indexes: &[usize]) -> Vec<LedgerFs> {
        let entry = |f: &Filesystem| LedgerFs {
            mount: f.point.to_string_lossy().into_owned(),
            fstype: f.fstype.clone(),
            source: f.source.clone(),
            uuid: f.uuid.clone(),
        };
        indexes
            .iter()
            .filter_map(|&i| self.list.get(i))
            .map(entry)
            .collect()
    }
}

/// The mount with this number, by a look at the path of each, seen through the root of a process.
fn by_path(mounts: &[Mount], through: Option<u32>, id: u64, mask: u32) -> Option<&Mount> {
    let place = |m: &Mount| match through {
        None => m.path().to_path_buf(),
        Some(pid) => mount::through_root(pid, &m.point),
    };
    let is_it = |m: &&Mount| mount::id_of_path(&place(m), mask).is_ok_and(|i| i == id);
    mounts.iter().rev().find(is_it)
}

/// Whether the descriptor lies on the superblock that mountinfo named; btrfs shows subvolumes.
fn is_same(fd: &OwnedFd, dev: u64) -> bool {
    let Ok(seen) = mount::dev_of_fd(fd) else {
        return false;
    };
    seen == dev || superblock_of(fd) == Some(dev)
}

/// The superblock's device of a descriptor, by its mount id in our own mount table.
fn superblock_of(fd: &OwnedFd) -> Option<u64> {
    let id = mount::id_of_fd(fd.as_fd(), 0x1000).ok()?;
    mounts_of("self").iter().find(|m| m.id == id).map(dev_of)
}

/// Whether `source` is mounted at `point` in our sight.
#[must_use]
pub fn is_mounted(point: &str, source: &str) -> bool {
    let same = |m: &Mount| m.source == source && m.path().to_path_buf() == Path::new(point);
    mounts_of("self").iter().any(same)
}
