//! What is going on, on a terminal.

use super::Budget;
use indicatif::ProgressStyle;
use std::io::IsTerminal;
use std::time::Duration;
use synclater_text::number::count;

/// A line that tells.
pub struct Progress {
    bar: Option<indicatif::ProgressBar>,
    budget: Budget,
    searching: ProgressStyle,
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
            searching: ProgressStyle::with_template("{bar:30} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        }
    }

    /// Says what is done now.
    pub fn say(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(synclater_text::layout::shown(what));
        }
    }

    /// Says how far the search has come.
    pub fn states(&self, states: u64, bad: u64, elapsed: Duration) {
        let Some(bar) = &self.bar else {
            return;
        };
        let (done, all) = match self.budget {
            Budget::Time(time) => (elapsed.as_millis() as u64, time.as_millis() as u64),
            Budget::States(most) => (states, most),
        };
        if bar.length() != Some(all) {
            bar.set_length(all);
            bar.set_style(self.searching.clone());
        }
        bar.set_position(done.min(all));
        let rate = count((states as f64 / elapsed.as_secs_f64().max(1e-3) * 60.0) as u64);
        let (states, bad) = (count(states), count(bad));
        self.say(&format!("{states} states, {bad} bad; {rate} a minute"));
    }

    /// Says that the search is over.
    pub fn searched(&self) {
        if let Some(bar) = &self.bar {
            bar.set_style(ProgressStyle::default_spinner());
        }
    }

    /// Takes the line away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
