//! The file systems of the laboratory: how they are made and mounted.

use std::path::Path;
use std::process::Command;
use synclater_model::report::message::Trouble;

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
        [Kind::Ext4, Kind::Xfs, Kind::Btrfs]
            .into_iter()
            .find(|k| k.name() == name)
    }

    /// Bytes of a disk where nobody asks for more.
    #[must_use]
    pub fn usual_size(self) -> u64 {
        match self {
            Kind::Ext4 | Kind::Btrfs => 256 << 20,
            Kind::Xfs => 320 << 20,
        }
    }

    /// The command that makes it.
    fn mkfs(self, sector: u32, device: &Path, more: &[String]) -> Command {
        let mut command = Command::new(format!("mkfs.{}", self.name()));
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

    /// Mounts a device with it.
    ///
    /// # Errors
    /// Those of mount(2).
    pub fn mount(&self, device: &Path, at: &Path) -> std::io::Result<()> {
        let mut options = self.options.clone();
        if self.kind == Kind::Xfs {
            // Several states of one file system are mounted at a time.
            options.push_str(if options.is_empty() {
                "nouuid"
            } else {
                ",nouuid"
            });
        }
        let options = std::ffi::CString::new(options)?;
        let flags = rustix::mount::MountFlags::empty();
        let options = options.as_c_str();
        rustix::mount::mount(device, at, self.kind.name(), flags, options)?;
        Ok(())
    }

    /// What the file system's own check says of an unmounted device; `None` where all is well.
    ///
    /// # Errors
    /// Where it cannot be run.
    pub fn check(&self, device: &Path) -> std::io::Result<Option<String>> {
        let words: &[&str] = match self.kind {
            Kind::Ext4 => &["e2fsck", "-f", "-n"],
            Kind::Xfs => &["xfs_repair", "-n"],
            Kind::Btrfs => &["btrfs", "check", "--readonly"],
        };
        let output = Command::new(words[0])
            .args(&words[1..])
            .arg(device)
            .output()?;
        if output.status.success() {
            return Ok(None);
        }
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let tells = |l: &&str| !l.starts_with("Pass ") && !l.starts_with("Phase ") && !l.is_empty();
        let first = said
            .lines()
            .find(tells)
            .unwrap_or("it says nothing")
            .trim()
            .to_owned();
        Ok(Some(format!("{}: {first}", words[0])))
    }
}
