//! What the session holds, and on which mount: whoever unmounts a file system finds it settled and
//! free, whatever was unmounted, covered or asked about before, and by whom.

use super::flushes::is_held;
use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::SlowDisk;
use crate::harness::limits::needs_net;
use crate::sessions::stage::as_root;
use crate::wait::until;
use std::fs::File;
use std::path::PathBuf;

/// Has a file outside of the disk lose its `O_SYNC`: from then on it counts who writes where.
fn takes_a_flag_off_elsewhere(stage: &Stage, scribe: &mut Running) {
    let elsewhere = format!("stream {}", stage.work().join("log").display());
    for line in [&elsewhere, "flush"] {
        assert_eq!(does(scribe, line), 0, "{line}");
    }
}

/// Has it unmount what is mounted at `at`, behind which nobody holds the disk.
fn unmounts(scribe: &mut Running, at: &Path, disk: &Disk) {
    let line = format!("umount {}", at.display());
    assert_eq!(does(scribe, &line), 0);
    assert!(is_free(disk), "its device is still held");
}

fn is_free(disk: &Disk) -> bool {
    let left = run(clean("losetup").arg("-j").arg(disk.image())).must_succeed();
    left.stdout.is_empty()
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
        takes_a_flag_off_elsewhere(&stage, &mut scribe);
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
        Keeper::start_in(&stage.work(), stage, scribe, file)
    }

    /// With this working directory.
    fn start_in(folder: &Path, stage: &Stage, scribe: &mut Running, file: &Path) -> Keeper {
        let work = stage.work();
        let (program, fifo) = (work.join("keeps.py"), work.join("fifo"));
        let pid = work.join("fifo.pid");
        std::fs::write(&program, KEEPS).expect("a program");
        run(clean("mkfifo").arg(&fifo)).must_succeed();
        let words = [&program, file, &fifo].map(|p| p.display().to_string());
        let line = format!(
            "tell cd {} && python3 {} &",
            folder.display(),
            words.join(" ")
        );
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
    takes_a_flag_off_elsewhere(&stage, &mut scribe);
    warm(&stage, &mut scribe, disk.path());
    mount(&["-t", "ext4"], &device, &other);
    run(clean("umount").arg("-l").arg(disk.path())).must_succeed();
    warm(&stage, &mut scribe, &other);
    save(&mut scribe, &other, &["a", "b", "c"]);
    unmounts(&mut scribe, &other, &disk);
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
    unmounts(&mut scribe, &other, &disk);
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
    takes_a_flag_off_elsewhere(&stage, &mut scribe);
    mount(&["-t", "tmpfs"], "none", disk.path());
    let script = "env -u LD_PRELOAD umount {0} && for i in $(seq 100); do sync {0}; done";
    let script = script.replace("{0}", &disk.path().display().to_string());
    let line = format!("tell unshare -m --propagation private sh -c '{script}'");
    assert_eq!(does(&mut scribe, &line), 0);
    umount(disk.path());
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a", "b", "c"]);
    unmounts(&mut scribe, disk.path(), &disk);
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
    takes_a_flag_off_elsewhere(&stage, &mut scribe);
    let line = format!(
        "tell unshare -m sh -c 'for i in $(seq 100); do sync {0}; done'",
        sub.display()
    );
    assert_eq!(does(&mut scribe, &line), 0);
    warm(&stage, &mut scribe, &sub);
    save(&mut scribe, &sub, &["a", "b", "c"]);
    unmounts(&mut scribe, disk.path(), &disk);
    are_whole(&disk.cut().path().join("sub"), &["a", "b", "c"]);
    ends_well(&stage, &mut scribe);
}

