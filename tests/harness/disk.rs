//! File systems on loop devices: ordinary ones, and slow ones whose flush takes as long as wanted;
//! and a folder where other calls do.
//!
//! All need root. All are unmounted, detached and removed with their guard, also when the test
//! has failed. They are mounted in a mount namespace of the test's own thread, and of what it
//! starts from then on: no other test's session sees them, and would hold a descriptor on them.

use super::apart::{Apart, Kind};
use super::command::{clean, run, Outcome};
use super::dir::Dir;
use super::victims::tool;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A mounted file system in an image file.
pub struct Disk {
    mount: PathBuf,
    kind: &'static str,
    _dir: Dir,
}

impl Disk {
    /// # Panics
    /// If it cannot be made or mounted.
    pub fn new(kind: &'static str, size_mib: u64) -> Disk {
        keep_mounts_private();
        let dir = Dir::new(kind);
        let (image, mount) = (dir.join("image"), dir.make("mount"));
        let file = std::fs::File::create(&image).expect("the image");
        file.set_len(size_mib << 20).expect("the image's size");
        run(clean(format!("mkfs.{kind}")).arg("-q").arg(&image)).must_succeed();
        // The loop device that mount sets up is detached by the kernel after the last unmount.
        let mut command = clean("mount");
        command
            .args(["-t", kind, "-o", "loop"])
            .arg(&image)
            .arg(&mount);
        run(&mut command).must_succeed();
        Disk {
            mount,
            kind,
            _dir: dir,
        }
    }

    /// One in memory, where syncs cost nothing.
    ///
    /// # Panics
    /// If it cannot be mounted.
    pub fn in_memory() -> Disk {
        keep_mounts_private();
        let dir = Dir::new("tmpfs");
        let mount = dir.make("mount");
        let mut command = clean("mount");
        command.args(["-t", "tmpfs", "tmpfs"]).arg(&mount);
        run(&mut command).must_succeed();
        Disk {
            mount,
            kind: "tmpfs",
            _dir: dir,
        }
    }

    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// What a power cut would leave of it now, but for what its disk keeps in a cache: its image
    /// as the loop device has written it, mounted elsewhere.
    ///
    /// # Panics
    /// If it cannot be copied or mounted.
    pub fn cut(&self) -> Disk {
        let (dir, kind) = (Dir::new("cut"), self.kind);
        let (image, mount) = (dir.join("image"), dir.make("mount"));
        let mut copy = clean("cp");
        copy.arg("--sparse=always").arg(self.image()).arg(&image);
        run(&mut copy).must_succeed();
        mount_copy(kind, &image, &mount);
        Disk {
            mount,
            kind,
            _dir: dir,
        }
    }

    /// The file that its loop device reads and writes.
    pub fn image(&self) -> PathBuf {
        self._dir.join("image")
    }

    /// Its loop device, where it is mounted.
    pub fn device(&self) -> String {
        device_at(&self.mount)
    }

    pub fn is_mounted(&self) -> bool {
        is_mounted(&self.mount)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted() {
            warn(&unmount(&self.mount));
        }
    }
}

/// Mounts a copy of an image whose file system may be mounted: it has the UUID of that.
///
/// # Panics
/// If it cannot be mounted.
pub fn mount_copy(kind: &str, image: &Path, at: &Path) {
    let options = match kind {
        "xfs" => "loop,nouuid",
        _ => "loop",
    };
    let mount = || {
        let mut command = clean("mount");
        command.args(["-t", kind, "-o", options]);
        run(command.arg(image).arg(at))
    };
    let first = mount();
    if kind == "btrfs" && !first.status.success() {
        // Before Linux 6.7 it is taken for the same. What gives it another UUID writes to it, so
        // that the kernel does not find the log any more that fsync has written.
        run(clean("btrfstune").args(["-f", "-m"]).arg(image)).must_succeed();
        mount().must_succeed();
    } else {
        first.must_succeed();
    }
}

