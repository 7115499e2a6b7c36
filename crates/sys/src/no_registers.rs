//! The registers of a thread on a machine that has no gate: nobody asks for them.

use std::io;

/// Registers.
#[derive(Clone, Debug, Default)]
pub struct Registers(());

impl Registers {
    /// Whether they can be read and given on this machine.
    pub const ARE_KNOWN: bool = false;

    pub(crate) fn of(_tid: u32) -> io::Result<Registers> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn give(&self, _tid: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// None.
    #[must_use]
    pub fn ip(&self) -> u64 {
        0
    }

    /// None.
    #[must_use]
    pub fn sp(&self) -> u64 {
        0
    }

    /// Itself.
    #[must_use]
    pub fn with_stack(&self, _sp: u64) -> Registers {
        self.clone()
    }

    /// Itself.
    #[must_use]
    pub fn to_execute(&self, _enter: u64, _path: u64, _args: u64, _env: u64) -> Registers {
        self.clone()
    }

    /// None.
    #[must_use]
    pub fn entry(&self) -> [u8; 2] {
        [0; 2]
    }

    /// No.
    #[must_use]
    pub fn is_64(&self) -> bool {
        false
    }

    /// No.
    #[must_use]
    pub fn waits_in_runtime(&self) -> bool {
        false
    }

    /// Nowhere.
    #[must_use]
    pub fn goroutine(&self) -> u64 {
        0
    }

    /// No.
    #[must_use]
    pub fn is_in_program(&self) -> bool {
        false
    }

    /// Itself.
    #[must_use]
    pub fn answered(&self) -> Registers {
        self.clone()
    }

    /// None.
    #[must_use]
    pub fn ended(&self, _call: u64, _behind: u64, _result: i64) -> Option<Registers> {
        None
    }

    /// Nothing to undo.
    #[must_use]
    pub fn undisturbed(&self) -> Option<Registers> {
        None
    }

    /// None.
    #[must_use]
    pub fn restart_call(&self) -> u32 {
        0
    }

    /// No.
    #[must_use]
    pub fn restarts(&self) -> bool {
        false
    }

    /// Itself.
    #[must_use]
    pub fn begun_anew(&self) -> Registers {
        self.clone()
    }

    /// Nothing.
    #[must_use]
    pub fn to_come_back(&self) -> ([u64; 15], u64, u64) {
        ([0; 15], 0, 0)
    }

    /// Itself.
    #[must_use]
    pub fn sent_to(&self, _code: u64, _argument: u64, _stack: u64) -> Registers {
        self.clone()
    }
}
