//! Which bytes of a process's code lead to the gate, or could.

use super::{Library, MOST_CODE};
use object::{Object, ObjectSegment, ObjectSymbol};
use synclater_calls::{self as calls, Kind, Machine};
use synclater_patching::{sites, uring};
use synclater_proc::maps::Mapping;
use synclater_shim::gate::{self, Detour};
use synclater_sys::remote::Memory;

/// Whether a call leads to the gate: a request, or what changes what requests stand on, or what is
/// looked at for the descriptors whose `O_SYNC` was taken off. In a process that has such
/// descriptors the sites of these last ones stay when the rest is taken out.
fn is_wanted(machine: Machine, call: sites::Call) -> bool {
    match call {
        sites::Call::Number(number) => {
            calls::is_of(Kind::Gate, machine, number) || calls::is_of(Kind::Marks, machine, number)
        }
        sites::Call::Any => true,
    }
}

/// Without a site of either there is nothing to attach.
const REQUESTS: [&str; 2] = ["fsync", "fdatasync"];

/// How many instructions that enter the kernel are in code that nobody redirects, and make a sync
/// request, as far as their number is loaded near by.
pub(super) fn unseen_in(code: &[u8]) -> u64 {
    sites::entries(code)
        .filter(|number| number.is_some_and(|n| calls::is_of(Kind::Sync, Machine::X86_64, n)))
        .count() as u64
}

/// A system-call site, or a call of the function by which liburing submits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Where the bytes are that can be exchanged.
    pub at: u64,
    /// What stands there, up to the instruction that enters the kernel, when nobody is attached. Of
    /// these bytes the first ones are exchanged.
    pub was: Vec<u8>,
    /// Where the address of the jump may lie, whose place is out of reach of another: Go.
    pub address: Option<u64>,
    /// The function that is called here.
    pub function: Option<u64>,
    /// The place that they lead to at present.
    pub leads_to: Option<u64>,
    /// Which call is made here; `None` for Go's, which makes any, and for a function's.
    pub call: Option<sites::Call>,
}

impl Site {
    /// The place that it is to lead to.
    #[must_use]
    pub fn place(&self) -> Detour {
        match self.function {
            Some(entry) => Detour::Function { entry },
            None => Detour::Call {
                was: self.was.clone(),
                entry: self.at + self.was.len() as u64,
            },
        }
    }

    /// The same site where its code begins `by` bytes further up; nothing leads from it.
    #[must_use]
    pub fn moved_by(mut self, by: u64) -> Site {
        self.at += by;
        self.address = self.address.map(|address| address + by);
        self
    }

    /// Whether it leads to our library, or has what stands there when nobody is attached.
    pub(super) fn is_as_it_was(&self, memory: &Memory) -> bool {
        let there = memory.bytes(self.at, self.was.len());
        self.leads_to.is_some() || there.is_ok_and(|bytes| bytes == self.was)
    }

    fn is_small(&self) -> bool {
        self.was == sites::WAS_32
    }

    /// Whether a write, or what asks for a descriptor's flags, may be made here, or what tells the
    /// library of a filter that forbids it to look.
    #[must_use]
    pub fn may_write(&self) -> bool {
        const MORE: [u32; 4] = calls::numbers(
            Machine::X86_64,
            ["pwritev2", "io_submit", "prctl", "seccomp"],
        );
        match self.call {
            // Of i386 a number may be that of another call.
            Some(sites::Call::Number(number)) if !self.is_small() => {
                calls::is_of(Kind::Marks, Machine::X86_64, number) || MORE.contains(&number)
            }
            // Liburing's calls give writes their flag back.
            _ => true,
        }
    }

    /// Whether fsync or fdatasync may be called here.
    #[must_use]
    pub fn makes_request(&self) -> bool {
        let requests = if self.is_small() {
            calls::numbers(Machine::I386, REQUESTS)
        } else {
            calls::numbers(Machine::X86_64, REQUESTS)
        };
        match self.call {
            Some(sites::Call::Number(number)) => requests.contains(&number),
            Some(sites::Call::Any) => true,
            None => false,
        }
    }
}

