//! The net: its processes, and whether they answer.

use super::Supervisor;
use crate::reach::net::{Net, Terms};
use crate::session::compile::{classes, places, Users};

impl Supervisor {
    /// Has every sync request of the command asked about.
    ///
    /// # Errors
    /// Those of [`Net::start`].
    pub fn cast_net(&mut self) -> std::io::Result<()> {
        let rules = self.session.plan.rules.clone();
        let named = rules
            .as_ref()
            .map(|r| classes(r, self.session.plan.classes[0]));
        let terms = Terms {
            shared: self.session.shared,
            users: Users::asked_for_by(rules.as_ref()),
            supervisor: std::process::id(),
            classes: named.unwrap_or_default(),
            places: rules.as_ref().map(places).unwrap_or_default(),
            rules,
        };
        let net = Net::start(terms)?;
        self.ways.net = Some(net);
        self.seen.escapes.are_netted();
        Ok(())
    }

    /// Whether there is a net.
    #[must_use]
    pub fn has_net(&self) -> bool {
        self.ways.net.is_some()
    }

    pub(super) fn look_at_net(&mut self) {
        if let Some(net) = &mut self.ways.net {
            net.look();
        }
    }
}
