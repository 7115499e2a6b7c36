//! Descriptors of files that are mounted nowhere in the session's sight.

use super::ledger::kill;
use super::mounts::overlay_on;
use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::Disk;
use crate::harness::limits::needs_net;
use crate::sessions::stage::as_root;
use crate::wait::until;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{channel, Receiver, Sender};

/// A disk that is mounted in a mount namespace of its own, and a process that lives there.
struct Elsewhere {
    /// A file there, open to be written.
    file: File,
    point: PathBuf,
    pid: u32,
    wants: Sender<()>,
    cut: Receiver<Disk>,
}

impl Elsewhere {
    fn new(kind: &'static str) -> Elsewhere {
        let (told, tells) = channel();
        let (wants, wanted) = channel();
        let (gives, cut) = channel();
        std::thread::spawn(move || {
            let disk = Disk::new(kind, 320);
            let path = disk.path().join("kept");
            let mut options = File::options();
            let file = options.create_new(true).read(true).append(true).open(path);
            let mut sleeper = clean("sleep").arg("60").spawn().expect("a process");
            let point = disk.path().to_path_buf();
            let _ = told.send((file.expect("a file"), point, sleeper.id()));
            // Until it is wanted, or the test has failed.
            if wanted.recv().is_ok() {
                let _ = gives.send(disk.cut());
                let _ = wanted.recv();
            }
            let _ = sleeper.kill();
            let _ = sleeper.wait();
        });
        let (file, point, pid) = tells.recv().expect("a disk");
        Elsewhere {
            file,
            point,
            pid,
            wants,
            cut,
        }
    }

    /// `check` is shown what a power cut would leave now.
    fn after_a_cut(self, name: &str) {
        self.wants.send(()).expect("it waits");
        let disk = self.cut.recv().expect("a copy");
        // Mounted in the other thread's namespace: seen through the process that lives there.
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let path = disk.path().strip_prefix("/").expect("an absolute path");
        are_whole(&root.join(path), &[name]);
        drop(self.wants);
    }
}

#[test]
fn a_descriptor_that_is_inherited_from_another_namespace_loses_nothing() {
    if !as_root("a_descriptor_that_is_inherited_from_another_namespace_loses_nothing") {
        return;
    }
    for kind in ["ext4", "xfs"] {
        let elsewhere = Elsewhere::new(kind);
        let stage = Stage::new("inherited");
        let mut command = clean("sh");
        let path = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            elsewhere.file.as_raw_fd()
        );
        // As number 7, to be written at its end.
        command.args(["-c", "f=$1; shift; exec \"$@\" 7>>\"$f\"", "sh", &path]);
        let inner = session(&stage, &[]);
        command
            .arg(inner.get_program())
            .args(inner.get_args())
            .arg(tool("scribe"));
        let folders = inner.get_envs().filter_map(|(k, v)| Some((k, v?)));
        command.envs(folders);
        let mut scribe = Running::start(&stage, command);
        scribe.be_ready();
        warm(&stage, &mut scribe, &stage.work());
        assert_eq!(does(&mut scribe, "keep 7"), 0);
        ends_well(&stage, &mut scribe);
        elsewhere.after_a_cut("kept");
    }
}