/// What is called behind the bytes in front of an x86-64 entry.
fn called(was: &[u8]) -> Option<sites::Call> {
    sites::x86_64(&with_entry(was)).next().map(|s| s.call)
}

pub(super) fn sites_in(code: &[u8], start: u64, library: Option<&Library>) -> Vec<Site> {
    let plain = sites::x86_64(code)
        .filter(|s| is_wanted(Machine::X86_64, s.call))
        .map(|s| Site {
            at: start + s.at as u64,
            was: code[s.at..s.at + s.len].to_vec(),
            address: None,
            function: None,
            leads_to: None,
            call: Some(s.call),
        });
    let Some(library) = library else {
        return plain.collect();
    };
    let jumps = sites::x86_64_jumps(code).filter_map(|(at, len)| {
        let site = start + at as u64;
        let to = gate::target(&code[at..], site)?;
        let place = library.place_at(to)?;
        let was = place.was_at(site).filter(|was| was.len() == len)?;
        Some(Site {
            at: site,
            was: was.to_vec(),
            address: None,
            function: None,
            leads_to: Some(to),
            call: called(was),
        })
    });
    plain.chain(jumps).collect()
}

/// The calls of i386 code into the kernel, which lead to the gate itself.
pub(super) fn small_sites_in(code: &[u8], start: u64, library: Option<&Library>) -> Vec<Site> {
    let plain = sites::i386(code).filter(|s| is_wanted(Machine::I386, s.call));
    let mut all: Vec<Site> = plain.map(|s| small_site(s, start, None)).collect();
    if let Some(library) = library {
        let gate = library.image + u64::from(library.head.gate);
        let calls = sites::i386_calls_to(code, start, gate);
        all.extend(calls.map(|s| small_site(s, start, Some(gate))));
    }
    all
}

/// A site of i386 code that begins at `start`.
fn small_site(s: sites::Site, start: u64, leads_to: Option<u64>) -> Site {
    Site {
        at: start + s.at as u64,
        was: sites::WAS_32.to_vec(),
        address: None,
        function: None,
        leads_to,
        call: Some(s.call),
    }
}

pub(super) fn go_sites_in(code: &[u8], start: u64, library: Option<&Library>) -> Vec<Site> {
    let plain = sites::go(code, false).into_iter().map(|s| Site {
        at: start + s.at as u64,
        was: code[s.at..s.at + sites::GO_LEN].to_vec(),
        address: Some(start + s.address as u64),
        function: None,
        leads_to: None,
        call: None,
    });
    let Some(library) = library else {
        return plain.collect();
    };
    let jumps = sites::go(code, true).into_iter().filter_map(|s| {
        let at = start + s.at as u64;
        let to = code.get(s.address..s.address + sites::ADDRESS_LEN)?;
        let to = u64::from_le_bytes(to.try_into().ok()?);
        let place = library.place_at(to)?;
        Some(Site {
            at,
            was: place.was_at(at)?.to_vec(),
            address: Some(start + s.address as u64),
            function: None,
            leads_to: Some(to),
            call: None,
        })
    });
    plain.chain(jumps).collect()
}

/// Addresses of places in the room between two functions of a Go program: where each lies, and what
/// it is.
pub(super) fn addresses_in(code: &[u8], start: u64, library: &Library) -> Vec<(u64, u64)> {
    let (words, _) = code.as_chunks::<{ sites::ADDRESS_LEN }>();
    words
        .iter()
        .enumerate()
        .map(|(k, word)| (k * sites::ADDRESS_LEN, u64::from_le_bytes(*word)))
        .filter(|(_, to)| library.place_at(*to).is_some())
        .filter(|(at, _)| code.get(at + sites::ADDRESS_LEN) == Some(&0xcc))
        .map(|(at, to)| (start + at as u64, to))
        .collect()
}

