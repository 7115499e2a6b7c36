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

/// Where nobody has anything open there the umount has written all when it returns, as the kernel's
/// own: whoever copies the image next finds it whole.
#[test]
fn a_lazy_umount_has_settled_what_nobody_has_open_there() {
    if !as_root("a_lazy_umount_has_settled_what_nobody_has_open_there") {
        return;
    }
    for net in [&[][..], &["--net"]] {
        if !net.is_empty() && !needs_net("a_lazy_umount_has_settled_what_nobody_has_open_there") {
            continue;
        }
        let (disk, stage) = (Disk::new("ext4", 64), Stage::new("lazily-settled"));
        let mut scribe = scribe(&stage, net);
        let elsewhere = format!("stream {}", stage.work().join("log").display());
        for line in [&elsewhere, "flush"] {
            assert_eq!(does(&mut scribe, line), 0, "{line}");
        }
        warm(&stage, &mut scribe, disk.path());
        save(&mut scribe, disk.path(), &["a", "b", "c"]);
        let at = disk.path().display();
        let line = match net {
            [] => format!("lazily {at}"),
            _ => format!("tell env -i umount -l {at}"),
        };
        assert_eq!(does(&mut scribe, &line), 0, "{line}");
        are_whole(disk.cut().path(), &["a", "b", "c"]);
        assert!(is_free(&disk), "its device is still held");
        ends_well(&stage, &mut scribe);
    }
}

/// Opens a file with O_SYNC, and keeps it open as long as somebody holds the other end of a FIFO.
const KEEPS: &str = "\
import os, sys
f = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_SYNC, 0o600)
os.write(f, b'k' * 4096)
with open(sys.argv[2] + '.pid', 'w') as pid:
    pid.write(str(os.getpid()))
open(sys.argv[2]).read()
";

/// A member that does that.
struct Keeper {
    end: Option<File>,
    pid: PathBuf,
}

impl Keeper {
    fn start(stage: &Stage, scribe: &mut Running, file: &Path) -> Keeper {
        let work = stage.work();
        let (program, fifo) = (work.join("keeps.py"), work.join("fifo"));
        let pid = work.join("fifo.pid");
        std::fs::write(&program, KEEPS).expect("a program");
        run(clean("mkfifo").arg(&fifo)).must_succeed();
        let words = [&program, file, &fifo].map(|p| p.display().to_string());
        let line = format!("tell python3 {} &", words.join(" "));
        assert_eq!(does(scribe, &line), 0);
        // Opens once the other end does: it has opened its file by then.
        let end = File::options().write(true).open(&fifo).expect("the FIFO");
        Keeper {
            end: Some(end),
            pid,
        }
    }

    /// Returns when it has ended.
    fn end(&mut self) {
        self.end = None;
        let pid = std::fs::read_to_string(&self.pid).expect("its number");
        assert!(!pid.is_empty());
        // Nobody need have waited for it.
        let stat = format!("/proc/{}/stat", pid.trim());
        let has_ended =
            || std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z "));
        assert!(until(LIMIT, has_ended), "it goes on");
    }
}

fn is_free(disk: &Disk) -> bool {
    let left = run(clean("losetup").arg("-j").arg(disk.image())).must_succeed();
    left.stdout.is_empty()
}

#[test]
fn what_was_unmounted_lazily_is_let_go_of_once_nobody_writes_there() {
    if !as_root("what_was_unmounted_lazily_is_let_go_of_once_nobody_writes_there") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("left-lazily"));
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let mut keeper = Keeper::start(&stage, &mut scribe, &disk.path().join("log"));
    let line = format!("lazily {}", disk.path().display());
    assert_eq!(does(&mut scribe, &line), 0);
    assert!(!is_free(&disk), "a file is open there");
    keeper.end();
    assert!(until(LIMIT, || is_free(&disk)), "its device is still held");
    are_whole(disk.cut().path(), &["log"]);
    ends_well(&stage, &mut scribe);
}

