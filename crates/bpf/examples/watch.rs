//! Prints every sync request of the machine, for looking at by hand; run it as root.
//!
//!     watch [--for SECONDS] [--ring BYTES] [--no-writes] [--kernel-threads] [--count]
//!           [--pid N]... [--children] [--cgroup DIR]... [--exe NAME]... [--device MAJOR:MINOR]...

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};
use synclater_bpf::{cgroup_id, BootClock, Engine, Event, Filter};

fn main() -> Result<(), Box<dyn Error>> {
    let mut filter = Filter::default();
    let (mut seconds, mut ring, mut count) = (f64::INFINITY, 16 << 20, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--for" => seconds = value(&mut arguments)?.parse()?,
            "--ring" => ring = value(&mut arguments)?.parse()?,
            "--count" => count = true,
            "--no-writes" => filter.writes = false,
            "--kernel-threads" => filter.kernel_threads = true,
            "--children" => filter.descendants = true,
            "--pid" => drop(filter.pids.insert(value(&mut arguments)?.parse()?)),
            "--cgroup" => {
                let dir = value(&mut arguments)?;
                filter.cgroups.insert(cgroup_id(dir.as_ref())?);
            }
            "--exe" => drop(filter.exes.insert(value(&mut arguments)?.into())),
            "--device" => {
                let text = value(&mut arguments)?;
                let (major, minor) = text.split_once(':').ok_or("MAJOR:MINOR")?;
                filter.devices.insert((major.parse()?, minor.parse()?));
            }
            other => return Err(format!("unknown: {other}").into()),
        }
    }
    watch(&filter, ring, seconds, count)
}

fn value(arguments: &mut impl Iterator<Item = String>) -> Result<String, &'static str> {
    arguments.next().ok_or("a value is missing")
}

fn watch(filter: &Filter, ring: usize, seconds: f64, count: bool) -> Result<(), Box<dyn Error>> {
    let mut engine = Engine::open(filter, ring)?;
    eprintln!("watching; absent: {:?}", engine.absent());
    let begin = Instant::now();
    let mut counts = BTreeMap::<_, u64>::new();
    while begin.elapsed().as_secs_f64() < seconds {
        engine.poll(Duration::from_millis(100))?;
        let clock = BootClock::now();
        engine.drain(|event| {
            *counts.entry((event.pid, event.kind)).or_default() += 1;
            if !count {
                print(&event, clock);
            }
        })?;
    }
    for ((pid, kind), n) in counts {
        println!("{pid} {}: {n}", kind.name());
    }
    for (pid, n) in engine.lost()? {
        println!("{pid} lost: {n}");
    }
    Ok(())
}

/// Names are written with their control characters escaped.
fn print(e: &Event, clock: BootClock) {
    println!(
        "{} {:?} us pid {} tid {} uid {} {:?} {} ({:?}) fd {:?} flags {:#x} = {:?} {:?} {:?} \
         inode {:?} mount {:?} {:?}{}{} dirty {:?} exe {:?} {:?}",
        clock.utc_ns(e.start_ns),
        e.duration_ns.map(|ns| ns / 1000),
        e.pid,
        e.tid,
        e.uid,
        e.comm,
        e.kind.name(),
        e.route,
        e.fd,
        e.flags,
        e.result,
        e.device,
        e.fstype,
        e.inode,
        e.mount_id,
        e.path,
        if e.path_cut { " (cut)" } else { "" },
        if e.deleted { " (deleted)" } else { "" },
        e.dirty,
        e.process.as_ref().and_then(|p| p.exe.as_ref()),
        e.process.as_ref().map(|p| &p.args),
    );
}
