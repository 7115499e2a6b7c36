//! What the tests here need: folders, file systems in files, processes; all gone with their guard.

#[path = "../../tests/wait.rs"]
mod wait;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
pub use wait::until;

pub const LIMIT: Duration = Duration::from_secs(30);

/// True when the test may go on; otherwise it says that it was left out.
pub fn needs_root(name: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED {name}: mounting a file system needs root");
    }
    root
}

/// The number by which /proc knows this thread, whose mounts are its own.
pub fn this_thread() -> u32 {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

/// A mount namespace for this thread and what it starts.
pub fn keep_mounts_private() {
    // The warning is about threads that share descriptors: only the mounts are taken apart here.
    #[allow(deprecated)]
    let unshared = rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS);
    unshared.expect("a mount namespace");
    succeed("mount", &["--make-rprivate", "/"]);
}

/// Runs a program that must succeed.
pub fn succeed(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// A folder that goes with its guard.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        let name = format!("synclater-test-{}", crate::session::folder::random_name());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a folder");
        Folder(path.canonicalize().expect("its path"))
    }

    pub fn make(&self, name: &str) -> String {
        let path = self.join(name);
        std::fs::create_dir(&path).expect("a folder");
        path
    }

    pub fn join(&self, name: &str) -> String {
        self.0
            .join(name)
            .into_os_string()
            .into_string()
            .expect("a path of text")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Something mounted in this thread's namespace.
pub struct Mounted(pub String);

impl Mounted {
    /// `mount ARGUMENTS POINT`.
    pub fn new(arguments: &[&str], point: String) -> Mounted {
        succeed("mount", &[arguments, &[point.as_str()]].concat());
        Mounted(point)
    }

    /// A new file system in the file `image`, on a loop device.
    pub fn image(kind: &str, size_mib: u64, image: &str, point: String) -> Mounted {
        let file = std::fs::File::create(image).expect("the image");
        file.set_len(size_mib << 20).expect("the image's size");
        succeed(&format!("mkfs.{kind}"), &["-q", image]);
        Mounted::new(&["-t", kind, "-o", "loop", image], point)
    }

    /// Its mount id and the device number that stat shows of `name` in it.
    pub fn numbers(&self, name: &str) -> (u64, (u32, u32)) {
        let path = Path::new(&self.0).join(name);
        numbers(&path)
    }
}

/// A path's mount id and device number.
pub fn numbers(path: &Path) -> (u64, (u32, u32)) {
    let id = synclater_sys::mount::id_of_path(path, 0x1000).expect("a mount id");
    let dev = rustix::fs::stat(path).expect("stat").st_dev;
    (id, (rustix::fs::major(dev), rustix::fs::minor(dev)))
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The loop device goes with the last unmount.
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

/// A process that lives until its guard goes.
pub struct Process(pub Child);

impl Process {
    /// Starts a program and waits until it has said a line, if it is to.
    pub fn new(command: &mut Command, says: Option<&str>) -> Process {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process(command.spawn().expect("a process"));
        if let Some(says) = says {
            let output = process.0.stdout.as_mut().expect("its output");
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).expect("a line");
            assert_eq!(line.trim_end(), says);
        }
        process
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
