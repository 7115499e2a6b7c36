//! Flushes that disks have refused, as they happen.
//!
//! Who asks for a flush is told alone when it fails: it stands in no file's mapping and in no
//! superblock (blkdev_issue_flush, Linux 6.18). The trace point `block_rq_error` (Linux 5.16) sees
//! those of everybody. It fires where a request fails, and costs nothing else.
//!
//! Needs what [`crate::perf`] does.

use crate::perf::{
    attributes, keep_only, open_event_with_lost, Ring, DISABLED, PAGE, SAMPLE_RAW, TRACEPOINT,
};
use crate::processors::EachProcessor;
use crate::tracefs::Tracefs;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Pages of a ring: failures of these are few, but for those of a disk that takes nothing any more.
const PAGES: usize = 16;

/// What the kernel is to tell of: [`Form::flush_of`], which looks once more, has the reasons. Reads
/// that fail, as of a medium with a scratch, would fill a ring, and any user can make some. Up to
/// Linux 6.18 at least "*F*" finds also what an earlier text has left behind the end of this one.
const FLUSHES: &CStr = c"(rwbs ~ \"W*\" || rwbs ~ \"F*\") && \
    (nr_sector == 0 || rwbs ~ \"*F*\" || rwbs ~ \"*M*\")";

/// The watch over all disks of the machine.
pub struct FailedFlushes {
    rings: EachProcessor<Failed>,
    form: Form,
}

/// Those of one processor.
struct Failed {
    ring: Ring,
    /// How many records were taken.
    taken: u64,
    /// For how many there was no room, as far as that was told.
    lost: u64,
}

impl AsFd for Failed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Failed {
    /// Starts watching the trace point with this number on one processor.
    fn watch(id: u64, cpu: usize) -> io::Result<Failed> {
        let mut how = attributes(TRACEPOINT, id, DISABLED);
        how[3] = SAMPLE_RAW;
        how[6] = (PAGES * PAGE / 2) as u64; // wakeup_watermark
        let event = open_event_with_lost(&mut how, cpu)?;
        // Without it more is told, and the ring may be full.
        let _ = keep_only(&event, FLUSHES);
        let ring = Ring::around(event, PAGES)?;
        // Not before: what is counted without a ring would be missed in it.
        ring.enable()?;
        Ok(Failed {
            ring,
            taken: 0,
            lost: 0,
        })
    }

    /// Adds to `told` what has come since the last call; returns how many were taken in all.
    fn take(&mut self, form: &Form, told: &mut Vec<Option<(u32, u32)>>) -> u64 {
        let Failed { ring, taken, .. } = self;
        ring.each(|record| {
            *taken += u64::from(record.first() == Some(&SAMPLE));
            told.extend(form.flush_of(record));
        });
        *taken
    }
}

/// Where the fields lie that are looked at.
struct Form {
    dev: usize,
    sectors: usize,
    error: usize,
    rwbs: usize,
}

impl FailedFlushes {
    /// Starts watching.
    ///
    /// # Errors
    /// `EACCES` or `EPERM` where perf events of other processes are not permitted; `ENOENT` without
    /// the trace point.
    pub fn watch() -> io::Result<FailedFlushes> {
        const POINT: &str = "block/block_rq_error";
        let dir = Tracefs::open()?;
        let format = dir.format(POINT)?;
        let form = Form::of(&format).ok_or(io::ErrorKind::NotFound)?;
        let id = dir.id(POINT)?;
        let rings = EachProcessor::open(move |cpu| Failed::watch(id, cpu))?;
        Ok(FailedFlushes { rings, form })
    }

    /// What keeps the trace point on. One is readable once its ring is half full.
    #[must_use]
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.rings.iter().map(AsFd::as_fd).collect()
    }

    /// Major and minor numbers, each once, of the disks that have refused one since the last
    /// call, or may have; `None` for one of which nothing is known: a full ring takes no more.
    pub fn told(&mut self) -> Vec<Option<(u32, u32)>> {
        let mut told = Vec::new();
        self.rings.look();
        for failed in self.rings.iter_mut() {
            // In this order: one that comes in between is taken the next time.
            let counted = failed.ring.counted();
            let is_lost = match counted.lost {
                Some(now) => {
                    failed.take(&self.form, &mut told);
                    std::mem::replace(&mut failed.lost, now) != now
                }
                None => {
                    !comes_to(counted.times, || failed.take(&self.form, &mut told)) && {
                        failed.taken = counted.times;
                        true
                    }
                }
            };
            told.extend(is_lost.then_some(None));
        }
        // Each costs its reader a look at what lies on it.
        told.sort_unstable();
        told.dedup();
        told
    }
}

