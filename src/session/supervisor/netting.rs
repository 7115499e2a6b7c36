//! The net: its processes, and whether they answer.

use super::*;
use crate::reach::net::Terms;
use crate::session::compile::Users;

impl Supervisor {
    /// Has every sync request of the command asked about.
    ///
    /// # Errors
    /// Those of [`Net::start`].
    pub fn cast_net(&mut self) -> std::io::Result<()> {
        let asks = { self.plan.rules.as_ref() }.is_some_and(RuleSet::asks_for_user);
        let terms = Terms {
            shared: self.shared,
            rules: self.plan.rules.clone(),
            classes: self.plan.classes.clone(),
            users: if asks {
                Users::of_this_machine()
            } else {
                Users::default()
            },
        };
        let net = Net::start(terms)?;
        net.pids().for_each(|pid| self.escapes.is_ours(pid));
        self.net = Some(net);
        Ok(())
    }

    /// Whether there is a net.
    #[must_use]
    pub fn has_net(&self) -> bool {
        self.net.is_some()
    }

    pub(super) fn look_at_net(&mut self) {
        let Some(net) = &mut self.net else {
            return;
        };
        net.look();
        net.pids().for_each(|pid| self.escapes.is_ours(pid));
    }
}
