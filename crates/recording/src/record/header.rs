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
    /// Whose requests the kernel was asked for, in words; empty for everybody's.
    pub whose: String,
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
            ("whose", self.whose.clone()),
            (
                "slower_ns",
                self.slower_ns.map_or_else(String::new, |ns| ns.to_string()),
            ),
        ];
        pairs
            .into_iter()
            .map(|(key, value)| (format!("{PREFIX}{key}"), value))
            .collect()
    }

    /// When it began, in nanoseconds since 1970, where that can be read.
    #[must_use]
    pub fn started_ns(&self) -> Option<i64> {
        let text = self.started.strip_suffix('Z')?;
        let (date, time) = text.split_once('T')?;
        let mut date = date.splitn(3, '-').map(|n| n.parse::<i64>().ok());
        let (year, month, day) = (date.next()??, date.next()??, date.next()??);
        let (time, part) = time.split_once('.').unwrap_or((time, ""));
        let mut time = time.splitn(3, ':').map(|n| n.parse::<i64>().ok());
        let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
        let sane = (1970..2262).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && part.len() <= 9
            && part.bytes().all(|b| b.is_ascii_digit());
        // Days since 1970: years begin in March, so that leap days end them.
        let from_march = (month + 9) % 12;
        let year = year - i64::from(month < 3);
        let days =
            365 * year + year / 4 - year / 100 + year / 400 + (153 * from_march + 2) / 5 + day
                - 719_469;
        let nanos = format!("{part:0<9}").parse::<i64>().ok()?;
        let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second;
        sane.then(|| seconds.checked_mul(1_000_000_000)?.checked_add(nanos))?
    }

    /// From the metadata of a schema; `None` where it has no version, and so is no recording.
    #[must_use]
    pub fn from_metadata(metadata: &Metadata) -> Option<Header> {
        Some(Header {
            version: value(metadata, "version")?.parse().ok()?,
            tool: text(metadata, "tool"),
            host: text(metadata, "host"),
            kernel: text(metadata, "kernel"),
            boot_id: text(metadata, "boot_id"),
            started: text(metadata, "started"),
            session: text(metadata, "session"),
            command: serde_json::from_str(&text(metadata, "command")).unwrap_or_default(),
            until: text(metadata, "until"),
            engine: text(metadata, "engine"),
            processors: text(metadata, "processors").parse().unwrap_or_default(),
            whose: text(metadata, "whose"),
            slower_ns: text(metadata, "slower_ns").parse().ok(),
        })
    }
}

fn value<'m>(metadata: &'m Metadata, key: &str) -> Option<&'m String> {
    metadata.get(format!("{PREFIX}{key}").as_str())
}

/// A value; empty where there is none.
fn text(metadata: &Metadata, key: &str) -> String {
    value(metadata, key).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_begin_is_read_to_the_nanosecond() {
        let ns = |started: &str| {
            let started = started.to_owned();
            let header = Header {
                started,
                ..Header::default()
            };
            header.started_ns()
        };
        assert_eq!(ns("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(ns("1970-01-02T00:00:01.5Z"), Some(86_401_500_000_000));
        // `date -u -d @951782399 +%FT%T`
        assert_eq!(ns("2000-02-28T23:59:59Z"), Some(951_782_399_000_000_000));
        assert_eq!(ns("2000-03-01T00:00:00Z"), Some(951_868_800_000_000_000));
        let some = Some(1_795_292_784_514_794_000);
        assert_eq!(ns("2026-11-21T20:26:24.514794Z"), some);
        for odd in [
            "",
            "Z",
            "2026-11-21",
            "2026-13-01T00:00:00Z",
            "2026-01-01T00:00Z",
            "yesterday",
        ] {
            assert_eq!(ns(odd), None, "{odd}");
        }
    }
}
