//! Reads files that may keep whoever reads them waiting: see [`crate::each`]. A child that stays
//! reads them; where one keeps it waiting, another child reads the next.

use crate::each::STUCK;
use crate::job::{self, Job};
use crate::{loopdev, process, socket, wait};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use synclater_proc::stat::Stat;

/// How much longer than one has kept the child waiting nothing is read behind it.
const SHARE: u32 = 10;
/// How long it is not asked for then.
const FORGET: Duration = Duration::from_secs(60);
/// Of so many is remembered that they kept it waiting.
const STUCK_MAX: usize = 1 << 12;
/// Bytes of what was read in one message of the child's, at most.
const PIECE: usize = 1 << 15;

/// Who reads.
#[derive(Debug, Default)]
pub struct Patient {
    child: Option<(Job, OwnedFd)>,
    not_before: Option<Instant>,
    stuck: HashMap<Box<Path>, Instant>,
}

impl Patient {
    /// The first `most` bytes of a file. `None` where it cannot be read, or keeps whoever reads it
    /// waiting, or another one did a moment ago.
    pub fn read(&mut self, path: &Path, most: u64) -> Option<Vec<u8>> {
        self.ask(READ, most, path)
    }

    /// Where a symbolic link leads; `None` as for [`Patient::read`].
    pub fn link(&mut self, path: &Path) -> Option<PathBuf> {
        let to = self.ask(LINK, 0, path)?;
        Some(PathBuf::from(OsString::from_vec(to)))
    }

    /// When a process began, as [`process::began`] tells it; `None` as for [`Patient::read`].
    pub fn began(&mut self, pid: u32) -> Option<u64> {
        let text = self.read(Path::new(&format!("/proc/{pid}/stat")), 4096)?;
        Stat::parse(&String::from_utf8_lossy(&text))?.started()
    }

    /// What a process executes. Those of our own user are asked at once; `None` as for
    /// [`Patient::read`].
    pub fn exe(&mut self, pid: u32) -> Option<PathBuf> {
        let path = PathBuf::from(format!("/proc/{pid}/exe"));
        if process::effective_user_of(pid)? == process::effective_user() {
            std::fs::read_link(path).ok()
        } else {
            self.link(&path)
        }
    }

    /// As [`loopdev::file_of`]; `None` as for [`Patient::read`].
    pub fn file_of_loop(&mut self, path: &Path, device: u64) -> Option<(u64, u64)> {
        let numbers = self.ask(FILE_OF_LOOP, device, path)?;
        let (dev, rdev) = numbers.split_first_chunk()?;
        let rdev = rdev.try_into().ok()?;
        Some((u64::from_le_bytes(*dev), u64::from_le_bytes(rdev)))
    }

    fn ask(&mut self, what: u8, with: u64, path: &Path) -> Option<Vec<u8>> {
        let now = Instant::now();
        if self.not_before.is_some_and(|at| now < at) || self.kept_waiting(path, now) {
            return None;
        }
        if self.child.is_none() {
            self.child = start().ok();
        }
        let (_, to) = self.child.as_ref()?;
        let mut question = [&[what][..], &with.to_le_bytes()].concat();
        question.extend_from_slice(path.as_os_str().as_bytes());
        let read = match socket::send(to, &question, &[]) {
            Ok(()) => hear(to),
            Err(e) => Err(e),
        };
        read.unwrap_or_else(|_| {
            if let Some((job, _)) = self.child.take() {
                job.end();
            }
            if self.stuck.len() >= STUCK_MAX {
                self.stuck.clear();
            }
            self.stuck.insert(path.into(), now);
            self.not_before = Some(Instant::now() + now.elapsed() * SHARE);
            None
        })
    }

    fn kept_waiting(&mut self, path: &Path, now: Instant) -> bool {
        let since = self.stuck.get(path).copied();
        if since.is_some_and(|at| now.saturating_duration_since(at) > FORGET) {
            self.stuck.remove(path);
            return false;
        }
        since.is_some()
    }
}

