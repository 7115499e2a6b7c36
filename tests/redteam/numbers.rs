//! Numbers of descriptors that become another file's, or are another thread's or anybody's below
//! /proc.

use super::ledger::kill;
use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::Disk;
use crate::sessions::stage::as_root;
use crate::wait::until;
use std::path::PathBuf;

/// Opens a file with O_DSYNC while that is put off, ends the relaxation, and writes there while the
/// number becomes another file's. The kernel keeps the file for the whole call, and syncs it.
fn is_synced_though_its_number_goes(stage: &Stage, scribe: &mut Running, kind: &'static str) {
    let disk = Disk::new(kind, 320);
    warm(stage, scribe, disk.path());
    let path = disk.path().join("kept");
    assert_eq!(does(scribe, &format!("dsync 3 {}", path.display())), 0);
    stage.ask(&["set", &stage.id(), "-u", "now"]).must_succeed();
    assert_eq!(does(scribe, "slip 3"), 0);
    are_whole(disk.cut().path(), &["kept"]);
    stage.ask(&["set", &stage.id(), "-u", "1h"]).must_succeed();
    // While it is put off it is settled with the rest.
    let path = disk.path().join("later");
    warm(stage, scribe, disk.path());
    assert_eq!(does(scribe, &format!("dsync 3 {}", path.display())), 0);
    assert_eq!(does(scribe, "slip 3"), 0);
    stage.ask(&["settle", &stage.id()]).must_succeed();
    are_whole(disk.cut().path(), &["kept", "later"]);
}

#[test]
fn a_write_whose_number_goes_to_another_file_meanwhile_is_synced() {
    if !as_root("a_write_whose_number_goes_to_another_file_meanwhile_is_synced") {
        return;
    }
    for kind in ["ext4", "xfs", "btrfs"] {
        let stage = Stage::new("slip");
        let mut scribe = scribe(&stage, &["-u", "1h"]);
        is_synced_though_its_number_goes(&stage, &mut scribe, kind);
        ends_well(&stage, &mut scribe);
    }
}

#[test]
fn so_it_is_in_a_process_that_is_attached() {
    if !as_root("so_it_is_in_a_process_that_is_attached") {
        return;
    }
    let stage = Stage::new("slip-there");
    let mut scribe = Running::start(&stage, clean(tool("scribe")));
    scribe.be_ready();
    let pid = scribe.pid().to_string();
    stage
        .ask(&["attach", "--pid", &pid, "-u", "1h"])
        .must_succeed();
    is_synced_though_its_number_goes(&stage, &mut scribe, "ext4");
    stage.ask(&["detach", &stage.id()]).must_succeed();
}

/// A scribe that is a thread with a table of descriptors of its own; what the first thread has
/// under its numbers lies in `held`.
fn scribe_beside(stage: &Stage, options: &[&str], held: &Path) -> Running {
    std::fs::create_dir_all(held).expect("a folder");
    cold_scribe(stage, options, &[Path::new("beside"), held])
}

#[test]
fn a_thread_with_its_own_table_writes_to_no_file_of_the_first_thread() {
    if !as_root("a_thread_with_its_own_table_writes_to_no_file_of_the_first_thread") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 320), Stage::new("own-table"));
    let held = disk.path().join("held");
    let mut scribe = scribe_beside(&stage, &[], &held);
    warm(&stage, &mut scribe, disk.path());
    for name in ["one", "two"] {
        let path = disk.path().join(name);
        let lines = [format!("dsync 3 {}", path.display()), "append 3".into()];
        lines
            .iter()
            .for_each(|line| assert_eq!(does(&mut scribe, line), 0, "{line}"));
    }
    ends_well(&stage, &mut scribe);
    are_whole(disk.cut().path(), &["one", "two"]);
    for file in std::fs::read_dir(&held).expect("a folder").flatten() {
        let len = file.metadata().expect("a file").len();
        assert_eq!(len, 0, "{}", file.path().display());
    }
}

#[test]
fn a_rule_by_path_means_the_file_of_the_thread_that_asks() {
    if !as_root("a_rule_by_path_means_the_file_of_the_thread_that_asks") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 320), Stage::new("own-path"));
    let held = disk.path().join("scratch");
    let only = format!("path={}/**", held.display());
    let mut scribe = scribe_beside(&stage, &["-u", "never", "--only", &only], &held);
    warm(&stage, &mut scribe, &held);
    save(&mut scribe, disk.path(), &["a", "b", "c"]);
    are_whole(disk.cut().path(), &["a", "b", "c"]);
    scribe.end();
}

