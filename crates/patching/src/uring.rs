//! Where liburing hands the entries of a ring over to the kernel: in one function, which all that
//! submits calls.
//!
//! Relies on: five fixed bytes not occurring in code by chance.

/// Bytes of a call or a jump of a function, with an offset of 32 bits.
pub const NEAR_LEN: usize = 5;

/// What `io_uring_submit` of liburing calls first, where it is at `submit`: the function that hands
/// the entries of a ring over, whose argument is the ring, as it was that of `io_uring_submit`.
/// Where that begins, in bytes from the code's begin, which may be outside of it; `None` where
/// something else may come before.
#[must_use]
pub fn first_call(code: &[u8], submit: usize) -> Option<i64> {
    const LONGEST: usize = 32;
    let mut at = submit;
    while at < submit + LONGEST {
        let rest = code.get(at..)?;
        at += match rest {
            [0xe8, ..] => return near_target(rest, at),
            [0xf3, 0x0f, 0x1e, 0xfa, ..] => 4,         // endbr64
            [0x50..=0x57, ..] => 1,                    // push
            [0x41, 0x50..=0x57, ..] => 2,              // push of the upper ones
            [0x48, 0x83, 0xec, _, ..] => 4,            // sub $N, %rsp
            [0x48, 0x89, to, ..] if is_kept(*to) => 3, // mov from the argument or another one
            [0x49 | 0x4c, 0x89, 0xc0..=0xff, ..] if !writes_argument(rest) => 3,
            [0x31 | 0x89, to, ..] if is_kept(*to) => 2,
            _ => return None,
        };
    }
    None
}

/// Whether an instruction with these register numbers writes neither the first argument (rdi) nor
/// the stack pointer.
fn is_kept(registers: u8) -> bool {
    registers >= 0xc0 && registers & 7 != 7 && registers & 7 != 4
}

/// The same for one that names upper registers, too.
fn writes_argument(code: &[u8]) -> bool {
    let to_upper = code[0] & 1 != 0;
    !to_upper && !is_kept(code[2])
}

/// Where a call or a jump at `at` leads.
fn near_target(code: &[u8], at: usize) -> Option<i64> {
    let by: [u8; 4] = code.get(1..NEAR_LEN)?.try_into().ok()?;
    let behind = i64::try_from(at + NEAR_LEN).ok()?;
    Some(behind + i64::from(i32::from_le_bytes(by)))
}

/// Where code calls or jumps to `to`, which may be outside of it.
pub fn near_ones(code: &[u8], to: i64) -> impl Iterator<Item = usize> + '_ {
    let all = memchr::memchr2_iter(0xe8, 0xe9, code);
    all.filter(move |at| near_target(&code[*at..], *at) == Some(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_liburing_calls_first_is_called_from_elsewhere_too() {
        let submit: &[u8] = &[0x53, 0x48, 0x89, 0xfb, 0xe8, 0xc7, 0xff, 0xff, 0xff];
        let and_wait: &[u8] = &[
            0x55, 0x89, 0xf5, 0x53, 0x48, 0x89, 0xfb, 0x48, 0x83, 0xec, 8, 0xe8,
        ];
        let mut code = vec![0x90; 64];
        code.extend(submit);
        assert_eq!(first_call(&code, 64), Some(16));
        let at = code.len();
        code.extend(and_wait);
        let by = 16 - i32::try_from(code.len() + 4).expect("small");
        code.extend(by.to_le_bytes());
        assert_eq!(first_call(&code, at), Some(16));
        let jump = code.len();
        code.push(0xe9);
        code.extend((by - 5).to_le_bytes());
        let calls: Vec<_> = near_ones(&code, 16).collect();
        assert_eq!(calls, [68, jump - 5, jump]);
        // The argument is changed first; something else is done; it ends.
        for other in [
            &[0x48, 0x89, 0xf7, 0xe8, 0, 0, 0, 0][..],
            &[0x4c, 0x89, 0xc7, 0xe8, 0, 0, 0, 0],
            &[0x8b, 0x07, 0xe8, 0, 0, 0, 0],
            &[0x53, 0x48],
        ] {
            assert_eq!(first_call(other, 0), None, "{other:x?}");
        }
    }
}
