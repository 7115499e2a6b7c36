//! Bytes of a process's code that are exchanged while nothing of it runs.
//!
//! Promise: all of a list are exchanged, or none; none that is not what it is expected to be.

use super::class::{self, Class};
use super::code::{self, Library, Site, Survey};
use super::lost;
use super::refusal::Refusal;
use super::tracer::{Failure, Tracer};
use std::io;
use std::ops::Range;
use synclater_patching::sites;
use synclater_proc::maps::Mapping;
use synclater_shim::gate::{jump, Detour};
use synclater_sys::remote::Memory;

/// What some bytes are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Part of an instruction in front of a system call: a thread is before or behind it.
    Site,
    /// Two instructions in front of one that become a jump: a thread may be between them.
    Pair,
    /// The address that such a jump reads. Nobody executes it.
    Address,
    /// The boot code: a thread of a stopped process may be in it, or in what it calls, which lies
    /// between these addresses; and, where it `was_left` by an earlier errand, in the handler of a
    /// signal that returns there. From one of ours a thread is called back in front of a handler.
    Boot { from: u64, to: u64, was_left: bool },
}

/// Bytes of the process's code, before and after.
pub(super) struct Change {
    pub(super) what: What,
    pub(super) at: u64,
    pub(super) before: Vec<u8>,
    pub(super) after: Vec<u8>,
}

impl Change {
    fn range(&self) -> Range<u64> {
        self.at..self.at + self.before.len() as u64
    }

    /// The pages that it begins and ends in.
    fn pages(&self) -> (u64, u64) {
        (self.at / 4096, (self.range().end - 1) / 4096)
    }

    /// Whether it lies in one page together with another one.
    fn shares_page_with(&self, other: &Change) -> bool {
        let (first, last) = other.pages();
        first == last && self.pages() == (first, last)
    }
}

/// Makes the places that the sites are to lead to; returns what has to be changed at the sites.
pub(super) fn fill_places(
    library: &Library,
    class: Class,
    sites: &[Site],
    memory: &Memory,
) -> Result<Vec<Change>, Failure> {
    let mut places = library.places.clone();
    let mut changes = Vec::new();
    let mut written = Vec::new();
    for site in sites.iter().filter(|s| s.leads_to.is_none()) {
        if class == Class::Small {
            changes.push(call_gate(
                site,
                library.image + u64::from(library.head.gate),
            ));
            continue;
        }
        let place = site.place();
        let known = places.iter().position(|p| p.as_ref() == Some(&place));
        let k = known.or_else(|| places.iter().position(Option::is_none));
        let k = k.ok_or_else(|| Refusal::new("it has too many system-call sites", "name them"))?;
        let gate = match (site.address, site.function) {
            (Some(_), _) => library.head.gate_go,
            (None, Some(_)) => library.head.gate_uring,
            (None, None) => library.head.gate,
        };
        let at = library.place(k);
        let gate = library.image + u64::from(gate);
        let (bytes, redirected) = place
            .bytes(at, gate)
            .zip(redirect(site, at))
            .ok_or_else(|| Refusal::new("a site is out of reach", "start it anew"))?;
        written.push((at, bytes.to_vec()));
        places[k] = Some(place);
        changes.extend(redirected);
    }
    for (at, bytes) in in_one_piece(written) {
        memory.write(at, &bytes).map_err(lost)?;
    }
    Ok(changes)
}

/// The same bytes, those that adjoin together.
fn in_one_piece(mut all: Vec<(u64, Vec<u8>)>) -> Vec<(u64, Vec<u8>)> {
    all.sort_unstable_by_key(|(at, _)| *at);
    let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
    for (at, bytes) in all {
        match pieces.last_mut() {
            Some((from, piece)) if *from + piece.len() as u64 == at => piece.extend(bytes),
            _ => pieces.push((at, bytes)),
        }
    }
    pieces
}

