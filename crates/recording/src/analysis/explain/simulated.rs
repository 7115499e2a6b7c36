//! Recordings made up from a seed, for tests: processes that think and then make a delivery of two
//! requests (a file, then its folder "new") to one of several devices, with a rule that says how
//! probable it is that a request is slow.
//!
//! A slow request keeps its device busy: whoever comes meanwhile waits behind it, as on a real
//! disk.

use crate::record::kind;
use crate::record::table::{Done, File, Filesystem, Process, Sample, Table};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use synclater_random;

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub struct Random(synclater_random::Random);

impl Random {
    pub fn new(seed: u64) -> Random {
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
        Random(synclater_random::Random::new(seed))
    }

    /// From 0 to 1.
    pub fn part(&mut self) -> f64 {
        self.0.part()
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0.draw() % n.max(1)
    }

    /// Exponentially distributed with this mean.
    pub fn wait(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.part()).ln()
    }

    /// Normally distributed.
    pub fn bell(&mut self) -> f64 {
        (-2.0 * (1.0 - self.part()).ln()).sqrt() * (std::f64::consts::TAU * self.part()).cos()
    }
}

/// What is known of a request when it begins.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub time_s: f64,
    pub process: u64,
    pub device: u64,
    pub user: u64,
    pub folder: u64,
    pub kind: u64,
    pub size: u64,
    pub dirty: bool,
    pub caller: u64,
    pub in_flight: usize,
    /// Since the last request on its device ended; negative where one has not.
    pub rested_s: f64,
    /// In the second in which it begins.
    pub dirty_bytes: f64,
    /// Whether the same process has just made an fsync of a file in a folder "tmp".
    pub after_tmp_fsync: bool,
    /// Whether this is one of the times that the plan calls bad, on this device.
    pub bad_time: bool,
}

/// Times that come back.
#[derive(Clone, Copy, Debug)]
pub struct Stretches {
    pub every_s: f64,
    pub for_s: f64,
    pub first_s: f64,
}

impl Stretches {
    /// How long the one that this moment lies in has gone on; none where it lies in none.
    pub fn since(&self, time_s: f64) -> Option<f64> {
        let since = (time_s - self.first_s).rem_euclid(self.every_s);
        (since < self.for_s).then_some(since)
    }
}

/// How a recording is made.
pub struct Plan<'a> {
    pub seed: u64,
    pub requests: usize,
    pub processes: u64,
    pub devices: u64,
    pub think_ms: f64,
    /// Mean time between bad times and their mean length, in seconds; none where 0.
    pub bad_every_s: f64,
    pub bad_for_s: f64,
    /// Whether bad times are those of one device each, chosen anew.
    pub bad_by_device: bool,
    /// Whether requests that begin in such times are slow as long as those last.
    pub stands_still: Option<Stretches>,
    /// Whether the usual duration has a heavy tail.
    pub heavy: bool,
    /// The probability that a request is slow.
    pub slow: &'a dyn Fn(&Seen) -> f64,
}

impl Plan<'_> {
    /// 3000 requests of 6 processes on 2 devices.
    pub fn new(seed: u64, slow: &dyn Fn(&Seen) -> f64) -> Plan<'_> {
        Plan {
            seed,
            requests: 3000,
            processes: 6,
            devices: 2,
            think_ms: 3.0,
            bad_every_s: 0.0,
            bad_for_s: 0.0,
            bad_by_device: false,
            stands_still: None,
            heavy: false,
            slow,
        }
    }
}

const START_NS: i64 = 1_700_000_000_000_000_000;
const USERS: u64 = 12;
const FOLDERS: [&str; 3] = ["tmp", "new", "cur"];
const KINDS: [&str; 3] = [kind::FSYNC, kind::FDATASYNC, kind::O_DSYNC];

