//! What is going on, on a terminal.

use super::Budget;
use std::io::IsTerminal;
use std::time::Duration;
use synclater_model::report::number::{count, seconds};

/// A line that tells.
pub struct Progress {
    bar: Option<indicatif::ProgressBar>,
    budget: Budget,
}

impl Progress {
    /// One that is shown where stderr is a terminal, unless nobody wants it.
    pub fn new(quiet: bool, budget: Budget) -> Progress {
        let shown = !quiet && std::io::stderr().is_terminal();
        Progress {
            bar: shown.then(|| {
                let bar = indicatif::ProgressBar::new_spinner();
                bar.enable_steady_tick(Duration::from_millis(200));
                bar
            }),
            budget,
        }
    }

    /// Says what is done now.
    pub fn say(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// Says how far the search has come.
    pub fn states(&self, states: u64, bad: u64, elapsed: Duration) {
        if self.bar.is_some() {
            let of = match self.budget {
                Budget::Time(time) => {
                    let (is, of) = (seconds(elapsed.as_secs_f64()), seconds(time.as_secs_f64()));
                    format!("{is} of {of}")
                }
                Budget::States(states) => format!("of {}", count(states)),
            };
            let rate = count((states as f64 / elapsed.as_secs_f64().max(1e-3) * 60.0) as u64);
            let (states, bad) = (count(states), count(bad));
            self.say(&format!(
                "{states} states, {bad} bad; {of}, {rate} a minute"
            ));
        }
    }

    /// Takes the line away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