/// What makes a site of i386 code call the gate.
pub(super) fn call_gate(site: &Site, gate: u64) -> Change {
    Change {
        what: What::Site,
        at: site.at,
        before: site.was.clone(),
        after: sites::i386_call(site.at, gate).to_vec(),
    }
}

/// What makes a site lead to the place at `to`; `None` where that is too far away.
pub(super) fn redirect(site: &Site, to: u64) -> Option<Vec<Change>> {
    let Some(address) = site.address else {
        let mut after = jump(site.at, to)?.to_vec();
        if site.function.is_some() {
            // A call stays a call.
            after[0] = site.was[0];
        }
        return Some(vec![Change {
            what: What::Site,
            at: site.at,
            before: site.was[..after.len()].to_vec(),
            after,
        }]);
    };
    let to = to.to_le_bytes();
    Some(vec![
        Change {
            what: What::Address,
            at: address,
            before: vec![0xcc; to.len()],
            after: to.to_vec(),
        },
        Change {
            what: What::Pair,
            at: site.at,
            before: site.was.clone(),
            after: sites::go_jump(site.at, address)?.to_vec(),
        },
    ])
}

/// What takes such changes back, in the order that leaves nobody without a way.
pub(super) fn taken_back(changes: Vec<Change>) -> impl Iterator<Item = Change> {
    changes.into_iter().rev().map(|c| Change {
        // A jump is one instruction.
        what: if c.what == What::Pair {
            What::Site
        } else {
            c.what
        },
        at: c.at,
        before: c.after,
        after: c.before,
    })
}

/// What was where the boot code is, of this errand or of one whose tracer was killed.
pub(super) fn boot_left(
    pid: u32,
    found: &Survey,
    memory: &Memory,
    was_left: bool,
) -> Option<Change> {
    let (bytes, head) = class::image(found.class)?;
    let before = head.boot_code(bytes).to_vec();
    let at = found.slack(memory, &before)?;
    let is_there = memory.bytes(at, before.len()).ok()? == before;
    let after = is_there.then(|| found.in_file(pid, at, before.len()))?;
    let image = found.library.as_ref().map(|library| library.image);
    let (from, to) = image.map_or((0, 0), |at| (at, at + u64::from(head.whole)));
    let what = What::Boot { from, to, was_left };
    Some(Change {
        what,
        at,
        before,
        after,
    })
}

/// Jumps to the library whose first byte is another's: the kernel's, where somebody watches the
/// instruction that was there (uprobes), or the one that it put back when that was over. What is
/// behind it is put back too, so that the instruction is what it was.
pub(super) fn spoiled(library: &Library, memory: &Memory) -> Vec<Change> {
    own_jumps(library)
        .filter_map(|own| put_right(own, memory))
        .collect()
}

/// What puts back what is behind the first byte of a jump; `None` where that byte is the jump's
/// own, or something else has changed.
fn put_right(own: OwnJump, memory: &Memory) -> Option<Change> {
    const BREAKPOINT: u8 = 0xcc;
    let before = memory.bytes(own.at, own.jump.len()).ok()?;
    let mut after = own.was;
    let is_watched = before[0] == BREAKPOINT;
    if before[1..] != own.jump[1..] || !(is_watched || before[0] == after[0]) || before == after {
        return None;
    }
    after[0] = before[0];
    Some(Change {
        what: What::Site,
        at: own.at,
        before,
        after,
    })
}

/// What takes addresses back that nobody reads.
pub(super) fn unread(found: &Survey) -> impl Iterator<Item = Change> + '_ {
    found.left.iter().map(|(at, to)| Change {
        what: What::Address,
        at: *at,
        before: to.to_le_bytes().to_vec(),
        after: vec![0xcc; sites::ADDRESS_LEN],
    })
}

