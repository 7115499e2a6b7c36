//! Mounts that come and go under the session: whoever unmounts must not find us holding on.

use super::looking::Looks;
use super::Supervisor;
use crate::session::find::{find, open_on, Finding, Question};
use crate::session::losses::errno_name;
use crate::session::mounts::{dev_of, mounts_of};
use crate::session::names::{self, Number};
use crate::session::usage;
use crate::supervisor::looking::Who;
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_account::run::SettleError;
use synclater_proc::mountinfo::Mount;
use synclater_shim::page;
use synclater_sys::{job, wait};

/// What goes as a member unmounts something.
struct Going {
    /// The own number of the superblock there, where it can be told.
    dev: Option<u64>,
    /// The mounts, and the superblocks of those below it, which go with a lazy umount.
    mounts: BTreeSet<u64>,
    below: BTreeSet<u64>,
    /// Copies of one elsewhere, perhaps ours, go with it: what it is mounted on is shared, or
    /// cannot be seen (mount_namespaces(7)).
    copies: bool,
}

impl Going {
    /// With `mount`, in the sight of whoever unmounts it.
    fn with(mount: u64, table: &[Mount]) -> Going {
        let mut going = Going {
            dev: mount_with(mount, table).map(dev_of),
            mounts: BTreeSet::from([mount]),
            below: BTreeSet::new(),
            copies: false,
        };
        // One that was moved may stand in front of what it is mounted on.
        let mut known = 0;
        while known < going.mounts.len() {
            known = going.mounts.len();
            for m in table {
                if going.mounts.contains(&m.parent) && going.mounts.insert(m.id) {
                    going.below.insert(dev_of(m));
                }
            }
        }
        let mut mounts = going.mounts.iter();
        going.copies = mounts.any(|id| is_on_shared(*id, table));
        going
    }
}

/// Whether what a mount is on is shared, or cannot be seen.
fn is_on_shared(id: u64, table: &[Mount]) -> bool {
    let mount = mount_with(id, table);
    let on = mount.and_then(|m| mount_with(m.parent, table));
    on.is_none_or(|on| on.is_shared)
}

fn mount_with(id: u64, table: &[Mount]) -> Option<&Mount> {
    table.iter().find(|m| m.id == id)
}

/// What is mounted, and who is about to unmount something.
pub(super) struct Umounts {
    pub(super) mountinfo: File,
    /// The mount table has changed since it was looked at.
    pub(super) mounts_changed: bool,
    /// When numbers that may not owe were forgotten last.
    refused_at: Instant,
    pub(super) looks: Looks,
}

impl Umounts {
    /// By our table of mounts.
    pub(super) fn new(mountinfo: File) -> Umounts {
        Umounts {
            mountinfo,
            mounts_changed: false,
            refused_at: Instant::now(),
            looks: Looks::default(),
        }
    }
}

impl Supervisor {
    /// Looks at the mount table where the kernel says that it changed.
    pub(super) fn filesystems_changed(&mut self) {
        if self.umounts.refused_at.elapsed() > REFUSED_FOR {
            // What could not be had a moment ago, of a busy disk say, is tried again.
            self.umounts.refused_at = Instant::now();
            names::forget_refused(self.session.shared.page());
        }
        if !std::mem::take(&mut self.umounts.mounts_changed) {
            return;
        }
        // A number may be another file system's now, and a disk may have come into sight.
        names::forget_refused(self.session.shared.page());
        self.entering.disallow_sync(self.session.shared);
        for index in self.filesystems.gone() {
            // Gone from our sight, perhaps by somebody else's umount: pay and let go.
            self.leaves(index);
        }
    }

