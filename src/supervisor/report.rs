//! What a session has to tell: the report of a run, and its row in `ps`.

use super::{Outcome, Owed, Supervisor};
use crate::session::compile::{places, Users};
use crate::session::counts::Process;
use crate::session::escape::descendants;
use crate::session::mapped::{mapped_in, Mapped};
use crate::session::probed::Probed;
use crate::session::settle;
use rustix::fs::{accessat, Access, AtFlags, CWD};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_account::escape::{Escape, RESTRICTED};
use synclater_account::ps::{PsProcess, PsSession};
use synclater_account::run::{RunFilesystem, RunReport};
use synclater_account::saving::{saving, Cost, Part};
use synclater_policy::dial::Until;
use synclater_shim::counts::Counts;
use synclater_shim::page::{self, Kept};
use synclater_sys::process::{self, effective_user_of};
use synclater_text::number::count;

/// The status that `run` ends with: the command's own, or 125 where settling failed, or letting go
/// of what was attached.
#[must_use]
pub fn exit_status(s: &Supervisor, outcome: Outcome) -> i32 {
    let reach = s.reach();
    let not_let_go = reach.is_some_and(|r| !r.stuck().is_empty() || !r.unseen().is_empty());
    if !is_whole(s) || not_let_go {
        return 125;
    }
    match outcome {
        Outcome::Exited(status) => status,
        Outcome::Signaled(signal) => 128 + signal,
    }
}

/// Whether everything was settled, and recorded where that was wanted.
#[must_use]
pub fn is_whole(s: &Supervisor) -> bool {
    let half_recorded = s.recorded().is_some_and(|(_, r)| r.errno != 0);
    s.paying.paid.error.is_none() && s.paying.paid.complete && !half_recorded
}

/// The report of a run that has been settled (or could not be).
pub fn run(s: &mut Supervisor, outcome: Outcome) -> RunReport {
    let total = s.seen.census.total(s.session.shared);
    let until = s.session.plan.classes[0];
    let mut r = RunReport::new(
        &s.session.plan.id,
        &s.session.plan.command,
        until.to_string(),
    );
    r.requests = total.requests;
    r.skipped = total.skipped();
    r.real = total.real;
    // What a rule puts off for ever is settled with the rest, at the end.
    r.settled = if s.paying.paid.complete && s.must_settle() {
        r.skipped
    } else {
        0
    };
    r.settle_s = s
        .paying
        .paid
        .final_settle
        .filter(|_| r.skipped > 0)
        .map(|d| d.as_secs_f64());
    r.settles = Some(s.paying.paid.settles).filter(|n| *n > 0);
    r.hints = Some(total.hints).filter(|n| *n > 0);
    r.failed = Some(total.failed).filter(|n| *n > 0);
    r.kept_real = why_real(s, &total);
    r.real_s = (total.ticks > 0).then(|| s.session.shared.clock.span(total.ticks).as_secs_f64());
    r.never_settled = (!s.must_settle()).then_some(true);
    r.error.clone_from(&s.paying.paid.error);
    r.doubts =
        Some(s.paying.paid.doubts.iter().cloned().collect()).filter(|d: &Vec<_>| !d.is_empty());
    r.bound_s = bound(s).map(|d| d.as_secs_f64());
    r.rules_until = s.rules_until().map(|until| until.to_string());
    r.unmatched_rules = unmatched_rules(s, &total);
    r.oldest_s = s
        .paying
        .paid
        .oldest
        .filter(|_| r.bound_s.is_some())
        .map(|d| d.as_secs_f64());
    r.in_memory = Some(s.session.shared.in_memory()).filter(|n| *n > 0);
    r.filesystems = filesystems(s, r.skipped);
    let points = r.filesystems.iter().map(|fs| fs.mount.clone());
    r.not_writable = points
        .filter(|point| !may_write(Path::new(point)))
        .collect();
    estimate(&mut r, s);
    r.escaped = escapes(s);
    r.ways = s.seen.escapes.ways();
    r.escapes_unknown = s.seen.escapes.unknown_because();
    r.recorded = s.recorded().map(|(_, r)| r.requests);
    r.recording_lost = s.recorded().map(|(_, r)| r.lost);
    r.recording = s
        .recorded()
        .map(|(file, _)| file.to_string_lossy().into_owned());
    r.exit_status = exit_status(s, outcome);
    r
}

