//! The file systems of the laboratory: how they are made and mounted.

use rustix::mount::MountFlags;
use std::path::Path;
use std::process::Command;
use synclater_text::message::Trouble;

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// ext4, with a journal of 8 MiB.
    Ext4,
    /// XFS, with the smallest log.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];

    /// As mount(8) names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }

    /// Bytes of a disk where nobody asks for more.
    #[must_use]
    pub fn usual_size(self) -> u64 {
        match self {
            Kind::Ext4 | Kind::Btrfs => 256 << 20,
            Kind::Xfs => 320 << 20,
        }
    }

    /// The least bytes with which its mkfs makes what is mounted here.
    #[must_use]
    pub fn least_size(self) -> u64 {
        match self {
            Kind::Ext4 => 32 << 20,
            Kind::Xfs => 300 << 20,
            Kind::Btrfs => 112 << 20,
        }
    }

    /// The command that makes it.
    fn mkfs(self, sector: u32, device: &Path, more: &[String]) -> Command {
        let mut command = tool(&format!("mkfs.{}", self.name()));
        match self {
            // Nothing is left to be written later by a thread of the kernel.
            Kind::Ext4 => command.args([
                "-q",
                "-F",
                "-b",
                "4096",
                "-J",
                "size=8",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
            ]),
            Kind::Xfs => command
                .args(["-q", "-f", "-K", "-s"])
                .arg(format!("size={sector}")),
            Kind::Btrfs => command.args(["-q", "-f", "-K", "-s", "4096"]),
        };
        command.args(more).arg(device);
        command
    }

    /// Mounts a device with it, with options of mount(8) and more flags.
    ///
    /// # Errors
    /// Those of mount(2).
    pub fn mount(
        self,
        options: &str,
        device: &Path,
        at: &Path,
        more: MountFlags,
    ) -> std::io::Result<()> {
        let (flags, mut options) = flags_of(options);
        if self == Kind::Xfs {
            // Several states of one file system are mounted at a time.
            options.push("nouuid");
        }
        let options = std::ffi::CString::new(options.join(","))?;
        rustix::mount::mount(device, at, self.name(), flags | more, options.as_c_str())?;
        Ok(())
    }
}

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which.
    pub kind: Kind,
    /// Bytes.
    pub size: u64,
    /// Bytes of a sector.
    pub sector: u32,
    /// More words for mkfs.
    pub mkfs: Vec<String>,
    /// Options of mount(8).
    pub options: String,
}

const STATE: &str = "nothing was run; nothing is left";

impl Plan {
    /// Makes it on a device.
    ///
    /// # Errors
    /// A [`Trouble`] with what mkfs said.
    pub fn make(&self, device: &Path) -> Result<(), Trouble> {
        let name = self.kind.name();
        let what = format!("cannot make {name} on the laboratory's disk");
        let mut command = self.kind.mkfs(self.sector, device, &self.mkfs);
        let made = command.output().map_err(|e| {
            let package = match self.kind {
                Kind::Ext4 => "e2fsprogs",
                Kind::Xfs => "xfsprogs",
                Kind::Btrfs => "btrfs-progs",
            };
            let why = format!("mkfs.{name}: {e}");
            Trouble::new(what.clone(), why, format!("install {package}"), STATE)
        })?;
        if made.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        let try_ = "another --size, --sector or --mkfs";
        Err(Trouble::new(what, said, try_, STATE))
    }

    /// Mounts a device with it, and with more flags.
    ///
    /// # Errors
    /// Those of mount(2).
    pub fn mount(&self, device: &Path, at: &Path, more: MountFlags) -> std::io::Result<()> {
        self.kind.mount(&self.options, device, at, more)
    }

    /// What the file system's own check says of an unmounted device; `None` where all is well.
    ///
    /// # Errors
    /// Where it cannot be run, or cannot tell.
    pub fn check(&self, device: &Path) -> std::io::Result<Option<String>> {
        // What stands in a line that tells of damage, and the exit statuses that do.
        let (words, tells, damage): (&[&str], &[&str], &[i32]) = match self.kind {
            Kind::Ext4 => (
                &["e2fsck", "-f", "-n"],
                &["Fix?", "Clear?", "no", "ERRORS"],
                &[4],
            ),
            Kind::Xfs => (
                &["xfs_repair", "-n"],
                &["bad ", "would ", "error", "wrong"],
                &[1, 2],
            ),
            Kind::Btrfs => (
                &["btrfs", "check", "--readonly"],
                &["ERROR", "error", "mism"],
                &[1],
            ),
        };
        let output = tool(words[0]).args(&words[1..]).arg(device).output()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let mut lines = said.lines().map(str::trim).filter(|l| !l.is_empty());
        let mut telling = lines.clone();
        let first = telling.find(|l| tells.iter().any(|word| l.contains(word)));
        let first = first.or(lines.next_back()).unwrap_or("it says nothing");
        match output.status.code() {
            Some(0) => Ok(None),
            Some(code) if damage.contains(&code) => Ok(Some(format!("{}: {first}", words[0]))),
            _ => Err(std::io::Error::other(format!(
                "{}: {}: {first}",
                words[0], output.status
            ))),
        }
    }
}

/// A program of the administrator's, who may have become that without its PATH.
fn tool(name: &str) -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    let mut command = Command::new(name);
    command.env("PATH", path);
    command
}

/// Options of mount(8) that are flags of mount(2), and the others, which are the file system's own.
fn flags_of(options: &str) -> (MountFlags, Vec<&str>) {
    let mut flags = MountFlags::empty();
    let mut others = Vec::new();
    for option in options.split(',').filter(|o| !o.is_empty()) {
        match option {
            "defaults" | "rw" | "async" | "suid" | "dev" | "exec" | "loop" => {}
            "noatime" => flags |= MountFlags::NOATIME,
            "nodiratime" => flags |= MountFlags::NODIRATIME,
            "relatime" => flags |= MountFlags::RELATIME,
            "strictatime" => flags |= MountFlags::STRICTATIME,
            "lazytime" => flags |= MountFlags::LAZYTIME,
            "sync" => flags |= MountFlags::SYNCHRONOUS,
            "dirsync" => flags |= MountFlags::DIRSYNC,
            "nosuid" => flags |= MountFlags::NOSUID,
            "nodev" => flags |= MountFlags::NODEV,
            "noexec" => flags |= MountFlags::NOEXEC,
            other => others.push(other),
        }
    }
    (flags, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_told_from_the_file_system_s_own_options() {
        let (flags, others) = flags_of("defaults,noatime,discard,,commit=5,sync");
        assert_eq!(flags, MountFlags::NOATIME | MountFlags::SYNCHRONOUS);
        assert_eq!(others, ["discard", "commit=5"]);
    }
}
