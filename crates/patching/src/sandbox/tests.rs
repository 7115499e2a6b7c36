//! What a filter says where not everything is known, compared with what it does where all is.

use super::*;
use proptest::prelude::*;

const KILL: u32 = 0x8000_0000;
const ERRNO_1: u32 = 0x0005_0001;
const LOAD: u16 = 0x20;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const JSET: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

/// What a filter returns to a call of which everything is known, as the kernel does it.
fn runs(filter: &[Instruction], data: &[u32; 16]) -> Option<u32> {
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; 16], 0usize);
    loop {
        let (code, yes, no, k) = *filter.get(at)?;
        let b = if code & 8 == 0 { k } else { x };
        let slot = k as usize;
        at += 1;
        let to = |is: bool| usize::from(if is { yes } else { no });
        match code {
            0x20 => a = *data.get(slot / 4)?,
            0x00 => a = k,
            0x01 => x = k,
            0x60 => a = *memory.get(slot)?,
            0x61 => x = *memory.get(slot)?,
            0x02 => *memory.get_mut(slot)? = a,
            0x03 => *memory.get_mut(slot)? = x,
            0x04 | 0x0c => a = a.wrapping_add(b),
            0x14 | 0x1c => a = a.wrapping_sub(b),
            0x24 | 0x2c => a = a.wrapping_mul(b),
            0x34 | 0x3c => a = a.checked_div(b)?,
            0x44 | 0x4c => a |= b,
            0x54 | 0x5c => a &= b,
            0x64 | 0x6c => a = a.wrapping_shl(b),
            0x74 | 0x7c => a = a.wrapping_shr(b),
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= b,
            0x05 => at += slot,
            0x15 | 0x1d => at += to(a == b),
            0x25 | 0x2d => at += to(a > b),
            0x35 | 0x3d => at += to(a >= b),
            0x45 | 0x4d => at += to(a & b != 0),
            0x06 => return Some(k),
            0x16 => return Some(a),
            0x07 => x = a,
            0x87 => a = x,
            _ => return None,
        }
    }
}

/// A filter that lets the calls of a list pass, as libseccomp writes one.
fn listed(numbers: &[u32]) -> Vec<Instruction> {
    let mut all = vec![
        (LOAD, 0, 0, 4),
        (JEQ, 1, 0, ARCH_64),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),
    ];
    for number in numbers {
        all.extend([(JEQ, 0, 1, *number), (RETURN, 0, 0, RET_ALLOW)]);
    }
    all.push((RETURN, 0, 0, KILL));
    all
}

#[test]
fn a_list_lets_pass_what_is_on_it_and_nothing_else() {
    let filter = listed(&[74, 75]);
    assert_eq!(passes(&filter, &call(ARCH_64, 74)), Verdict::Passes);
    assert_eq!(passes(&filter, &call(ARCH_64, 73)), Verdict::May(KILL));
    assert_eq!(passes(&filter, &call(ARCH_32, 74)), Verdict::May(KILL));
    // Without an end no filter comes to one.
    assert_eq!(passes(&filter[..4], &call(ARCH_64, 74)), Verdict::Unclear);
}

#[test]
fn what_is_not_known_may_be_anything() {
    // Lets the first argument be 3 or 4.
    let at = 4 * argument(0) as u32;
    let filter = [
        (LOAD, 0, 0, at),
        (JEQ, 1, 0, 3),
        (JEQ, 0, 1, 4),
        (RETURN, 0, 0, RET_ALLOW),
        (RETURN, 0, 0, ERRNO_1),
    ];
    let mut data = call(ARCH_64, 72);
    assert_eq!(passes(&filter, &data), Verdict::May(0x0005_0000));
    for (first, verdict) in [
        (Word::is(3), Verdict::Passes),
        (Word::is(4), Verdict::Passes),
        (Word::is(5), Verdict::May(0x0005_0000)),
        (Word::within(8), Verdict::May(0x0005_0000)),
    ] {
        data[argument(0)] = first;
        assert_eq!(passes(&filter, &data), verdict, "{first:?}");
    }
}

/// As systemd's RestrictSUIDSGID= and the like ask: whether O_CREAT is there.
fn forbids_creation() -> [Instruction; 5] {
    [
        (LOAD, 0, 0, 4 * argument(2) as u32),
        (AND, 0, 0, 0o100),
        (JEQ, 0, 1, 0o100),
        (RETURN, 0, 0, ERRNO_1),
        (RETURN, 0, 0, RET_ALLOW),
    ]
}

#[test]
fn an_error_may_do_and_what_is_worse_may_not() {
    // An error for 3, an end for all others.
    let at = 4 * argument(0) as u32;
    let filter = [
        (LOAD, 0, 0, at),
        (JEQ, 0, 1, 3),
        (RETURN, 0, 0, ERRNO_1),
        (RETURN, 0, 0, KILL),
    ];
    let mut data = call(ARCH_64, 310);
    assert_eq!(passes_or_fails(&filter, &data), Verdict::May(KILL));
    data[argument(0)] = Word::is(3);
    assert_eq!(passes_or_fails(&filter, &data), Verdict::Passes);
    assert_eq!(passes(&filter, &data), Verdict::May(0x0005_0000));
}

#[test]
fn bits_that_are_known_are_told_from_those_that_are_not() {
    let mut data = call(ARCH_64, 257);
    let filter = forbids_creation();
    assert_eq!(passes(&filter, &data), Verdict::May(0x0005_0000));
    data[argument(2)] = Word::within(!0o100);
    assert_eq!(passes(&filter, &data), Verdict::Passes);
    let by_set = [
        (LOAD, 0, 0, 4 * argument(2) as u32),
        (JSET, 0, 1, 0o100),
        (RETURN, 0, 0, KILL),
        (RETURN, 0, 0, RET_ALLOW),
    ];
    assert_eq!(passes(&by_set, &data), Verdict::Passes);
    data[argument(2)] = Word::ANY;
    assert_eq!(passes(&by_set, &data), Verdict::May(KILL));
}

