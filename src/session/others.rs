//! Slots of members that are other users than the session's own: memory for each user.
//!
//! Promise: nobody gets memory that a process of another user writes, so no member can clear, move
//! or read what one of another user noted; nor can he cut it short. A room is never passed on from
//! one user to another, and rooms are taken in their order, so that what is at one stays there.
//! Relies on: all of it being made before the processes that share it are forked (the keeper, those
//! that attach, the recorder): each of them sees who has a room, and can give one.

use std::fs::File;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use synclater_shim::page::{self, Layout, Slots};
use synclater_sys::memory::{self, Mapping};

/// Users besides the session's own that may be members of it, at most.
pub const USERS_MAX: usize = 16;

/// Beside the user's number: the room is taken.
const TAKEN: u64 = 1 << 32;

/// Rooms for the slots of other users.
pub struct Others {
    /// Who has each room: a word each, 0 where nobody has. None: there are no rooms.
    owners: Option<Mapping>,
    rooms: Vec<(File, Mapping)>,
}

impl Others {
    /// Rooms that nobody has yet: fewer where few files may be open, none where there is no such
    /// memory (memfd_create(2) may be forbidden).
    #[must_use]
    pub fn new() -> Others {
        use rustix::process::{getrlimit, Resource};
        let owners = Mapping::create_sealed(c"users", size_of::<[u64; USERS_MAX]>());
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(files / 16).unwrap_or(USERS_MAX);
        let rooms = (0..most.min(USERS_MAX))
            .map_while(|_| Mapping::create_sealed(c"slots", size_of::<Slots>()).ok());
        Others {
            rooms: rooms.collect(),
            owners: owners.ok().map(|(_, mapping)| mapping),
        }
    }

    /// How many rooms there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rooms.len()
    }

    /// A word for each room.
    fn owners(&self) -> &[AtomicU64] {
        let owners = self.owners.as_ref().map_or(&[][..], Mapping::words);
        &owners[..owners.len().min(self.rooms.len())]
    }

    /// How many rooms are taken: the first ones.
    #[must_use]
    pub fn taken(&self) -> usize {
        let owners = self.owners().iter();
        owners.take_while(|o| o.load(SeqCst) != 0).count()
    }

    /// The slots of each user that has some.
    pub fn all(&self) -> impl Iterator<Item = &Slots> {
        self.by_user().map(|(_, slots)| slots)
    }

    /// As [`Others::all`], with whose they are.
    pub fn by_user(&self) -> impl Iterator<Item = (u32, &Slots)> {
        let owners = self.owners().iter().map(|o| o.load(SeqCst));
        let taken = owners.take_while(|o| *o != 0).enumerate();
        // The word's lower half.
        taken.map(|(room, owner)| (owner as u32, self.slots(room)))
    }

    /// The slots at `room`.
    #[must_use]
    pub fn slots(&self, room: usize) -> &Slots {
        let (_, mapping) = &self.rooms[room];
        Slots::view(mapping.bytes()).expect("the mapping was made for slots")
    }

    /// The memory at `room`.
    #[must_use]
    pub fn file(&self, room: usize) -> &File {
        &self.rooms[room].0
    }

    /// The memory of every room.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.rooms.iter().map(|(file, _)| file)
    }

    /// The room of `user`, who gets one where there is one left, and memory for it.
    #[must_use]
    pub fn room_of(&self, user: u32) -> Option<usize> {
        let wanted = TAKEN | u64::from(user);
        for (room, owner) in self.owners().iter().enumerate() {
            if owner.load(SeqCst) == 0 {
                // Where the machine promises no memory that it has not (overcommit_memory=2), to
                // touch what is not there raises a signal. No room is passed over.
                memory::back(self.file(room), 0, size_of::<Slots>()).ok()?;
                prepare(self.slots(room));
                // Another process of ours may be faster, for whomever.
                let _ = owner.compare_exchange(0, wanted, SeqCst, SeqCst);
            }
            if owner.load(SeqCst) == wanted {
                return Some(room);
            }
        }
        None
    }
}

/// Writes what members look for. It may have been done already, and be in use.
fn prepare(slots: &Slots) {
    let size = u32::try_from(size_of::<Slots>()).unwrap_or(0);
    slots.stripped.fetch_or(2, SeqCst);
    slots.size.store(size, SeqCst);
    slots.version.store(page::VERSION, SeqCst);
    slots.magic.store(page::SLOTS_MAGIC, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_one_room_and_nobody_that_of_another() {
        let others = Others::new();
        let users: Vec<u32> = (0..).map(|k| 1000 + 7 * k).take(others.len()).collect();
        for (k, user) in users.iter().enumerate() {
            assert_eq!(others.room_of(*user), Some(k));
            assert_eq!(others.taken(), k + 1);
        }
        assert_eq!(others.room_of(users[1]), Some(1));
        assert_eq!(others.room_of(u32::MAX), None);
        others.slots(2).fs_requests[0].store(23, SeqCst);
        let counted = others.all().map(|s| s.fs_requests[0].load(SeqCst));
        assert_eq!(counted.sum::<u64>(), 23);
    }

    #[test]
    fn nobody_can_cut_the_memory_of_a_user_short() {
        let others = Others::new();
        let refused = others.file(0).set_len(0).expect_err("sealed");
        assert_eq!(refused.raw_os_error(), Some(1));
        let refused = others.file(0).set_len(1 << 30).expect_err("sealed");
        assert_eq!(refused.raw_os_error(), Some(1));
    }
}
