//! Processes that ran before the session did: attached as they are found, detached at its end.
//!
//! Promise: nothing here waits: each process is attached or detached by a process of ours, and
//! heartbeat and settles go on meanwhile.

use super::finding::Finding;
use super::followers::{Followers, NotReached};
use super::parents::has_ancestor;
use super::reached::{still_held, Reached, UNSEEN};
use super::task::{Doing, Task, Who, LATER, TRIES};
use super::{Outcome, Supervisor};
use crate::reach::attach::refusal::Refusal;
use crate::reach::attach::{target, AttachOutcome, Payload, Work};
use crate::reach::follow::{Follow, Follower, How};
use crate::reach::forkers::{name_of, Forkers};
use crate::reach::program;
use crate::reach::selector::{self, ProcessSelector};
use crate::reach::status::tracer_of;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use synclater_account::escape::Escape;
use synclater_sys::patient::Patient;
use synclater_sys::process;
use synclater_sys::sharing::MemorySurvey;

/// At most so many processes are stopped at a time.
const AT_ONCE: usize = 4;

/// So often in a row it is looked at the end for processes to let go of where some say nothing: a
/// busy machine, too, keeps a look waiting.
const LOOKS: u32 = 4;

/// How long it takes at most to look at all processes, a machine of thousands being busy.
const LOOKED_FOR: Duration = Duration::from_secs(2);

/// Programs that are not reached are named up to this number.
pub(super) const NAMED: usize = 1000;

/// Which processes are to be attached, and what became of them.
pub struct Reach {
    payload: Payload,
    pub(super) whom: ProcessSelector,
    tasks: Vec<Task>,
    pub(super) attached: BTreeMap<Who, Reached>,
    pub(super) refused: BTreeMap<Who, (String, Refusal)>,
    /// Those that were let go of.
    past: Vec<(u32, Reached)>,
    /// Those that ended while they were attached.
    pub(super) gone: Forkers,
    /// Those that were not let go of as a whole, and why.
    held: Vec<(u32, String)>,
    /// Those that could not be let go of.
    stuck: Vec<(u32, Refusal)>,
    /// Those of which it is not known whether there is something to let go of.
    unseen: Vec<u32>,
    /// At so many looks in a row there were some.
    looks: u32,
    /// Since the last look for processes to let go of, one was put back or attached: what it had
    /// forked by then has code of ours.
    may_have_forked: bool,
    detached: u64,
    pause_of_detach: Duration,
    leaving: bool,
    /// Let go of, or about to be.
    left: BTreeSet<Who>,
    /// Attached since the last look.
    fresh: Vec<u32>,
    /// What was told last of those that were named, and neither attached nor refused.
    pub(super) dropped: BTreeMap<u32, String>,
    /// What others executed a moment ago.
    others: MemorySurvey,
    pub(super) followers: Option<Followers>,
    pub(super) finding: Finding,
}

impl Reach {
    /// Nobody yet.
    #[must_use]
    pub fn new(payload: Payload, whom: ProcessSelector) -> Reach {
        Reach {
            finding: Finding::new(&whom),
            payload,
            whom,
            left: BTreeSet::new(),
            fresh: Vec::new(),
            dropped: BTreeMap::new(),
            others: MemorySurvey::nobody(),
            followers: None,
            tasks: Vec::new(),
            attached: BTreeMap::new(),
            refused: BTreeMap::new(),
            past: Vec::new(),
            gone: Forkers::default(),
            held: Vec::new(),
            stuck: Vec::new(),
            unseen: Vec::new(),
            looks: 0,
            may_have_forked: true,
            detached: 0,
            pause_of_detach: Duration::ZERO,
            leaving: false,
        }
    }

    /// Follows those that are attached, and what they start, from now on.
    pub fn follow(&mut self, follower: Follower) {
        self.followers = Some(Followers::new(follower));
    }

    /// Processes that are attached, by number.
    pub fn attached(&self) -> impl Iterator<Item = (u32, &Reached)> {
        self.attached
            .iter()
            .map(|((pid, _), reached)| (*pid, reached))
    }

    /// The same with those that were until they were let go of.
    pub fn reached(&self) -> impl Iterator<Item = (u32, &Reached)> {
        self.attached()
            .chain(self.past.iter().map(|(pid, r)| (*pid, r)))
    }

