//! `synclater probe`: what a sync costs on this disk.

use super::OURS;
use crate::probe::{measure, Kind, ScratchFolder};
use crate::session::mounts::mounts_of;
use crate::session::probed::Probed;
use crate::session::told;
use crate::voice;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use synclater_account::probe::{Measured, Probe};
use synclater_policy::duration::{format_duration, parse_duration};
use synclater_proc::mountinfo::{mount_of, Mount};
use synclater_sys::signal;
use synclater_sys::signal::Signals;
use synclater_text::message::Trouble;

/// Measures what syncs cost on the disk of a folder, and how much that varies.
///
/// Each kind of sync is made by 1, 2, 4... threads at once, each after 4 KiB appended to a file of
/// its own. What is written is removed in the end; Ctrl-C ends it early and removes it too. For a
/// day, and until the next boot, runs that put syncs off on the same file system tell by it how
/// much time they have saved.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A folder on the disk.
    #[arg(default_value = ".")]
    dir: PathBuf,

    /// The most threads at once.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,

    /// How long each kind is measured with each number of threads.
    #[arg(long = "for", value_name = "T", default_value = "500ms", value_parser = parse_duration)]
    for_: Duration,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater probe /var/spool
  synclater probe --threads 16 --for 5s --json /srv";

/// Measures and prints.
///
/// # Errors
/// A [`Trouble`] where the folder cannot be written.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let nothing = "nothing was written";
    let dir = std::fs::canonicalize(&args.dir);
    let dir = dir.map_err(|e| cannot_measure(args, e.to_string(), nothing))?;
    let signals = Signals::take();
    let signals = signals.map_err(|e| cannot_measure(args, e.to_string(), nothing))?;
    let place = ScratchFolder::new(&dir).map_err(|e| {
        let why = format!("no folder can be made there: {e}");
        cannot_measure(args, why, nothing)
    })?;
    let until_it_is_noted = place.marked();
    let stop = AtomicBool::new(false);
    let mut probe = about(&dir);
    let ended_by = std::thread::scope(|scope| {
        let work = scope.spawn(|| measure_all(args, &place, &stop, &mut probe));
        let mut ended_by = None;
        while !work.is_finished() {
            use std::os::fd::AsFd;
            let arrived = [(signals.as_fd(), synclater_sys::wait::For::Input)];
            let _ = synclater_sys::wait::any(&arrived, Duration::from_millis(20));
            while let Some(signal) = signals.next() {
                if signal.ends() {
                    stop.store(true, Relaxed);
                    ended_by = Some(signal.number);
                }
            }
        }
        work.join().expect("it does not panic").map(|()| ended_by)
    });
    drop(place);
    if std::io::stderr().is_terminal() {
        voice::say("\r\x1b[K");
    }
    if let Err(e) = &ended_by {
        told::note_of_ours(e, &dir);
    }
    drop(until_it_is_noted);
    let removed = "what was written is removed";
    match ended_by.map_err(|e| cannot_measure(args, e.to_string(), removed))? {
        Some(signal) => {
            signal::die_of(signal);
            Ok(OURS)
        }
        None if probe.syncs.is_empty() => {
            let why = format!("no sync was over within {}", format_duration(args.for_));
            let what = format!("nothing was measured in {}", args.dir.display());
            let state = "what was written is removed; what was measured before stays";
            Err(Trouble::new(what, why, "a longer time: --for 3s", state).into())
        }
        None => {
            // It is of use to later runs, and no part of what was asked for.
            let _ = Probed::keep(&dir, &probe);
            voice::print(&if args.json {
                probe.to_json()
            } else {
                probe.render()
            })?;
            Ok(0)
        }
    }
}

fn cannot_measure(args: &Args, why: String, state: &str) -> Trouble {
    let what = format!("cannot measure in {}", args.dir.display());
    let try_ = "name a folder that you can write, with room";
    Trouble::new(what, why, try_, state)
}

fn measure_all(
    args: &Args,
    place: &ScratchFolder,
    stop: &AtomicBool,
    probe: &mut Probe,
) -> std::io::Result<()> {
    let powers = (0..)
        .map(|k| 1usize << k)
        .take_while(|n| *n <= args.threads.into());
    let powers: Vec<usize> = powers.collect();
    let total = Kind::ALL.len() * powers.len();
    let mut done = 0;
    for kind in Kind::ALL {
        for &threads in &powers {
            progress(done, total, kind, args.for_);
            done += 1;
            match measure(place, kind, threads, args.for_, stop) {
                Ok(s) => {
                    let m = Measured::new(kind.name(), threads, s.took_s, s.wall_s);
                    probe.syncs.extend(m);
                }
                Err(e) if is_refusal(&e) => {
                    probe.refused.push((kind.name().into(), e.to_string()));
                    break;
                }
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

/// Whether the file system lacks this kind (EOPNOTSUPP, ENOSYS, EINVAL).
fn is_refusal(e: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let refusals = [Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL];
    refusals
        .iter()
        .any(|r| e.raw_os_error() == Some(r.raw_os_error()))
}

fn progress(done: usize, total: usize, kind: Kind, each: Duration) {
    if std::io::stderr().is_terminal() {
        let left = each.as_secs_f64() * (total - done) as f64;
        let name = kind.name();
        voice::say(&format!(
            "\r\x1b[Ksynclater: {name}, {done} of {total}, {left:.0} s left"
        ));
    }
}

fn about(dir: &Path) -> Probe {
    let mounts = mounts_of("self");
    let mount = mount_of(&mounts, dir);
    Probe {
        version: 1,
        dir: dir.to_string_lossy().into_owned(),
        mount: known_of(mount, |m| m.path().to_string_lossy().into_owned()),
        fstype: known_of(mount, |m| m.fstype.clone()),
        device: known_of(mount, |m| m.source.clone()),
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        syncs: Vec::new(),
        refused: Vec::new(),
    }
}

fn known_of(mount: Option<&Mount>, what: impl Fn(&Mount) -> String) -> String {
    mount.map_or("unknown".into(), what)
}