/// Jumps to the library in code that is no file's any more: the program has put a copy in its place
/// (as who moves code to large pages does). What it shares with others, or with a file, is left.
pub(super) fn moved(
    pid: u32,
    library: &Library,
    found: &Survey,
    memory: &Memory,
) -> Result<Vec<Change>, Refusal> {
    let mappings = code::mappings(pid)?;
    Ok(own_jumps(library)
        .filter(|own| !found.redirected().any(|site| site.at == own.at))
        .filter(|own| own.is_there(memory) && own.is_its_own(&mappings))
        .map(|own| Change {
            what: What::Site,
            at: own.at,
            before: own.jump.to_vec(),
            after: own.was,
        })
        .collect())
}

/// A jump that leads to a place of the library, and what was where it is.
struct OwnJump {
    at: u64,
    jump: [u8; 5],
    was: Vec<u8>,
}

impl OwnJump {
    /// Whether it stands there.
    fn is_there(&self, memory: &Memory) -> bool {
        let bytes = memory.bytes(self.at, self.jump.len());
        bytes.is_ok_and(|bytes| bytes == self.jump)
    }

    /// Whether it lies in memory that is the process's own.
    fn is_its_own(&self, mappings: &[Mapping]) -> bool {
        let mut holding = mappings.iter().filter(|m| m.range.contains(&self.at));
        holding.next().is_some_and(|m| !m.shared)
    }
}

fn own_jumps(library: &Library) -> impl Iterator<Item = OwnJump> + '_ {
    let places = library.places.iter().enumerate();
    places.filter_map(|(k, place)| own_jump(place.as_ref()?, library.place(k)))
}

/// The jump to a place that lies at `to`; `None` where a call of a function leads there.
fn own_jump(place: &Detour, to: u64) -> Option<OwnJump> {
    let Detour::Call { was, entry } = place else {
        return None;
    };
    let at = entry.checked_sub(was.len() as u64)?;
    let jump = jump(at, to)?;
    let was = was.get(..jump.len())?.to_vec();
    Some(OwnJump { at, jump, was })
}

/// Exchanges the bytes of all sites while nothing of the process runs.
pub(super) fn exchange(
    tracer: &mut Tracer,
    memory: &Memory,
    changes: &[Change],
) -> Result<(), Failure> {
    exchange_if(tracer, memory, changes, |_| Ok(()))
}

/// Whether one of `all` lies in a range.
fn is_in(all: &[u64], range: &Range<u64>) -> bool {
    all.iter().any(|ip| range.contains(ip))
}

/// As above, if that is right still while nothing of the process runs.
pub(super) fn exchange_if(
    tracer: &mut Tracer,
    memory: &Memory,
    changes: &[Change],
    is_right: impl FnOnce(&Tracer) -> Result<(), Failure>,
) -> Result<(), Failure> {
    tracer.stop_all()?;
    if let Err(failure) = is_right(tracer) {
        tracer.release();
        return Err(failure);
    }
    let mut done = Vec::new();
    let mut failed = None;
    // Of a site none can be in the middle where it is one instruction, and nobody is in an address.
    let some_stand = changes
        .iter()
        .any(|c| matches!(c.what, What::Pair | What::Boot { .. }));
    let stand_at = if some_stand {
        tracer.stand_at()
    } else {
        Vec::new()
    };
    let some_return = changes.iter().any(|c| match c.what {
        What::Site | What::Address => false,
        What::Pair => true,
        What::Boot { was_left, .. } => was_left,
    });
    let return_to = if some_return {
        tracer.return_to(memory)
    } else {
        Vec::new()
    };
    let in_use: Vec<&Change> = changes
        .iter()
        .filter(|c| is_in_use(c, tracer, &stand_at, &return_to))
        .collect();
    if in_use.iter().any(|c| c.what == What::Pair) {
        tracer.release();
        let why =
            "a thread is about to make a system call, or the handler of a signal returns there";
        return Err(Failure::Busy(why.into()));
    }
    // What is left of the boot code goes at the next opportunity.
    let mut changes: Vec<&Change> = changes.iter().collect();
    changes.retain(|c| !in_use.iter().any(|used| used.at == c.at));
    for page in by_page(changes) {
        if let Err(e) = exchange_page(memory, &page) {
            failed = Some(e);
            break;
        }
        done.push(page);
    }
    if failed.is_some() {
        for change in done.iter().flatten() {
            let _ = memory.write(change.at, &change.before);
        }
    }
    tracer.release();
    failed.map_or(Ok(()), |e| Err(Failure::Busy(e.to_string())))
}

