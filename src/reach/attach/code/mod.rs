//! The code of a process: its system-call sites, our library where it is there already, and room
//! for it where it is not.

mod find;
mod library;
mod remember;
mod stack;

use super::class::{image, Class};
use super::refusal::Refusal;
use crate::reach::program;
pub use find::Site;
use find::{addresses_in, go_sites_in, sites_in, small_sites_in, submits_in, unseen_in};
pub use library::Library;
pub use remember::Remembered;
pub use stack::Stack;
use std::ops::Range;
use synclater_patching::room;
use synclater_proc::elf;
use synclater_proc::maps::{self, Mapping};
use synclater_shim::gate::{Detour, Head};
use synclater_sys::process;
use synclater_sys::remote::Memory;
use synclater_text::number::bytes;

/// Bytes that the page may have.
pub const PAGE_ROOM: u64 = 1 << 20;

/// The library's name among the mappings of a process.
pub const NAME: &std::ffi::CStr = c"synclater";
const MAPPED_AS: &str = "/memfd:synclater (deleted)";

/// Where the slots and the page are mapped beside an image at `image`, in this order.
#[must_use]
pub fn shared(image: u64, head: &Head) -> (u64, u64) {
    let slots = image + u64::from(head.whole);
    (slots, slots + slots_room())
}

fn slots_room() -> u64 {
    (size_of::<synclater_shim::page::Slots>() as u64).next_multiple_of(4096)
}

/// Bytes that the image, the slots and the page need.
#[must_use]
pub fn whole_room(head: &Head) -> u64 {
    u64::from(head.whole) + slots_room() + PAGE_ROOM
}

/// What was found in a process.
#[derive(Debug)]
pub struct Survey {
    /// What it consists of.
    pub class: Class,
    /// Its mappings.
    pub mappings: Vec<Mapping>,
    /// Our library, where it is there.
    pub library: Option<Library>,
    /// Its sites, in order of address.
    pub sites: Vec<Site>,
    /// Where addresses of places lie that no jump reads: whoever wrote them was killed between the
    /// two.
    pub left: Vec<(u64, u64)>,
}