    /// Processes that could not be attached, and why: number, executable, reason.
    pub fn refused(&self) -> impl Iterator<Item = (u32, &str, &Refusal)> {
        self.refused
            .iter()
            .map(|((pid, _), (exe, why))| (*pid, exe.as_str(), why))
    }

    /// Whether there were some, and each was refused.
    #[must_use]
    pub fn has_only_refused(&self) -> bool {
        self.attached.is_empty() && !self.refused.is_empty()
    }

    /// Whether processes that begin later may be meant, too.
    #[must_use]
    pub fn waits_for_more(&self) -> bool {
        !self.whom.is_closed()
    }

    /// Whether it lets go of its processes.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Whether something is still being done.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let asks = self.followers.as_ref().is_some_and(Followers::is_asking);
        asks || self.is_looking() || !self.tasks.is_empty()
    }

    /// What stays real in the processes that are attached, or were until the end.
    pub fn escaped(&self) -> impl Iterator<Item = Escape> + '_ {
        let not_attached = self.refused().map(|(pid, exe, refusal)| Escape {
            pid,
            exe: exe.to_owned(),
            why: format!("not attached: {}", refusal.why),
            requests: None,
        });
        let in_part = self.reached().filter_map(|(pid, r)| {
            Some(Escape {
                pid,
                exe: r.exe.clone(),
                why: r.stays_real()?,
                requests: None,
            })
        });
        let stuck = self.stuck.iter().map(|(pid, refusal)| {
            let why = format!("not let go of, every request is real: {}", refusal.why);
            (*pid, why)
        });
        let unseen = self.unseen.iter().map(|pid| (*pid, UNSEEN.to_owned()));
        let held = self.held.iter().cloned().chain(stuck).chain(unseen);
        let held = held.map(|(pid, why)| Escape {
            pid,
            exe: program::exe_of(pid),
            why,
            requests: None,
        });
        let followers = self.followers.iter().flat_map(Followers::escaped);
        in_part.chain(not_attached).chain(held).chain(followers)
    }

    /// Processes that could not be let go of.
    #[must_use]
    pub fn stuck(&self) -> &[(u32, Refusal)] {
        &self.stuck
    }

    /// Processes of which it is not known whether there is something to let go of.
    #[must_use]
    pub fn unseen(&self) -> &[u32] {
        &self.unseen
    }

    /// Whether code of some may lead through the gate still.
    #[must_use]
    pub fn has_left_some(&self) -> bool {
        !self.stuck.is_empty() || !self.held.is_empty() || !self.unseen.is_empty()
    }

    pub(super) fn knows(&self, who: Who) -> bool {
        let tasked = self.tasks.iter().map(|t| &t.who);
        let done = self.attached.keys().chain(self.refused.keys());
        let mut known = tasked.chain(done);
        known.any(|w| w.0 == who.0 && program::may_be_same(who.1, w.1))
    }

    /// Whether there may be more to let go of than there was at the last look. What is forked by
    /// those that were put back is as they are: whoever forks fast keeps nobody waiting.
    fn is_to_look(&mut self) -> bool {
        std::mem::take(&mut self.may_have_forked) || self.looks_once_more()
    }

    /// Whether somebody said nothing at the last look, and may at the next one.
    fn looks_once_more(&self) -> bool {
        (1..LOOKS).contains(&self.looks)
    }

    /// Those that may have forked what is found at the end.
    fn forkers(&self) -> Forkers {
        let mut all = self.gone.clone();
        for (pid, r) in self.reached() {
            all.add(&r.exe, &r.name);
            all.add(&r.exe, &name_of(pid));
        }
        all
    }

    /// Detaches what has the session's page and is not being detached yet.
    fn let_go_of_all(&mut self, page: &std::path::Path) {
        let mut all: BTreeSet<Who> = self.attached.keys().copied().collect();
        let seen = selector::in_session(page);
        let forked = seen.found.into_iter();
        all.extend(forked.filter_map(|pid| Some((pid, program::incarnation(pid)?))));
        // What was forked has begun after us.
        let us = process::began(std::process::id());
        let forkers = self.forkers();
        let mut patient = Patient::default();
        let silent = seen.silent.into_iter();
        self.unseen = silent
            .filter(|pid| may_be_forked(*pid, &forkers, us, &mut patient))
            .collect();
        let closed = seen.closed.into_iter();
        self.unseen
            .extend(closed.filter(|pid| forkers.may_have_hidden(*pid, us)));
        self.looks = if self.unseen.is_empty() {
            0
        } else {
            self.looks + 1
        };
        for who in all {
            // What is being attached at this moment is let go of when that is over.
            let is_busy = self.tasks.iter().any(|t| t.who == who);
            if !is_busy && self.left.insert(who) {
                self.put(who, Doing::Detach);
            }
        }
    }

    pub(super) fn put(&mut self, who: Who, doing: Doing) {
        self.tasks.push(Task::new(who, doing));
    }

    /// Starts what may be started.
    fn start(&mut self) {
        let mut free =
            AT_ONCE.saturating_sub(self.tasks.iter().filter(|t| t.work.is_some()).count());
        let nobody = MemorySurvey::nobody();
        let waiting = self.tasks.iter().filter(|t| t.work.is_none()).count();
        let known = if free > 0 && waiting > AT_ONCE {
            self.others.renew();
            &self.others
        } else {
            &nobody
        };
        // Those that were not to be caught wait for those that have not been tried.
        self.tasks.sort_by_key(|t| t.tries);
        for task in self.tasks.iter_mut().filter(|t| t.work.is_none()) {
            if free == 0 || task.not_before > Instant::now() {
                continue;
            }
            let work = match task.doing {
                Doing::Attach => Work::attach(task.who, task.is_new(), &self.payload, known),
                Doing::Detach => Work::detach(task.who.0, self.payload.whose(), known),
            };
            match work {
                Ok(work) => {
                    task.work = Some(work);
                    free -= 1;
                }
                Err(e) => task.again(Refusal::new(e.to_string(), LATER)),
            }
        }
    }

    /// Takes note of what has been done.
    fn finish(&mut self) {
        let mut tasks = std::mem::take(&mut self.tasks);
        tasks.retain_mut(|task| {
            let told = task.work.as_mut().and_then(Work::finished);
            let Some(told) = told else {
                // One that is never caught is given up.
                return !self.gives_up(task);
            };
            let work = task.work.take();
            let stood_still = work.as_ref().map_or(Duration::ZERO, Work::stood_still);
            task.pause = task.pause.max(stood_still);
            if work.as_ref().is_some_and(Work::took_too_long) {
                // Nor would it be let go of the next time, and others wait for their turn.
                task.tries = TRIES;
            } else if matches!(task.doing, Doing::Attach) && work.is_some_and(|w| w.is_slow()) {
                task.tries += TRIES / 5;
            }
            self.note(task, told)
        });
        // What was begun meanwhile.
        tasks.append(&mut self.tasks);
        self.tasks = tasks;
    }

    /// Notes what became of a task; whether it is to be tried again.
    fn note(&mut self, task: &mut Task, told: AttachOutcome) -> bool {
        let (pid, program) = task.who;
        match told {
            AttachOutcome::Busy { why } => {
                task.again(Refusal::new(why, LATER));
                return !self.gives_up(task);
            }
            AttachOutcome::Refused { refusal } if !program::executes(pid, program) => {
                self.drop_one(pid, refusal.why);
            }
            AttachOutcome::Refused { refusal } => match task.doing {
                Doing::Attach => {
                    let exe = program::exe_of(pid);
                    self.refused.insert(task.who, (exe, refusal));
                }
                // Whoever traces it now may be gone a moment later.
                Doing::Detach => {
                    task.again(refusal);
                    return !self.gives_up(task);
                }
            },
            AttachOutcome::Attached { sites, far, open } => {
                let exe = program::exe_of(pid);
                self.may_have_forked = true;
                self.attached.insert(
                    task.who,
                    Reached {
                        exe,
                        name: name_of(pid),
                        sites,
                        far,
                        pause: task.pause,
                        open,
                        how: "attach",
                    },
                );
                self.fresh.push(pid);
                self.follow_from(task.who);
            }
            // It is in another session by now.
            AttachOutcome::Others { refusal } => self.drop_one(pid, refusal.why),
            AttachOutcome::Left { .. } => {}
            AttachOutcome::Detached { marked, sites } => {
                self.may_have_forked |= sites > 0;
                self.held.extend(still_held(marked).map(|why| (pid, why)));
                self.detached += 1;
                self.pause_of_detach = self.pause_of_detach.max(task.pause);
                let reached = self.attached.remove(&task.who);
                self.past.extend(reached.map(|r| (pid, r)));
            }
        }
        false
    }

    /// Has a process that was attached be followed, and what starts its like be watched.
    fn follow_from(&mut self, (pid, (began, _)): Who) {
        // Who is to be attached as well is followed then.
        let parent = process::parent_of(pid)
            .filter(|parent| *parent > 2)
            .filter(|p| !self.whom.exes.is_empty() && !selector::is_synclater(*p))
            .filter(|p| !self.whom.names(*p) && !self.whom.includes(*p, &self.whom.members()));
        let Some(followers) = self.followers.as_mut().filter(|h| !h.is_lost()) else {
            return;
        };
        followers.ask(pid, began, Follow::All);
        let parent = parent.filter(|p| tracer_of(*p) == 0);
        // In this order: it is the parent still, so it is the parent that began then.
        if let Some((parent, began)) =
            parent
                .and_then(|p| Some((p, process::began(p)?)))
                .filter(|(p, _)| {
                    process::parent_of(pid) == Some(*p) && process::began(pid) == Some(began)
                })
        {
            followers.ask(parent, began, Follow::Meant);
        }
    }

    /// Takes note of what those that are followed have executed.
    fn listen(&mut self) {
        let Some(followers) = &mut self.followers else {
            return;
        };
        for (pid, told) in followers.listen() {
            let program = program::incarnation(pid);
            match (told, program) {
                (Ok(()), None) => {}
                (Ok(()), Some(program)) => {
                    let reached = Reached {
                        exe: program::exe_of(pid),
                        name: name_of(pid),
                        sites: 0,
                        far: 0,
                        pause: Duration::ZERO,
                        open: target::open(pid),
                        how: How::Sites.word(),
                    };
                    self.attached.insert((pid, program), reached);
                    self.fresh.push(pid);
                }
                (Err(NotReached { exe, why }), _) if self.refused.len() < NAMED => {
                    // It may have ended since; if it was ending then, it has no executable.
                    let who = (pid, program.unwrap_or_default());
                    if program.is_some() || exe.starts_with('/') {
                        let refusal = Refusal::new(why, "synclater run --follow -- COMMAND");
                        self.refused.insert(who, (exe, refusal));
                    }
                }
                (Err(_), _) => {}
            }
        }
    }

    fn gives_up(&mut self, task: &Task) -> bool {
        let (pid, program) = task.who;
        let gone = !program::executes(pid, program);
        if task.work.is_some() || (!gone && task.tries < TRIES) {
            return false;
        }
        if gone {
            self.drop_one(pid, task.last.why.clone());
            return true;
        }
        let why = format!("tried {} times: {}", task.tries, task.why());
        let refusal = Refusal::new(why, &task.last.try_);
        match task.doing {
            Doing::Attach => {
                self.refused
                    .insert(task.who, (program::exe_of(pid), refusal));
            }
            Doing::Detach => self.stuck.push((pid, refusal)),
        }
        true
    }
}

