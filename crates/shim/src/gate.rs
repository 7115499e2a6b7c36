//! The mirror of `c/gate/gate.h`: what the tracer reads of the image, and writes for a thread of
//! the process that it sends on an errand.
//!
//! Little endian, as the machines are that have a gate.

use crate::page::VERSION;

/// Bytes of a name that an errand has room for, with the zero behind it.
pub const EXE_MAX: usize = 1024;

/// `struct sl_gate_head`: offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Where the places are.
    pub places_at: u32,
    /// Bytes of all places.
    pub places_len: u32,
    /// Where the writable part begins.
    pub data_at: u32,
    /// The length of the image.
    pub whole: u32,
    /// Where a place jumps to.
    pub gate: u32,
    /// Position-independent code that maps the rest.
    pub boot: u32,
    /// Its length.
    pub boot_len: u32,
    /// What that calls in the end.
    pub there: u32,
    /// Where a place of Go's jumps to.
    pub gate_go: u32,
    /// Where a program may begin instead of at its own entry.
    pub arrive: u32,
    /// Where it is told its entry: [`arrival`].
    pub arrival: u32,
    /// Where a place of liburing's jumps to.
    pub gate_uring: u32,
    /// Where the process notes what `O_SYNC` that was taken off has left in it: [`Marks`].
    pub marks: u32,
}

/// `struct sl_marks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The process, or one it was forked from, has marked a descriptor.
    pub here: bool,
    /// It has put something else in a mark's place.
    pub lost: bool,
}

impl Marks {
    /// Bytes that are read of it.
    pub const SIZE: usize = 8;

    /// Where it is written behind them that the process is let go of, so that a thread in the
    /// middle of putting off entries of a ring undoes that; four bytes.
    pub const LET_GO: u64 = 8;

    /// Reads it.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Marks {
        let (here, lost) = (is_set(bytes, 0), is_set(bytes, 4));
        Marks { here, lost }
    }
}

/// Whether the word of four bytes at `from` is anything but 0.
fn is_set(bytes: &[u8], from: usize) -> bool {
    bytes.iter().skip(from).take(4).any(|b| *b != 0)
}

/// `struct sl_arrival`: a program's entry, and where its auxiliary vector names that.
#[must_use]
pub fn arrival(entry: u64, told: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&entry.to_le_bytes());
    bytes[8..].copy_from_slice(&told.to_le_bytes());
    bytes
}

const MAGIC: u64 = 0x6574_6167_7461_6c73;

impl Head {
    /// Bytes of the head.
    pub const SIZE: usize = 64;

    /// Reads the head of an image; `None` where it is none, or one of another version.
    #[must_use]
    pub fn read(image: &[u8]) -> Option<Head> {
        let magic = u64::from_le_bytes(image.get(..8)?.try_into().ok()?);
        let head = Head {
            places_at: word(image, 1)?,
            places_len: word(image, 2)?,
            data_at: word(image, 3)?,
            whole: word(image, 4)?,
            gate: word(image, 5)?,
            boot: word(image, 6)?,
            boot_len: word(image, 7)?,
            there: word(image, 8)?,
            gate_go: word(image, 9)?,
            arrive: word(image, 10)?,
            arrival: word(image, 11)?,
            gate_uring: word(image, 12)?,
            marks: word(image, 13)?,
        };
        (magic == MAGIC && word(image, 0)? == VERSION).then_some(head)
    }

    /// How many places there are.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places_len as usize / Detour::SIZE
    }

    /// The boot code of `image`, whose head this is.
    #[must_use]
    pub fn boot_code<'a>(&self, image: &'a [u8]) -> &'a [u8] {
        let from = self.boot as usize;
        image
            .get(from..from + self.boot_len as usize)
            .unwrap_or(&[])
    }
}

/// Word `k` behind the magic number of a head.
fn word(image: &[u8], k: usize) -> Option<u32> {
    let bytes = image.get(8 + 4 * k..12 + 4 * k)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// `struct sl_place`: what is jumped to from a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detour {
    /// In front of a system call.
    Call {
        /// The bytes in front of it, up to [`Detour::MOST`]: whole instructions that mean the same
        /// at another address.
        was: Vec<u8>,
        /// The `syscall` instruction behind them.
        entry: u64,
    },
    /// In front of a function of liburing's.
    Function {
        /// Where it begins.
        entry: u64,
    },
}

/// `lea 24(place), %r11`, but for where it counts from.
const LEA: [u8; 3] = [0x4c, 0x8d, 0x1d];

impl Detour {
    /// Bytes of a place.
    pub const SIZE: usize = 32;

    /// The most bytes that a place can hold of a site.
    pub const MOST: usize = 12;

    /// Where it goes on.
    #[must_use]
    pub fn entry(&self) -> u64 {
        match self {
            Detour::Call { entry, .. } | Detour::Function { entry } => *entry,
        }
    }

    /// What stood in front of a system call, where that is at `at`.
    #[must_use]
    pub fn was_at(&self, at: u64) -> Option<&[u8]> {
        match self {
            Detour::Call { was, entry } if entry - was.len() as u64 == at => Some(was),
            _ => None,
        }
    }

