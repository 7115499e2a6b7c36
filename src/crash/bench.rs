//! Runs of the program, each on a fresh copy of the same disk.

use super::closing::{self, Closing};
use super::disk::recorded::{Faults, Recorded};
use super::fs::Plan;
use super::station::Station;
use super::tree;
use super::victim::{self, Ending};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use synclater_powercut::log::{Image, Log, Voice};
use synclater_powercut::store::Store;
use synclater_powercut::tree::Tree;
use synclater_sys::lock::lock;
use synclater_text::message::Trouble;

/// What all runs have in common.
pub struct Bench<'a> {
    /// The file system.
    pub plan: &'a Plan,
    /// A folder for stations.
    pub dir: &'a Path,
    /// Where the file system is mounted, in each run: what lies there may name itself by its path.
    pub place: &'a Path,
    /// Contents.
    pub store: Arc<RwLock<Store>>,
    /// What is run.
    pub victim: &'a victim::Plan,
    /// What the disk does wrong.
    pub faults: Faults,
}

/// One run.
pub struct Run {
    /// What happened to the disk.
    pub log: Log,
    /// How the program ended.
    pub ending: Ending,
    /// Processes that it had left running.
    pub more: usize,
    /// What lay in the folder in the beginning, at each acknowledgement, and in the end; nothing
    /// where nobody asked for that.
    pub trees: Vec<Arc<Tree>>,
    /// The file with its recording.
    pub recording: PathBuf,
    /// Where its folder was.
    pub place: PathBuf,
    /// Syncs of what was there in the end.
    pub left: Vec<Closing>,
    /// The disk after a clean unmount.
    pub after: Image,
}

fn trouble(what: &str, e: &io::Error) -> Trouble {
    let try_ = "look at dmesg; run it again";
    Trouble::new(what, e.to_string(), try_, "nothing of it is left")
}

impl Bench<'_> {
    /// The voice by which the program acknowledges.
    #[must_use]
    pub fn voice(&self) -> Voice {
        match self.victim.ack_fd {
            Some(_) => Voice::Ack,
            None => Voice::Out,
        }
    }

    fn station(&self, name: &str, image: Image) -> io::Result<Station<Recorded>> {
        let disk = Arc::new(Recorded::new(self.store.clone(), image));
        Station::new(disk, self.plan, self.dir.join(name), self.place)
    }

    /// A disk with an empty file system, on which `set_up` was run, if anything.
    ///
    /// # Errors
    /// A [`Trouble`] where it cannot be made, or that command fails.
    pub fn prepare(
        &self,
        set_up: Option<&OsStr>,
        stop: impl FnMut() -> bool,
    ) -> Result<Image, Trouble> {
        let sectors = (self.plan.size / u64::from(self.plan.sector)) as usize;
        let what = "cannot make the laboratory's disk";
        let station = self.station("new", Image::zeros(sectors));
        let station = station.map_err(|e| trouble(what, &e))?;
        let device = station.device().map_err(|e| trouble(what, &e))?;
        self.plan.make(device.path())?;
        device.end();
        if let Some(line) = set_up {
            let mounted = station.mount().map_err(|e| self.unmountable(&e))?;
            let status = victim::set_up(line, mounted.path(), self.victim, stop);
            let status = status.map_err(|e| trouble(what, &e))?;
            mounted.end().map_err(|e| trouble(what, &e))?;
            if status != Some(0) {
                return Err(set_up_failed(status));
            }
        }
        Ok(station.disk.now())
    }

    /// Runs the program on a copy of `base`.
    ///
    /// # Errors
    /// A [`Trouble`] where it cannot be started, or writes more than the memory has room for.
    pub fn run(
        &self,
        number: usize,
        base: &Image,
        before: &Before,
        stop: impl FnMut() -> bool,
    ) -> Result<Run, Trouble> {
        let what = "cannot run the program on the laboratory's disk";
        let name = format!("run-{number}");
        let station = self.station(&name, base.clone());
        let station = station.map_err(|e| trouble(what, &e))?;
        station.disk.begin();
        let mounted = station.mount().map_err(|e| self.unmountable(&e))?;
        station.disk.misbehave(self.faults);
        let place = station.place();
        let trees = self.attend(&station, before);
        let trees = trees.map_err(|e| trouble(what, &e))?;
        let recording = self.dir.join(format!("{name}.recording"));
        let ended = self.victim.run(&station, &recording, stop);
        let (ending, more) = ended.map_err(|e| trouble(what, &e))?;
        if let Some(closing) = &before.make {
            closing.make(&place);
        }
        let log = station.disk.end(ending.number());
        if station.disk.is_overfull() {
            return Err(overfull());
        }
        if let Some(trees) = &trees {
            seen(trees, &place, 1);
        }
        let left = closing::left_in(&place);
        mounted.end().map_err(|e| trouble(what, &e))?;
        let after = station.disk.now();
        let trees = trees.map_or(Ok(Vec::new()), |trees| {
            std::mem::replace(&mut *lock(&trees), Ok(Vec::new()))
        });
        Ok(Run {
            log,
            ending,
            more,
            trees: trees.map_err(cannot_read)?,
            recording,
            place,
            left,
            after,
        })
    }

    fn unmountable(&self, e: &io::Error) -> Trouble {
        let (name, options) = (self.plan.kind.name(), &self.plan.options);
        let with = match options.as_str() {
            "" => String::new(),
            options => format!(" with the options {options}"),
        };
        let what = format!("cannot mount {name}{with} on the laboratory's disk");
        let try_ = "look at dmesg for the reason; other options, another --fs";
        Trouble::new(
            what,
            e.to_string(),
            try_,
            "the command was not run; nothing of it is left",
        )
    }

    /// Has done what is to be done before each acknowledgement.
    fn attend(&self, station: &Station<Recorded>, before: &Before) -> io::Result<Option<Trees>> {
        if *before == Before::default() {
            return Ok(None);
        }
        let (voice, place, make) = (self.voice(), station.place(), before.make.clone());
        let first = if before.look {
            Some(Arc::new(tree::read(&place)?))
        } else {
            None
        };
        let trees = first.map(|first| Arc::new(Mutex::new(Ok(vec![first]))));
        let seeing = trees.clone();
        closing::attend(&station.disk, move |said| {
            if said.voice == voice {
                make.iter().for_each(|closing| closing.make(&place));
                seeing
                    .iter()
                    .for_each(|trees| seen(trees, &place, said.lines()));
            }
        });
        Ok(trees)
    }
}

