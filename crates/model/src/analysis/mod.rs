//! What a recording tells: distributions, groups, causes, differences.
//!
//! Promise: figures come from every request, not from a sample of them; percentiles are values that
//! were measured. The same recording always gives the same answer.

pub mod explain;
