//! What `probe` measured last on each file system: by that a run tells what it has saved.
//!
//! Promise: it is used for [`RECENT`], in the boot in which it was measured, and on the file system
//! on which it was: the same mount, or the same UUID from the same source.

use super::shelf::Shelf;
use super::{dirs, mounts};
use rustix::time::{clock_gettime, ClockId};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;
use synclater_account::probe::Probe;
use synclater_account::saving::Cost;
use synclater_policy::ledger::LedgerFs;
use synclater_proc::mountinfo::mount_of;
use synclater_sys::mount;
use synclater_text::number::seconds;

/// How long a disk is taken to be as it was measured.
pub const RECENT: Duration = Duration::from_secs(24 * 60 * 60);

const PROBES: Shelf = Shelf("probes");

/// What was measured on one file system.
#[derive(Debug, Serialize, Deserialize)]
pub struct Probed {
    boot_id: String,
    /// Seconds since that boot.
    at_s: u64,
    fs: LedgerFs,
    dir: String,
    /// What an fsync costs, by threads at once.
    costs: Vec<(usize, Cost)>,
}

/// Seconds since the boot, suspension included: nobody sets this clock.
fn since_boot_s() -> u64 {
    u64::try_from(clock_gettime(ClockId::Boottime).tv_sec).unwrap_or(0)
}

/// What the folder `dir`, open as `fd`, lies on.
fn lies_on(dir: &Path, fd: impl AsFd) -> Option<LedgerFs> {
    let mounts = mounts::mounts_of("self");
    let mount = mount_of(&mounts, dir)?;
    Some(LedgerFs {
        mount: mount.path().to_string_lossy().into_owned(),
        fstype: mount.fstype.clone(),
        source: mount.source.clone(),
        uuid: mount::uuid_of_fd(&fd),
        mount_id: mount::unique_id_of_fd(&fd),
    })
}

impl Probed {
    /// Keeps what was measured in the folder `dir`, instead of what was measured there before.
    ///
    /// # Errors
    /// Those of [`Shelf::keep`], and of opening the folder; `NotFound` where the file system cannot
    /// be known again.
    pub fn keep(dir: &Path, probe: &Probe) -> io::Result<()> {
        let fs = lies_on(dir, std::fs::File::open(dir)?);
        let fs = fs.filter(|fs| fs.uuid.is_some() || fs.mount_id.is_some());
        let fs = fs.ok_or(io::ErrorKind::NotFound)?;
        let name = match (&fs.uuid, fs.mount_id) {
            (Some(uuid), _) => uuid.clone(),
            (None, id) => format!("mount-{}", id.unwrap_or(0)),
        };
        let probed = Probed {
            boot_id: dirs::boot_id(),
            at_s: since_boot_s(),
            fs,
            dir: probe.dir.clone(),
            costs: probe.costs(),
        };
        let name = name.replace('/', "-");
        PROBES.keep(&name, &serde_json::to_vec(&probed)?)
    }

    /// What was measured last on `fs`, where that is recent.
    #[must_use]
    pub fn last_on(fs: &LedgerFs) -> Option<Probed> {
        let (boot_id, now) = (dirs::boot_id(), since_boot_s());
        PROBES
            .all()
            .filter_map(|text| serde_json::from_slice(&text).ok())
            .filter(|p: &Probed| p.is_recent(&boot_id, now) && is_same(&p.fs, fs))
            .max_by_key(|p| p.at_s)
    }

    /// Whether it was measured a short time ago, in this boot.
    fn is_recent(&self, boot_id: &str, now: u64) -> bool {
        let age = now.checked_sub(self.at_s);
        let is_recent = age.is_some_and(|age| age <= RECENT.as_secs());
        !boot_id.is_empty() && self.boot_id == boot_id && is_recent
    }

    /// What a sync costs where so many threads sync at once, and where that was measured, in words.
    #[must_use]
    pub fn cost(&self, threads: f64) -> Option<(Cost, String)> {
        let all = self.costs.iter();
        let fewer = all.filter(|(n, _)| *n as f64 <= threads.max(1.0));
        let (_, cost) = fewer.max_by_key(|(n, _)| *n)?;
        let ago = since_boot_s().saturating_sub(self.at_s);
        let ago = match ago {
            0..60 => "just now".to_owned(),
            _ => format!("{} ago", seconds(ago as f64)),
        };
        Some((*cost, format!("`synclater probe {}`, {ago}", self.dir)))
    }
}

fn is_same(a: &LedgerFs, b: &LedgerFs) -> bool {
    let is_one_mount = a.mount_id.is_some() && a.mount_id == b.mount_id;
    let is_one_disk = a.uuid.is_some() && (&a.uuid, &a.source) == (&b.uuid, &b.source);
    is_one_mount || is_one_disk
}