    pub(super) fn answer_questions(&mut self) {
        let begun = Instant::now();
        for (user, slot) in self.session.shared.rooms().flat_map(slots_of) {
            match slot.umount.load(SeqCst) {
                page::UMOUNT_ASKED if begun.elapsed() <= ANSWERS_FOR => {
                    let is_new = !self.is_known(slot);
                    if is_new {
                        let asked = (what_of(slot), BTreeSet::new());
                        self.umounts.looks.asking.insert(key_of(slot), asked);
                    }
                    let later = self.begin_umount(user, slot);
                    // What is being settled need not cover what was put off behind its begin.
                    if is_new {
                        later.into_iter().for_each(|i| self.settle(i));
                    }
                }
                // The rest waits for the next turn, behind the heartbeat.
                page::UMOUNT_ASKED => {}
                state => {
                    self.umounts.looks.asking.remove(&key_of(slot));
                    if state == page::UMOUNT_OVER {
                        self.end_umount(slot);
                    }
                }
            }
        }
        for (user, slot) in self.session.shared.rooms().flat_map(slots_of) {
            let dev = slot.ask_dev.load(SeqCst);
            if dev == 0 {
                continue;
            }
            // The rest waits for the next turn, behind the heartbeat.
            if begun.elapsed() > ANSWERS_FOR {
                break;
            }
            // What is about to be unmounted may not be held again. It stays real meanwhile.
            if let Some(pid) = self
                .seen
                .census
                .members
                .pid_of(user, slot)
                .filter(|_| !self.somebody_unmounts())
            {
                let fd = Some(slot.ask_fd.load(SeqCst)).filter(|fd| *fd >= 0);
                self.resolve(&Question { pid, fd, dev });
            }
            slot.ask_dev.store(0, SeqCst);
        }
    }

    fn resolve(&mut self, question: &Question) {
        match find(question) {
            Finding::Tested(found) => {
                let number = found.number;
                match self.filesystems.take(*found, self.session.shared) {
                    Some(index) => self.enter(index),
                    None => self.refuse(number, page::NAME_UNKNOWN),
                }
            }
            Finding::Named(number, name) => self.refuse(number, name),
            Finding::Gone => {}
        }
    }

    fn refuse(&self, number: Number, name: u32) {
        // One that is held has its name already: the question was an old one.
        if self.filesystems.by_number(number).is_none() {
            names::put(self.session.shared.page(), number, name);
        }
    }

    pub(super) fn somebody_unmounts(&self) -> bool {
        let rooms = self
            .session
            .shared
            .rooms()
            .filter(|(user, _)| may_unmount(*user));
        rooms.flat_map(|(_, s)| &s.slot).any(is_unmounting)
    }

    /// Has superblocks leave that a member wants to unmount, but for those that were settled for
    /// that and stay: it may go on once none is left. Those that stay, and are being settled.
    fn begin_umount(&mut self, user: Option<u32>, slot: &page::Slot) -> Vec<usize> {
        let (asked, dev) = (what_of(slot), slot.umount_dev.load(SeqCst));
        if !may_unmount(user) {
            self.is_ready(slot, asked);
            return Vec::new();
        }
        if what_of(slot) != asked {
            // Another thread is writing its own there.
            return Vec::new();
        }
        let going = self.going(user, slot, asked.1);
        let mut ours = self.filesystems.ours_with(dev);
        if let Some(dev) = going
            .as_ref()
            .and_then(|g| g.dev)
            .filter(|_| ours.is_empty())
        {
            // The root of a btrfs is a subvolume: it may be one that nobody has asked about.
            ours = self.filesystems.ours_with(dev);
            if !ours.is_empty() {
                // By what it is known by when it has been let go of.
                slot.umount_dev.store(dev, SeqCst);
            }
        }
        if going.as_ref().is_some_and(|g| g.dev.is_none()) {
            // In another namespace than that of the process's first thread.
            ours = self.filesystems.owing();
            ours.extend(self.filesystems.kept_only());
        }
        let below = going.iter().flat_map(|g| &g.below);
        ours.extend(below.flat_map(|dev| self.filesystems.ours_with(*dev)));
        let asking = self.umounts.looks.asking.get(&key_of(slot));
        let settled = asking.map(|(_, all)| all);
        ours.retain(|i| {
            !settled.is_some_and(|all| all.contains(i)) && self.is_in_the_way(*i, going.as_ref())
        });
        for index in &ours {
            if !self.umounts.looks.stay.contains(index) {
                self.leaves(*index);
            }
        }
        if ours.is_empty() {
            self.is_ready(slot, asked);
        }
        ours.retain(|index| self.umounts.looks.stay.contains(index));
        ours
    }

    /// Whether what is asked for in `slot` was asked for when it was looked there before.
    fn is_known(&self, slot: &page::Slot) -> bool {
        let known = self.umounts.looks.asking.get(&key_of(slot));
        known.is_some_and(|(what, _)| *what == what_of(slot))
    }

