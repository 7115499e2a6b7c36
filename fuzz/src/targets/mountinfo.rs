//! Fuzzes the reader of `/proc/PID/mountinfo`, whose paths anyone who may mount can choose, and
//! that of ledger entries, which a power cut or a hand may have left in any form.
//!
//! Claims: nothing panics or hangs; no more mounts than lines; a path has no more bytes than its
//! text; an entry that was read is written in a form that reads back.

use synclater_account::status::{render_status, status_json, Listed, OpenSession, Outcome};
use synclater_policy::filesystem::kind;
use synclater_policy::ledger::Entry;
use synclater_proc::mountinfo::parse_mountinfo;

use crate::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "mountinfo",
    seeds: &[
        b"24 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro\n",
        b"25 24 0:23 / /my\\040disk\\134 ro,nosuid shared:5 master:2 - fuse.sshfs a:/b rw\n",
        b"29 24 0:50 /@home /empty rw - tmpfs  rw,size=8k\n26 24 0:40 / /x rw - btrfs /dev/x ro",
        br#"{"version": 1, "id": "kelp", "boot_id": "b", "pid": 4, "command": ["a", "b"],
 "started": "2025-01-31T12:00:00Z", "until": "1s", "filesystems": [
 {"mount": "/", "fstype": "ext4", "source": "/dev/sda2", "uuid": "7d4c"}]}"#,
    ],
    words: &[
        b"\\040",
        b"\\377",
        b"\\400",
        b" - ",
        b" -",
        b"0:0",
        b"4294967296:1",
        b"ro,",
        b"\"now\"",
        b"18446744073709551616",
        b"\\u001b",
        b"\"version\": 2,",
        b"[[[[[[[[",
    ],
    run,
};

fn run(input: &[u8]) {
    read_mounts(input);
    read_entry(&String::from_utf8_lossy(input));
}

fn read_mounts(input: &[u8]) {
    let mounts = parse_mountinfo(input);
    assert!(mounts.len() <= input.split(|&byte| byte == b'\n').count());
    for mount in &mounts {
        assert!(mount.point.len() + mount.root.len() <= input.len());
        kind(&mount.fstype);
    }
}

fn read_entry(text: &str) {
    match Entry::from_json(text) {
        Ok(entry) => {
            assert_eq!(Entry::from_json(&entry.to_json()).as_ref(), Ok(&entry));
            let ended = Outcome::of_ended(&entry, false);
            for outcome in [Outcome::Cut, Outcome::BeingSettled, ended] {
                read_status(&[OpenSession::new(&entry, outcome)]);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn read_status(open: &[OpenSession]) {
    let status = render_status(open, 0);
    let steers = |c: char| c.is_control() && c != '\n';
    assert!(
        !status.contains(steers),
        "a control character is shown: {status:?}"
    );
    let listed: Vec<Listed> = open.iter().cloned().map(Listed::Open).collect();
    assert!(!status_json(&listed).is_empty());
}