/// A mount namespace for this thread, in which of all disks only those are mounted that a test
/// needs: what else the machine has does not matter then.
pub fn keep_mounts_private() {
    thread_local! {
        static ARE_PRIVATE: Cell<bool> = const { Cell::new(false) };
    }
    if ARE_PRIVATE.replace(true) {
        return;
    }
    // The warning is about threads that share descriptors: only the mounts are taken apart here.
    #[allow(deprecated)]
    let unshared = rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS);
    unshared.expect("a mount namespace");
    run(clean("mount").args(["--make-rprivate", "/"])).must_succeed();
    let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
    let is_other = |line: &&str| {
        let at = line.split(' ').nth(4).unwrap_or_default();
        let kind = line.split(" - ").nth(1).unwrap_or_default();
        !is_virtual(kind.split(' ').next().unwrap_or_default()) && !is_needed(Path::new(at))
    };
    for other in mounts
        .lines()
        .filter(is_other)
        .filter_map(|l| l.split(' ').nth(4))
    {
        // One whose name has spaces, say, stays.
        let _ = rustix::mount::unmount(other, rustix::mount::UnmountFlags::DETACH);
    }
}

/// The same where that can be had.
pub fn keep_mounts_private_if_possible() {
    if super::limits::is_root() && has_namespaces() {
        keep_mounts_private();
    }
}

/// Whether this process may have mount namespaces: not in most containers.
fn has_namespaces() -> bool {
    static THEY_ARE: OnceLock<bool> = OnceLock::new();
    *THEY_ARE.get_or_init(|| run(clean("unshare").args(["-m", "true"])).status.success())
}

/// File systems that are on no disk.
fn is_virtual(kind: &str) -> bool {
    const VIRTUAL: [&str; 16] = [
        "autofs",
        "binfmt_misc",
        "bpf",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "proc",
        "pstore",
        "securityfs",
        "sysfs",
        "tmpfs",
        "tracefs",
    ];
    VIRTUAL.contains(&kind) || kind.starts_with("cgroup")
}

/// What programs and tests lie on, and what a test has mounted that began this thread.
fn is_needed(mount: &Path) -> bool {
    let program = std::env::current_exe().unwrap_or_default();
    let temporary = std::env::temp_dir();
    let own = [
        program.as_path(),
        &temporary,
        Path::new(env!("CARGO_MANIFEST_DIR")),
    ];
    let usual = [
        "/bin", "/etc", "/home", "/lib", "/lib64", "/opt", "/root", "/run", "/sbin",
    ];
    let more = ["/usr", "/usr/local", "/var", "/var/lib", "/var/tmp"].map(Path::new);
    let mut all = own.into_iter().chain(usual.map(Path::new)).chain(more);
    let is_of_test =
        |part: std::path::Component<'_>| part.as_os_str().to_string_lossy().starts_with("sl-");
    all.any(|needed| needed.starts_with(mount))
        || mount.starts_with("/etc")
        || mount.components().any(is_of_test)
}

fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
    let at = |line: &str| line.split(' ').nth(4) == path.to_str();
    mounts.lines().any(at)
}

fn device_at(mount: &Path) -> String {
    let mut command = clean("findmnt");
    command.args(["-n", "-o", "SOURCE"]).arg(mount);
    run(&mut command).must_succeed().stdout.trim().to_owned()
}

/// Flushes that a device has made.
///
/// # Panics
/// If the kernel does not say.
pub fn flushes(device: &str) -> u64 {
    let name = device.replace("/dev/", "");
    let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).expect("stat");
    let count = stat.split_whitespace().nth(15).expect("16 numbers");
    count.parse().expect("a number")
}

/// Lazily where something holds it: the device goes when that lets go.
fn unmount(path: &Path) -> Outcome {
    let outcome = run(clean("umount").arg(path));
    if outcome.status.success() {
        return outcome;
    }
    run(clean("umount").arg("-l").arg(path))
}

fn warn(outcome: &Outcome) {
    if !outcome.status.success() {
        eprintln!("{outcome}");
    }
}

/// A mounted file system of 64 MiB on a disk that takes 24 only.
pub struct SmallDisk {
    pub mount: PathBuf,
    memory: PathBuf,
    _dir: Dir,
    _apart: Apart,
}

