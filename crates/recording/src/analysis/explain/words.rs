//! Causes in words, for someone who was woken up.

use super::candidate::Name;
use synclater_text::layout::shown;

/// A share: `97 %`, `8.1 %`, `0.02 %`.
pub fn percent(share: f64) -> String {
    let p = share * 100.0;
    match p {
        p if p.is_nan() || p <= 0.0 => "0 %".into(),
        p if p >= 100.0 => "100 %".into(),
        p if p > 99.5 => "over 99 %".into(),
        p if p >= 9.95 => format!("{p:.0} %"),
        p if p >= 0.095 => format!("{p:.1} %"),
        p if p >= 0.0095 => format!("{p:.2} %"),
        _ => "under 0.01 %".into(),
    }
}

/// Another name of the same requests, in brackets after the first; nothing where there is none.
fn also(names: &[Name], key: &str, form: &str) -> String {
    let found = names.iter().skip(1).find(|n| n.key == key);
    found.map_or(String::new(), |n| format!(" ({form}{})", shown(&n.value)))
}

/// What requests did: "went to /dev/sdb (mounted on /srv)".
pub fn did(names: &[Name]) -> String {
    let Some(first) = names.first() else {
        return String::new();
    };
    let value = shown(&first.value);
    match first.key {
        "device" => format!("went to {value}{}", also(names, "mount", "mounted on ")),
        "mount" => format!("went to the file system on {value}"),
        "server" => format!("went to the server {value}"),
        "parent" => format!("went to devices that are part of {value}"),
        "directory" => format!("were of files below {value}"),
        "folder" => format!("were of files in folders called \"{value}\""),
        "file" => format!("were of the file {value}"),
        "name" => format!("were of files with names like \"{value}\""),
        "fstype" => format!("went to {value} file systems"),
        "exe" => format!("were made by {value}{}", also(names, "pid", "process ")),
        "pid" => format!("were made by process {value}"),
        "command" => format!("were made by \"{value}\""),
        "user" => format!("were made as user {value}"),
        "kind" => format!("were {value} requests"),
        "caller" => format!("were asked for by the code at {value}"),
        "bytes" => format!("came after writes of {value}"),
        "dirty" if first.value == "no" => "had nothing to write".into(),
        "dirty" => "had something to write".into(),
        "before" => format!("came right after this by the same thread: {value}"),
        "second" => format!("began in second {value} of a minute"),
        "minute" => format!("began in minute {value} of an hour"),
        "period" => format!("began in a time that comes back every {value}"),
        "in_flight" => format!("began while {value} others were in flight"),
        "in_flight_on_device" => {
            format!("began while {value} others were in flight on the same device")
        }
        "device_rest" => format!("began when their device had rested for {value}"),
        "before_on_device" => format!("came after this on the same device: {value}"),
        "dirty_bytes" => format!("began while {value} of memory were dirty"),
        "writeback_bytes" => format!("began while {value} of memory were being written back"),
        "writes_per_s" => format!("began in a second with {value} writes on their device"),
        "reads_per_s" => format!("began in a second with {value} reads on their device"),
        "utilisation" => format!("began in a second in which their device was busy, {value}"),
        "psi_io_some" => format!("began in a second in which some tasks waited for I/O, {value}"),
        "psi_io_full" => format!("began in a second in which all tasks waited for I/O, {value}"),
        "iowait" => format!("began in a second in which processors waited for I/O, {value}"),
        "errno" => format!("ended with error {value}"),
        other => format!("have {other} {value} in common"),
    }
}

/// What kind of thing a dimension is about: names of the same kind go without saying.
fn aspect(key: &str) -> u8 {
    match key {
        "device" | "mount" | "server" | "parent" | "fstype" | "directory" | "folder" => 0,
        "file" | "name" => 1,
        "exe" | "pid" | "command" | "user" | "caller" => 2,
        "second" | "minute" | "period" => 3,
        _ => 4,
    }
}

/// What both parts of a pair did.
pub fn all_did(parts: &[Vec<Name>]) -> String {
    let each: Vec<String> = parts.iter().map(|names| did(names)).collect();
    each.join(" and ")
}

/// Names that cannot be told apart from the first, where they are of another kind.
pub fn not_told_apart(parts: &[Vec<Name>]) -> String {
    let mut all = Vec::new();
    for names in parts {
        let mut told = names.first().map_or(Vec::new(), |n| vec![aspect(n.key)]);
        for name in names.iter().skip(1) {
            if !told.contains(&aspect(name.key)) {
                told.push(aspect(name.key));
                all.push(did(std::slice::from_ref(name)));
            }
        }
    }
    if all.is_empty() {
        String::new()
    } else {
        format!(" The same requests {}.", all.join(", and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_shown_with_the_digits_that_matter() {
        for (share, want) in [
            (0.0, "0 %"),
            (0.00001, "under 0.01 %"),
            (0.0002, "0.02 %"),
            (0.002, "0.2 %"),
            (0.081, "8.1 %"),
            (0.0999, "10 %"),
            (0.97, "97 %"),
            (0.999, "over 99 %"),
            (1.0, "100 %"),
            (f64::NAN, "0 %"),
        ] {
            assert_eq!(percent(share), want, "{share}");
        }
    }

    #[test]
    fn a_name_in_a_sentence_cannot_steer_the_terminal() {
        let name = Name {
            key: "directory",
            value: "/a\x1b[2J".into(),
        };
        assert_eq!(did(&[name]), "were of files below /a\\u{1b}[2J");
    }
}
