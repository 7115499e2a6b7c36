//! Whose requests the kernel is asked for: options of `record` and `top`, and the filter that they
//! come to.

use crate::session::hierarchy;
use crate::session::mounts::mounts_of;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use synclater_bpf::{cgroup_id, Engine, Error, Filter};
use synclater_proc::mountinfo::mount_of;
use synclater_sys::process;
use synclater_text::message::Trouble;

/// Everybody's, or these.
#[derive(clap::Args)]
pub struct RequesterFilter {
    /// Only this process and what it starts; repeatable.
    #[arg(
        long,
        value_name = "N",
        value_parser = super::process_number,
        allow_hyphen_values = true
    )]
    pid: Vec<u32>,

    /// Only this systemd unit, or what lies at this way below another; repeatable.
    #[arg(long, value_name = "NAME")]
    unit: Vec<String>,

    /// Only this executable, by name or path; repeatable.
    #[arg(long, value_name = "EXE")]
    exe: Vec<OsString>,

    /// Only this device, or the one that this folder lies on; repeatable.
    #[arg(long, value_name = "PATH")]
    device: Vec<PathBuf>,
}

/// What the kernel is asked for, as its errors say it.
#[derive(Clone, Copy)]
pub struct Purpose {
    /// `record`, `watch`.
    pub verb: &'static str,
    /// What state an error leaves things in.
    pub state: &'static str,
}

impl Purpose {
    /// An error.
    pub fn cannot(self, whom: &str, why: impl Into<String>, try_: &str) -> Trouble {
        Trouble::new(
            format!("cannot {} {whom}", self.verb),
            why,
            try_,
            self.state,
        )
    }
}

impl RequesterFilter {
    /// Whether nothing was said.
    pub fn is_everybody(&self) -> bool {
        self.pid.is_empty() && self.unit.is_empty() && self.exe.is_empty() && self.device.is_empty()
    }

    /// Whether processes were named, and none of them is there any more.
    pub fn are_gone(&self) -> bool {
        !self.pid.is_empty() && !self.pid.iter().any(|pid| process::is_running(*pid))
    }

    /// In words.
    pub fn words(&self) -> String {
        let parts = [
            listed("process", self.pid.iter().map(u32::to_string).collect()),
            listed("unit", self.unit.clone()),
            listed("executable", lossy(self.exe.iter().map(Path::new))),
            listed("device", lossy(self.device.iter().map(PathBuf::as_path))),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            return "every process".into();
        }
        parts.join("; ")
    }

    /// The filter.
    ///
    /// # Errors
    /// A [`Trouble`] where there is no such process, unit or device.
    pub fn filter(&self, purpose: Purpose) -> Result<Filter, Trouble> {
        let mut filter = Filter {
            exes: self.exe.iter().cloned().collect(),
            pids: self.pid.iter().copied().collect(),
            descendants: true,
            ..Filter::default()
        };
        if let Some(gone) = self.pid.iter().find(|pid| !process::is_alive(**pid)) {
            let whom = format!("process {gone}");
            let why = "there is no such process";
            return Err(purpose.cannot(&whom, why, "look it up with `ps`"));
        }
        for unit in &self.unit {
            filter.cgroups.insert(group_of(unit, purpose)?);
        }
        for path in &self.device {
            filter.devices.extend(device(path, purpose)?);
        }
        Ok(filter)
    }
}

