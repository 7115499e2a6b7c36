//! Waiting for something to become true, with a deadline: the one place where a test may sleep.

use std::thread::sleep;
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Asks until `condition` holds; false when `limit` has passed before.
pub fn until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        if condition() {
            return true;
        }
        if begin.elapsed() >= limit {
            return false;
        }
        sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[test]
fn a_wait_ends_with_its_condition_or_its_deadline() {
    let mut asked = 0;
    assert!(until(Duration::from_secs(60), || {
        asked += 1;
        asked == 23
    }));
    assert!(!until(Duration::from_millis(1), || false));
}
