//! What a recording says of itself: metadata of its Arrow schema.

use arrow_schema::Metadata;
use std::collections::HashMap;

/// Where, when and how a recording was made. Text that is not known is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Version of the form.
    pub version: u32,
    /// Version of the program that wrote it.
    pub tool: String,
    /// The machine's name.
    pub host: String,
    /// The kernel's release.
    pub kernel: String,
    /// This boot's id.
    pub boot_id: String,
    /// When it began, RFC 3339 in UTC.
    pub started: String,
    /// The session's id.
    pub session: String,
    /// The command and its arguments; empty for the whole machine.
    pub command: Vec<String>,
    /// The dial when it began.
    pub until: String,
    /// `library` or `kernel`: who saw the requests.
    pub engine: String,
    /// Processors of the machine, or 0.
    pub processors: u32,
    /// Nanoseconds from which on a call that is no request is slow; `None` where they were not
    /// timed.
    pub slower_ns: Option<u64>,
}

const PREFIX: &str = "synclater.";

impl Header {
    /// As metadata of a schema.
    #[must_use]
    pub fn to_metadata(&self) -> HashMap<String, String> {
        let command = serde_json::to_string(&self.command).expect("a list of text is JSON");
        let pairs = [
            ("version", self.version.to_string()),
            ("tool", self.tool.clone()),
            ("host", self.host.clone()),
            ("kernel", self.kernel.clone()),
            ("boot_id", self.boot_id.clone()),
            ("started", self.started.clone()),
            ("session", self.session.clone()),
            ("command", command),
            ("until", self.until.clone()),
            ("engine", self.engine.clone()),
            ("processors", self.processors.to_string()),
            (
                "slower_ns",
                self.slower_ns.map_or_else(String::new, |ns| ns.to_string()),
            ),
        ];
        { pairs.into_iter() }
            .map(|(key, value)| (format!("{PREFIX}{key}"), value))
            .collect()
    }

    /// From the metadata of a schema; `None` where it has no version, and so is no recording.
    #[must_use]
    pub fn from_metadata(metadata: &Metadata) -> Option<Header> {
        let get = |key: &str| metadata.get(format!("{PREFIX}{key}").as_str());
        let text = |key| get(key).cloned().unwrap_or_default();
        Some(Header {
            version: get("version")?.parse().ok()?,
            tool: text("tool"),
            host: text("host"),
            kernel: text("kernel"),
            boot_id: text("boot_id"),
            started: text("started"),
            session: text("session"),
            command: serde_json::from_str(&text("command")).unwrap_or_default(),
            until: text("until"),
            engine: text("engine"),
            processors: text("processors").parse().unwrap_or_default(),
            slower_ns: text("slower_ns").parse().ok(),
        })
    }
}
