//! Programs that have just been executed, and are traced by this process: attached before their
//! first instruction, or as soon as their libraries are there.

use super::change::{exchange, fill_places};
use super::class::Class;
use super::code::{self, survey, survey_at_start};
use super::filters::Filters;
use super::refusal::Refusal;
use super::target::{self, Open};
use super::tracer::{Failure, Tracer};
use super::{bring, errand, lost, memory_of, AttachOutcome, Payload, Plan};
use std::ops::Range;
use synclater_sys::ptrace::Thread;
use synclater_sys::remote::Memory;

/// Where a program that has just been executed will begin.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Where its dynamic linker lies.
    pub linker: u64,
    /// Its entry.
    pub at: u64,
    /// Where its auxiliary vector names the entry.
    pub told: u64,
}

/// What became of a program that has just been executed.
pub enum StartOutcome {
    /// This.
    Done(AttachOutcome),
    /// Its libraries are not there yet: it will stop for SIGURG in this range, when they are.
    Ahead(Range<u64>),
}

/// Attaches a process that has just executed a program, as its first instruction comes next.
/// `thread`, its only one, is traced by this process and stands still; it goes on, traced. `entry`
/// tells of a program that has a dynamic linker.
pub fn put_in_at_start(
    thread: Thread,
    entry: Option<Entry>,
    payload: &Payload,
    memory: &Memory,
) -> (Option<Thread>, StartOutcome) {
    let pid = thread.tid();
    let class = class_of(&thread);
    let mut tracer = Tracer::with(thread, class);
    let begun = put_in_first(pid, class, &mut tracer, entry, payload, memory);
    let begun = begun.unwrap_or_else(|failure| StartOutcome::Done(failure.into()));
    (tracer.thread_of(pid), begun)
}

/// Goes on with a program that was prepared, and has its libraries now.
/// Returns its other threads that have ended meanwhile, too.
pub fn put_in_on_arrival(
    thread: Thread,
    payload: &Payload,
) -> (Option<Thread>, AttachOutcome, Vec<u32>) {
    let pid = thread.tid();
    let class = class_of(&thread);
    let mut tracer = Tracer::with(thread, class);
    let told = put_in_late(pid, class, &mut tracer, payload).unwrap_or_else(Into::into);
    let gone = tracer.gone();
    (tracer.thread_of(pid), told, gone)
}

/// What code a program consists of that stands in front of its first instruction.
fn class_of(thread: &Thread) -> Class {
    match thread.registers() {
        Ok(registers) if !registers.is_64() => Class::Small,
        _ => Class::Long,
    }
}

fn put_in_first(
    pid: u32,
    class: Class,
    tracer: &mut Tracer,
    entry: Option<Entry>,
    payload: &Payload,
    memory: &Memory,
) -> Result<StartOutcome, Failure> {
    let target = target::at_start(pid, class, payload.filters)?;
    let found = survey_at_start(pid, target.class, memory, &payload.remembered)?;
    if target.is_filtered {
        Filters::new(target.class).look_at_all(tracer)?;
    }
    if found.makes_requests() {
        let plan = Plan::make(pid, target, found, payload, memory)?;
        return plan
            .carry_out(tracer, payload, memory)
            .map(StartOutcome::Done);
    }
    if class == Class::Small && entry.is_none() && found.sites.is_empty() {
        // Static, and of another libc: whatever it asks for, it asks for in an unknown form.
        return Err(found.has_no_site().into());
    }
    let Some(entry) = entry else {
        // Nothing in it could be answered, so nothing is missed.
        return Ok(StartOutcome::Done(AttachOutcome::Attached {
            sites: 0,
            far: 0,
            open: Open::default(),
        }));
    };
    let image = found.place_ahead(entry.linker, code::heap(pid, &found.mappings))?;
    let open = target::open(pid);
    let errand = errand(&target, open, &found, image, payload, memory)?;
    let library = bring(tracer, &found, &errand, payload, memory)?;
    let arrival = synclater_shim::gate::arrival(entry.at, entry.told);
    memory
        .write(image + u64::from(library.head.arrival), &arrival)
        .map_err(lost)?;
    let arrive = image + u64::from(library.head.arrive);
    let told = arrive.to_le_bytes();
    let len = match class {
        Class::Long => 8,
        Class::Small => 4,
    };
    memory.write(entry.told, &told[..len]).map_err(lost)?;
    exchange(tracer, memory, &[])?;
    const LONGEST: u64 = 256;
    Ok(StartOutcome::Ahead(arrive..arrive + LONGEST))
}

fn put_in_late(
    pid: u32,
    class: Class,
    tracer: &mut Tracer,
    payload: &Payload,
) -> Result<AttachOutcome, Failure> {
    let memory = memory_of(pid)?;
    let found = survey(pid, class, &memory)?;
    if target::at_start(pid, class, payload.filters)?.is_filtered {
        // Put on by what runs in front of its entry.
        Filters::new(class).look_at_all(tracer)?;
    }
    let library = found
        .library
        .clone()
        .ok_or_else(|| Refusal::new("the library is gone from its memory", "start it anew"))?;
    let (_, sites) = found.place_library(code::heap(pid, &found.mappings))?;
    let changes = fill_places(&library, found.class, &sites, &memory)?;
    exchange(tracer, &memory, &changes)?;
    let open = target::open(pid);
    Ok(AttachOutcome::Attached {
        sites: sites.len() as u64,
        far: (found.sites.len() - sites.len()) as u64,
        open,
    })
}