impl Supervisor {
    /// Attaches processes from now on.
    pub fn reach_out(&mut self, reach: Reach) {
        self.ways.reach = Some(reach);
    }

    /// What was attached, where this session attaches.
    #[must_use]
    pub fn reach(&self) -> Option<&Reach> {
        self.ways.reach.as_ref()
    }

    /// Runs the loop until everything that was found at the beginning is attached or refused.
    pub fn run_until_reached(&mut self) {
        self.attend();
        loop {
            self.turn();
            if self.command.outcome.is_some()
                || self.ways.reach.as_ref().is_none_or(|r| !r.is_busy())
            {
                return;
            }
        }
    }

    /// Runs the loop until the session is to end and every process has been let go of.
    pub fn run_until_left(&mut self) -> Outcome {
        loop {
            if let Some(outcome) = self.command.outcome {
                return outcome;
            }
            self.turn();
        }
    }

    /// Ends the relaxation and lets go of every process.
    pub fn leave(&mut self) {
        self.relax(false);
        if self.ways.reach.as_ref().is_some_and(|r| !r.leaving) {
            self.seen.escapes.drain();
            let counted = self.seen.census.processes(self.session.shared);
            let rules = self.session.plan.rules.as_ref();
            self.seen.escapes.find_at_last(&counted, rules);
        }
        let Some(reach) = self.ways.reach.as_mut().filter(|r| !r.leaving) else {
            return;
        };
        reach.leaving = true;
        reach.finding.stop();
        reach.listen();
        // Nobody else may trace them when they are let go of.
        if let Some(followers) = reach.followers.take() {
            followers.end();
        }
        // What has not begun is not begun any more.
        reach.tasks.retain(|t| t.work.is_some());
        self.let_go_of_all();
    }