impl SmallDisk {
    pub fn new() -> SmallDisk {
        let apart = Apart::from_others(Kind::Refusing);
        keep_mounts_private();
        let dir = Dir::new("small");
        let (memory, mount) = (dir.make("memory"), dir.make("mount"));
        let mut tmpfs = clean("mount");
        tmpfs.args(["-t", "tmpfs", "-o", "size=24m", "none"]);
        run(tmpfs.arg(&memory)).must_succeed();
        let image = memory.join("image");
        let file = std::fs::File::create(&image).expect("the image");
        file.set_len(64 << 20).expect("its size");
        run(clean("mkfs.ext4")
            .args(["-q", "-O", "^has_journal"])
            .arg(&image))
        .must_succeed();
        let mut loop_mount = clean("mount");
        loop_mount.args(["-o", "loop"]).arg(&image).arg(&mount);
        run(&mut loop_mount).must_succeed();
        run(clean("chmod").arg("777").arg(&mount)).must_succeed();
        run(clean("chmod")
            .arg("755")
            .arg(memory.parent().expect("above")))
        .must_succeed();
        SmallDisk {
            mount,
            memory,
            _dir: dir,
            _apart: apart,
        }
    }

    /// It takes nothing more: only what has been written before can be overwritten.
    pub fn is_full(&self) {
        let fill = std::fs::write(self.memory.join("filler"), vec![0; 32 << 20]);
        assert!(fill.is_err(), "its memory has room");
    }

    /// It takes more from now on.
    pub fn has_room_again(&self) {
        let mut more = clean("mount");
        more.args(["-t", "tmpfs", "-o", "remount,size=100m", "none"]);
        run(more.arg(&self.memory)).must_succeed();
    }

    /// The device that is mounted.
    pub fn device(&self) -> String {
        device_at(&self.mount)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        for mount in [&self.mount, &self.memory] {
            run(clean("umount").arg("-l").arg(mount));
        }
    }
}

/// What makes a disk erratic: some of its flushes take longer.
#[derive(Clone, Copy, Debug)]
pub struct Erratic {
    /// How much longer.
    pub bad_ms: u32,
    /// The share of flushes that do, from 0 to 1.
    pub bad_share: f64,
    /// Chooses which.
    pub seed: u64,
}

/// A mounted file system whose disk takes its time for each flush.
pub struct SlowDisk {
    dir: Dir,
    _apart: Apart,
}

impl SlowDisk {
    /// # Panics
    /// If it cannot be made or mounted.
    pub fn new(kind: &str, size_mib: u64, flush_ms: u32) -> SlowDisk {
        let even = Erratic {
            bad_ms: 0,
            bad_share: 0.0,
            seed: 1,
        };
        SlowDisk::erratic(kind, size_mib, flush_ms, even)
    }

    /// # Panics
    /// If it cannot be made or mounted.
    pub fn erratic(kind: &str, size_mib: u64, flush_ms: u32, bad: Erratic) -> SlowDisk {
        keep_mounts_private();
        let disk = SlowDisk {
            _apart: Apart::from_others(Kind::Served),
            dir: Dir::new("slow"),
        };
        let mut command = disk.script("up");
        command
            .arg(format!("{size_mib}M"))
            .arg(kind)
            .arg(flush_ms.to_string())
            .arg(bad.bad_ms.to_string())
            .arg(bad.bad_share.to_string())
            .env("SEED", bad.seed.to_string());
        run(&mut command).must_succeed();
        disk
    }

    /// An ext4 on a disk that takes so many milliseconds for each flush, once it
    /// [`becomes_slow`](SlowDisk::becomes_slow).
    pub fn quick_at_first(flush_ms: u32) -> SlowDisk {
        let disk = SlowDisk::new("ext4", 64, flush_ms);
        std::fs::write(disk.quick(), "").expect("as long as this is there");
        disk
    }

    /// The disk is quick as long as this file is there.
    pub fn quick(&self) -> PathBuf {
        self.dir.join("disk/img.quick")
    }

    pub fn becomes_slow(&self) {
        std::fs::remove_file(self.quick()).expect("it was quick");
    }

    pub fn path(&self) -> PathBuf {
        self.dir.join("disk/mnt")
    }

    /// The loop device.
    pub fn device(&self) -> String {
        let file = std::fs::read_to_string(self.dir.join("disk/loop"));
        file.expect("the loop device's name").trim().to_owned()
    }