#[test]
fn a_descriptor_that_is_received_loses_nothing() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    if !as_root("a_descriptor_that_is_received_loses_nothing") {
        return;
    }
    let elsewhere = Elsewhere::new("ext4");
    let stage = Stage::new("received");
    let path = stage.file("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let mut scribe = scribe(&stage, &[]);
    scribe.tell(&format!("take 1 {}", path.display()));
    let (stream, _) = listener.accept().expect("it connects");
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [elsewhere.file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let byte = [std::io::IoSlice::new(b"f")];
    rustix::net::sendmsg(&stream, &byte, &mut control, SendFlags::empty()).expect("it is sent");
    assert_eq!(scribe.hear(), "take 0");
    assert_eq!(does(&mut scribe, "keep 1"), 0);
    ends_well(&stage, &mut scribe);
    elsewhere.after_a_cut("kept");
}

#[test]
fn a_path_through_another_process_loses_nothing() {
    if !as_root("a_path_through_another_process_loses_nothing") {
        return;
    }
    let elsewhere = Elsewhere::new("ext4");
    let stage = Stage::new("through");
    let mut scribe = scribe(&stage, &[]);
    let point = elsewhere.point.strip_prefix("/").expect("an absolute path");
    let dir = PathBuf::from(format!("/proc/{}/root", elsewhere.pid)).join(point);
    save(&mut scribe, &dir, &["through"]);
    ends_well(&stage, &mut scribe);
    elsewhere.after_a_cut("through");
}

#[test]
fn a_file_on_what_was_unmounted_lazily_loses_nothing() {
    if !as_root("a_file_on_what_was_unmounted_lazily_loses_nothing") {
        return;
    }
    for is_known_before in [false, true] {
        let disk = Disk::new("ext4", 64);
        let stage = Stage::new("lazily");
        let mut scribe = scribe(&stage, &[]);
        let file = disk.path().join("kept");
        assert_eq!(does(&mut scribe, &format!("open 1 {}", file.display())), 0);
        if is_known_before {
            warm(&stage, &mut scribe, disk.path());
        }
        run(clean("umount").arg("-l").arg(disk.path())).must_succeed();
        assert_eq!(does(&mut scribe, "keep 1"), 0);
        ends_well(&stage, &mut scribe);
        are_whole(disk.cut().path(), &["kept"]);
    }
}

/// Makes a node of the device that `at` lies on.
fn node_of(device: &str, at: &Path) {
    run(clean("cp").args(["-a", device]).arg(at)).must_succeed();
}

#[test]
fn a_block_device_that_is_mapped_stays_real_wherever_its_node_lies() {
    if !as_root("a_block_device_that_is_mapped_stays_real_wherever_its_node_lies") {
        return;
    }
    for kind in ["ext4", "xfs", "btrfs"] {
        let (disk, other) = (Disk::new(kind, 320), Disk::new("ext2", 16));
        let (device, image) = (other.device(), other.image());
        // Held, so that the last one that closes it does not write it.
        let _held = File::open(&device).expect("the device");
        umount(other.path());
        let node = disk.path().join("node");
        node_of(&device, &node);
        let stage = Stage::new("mapped");
        let mut scribe = scribe(&stage, &[]);
        warm(&stage, &mut scribe, disk.path());
        let msync = |scribe: &mut Running, at: &Path| {
            let (line, before) = (format!("msync {}", at.display()), stage.counted().1);
            assert_eq!(does(scribe, &line), 0, "{line}");
            stage.counted().1 > before
        };
        assert!(
            msync(&mut scribe, &disk.path().join("warm")),
            "{kind}: real"
        );
        assert!(!msync(&mut scribe, &node), "{kind}: put off");
        let mut first = [0; 4096];
        let read = std::os::unix::fs::FileExt::read_exact_at;
        read(&File::open(image).expect("the image"), &mut first, 0).expect("a block");
        assert!(
            first.iter().all(|b| *b == b'k'),
            "{kind}: it is not written"
        );
        ends_well(&stage, &mut scribe);
    }
}

#[test]
fn what_stdio_writes_to_a_file_that_lost_its_o_sync_is_settled_or_synced() {
    if !as_root("what_stdio_writes_to_a_file_that_lost_its_o_sync_is_settled_or_synced") {
        return;
    }
    for kind in ["ext4", "btrfs", "ext2"] {
        let (disk, stage) = (Disk::new(kind, 320), Stage::new("stdio"));
        run(clean("sync").arg("-f").arg(disk.path())).must_succeed();
        let mut scribe = scribe(&stage, &[]);
        let line = format!("line {}", disk.path().join("log").display());
        assert_eq!(does(&mut scribe, &line), 0, "{line}");
        ends_well(&stage, &mut scribe);
        are_whole(disk.cut().path(), &["log"]);
    }
}

#[test]
fn what_stays_real_keeps_its_o_sync_where_nothing_more_can_be_opened() {
    if !as_root("what_stays_real_keeps_its_o_sync_where_nothing_more_can_be_opened") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("tight"));
    run(clean("sync").arg("-f").arg(disk.path())).must_succeed();
    let elsewhere = format!("path={}/**", stage.work().display());
    let mut scribe = scribe(&stage, &["--only", &elsewhere]);
    let stream = format!("stream {}", disk.path().join("log").display());
    for line in ["tight", &stream, "flush"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    let log = std::fs::metadata(disk.cut().path().join("log"));
    assert_eq!(log.map_or(0, |m| m.len()), 4096);
    ends_well(&stage, &mut scribe);
}

#[test]
fn what_was_executed_and_then_filtered_syncs_what_it_has_inherited() {
    if !as_root("what_was_executed_and_then_filtered_syncs_what_it_has_inherited") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("filtered"));
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let wants = format!("wants {}", disk.path().join("log").display());
    assert_eq!(does(&mut scribe, &wants), 0);
    scribe.tell("again");
    assert_eq!(scribe.hear(), "ready");
    assert_eq!(does(&mut scribe, "filter"), 0);
    stage.ask(&["set", &stage.id(), "-u", "now"]).must_succeed();
    assert_eq!(does(&mut scribe, "append 7"), 0);
    let log = std::fs::metadata(disk.cut().path().join("log"));
    assert_eq!(log.map_or(0, |m| m.len()), 4096);
    ends_well(&stage, &mut scribe);
}

