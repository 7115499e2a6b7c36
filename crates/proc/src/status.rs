//! `/proc/PID/status`: what a process, or a thread, is at present (proc_pid_status(5)).

/// What the file says.
#[derive(Clone, Debug, Default)]
pub struct Status(String);

impl Status {
    /// Of its text. What was cut short, or is of another kernel, lacks fields.
    #[must_use]
    pub fn parse(text: String) -> Status {
        Status(text)
    }

    /// The value of a field, by its name without the colon.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.0.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = fields.find(|(its, _)| *its == name)?;
        Some(value.trim())
    }

    /// The first number of a field.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.split_whitespace().next()?.parse().ok()
    }

    /// A set of signals or capabilities, by their bits (hexadecimal in the file).
    #[must_use]
    pub fn set(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.field(name)?, 16).ok()
    }

    /// The real user, the one that it acts as, the saved one, and the one that it opens files as.
    #[must_use]
    pub fn users(&self) -> Vec<u32> {
        let words = self.field("Uid").unwrap_or_default().split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    }

    /// The number of the process or thread in its own pid namespace.
    #[must_use]
    pub fn own_pid(&self) -> Option<u32> {
        self.last("NSpid")
    }

    /// The number of its process there.
    #[must_use]
    pub fn own_process(&self) -> Option<u32> {
        self.last("NStgid").or_else(|| self.last("Tgid"))
    }

    /// Its numbers from our pid namespace inwards: more than one where it is in another.
    #[must_use]
    pub fn is_nested(&self) -> bool {
        let numbers = self.field("NSpid").unwrap_or_default();
        numbers.split_whitespace().nth(1).is_some()
    }

    /// The process of a thread; its own number for the first one.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        self.last("Tgid")
    }

    /// How often it has begun or ceased to run on a processor.
    #[must_use]
    pub fn switches(&self) -> Option<u64> {
        let kinds = ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"];
        kinds.iter().map(|kind| self.number(kind)).sum()
    }

    fn last(&self, name: &str) -> Option<u32> {
        self.field(name)?.split_whitespace().last()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Name:\tUid: 7\nState:\tS (sleeping)\nTgid:\t4711\nTracerPid:\t0\n\
                        Uid:\t1000\t0\t33\t0\nNStgid:\t4711\t12\nNSpid:\t4712\t13\n\
                        SigCgt:\t0000000180000440\nSeccomp_filters:\t2\n\
                        voluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n";

    #[test]
    fn a_field_is_what_its_line_says() {
        let status = Status::parse(TEXT.into());
        assert_eq!(status.field("State"), Some("S (sleeping)"));
        assert_eq!(status.users(), [1000, 0, 33, 0]);
        assert_eq!(
            (status.own_pid(), status.own_process()),
            (Some(13), Some(12))
        );
        assert!(status.is_nested());
        assert_eq!(status.process(), Some(4711));
        assert_eq!(status.number("Seccomp_filters"), Some(2));
        assert_eq!(status.set("SigCgt"), Some(0x1_8000_0440));
        assert_eq!(status.switches(), Some(7));
    }

    #[test]
    fn what_is_missing_is_not_known() {
        let status = Status::parse("Tgid:\t12\nUid:".into());
        assert_eq!((status.own_pid(), status.number("Seccomp")), (None, None));
        assert_eq!((status.own_process(), status.switches()), (Some(12), None));
        assert!(status.users().is_empty() && !status.is_nested());
    }
}