/// Where liburing calls the function that hands entries over; none where it has another form than
/// those that are known.
pub(super) fn submits_in(
    pid: u32,
    m: &Mapping,
    library: Option<&Library>,
    memory: &Memory,
) -> Vec<Site> {
    calls_of_submit(pid, m, library, memory).unwrap_or_default()
}

fn calls_of_submit(
    pid: u32,
    m: &Mapping,
    library: Option<&Library>,
    memory: &Memory,
) -> Option<Vec<Site>> {
    let submit = function(pid, m, "io_uring_submit")?;
    let start = m.range.start;
    let len = (m.range.end - start).min(MOST_CODE);
    let code = memory.bytes(start, usize::try_from(len).ok()?).ok()?;
    let first = start.wrapping_add_signed(uring::first_call(&code, submit)?);
    // The place that it leads to already.
    let place = library.and_then(|l| match l.place_at(first)? {
        Detour::Function { entry } => Some((first, entry)),
        Detour::Call { .. } => None,
    });
    let function = place.map_or(first, |(_, entry)| entry);
    m.range.contains(&function).then_some(())?;
    let mut all: Vec<Site> = calls_in(&code, start, function, None).collect();
    if let Some((to, _)) = place {
        all.extend(calls_in(&code, start, function, Some(to)));
    }
    Some(all)
}

/// The sites of code that begins at `start` where `function` is called, or the place is that stands
/// for it.
fn calls_in(
    code: &[u8],
    start: u64,
    function: u64,
    place: Option<u64>,
) -> impl Iterator<Item = Site> + '_ {
    let to = place.unwrap_or(function).wrapping_sub(start).cast_signed();
    let near = uring::near_ones(code, to);
    near.filter_map(move |at| submit_site(code[at], start + at as u64, function, place))
}

/// The call of `function` that lies at `at` and begins with `opcode`.
fn submit_site(opcode: u8, at: u64, function: u64, leads_to: Option<u64>) -> Option<Site> {
    let was = gate::jump(at, function)?;
    Some(Site {
        at,
        was: [&[opcode], &was[1..]].concat(),
        address: None,
        function: Some(function),
        leads_to,
        call: None,
    })
}

/// The bytes in front of an entry with the entry, and some in front of both.
fn with_entry(was: &[u8]) -> Vec<u8> {
    [&[0x90; sites::LEN][..], was, &[0x0f, 0x05]].concat()
}

/// Where a function of a file begins, in bytes from the begin of its code that `m` maps.
fn function(pid: u32, m: &Mapping, name: &str) -> Option<usize> {
    let bytes = mapped_file(pid, m)?;
    let file = object::File::parse(&*bytes).ok()?;
    let symbol = file
        .dynamic_symbols()
        .find(|s| s.is_definition() && s.name() == Ok(name))?;
    let offset = file.segments().find_map(|segment| {
        let within = symbol.address().checked_sub(segment.address())?;
        let (from, len) = segment.file_range();
        (within < len).then_some(from + within)
    })?;
    usize::try_from(offset.checked_sub(m.offset)?).ok()
}

/// What is mapped, as a whole; `None` where something else has taken its name.
fn mapped_file(pid: u32, m: &Mapping) -> Option<Vec<u8>> {
    let (start, end) = (m.range.start, m.range.end);
    let itself = read_bounded(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
    itself.or_else(|| {
        use std::os::unix::fs::MetadataExt;
        // Only with CAP_CHECKPOINT_RESTORE.
        let path = format!("/proc/{pid}/root{}", m.name);
        let same = std::fs::metadata(&path).is_ok_and(|meta| meta.ino() == m.inode);
        same.then(|| read_bounded(path)).flatten()
    })
}

/// A file, where it is no longer than what is searched of a program.
fn read_bounded(path: String) -> Option<Vec<u8>> {
    use std::io::Read;
    let file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let mut bytes = Vec::new();
    (length <= MOST_CODE).then_some(())?;
    file.take(length).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