fn start() -> io::Result<(Job, OwnedFd)> {
    let (ours, theirs) = socket::pair()?;
    let job = job::beside_us(c"synclater-read", &[theirs.as_fd()], |kept| {
        i32::from(answer(&kept[0]).is_err())
    })?;
    Ok((job, ours))
}

/// Reads what is asked for, until nobody asks.
fn answer(socket: &OwnedFd) -> io::Result<()> {
    let mut question = [0; 9 + 4096];
    loop {
        let (length, _) = socket::receive(socket, &mut question)?;
        let Some((&[what, ref with @ ..], path)) = question[..length].split_first_chunk::<9>()
        else {
            return Ok(());
        };
        let with = u64::from_le_bytes(*with);
        let path = Path::new(OsStr::from_bytes(path));
        let read = match what {
            LINK => std::fs::read_link(path).map(|to| to.into_os_string().into_vec()),
            FILE_OF_LOOP => loopdev::file_of(path, with)
                .map(|(dev, rdev)| [dev.to_le_bytes(), rdev.to_le_bytes()].concat()),
            _ => read(path, with),
        };
        let Ok(bytes) = read else {
            socket::send(socket, &[FAILED], &[])?;
            continue;
        };
        for piece in bytes.chunks(PIECE) {
            socket::send(socket, &[&[MORE][..], piece].concat(), &[])?;
        }
        socket::send(socket, &[END], &[])?;
    }
}

fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // One read gets most files of a process whole: it may end before a second.
    let mut bytes = Vec::with_capacity(most.min(AT_ONCE) as usize);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What is asked for.
const READ: u8 = 0;
const LINK: u8 = 1;
const FILE_OF_LOOP: u8 = 2;

/// Bytes that are read at once.
const AT_ONCE: u64 = 1 << 16;

const FAILED: u8 = 0;
const MORE: u8 = 1;
const END: u8 = 2;

/// What the child has read; `None` where it could not.
fn hear(from: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let (mut all, mut some) = (Vec::new(), vec![0; 1 + PIECE]);
    loop {
        if !wait::for_input(from, STUCK) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (length, _) = socket::receive(from, &mut some)?;
        match some[..length].split_first() {
            Some((&FAILED, _)) => return Ok(None),
            Some((&END, _)) => return Ok(Some(all)),
            Some((_, piece)) => all.extend_from_slice(piece),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_whole_and_one_that_keeps_us_waiting_is_passed_over() {
        let dir = std::env::temp_dir().join(format!("patient-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a folder");
        let file = |name: &str| dir.join(name);
        let mut patient = Patient::default();
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 7] {
            let bytes: Vec<u8> = (0..length).map(|k| k as u8).collect();
            std::fs::write(file("whole"), &bytes).expect("a file");
            assert_eq!(
                patient.read(&file("whole"), u64::MAX >> 1),
                Some(bytes),
                "{length}"
            );
        }
        assert_eq!(patient.read(&file("whole"), 3), Some(vec![0, 1, 2]));
        assert_eq!(patient.read(&file("none"), 3), None);
        std::os::unix::fs::symlink("/there\n", file("link")).expect("a link");
        assert_eq!(patient.link(&file("link")), Some("/there\n".into()));
        assert_eq!(patient.link(&file("whole")), None);
        // Nobody writes to it.
        rustix::fs::mknodat(
            rustix::fs::CWD,
            file("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .expect("a FIFO");
        assert_eq!(patient.read(&file("fifo"), 3), None);
        assert_eq!(patient.read(&file("whole"), 3), None, "a moment later");
        patient.not_before = None;
        assert_eq!(patient.read(&file("fifo"), 3), None);
        assert_eq!(patient.not_before, None, "it was not asked for");
        assert_eq!(patient.read(&file("whole"), 3), Some(vec![0, 1, 2]));
        std::fs::remove_dir_all(dir).expect("it goes");
    }
}
