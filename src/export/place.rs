//! Where an export goes: one file, or Hive partitions by host and date; and what files are called.
//!
//! Promise: a recording always gets the same names, so that exporting it again replaces what was
//! there; two recordings never share one. A hostile name of a host stays one folder.

use std::path::{Path, PathBuf};
use synclater_recording::record::header::Header;

/// Where an export goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// One file.
    File(PathBuf),
    /// `host=…/date=…` below a folder.
    Folder(PathBuf),
}

impl Destination {
    /// What `out` means: a folder where it is one or ends with a slash, else a file.
    ///
    /// # Errors
    /// Why it is neither, and what to write instead.
    pub fn of(out: &Path) -> Result<Destination, (String, String)> {
        use std::os::unix::ffi::OsStrExt;
        let slash = out.as_os_str().as_bytes().ends_with(b"/");
        let shown = out.display();
        let above = out.parent().filter(|dir| !dir.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        match std::fs::metadata(out) {
            Ok(m) if m.is_dir() => Ok(Destination::Folder(out.to_owned())),
            Ok(m) if !m.is_file() => Err((
                "it exists, and is neither a file nor a folder".into(),
                "name a file that ends in .parquet, or a folder".into(),
            )),
            Ok(_) if !is_parquet(out) => Err((
                "it exists, and is no Parquet file".into(),
                "name a new file, or a folder; nothing else is overwritten".into(),
            )),
            // Where a link leads the file is replaced, and the link stays.
            Ok(_) => Ok(Destination::File(
                out.canonicalize().unwrap_or_else(|_| out.to_owned()),
            )),
            Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => Err((
                format!("{e}: a part of it is a file"),
                "name a file in a folder".into(),
            )),
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err((
                e.to_string(),
                "name a file or folder that you can write".into(),
            )),
            Err(_) if slash => Ok(Destination::Folder(out.to_owned())),
            Err(_) if !slash && !above.is_dir() => Err((
                format!("the folder {} does not exist", above.display()),
                "make it, or name another one".into(),
            )),
            Err(_) if out.extension().is_some_and(|x| x == "parquet") => {
                Ok(Destination::File(out.to_owned()))
            }
            Err(_) => Err((
                "it does not exist, and may be meant as a file or as a folder".into(),
                format!("write {shown}.parquet for one file, {shown}/ for a folder"),
            )),
        }
    }
}

/// Whether a file may be replaced: it is Parquet by its first bytes, or empty.
fn is_parquet(path: &Path) -> bool {
    use std::io::Read;
    let mut first = Vec::new();
    let read = std::fs::File::open(path).and_then(|f| f.take(4).read_to_end(&mut first));
    read.is_ok() && (first.is_empty() || first == b"PAR1")
}

/// A value of a partition as Hive writes it: what means something in a path is written as `%XX`;
/// one that is not known has Hive's name for that.
#[must_use]
pub fn escaped(value: &str) -> String {
    if value.is_empty() {
        return "__HIVE_DEFAULT_PARTITION__".to_owned();
    }
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        if c.is_ascii_control() || "\"#%'*/:=?\\{[]^".contains(c) {
            out.push_str(&format!("%{:02X}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// The name of a recording's files: its session and when it began. `first_ns` is the time of its
/// first row, for a recording that knows neither.
#[must_use]
pub fn name(header: &Header, first_ns: i64) -> String {
    let began = header.started.replace([':', '-'], "");
    let parts = [&header.session, &began];
    let known: Vec<String> = parts
        .iter()
        .filter(|p| !p.is_empty())
        .map(|p| escaped(p))
        .collect();
    if known.is_empty() {
        format!("recording-{first_ns}.parquet")
    } else {
        format!("{}.parquet", known.join("-"))
    }
}

/// Days since 1970, in UTC.
#[must_use]
pub fn day_of(time_ns: i64) -> i64 {
    const DAY_NS: i64 = 86_400_000_000_000;
    time_ns.div_euclid(DAY_NS)
}

/// A day since 1970 as `YYYY-MM-DD`. After H. Hinnant, chrono-compatible low-level date algorithms:
/// years begin in March, so that the leap day is their last.
#[must_use]
pub fn date(day: i64) -> String {
    let day = day + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{of_month:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_date_is_the_one_that_the_clock_library_gives() {
        for day in (0..200_000).step_by(7).chain([59, 60, 11_016, 11_017]) {
            let time = UNIX_EPOCH + Duration::from_secs(day * 86_400);
            let want = humantime::format_rfc3339_seconds(time).to_string();
            assert_eq!(date(day as i64), want[..10], "{day}");
        }
        assert_eq!(date(day_of(-1)), "1969-12-31");
        assert_eq!(date(day_of(i64::MIN)), "1677-09-21");
        assert_eq!(date(day_of(i64::MAX)), "2262-04-11");
    }

    #[test]
    fn a_host_stays_one_folder_whatever_its_name() {
        for (host, want) in [
            ("mail1", "mail1"),
            ("a/../b", "a%2F..%2Fb"),
            ("50% a=b\n", "50%25 a%3Db%0A"),
            ("küche", "küche"),
            ("", "__HIVE_DEFAULT_PARTITION__"),
        ] {
            assert_eq!(escaped(host), want);
        }
    }

    #[test]
    fn a_recording_is_named_after_its_session_and_its_start() {
        let header = Header {
            session: "kelp".into(),
            started: "2026-03-01T12:00:05Z".into(),
            ..Header::default()
        };
        assert_eq!(name(&header, 7), "kelp-20260301T120005Z.parquet");
        assert_eq!(name(&Header::default(), 7), "recording-7.parquet");
    }
}