/// Looks through a process's code.
///
/// # Errors
/// Where its memory cannot be read: it has ended, or executed another program.
pub fn survey(pid: u32, class: Class, memory: &Memory) -> Result<Survey, Refusal> {
    let mapped = mappings(pid)?;
    let library = mapped.iter().find_map(|m| find_library(m, class, memory));
    let (mut sites, mut left) = (Vec::new(), Vec::new());
    if class == Class::Long {
        for m in mapped.iter().filter(|m| is_named(m, &["liburing."])) {
            sites.extend(submits_in(pid, m, library.as_ref(), memory));
        }
    }
    for (m, kind) in within_bounds(code_with_calls(pid, &mapped))? {
        let start = m.range.start;
        match bytes_of(m, memory) {
            Ok(code) => {
                sites.extend(search(&code, kind, start, class, library.as_ref()));
                let of_go = library.as_ref().filter(|_| kind != Kind::Libc);
                left.extend(
                    of_go
                        .into_iter()
                        .flat_map(|l| addresses_in(&code, start, l)),
                );
            }
            // Unloaded meanwhile (dlclose(3)).
            Err(_) if !mappings(pid)?.contains(m) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    sites.sort_unstable_by_key(|s| s.at);
    left.retain(|(at, _)| !is_read(*at, &sites));
    Ok(Survey {
        class,
        mappings: mapped,
        library,
        sites,
        left,
    })
}

/// Whether a jump of one of the sites reads the address that lies at `at`.
fn is_read(at: u64, sites: &[Site]) -> bool {
    let mut jumps = sites.iter().filter(|s| s.leads_to.is_some());
    jumps.any(|s| s.address == Some(at))
}

/// The same of a process that has just executed a program: nothing of ours is there, and its code
/// is that of its file.
///
/// # Errors
/// As [`survey`].
pub fn survey_at_start(
    pid: u32,
    class: Class,
    memory: &Memory,
    remembered: &Remembered,
) -> Result<Survey, Refusal> {
    let mappings = mappings(pid)?;
    let executed = remember::executed(pid);
    let mut sites = Vec::new();
    for (m, kind) in within_bounds(code_with_calls(pid, &mappings))? {
        let file = executed.filter(|_| kind != Kind::Libc);
        let found = remembered.sites(file, m, kind, || {
            Ok(search(&bytes_of(m, memory)?, kind, 0, class, None))
        })?;
        sites.extend(found.into_iter().map(|s| s.moved_by(m.range.start)));
    }
    sites.sort_unstable_by_key(|s| s.at);
    Ok(Survey {
        class,
        mappings,
        library: None,
        sites,
        left: Vec::new(),
    })
}

/// All that a process has mapped.
///
/// # Errors
/// Where that cannot be read: it has ended, or is another user's.
pub(super) fn mappings(pid: u32) -> Result<Vec<Mapping>, Refusal> {
    let text = process::text(format!("/proc/{pid}/maps"));
    Ok(maps::read(&text.map_err(|e| unreadable(&e))?))
}

/// Bytes of code that are searched of a program at most: whoever made it says how long it is, and a
/// file that is hardly there costs him nothing.
pub(super) const MOST_CODE: u64 = 512 << 20;

/// `code`, where it is no more than is searched.
fn within_bounds(code: Vec<(&Mapping, Kind)>) -> Result<Vec<(&Mapping, Kind)>, Refusal> {
    let lengths = code.iter().map(|(m, _)| m.range.end - m.range.start);
    let total = lengths.fold(0, u64::saturating_add);
    if total <= MOST_CODE {
        return Ok(code);
    }
    let (its, most) = (bytes(total), bytes(MOST_CODE));
    Err(Refusal::new(
        format!("its code is of {its}, and no more than {most} are searched"),
        "start it under synclater run",
    ))
}

/// The code that `m` maps.
fn bytes_of(m: &Mapping, memory: &Memory) -> Result<Vec<u8>, Refusal> {
    let len = usize::try_from(m.range.end - m.range.start).unwrap_or(0);
    memory.bytes(m.range.start, len).map_err(|e| unreadable(&e))
}

/// The sites of some code, as if it began at `start`.
fn search(
    code: &[u8],
    kind: Kind,
    start: u64,
    class: Class,
    library: Option<&Library>,
) -> Vec<Site> {
    let mut sites = Vec::new();
    match class {
        Class::Small if kind != Kind::Program => {
            sites.extend(small_sites_in(code, start, library));
        }
        Class::Small => {}
        Class::Long => {
            if kind != Kind::Program {
                sites.extend(sites_in(code, start, library));
            }
            if kind != Kind::Libc {
                sites.extend(go_sites_in(code, start, library));
            }
        }
    }
    sites
}

fn unreadable(e: &std::io::Error) -> Refusal {
    Refusal::new(
        format!("its memory cannot be read: {e}"),
        "look whether it is still there",
    )
}

/// What is looked for in some code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A libc's sites.
    Libc,
    /// Those of Go.
    Program,
    /// Both: a static program.
    Whole,
}

/// Whether a mapping is of a file whose name begins like one of these.
fn is_named(m: &Mapping, files: &[&str]) -> bool {
    let name = m.name.rsplit('/').next().unwrap_or_default();
    may_change(m) && files.iter().any(|file| name.starts_with(file))
}

/// Where system calls are: in libc's own files, and in the program where it is static or Go's.
fn code_with_calls(pid: u32, mappings: &[Mapping]) -> Vec<(&Mapping, Kind)> {
    const FILES: [&str; 5] = ["libc.", "libc-", "libpthread", "libaio", "ld-"];
    let exe = program::exe_of(pid);
    // A static program that loads a libc beside its own (dlopen(3)) makes its calls by its own.
    // What is executed by the name of the dynamic linker has one, too.
    let mut linkers = mappings.iter().filter(|m| is_named(m, &["ld-"]));
    let is_static = is_static(pid) && !linkers.any(|m| is_of_exe(m, &exe));
    let (named, others): (Vec<_>, Vec<_>) = mappings.iter().partition(|m| is_named(m, &FILES));
    let libc = named
        .into_iter()
        .filter(|m| is_of_exe(m, &exe) || !is_static);
    let mut all: Vec<(&Mapping, Kind)> = libc.map(|m| (m, Kind::Libc)).collect();
    let kind = if all.is_empty() {
        Kind::Whole
    } else {
        Kind::Program
    };
    let of_exe = others.into_iter().filter(|m| is_of_exe(m, &exe));
    all.extend(of_exe.map(|m| (m, kind)));
    all
}

/// Whether a mapping is of the code of the program `exe`.
fn is_of_exe(m: &Mapping, exe: &str) -> bool {
    may_change(m) && program::without_mark(&m.name) == exe
}

/// Whether a program was executed without a dynamic linker; not where that is not told.
fn is_static(pid: u32) -> bool {
    const AT_BASE: u64 = 7;
    let auxv = std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let base = auxv
        .chunks_exact(16)
        .find(|pair| pair[..8] == AT_BASE.to_le_bytes());
    base.is_some_and(|pair| pair[8..] == [0; 8])
}

/// Code of a file, and not ours.
fn is_code(m: &Mapping) -> bool {
    m.executable && m.inode != 0 && m.name != MAPPED_AS
}

/// Such code that is this process's alone once it is changed: never that of a file, which others
/// have mapped, too.
fn may_change(m: &Mapping) -> bool {
    is_code(m) && !m.shared
}

/// The same version of the library: others are left alone.
fn find_library(m: &Mapping, class: Class, memory: &Memory) -> Option<Library> {
    let (image, head) = image(class)?;
    if m.name != MAPPED_AS || m.offset != 0 {
        return None;
    }
    let places_at = head.places_at as usize;
    let there = memory.bytes(m.range.start, head.data_at as usize).ok()?;
    if there[..places_at] != image[..places_at] {
        return None;
    }
    let end = places_at + head.places_len as usize;
    let places = there[places_at..end].chunks(Detour::SIZE).map(Detour::read);
    Some(Library {
        image: m.range.start,
        head,
        places: places.collect(),
    })
}

impl Survey {
    /// How many places of a program, outside of the code that is looked through for sites, make a
    /// sync request by an instruction of their own.
    #[must_use]
    pub fn unseen(&self, pid: u32, memory: &Memory) -> u64 {
        /// Of more code than that only the begin is looked at.
        const MOST: u64 = 256 << 20;
        let looked: Vec<&Mapping> = code_with_calls(pid, &self.mappings)
            .into_iter()
            .filter(|(_, kind)| *kind != Kind::Program)
            .map(|(m, _)| m)
            .collect();
        let submits = self.sites.iter().find_map(|s| s.function);
        let others = self
            .mappings
            .iter()
            .filter(|m| is_code(m) && !looked.contains(m))
            .filter(|m| submits.is_none_or(|function| !m.range.contains(&function)));
        let mut left = if self.class == Class::Long { MOST } else { 0 };
        let mut unseen = 0;
        for m in others {
            let len = (m.range.end - m.range.start).min(left);
            left -= len;
            let Ok(len) = usize::try_from(len) else {
                continue;
            };
            let code = memory.bytes(m.range.start, len);
            unseen += code.map_or(0, |code| unseen_in(&code));
        }
        unseen
    }

    /// Sites that lead to our library.
    pub fn redirected(&self) -> impl Iterator<Item = &Site> {
        self.sites.iter().filter(|s| s.leads_to.is_some())
    }

    /// Those of them that go back to what they were, where so many descriptors are `marked`: not
    /// those that these need.
    pub fn given_back(&self, marked: u64) -> impl Iterator<Item = &Site> {
        let all = self.redirected();
        all.filter(move |s| marked == 0 || !s.may_write())
    }

    /// Whether a request could be answered at all: the dynamic linker has no such site.
    #[must_use]
    pub fn makes_requests(&self) -> bool {
        self.has_libc() || self.sites.iter().any(|s| s.address.is_some())
    }

    fn has_libc(&self) -> bool {
        let mut requests = self.sites.iter().filter(|s| s.makes_request());
        requests.any(|s| !self.is_of_small_linker(s))
    }

    /// Whether a site lies in the dynamic linker of an i386 program.
    fn is_of_small_linker(&self, site: &Site) -> bool {
        // That of glibc makes calls of any number; musl's, which is its libc, has no sites.
        let mut linkers = self.mappings.iter().filter(|m| is_named(m, &["ld-linux"]));
        self.class == Class::Small && linkers.any(|m| m.range.contains(&site.at))
    }

    /// Whether the dynamic linker has mapped libc, if there is one.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.has_libc() || !self.mappings.iter().any(|m| is_named(m, &["ld-"]))
    }

    /// That there is nothing to redirect.
    #[must_use]
    pub fn has_no_site(&self) -> Refusal {
        let known = match self.class {
            Class::Long => "Go before 1.18, or code that was moved out of its file?",
            Class::Small => "of 32-bit programs glibc's are known",
        };
        let why = format!("no system-call site that can be redirected was found ({known})");
        Refusal::new(why, "start it under synclater: synclater run -- COMMAND")
    }

    /// Where the library lies, or is to lie, and the sites that it can be reached from.
    ///
    /// # Errors
    /// Where there is no site, or no room.
    pub fn place_library(&self, heap: Range<u64>) -> Result<(u64, Vec<Site>), Refusal> {
        if !self.makes_requests() {
            return Err(self.has_no_site());
        }
        let (_, head) = image(self.class).ok_or_else(|| no_gate(self.class))?;
        if let Some(library) = &self.library {
            return Ok((library.image, self.sites_near(library.image, &head)));
        }
        let taken = self.taken(heap);
        let mut groups = self.groups().into_iter();
        let at = groups.find_map(|code| room::near(&code, whole_room(&head), &taken));
        let at = at.ok_or_else(|| {
            Refusal::new(
                "there is no free address near its libc",
                "start it under synclater run",
            )
        })?;
        Ok((at, self.sites_near(at, &head)))
    }

    /// Where the library is to lie in a program that has just been executed, whose libc will lie
    /// near the dynamic linker at `base`.
    ///
    /// # Errors
    /// Where there is no room.
    pub fn place_ahead(&self, base: u64, heap: Range<u64>) -> Result<u64, Refusal> {
        let (_, head) = image(self.class).ok_or_else(|| no_gate(self.class))?;
        let linker = self.mappings.iter().find(|m| m.range.contains(&base));
        let linker = linker.map_or(base..base + 1, |m| m.range.clone());
        room::near(&linker, whole_room(&head), &self.taken(heap)).ok_or_else(|| {
            Refusal::new("there is no free address near its linker", "start it anew")
        })
    }

    fn sites_near(&self, image: u64, head: &Head) -> Vec<Site> {
        let reach = (1u64 << 31) - whole_room(head);
        self.sites
            .iter()
            .filter(|s| s.address.is_some() || s.at.abs_diff(image) < reach)
            .cloned()
            .collect()
    }

    /// Ranges of sites that one library can serve, the richest first.
    fn groups(&self) -> Vec<Range<u64>> {
        const APART: u64 = 1 << 30;
        let mut groups: Vec<(Range<u64>, usize)> = Vec::new();
        for site in &self.sites {
            match groups.last_mut() {
                Some((range, n)) if site.at - range.start < APART => {
                    range.end = site.at + 8;
                    *n += 1;
                }
                _ => groups.push((site.at..site.at + 8, 1)),
            }
        }
        // A far jump reaches everywhere.
        if groups.iter().any(|(range, _)| self.is_of_libc(range)) {
            groups.retain(|(range, _)| self.is_of_libc(range));
        }
        groups.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        groups.into_iter().map(|(range, _)| range).collect()
    }

    fn is_of_libc(&self, range: &Range<u64>) -> bool {
        let mut within = self.sites.iter().filter(|s| range.contains(&s.at));
        within.any(|s| s.address.is_none())
    }

    fn taken(&self, heap: Range<u64>) -> Vec<Range<u64>> {
        let mut all: Vec<_> = self.mappings.iter().map(grown).collect();
        all.push(heap.start..heap.end + room::HEAP);
        if self.class == Class::Small {
            all.push(0xffff_0000..1 << 62);
        }
        all
    }

    /// Room for `code` that nobody uses: behind the end of some file's code, up to the end of its
    /// last page; else at the end of the kernel's own piece of code (vdso(7)).
    #[must_use]
    pub fn slack(&self, memory: &Memory, code: &[u8]) -> Option<u64> {
        let len = code.len() as u64 + 16;
        let files = self.mappings.iter().filter(|m| may_change(m));
        let ends = files.filter_map(|m| Some((m, self.end_of_code(m, memory)?)));
        ends.filter(|(m, end)| m.range.contains(end))
            .filter(|(m, end)| (len..4096).contains(&(m.range.end - end)))
            .map(|(_, end)| end.next_multiple_of(16))
            .find(|at| at % 4096 != 0)
            .or_else(|| self.slack_of_kernel(memory, code))
    }

    fn slack_of_kernel(&self, memory: &Memory, code: &[u8]) -> Option<u64> {
        let vdso = self.mappings.iter().find(|m| m.name == "[vdso]")?;
        let at = (vdso.range.end.checked_sub(code.len() as u64)?) & !15;
        let there = memory.bytes(at, code.len()).ok()?;
        let is_free = there.iter().all(|b| *b == 0) || there == code;
        (at > vdso.range.start && is_free).then_some(at)
    }

    /// Whether nobody has attached to the process since it was looked through.
    #[must_use]
    pub fn still_holds(&self, pid: u32, memory: &Memory) -> bool {
        let maps = process::text(format!("/proc/{pid}/maps")).unwrap_or_default();
        let has_library = maps.contains(MAPPED_AS);
        has_library == self.library.is_some() && self.sites.iter().all(|s| s.is_as_it_was(memory))
    }

    /// Whether an errand may lie on this stack. Go's goroutines have stacks that are hardly larger
    /// than what they hold, side by side in its heap; its runtime waits on others, mostly.
    #[must_use]
    pub fn has_room_on(&self, stack: &Stack) -> bool {
        const ROOM: u64 = 2048;
        let sp = stack.pointer;
        let is_go = self.sites.iter().any(|s| s.address.is_some());
        let of = self.mappings.iter().find(|m| m.range.contains(&sp));
        let has_room = of.is_some_and(|m| m.name == "[stack]" || sp - m.range.start >= ROOM);
        // Where Go's heap lies (mallocinit, runtime/malloc.go).
        let is_in_heap = sp >> 32 & 0xff == 0xc0;
        let has_room_of_go = match &stack.of_goroutine {
            Some(whole) => sp - whole.start >= ROOM,
            None => !is_in_heap,
        };
        has_room && (!is_go || stack.waits_in_runtime && has_room_of_go)
    }

    /// What the file has that is mapped at `at`; zeros where that cannot be read.
    #[must_use]
    pub fn in_file(&self, pid: u32, at: u64, len: usize) -> Vec<u8> {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; len];
        if let Some(m) = self.mappings.iter().find(|m| m.range.contains(&at)) {
            let (start, end) = (m.range.start, m.range.end);
            let file = std::fs::File::open(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
            let from = m.offset + (at - start);
            let _ = file.and_then(|f| f.read_at(&mut bytes, from));
        }
        bytes
    }

    /// Where the code of the file that `m` maps ends, as the program headers have it.
    fn end_of_code(&self, m: &Mapping, memory: &Memory) -> Option<u64> {
        let first = self
            .mappings
            .iter()
            .find(|o| o.inode == m.inode && o.name == m.name && o.offset == 0)?;
        let segments = elf::segments(&memory.bytes(first.range.start, elf::HEAD).ok()?);
        let mapped = m.offset..m.offset + (m.range.end - m.range.start);
        let end = elf::end_of_code(&segments, &mapped)?;
        Some(m.range.start + end.checked_sub(m.offset)?)
    }
}

/// What a mapping takes, or may take when it has grown.
fn grown(m: &Mapping) -> Range<u64> {
    match m.name.as_str() {
        "[stack]" => m.range.start.saturating_sub(room::STACK)..m.range.end,
        _ => m.range.clone(),
    }
}

/// No gate was built for this machine, or for programs of this class.
pub fn no_gate(class: Class) -> Refusal {
    let why = match class {
        Class::Long => "there is no gate for this machine (x86-64 only)",
        Class::Small => "this synclater was built without a gate for 32-bit programs (gcc -m32)",
    };
    Refusal::new(why, "start it under synclater run")
}

/// The heap of a process as it stands.
#[must_use]
pub fn heap(pid: u32, mappings: &[Mapping]) -> Range<u64> {
    let stat = process::stat(&pid.to_string());
    let begin = stat.and_then(|stat| stat.heap()).unwrap_or(0);
    let end = mappings
        .iter()
        .find(|m| m.name == "[heap]")
        .map_or(begin, |m| m.range.end);
    begin..end.max(begin)
}
