//! Flushes that disks have refused, as they happen.
//!
//! Who asks for a flush is told alone when it fails: it stands in no file's mapping and in no
//! superblock (blkdev_issue_flush, Linux 6.18). The trace point `block_rq_error` (Linux 5.16) sees
//! those of everybody. It fires where a request fails, and costs nothing else.
//!
//! Needs what [`crate::perf`] does.

use crate::perf::{attributes, online_processors, open_event, Ring, SAMPLE_RAW, TRACEPOINT};
use crate::tracefs::Tracefs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Pages of a ring: failures are few.
const PAGES: usize = 4;

/// The watch over all disks of the machine.
pub struct FailedFlushes {
    /// With each how many of its records were taken.
    rings: Vec<(Ring, u64)>,
    form: Form,
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
        let place = |field: &str| place_in(&format, field).ok_or(io::ErrorKind::NotFound);
        let form = Form {
            dev: place("dev")?,
            sectors: place("nr_sector")?,
            error: place("error")?,
            rwbs: place("rwbs")?,
        };
        let id = dir.id(POINT)?;
        let open = |cpu| {
            let mut how = attributes(TRACEPOINT, id, 0);
            how[3] = SAMPLE_RAW;
            Ring::around(open_event(&mut how, cpu)?, PAGES)
        };
        let rings = online_processors().into_iter().map(open);
        let rings = rings.map(|ring| Ok((ring?, 0)));
        let rings = rings.collect::<io::Result<Vec<_>>>()?;
        Ok(FailedFlushes { rings, form })
    }

    /// What keeps the trace point on.
    #[must_use]
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.rings.iter().map(|(ring, _)| ring.as_fd()).collect()
    }

    /// Major and minor numbers of the disks that have refused one since the last call, or may have;
    /// `None` for one of which nothing is known: a full ring takes no more.
    pub fn told(&mut self) -> Vec<Option<(u32, u32)>> {
        let mut told = Vec::new();
        for (ring, taken) in &mut self.rings {
            // In this order: one that comes in between is taken the next time.
            let happened = ring.happened();
            ring.each(|record| {
                *taken += u64::from(record.first() == Some(&SAMPLE));
                told.extend(self.form.flush_of(record));
            });
            if *taken < happened {
                *taken = happened;
                told.push(None);
            }
        }
        told
    }
}

/// The type of a record that has an event.
const SAMPLE: u8 = 9;

impl Form {
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
        let number = |at: usize| {
            let bytes = event.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_ne_bytes(bytes))
        };
        let rwbs = event.get(self.rwbs..)?.iter().take_while(|b| **b != 0);
        let rwbs: Vec<u8> = rwbs.copied().take(10).collect();
        let is_asked = number(self.error)?.cast_signed() != EOPNOTSUPP;
        let is_write = matches!(rwbs.first(), Some(b'W' | b'F'));
        let is_empty = number(self.sectors)? == 0;
        let may_flush = is_empty || rwbs.iter().any(|b| matches!(b, b'F' | b'M'));
        // As the kernel has it (MAJOR and MINOR of linux/kdev_t.h).
        let dev = number(self.dev)?;
        let disk = Some((dev >> 20, dev & 0xf_ffff));
        (is_asked && is_write && may_flush).then_some(disk)
    }
}

/// At which byte of an event a field lies, by the text that tracefs has of its form.
fn place_in(format: &str, field: &str) -> Option<usize> {
    let is_it = |line: &&str| {
        let name = line.split(';').next().unwrap_or_default();
        let name = name.rsplit(' ').next().unwrap_or_default();
        name.split('[').next() == Some(field)
    };
    let line = format.lines().find(is_it)?;
    let (_, rest) = line.split_once("offset:")?;
    rest.split(';').next()?.parse().ok()
}