fn empty(plan: &Plan) -> Table {
    let mut t = Table {
        files: vec![File::default()],
        filesystems: vec![Filesystem::default()],
        reasons: vec![String::new()],
        callers: (0..6).map(|k| format!("libstore.so+{k:#x}")).collect(),
        kinds: KINDS.map(str::to_owned).to_vec(),
        ..Table::default()
    };
    t.callers[0] = String::new();
    for d in 0..plan.devices {
        t.filesystems.push(Filesystem {
            fstype: "ext4".into(),
            mount: format!("/spool/{}", char::from(b'a' + d as u8)),
            device: format!("/dev/loop{d}"),
            parents: format!("loop{d} < switch{}", d / 2),
        });
        for user in 0..USERS {
            for folder in FOLDERS {
                let mount = &t.filesystems[d as usize + 1].mount;
                let maildir = format!("{mount}/user{user}/Maildir");
                t.files.push(File {
                    path: match folder {
                        "new" => format!("{maildir}/new"),
                        _ => format!("{maildir}/{folder}/17000.M1"),
                    },
                    filesystem: d as u32 + 1,
                });
            }
        }
    }
    for p in 0..plan.processes {
        t.processes.push(Process {
            pid: Some(4000 + p as u32),
            uid: Some(1000 + (p % 3) as u32),
            exe: format!("/usr/bin/deliver{}", p % 2),
            command: format!("deliver -n {}", p % 4),
        });
    }
    t
}

/// A time in which things are bad, on one device or on all.
struct Bad {
    from_s: f64,
    to_s: f64,
    device: Option<u64>,
}

/// The simulation.
struct World<'p, 'a> {
    plan: &'p Plan<'a>,
    random: Random,
    table: Table,
    bad: Bad,
    busy_until: Vec<f64>,
    last_end: Vec<f64>,
    ends: Vec<BinaryHeap<Reverse<u64>>>,
    /// Of each process where its delivery goes, between its two requests.
    second: Vec<Option<(u64, u64)>>,
    /// Of each process whether its last request was an fsync of a file in a folder "tmp".
    tmp_fsync: Vec<bool>,
}

impl World<'_, '_> {
    fn bad_time(&mut self, time_s: f64, device: u64) -> bool {
        if self.plan.bad_every_s <= 0.0 {
            return false;
        }
        while time_s > self.bad.to_s {
            let from_s = self.bad.to_s + self.random.wait(self.plan.bad_every_s);
            let own = self.random.below(self.plan.devices);
            self.bad = Bad {
                from_s,
                to_s: from_s + self.random.wait(self.plan.bad_for_s),
                device: self.plan.bad_by_device.then_some(own),
            };
        }
        time_s >= self.bad.from_s && self.bad.device.is_none_or(|d| d == device)
    }

    /// One request; gives its duration in seconds.
    fn request(&mut self, time_s: f64, process: u64) -> f64 {
        let r = &mut self.random;
        let (device, user, folder) = match self.second[process as usize] {
            Some((device, user)) => (device, user, 1),
            None => (r.below(self.plan.devices), r.below(USERS), 2 * r.below(2)),
        };
        let (kind, caller) = (r.below(KINDS.len() as u64), 1 + r.below(5));
        let (size, dirty) = (1u64 << r.below(21), r.part() < 0.7);
        let now = (time_s * 1e9) as u64;
        let ends = &mut self.ends[device as usize];
        while ends.peek().is_some_and(|end| end.0 <= now) {
            ends.pop();
        }
        let in_flight = ends.len();
        let seen = Seen {
            time_s,
            process,
            device,
            user,
            folder,
            kind,
            size,
            dirty,
            caller,
            in_flight,
            rested_s: time_s - self.last_end[device as usize],
            dirty_bytes: dirty_bytes(time_s as u64),
            after_tmp_fsync: self.tmp_fsync[process as usize],
            bad_time: self.bad_time(time_s, device),
        };
        let r = &mut self.random;
        let spread = if self.plan.heavy { 1.2 } else { 0.25 };
        let mut took = 0.0005 * (spread * r.bell()).exp();
        let busy = &mut self.busy_until[device as usize];
        if r.part() < (self.plan.slow)(&seen) {
            took += 0.03 * (0.1 * r.bell()).exp();
            *busy = busy.max(time_s + took);
        } else if *busy > time_s {
            took += *busy - time_s;
        }
        let still = self.plan.stands_still;
        if let Some(left) = still.and_then(|s| Some(s.for_s - s.since(time_s)?)) {
            took += left;
        }
        let last_end = &mut self.last_end[device as usize];
        *last_end = last_end.max(time_s + took);
        self.tmp_fsync[process as usize] = folder == 0 && kind == 0;
        let second = &mut self.second[process as usize];
        *second = match second {
            Some(_) => None,
            None => Some((device, user)),
        };
        self.ends[device as usize].push(Reverse(now + (took * 1e9) as u64));
        self.push(&seen, took);
        took
    }