/// With an umount go its copies where what it is mounted on is shared, as it mostly is: ours may be
/// one of them.
#[test]
fn an_umount_that_takes_ours_along_finds_it_settled() {
    if !as_root("an_umount_that_takes_ours_along_finds_it_settled") {
        return;
    }
    for verb in ["umount", "lazily"] {
        let (disk, stage) = (Disk::new("ext4", 64), Stage::new("copies"));
        let [base, peer] = ["base", "peer"].map(|name| stage.work().join(name));
        for folder in [&base, &peer] {
            std::fs::create_dir(folder).expect("a folder");
        }
        umount(disk.path());
        let _folders = Tree::shared(&base, &peer);
        let ours = base.join("at");
        std::fs::create_dir(&ours).expect("a mount point");
        mount(&["-o", "loop"], &disk.image().display().to_string(), &ours);
        let mut scribe = scribe(&stage, &[]);
        takes_a_flag_off_elsewhere(&stage, &mut scribe);
        warm(&stage, &mut scribe, &ours);
        save(&mut scribe, &ours, &["a", "b", "c"]);
        let line = format!("{verb} {}", peer.join("at").display());
        assert_eq!(does(&mut scribe, &line), 0, "{line}");
        are_whole(disk.cut().path(), &["a", "b", "c"]);
        assert!(is_free(&disk), "its device is still held");
        ends_well(&stage, &mut scribe);
    }
}

/// It stays mounted for that one, and what is owed is settled all the same.
#[test]
fn a_lazy_umount_has_settled_what_somebody_has_open_there() {
    if !as_root("a_lazy_umount_has_settled_what_somebody_has_open_there") {
        return;
    }
    let (disk, stage) = (SlowDisk::quick_at_first(1500), Stage::new("lazily-open"));
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, &disk.path());
    let open = format!("stream {}", disk.path().join("log").display());
    for line in [&open, "flush"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    stage.ask(&["settle", &stage.id()]).must_succeed();
    save(&mut scribe, &disk.path(), &["a", "b", "c"]);
    disk.becomes_slow();
    let line = format!("lazily {}", disk.path().display());
    assert_eq!(does(&mut scribe, &line), 0);
    assert_eq!(stage.session()["debt"], 0, "{:#}", stage.session());
    std::fs::write(disk.quick(), "").expect("it is quick again");
    ends_well(&stage, &mut scribe);
}

/// The kernel refuses no lazy one, whoever is in its way.
#[test]
fn threads_that_unmount_lazily_at_the_same_moment_find_both_settled() {
    if !as_root("threads_that_unmount_lazily_at_the_same_moment_find_both_settled") {
        return;
    }
    for slow_is_first in [true, false] {
        let (slow, fast) = (SlowDisk::quick_at_first(500), Disk::new("ext4", 64));
        let (device, stage) = (slow.device(), Stage::new("both-lazily"));
        let mut scribe = scribe(&stage, &[]);
        for folder in [&slow.path(), fast.path()] {
            warm(&stage, &mut scribe, folder);
            save(&mut scribe, folder, &["a"]);
        }
        slow.becomes_slow();
        let mut both = [slow.path(), fast.path().to_owned()];
        if !slow_is_first {
            both.reverse();
        }
        let line = format!("bothlazily {} {}", both[0].display(), both[1].display());
        assert_eq!(does(&mut scribe, &line), 0);
        assert!(!is_mounted_anywhere(&device), "it is still mounted");
        are_whole(fast.cut().path(), &["a"]);
        std::fs::write(slow.quick(), "").expect("it is quick again");
        ends_well(&stage, &mut scribe);
    }
}

/// A file whose path there begins as a memfd's name does.
#[test]
fn what_somebody_writes_to_is_held_whatever_its_name_is() {
    if !as_root("what_somebody_writes_to_is_held_whatever_its_name_is") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("named-memfd"));
    let number = rustix::fs::stat(disk.path()).expect("a disk").st_dev;
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let open = format!("stream {}", disk.path().join("memfd:log").display());
    let line = format!("lazily {}", disk.path().display());
    for line in [&open, "flush", &line] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    assert!(is_held(scribe.pid(), number), "{:#}", stage.session());
    ends_well(&stage, &mut scribe);
}

/// Whether the kernel still has the ext4 of a device.
fn is_mounted_anywhere(device: &str) -> bool {
    let of_ext4 = Path::new("/sys/fs/ext4");
    of_ext4.join(device.trim_start_matches("/dev/")).exists()
}