/// A root folder in which somebody has made a /proc.
fn jail_with_proc(disk: &Disk, victim: &str) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    let jail = disk.path().join("jail");
    for thread in ["self", "thread-self"] {
        let proc = jail.join("proc").join(thread);
        std::fs::create_dir_all(proc.join("fd")).expect("a folder");
        for fd in 3..60 {
            let link = proc.join("fd").join(fd.to_string());
            std::os::unix::fs::symlink(victim, link).expect("a link");
        }
        let file = jail.join("own");
        std::fs::write(&file, "").expect("a file");
        let file = std::fs::metadata(file).expect("it is there");
        let dev = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
        let (dev, ino) = (format!("{:02x}:{:02x}", dev.0, dev.1), file.ino());
        let maps = format!("0-7ffffffff000 rw-s 00000000 {dev} {ino} /own\n");
        std::fs::write(proc.join("maps"), maps).expect("a text");
    }
    jail
}

#[test]
fn behind_a_chroot_no_proc_is_believed_that_anybody_can_make() {
    if !as_root("behind_a_chroot_no_proc_is_believed_that_anybody_can_make") {
        return;
    }
    for victim in ["/victim", "/fifo"] {
        let (disk, stage) = (Disk::new("ext4", 320), Stage::new("fake-proc"));
        let mut scribe = scribe(&stage, &[]);
        warm(&stage, &mut scribe, disk.path());
        let jail = jail_with_proc(&disk, victim);
        std::fs::write(jail.join("victim"), "as it was").expect("a file");
        run(clean("mkfifo").arg(jail.join("fifo"))).must_succeed();
        std::fs::write(jail.join("mapped"), [0; 4096]).expect("a file");
        assert_eq!(does(&mut scribe, &format!("jail {}", jail.display())), 0);
        for line in ["dsync 3 /new", "append 3"] {
            assert_eq!(does(&mut scribe, line), 0, "{line}");
        }
        let (_, before) = stage.counted();
        assert_eq!(does(&mut scribe, "msync /mapped"), 0);
        assert_eq!(stage.counted().1, before, "another file was believed");
        are_whole(&disk.cut().path().join("jail"), &["mapped"]);
        ends_well(&stage, &mut scribe);
        are_whole(&disk.cut().path().join("jail"), &["new", "mapped"]);
        let text = std::fs::read_to_string(jail.join("victim"));
        assert_eq!(text.expect("the victim"), "as it was");
    }
}

/// In it there may be a procfs, and what somebody calls /proc leads to his own process there.
#[test]
fn behind_a_chroot_nobody_is_taken_for_the_process_that_asks() {
    if !as_root("behind_a_chroot_nobody_is_taken_for_the_process_that_asks") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 320), Stage::new("proc-of-another"));
    let jail = disk.path().join("jail");
    let held = jail.join("scratch");
    for dir in [&held, &jail.join("p"), &jail.join("proc")] {
        std::fs::create_dir_all(dir).expect("a folder");
    }
    mount(&["-t", "proc"], "none", &jail.join("p"));
    let mut command = clean(tool("scribe"));
    command.arg("beside").arg(&held);
    let mut other = Running::start(&stage, command);
    other.be_ready();
    let its = format!("/p/{}", other.pid());
    for (link, to) in [
        ("self", its.clone()),
        ("thread-self", format!("{its}/task/{}", other.pid())),
    ] {
        std::os::unix::fs::symlink(to, jail.join("proc").join(link)).expect("a link");
    }
    let mut scribe = cold_scribe(
        &stage,
        &["-u", "never", "--only", "path=**/scratch/**"],
        &[],
    );
    warm(&stage, &mut scribe, &held);
    assert_eq!(does(&mut scribe, &format!("jail {}", jail.display())), 0);
    save(&mut scribe, Path::new("/"), &["a", "b", "c"]);
    are_whole(&disk.cut().path().join("jail"), &["a", "b", "c"]);
    scribe.end();
    other.end();
    umount(&jail.join("p"));
}

/// Behind the end of its session: what it executes finds no session, and no filter.
#[test]
fn so_it_is_of_what_is_executed_behind_the_end() {
    if !as_root("so_it_is_of_what_is_executed_behind_the_end") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 320), Stage::new("executed-behind"));
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let path = disk.path().join("kept");
    assert_eq!(does(&mut scribe, &format!("wants {}", path.display())), 0);
    kill(&stage, &scribe);
    let over = until(LIMIT, || {
        stage.ask(&["settle"]).status.success() && stage.entries().is_empty()
    });
    assert!(over, "{:?}", stage.entries());
    scribe.tell("again");
    assert_eq!(scribe.hear(), "ready");
    assert_eq!(does(&mut scribe, "slip 7"), 0);
    are_whole(disk.cut().path(), &["kept"]);
}