/// Whether a thread of a process that stands still may be in the middle of what is to be changed,
/// or come back there.
fn is_in_use(change: &Change, tracer: &Tracer, stand_at: &[u64], return_to: &[u64]) -> bool {
    match change.what {
        What::Site | What::Address => false,
        What::Pair => {
            let inside = change.at + 1..change.range().end;
            is_in(stand_at, &inside) || is_in(return_to, &inside)
        }
        What::Boot { from, to, .. } => {
            tracer.is_errand_out()
                || !tracer.all_stand()
                || is_in(stand_at, &change.range())
                || is_in(return_to, &change.range())
                || is_in(stand_at, &(from..to))
        }
    }
}

/// Those that lie in one page together; whatever goes beyond its page is alone. Where some lead by
/// way of others each is alone, in their order: we may be killed between two of them.
fn by_page(mut changes: Vec<&Change>) -> Vec<Vec<&Change>> {
    if changes.iter().any(|c| c.what == What::Address) {
        return changes.into_iter().map(|c| vec![c]).collect();
    }
    changes.sort_by_key(|c| c.at);
    let mut pages: Vec<Vec<&Change>> = Vec::new();
    for change in changes {
        let before = pages.last_mut();
        match before.filter(|page| change.shares_page_with(page[0])) {
            Some(page) => page.push(change),
            None => pages.push(vec![change]),
        }
    }
    pages
}

/// Exchanges the bytes of all of them, or of none: what is between is written as it was read, while
/// nothing of the process runs.
fn exchange_page(memory: &Memory, page: &[&Change]) -> io::Result<()> {
    let start = page.iter().map(|c| c.at).min().unwrap_or(0);
    let end = page.iter().map(|c| c.range().end).max().unwrap_or(0);
    let mut bytes = memory.bytes(start, usize::try_from(end - start).unwrap_or(0))?;
    for change in page {
        let from = usize::try_from(change.at - start).unwrap_or(0);
        let there = &mut bytes[from..from + change.before.len()];
        if there != change.before {
            return Err(io::Error::other("its code has changed meanwhile"));
        }
        there.copy_from_slice(&change.after);
    }
    memory.write(start, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: u64) -> Change {
        Change {
            what: What::Site,
            at,
            before: vec![1; 5],
            after: vec![2; 5],
        }
    }

    #[test]
    fn changes_are_made_page_by_page() {
        let all = [0x2004, 0x1000, 0x1ff0, 0x1ffd, 0x2ffb, 0x3000].map(at);
        let pages = by_page(all.iter().collect());
        let pages: Vec<Vec<u64>> = pages
            .iter()
            .map(|page| page.iter().map(|c| c.at).collect())
            .collect();
        let expected: [&[u64]; 4] = [&[0x1000, 0x1ff0], &[0x1ffd], &[0x2004, 0x2ffb], &[0x3000]];
        assert_eq!(pages, expected);
        let mut all = [0x1010, 0x1000].map(at);
        all[0].what = What::Address;
        let pages = by_page(all.iter().collect());
        let order: Vec<u64> = pages.iter().map(|page| page[0].at).collect();
        assert_eq!(order, [0x1010, 0x1000]);
    }

    #[test]
    fn what_adjoins_is_written_at_once() {
        let piece = |at, byte| (at, vec![byte; 2]);
        let all = in_one_piece(vec![piece(14, 3), piece(10, 1), piece(12, 2)]);
        assert_eq!(all, [(10, vec![1, 1, 2, 2, 3, 3])]);
        assert_eq!(in_one_piece(vec![piece(5, 1), piece(8, 2)]).len(), 2);
    }
}
