//! What daemons ask of the kernel, by the program that asks: a directory of traces, one a thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const TRACED: &str =
    "trace=execve,fsync,fdatasync,sync,syncfs,msync,sync_file_range,openat,pwritev2";

/// Where strace writes, between synclater and the daemon.
pub struct Syncs {
    dir: PathBuf,
}

impl Syncs {
    pub fn new(dir: PathBuf) -> Syncs {
        std::fs::create_dir(&dir).expect("a directory for traces");
        Syncs { dir }
    }

    /// Has `command` run what follows under strace, which is no parent of it: signals, exit status
    /// and the family tree are as without it.
    pub fn trace<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.args([
            "strace",
            "-D",
            "-ff",
            "-qq",
            "-e",
            TRACED,
            "-e",
            "signal=none",
            "-o",
        ]);
        command.arg(self.dir.join("thread"))
    }

    /// Syncs that were carried out so far, by the name of the executable; threads and children that
    /// execute nothing stand under "".
    pub fn by_program(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        let files = std::fs::read_dir(&self.dir).expect("traces").flatten();
        for file in files {
            let text = std::fs::read(file.path()).expect("a trace");
            count(&String::from_utf8_lossy(&text), &mut all);
        }
        all
    }

    pub fn of(&self, program: &str) -> usize {
        self.by_program().get(program).copied().unwrap_or(0)
    }
}

fn count(trace: &str, all: &mut BTreeMap<String, usize>) {
    let mut program = String::new();
    for line in trace.lines() {
        let Some((call, result)) = line.rsplit_once(" = ") else {
            continue;
        };
        if result.starts_with('-') {
            continue;
        }
        if let Some(path) = call.strip_prefix("execve(\"") {
            let path = Path::new(path.split('"').next().unwrap_or(""));
            program = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
        } else if makes_io(call) {
            *all.entry(program.clone()).or_default() += 1;
        }
    }
}

fn makes_io(call: &str) -> bool {
    let call = call.trim_end().trim_end_matches(')');
    match call.split('(').next().unwrap_or("") {
        "fsync" | "fdatasync" | "sync" | "syncfs" => true,
        "msync" => call.contains("MS_SYNC"),
        // At an offset that no file has it asks for errors, and writes nothing.
        "sync_file_range" => !call.ends_with(", 0") && !call.contains("9223372036854771712"),
        "openat" | "pwritev2" => call.contains("O_SYNC") || call.contains("DSYNC"),
        _ => false,
    }
}

#[test]
fn calls_are_counted_by_the_program_that_makes_them() {
    let trace = "execve(\"/bin/a\", [\"a\"], 0x7f /* 3 vars */) = 0\n\
        fsync(3)                                = 0\n\
        fsync(9)                                = -1 EBADF (Bad file descriptor)\n\
        sync_file_range(3, 0, 1, 0)             = 0\n\
        execve(\"/bin/none\", [], 0x7f)         = -1 ENOENT (No such file or directory)\n\
        execve(\"/usr/bin/b\", [\"b\"], 0x7f /* 3 vars */) = 0\n\
        openat(AT_FDCWD, \"x\", O_WRONLY|O_SYNC) = 4\n\
        fdatasync(4)                            = 0\n";
    let mut all = BTreeMap::new();
    count(trace, &mut all);
    assert_eq!(
        all,
        BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)])
    );
}
