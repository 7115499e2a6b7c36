//! Runs of the program, each on a fresh copy of the same disk.

use super::closing::{self, Closing};
use super::disk::{Faults, Recorded};
use super::fs::Plan;
use super::station::Station;
use super::victim::{self, Ending};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, RwLock};
use synclater_model::crash::log::{Image, Log, Voice};
use synclater_model::crash::store::Store;
use synclater_model::report::message::Trouble;

/// What all runs have in common.
pub struct Bench<'a> {
    /// The file system.
    pub plan: &'a Plan,
    /// A folder for stations.
    pub dir: &'a Path,
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
    /// Syncs of what was there in the end.
    pub left: Vec<Closing>,
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
        Station::new(disk, self.plan, self.dir.join(name))
    }

    /// A disk with an empty file system, on which `set_up` was run, if anything.
    ///
    /// # Errors
    /// A [`Trouble`] where it cannot be made, or that command fails.
    pub fn prepare(&self, set_up: Option<&OsStr>) -> Result<Image, Trouble> {
        let sectors = (self.plan.size / u64::from(self.plan.sector)) as usize;
        let what = "cannot make the laboratory's disk";
        let cannot = |e: io::Error| trouble(what, &e);
        let station = self.station("new", Image::zeros(sectors)).map_err(cannot)?;
        let device = station.device().map_err(cannot)?;
        self.plan.make(device.path())?;
        device.end();
        if let Some(line) = set_up {
            let mounted = station.mount().map_err(cannot)?;
            let status =
                victim::set_up(line, mounted.path(), &self.victim.inherited).map_err(cannot)?;
            mounted.end().map_err(cannot)?;
            if status != 0 {
                return Err(Trouble::new(
                    "the --setup command failed",
                    format!("its exit status is {status}"),
                    "run it by hand in an empty folder",
                    "nothing was tried; nothing of it is left",
                ));
            }
        }
        Ok(station.disk.now())
    }

    /// Runs the program on a copy of `base`, with `closing` made before each acknowledgement.
    ///
    /// # Errors
    /// A [`Trouble`] where it cannot be started.
    pub fn run(
        &self,
        number: usize,
        base: &Image,
        closing: Option<&Closing>,
        stop: impl FnMut() -> bool,
    ) -> Result<Run, Trouble> {
        let cannot = |e: io::Error| trouble("cannot run the program on the laboratory's disk", &e);
        let name = format!("run-{number}");
        let station = self.station(&name, base.clone()).map_err(cannot)?;
        station.disk.begin(self.faults);
        let mounted = station.mount().map_err(cannot)?;
        if let Some(closing) = closing {
            closing::attend(&station.disk, closing, self.voice(), &station.place());
        }
        let recording = self.dir.join(format!("{name}.recording"));
        let ending = self
            .victim
            .run(&station, &recording, stop)
            .map_err(cannot)?;
        if let Some(closing) = closing {
            closing.make(&station.place());
        }
        let log = station.disk.end(ending.number());
        let left = closing::left_in(&station.place());
        mounted.end().map_err(cannot)?;
        Ok(Run { log, ending, left })
    }
}
