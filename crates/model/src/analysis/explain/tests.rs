//! Planted causes are found, and none is found where none was planted.

use super::simulated::{recording, Plan, Seen};
use super::*;
use crate::record::table::Done;

/// Explains a recording with 6 % slow requests where `bad` holds, and next to none elsewhere.
fn planted(seed: u64, bad: &dyn Fn(&Seen) -> bool) -> Explanation {
    let slow = |s: &Seen| if bad(s) { 0.06 } else { 0.001 };
    explain(&recording(&Plan::new(seed, &slow)), None)
}

/// The names of the first cause.
fn first(e: &Explanation) -> Vec<(&str, &str)> {
    let cause = e.causes.first();
    let names = cause.map_or(&[][..], |c| &c.dimensions.0[..]);
    names
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect()
}

fn has(e: &Explanation, key: &str, value: &str) -> bool {
    first(e).contains(&(key, value))
}

#[test]
fn try_it() {
    for seed in 0..10 {
        let e = planted(seed, &|s| s.device == 1);
        println!(
            "{seed} {:?} {} {} {} {:?}",
            e.how, e.slow_over_ns, e.slow, e.total, e.nothing
        );
        for c in &e.causes {
            println!(
                "   {:?} {:.2} {:.2} {:.2} {:.1e}\n      {}",
                c.dimensions, c.coverage, c.lift, c.lift_low, c.p_value, c.sentence
            );
        }
        for c in &e.explained {
            println!(
                "   explained {:?} {:.2} {:.2} {:.2} {:.1e}",
                c.dimensions, c.coverage, c.lift, c.lift_low, c.p_value
            );
        }
        for c in &e.signs {
            println!(
                "   sign {:?} {:.2} {:.2} {:.2} {:.1e}",
                c.dimensions, c.coverage, c.lift, c.lift_low, c.p_value
            );
        }
    }
}