    /// Tells the victim behind `slot` that nothing of ours stands in the way of the umount that it
    /// has asked for. Where another thread has put its own question there, that one is answered.
    fn is_ready(&mut self, slot: &page::Slot, asked: Who) {
        self.umounts.looks.asking.remove(&key_of(slot));
        let _ = job::wait_for_the_young();
        let (old, new) = (page::UMOUNT_ASKED, page::UMOUNT_READY);
        if what_of(slot) == asked {
            let _ = slot.umount.compare_exchange(old, new, SeqCst, SeqCst);
            wait::wake(&slot.umount);
        }
    }

    /// Whether what we hold of superblock `index` keeps a member from its umount. What is held on
    /// another mount does not, and goes on being held where `O_SYNC` was taken off: what stdio
    /// writes through that one nobody would ask for again. One that has left keeps all of them.
    fn is_in_the_way(&self, index: usize, going: Option<&Going>) -> bool {
        let Some(going) = going.filter(|_| self.session.shared.any_stripped()) else {
            return true;
        };
        let held = self.filesystems.get(index);
        going.copies
            || held.is_none_or(|f| f.stands_on(&going.mounts))
            || self.filesystems.has_left(index)
    }

    /// What goes with the mount that a member has named; `None` where it could not, or is gone.
    fn going(&self, user: Option<u32>, slot: &page::Slot, mount: u64) -> Option<Going> {
        let mount = Some(mount).filter(|id| *id != 0)?;
        let pid = self.seen.census.members.pid_of(user, slot)?;
        Some(Going::with(mount, &mounts_of(&pid.to_string())))
    }

    /// Superblock `index` owes no more, and is settled; then it is let go of, or it stays: a member
    /// may have a file there that has lost its `O_SYNC`, so that it would go on writing what nobody
    /// sees (stdio), and an umount is refused anyway. Whether one has may have to be looked for
    /// first.
    pub(super) fn leaves(&mut self, index: usize) {
        let held = self.filesystems.get(index);
        if held.is_none_or(|f| f.leaving || f.held().is_none()) {
            return;
        }
        let owed = self.filesystems.may_owe(index, self.session.shared);
        // First: who opens a file there from now on keeps its O_SYNC.
        self.filesystems.unpublish(index, self.session.shared);
        let stripped = self.session.shared.any_stripped();
        let is_unknown = stripped && usage::may_be_hidden();
        let goes = !is_unknown || self.filesystems.moves(index);
        if let Some(fs) = self.filesystems.get_mut(index).filter(|_| goes) {
            fs.leaving = true;
        }
        if stripped && !is_unknown {
            return self.ask_who_writes_to(index, owed);
        }
        if !goes {
            self.umounts.looks.stay.insert(index);
            if owed {
                self.filesystems.publish(index, self.session.shared);
            }
        }
        self.settle(index);
    }

    /// Superblock `index` is settled: it is let go of if it leaves, and whoever waits to unmount it
    /// goes on if it is known to stay.
    pub(super) fn goes_or_stays(&mut self, index: usize) {
        let stays = self.umounts.looks.stay.remove(&index);
        let leaves = self.filesystems.get(index).is_some_and(|f| f.leaving);
        if leaves && !self.umounts.looks.is_asked(index) {
            self.let_go(index);
        } else if stays {
            self.stays(index);
        }
    }

    /// Superblock `index` stays, and was settled for all who wait to unmount it.
    pub(super) fn stays(&mut self, index: usize) {
        for (_, settled) in self.umounts.looks.asking.values_mut() {
            settled.insert(index);
        }
        self.go_on_with_umounts();
    }

    /// Lets go of a file system that has been settled, and has the keeper do so.
    pub(super) fn let_go(&mut self, index: usize) {
        self.count_for(index);
        self.filesystems.release(index, self.session.shared);
        self.entering.forget(index);
        match &self.entering.keeper {
            Some(keeper) => keeper.let_go(index),
            None => self.umount_ready(index),
        }
    }

    pub(super) fn umount_ready(&mut self, index: usize) {
        self.filesystems.is_kept(index, false);
        if let Some(index) = self.filesystems.arrive(index, self.session.shared) {
            self.enter(index);
        }
        self.go_on_with_umounts();
        self.end_of_umounts();
    }

    /// Looks again whether those who wait to unmount something may.
    pub(super) fn go_on_with_umounts(&mut self) {
        for (user, slot) in self.session.shared.rooms().flat_map(slots_of) {
            // Who has asked since is new.
            if self.is_known(slot) && slot.umount.load(SeqCst) == page::UMOUNT_ASKED {
                self.begin_umount(user, slot);
            }
        }
    }