    /// As it lies at `at`, where the gate is at `gate`; `None` where that is too far away.
    #[must_use]
    pub fn bytes(&self, at: u64, gate: u64) -> Option<[u8; Detour::SIZE]> {
        let mut b = [0xcc; Detour::SIZE];
        match self {
            Detour::Call { was, .. } => {
                let n = was.len();
                if n > Detour::MOST {
                    return None;
                }
                b[..n].copy_from_slice(was);
                b[n..n + 3].copy_from_slice(&LEA);
                // From the end of this instruction to the entry's address.
                let by = u32::try_from(24 - (n + 7)).ok()?;
                b[n + 3..n + 7].copy_from_slice(&by.to_le_bytes());
                b[n + 7..n + 12].copy_from_slice(&jump(at + n as u64 + 7, gate)?);
            }
            Detour::Function { entry } => {
                b[..5].copy_from_slice(&call(at, gate)?);
                b[5..10].copy_from_slice(&jump(at + 5, *entry)?);
            }
        }
        b[24..].copy_from_slice(&self.entry().to_le_bytes());
        Some(b)
    }

    /// Reads a place; `None` where none was made.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Detour> {
        let entry = u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?);
        if entry == 0 {
            return None;
        }
        if bytes[0] == CALL {
            return Some(Detour::Function { entry });
        }
        let n = bytes[..24].windows(3).position(|w| w == LEA)?;
        let was = bytes[..n].to_vec();
        Some(Detour::Call { was, entry })
    }
}

/// `call` with an offset of 32 bits.
const CALL: u8 = 0xe8;

/// `jmp to` at `from`; `None` where that is more than 2 GiB away.
#[must_use]
pub fn jump(from: u64, to: u64) -> Option<[u8; 5]> {
    let by = i32::try_from(to.wrapping_sub(from + 5).cast_signed()).ok()?;
    let b = by.to_le_bytes();
    Some([0xe9, b[0], b[1], b[2], b[3]])
}

/// Where a jump at `from` leads; `None` where `bytes` is no jump.
#[must_use]
pub fn target(bytes: &[u8], from: u64) -> Option<u64> {
    let by: [u8; 4] = bytes.get(1..5)?.try_into().ok()?;
    let by = i64::from(i32::from_le_bytes(by));
    (bytes[0] == 0xe9).then(|| (from + 5).wrapping_add_signed(by))
}

/// `call to` at `from`; `None` where that is more than 2 GiB away.
#[must_use]
pub fn call(from: u64, to: u64) -> Option<[u8; 5]> {
    let [_, rest @ ..] = jump(from, to)?;
    let [a, b, c, d] = rest;
    Some([CALL, a, b, c, d])
}

/// The general registers of an x86-64 thread, in the order in which the boot code takes them off
/// its stack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Saved {
    /// rax, rbx, rcx, rdx, rsi, rdi, rbp, r8 to r15.
    pub general: [u64; 15],
    /// The flags.
    pub flags: u64,
    /// Where the thread goes on.
    pub back: u64,
}

/// What an errand is for: the fields of `struct sl_errand` that the tracer chooses.
#[derive(Clone, Debug, Default)]
pub struct Errand {
    /// Where the library lies, or is to lie.
    pub image: u64,
    /// Bytes from there on that are to be free; 0: the library is there.
    pub room: u64,
    /// The address of what is called in the end.
    pub there: u64,
    /// Where to map the page.
    pub page: u64,
    /// Where to map the slots.
    pub slots: u64,
    /// Bytes of the page.
    pub page_size: u32,
    /// Bytes of the slots.
    pub slots_size: u32,
    /// The process as it sees itself.
    pub pid: u32,
    /// Whether it may have descriptors whose `O_SYNC` an earlier session took off.
    pub marked: bool,
    /// Whether what it executes is reached, too.
    pub followed: bool,
    /// Whether it may write by rings that nobody sees.
    pub rings: bool,
    /// The number of its pid namespace.
    pub pid_ns: u64,
    /// What it executes.
    pub exe: Vec<u8>,
}

impl Errand {
    /// Bytes of the errand; the thread's stack pointer was 128 bytes above its end.
    pub const SIZE: usize = 104 + 8 * 18;

    /// Where the thread, or its helper, writes the state: 1, or -errno.
    pub const STATE: u64 = 0;

    /// Where its helper writes its own number, as it sees itself, and behind that the number of the
    /// socket that the tracer takes.
    pub const HELPER: u64 = 4;

    /// What is answered where the thread may not read the processor's counter.
    pub const NO_CLOCK: i64 = -2001;

    /// Where the thread notes where it goes on: two bytes further than it was told if a handler ran
    /// in front of the errand, which ends the call that it was waiting in.
    pub const BACK: u64 = Errand::SIZE as u64 - 8;

