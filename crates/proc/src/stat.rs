//! `/proc/PID/stat`: what a process, or a thread, is about (proc_pid_stat(5)).

/// What the file says: its fields from the third on. The second is a name in brackets, which may
/// hold anything, brackets and blanks too.
#[derive(Clone, Debug)]
pub struct Stat(String);

/// Fields by their number in proc_pid_stat(5).
mod field {
    pub const STATE: usize = 3;
    pub const PARENT: usize = 4;
    pub const FLAGS: usize = 9;
    pub const STARTED: usize = 22;
    pub const CODE: usize = 26;
    pub const STACK: usize = 28;
    pub const PROCESSOR: usize = 39;
    pub const HEAP: usize = 47;
}

impl Stat {
    /// Of its text; `None` where that is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Stat> {
        let (_, fields) = text.rsplit_once(") ")?;
        Some(Stat(fields.to_owned()))
    }

    fn field(&self, number: usize) -> Option<&str> {
        self.0.split_whitespace().nth(number - field::STATE)
    }

    fn number(&self, number: usize) -> Option<u64> {
        self.field(number)?.parse().ok()
    }

    /// Its state: `R` runs or would, `S` sleeps, `D` waits for a disk, `T` and `t` stopped, `Z` and
    /// `X` ended.
    #[must_use]
    pub fn state(&self) -> char {
        let state = self.field(field::STATE);
        state.and_then(|s| s.chars().next()).unwrap_or('?')
    }

    /// Whether it has ended; of a process with threads the first one.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state(), 'Z' | 'X')
    }

    /// Its process's parent; 0 where that is in no namespace of ours.
    #[must_use]
    pub fn parent(&self) -> Option<u32> {
        self.number(field::PARENT)?.try_into().ok()
    }

    /// Flags of the kernel's (`PF_*`, linux/sched.h).
    #[must_use]
    pub fn flags(&self) -> Option<u64> {
        self.number(field::FLAGS)
    }

    /// When it began, in ticks of a hundredth of a second (`USER_HZ`) since the machine did.
    #[must_use]
    pub fn started(&self) -> Option<u64> {
        self.number(field::STARTED)
    }

    /// Where its program's code begins; 1 for who may not know, 0 for a thread of the kernel.
    #[must_use]
    pub fn code(&self) -> Option<u64> {
        self.number(field::CODE)
    }

    /// Where its first stack begins; 0 for who may not know.
    #[must_use]
    pub fn stack(&self) -> Option<u64> {
        self.number(field::STACK)
    }

    /// The processor that it has, or had last.
    #[must_use]
    pub fn processor(&self) -> Option<usize> {
        self.number(field::PROCESSOR)?.try_into().ok()
    }

    /// Where its heap begins (brk(2)).
    #[must_use]
    pub fn heap(&self) -> Option<u64> {
        self.number(field::HEAP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of Linux 6.18, with an odd name.
    const TEXT: &str = "4711 (a) R 1 (b) S 1200 4711 4711 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 \
                        98765 \
                        11 12 18446744073709551615 4194304 4198400 140720000000000 0 0 0 0 0 0 \
                        0 0 0 \
                        17 3 0 0 0 0 0 4300000 4300800 4310000 0 0 0 0 0\n";

    #[test]
    fn fields_are_counted_behind_a_name_that_may_hold_anything() {
        let stat = Stat::parse(TEXT).expect("a line");
        assert_eq!((stat.state(), stat.parent()), ('S', Some(1200)));
        assert_eq!(
            (stat.flags(), stat.started()),
            (Some(4_194_560), Some(98_765))
        );
        assert_eq!(
            (stat.code(), stat.stack()),
            (Some(4_194_304), Some(140_720_000_000_000))
        );
        assert_eq!((stat.processor(), stat.heap()), (Some(3), Some(4_310_000)));
        assert!(!stat.has_ended());
    }

    #[test]
    fn what_was_cut_short_is_not_known() {
        assert!(Stat::parse("12 (x").is_none());
        let stat = Stat::parse("12 (x) Z 1").expect("a line");
        assert_eq!((stat.has_ended(), stat.started()), (true, None));
    }

    #[test]
    fn that_of_this_process_is_read() {
        let text = std::fs::read_to_string("/proc/self/stat").expect("Linux");
        let stat = Stat::parse(&text).expect("a line");
        // That of its first thread.
        assert!(matches!(stat.state(), 'R' | 'S'), "{text}");
        assert!(stat.stack().is_some_and(|at| at > 1 << 30), "{text}");
    }
}
