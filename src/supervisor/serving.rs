//! Answers to others: the control socket, and victims that ask for the slots.

use super::parents::is_descendant;
use super::reached::{not_let_go, not_seen};
use super::Supervisor;
use crate::reach::program::{incarnation, Incarnation};
use crate::session::compile::now_mask;
use crate::session::control::{Answer, Client, Request};
use crate::session::shared::Room;
use crate::supervisor::last_report::LastReport;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_account::ps::by_rules;
use synclater_account::run::RunReport;
use synclater_policy::dial::Until;

/// How many are heard in a row who ask for the slots: more than can wait at the door.
const ASKED_AT_ONCE: usize = 256;

/// How long that may take: heartbeat and debts wait for it. Ten times as long nobody is heard then.
const SLOTS_FOR: Duration = Duration::from_millis(50);

/// How long it is looked in all whether askers of one user are ours that are not; ten times as long
/// none of his is looked at then.
const STRANGERS_FOR: Duration = Duration::from_millis(5);

/// So many users are known who do that.
const USERS_MAX: usize = 64;

/// Users whose processes asked for the slots and were none of ours.
#[derive(Default)]
pub(super) struct Strangers(BTreeMap<u32, Looked>);

/// How long it was looked at a user's, and until when it is not.
#[derive(Default)]
struct Looked {
    took: Duration,
    not_before: Option<Instant>,
}

impl Strangers {
    fn wait(&self, uid: u32) -> bool {
        let looked = self.0.get(&uid);
        let until = looked.and_then(|l| l.not_before);
        until.is_some_and(|until| Instant::now() < until)
    }

    fn is_none_of_ours(&mut self, uid: u32, took: Duration) {
        if self.0.len() >= USERS_MAX && !self.0.contains_key(&uid) {
            self.0.clear();
        }
        let looked = self.0.entry(uid).or_default();
        looked.took += took;
        if looked.took > STRANGERS_FOR {
            looked.not_before = Some(Instant::now() + looked.took * 10);
            looked.took = Duration::ZERO;
        }
    }
}

impl Supervisor {
    /// Gives members the slots and rings of the user that they are, as the kernel says. Where there
    /// are too many users it gives none: then every request of theirs is real.
    pub(super) fn hand_out_slots(&mut self) {
        if !self.doors.are_strangers_heard() {
            return;
        }
        let begun = Instant::now();
        for _ in 0..ASKED_AT_ONCE {
            if begun.elapsed() > SLOTS_FOR {
                self.doors.strangers_wait = Some(Instant::now() + begun.elapsed() * 10);
                return;
            }
            let Ok((stream, _)) = self.doors.slots_door.accept() else {
                return;
            };
            let Ok(peer) = synclater_sys::socket::peer(&stream) else {
                continue;
            };
            // Anybody can ask, from the end of a long line of parents, and as often as he likes.
            let looked = Instant::now();
            let is_ours = !self.doors.strangers.wait(peer.uid)
                && (is_descendant(peer.pid) || self.has_attached(peer.pid));
            if !is_ours {
                // No pause for all of them: a line that is full keeps out who waits for a place.
                self.doors
                    .strangers
                    .is_none_of_ours(peer.uid, looked.elapsed());
                continue;
            }
            // Behind that look: it was this process's number all the time.
            if synclater_sys::socket::peer_has_ended(&stream) {
                continue;
            }
            let taken = self.session.shared.others().taken();
            let Some(room) = self.session.shared.room_of(peer.uid) else {
                continue;
            };
            if room != Room::Own {
                // It waits for us, so it is there to be looked at.
                self.seen.census.members.introduce(peer.uid, peer.pid);
            }
            if self.session.shared.others().taken() > taken {
                // Everybody looks where requests lie now: the page has to say where that is.
                self.look_at_slots();
            }
            let mut fds = vec![self.session.shared.slots_file(room).as_fd()];
            let rings = self.recordings.rings.and_then(|r| r.file(room));
            fds.extend(rings.map(AsFd::as_fd));
            let _ = synclater_sys::socket::send(&stream, b"s", &fds);
        }
    }

    pub(super) fn serve(&mut self) {
        while let Some((client, request)) = self.doors.server.next() {
            match request {
                Err(why) => client.answer(&Answer::refused(why)),
                Ok(Request::Hello) => client.answer(&Answer::Done {
                    said: String::new(),
                }),
                Ok(Request::Ps) => {
                    let session = Box::new(self.describe());
                    client.answer(&Answer::Session { session });
                }
                Ok(Request::Settle) => {
                    self.settle_all();
                    self.paying.rounds = self.filesystems.owing().len().saturating_sub(1);
                    self.answer_once_settled(client, None);
                }
                Ok(Request::Detach { json }) => self.detach(client, json),
                Ok(Request::Watch) => self.watch(client),
                Ok(Request::Set { until, for_s }) => {
                    let is_now = until.as_deref() == Some("now");
                    let had_lost = self.paying.paid.error.is_some();
                    match self.set(until, for_s) {
                        // What was put off before is durable when it is told.
                        Answer::Done { said }
                            if is_now
                                || !self.paying.schedule.is_idle()
                                || self.paying.paid.error.is_some() != had_lost =>
                        {
                            self.answer_once_settled(client, Some(said));
                        }
                        answer => client.answer(&answer),
                    }
                }
            }
        }
    }

    fn answer_once_settled(&mut self, client: Client, said: Option<String>) {
        self.hear_failed_flushes();
        if self.paying.schedule.is_idle() {
            return client.answer(&self.settle_answer(said));
        }
        self.paying.settle_clients.push((client, said));
    }