/// Gives a reason its more precise words.
/// Why requests were made for real, in the words that hold for this session.
fn why_real(s: &Supervisor, total: &Counts) -> BTreeMap<String, u64> {
    let mut reasons = total.kept_words();
    if s.session.plan.lacks_ledger {
        for reason in [RunReport::AT_NOW, RunReport::STARTING] {
            rename(&mut reasons, reason, RunReport::NOT_STARTED);
        }
        // Rules that say so themselves are not told from those that had to.
        let by_rule = page::KEPT_WORDS[Kept::Rule as usize];
        rename(&mut reasons, by_rule, RunReport::BY_RULE_OR_NOT_STARTED);
    }
    if s.trouble().is_some() {
        rename(&mut reasons, RunReport::STARTING, RunReport::NOT_STARTED);
    }
    let mut dials = s.session.plan.classes.iter();
    if dials.any(|until| *until != Until::Now) {
        let is_over = s.session.plan.ends.is_some_and(|end| Instant::now() >= end);
        let why = if is_over {
            RunReport::FOR_IS_OVER
        } else {
            RunReport::NONE_LATER
        };
        rename(&mut reasons, RunReport::AT_NOW, why);
    }
    reasons
}

fn may_write(dir: &Path) -> bool {
    accessat(CWD, dir, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

fn rename(reasons: &mut BTreeMap<String, u64>, from: &str, to: &str) {
    if let Some(number) = reasons.remove(from) {
        *reasons.entry(to.to_owned()).or_default() += number;
    }
}

/// Rules that have decided about nothing; none where a request was real before they were asked.
fn unmatched_rules(s: &Supervisor, total: &Counts) -> Vec<String> {
    let before = [Kept::Now, Kept::Lease].map(|why| total.kept[why as usize]);
    let set = s.session.plan.rules.as_ref();
    let Some(set) = set.filter(|_| before == [0; 2] && !s.session.shared.any_unasked()) else {
        return Vec::new();
    };
    let all = set.rules.iter().zip(places(set));
    all.filter(|(_, places)| {
        !places
            .clone()
            .any(|place| s.session.shared.has_matched(place))
    })
    .map(|(rule, _)| rule.to_string())
    .collect()
}

/// The time that the skipped requests would have taken, from what syncs of the same disk took:
/// those of this session that were real, or those that were measured there.
fn estimate(r: &mut RunReport, s: &mut Supervisor) {
    s.seen.sequence.look(s.session.shared);
    let on_disk = r.skipped.saturating_sub(s.session.shared.in_memory());
    let in_sequence = s.seen.sequence.of(on_disk) as f64;
    let at_once = on_disk as f64 / in_sequence.max(1.0);
    let owed = s.owed().iter().zip(&r.filesystems);
    let parts: Vec<Part> = owed
        .map(|(owed, row)| Part {
            requests: row.requests.unwrap_or(0),
            cost: cost(s, owed, at_once),
        })
        .collect();
    let Some(saving) = saving(&parts, in_sequence, r.settle_s.unwrap_or(0.0)) else {
        return;
    };
    r.saved_s_estimate = Some(saving.about_s);
    r.saved_s_from = Some(saving.from_s);
    r.saved_s_to = Some(saving.to_s);
    r.saved_s_each = Some(saving.each_s);
    r.saved_basis = Some(saving.basis);
}

/// Seconds within which no disk has answered: a sync that had nothing to write.
const NOTHING_WRITTEN_S: f64 = 5e-6;

/// What a sync costs on a file system that owed where so many are waited for at once, and how that
/// is known.
fn cost(s: &Supervisor, owed: &Owed, at_once: f64) -> Option<(Cost, String)> {
    let took = owed.index.map(|index| s.session.shared.took(index));
    let before = owed.took.iter().copied().chain(std::iter::repeat(0));
    let now = took.unwrap_or(vec![0; page::TOOK_PLACES]).into_iter();
    let took = now.zip(before).enumerate().map(|(place, (now, before))| {
        let span = s.session.shared.clock.span(page::took_ticks(place));
        (span.as_secs_f64(), now.saturating_add(before))
    });
    // What found nothing to write tells nothing of what others had to.
    let took = took.filter(|(took_s, _)| *took_s > NOTHING_WRITTEN_S);
    if let Some(cost) = Cost::of(took) {
        let n = count(cost.count);
        return Some((cost, format!("{n} real ones of this run")));
    }
    Probed::last_on(&owed.fs)?.cost(at_once)
}

/// T plus the longest settle so far, where the longest of all dials is a DURATION. What is asked
/// right behind the beginning of a settle waits for that one and for the next: twice the settle
/// time where that is longer than T.
fn bound(s: &Supervisor) -> Option<Duration> {
    let longest = s
        .paying
        .paid
        .longest
        .values()
        .max()
        .copied()
        .unwrap_or_default();
    match s.rules_until().unwrap_or(s.session.plan.classes[0]) {
        Until::Within(t) => Some(t.max(longest) + longest),
        _ => None,
    }
}

/// How many requests the slots have counted on the file system with this index.
fn counted_at(s: &Supervisor, index: usize) -> u64 {
    let slots = s.session.shared.all_slots();
    let counts = slots.filter_map(|slots| slots.fs_requests.get(index));
    counts.fold(0, |sum: u64, n| sum.saturating_add(n.load(SeqCst)))
}

fn filesystems(s: &Supervisor, skipped: u64) -> Vec<RunFilesystem> {
    let counted = s.owed().iter().map(|o| requests_of(s, o));
    let looked = counted.fold(0, u64::saturating_add);
    let on_disk = skipped.saturating_sub(s.session.shared.in_memory());
    // Requests from before there was a second one belong to the first.
    let rest = on_disk.saturating_sub(looked);
    let mut all = Vec::new();
    for (k, o) in s.owed().iter().enumerate() {
        let more = if k == 0 { rest } else { 0 };
        all.push(RunFilesystem {
            mount: o.fs.mount.clone(),
            fstype: o.fs.fstype.clone(),
            device: o.fs.source.clone(),
            requests: Some(requests_of(s, o).saturating_add(more)),
        });
    }
    all
}

/// How many requests were counted for a file system that owed, as yet.
fn requests_of(s: &Supervisor, owed: &Owed) -> u64 {
    let now = owed.index.map_or(0, |i| counted_at(s, i));
    owed.requests.saturating_add(now)
}

/// Who the session did not reach, up to now.
pub fn escapes(s: &mut Supervisor) -> Vec<Escape> {
    // A request counts in a process before it reaches the kernel, so the kernel is asked first.
    s.seen.escapes.drain();
    let processes = s.seen.census.processes(s.session.shared);
    let mut all = s
        .seen
        .escapes
        .find(&processes, s.session.plan.rules.as_ref());
    name_attached(s, &processes, &mut all);
    name_missed(s, &mut all);
    all
}

/// What stays real in processes that are attached, with what the kernel has counted there.
fn name_attached(s: &Supervisor, processes: &BTreeMap<u32, Process>, all: &mut Vec<Escape>) {
    let Some(reach) = s.reach() else {
        return;
    };
    const KEPT: &str = "files that it opened with O_SYNC meanwhile keep it";
    let kept = reach
        .reached()
        .filter(|(pid, _)| flags_of(*pid, processes) & page::SLOT_OSYNC_KEPT != 0);
    let kept = kept.map(|(pid, reached)| Escape {
        pid,
        exe: reached.exe.clone(),
        why: KEPT.into(),
        requests: None,
    });
    let mut named: Vec<Escape> = Vec::new();
    for more in reach.escaped().chain(kept) {
        match named.iter_mut().find(|e| e.pid == more.pid) {
            Some(row) => row.why = format!("{}; {}", row.why, more.why),
            None => named.push(more),
        }
    }
    let unknown = page::SLOT_OSYNC_KEPT | page::SLOT_MARK_LOST;
    let reached: BTreeSet<u32> = reach.reached().map(|(pid, _)| pid).collect();
    for mut escape in named {
        let mut known = all.iter();
        let counted = known.position(|e| e.pid == escape.pid && e.requests.is_some());
        if let Some(at) = counted {
            let seen = all.remove(at);
            escape.requests = seen.requests;
            // What it has been seen to do is no guess.
            if seen.why == RESTRICTED {
                escape.why = format!("{RESTRICTED}; {}", escape.why);
            }
        } else if reached.contains(&escape.pid) && flags_of(escape.pid, processes) & unknown == 0 {
            escape.requests = s.seen.escapes.knows().then_some(0);
        }
        all.push(escape);
    }
}

/// The `SLOT_*` flags that were seen in a process.
fn flags_of(pid: u32, processes: &BTreeMap<u32, Process>) -> u32 {
    processes.get(&pid).map_or(0, |p| p.counts.flags)
}

/// Of what escaped although it is followed, the reason; where the kernel cannot be asked who
/// escaped, every program that was not reached.
fn name_missed(s: &Supervisor, all: &mut Vec<Escape>) {
    let Some(following) = s.following() else {
        return;
    };
    for missed in following.missed() {
        let mut escaped = all.iter_mut();
        match escaped.find(|e| e.pid == missed.pid && e.exe == missed.exe) {
            Some(seen) => seen.why = missed.why,
            None if s.seen.escapes.knows() => {}
            None => all.push(missed),
        }
    }
    all.extend(following.lost());
}

/// The session as `ps` shows it.
pub fn ps(s: &mut Supervisor) -> PsSession {
    s.seen.census.sweep(s.session.shared);
    let processes = s.seen.census.processes(s.session.shared);
    let left = s
        .session
        .plan
        .ends
        .map(|e| e.saturating_duration_since(Instant::now()).as_secs_f64());
    let debts: Vec<u64> = s
        .rows()
        .into_iter()
        .flat_map(|row| settle::debts(s.session.shared, row))
        // What a class at `now` still shows was noted late, and is covered.
        .filter(|(class, _)| s.session.plan.classes.get(*class) != Some(&Until::Now))
        .map(|(_, tick)| tick)
        .collect();
    let mut ages: Vec<Duration> = debts.iter().map(|t| s.session.shared.age(*t)).collect();
    ages.extend(s.being_settled());
    let oldest = ages.iter().max().copied();
    let skipped = s.seen.census.total(s.session.shared).skipped();
    PsSession {
        version: PsSession::VERSION,
        id: s.session.plan.id.clone(),
        pid: std::process::id(),
        command: s.session.plan.command.clone(),
        until: s.session.plan.classes[0].to_string(),
        rules_until: s.rules_until().map(|until| until.to_string()),
        lease_left_s: left,
        started: s.session.plan.started.clone(),
        age_s: Some(s.session.shared.age_of_session().as_secs_f64()),
        debt: if ages.is_empty() {
            0
        } else {
            skipped.saturating_sub(s.paid_requests()).max(1)
        },
        processes: rows(&processes, s),
        escaped: escapes(s),
        ways: s.seen.escapes.ways(),
        // As long as one takes, no settle is known to take less.
        bound_s: bound(s).map(|d| d.max(oldest.unwrap_or_default()).as_secs_f64()),
        oldest_s: oldest.map(|d| d.as_secs_f64()),
        trouble: s.trouble(),
    }
}

/// What a process of `user` executes. Another user's may keep whoever asks waiting: of that it was
/// `known` a moment ago, or it is its name alone.
fn exe_of(pid: u32, user: Option<u32>, known: String) -> String {
    let is_ours = user == Some(process::effective_user());
    let exe = is_ours.then(|| std::fs::read_link(format!("/proc/{pid}/exe")).ok());
    match exe.flatten() {
        Some(exe) => exe.to_string_lossy().into_owned(),
        None if known.is_empty() => {
            let name = process::text(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim_end_matches('\n').to_owned()
        }
        None => known,
    }
}

fn rows(counted: &BTreeMap<u32, Process>, s: &Supervisor) -> Vec<PsProcess> {
    let users = Users::of_this_machine();
    let below = descendants(std::process::id());
    let mapped: BTreeMap<u32, Mapped> = below.iter().copied().zip(mapped_in(&below)).collect();
    let mut pids = below;
    pids.retain(|p| has_library(mapped.get(p)) || counted.contains_key(p));
    let Some(reach) = s.reach() else {
        let of_launch =
            pids.into_iter()
                .map(|pid| match s.following().map_or("launch", |f| f.how(pid)) {
                    "launch" if s.has_net() && !has_library(mapped.get(&pid)) => {
                        row(pid, "net", counted, &users)
                    }
                    how => row(pid, how, counted, &users),
                });
        return of_launch.collect();
    };
    // What they forked has their code, and is attached as they are.
    let how: BTreeMap<u32, &str> = reach.attached().map(|(pid, r)| (pid, r.how)).collect();
    let mut pids: BTreeSet<u32> = how.keys().copied().collect();
    pids.extend(
        counted
            .iter()
            .filter(|(pid, p)| **pid != 0 && p.alive)
            .map(|(pid, _)| *pid),
    );
    pids.into_iter()
        .map(|pid| {
            let how = how.get(&pid).copied().unwrap_or("attach");
            row(pid, how, counted, &users)
        })
        .collect()
}

fn has_library(mapped: Option<&Mapped>) -> bool {
    matches!(mapped, Some(Mapped::Library | Mapped::Gate))
}

/// The row of one process; `counted` is what each did.
fn row(pid: u32, how: &str, counted: &BTreeMap<u32, Process>, users: &Users) -> PsProcess {
    let p = counted.get(&pid).cloned().unwrap_or_default();
    let user = effective_user_of(pid);
    PsProcess {
        pid,
        exe: exe_of(pid, user, p.exe),
        user: users.name(user.unwrap_or(p.uid)),
        how: how.into(),
        requests: p.counts.requests,
        skipped: p.counts.skipped(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_real_at_the_start_has_one_name() {
        let early = page::KEPT_WORDS[page::Kept::Ledger as usize];
        assert_eq!(early, RunReport::STARTING);
    }
}
