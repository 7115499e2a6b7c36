//! The columns of a recording.
//!
//! Every row has all columns; those that make no sense for its `event` are null. Text is
//! dictionary-encoded. A batch stands for itself: its dictionaries replace those before.

use arrow_schema::{DataType, Field, Schema, TimeUnit};

/// Version of the form; a reader refuses a greater one.
pub const VERSION: u32 = 1;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Nanoseconds since 1970 in UTC, a timestamp.
    Time,
    /// Dictionary-encoded text.
    Text,
    /// Unsigned, 64 bits.
    Count,
    /// Unsigned, 32 bits.
    Id,
    /// Signed, 64 bits.
    Signed,
    /// Signed, 32 bits.
    Small,
    /// True or false.
    Bool,
    /// Floating point.
    Float,
}

impl Type {
    /// All of them.
    pub const ALL: [Type; 8] = [
        Type::Time,
        Type::Text,
        Type::Count,
        Type::Id,
        Type::Signed,
        Type::Small,
        Type::Bool,
        Type::Float,
    ];

    /// As Arrow names it.
    #[must_use]
    pub fn arrow(self) -> DataType {
        match self {
            Type::Time => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
            Type::Text => DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into()),
            Type::Count => DataType::UInt64,
            Type::Id => DataType::UInt32,
            Type::Signed => DataType::Int64,
            Type::Small => DataType::Int32,
            Type::Bool => DataType::Boolean,
            Type::Float => DataType::Float64,
        }
    }
}

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub holds: Type,
    /// Whether a file without it is no recording.
    pub required: bool,
}

const fn column(name: &'static str, holds: Type) -> Column {
    let required = false;
    Column {
        name,
        holds,
        required,
    }
}

const fn required(name: &'static str, holds: Type) -> Column {
    let required = true;
    Column {
        name,
        holds,
        required,
    }
}

/// All columns, in order. What each means is told in docs/FORMAT.md.
pub const COLUMNS: [Column; 28] = [
    required("event", Type::Text),
    required("time", Type::Time),
    required("duration_ns", Type::Count),
    column("pid", Type::Id),
    column("tid", Type::Id),
    column("uid", Type::Id),
    column("exe", Type::Text),
    column("command", Type::Text),
    required("kind", Type::Text),
    column("fd", Type::Small),
    column("path", Type::Text),
    column("inode", Type::Count),
    column("fstype", Type::Text),
    column("mount", Type::Text),
    column("device", Type::Text),
    column("parents", Type::Text),
    column("flags", Type::Id),
    column("result", Type::Signed),
    column("errno", Type::Small),
    column("answered", Type::Text),
    column("done", Type::Text),
    column("reason", Type::Text),
    column("debt", Type::Count),
    column("bytes", Type::Count),
    column("dirty", Type::Bool),
    column("caller", Type::Text),
    column("metric", Type::Text),
    column("value", Type::Float),
];

/// The schema of a recording without its metadata.
#[must_use]
pub fn fields() -> Schema {
    // `time` is the only one that every row has, whatever it is about.
    let fields = COLUMNS
        .iter()
        .map(|c| Field::new(c.name, c.holds.arrow(), c.name != "time"));
    Schema::new(fields.collect::<Vec<_>>())
}
