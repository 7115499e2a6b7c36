//! Goes through the states, several at a time.

use super::disk::state::State;
use super::fs::Plan;
use super::judge::{self, Acknowledged, Check, Conditions, Verdict};
use super::station::Station;
use super::tree;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use synclater_powercut::cuts::{Cut, Moment, Reached};
use synclater_powercut::log::{Image, Log, Voice};
use synclater_powercut::store::Store;
use synclater_powercut::tree::Tree;
use synclater_sys::contain;
use synclater_sys::lock::lock;

/// How often the caller is asked whether to go on.
const LOOK: Duration = Duration::from_millis(50);

/// What came of one state.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The state.
    pub cut: Cut,
    /// What was thought of it.
    pub verdict: Verdict,
}

/// How states are looked at.
pub struct Laboratory<'a> {
    /// The file system.
    pub plan: &'a Plan,
    /// Who judges.
    pub check: &'a Check,
    /// Under which it judges.
    pub conditions: Conditions,
    /// On which the program acknowledged.
    pub voice: Voice,
    /// A folder for stations.
    pub dir: &'a Path,
    /// Where states are mounted: where the program ran.
    pub place: &'a Path,
    /// Contents.
    pub store: Arc<RwLock<Store>>,
    /// Whether the file system's own check looks at each state too.
    pub fsck: bool,
    /// Workers.
    pub workers: usize,
}

/// One that looks at states.
struct Worker<'a> {
    lab: &'a Laboratory<'a>,
    station: Station<State>,
    acks: PathBuf,
    scratch: PathBuf,
}

impl Worker<'_> {
    /// Judges a state, and one that is bad once more, mounted anew: a check, or a recovery, may
    /// fail by chance.
    fn judge_twice(&self, log: &Log, cut: &Cut, image: Image) -> io::Result<Verdict> {
        let first = self.judge(log, cut, image.clone())?;
        let (Verdict::Bad(said) | Verdict::Hangs(said)) = first else {
            return Ok(first);
        };
        Ok(match self.judge(log, cut, image)? {
            Verdict::Bad(_) | Verdict::Hangs(_) => Verdict::Bad(said),
            Verdict::Good => Verdict::Flaky(said),
            other => other,
        })
    }

    fn judge(&self, log: &Log, cut: &Cut, image: Image) -> io::Result<Verdict> {
        self.station.disk.become_image(image);
        let said = log.said(self.lab.voice, cut.at);
        let lines = said.iter().filter(|b| **b == b'\n').count();
        std::fs::write(&self.acks, said)?;
        let acks = Acknowledged {
            file: self.acks.clone(),
            lines,
        };
        let mounted = match self.station.try_mount()? {
            Ok(mounted) => mounted,
            Err(e) => return Ok(Verdict::Bad(format!("it cannot be mounted: {e}"))),
        };
        let check = self.lab.check;
        let verdict = check.judge(mounted.path(), &acks, &self.scratch, &self.lab.conditions)?;
        mounted.end_while(|| judge::end_strays(&self.scratch))?;
        if self.lab.fsck && verdict == Verdict::Good {
            let device = self.station.device()?;
            let damage = self.lab.plan.check(device.path())?;
            device.end();
            return Ok(damage.map_or(Verdict::Good, Verdict::Bad));
        }
        Ok(verdict)
    }
}

impl Laboratory<'_> {
    fn worker(&self, number: usize) -> io::Result<Worker<'_>> {
        self.named_worker(&format!("worker-{number}"))
    }

    fn named_worker(&self, name: &str) -> io::Result<Worker<'_>> {
        let dir = self.dir.join(name);
        let disk = Arc::new(State::new(self.store.clone()));
        Ok(Worker {
            lab: self,
            station: Station::new(disk, self.plan, dir.clone(), self.place)?,
            acks: dir.join("acknowledged"),
            scratch: dir.join("said"),
        })
    }

    /// Judges a disk as it is, with everything acknowledged that was said in `log`.
    ///
    /// # Errors
    /// Where it cannot be looked at.
    pub fn judge_image(&self, name: &str, log: &Log, image: Image) -> io::Result<Verdict> {
        let end = Cut {
            at: log.ops.len(),
            moment: Moment::End,
            reached: Reached::Everything,
        };
        self.named_worker(name)?.judge(log, &end, image)
    }

    /// What lies in the folder of a state, before any check has touched it.
    ///
    /// # Errors
    /// Where it cannot be looked at.
    pub fn look(&self, name: &str, log: &Log, cut: &Cut) -> io::Result<Tree> {
        let disk = Arc::new(State::new(self.store.clone()));
        disk.become_image(log.state(cut));
        let station = Station::new(disk, self.plan, self.dir.join(name), self.place)?;
        let mounted = station.mount()?;
        let tree = tree::read(mounted.path())?;
        mounted.end()?;
        Ok(tree)
    }

    /// Judges states in turn; `hear` gets each, and says whether to go on. It is asked also where
    /// there is nothing new.
    ///
    /// # Errors
    /// Where a state cannot be looked at.
    pub fn search(
        &self,
        log: &Log,
        cuts: impl Iterator<Item = (Cut, Image)> + Send,
        mut hear: impl FnMut(Option<Judged>) -> bool,
    ) -> io::Result<()> {
        let cuts = Mutex::new(cuts);
        let over = AtomicBool::new(false);
        let workers: Vec<Worker<'_>> = (0..self.workers)
            .map(|n| self.worker(n))
            .collect::<io::Result<_>>()?;
        let (to, from) = channel();
        std::thread::scope(|scope| {
            for worker in &workers {
                let (to, cuts, over) = (to.clone(), &cuts, &over);
                scope.spawn(move || {
                    // All of them mount at one place.
                    if let Err(e) = contain::part_mounts() {
                        let _ = to.send(Err(e));
                        return;
                    }
                    while !over.load(SeqCst) {
                        let next = lock(cuts).next();
                        let Some((cut, image)) = next else {
                            break;
                        };
                        let judged = worker.judge_twice(log, &cut, image);
                        if to
                            .send(judged.map(|verdict| Judged { cut, verdict }))
                            .is_err()
                        {
                            break;
                        }
                    }
                });
            }
            drop(to);
            let mut failure = Ok(());
            loop {
                let go_on = match from.recv_timeout(LOOK) {
                    Ok(Ok(judged)) => hear(Some(judged)),
                    Ok(Err(e)) => {
                        failure = Err(e);
                        false
                    }
                    Err(RecvTimeoutError::Timeout) => hear(None),
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                if !go_on {
                    over.store(true, SeqCst);
                }
            }
            failure
        })
    }
}