    /// What it executes, as the socket brings it: nothing where that is too long.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        if self.exe.len() < EXE_MAX {
            &self.exe
        } else {
            &[]
        }
    }

    /// As it is to lie on the thread's stack, for the image with this head.
    #[must_use]
    pub fn bytes(&self, head: &Head, saved: &Saved) -> Vec<u8> {
        let mut b = Vec::with_capacity(Errand::SIZE);
        let sizes = pair(head.data_at, head.whole);
        longs(&[0, 0, u64::MAX, self.image, self.room, sizes], &mut b);
        let flags = [self.marked, self.followed, self.rings];
        let flags = (0..).zip(flags).map(|(bit, on)| u32::from(on) << bit).sum();
        let shared = pair(self.page_size, self.slots_size);
        longs(&[self.there, self.page, self.slots, shared], &mut b);
        let who = pair(self.pid, flags);
        let len = u64::try_from(self.name().len()).unwrap_or(0);
        longs(&[who, self.pid_ns, len], &mut b);
        longs(&saved.general, &mut b);
        longs(&[0, saved.flags, saved.back], &mut b);
        b
    }
}

fn longs(all: &[u64], b: &mut Vec<u8>) {
    all.iter().for_each(|v| b.extend(v.to_le_bytes()));
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_has_a_head_that_fits_it() {
        let Some(image) = crate::IMAGE else { return };
        let head = Head::read(image).expect("a head");
        assert_eq!(image.len(), head.whole as usize);
        assert!(head.places() >= 256, "{head:?}");
        let boot = head.boot_code(image);
        assert!((100..1100).contains(&boot.len()), "{head:?}");
        for offset in [
            head.gate,
            head.boot,
            head.there,
            head.arrive,
            head.gate_uring,
        ] {
            assert!(offset < head.places_at, "{head:?}");
        }
        for offset in [head.arrival, head.marks] {
            assert!((head.data_at..head.whole).contains(&offset), "{head:?}");
        }
        for at in [head.places_at, head.data_at, head.whole] {
            assert_eq!(at % 4096, 0, "{head:?}");
        }
    }

    #[test]
    fn the_boot_code_of_i386_fits_behind_the_kernels_own_piece_of_code() {
        let Some(image) = crate::IMAGE_32 else { return };
        let head = Head::read(image).expect("a head");
        let boot = head.boot_code(image);
        assert!((100..512).contains(&boot.len()), "{head:?}");
        assert!((1..head.places_at).contains(&head.arrive), "{head:?}");
        assert!((head.data_at..head.whole).contains(&head.arrival));
    }

    #[test]
    fn an_image_of_another_version_is_none() {
        let Some(image) = crate::IMAGE else { return };
        for k in [0, 8] {
            let mut other = image.to_vec();
            other[k] ^= 0x40;
            assert_eq!(Head::read(&other), None);
        }
        assert_eq!(Head::read(&image[..Head::SIZE - 8]), None);
    }

    #[test]
    fn a_place_leads_to_the_gate_and_tells_what_it_was_made_of() {
        for was in [&[0xb8, 0x4a, 0, 0, 0][..], &[0x48, 0x89, 0xdf]] {
            let entry = 0x7fff_1234_5678;
            let was = was.to_vec();
            let len = was.len();
            let place = Detour::Call {
                was: was.clone(),
                entry,
            };
            let (at, gate) = (0x7f00_0000_4000, 0x7f00_0000_0123);
            let bytes = place.bytes(at, gate).expect("near");
            assert_eq!(Detour::read(&bytes), Some(place.clone()));
            let jump = len + 7;
            assert_eq!(target(&bytes[jump..], at + jump as u64), Some(gate));
            assert_eq!(place.bytes(at, gate + (1 << 32)), None);
            assert_eq!(place.was_at(entry - len as u64), Some(&was[..]));
            assert_eq!(place.was_at(entry), None);
        }
        let (at, gate, entry) = (0x7f00_0000_4000, 0x7f00_0000_0123, 0x7eff_ffff_0000);
        let function = Detour::Function { entry };
        let bytes = function.bytes(at, gate).expect("near");
        assert_eq!(Detour::read(&bytes), Some(function));
        assert_eq!(target(&bytes[5..], at + 5), Some(entry));
        assert_eq!(Detour::read(&[0; 32]), None);
    }

    #[test]
    fn a_jump_leads_where_it_was_meant_to() {
        for (from, to) in [(0x1000, 0x2000), (0x8000_0000, 0x1000), (5, 0)] {
            let bytes = jump(from, to).expect("near");
            assert_eq!(target(&bytes, from), Some(to));
        }
        assert_eq!(jump(0, 1 << 31 | 5), None);
        assert_eq!(target(&[0xb8, 0, 0, 0, 0], 0), None);
    }

    #[test]
    fn an_errand_is_as_long_as_it_says() {
        let head = Head::read(&[]).unwrap_or(Head {
            places_at: 0,
            places_len: 0,
            data_at: 0,
            whole: 0,
            gate: 0,
            boot: 0,
            boot_len: 0,
            there: 0,
            gate_go: 0,
            arrive: 0,
            arrival: 0,
            gate_uring: 0,
            marks: 0,
        });
        let long = Errand {
            exe: vec![b'x'; EXE_MAX],
            ..Errand::default()
        };
        for errand in [Errand::default(), long] {
            let bytes = errand.bytes(&head, &Saved::default());
            assert_eq!(bytes.len(), Errand::SIZE);
        }
    }
}