fn set_up_failed(status: Option<i32>) -> Trouble {
    let why = match status {
        Some(status) => format!("its exit status is {status}"),
        None => "it took too long (--for), or was ended by a signal".to_owned(),
    };
    let try_ = "run it by hand in an empty folder";
    let state = "nothing was tried; nothing of it is left";
    Trouble::new("the --setup command failed", why, try_, state)
}

/// What is done before each acknowledgement, while the program waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// A sync.
    pub make: Option<Closing>,
    /// Everything that lies in the folder is looked at, behind that.
    pub look: bool,
}

type Trees = Arc<Mutex<io::Result<Vec<Arc<Tree>>>>>;

/// Looks at the folder, and notes what is there so many times.
fn seen(trees: &Trees, place: &Path, times: usize) {
    let mut trees = lock(trees);
    if let (Ok(list), 1..) = (&mut *trees, times) {
        match tree::read(place) {
            Ok(tree) => {
                let same = list.last().filter(|last| ***last == tree).cloned();
                let tree = same.unwrap_or_else(|| Arc::new(tree));
                list.extend(std::iter::repeat_n(tree, times));
            }
            Err(e) => *trees = Err(e),
        }
    }
}

fn cannot_read(e: io::Error) -> Trouble {
    let why = match e.kind() {
        io::ErrorKind::FileTooLarge => "it is more than 256 MiB or 20,000 files".to_owned(),
        _ => e.to_string(),
    };
    let what = "cannot look at the folder at each acknowledgement";
    Trouble::new(
        what,
        why,
        "a `--check CMD` of your own",
        "no power was cut; nothing is left",
    )
}

fn overfull() -> Trouble {
    Trouble::new(
        "the command wrote more than the laboratory can keep",
        "that is half of the memory that was free, since the disk is in memory",
        "let it write less",
        "no power was cut; nothing is left",
    )
}