    /// Has all be let go of. To look for them may take a while, in which nothing is settled.
    fn let_go_of_all(&mut self) {
        self.start_due_within(LOOKED_FOR);
        if let Some(reach) = &mut self.ways.reach {
            reach.let_go_of_all(&self.session.shared.path);
        }
    }

    pub(super) fn look_at_reach(&mut self) {
        if self.ways.reach.is_none() || self.command.outcome.is_some() {
            return;
        }
        let is_over = self
            .session
            .plan
            .ends
            .is_some_and(|end| Instant::now() >= end);
        if self.command.interrupts > 0 || self.command.hung_up || is_over {
            self.leave();
        }
        let Some(reach) = self.ways.reach.as_mut() else {
            return;
        };
        reach.listen();
        reach.finish();
        if !reach.leaving {
            reach.look();
        }
        if reach.leaving && !reach.is_busy() && reach.is_to_look() {
            // What was forked or attached meanwhile.
            self.let_go_of_all();
        }
        let Some(reach) = self.ways.reach.as_mut() else {
            return;
        };
        reach.start();
        let idle = !reach.is_busy() && !reach.looks_once_more();
        let leaving = reach.leaving;
        let lost = reach.has_lost_everybody();
        let fresh = std::mem::take(&mut reach.fresh);
        for pid in fresh {
            self.seen.escapes.include(pid, &program::exe_of(pid));
        }
        if idle && leaving {
            self.command.outcome.get_or_insert(Outcome::Exited(0));
        } else if idle && lost {
            // What they have forked may live on.
            self.leave();
            let reach = self.ways.reach.as_ref();
            if !reach.is_some_and(|r| r.is_busy() || r.looks_once_more()) {
                self.command.outcome.get_or_insert(Outcome::Exited(0));
            }
        }
    }