/// With a lazy umount goes what is mounted below.
#[test]
fn a_lazy_umount_has_settled_what_is_mounted_below() {
    if !as_root("a_lazy_umount_has_settled_what_is_mounted_below") {
        return;
    }
    let (disk, stage) = (SlowDisk::quick_at_first(1500), Stage::new("below"));
    let (device, top) = (disk.device(), stage.work().join("top"));
    umount(&disk.path());
    std::fs::create_dir(&top).expect("a mount point");
    let memory = Tree::in_memory(&top);
    let below = top.join("below");
    std::fs::create_dir(&below).expect("a mount point");
    mount(&["-t", "ext4"], &device, &below);
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, &below);
    save(&mut scribe, &below, &["a", "b", "c"]);
    disk.becomes_slow();
    let line = format!("lazily {}", top.display());
    assert_eq!(does(&mut scribe, &line), 0);
    assert!(!is_mounted_anywhere(&device), "it is still mounted");
    std::fs::write(disk.quick(), "").expect("it is quick again");
    ends_well(&stage, &mut scribe);
    drop(memory);
}

/// It writes to nothing.
#[test]
fn a_working_directory_is_in_the_way_of_no_umount_of_another_place() {
    if !as_root("a_working_directory_is_in_the_way_of_no_umount_of_another_place") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("only-there"));
    let (device, other) = (disk.device(), stage.work().join("other"));
    std::fs::create_dir(&other).expect("a mount point");
    mount(&["-t", "ext4"], &device, &other);
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let log = stage.work().join("log");
    let mut keeper = Keeper::start_in(&other, &stage, &mut scribe, &log);
    save(&mut scribe, disk.path(), &["a", "b", "c"]);
    let line = format!("umount {}", disk.path().display());
    assert_eq!(does(&mut scribe, &line), 0);
    are_whole(disk.cut().path(), &["a", "b", "c"]);
    keeper.end();
    ends_well(&stage, &mut scribe);
    umount(&other);
}

/// Where two stay, and are settled one after the other.
#[test]
fn a_lazy_umount_of_a_tree_ends_though_members_write_to_two_of_its_file_systems() {
    let name = "a_lazy_umount_of_a_tree_ends_though_members_write_to_two_of_its_file_systems";
    if !as_root(name) {
        return;
    }
    let (disk, other) = (Disk::new("ext4", 64), Disk::new("ext4", 64));
    let stage = Stage::new("two-stay");
    let below = disk.path().join("below");
    std::fs::create_dir(&below).expect("a mount point");
    umount(other.path());
    let image = other.image().display().to_string();
    mount(&["-o", "loop"], &image, &below);
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    warm(&stage, &mut scribe, &below);
    let log = format!("stream {}", disk.path().join("log").display());
    assert_eq!(does(&mut scribe, &log), 0);
    let mut keeper = Keeper::start(&stage, &mut scribe, &below.join("log"));
    save(&mut scribe, &below, &["a", "b"]);
    let line = format!("lazily {}", disk.path().display());
    assert_eq!(does(&mut scribe, &line), 0);
    are_whole(other.cut().path(), &["a", "b", "log"]);
    keeper.end();
    ends_well(&stage, &mut scribe);
}

/// A scribe in a mount namespace of its session's own, with a log open from before that.
fn scribe_with_log(stage: &Stage, log: &Path) -> Running {
    let script = "exec 9>>\"$0\"; exec unshare -m --propagation private \"$@\"";
    let mut command = clean("sh");
    command.args(["-c", script]).arg(log);
    scribe_behind(command, stage)
}