/// What we hold on one mount of it is held anew on another once that one is gone: whoever unmounts
/// the other one would not find us in the way.
#[test]
fn what_was_unmounted_lazily_in_one_place_is_held_in_the_other() {
    if !as_root("what_was_unmounted_lazily_in_one_place_is_held_in_the_other") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("two-places"));
    let (device, other) = (disk.device(), stage.work().join("other"));
    std::fs::create_dir(&other).expect("a mount point");
    let mut scribe = scribe(&stage, &[]);
    let elsewhere = format!("stream {}", stage.work().join("log").display());
    for line in [&elsewhere, "flush"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    warm(&stage, &mut scribe, disk.path());
    mount(&["-t", "ext4"], &device, &other);
    run(clean("umount").arg("-l").arg(disk.path())).must_succeed();
    warm(&stage, &mut scribe, &other);
    save(&mut scribe, &other, &["a", "b", "c"]);
    let line = format!("umount {}", other.display());
    assert_eq!(does(&mut scribe, &line), 0);
    assert!(is_free(&disk), "its device is still held");
    are_whole(disk.cut().path(), &["a", "b", "c"]);
    ends_well(&stage, &mut scribe);
}

/// Also as long as it is held on in the first place, for somebody who writes there.
#[test]
fn who_unmounts_the_other_place_finds_it_settled() {
    if !as_root("who_unmounts_the_other_place_finds_it_settled") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("kept-in-one"));
    let (device, other) = (disk.device(), stage.work().join("other"));
    std::fs::create_dir(&other).expect("a mount point");
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    mount(&["-t", "ext4"], &device, &other);
    let mut keeper = Keeper::start(&stage, &mut scribe, &other.join("log"));
    run(clean("umount").arg("-l").arg(disk.path())).must_succeed();
    // Three answers: it has been looked at by then who writes there.
    for _ in 0..3 {
        stage.counted();
    }
    save(&mut scribe, &other, &["a", "b", "c"]);
    keeper.end();
    let line = format!("umount {}", other.display());
    assert_eq!(does(&mut scribe, &line), 0);
    assert!(is_free(&disk), "its device is still held");
    are_whole(disk.cut().path(), &["a", "b", "c", "log"]);
    ends_well(&stage, &mut scribe);
}

/// So it is where ours is covered when it is asked about: there nothing of it is held.
#[test]
fn what_is_covered_here_is_not_held_on_a_mount_of_elsewhere() {
    if !as_root("what_is_covered_here_is_not_held_on_a_mount_of_elsewhere") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("covered"));
    let mut scribe = scribe(&stage, &[]);
    let elsewhere = format!("stream {}", stage.work().join("log").display());
    for line in [&elsewhere, "flush"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    mount(&["-t", "tmpfs"], "none", disk.path());
    let script = "env -u LD_PRELOAD umount {0} && for i in $(seq 100); do sync {0}; done";
    let script = script.replace("{0}", &disk.path().display().to_string());
    let line = format!("tell unshare -m --propagation private sh -c '{script}'");
    assert_eq!(does(&mut scribe, &line), 0);
    umount(disk.path());
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a", "b", "c"]);
    let line = format!("umount {}", disk.path().display());
    assert_eq!(does(&mut scribe, &line), 0);
    assert!(is_free(&disk), "its device is still held");
    are_whole(disk.cut().path(), &["a", "b", "c"]);
    ends_well(&stage, &mut scribe);
}

/// A subvolume's number is found by the mount of whoever asks: another namespace's, which may end.
#[test]
fn a_subvolume_that_is_asked_about_elsewhere_is_held_on_our_own_mount() {
    if !as_root("a_subvolume_that_is_asked_about_elsewhere_is_held_on_our_own_mount") {
        return;
    }
    let (disk, stage) = (Disk::new("btrfs", 320), Stage::new("subvolume"));
    let sub = disk.path().join("sub");
    run(clean("btrfs").args(["subvolume", "create"]).arg(&sub)).must_succeed();
    let mut scribe = scribe(&stage, &[]);
    let elsewhere = format!("stream {}", stage.work().join("log").display());
    for line in [&elsewhere, "flush"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    let line = format!(
        "tell unshare -m sh -c 'for i in $(seq 100); do sync {0}; done'",
        sub.display()
    );
    assert_eq!(does(&mut scribe, &line), 0);
    warm(&stage, &mut scribe, &sub);
    save(&mut scribe, &sub, &["a", "b", "c"]);
    let line = format!("umount {}", disk.path().display());
    assert_eq!(does(&mut scribe, &line), 0);
    assert!(is_free(&disk), "its device is still held");
    are_whole(&disk.cut().path().join("sub"), &["a", "b", "c"]);
    ends_well(&stage, &mut scribe);
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
        let (mut scribe, _namespace) = match is_own {
            true => {
                let bind = "mkdir \"$1/other\" && mount --bind \"$1\" \"$1/other\"";
                let (scribe, namespace) = scribe_apart(&stage, &disk, bind);
                (scribe, Some(namespace))
            }
            false => (scribe(&stage, &[]), None),
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
