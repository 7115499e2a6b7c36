//! Where threads go on when the handlers of signals return that they are in.
//!
//! Relies on what the kernel puts on a stack for a handler, the same on x86 since there is one:
//! `struct sigcontext` (sigreturn(2)). What is found is one: its segments and flags are those of a
//! program. Who keeps such a thing elsewhere (swapcontext(3) out of a handler) is not seen.

use crate::remote::Memory;

/// How much of a stack to look at, in bytes, of a thread that blocks no signal that has a handler:
/// it can only be in one that blocks none (`SA_NODEFER`).
pub const LITTLE: usize = 16 << 10;
/// The same of another one: it may be deep in a handler.
pub const MUCH: usize = 1 << 20;

/// So many stacks at most, one handler interrupting another.
const STACKS: usize = 8;

/// What a handler has interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interrupted {
    ip: u64,
    sp: u64,
}

/// Where the handlers return to that a thread is in whose stack pointer is `sp`, of a program of
/// 64-bit code, or of i386's. Of each stack `most` bytes are looked at.
#[must_use]
pub fn returns(memory: &Memory, is_64: bool, sp: u64, most: usize) -> Vec<u64> {
    let (mut all, mut stacks, mut next) = (Vec::new(), vec![sp], 0);
    while let Some(&at) = stacks.get(next).filter(|_| next < STACKS) {
        next += 1;
        let at = at & !7;
        let bytes = memory.up_to(at, most).unwrap_or_default();
        for frame in interrupted(&bytes, is_64) {
            all.push(frame.ip);
            let here = at..at + bytes.len() as u64;
            if !here.contains(&frame.sp) && !stacks.contains(&frame.sp) {
                stacks.push(frame.sp);
            }
        }
    }
    all
}

fn interrupted(stack: &[u8], is_64: bool) -> Vec<Interrupted> {
    let is_flags = |flags: u64| flags & 0b10_1010 == 2 && flags < 1 << 22;
    if is_64 {
        let (words, _) = stack.as_chunks::<8>();
        let word = |k: usize| words.get(k).map(|w| u64::from_le_bytes(*w));
        // sp, ip, flags; and cs, gs, fs, ss of 16 bits each.
        let one = |k: usize| {
            const CS: u64 = 0x33;
            const SS: u64 = 0x2b << 48;
            let (sp, ip, flags, segments) = (word(k)?, word(k + 1)?, word(k + 2)?, word(k + 3)?);
            let is_one = is_flags(flags) && (segments == CS || segments == CS | SS);
            is_one.then_some(Interrupted { ip, sp })
        };
        return (0..words.len()).filter_map(one).collect();
    }
    let (words, _) = stack.as_chunks::<4>();
    let word = |k: usize| words.get(k).map(|w| u64::from(u32::from_le_bytes(*w)));
    // ip, cs, flags, sp, ss.
    let one = |k: usize| {
        let (ip, cs, flags) = (word(k)?, word(k + 1)?, word(k + 2)?);
        let (sp, ss) = (word(k + 3)?, word(k + 4)?);
        (cs == 0x23 && ss == 0x2b && is_flags(flags)).then_some(Interrupted { ip, sp })
    };
    (0..words.len()).filter_map(one).collect()
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
        let all = returns(&memory, true, (&raw const here) as u64, LITTLE);
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
        let mut stack = [0u8; 64];
        stack[8..16].copy_from_slice(&0x1234u64.to_le_bytes());
        stack[16..24].copy_from_slice(&0x246u64.to_le_bytes());
        assert_eq!(interrupted(&stack, true), []);
        stack[24] = 0x33;
        let it = Interrupted { ip: 0x1234, sp: 0 };
        assert_eq!(interrupted(&stack, true), [it]);
        stack[16] = 0;
        assert_eq!(interrupted(&stack, true), []);
        let words = [0x1234u32, 0x23, 0x246, 0x5678, 0x2b];
        let small: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let it = Interrupted {
            ip: 0x1234,
            sp: 0x5678,
        };
        assert_eq!(interrupted(&small, false), [it]);
        assert_eq!(interrupted(&small[..16], false), []);
    }
}