    fn script(&self, verb: &str) -> std::process::Command {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools");
        let mut command = clean(tools.join("slowdisk.sh"));
        command.arg(verb).arg(self.dir.join("disk"));
        command
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // What settles there may outlive what began it, for as long as a flush takes: unmounted
        // before that the loop device would stay a while.
        let _ = std::fs::write(self.quick(), "");
        let path = self.path();
        let is_free = || !is_mounted(&path) || run(clean("umount").arg(&path)).status.success();
        crate::wait::until(super::command::LIMIT, is_free);
        warn(&run(&mut self.script("down")));
    }
}

/// A folder of which each open, read, write, rename and close takes its time; nothing is cached.
pub struct SlowFolder {
    dir: Dir,
}

impl SlowFolder {
    /// # Panics
    /// If it cannot be mounted.
    pub fn new(ms: u32) -> SlowFolder {
        keep_mounts_private();
        let folder = SlowFolder {
            dir: Dir::new("slow-folder"),
        };
        let mut command = clean(tool("slowfiles"));
        command.env("SLOW_MS", ms.to_string());
        command.env("BACKING", folder.dir.make("backing"));
        command.arg(folder.dir.make("mount"));
        run(&mut command).must_succeed();
        assert!(is_mounted(&folder.path()));
        folder
    }

    pub fn path(&self) -> PathBuf {
        self.dir.join("mount")
    }
}

impl Drop for SlowFolder {
    fn drop(&mut self) {
        // Its server ends with it.
        warn(&unmount(&self.path()));
    }
}

/// A file system of 64 KiB over a folder; gone with its guard.
pub struct SmallFolder(PathBuf);

impl SmallFolder {
    /// # Panics
    /// If it cannot be mounted.
    pub fn over(folder: &Path) -> SmallFolder {
        keep_mounts_private();
        let mut mount = clean("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k,mode=700", "none"]);
        run(mount.arg(folder)).must_succeed();
        SmallFolder(folder.to_owned())
    }

    /// Takes all the room that is left.
    pub fn fill(&self) {
        // As much as fits: the error behind that is wanted.
        let _ = std::fs::write(self.fill_file(), [0; 65536]);
    }

    pub fn has_room_again(&self) {
        std::fs::remove_file(self.fill_file()).expect("it was full");
    }

    fn fill_file(&self) -> PathBuf {
        self.0.join("fill")
    }
}

impl Drop for SmallFolder {
    fn drop(&mut self) {
        warn(&unmount(&self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::limits::needs_root;
    use std::time::{Duration, Instant};

    #[test]
    fn a_disk_is_unmounted_when_its_guard_goes() {
        if !needs_root("a_disk_is_unmounted_when_its_guard_goes") {
            return;
        }
        for (kind, size_mib) in [("ext4", 16), ("xfs", 300), ("btrfs", 128)] {
            let disk = Disk::new(kind, size_mib);
            let path = disk.path().to_owned();
            std::fs::write(path.join("file"), "bytes").expect("it can be written to");
            assert!(is_mounted(&path));
            drop(disk);
            assert!(!path.exists(), "{kind}");
        }
    }

    #[test]
    fn a_test_sees_no_disk_but_its_own() {
        if !needs_root("a_test_sees_no_disk_but_its_own") {
            return;
        }
        let outer = Dir::new("outer");
        let others = PathBuf::from(format!("{}-others", outer.path().display()).replace("sl-", ""));
        std::fs::create_dir(&others).expect("a folder");
        let disk = Disk::new("ext4", 16);
        run(clean("mount").arg("--bind").arg(disk.path()).arg(&others)).must_succeed();
        let told = std::thread::scope(|scope| {
            let look = || {
                keep_mounts_private();
                (is_mounted(&others), disk.is_mounted())
            };
            scope.spawn(look).join().expect("it looks")
        });
        assert_eq!(told, (false, true));
        assert!(is_mounted(&others));
        run(clean("umount").arg(&others)).must_succeed();
        std::fs::remove_dir(&others).expect("it is empty");
    }

    #[test]
    fn a_flush_of_a_slow_disk_takes_its_time() {
        if !needs_root("a_flush_of_a_slow_disk_takes_its_time") {
            return;
        }
        let disk = SlowDisk::new("ext4", 64, 23);
        let file = std::fs::File::create(disk.path().join("file")).expect("file");
        file.set_len(4096).expect("size");
        let begin = Instant::now();
        file.sync_all().expect("sync");
        assert!(begin.elapsed() >= Duration::from_millis(23));
    }
}