    /// Once nobody is about to unmount, or whoever was is dead: file systems that we let go of and
    /// that are still there may owe again.
    pub(super) fn end_of_umounts(&mut self) {
        if self.somebody_unmounts() {
            return;
        }
        let left = self.filesystems.forget_left();
        // What lost its O_SYNC there may be written to by calls that nobody sees (stdio): nobody
        // would ask for it again.
        if self.session.shared.any_stripped() && !left.is_empty() {
            for index in self.filesystems.hold_again(&left, self.session.shared) {
                self.enter(index);
            }
            // What a member has open there need not be mounted in our sight.
            for question in self.members().into_iter().flat_map(|p| open_on(p, &left)) {
                self.resolve(&question);
            }
        }
    }

    /// What was let go of, and may have been written to since by calls that nobody sees.
    pub(super) fn hold_left_again(&mut self) {
        let left = self.filesystems.unseen();
        if left.is_empty() {
            return;
        }
        for index in self.filesystems.hold_again(&left, self.session.shared) {
            self.enter(index);
        }
    }

    /// At the end: of what could not be held again nobody knows whether it is durable.
    pub(super) fn miss_what_is_not_held(&mut self) {
        for fs in self.filesystems.unseen_in_sight() {
            // Whatever was written there is in memory at best.
            let errno = rustix::io::Errno::IO.raw_os_error();
            self.paying.paid.error.get_or_insert_with(|| SettleError {
                mount: fs.path().to_string_lossy().into_owned(),
                device: fs.source.clone(),
                errno,
                name: errno_name(errno),
            });
        }
    }

    pub(super) fn end_umount(&mut self, slot: &page::Slot) {
        // It may have asked again already.
        let over = (page::UMOUNT_OVER, page::UMOUNT_NONE);
        let _ = slot.umount.compare_exchange(over.0, over.1, SeqCst, SeqCst);
        self.end_of_umounts();
    }
}

/// How long a number that could not be told, or may not owe, is not asked about again.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// How long questions are answered in one turn of the loop.
const ANSWERS_FOR: Duration = Duration::from_millis(100);

/// Whether a member from the room of `user` is let unmount: what another user says there is his
/// word alone, and he unmounts nothing but in a namespace of his own.
fn may_unmount(user: Option<u32>) -> bool {
    user.is_none_or(|user| user == 0)
}

/// The slots of a room, each with whose it is.
fn slots_of(
    (user, slots): (Option<u32>, &page::Slots),
) -> impl Iterator<Item = (Option<u32>, &page::Slot)> {
    slots.slot.iter().map(move |slot| (user, slot))
}

/// Whether whoever has a slot is about to unmount something.
fn is_unmounting(slot: &page::Slot) -> bool {
    let state = slot.umount.load(SeqCst);
    matches!(state, page::UMOUNT_ASKED | page::UMOUNT_READY)
}

/// What a slot is known by.
fn key_of(slot: &page::Slot) -> usize {
    std::ptr::from_ref(slot).addr()
}

/// Who asks in a slot, and about which mount: several threads of a process have one slot, and it is
/// another process's behind that.
fn what_of(slot: &page::Slot) -> Who {
    (slot.pid.load(SeqCst), slot.umount_mount.load(SeqCst))
}

#[cfg(test)]
mod tests {
    use super::*;
    use synclater_proc::mountinfo::parse_mountinfo;

    #[test]
    fn copies_go_along_where_what_a_mount_of_the_tree_is_on_is_shared() {
        const TABLE: &[u8] = b"\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 7:2 / /top/boot/efi rw - vfat /dev/loop2 rw
21 20 7:0 / /top rw shared:1 - ext4 /dev/loop0 rw
22 21 7:1 / /top/boot rw - ext4 /dev/loop1 rw
24 20 7:3 / /other rw shared:2 - ext4 /dev/loop3 rw
25 99 7:4 / /hidden rw - ext4 /dev/loop4 rw
";
        let table = parse_mountinfo(TABLE);
        let of = |mount| Going::with(mount, &table);
        let tree = of(21);
        assert_eq!(tree.mounts, BTreeSet::from([21, 22, 23]));
        assert_eq!(tree.below, BTreeSet::from([7 << 32 | 1, 7 << 32 | 2]));
        let copies = [20, 21, 22, 23, 24, 25, 26].map(|mount| of(mount).copies);
        assert_eq!(copies, [true, true, true, false, false, true, true]);
        assert_eq!([tree.dev, of(26).dev], [Some(7 << 32), None]);
    }
}