/// A process that sits in a folder, and keeps its file system.
struct Sitter(std::process::Child);

impl Drop for Sitter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_stdio_writes_behind_a_lazy_umount_is_settled_at_the_end() {
    if !as_root("what_stdio_writes_behind_a_lazy_umount_is_settled_at_the_end") {
        return;
    }
    for kind in ["ext4", "btrfs"] {
        let (disk, stage) = (Disk::new(kind, 320), Stage::new("stdio-lazily"));
        let mut scribe = scribe(&stage, &[]);
        warm(&stage, &mut scribe, disk.path());
        let open = format!("stream {}", disk.path().join("log").display());
        for line in [&open, "flush"] {
            assert_eq!(does(&mut scribe, line), 0, "{line}");
        }
        let sitter = clean("sleep").arg("60").current_dir(disk.path()).spawn();
        let _sitter = Sitter(sitter.expect("a process"));
        run(clean("umount").arg("-l").arg(disk.path())).must_succeed();
        // Two answers: the supervisor has looked at its mounts by then.
        stage.counted();
        stage.counted();
        assert_eq!(does(&mut scribe, "flush"), 0);
        ends_well(&stage, &mut scribe);
        let log = std::fs::metadata(disk.cut().path().join("log"));
        assert_eq!(log.map_or(0, |m| m.len()), 2 * 4096, "{kind}");
    }
}

/// The kernel syncs what is mapped, and says ENOMEM then (mm/msync.c, Linux 6.18).
#[test]
fn what_msync_synced_beside_a_gap_is_durable() {
    if !as_root("what_msync_synced_beside_a_gap_is_durable") {
        return;
    }
    for kind in ["ext4", "xfs"] {
        let (disk, stage) = (Disk::new(kind, 320), Stage::new("gap"));
        let mut scribe = scribe(&stage, &[]);
        warm(&stage, &mut scribe, disk.path());
        let gap = format!("gap {}", disk.path().join("a").display());
        assert_eq!(does(&mut scribe, &gap), 0);
        are_whole(disk.cut().path(), &["a"]);
        ends_well(&stage, &mut scribe);
    }
}

#[test]
fn what_stdio_writes_behind_an_umount_that_leaves_it_mounted_is_settled_at_the_end() {
    let name = "what_stdio_writes_behind_an_umount_that_leaves_it_mounted_is_settled_at_the_end";
    if !as_root(name) {
        return;
    }
    let busy = rustix::io::Errno::BUSY.raw_os_error();
    // Of the mount that it lies on, and of another one.
    for (is_own, point, told) in [(false, "", busy), (true, "", busy), (true, "other", 0)] {
        let (disk, stage) = (Disk::new("btrfs", 320), Stage::new("stdio-busy"));
        let (mut scribe, _namespace) = if is_own {
            let bind = "mkdir \"$1/other\" && mount --bind \"$1\" \"$1/other\"";
            let (scribe, namespace) = scribe_apart(&stage, &disk, bind);
            (scribe, Some(namespace))
        } else {
            (scribe(&stage, &[]), None)
        };
        warm(&stage, &mut scribe, disk.path());
        let open = format!("stream {}", disk.path().join("log").display());
        for line in [&open, "flush"] {
            assert_eq!(does(&mut scribe, line), 0, "{line}");
        }
        let line = format!("umount {}", disk.path().join(point).display());
        assert_eq!(does(&mut scribe, &line), told);
        assert_eq!(does(&mut scribe, "flush"), 0);
        ends_well(&stage, &mut scribe);
        let log = std::fs::metadata(disk.cut().path().join("log"));
        assert_eq!(
            log.map_or(0, |m| m.len()),
            2 * 4096,
            "own: {is_own} {point}"
        );
    }
}

