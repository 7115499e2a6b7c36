//! What those see who watch a folder (inotify): many take a file once its writer has closed it.

use super::*;
use crate::sessions::stage::as_root;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::os::fd::OwnedFd;

fn watch(dir: &Path) -> OwnedFd {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("a watch");
    let closed = WatchFlags::CLOSE_WRITE | WatchFlags::MODIFY;
    inotify::add_watch(&watch, dir, closed).expect("it is watched");
    watch
}

/// What has happened so far: whether a file was written to, or closed by who could.
fn seen_by(watch: &OwnedFd) -> Vec<ReadFlags> {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    std::iter::from_fn(|| reader.next().ok().map(|event| event.events())).collect()
}

const ONCE: [ReadFlags; 2] = [ReadFlags::MODIFY, ReadFlags::CLOSE_WRITE];

#[test]
fn a_file_that_lost_its_o_sync_is_closed_when_its_writer_closes_it() {
    if !as_root("a_file_that_lost_its_o_sync_is_closed_when_its_writer_closes_it") {
        return;
    }
    for kind in ["ext4", "xfs", "btrfs"] {
        let (disk, stage) = (Disk::new(kind, 320), Stage::new("watched"));
        let mut scribe = scribe(&stage, &[]);
        warm(&stage, &mut scribe, disk.path());
        let dir = disk.path().join("in");
        std::fs::create_dir(&dir).expect("a folder");
        let watch = watch(&dir);
        let (_, before) = stage.counted();
        // A new one, and the same once more.
        for _ in 0..2 {
            let line = format!("line {}", dir.join("file").display());
            assert_eq!(does(&mut scribe, &line), 0, "{line}");
            assert_eq!(seen_by(&watch), ONCE, "{kind}");
        }
        std::os::unix::fs::symlink("made", dir.join("link")).expect("a link");
        let line = format!("line {}", dir.join("link").display());
        assert_eq!(does(&mut scribe, &line), 0, "{line}");
        assert!(dir.join("made").exists());
        let open = format!("dsync 1 {}", dir.join("counted").display());
        for line in [&open, "append 1"] {
            assert_eq!(does(&mut scribe, line), 0, "{line}");
        }
        assert!(
            stage.counted().1 > before,
            "{kind}: its writes are not put off"
        );
        ends_well(&stage, &mut scribe);
    }
}

const MAKES: &str = "\
import fcntl, os, subprocess, sys
def made(name, flags, mode=0o400):
    f = os.open(name, os.O_CREAT | os.O_WRONLY | flags, mode)
    assert fcntl.fcntl(f, fcntl.F_GETFL) & os.O_SYNC == flags & os.O_SYNC, name
    return f
def write(f):
    # By a program that has no library of ours.
    line = 'printf %%4096s | tr \" \" k >&%d' % f
    subprocess.run(['/bin/sh', '-c', line], env={}, pass_fds=[f], check=True)
os.umask(0)
os.chdir(sys.argv[1])
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
write(made('kept', os.O_SYNC))
os.write(made('./other', os.O_DSYNC | os.O_EXCL), b'k' * 4096)
os.write(made('../its/third', os.O_SYNC, 0o600), b'k' * 4096)
for name, wants in [('other', FileExistsError), ('none/file', FileNotFoundError)]:
    try:
        os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_SYNC, 0o600)
    except wants:
        continue
    raise AssertionError(name)
";

/// Its folder says that it may be put off, and the rule about the file that it may not.
#[test]
fn a_new_file_that_may_not_be_opened_again_is_synced_all_the_same() {
    if !as_root("a_new_file_that_may_not_be_opened_again_is_synced_all_the_same") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("made"));
    let rules = stage.file("rules.toml");
    let text = "[[rule]]\npath = \"**/kept\"\nuntil = \"now\"\n[[rule]]\nuntil = \"exit\"\n";
    std::fs::write(&rules, text).expect("rules");
    let rules = rules.display().to_string();
    let mut scribe = cold_scribe(&stage, &["--rules", &rules], &[]);
    warm(&stage, &mut scribe, disk.path());
    let dir = disk.path().join("its");
    std::fs::create_dir(&dir).expect("a folder");
    std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).expect("it is given away");
    run(clean("sync").arg("-f").arg(&dir)).must_succeed();
    let file = program_of(&stage);
    let line = format!("tell python3 {} {}", file.display(), dir.display());
    assert_eq!(does(&mut scribe, &line), 0);
    are_whole(&disk.cut().path().join("its"), &["kept"]);
    ends_well(&stage, &mut scribe);
    are_whole(&disk.cut().path().join("its"), &["kept", "other", "third"]);
}

/// The program that makes them.
fn program_of(stage: &Stage) -> std::path::PathBuf {
    let file = stage.work().join("makes.py");
    std::fs::write(&file, MAKES).expect("a program");
    file
}