/// The names behind what they are; nothing where there are none.
fn listed(what: &str, names: Vec<String>) -> Option<String> {
    (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
}

fn lossy<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<String> {
    paths.map(|p| p.display().to_string()).collect()
}

/// The kernel's trace points, with a ring of so many bytes.
///
/// # Errors
/// A [`Trouble`] where they cannot be had.
pub fn engine(filter: &Filter, ring: usize, purpose: Purpose) -> Result<Engine, Trouble> {
    Engine::open(filter, ring).map_err(|e| {
        let try_ = match e {
            Error::NotPermitted(_) => "run it as root",
            Error::NotBuilt(_) => {
                "build it where clang and libelf's headers are, or record without --system"
            }
            _ => "`synclater record -o FILE -- COMMAND` needs nothing of the kernel",
        };
        Trouble::new("cannot ask the kernel", e.to_string(), try_, purpose.state)
    })
}

/// Why no unit has a name, and what to try.
pub fn no_unit() -> (&'static str, &'static str) {
    // sd_booted(3)
    if Path::new("/run/systemd/system").is_dir() {
        (
            "no running unit has that name (control groups, version 2)",
            "look it up with `systemctl status`, or use --exe or --pid",
        )
    } else {
        (
            "no running unit has that name (control groups, version 2), and systemd does not run \
         here (/run/systemd/system)",
            "use --exe or --pid",
        )
    }
}

/// The control group of a unit.
fn group_of(unit: &str, purpose: Purpose) -> Result<u64, Trouble> {
    let whom = format!("unit {unit}");
    let root = hierarchy::version_2();
    let Some(found) = root.as_ref().and_then(|root| unit_folder(unit, root)) else {
        let (why, try_) = no_unit();
        return Err(purpose.cannot(&whom, why, try_));
    };
    cgroup_id(&found).map_err(|e| purpose.cannot(&whom, e.to_string(), "use --pid"))
}

/// The folder of a unit's control group below the root of version 2's hierarchy: NAME or
/// NAME.service of the machine's own systemd, which keeps its units in slices. What lies below
/// another unit belongs to others: a container, or a user who makes folders of any name. With a
/// slash NAME is the whole way from the root.
#[must_use]
pub fn unit_folder(unit: &str, root: &OwnedFd) -> Option<PathBuf> {
    let root = hierarchy::held(root);
    if unit.contains('/') {
        let way = Path::new(unit.trim_matches('/'));
        let is_way = way != Path::new("")
            && way
                .components()
                .all(|part| matches!(part, Component::Normal(_)));
        let folder = root.join(way);
        return (is_way && folder.is_dir()).then_some(folder);
    }
    let mut todo = vec![root];
    for _ in 0..10_000 {
        let dir = todo.pop()?;
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|t| t.is_dir()) {
                continue;
            }
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == unit || name.strip_suffix(".service") == Some(unit) {
                return Some(entry.path());
            }
            if name.ends_with(".slice") || is_our_manager(&name) {
                todo.push(entry.path());
            }
        }
    }
    None
}

/// Whether a unit is the systemd of the user that we are.
fn is_our_manager(name: &str) -> bool {
    let user = process::effective_user();
    user != 0 && name == format!("user@{user}.service")
}

/// Superblocks of a block device, or the one that a folder lies on.
fn device(path: &Path, purpose: Purpose) -> Result<Vec<(u32, u32)>, Trouble> {
    let full = std::fs::canonicalize(path).map_err(|e| no_device(path, purpose, &e))?;
    let table = mounts_of("self");
    let meta = std::fs::metadata(&full).map_err(|e| no_device(path, purpose, &e))?;
    if !meta.file_type().is_block_device() {
        return Ok(mount_of(&table, &full).map(|m| m.dev).into_iter().collect());
    }
    let number = meta.rdev();
    let number = (rustix::fs::major(number), rustix::fs::minor(number));
    // btrfs has a number of its own for a file system; its mounts name the device.
    let of_mounts = table
        .iter()
        .filter(|m| std::fs::canonicalize(&m.source).is_ok_and(|s| s == full))
        .map(|m| m.dev);
    Ok(of_mounts.chain([number]).collect())
}

fn no_device(path: &Path, purpose: Purpose, e: &std::io::Error) -> Trouble {
    let whom = format!("device {}", path.display());
    purpose.cannot(&whom, e.to_string(), "name a device or a folder on it")
}