#[test]
fn what_stdio_writes_behind_an_umount_is_settled_where_nothing_more_can_be_made_there() {
    let name = "what_stdio_writes_behind_an_umount_is_settled_where_nothing_more_can_be_made_there";
    if !as_root(name) {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 16), Stage::new("stdio-full"));
    let (options, at) = (overlay_on(disk.path()), stage.work().join("overlay"));
    std::fs::create_dir(&at).expect("a mount point");
    mount(&["-t", "overlay", "-o", &options], "overlay", &at);
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, &at);
    let open = format!("stream {}", at.join("log").display());
    for line in [&open, "flush"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    // No inode is left for a file of ours, nor will be: who gives one back does not get it again.
    let is_over = AtomicBool::new(false);
    let is_full = AtomicBool::new(false);
    let eat = || {
        for n in (0..).take_while(|_| !is_over.load(SeqCst)) {
            let made = File::create(disk.path().join(format!("{n}")));
            is_full.fetch_or(made.is_err(), SeqCst);
        }
    };
    let busy = rustix::io::Errno::BUSY.raw_os_error();
    let line = format!("umount {}", at.display());
    std::thread::scope(|scope| {
        scope.spawn(eat);
        let is_full = until(LIMIT, || is_full.load(SeqCst));
        let told = does(&mut scribe, &line);
        is_over.store(true, SeqCst);
        assert!(is_full, "no end of inodes");
        assert_eq!(told, busy);
    });
    assert_eq!(does(&mut scribe, "flush"), 0);
    ends_well(&stage, &mut scribe);
    let log = std::fs::metadata(disk.cut().path().join("upper/log"));
    umount(&at);
    assert_eq!(log.map_or(0, |m| m.len()), 2 * 4096);
}

#[test]
fn what_stdio_writes_behind_an_umount_that_only_the_net_sees_is_settled_at_the_end() {
    let name = "what_stdio_writes_behind_an_umount_that_only_the_net_sees_is_settled_at_the_end";
    if !needs_net(name) || !as_root(name) {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("stdio-net"));
    let other = stage.work().join("other");
    std::fs::create_dir(&other).expect("a mount point");
    mount(&["--bind"], &disk.path().display().to_string(), &other);
    let mut scribe = scribe(&stage, &["--net"]);
    warm(&stage, &mut scribe, disk.path());
    let open = format!("stream {}", disk.path().join("log").display());
    for line in [&open, "flush"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    let line = format!("tell env -i umount {}", other.display());
    assert_eq!(does(&mut scribe, &line), 0);
    assert_eq!(does(&mut scribe, "flush"), 0);
    ends_well(&stage, &mut scribe);
    let log = std::fs::metadata(disk.cut().path().join("log"));
    assert_eq!(log.map_or(0, |m| m.len()), 2 * 4096);
}

#[test]
fn a_lock_outlives_opens_of_its_file_with_o_sync_while_somebody_unmounts() {
    if !as_root("a_lock_outlives_opens_of_its_file_with_o_sync_while_somebody_unmounts") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("locks"));
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let open = format!("open 1 {}", disk.path().join("locked").display());
    assert_eq!(does(&mut scribe, &open), 0);
    let line = format!("lock 1 {}", disk.path().display());
    assert_eq!(does(&mut scribe, &line), 0);
    ends_well(&stage, &mut scribe);
}

#[test]
fn what_sync_owed_of_a_dead_session_is_settled_wherever_it_is_mounted() {
    if !as_root("what_sync_owed_of_a_dead_session_is_settled_wherever_it_is_mounted") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("sync-owed"));
    umount(disk.path());
    let mut command = session(&stage, &[]);
    command.args(["unshare", "-m", "--propagation", "private", "sh", "-c"]);
    command.arg("mount -o loop \"$0\" \"$1\" && exec \"$2\"");
    command.arg(disk.image()).arg(disk.path());
    let mut scribe = Running::start(&stage, {
        command.arg(tool("scribe"));
        command
    });
    scribe.be_ready();
    let namespace = format!("/proc/{}/ns/mnt", super::mounts::pid_of_scribe(&stage));
    let _namespace = File::open(namespace).expect("a namespace");
    let put_off = |scribe: &mut Running| {
        let before = stage.counted().1;
        assert_eq!(does(scribe, "sync"), 0);
        stage.counted().1 > before
    };
    if !until(LIMIT, || put_off(&mut scribe)) {
        // Something else in sight keeps every sync() real.
        return;
    }
    let open = format!("open 1 {}", disk.path().join("a").display());
    for line in [&open, "grow 1 1"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    assert!(put_off(&mut scribe), "sync() was made");
    kill(&stage, &scribe);
    stage.ask(&["settle"]).must_succeed();
    let file = std::fs::metadata(disk.cut().path().join("a"));
    assert_eq!(file.map_or(0, |m| m.len()), 1 << 20);
}
