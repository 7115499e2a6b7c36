//! The laboratory judges what synclater says: its exit status, or that of `settle`, is the promise.

use super::*;
use crate::harness::limits::{below, count, seed};
use serde_json::Value;

const HOW: [&str; 10] = [
    "exit", "settle", "follow", "net", "nested", "overlay", "bound", "attach", "keeper", "umount",
];
const FILE_SYSTEMS: [&str; 3] = ["xfs", "ext4", "btrfs"];

/// States of one run, of which none may be bad.
fn judged(how: &str, fs: &str, seed: u64) -> u64 {
    let stage = Stage::new("judged");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redteam/judged.py");
    let python = format!("python3 -B {}", script.display());
    let (budget, rounds) = (count(80, 400).to_string(), count(10, 30).to_string());
    let text = seed.to_string();
    let mut command = stage.synclater(&["crash", "--json", "--fs", fs, "--seed", &text]);
    command.args(["--budget", &budget, "--check"]);
    command.arg(format!("{python} check {seed}"));
    command
        .args(["--", "env"])
        .arg(format!("SYNCLATER={SYNCLATER}"));
    command.args(["python3", "-B"]).arg(&script);
    command.args([how, "{}", &rounds, &text]);
    let outcome = run(&mut command);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or(Value::Null);
    let what = format!("{how} on {fs}, seed {seed}: {outcome}");
    assert_eq!(report["bad"], 0, "{what}");
    assert_eq!(report["acknowledged"].to_string(), rounds, "{what}");
    report["states"].as_u64().expect("a number")
}

#[test]
fn soak_what_was_called_durable_survives_a_power_cut() {
    let name = "soak_what_was_called_durable_survives_a_power_cut";
    if !crate::crash::can_cut(name) || !crate::harness::limits::needs_net(name) {
        return;
    }
    let mut chance = seed();
    // Each way on each file system in full; small, what was lost once, and one by chance.
    if count(0, 1) == 0 {
        let how = HOW[below(&mut chance, HOW.len() as u64) as usize];
        let fs = FILE_SYSTEMS[below(&mut chance, FILE_SYSTEMS.len() as u64) as usize];
        judged("exit", "xfs", 4);
        judged("keeper", "ext4", 3);
        judged(how, fs, chance);
        return;
    }
    let (mut states, mut runs) = (0, 0);
    while states < 10_000 {
        for (how, fs) in HOW.iter().flat_map(|h| FILE_SYSTEMS.map(|fs| (*h, fs))) {
            states += judged(how, fs, chance);
            runs += 1;
            below(&mut chance, 2);
        }
    }
    println!("{states} states of {runs} runs, last seed {chance}: 0 bad");
}
