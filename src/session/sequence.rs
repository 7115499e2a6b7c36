//! How many of the requests that were answered at once would have been waited for one behind the
//! other.
//!
//! Promise: the requests of threads of one process count as waited for together, up to those of the
//! busiest: answered at once, threads are over before they meet, and real ones would wait beside
//! each other. So do those of processes that were there at two looks. Of those that were not there
//! at the last look, as many wait together as were there at a look, on the average.
//!
//! What it does not do: it does not see when a request was made between two looks, nor which
//! thread waited for which other one.

use super::shared::Shared;
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use synclater_shim::page::{Shard, Slot, SHARDS};
use synclater_sys::process;

/// What a process had put off at the last look.
#[derive(Clone, Copy)]
struct Last {
    pid: u32,
    /// By the busiest of its threads.
    busiest: u64,
    /// By the others, while that would have waited.
    beside: u64,
}

/// What looks at the slots again and again have told.
#[derive(Default)]
pub struct Sequence {
    last: HashMap<(usize, usize), Last>,
    together: u64,
    /// Looks that found processes which had not been there, and how many of these were there still.
    looks: u64,
    there: u64,
}

fn put_off(shard: &Shard) -> u64 {
    let not = shard
        .real
        .load(SeqCst)
        .saturating_add(shard.failed.load(SeqCst));
    shard.requests.load(SeqCst).saturating_sub(not)
}

impl Sequence {
    /// Looks at what was counted since the last look; before slots are freed.
    pub fn look(&mut self, shared: &Shared) {
        let (mut pooled, mut longest) = (0u64, 0u64);
        let (mut fresh, mut there) = (0u64, 0u64);
        let mut now = HashMap::new();
        for (room, slots) in shared.all_slots().enumerate() {
            for (k, slot) in slots.slot.iter().enumerate().skip(1) {
                let Some(seen) = seen(slot) else {
                    continue;
                };
                let last = self.last.get(&(room, k)).copied();
                let last = last.filter(|l| l.pid == seen.pid);
                let beside = seen.beside.saturating_sub(last.map_or(0, |l| l.beside));
                self.adds(beside);
                if let Some(last) = last {
                    let more = seen.busiest.saturating_sub(last.busiest);
                    (pooled, longest) = (pooled.saturating_add(more), longest.max(more));
                } else {
                    fresh = fresh.saturating_add(seen.busiest);
                    there += u64::from(process::is_alive(seen.pid));
                }
                now.insert((room, k), seen);
            }
        }
        self.last = now;
        self.adds(pooled - longest);
        // At the end nobody is there.
        if there > 0 {
            (self.looks, self.there) = (self.looks + 1, self.there + there);
        }
        let at_once = (self.there / self.looks.max(1)).max(1);
        self.adds(fresh - fresh / at_once);
    }

    fn adds(&mut self, together: u64) {
        self.together = self.together.saturating_add(together);
    }

    /// Of so many requests, those that were one behind the other.
    #[must_use]
    pub fn of(&self, put_off: u64) -> u64 {
        put_off.saturating_sub(self.together)
    }
}

fn seen(slot: &Slot) -> Option<Last> {
    let pid = slot.pid.load(SeqCst);
    let lines: [u64; SHARDS] = std::array::from_fn(|k| put_off(&slot.shard[k]));
    let busiest = lines.iter().max().copied().unwrap_or(0);
    let all = lines.into_iter().fold(0, u64::saturating_add);
    // Any number may stand there.
    (pid != 0 && i32::try_from(pid).is_ok()).then_some(Last {
        pid,
        busiest,
        beside: all - busiest,
    })
}