/// Has it hold the disk where that is mounted first, unmount that lazily, and save more by the
/// other place. What it gets there for an umount.
fn unmounts_both(stage: &Stage, scribe: &mut Running, disk: &Disk) -> i32 {
    let (at, other) = (disk.path().display(), stage.work().join("other"));
    std::fs::create_dir(&other).expect("a mount point");
    let line = format!("tell mount --bind {at} {}", other.display());
    assert_eq!(does(scribe, &line), 0, "{line}");
    takes_a_flag_off_elsewhere(stage, scribe);
    warm(stage, scribe, disk.path());
    save(scribe, &other, &["a"]);
    assert_eq!(does(scribe, &format!("lazily {at}")), 0);
    warm(stage, scribe, &other);
    save(scribe, &other, &["b", "c"]);
    does(scribe, &format!("umount {}", other.display()))
}

/// A descriptor of another namespace's mount, from before this one, on a file system whose files
/// do not show its number: nobody can tell what is written by it. What is held on a mount that has
/// left is held on another then.
#[test]
fn what_nobody_can_look_at_is_held_where_an_umount_is_refused() {
    if !as_root("what_nobody_can_look_at_is_held_where_an_umount_is_refused") {
        return;
    }
    let (disk, logs) = (Disk::new("ext4", 64), Disk::new("btrfs", 160));
    let stage = Stage::new("from-before");
    let mut scribe = scribe_with_log(&stage, &logs.path().join("log"));
    let told = unmounts_both(&stage, &mut scribe, &disk);
    assert_eq!(told, rustix::io::Errno::BUSY.raw_os_error());
    ends_well(&stage, &mut scribe);
    are_whole(disk.cut().path(), &["a", "b", "c"]);
}

/// Of others it can be told.
#[test]
fn a_log_from_before_a_namespace_is_in_the_way_of_no_umount() {
    if !as_root("a_log_from_before_a_namespace_is_in_the_way_of_no_umount") {
        return;
    }
    let (disk, logs) = (Disk::new("ext4", 64), Disk::new("ext4", 64));
    let stage = Stage::new("plain-log");
    let mut scribe = scribe_with_log(&stage, &logs.path().join("log"));
    let told = unmounts_both(&stage, &mut scribe, &disk);
    assert_eq!(told, 0);
    are_whole(disk.cut().path(), &["a", "b", "c"]);
    ends_well(&stage, &mut scribe);
}

/// Who writes by the mount that has left keeps nobody from unmounting the other one, as without us.
#[test]
fn a_writer_on_a_mount_that_has_left_is_in_the_way_of_no_umount() {
    if !as_root("a_writer_on_a_mount_that_has_left_is_in_the_way_of_no_umount") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("writer-left"));
    let (device, other) = (disk.device(), stage.work().join("other"));
    std::fs::create_dir(&other).expect("a mount point");
    mount(&["-t", "ext4"], &device, &other);
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let mut keeper = Keeper::start(&stage, &mut scribe, &disk.path().join("log"));
    let line = format!("lazily {}", disk.path().display());
    assert_eq!(does(&mut scribe, &line), 0);
    save(&mut scribe, &other, &["a", "b", "c"]);
    let line = format!("umount {}", other.display());
    assert_eq!(does(&mut scribe, &line), 0);
    are_whole(disk.cut().path(), &["a", "b", "c", "log"]);
    keeper.end();
    assert!(until(LIMIT, || is_free(&disk)), "its device is still held");
    ends_well(&stage, &mut scribe);
}

/// Mounts, and whatever is mounted below them.
struct Tree<'a>(Vec<&'a Path>);

impl<'a> Tree<'a> {
    fn in_memory(at: &'a Path) -> Tree<'a> {
        mount(&["-t", "tmpfs"], "none", at);
        Tree(vec![at])
    }

    /// Two mounts of one folder that are peers.
    fn shared(base: &'a Path, peer: &'a Path) -> Tree<'a> {
        let folder = base.display().to_string();
        mount(&["--bind"], &folder, base);
        run(clean("mount").arg("--make-shared").arg(base)).must_succeed();
        mount(&["--bind"], &folder, peer);
        Tree(vec![base, peer])
    }
}

impl Drop for Tree<'_> {
    fn drop(&mut self) {
        for at in &self.0 {
            run(clean("umount").arg("-qR").arg(at));
        }
    }
}
