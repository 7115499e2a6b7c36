//! What is being typed in `top`.

/// What the keyboard is for at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typing {
    /// Commands.
    Nothing,
    /// The filter's text.
    Filter,
    /// A dial.
    Dial,
    /// Whether to settle.
    Settle,
}
