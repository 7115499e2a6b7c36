//! The mirror of what `c/routes/uring.c` makes of entries of a ring: how one is put off, or
//! refused, and undone.

/// Bytes of an entry (`struct io_uring_sqe`), or of the first half of a long one.
pub const SIZE: usize = 64;
/// Where the entries lie in the ring's file (`IORING_OFF_SQES`).
pub const OFFSET: u64 = 0x1000_0000;

/// What marks an entry that is put off, in its upper 48 bits.
const MARK: u64 = 0x534c_5941_bd2e;
const WAS_RANGE: u64 = 8;
const NOP: u8 = 0;
const FSYNC: u8 = 3;
const SYNC_FILE_RANGE: u8 = 8;
const FD: usize = 4;
const ADDRESS: usize = 16;
const FLAGS: usize = 28;
/// Of one that is refused: the lower 16 bits of the mark, a number, the descriptor.
const ADDRESS_3: usize = 48;
const PAD: usize = 56;

/// What is to be written to an entry that is put off, or refused, in this order, so that it is what
/// it was: each by its offset. The kernel may take it at any time: it is a request, or a NOP,
/// whatever of that is written.
///
/// Nothing for another one. A NOP that names no file is the program's own (`io_uring_prep_nop`).
#[must_use]
pub fn as_before(entry: &[u8; SIZE]) -> Vec<(u64, Vec<u8>)> {
    let (address, pad) = (marked_word(entry, ADDRESS), marked_word(entry, PAD));
    let third = &entry[ADDRESS_3..ADDRESS_3 + 8];
    let is_refused = third[6..] == (MARK as u16).to_le_bytes();
    if is_refused && matches!(entry[0], FSYNC | SYNC_FILE_RANGE) {
        let names_none = entry[FD..FD + 4] == [0xff; 4];
        let file = names_none.then(|| (FD as u64, third[..4].to_vec()));
        let cleared = (ADDRESS_3 as u64, vec![0; 8]);
        return file.into_iter().chain([cleared]).collect();
    }
    let names_a_file = entry[FD..FD + 4] != [0xff; 4];
    let Some(was) = address.or(pad.filter(|_| names_a_file)) else {
        return Vec::new();
    };
    if entry[0] != NOP {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (at, marked) in [(ADDRESS, address), (PAD, pad)] {
        all.extend(marked.map(|_| (at as u64, vec![0; 8])));
    }
    let opcode = if was & WAS_RANGE == 0 {
        FSYNC
    } else {
        SYNC_FILE_RANGE
    };
    all.push((0, vec![opcode]));
    if entry[FLAGS..FLAGS + 4] == [0; 4] {
        // Behind the opcode: a NOP with flags is refused. Without them the request is stronger.
        let flags = (was & 7) as u32;
        all.push((FLAGS as u64, flags.to_le_bytes().to_vec()));
    }
    all
}

/// The word at `at`; `None` where it has no mark.
fn marked_word(entry: &[u8; SIZE], at: usize) -> Option<u64> {
    let bytes = entry[at..at + 8].try_into().unwrap_or_default();
    Some(u64::from_le_bytes(bytes)).filter(|word| word >> 16 == MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_off(was: u64) -> [u8; SIZE] {
        let mut entry = [0; SIZE];
        entry[FD] = 3;
        for at in [ADDRESS, PAD] {
            entry[at..at + 8].copy_from_slice(&(MARK << 16 | was).to_le_bytes());
        }
        entry
    }

    fn undone(mut entry: [u8; SIZE]) -> [u8; SIZE] {
        for (at, bytes) in as_before(&entry) {
            let at = usize::try_from(at).expect("small");
            entry[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        entry
    }

    #[test]
    fn the_mark_is_the_library_s() {
        let source = include_str!("../c/routes/uring.c");
        for line in [
            "#define MARK      0x534c5941bd2eull ",
            "#define WAS_RANGE 8\n",
            "e->addr3 = MARK << 48 | (at & 0xffffull) << 32 | (uint32_t)e->fd;",
        ] {
            assert!(source.contains(line), "{line}");
        }
    }

    #[test]
    fn what_is_put_off_is_what_it_was() {
        for (was, opcode, flags) in [(0, FSYNC, 0), (1, FSYNC, 1), (8 | 2, SYNC_FILE_RANGE, 2)] {
            let mut expected = [0; SIZE];
            (expected[0], expected[FD], expected[FLAGS]) = (opcode, 3, flags);
            assert_eq!(undone(put_off(was)), expected, "{was}");
            // Half of it was written anew.
            for at in [ADDRESS, PAD] {
                let mut entry = put_off(was);
                entry[at..at + 8].fill(0);
                assert_eq!(undone(entry), expected, "{was}, {at}");
            }
        }
    }

    #[test]
    fn what_is_refused_names_its_file_again() {
        for (fd, back) in [([0xff; 4], 7), ([3, 0, 0, 0], 3)] {
            let mut entry = [0; SIZE];
            entry[0] = FSYNC;
            entry[FD..FD + 4].copy_from_slice(&fd);
            let word = MARK << 48 | 5 << 32 | 7;
            entry[ADDRESS_3..ADDRESS_3 + 8].copy_from_slice(&word.to_le_bytes());
            let mut expected = [0; SIZE];
            (expected[0], expected[FD]) = (FSYNC, back);
            assert_eq!(undone(entry), expected);
        }
    }

    #[test]
    fn what_the_program_has_made_of_an_entry_stays() {
        let mut read = put_off(0);
        read[0] = 22;
        let mut nop = put_off(0);
        nop[ADDRESS..ADDRESS + 8].fill(0);
        nop[FD..FD + 4].fill(0xff);
        for entry in [read, nop, [0; SIZE]] {
            assert_eq!(undone(entry), entry);
        }
    }
}