    /// Begins to end a session that was attached; the client waits for the report.
    fn detach(&mut self, client: Client, json: bool) {
        if self.ways.reach.is_none() {
            let why = "it was started by `synclater run`, and ends with its command";
            let remedy = format!("synclater set {} --until now", self.session.plan.id);
            return client.answer(&Answer::refused_but(why, remedy));
        }
        self.doors.detach_clients.push((client, json));
        self.leave();
    }

    /// Tells whoever asked for the end of the session what it came to; where nobody did, that is
    /// kept for whoever asks later.
    pub fn answer_detach(&mut self, report: RunReport) {
        let last = LastReport {
            let_go: self.ways.reach.as_ref().map_or(0, |r| r.let_go().0),
            is_whole: crate::supervisor::report::is_whole(self),
            stuck: self.stuck_now(),
            report,
        };
        let wrong = self.not_let_go();
        if self.doors.detach_clients.is_empty() {
            // Nobody hears where that cannot be.
            let _ = last.keep();
        }
        for (client, json) in std::mem::take(&mut self.doors.detach_clients) {
            client.answer(&Answer::Ended {
                said: last.said(json),
                wrong: wrong.clone(),
                status: last.report.exit_status,
            });
        }
    }

    /// Processes that could not be let go of, or may not have been, and what they execute.
    fn stuck_now(&self) -> Vec<(u32, Incarnation)> {
        let Some(reach) = &self.ways.reach else {
            return Vec::new();
        };
        let stuck = reach.stuck().iter().map(|(pid, _)| *pid);
        let all = stuck.chain(reach.unseen().iter().copied());
        all.filter_map(|pid| Some((pid, incarnation(pid)?)))
            .collect()
    }

    /// What is told of them.
    fn not_let_go(&self) -> String {
        let Some(reach) = &self.ways.reach else {
            return String::new();
        };
        let id = &self.session.plan.id;
        let stuck = reach.stuck().iter();
        let stuck = stuck.map(|(pid, why)| not_let_go(id, *pid, why));
        let unseen = reach.unseen().iter().map(|pid| not_seen(id, *pid));
        stuck
            .chain(unseen)
            .map(|told| format!("{told}\n"))
            .collect()
    }

    /// Moves the dial of a live session. Every request from now on sees it.
    pub(super) fn set(&mut self, until: Option<String>, for_s: Option<f64>) -> Answer {
        if self.command.outcome.is_some()
            || self.ways.reach.as_ref().is_some_and(|r| r.is_leaving())
        {
            return Answer::refused("it is about to end");
        }
        let dial = match until.as_deref().map(str::parse::<Until>).transpose() {
            Ok(dial) => dial,
            Err(e) => return Answer::refused(e.to_string()),
        };
        if self.ways.reach.is_some() && dial == Some(Until::Exit) {
            let why = "it was attached: there is no command whose exit could be meant";
            return Answer::refused_but(why, "a duration: --until 1s");
        }
        let ends = match for_s {
            Some(s) => Some(Instant::now() + Duration::from_secs_f64(s.clamp(0.0, 1e9))),
            // One that is over does not end another dial.
            None => self
                .session
                .plan
                .ends
                .filter(|e| dial.is_none() || *e > Instant::now()),
        };
        let endless = ends.is_none();
        if self.ways.reach.is_some() && dial == Some(Until::Never) && endless {
            let why = "it was attached: `never` needs an end";
            return Answer::refused_but(why, "add one: --for 10m");
        }
        if self.entering.ledger.is_none() && dial.is_some_and(|dial| dial != Until::Now) {
            return Answer::refused("there is no ledger: only `now` is possible");
        }
        self.session.plan.ends = ends;
        let Some(dial) = dial else {
            self.relax_by_dial();
            let but = self.but();
            return Answer::Done {
                said: format!("{}: lease changed{but}", self.session.plan.id),
            };
        };
        let before = std::mem::replace(&mut self.session.plan.classes[0], dial);
        self.session
            .shared
            .page()
            .now_mask
            .store(now_mask(&self.session.plan.classes), SeqCst);
        self.relax_by_dial();
        // What was put off under a stricter dial than the new one keeps its promise; and with `now`
        // everything is paid.
        if dial == Until::Now || before < dial {
            self.settle_all();
        }
        self.dial_is_new();
        Answer::Done {
            said: format!("{}: until {dial}{}", self.session.plan.id, self.but()),
        }
    }

    /// Once nothing of an earlier dial is owed any more: the keeper and the entry are told.
    pub(super) fn dial_is_new(&mut self) {
        self.paying.dial_changes = !self.paying.schedule.is_idle() && !self.must_settle();
        if self.paying.dial_changes {
            return;
        }
        if let Some(keeper) = &self.entering.keeper {
            keeper.settle_at_death(self.must_settle());
        }
        self.paying.has_promised |= self.must_settle();
        self.entering.other_dial = true;
        self.write_ledger();
    }

    /// What stands in the way of a dial that was just set.
    fn but(&self) -> String {
        let rules_until = self.rules_until().map(|until| until.to_string());
        let trouble = self.trouble().map(|why| format!("; but {why}"));
        by_rules(rules_until.as_deref()) + &trouble.unwrap_or_default()
    }

    pub(super) fn describe(&mut self) -> synclater_account::ps::PsSession {
        crate::supervisor::report::ps(self)
    }
}
