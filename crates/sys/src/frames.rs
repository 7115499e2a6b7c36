//! Where threads go on when the handlers of signals return that they are in.
//!
//! Relies on what the kernel puts on a stack for a handler, the same on x86 since there is one:
//! `struct sigcontext` (sigreturn(2)). What is found is one: its segments and flags are those of a
//! program. Who keeps such a thing elsewhere (swapcontext(3) out of a handler) is not seen.

use crate::remote::Memory;

/// So many stacks at most, one handler interrupting another.
const STACKS: usize = 8;

/// What a handler has interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interrupted {
    ip: u64,
    sp: u64,
}

/// Where the handlers return to that a thread is in whose stack pointer is `sp`, of a program of
/// 64-bit code, or of i386's. `end` tells where the memory ends that holds an address, if it is
/// such as stacks are; of each stack `most` bytes are looked at.
#[must_use]
pub fn returns(
    memory: &Memory,
    is_64: bool,
    sp: u64,
    most: usize,
    end: impl Fn(u64) -> Option<u64>,
) -> Vec<u64> {
    let (mut all, mut stacks, mut next) = (Vec::new(), vec![sp], 0);
    while let Some(&sp) = stacks.get(next).filter(|_| next < STACKS) {
        next += 1;
        let at = sp & !7;
        let Some(end) = end(at) else {
            continue;
        };
        let len = usize::try_from(end - at).map_or(most, |len| len.min(most));
        let bytes = memory.up_to(at, len).unwrap_or_default();
        for frame in interrupted(&bytes, at, is_64) {
            all.push(frame.ip);
            let here = at..at + bytes.len() as u64;
            if !here.contains(&frame.sp) && !stacks.contains(&frame.sp) {
                stacks.push(frame.sp);
            }
        }
    }
    all
}

/// What lies `at` an address of a stack.
fn interrupted(stack: &[u8], at: u64, is_64: bool) -> Vec<Interrupted> {
    if is_64 {
        let (words, _) = stack.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|w| u64::from_le_bytes(*w)).collect();
        let all = (0..words.len()).filter_map(|k| frame_64(&words[k..], at + 8 * k as u64));
        all.collect()
    } else {
        let (words, _) = stack.as_chunks::<4>();
        let words = words.iter().map(|w| u64::from(u32::from_le_bytes(*w)));
        let words: Vec<u64> = words.collect();
        let all = (0..words.len()).filter_map(|k| frame_32(&words[k..], at + 4 * k as u64));
        all.collect()
    }
}

/// sp, ip, flags; cs, gs, fs, ss of 16 bits each; err, trapno, oldmask, cr2, fpstate.
fn frame_64(words: &[u64], at: u64) -> Option<Interrupted> {
    const CS: u64 = 0x33;
    const SS: u64 = 0x2b << 48;
    let [sp, ip, flags, segments, _, _, _, _, state, ..] = *words else {
        return None;
    };
    let is_one = are_flags(flags) && (segments == CS || segments == CS | SS);
    (is_one && is_behind(state, at)).then_some(Interrupted { ip, sp })
}

/// ip, cs, flags, sp, ss, fpstate.
fn frame_32(words: &[u64], at: u64) -> Option<Interrupted> {
    const CS: u64 = 0x23;
    const SS: u64 = 0x2b;
    let [ip, cs, flags, sp, ss, state, ..] = *words else {
        return None;
    };
    let is_one = cs == CS && ss == SS && are_flags(flags);
    (is_one && is_behind(state, at)).then_some(Interrupted { ip, sp })
}

/// Bit 1 of the flags is always set; 3 and 5 never are, nor any from 22 on.
fn are_flags(flags: u64) -> bool {
    flags & 0b10_1010 == 2 && flags < 1 << 22
}

/// Whether the state of the vector registers lies behind a frame `at` this address, on the same
/// stack: that of a copy does not.
fn is_behind(state: u64, at: u64) -> bool {
    const MOST: u64 = 32 << 10;
    (at..at + MOST).contains(&state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    static FOUND: AtomicU64 = AtomicU64::new(0);
    static RETURNS: AtomicU64 = AtomicU64::new(0);

    extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel has put it there (sigaction(2), SA_SIGINFO).
        let context = unsafe { &*context.cast::<libc::ucontext_t>() };
        let ip = context.uc_mcontext.gregs[libc::REG_RIP as usize].cast_unsigned();
        RETURNS.store(ip, SeqCst);
        let here = 0u64;
        let memory = Memory::open(std::process::id()).expect("our own");
        let end = |at| Some(at + (16 << 10));
        let all = returns(&memory, true, (&raw const here) as u64, 16 << 10, end);
        FOUND.store(all.iter().filter(|at| **at == ip).count() as u64, SeqCst);
    }

    #[test]
    fn where_a_handler_returns_to_is_found() {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: it is a plain struct, of which all zeros are one.
        let action = unsafe { action.assume_init_mut() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: a handler for a signal that nobody else uses here.
        unsafe { libc::sigaction(libc::SIGURG, action, std::ptr::null_mut()) };
        // SAFETY: this thread takes it.
        unsafe { libc::raise(libc::SIGURG) };
        assert_ne!(RETURNS.load(SeqCst), 0);
        assert_eq!(FOUND.load(SeqCst), 1);
    }

    #[test]
    fn what_is_no_frame_is_none() {
        const AT: u64 = 0x7000;
        let put = |stack: &mut [u8], k: usize, word: u64| {
            stack[8 * k..8 * k + 8].copy_from_slice(&word.to_le_bytes());
        };
        let mut stack = [0u8; 72];
        for (k, word) in [(1, 0x1234), (2, 0x246), (3, 0x33), (8, AT + 0x100)] {
            assert_eq!(interrupted(&stack, AT, true), []);
            put(&mut stack, k, word);
        }
        let it = Interrupted { ip: 0x1234, sp: 0 };
        assert_eq!(interrupted(&stack, AT, true), [it]);
        // A copy of one that was further down.
        assert_eq!(interrupted(&stack, AT + 0x1000, true), []);
        let words = [0x1234u32, 0x23, 0x246, 0x5678, 0x2b, 0x7100];
        let small: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let it = Interrupted {
            ip: 0x1234,
            sp: 0x5678,
        };
        assert_eq!(interrupted(&small, AT, false), [it]);
        assert_eq!(interrupted(&small, AT + 0x1000, false), []);
        assert_eq!(interrupted(&small[..20], AT, false), []);
    }
}