/// Whether so many are counted, within some milliseconds: the kernel counts an event a moment
/// before its record is there (perf_swevent_event). Before Linux 6.0.
fn comes_to(happened: u64, mut counted: impl FnMut() -> u64) -> bool {
    const LATE: Duration = Duration::from_millis(20);
    let until = Instant::now() + LATE;
    loop {
        if counted() >= happened {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LATE / 20);
    }
}

/// The type of a record that has an event.
const SAMPLE: u8 = 9;

impl Form {
    /// By the text that tracefs has; `None` where it lacks one of them.
    fn of(format: &str) -> Option<Form> {
        Some(Form {
            dev: place_in(format, "dev")?,
            sectors: place_in(format, "nr_sector")?,
            error: place_in(format, "error")?,
            rwbs: place_in(format, "rwbs")?,
        })
    }

    /// The disk that a record tells of, if that may be of a flush. A request has lost its
    /// REQ_PREFLUSH by then (blk_insert_flush, Linux 6.18): it is a write of nothing, or one of a
    /// file system's own structures, in front of which there may have been a flush.
    fn flush_of(&self, record: &[u8]) -> Option<Option<(u32, u32)>> {
        const EOPNOTSUPP: i32 = -95;
        if *record.first()? != SAMPLE {
            return None;
        }
        // The header, and how long the rest is.
        let event = record.get(12..)?;
        let rwbs = event.get(self.rwbs..)?.iter().take_while(|b| **b != 0);
        let rwbs: Vec<u8> = rwbs.copied().take(10).collect();
        let is_asked = number(event, self.error)?.cast_signed() != EOPNOTSUPP;
        let is_write = matches!(rwbs.first(), Some(b'W' | b'F'));
        let is_empty = number(event, self.sectors)? == 0;
        let may_flush = is_empty || rwbs.iter().any(|b| matches!(b, b'F' | b'M'));
        // As the kernel has it (MAJOR and MINOR of linux/kdev_t.h).
        let dev = number(event, self.dev)?;
        let disk = Some((dev >> 20, dev & 0xf_ffff));
        (is_asked && is_write && may_flush).then_some(disk)
    }
}

/// The number at `at` of an event.
fn number(event: &[u8], at: usize) -> Option<u32> {
    let bytes = event.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(bytes))
}

/// At which byte of an event a field lies, by the text that tracefs has of its form.
fn place_in(format: &str, field: &str) -> Option<usize> {
    let line = format.lines().find(|line| is_about(line, field))?;
    let (_, rest) = line.split_once("offset:")?;
    rest.split(';').next()?.parse().ok()
}

/// Whether a line of that text is about this field.
fn is_about(line: &str, field: &str) -> bool {
    let name = line.split(';').next().unwrap_or_default();
    let name = name.rsplit(' ').next().unwrap_or_default();
    name.split('[').next() == Some(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_comes_behind_its_count_is_waited_for() {
        let mut looks = 0;
        let is_there = comes_to(7, || {
            looks += 1;
            if looks < 3 {
                6
            } else {
                8
            }
        });
        assert!(is_there && looks == 3);
        assert!(!comes_to(7, || 6), "there was no room for one");
    }

    #[test]
    fn the_kernel_has_taken_the_filter() {
        let Ok(id) = Tracefs::open().and_then(|dir| dir.id("block/block_rq_error")) else {
            return eprintln!("SKIPPED the_kernel_has_taken_the_filter: no such trace point here");
        };
        let mut how = attributes(TRACEPOINT, id, 0);
        let Ok(event) = open_event_with_lost(&mut how, 0) else {
            return eprintln!("SKIPPED the_kernel_has_taken_the_filter: it needs root");
        };
        keep_only(&event, FLUSHES).unwrap();
        assert!(keep_only(&event, c"no_such_field == 1").is_err());
    }
}