#[test]
fn what_was_changed_may_not_be_looked_at() {
    const O_SYNC: u32 = 0o4_010_000;
    let mut data = call(ARCH_64, 257);
    data[argument(2)] = Word::changed(O_SYNC);
    assert_eq!(is_alike(&forbids_creation(), &data), Verdict::Passes);
    let compares = [
        (LOAD, 0, 0, 4 * argument(2) as u32),
        (JEQ, 0, 1, 0o2_000_000),
        (RETURN, 0, 0, RET_ALLOW),
        (RETURN, 0, 0, KILL),
    ];
    assert_eq!(is_alike(&compares, &data), Verdict::Looks);
    assert_eq!(is_alike(&compares, &call(ARCH_64, 257)), Verdict::Passes);
    let by_place = [
        (LOAD, 0, 0, 8),
        (JGE, 0, 1, 0x40_0000),
        (RETURN, 0, 0, RET_ALLOW),
        (RETURN, 0, 0, KILL),
    ];
    data[2] = Word::CHANGED;
    assert_eq!(is_alike(&by_place, &data), Verdict::Looks);
    // Returned as it is.
    let returns = [(LOAD, 0, 0, 8), (0x16, 0, 0, 0)];
    assert_eq!(is_alike(&returns, &data), Verdict::Looks);
}

#[test]
fn a_filter_of_too_many_ways_is_unclear() {
    // Each argument bit that is not known is added up: 2^k sums.
    let mut filter = Vec::new();
    for bit in 0..20 {
        filter.extend([
            (LOAD, 0, 0, 4 * argument(0) as u32),
            (JSET, 0, 3, 1 << bit),
            (0x60, 0, 0, 0),
            (0x04, 0, 0, 1 << bit),
            (0x02, 0, 0, 0),
        ]);
    }
    filter.push((RETURN, 0, 0, RET_ALLOW));
    assert_eq!(passes(&filter, &call(ARCH_64, 1)), Verdict::Unclear);
}

/// Instructions that mostly are what a filter may have, with small numbers that meet.
fn instruction(left: u8) -> impl Strategy<Value = Instruction> {
    let codes = vec![
        0x20u16, 0x20, 0x20, 0x00, 0x01, 0x60, 0x61, 0x02, 0x03, 0x04, 0x0c, 0x14, 0x24, 0x34,
        0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84, 0xa4, 0xac, 0x15, 0x1d, 0x25, 0x2d,
        0x35, 0x3d, 0x45, 0x4d, 0x15, 0x45, 0x06, 0x06, 0x16, 0x07, 0x87,
    ];
    let number = prop_oneof![0u32..8, Just(RET_ALLOW), Just(KILL), any::<u32>()];
    let operand = (proptest::sample::select(codes), 0..=left, 0..=left, number);
    operand.prop_map(|(code, yes, no, k)| match code {
        0x20 => (code, yes, no, 4 * (k % 16)),
        0x60 | 0x61 | 0x02 | 0x03 => (code, yes, no, k % 16),
        0x06 => (code, yes, no, if k % 4 == 0 { KILL } else { RET_ALLOW }),
        _ => (code, yes, no, k),
    })
}

/// Bits of a word: none, all, few or any.
fn mask() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), 0u32..8, any::<u32>()]
}

fn filter() -> impl Strategy<Value = Vec<Instruction>> {
    (1usize..24).prop_flat_map(|n| {
        let all: Vec<_> = (0..n)
            .map(|k| instruction(u8::try_from(n - k - 1).unwrap_or(0)).boxed())
            .collect();
        all.prop_map(|mut all| {
            all.push((RETURN, 0, 0, RET_ALLOW));
            all
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn what_passes_passes_whatever_is_not_known(
        filter in filter(),
        masks in proptest::array::uniform16(mask()),
        bits in proptest::array::uniform16(prop_oneof![0u32..8, any::<u32>()]),
        tries in proptest::collection::vec(
            proptest::array::uniform16(prop_oneof![0u32..8, any::<u32>()]), 16),
    ) {
        // Bits of the masks are not known.
        let word = |k: usize| Word::new(!masks[k], bits[k], 0);
        let data: Data = std::array::from_fn(word);
        let verdict = passes(&filter, &data);
        for one in tries {
            let all = std::array::from_fn(|k| (bits[k] & !masks[k]) | (one[k] & masks[k]));
            let returned = runs(&filter, &all);
            if verdict == Verdict::Passes {
                let action = returned.map(|r| r & 0xffff_0000);
                prop_assert!(matches!(action, Some(RET_ALLOW | RET_LOG)), "{:?}", returned);
            }
        }
    }

    #[test]
    fn what_is_alike_returns_the_same_whatever_was_changed(
        filter in filter(),
        masks in proptest::array::uniform16(mask()),
        asked in proptest::array::uniform16(prop_oneof![0u32..8, any::<u32>()]),
        tries in proptest::collection::vec(
            proptest::array::uniform16(prop_oneof![0u32..8, any::<u32>()]), 16),
    ) {
        let data: Data = std::array::from_fn(|k| Word::changed(masks[k]));
        let verdict = is_alike(&filter, &data);
        for one in tries {
            let made = std::array::from_fn(|k| (asked[k] & !masks[k]) | (one[k] & masks[k]));
            if verdict == Verdict::Passes {
                prop_assert_eq!(runs(&filter, &asked), runs(&filter, &made));
            }
        }
    }
}
