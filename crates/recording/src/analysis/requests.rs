//! Which rows of a recording count as what.
//!
//! A hint (sync_file_range) is no request for durability and is counted apart. Time that was spent
//! waiting is that of requests which were made for real and whose end was seen. A row that does not
//! say what became of it (a recording without the column `done`) counts as made for real: whoever
//! put nothing off wrote it.

use crate::record::table::{Done, Rows, Table, UNKNOWN};

/// Rows of one sort.
pub struct Requests<'a> {
    /// The table they are in.
    pub table: &'a Table,
    /// Their columns.
    pub rows: &'a Rows,
    /// For each kind, whether it belongs to them.
    kinds: Vec<bool>,
}

impl<'a> Requests<'a> {
    fn new(table: &'a Table, rows: &'a Rows, is: impl Fn(u16) -> bool) -> Requests<'a> {
        let kinds = (0..table.kinds.len()).map(|k| u16::try_from(k).is_ok_and(&is));
        Requests {
            table,
            rows,
            kinds: kinds.collect(),
        }
    }

    /// Those that asked for durability.
    #[must_use]
    pub fn durability(table: &'a Table) -> Requests<'a> {
        Requests::new(table, &table.rows, |k| table.is_durability(k))
    }

    /// Those that asked for write-back only.
    #[must_use]
    pub fn hints(table: &'a Table) -> Requests<'a> {
        Requests::new(table, &table.rows, |k| !table.is_durability(k))
    }

    /// Slow calls that are no sync requests.
    #[must_use]
    pub fn io(table: &'a Table) -> Requests<'a> {
        Requests::new(table, &table.io, |_| true)
    }

    /// Whether row `i` is one of them.
    #[must_use]
    pub fn has(&self, i: usize) -> bool {
        let kind = self.kinds.get(usize::from(self.rows.kind[i]));
        kind.is_some_and(|k| *k)
    }

    /// Whether row `i` is one of them and was made for real.
    #[must_use]
    pub fn is_real(&self, i: usize) -> bool {
        matches!(self.rows.done[i], Done::Real | Done::Unknown) && self.has(i)
    }

    /// How long the program waited in row `i`: only of those that were made for real.
    #[must_use]
    pub fn waited_ns(&self, i: usize) -> Option<u64> {
        let took = self.rows.took_ns[i];
        (took != UNKNOWN && self.is_real(i)).then_some(took)
    }

    /// All rows, by number. A table of more than 4,294,967,295 rows is cut there.
    pub fn all(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.rows.len()).unwrap_or(u32::MAX)
    }
}