    /// Whether `pid`, or one of its ancestors, was attached: it may have the slots and the rings.
    pub(super) fn has_attached(&self, pid: u32) -> bool {
        let Some(reach) = &self.ways.reach else {
            return false;
        };
        has_ancestor(pid, |at| reach.attached().any(|(p, _)| p == at))
    }
}

impl Reach {
    /// Whether only certain processes were asked for, and they are all gone.
    fn has_lost_everybody(&self) -> bool {
        let is_followed = self
            .followers
            .as_ref()
            .is_some_and(|h| h.has_some() || h.is_asking());
        !self.waits_for_more() && self.attached.is_empty() && !is_followed
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.tasks
            .iter()
            .filter_map(|t| t.work.as_ref())
            .map(AsFd::as_fd)
            .chain(
                self.followers
                    .iter()
                    .filter(|h| !h.is_lost())
                    .map(AsFd::as_fd),
            )
    }

    /// When to look again although nothing happened.
    pub(super) fn next(&self) -> Option<Instant> {
        let waiting = self.tasks.iter().filter(|t| t.work.is_none());
        let look = (!self.leaving).then(|| self.finding.next());
        waiting.map(|t| t.not_before).chain(look).min()
    }

    /// How many processes were let go of, and the longest that one stood still for it.
    #[must_use]
    pub fn let_go(&self) -> (u64, Duration) {
        (self.detached, self.pause_of_detach)
    }
}

/// Whether a process that said nothing may have been forked by one of `forkers` since `us`, in
/// ticks.
fn may_be_forked(pid: u32, forkers: &Forkers, us: Option<u64>, patient: &mut Patient) -> bool {
    let is_like_one = forkers.execute_the_same(pid);
    if !is_like_one && !forkers.are_called_like(pid) {
        return false;
    }
    let began = patient.began(pid);
    let is_young = began.is_none_or(|began| Some(began) >= us);
    is_young
        && process::is_alive(pid)
        && (is_like_one || (began.is_some() && forkers.may_have_hidden(pid, us)))
}