    fn push(&mut self, seen: &Seen, took: f64) {
        let file = 1 + (seen.device * USERS + seen.user) * FOLDERS.len() as u64 + seen.folder;
        let rows = &mut self.table.rows;
        rows.time_ns.push(START_NS + (seen.time_s * 1e9) as i64);
        rows.took_ns.push((took * 1e9) as u64);
        rows.process.push(seen.process as u32);
        rows.tid.push(1);
        rows.file.push(file as u32);
        rows.kind.push(seen.kind as u16);
        rows.done.push(Done::Real);
        rows.reason.push(0);
        rows.errno.push(0);
        rows.bytes.push(seen.size);
        rows.dirty.push(Some(seen.dirty));
        rows.caller.push(seen.caller as u32);
    }
}

/// Makes the recording.
pub fn recording(plan: &Plan) -> Table {
    let mut world = World {
        plan,
        random: Random::new(plan.seed),
        table: empty(plan),
        bad: Bad {
            from_s: -1.0,
            to_s: 0.0,
            device: None,
        },
        busy_until: vec![0.0; plan.devices as usize],
        last_end: vec![0.0; plan.devices as usize],
        ends: vec![BinaryHeap::new(); plan.devices as usize],
        second: vec![None; plan.processes as usize],
        tmp_fsync: vec![false; plan.processes as usize],
    };
    // Nanoseconds, so that they can be compared.
    let mut next: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    for process in 0..plan.processes {
        next.push(Reverse(((world.random.part() * 1e7) as u64, process)));
    }
    while world.table.rows.len() < plan.requests {
        let Some(Reverse((at, process))) = next.pop() else {
            break;
        };
        let took = world.request(at as f64 / 1e9, process);
        let think_ms = match world.second[process as usize] {
            Some(_) => 0.05,
            None => plan.think_ms,
        };
        let think = world.random.wait(think_ms / 1e3);
        next.push(Reverse((at + ((took + think) * 1e9) as u64, process)));
    }
    samples(&mut world.table);
    world.table
}

/// Dirty memory in a second: between 16 and 256 MiB.
fn dirty_bytes(second: u64) -> f64 {
    2f64.powf(24.0 + 4.0 * Random::new(second).part())
}

/// What the machine shows of it once a second, as far as it follows from the requests.
fn samples(table: &mut Table) {
    let rows = &table.rows;
    let Some(last) = rows.time_ns.last() else {
        return;
    };
    let seconds = ((last - START_NS) / 1_000_000_000 + 1) as usize;
    for second in 0..seconds {
        let time_ns = START_NS + (second as i64 + 1) * 1_000_000_000;
        let dirty = dirty_bytes(second as u64);
        table
            .samples
            .push(sample(time_ns, "", "dirty_bytes", dirty));
        for filesystem in 1..table.filesystems.len() {
            // Requests are in the order of time, a second's are neighbours.
            let first = rows
                .time_ns
                .partition_point(|t| *t < time_ns - 1_000_000_000);
            let end = rows.time_ns.partition_point(|t| *t < time_ns);
            let own = (first..end).filter(|row| {
                let file = &table.files[rows.file[*row] as usize];
                let at = (rows.time_ns[*row] - START_NS) / 1_000_000_000;
                at == second as i64 && file.filesystem as usize == filesystem
            });
            let writes = 2.0 * own.clone().count() as f64;
            let busy: u64 = own.map(|r| rows.took_ns[r]).sum();
            let busy = (busy as f64 / 1e9).min(1.0);
            let name = format!("loop{}", filesystem - 1);
            table
                .samples
                .push(sample(time_ns, &name, "writes_per_s", writes));
            table
                .samples
                .push(sample(time_ns, &name, "utilisation", busy));
        }
    }
}

fn sample(time_ns: i64, device: &str, metric: &str, value: f64) -> Sample {
    Sample {
        time_ns,
        device: device.into(),
        metric: metric.into(),
        value,
    }
}
