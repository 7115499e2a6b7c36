//! Command lines that programs rewrite: what of them names a role, and what is only the moment.
//!
//! Promise: a process that changes its title all the time gives few distinct commands, so that
//! groups by command mean something and a recording's dictionary stays small.
//!
//! What it does not do: programs that it does not know keep their command line as it is.
//!
//! Relies on: PostgreSQL's src/backend/utils/misc/ps_status.c (versions 9.6 to 18): a title is
//! `postgres: `, the cluster's name and `: ` where it has one, then for a client its user,
//! database, host and activity, for the others their role and sometimes what they are at.

const POSTGRES: &str = "postgres: ";

/// Roles of PostgreSQL's own processes; what follows them is the moment. With `true` the next word
/// is kept, which is a database.
const ROLES: &[(&str, bool)] = &[
    ("archiver", false),
    ("autovacuum launcher", false),
    ("autovacuum worker", true),
    ("background writer", false),
    ("bgworker: logical replication launcher", false),
    ("bgworker: logical replication worker", false),
    ("bgworker: parallel worker", false),
    ("checkpointer", false),
    ("io worker", false),
    ("logger", false),
    ("logical replication apply worker", false),
    ("logical replication launcher", false),
    ("logical replication parallel apply worker", false),
    ("logical replication tablesync worker", false),
    ("logical replication worker", false),
    ("parallel worker", false),
    ("slotsync worker", false),
    ("startup", false),
    ("stats collector", false),
    ("wal receiver", false),
    ("wal writer", false),
    ("walreceiver", false),
    ("walsummarizer", false),
    ("walwriter", false),
    ("writer", false),
];

/// The part of a command line that names a role: of PostgreSQL's processes without what they do at
/// the moment, `postgres: alice shop 10.0.0.7` or `postgres: checkpointer`; of others all of it.
#[must_use]
pub fn role(command: &str) -> String {
    let command = command.trim_end();
    match command.strip_prefix(POSTGRES) {
        Some(rest) => format!("{POSTGRES}{}", postgres_role(rest)),
        None => command.to_owned(),
    }
}

fn postgres_role(rest: &str) -> String {
    if let Some(role) = known_role(rest) {
        return role;
    }
    if let Some((cluster, after)) = rest.split_once(": ") {
        // A client's activity never has a colon and a blank before its host.
        if host_in(cluster).is_none() {
            return format!(
                "{cluster}: {}",
                known_role(after).unwrap_or_else(|| client(after))
            );
        }
    }
    client(rest)
}

/// The one of [`ROLES`] with which a text begins.
fn known_role(text: &str) -> Option<String> {
    ROLES
        .iter()
        .find_map(|(role, database)| with_role(text, role, *database))
}

/// What is kept of a text that begins with a role: that, and the next word where it is a
/// `database`.
fn with_role(text: &str, role: &str, database: bool) -> Option<String> {
    let after = text.strip_prefix(role)?;
    let ends = after.is_empty() || after.starts_with([' ', ':']);
    ends.then(|| match after.split_whitespace().next() {
        Some(name) if database => format!("{role} {name}"),
        _ => role.to_owned(),
    })
}

/// User, database and host without its port, which is another one for each connection.
fn client(rest: &str) -> String {
    let words: Vec<&str> = rest.split_whitespace().collect();
    match host_in(rest) {
        Some((at, host)) => {
            let kept = words.iter().take(at).copied().chain([host]);
            kept.collect::<Vec<_>>().join(" ")
        }
        // A background worker of an extension: its name, up to the first number.
        None => {
            let at = words.iter().skip(1).position(|w| is_number(w));
            let kept = at.map_or(words.len(), |at| at + 1);
            words[..kept].join(" ")
        }
    }
}

/// Whether a word is a number, and no address or host: these have points, colons or letters.
fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && !word.contains(['.', ':'])
}

/// The first word that is a client's host, `[local]` or `HOST(PORT)`, and its place.
fn host_in(text: &str) -> Option<(usize, &str)> {
    text.split_whitespace().enumerate().find_map(|(at, word)| {
        let host = if word == "[local]" {
            Some(word)
        } else {
            without_port(word)
        };
        host.map(|host| (at, host))
    })
}

/// The host of `HOST(PORT)`.
fn without_port(word: &str) -> Option<&str> {
    let (name, port) = word.strip_suffix(')')?.rsplit_once('(')?;
    let port = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    (port && !name.is_empty() && !is_number(name)).then_some(name)
}

/// The words with which both begin: what stays of a title that a program changes again and again.
#[must_use]
pub fn common_words(a: &str, b: &str) -> String {
    let both = a.split_whitespace().zip(b.split_whitespace());
    let same: Vec<&str> = both.take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    same.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_client_of_postgresql_is_its_user_its_database_and_its_host() {
        for (title, want) in [
            ("alice shop [local] idle", "alice shop [local]"),
            (
                "alice shop [local] idle in transaction (aborted)",
                "alice shop [local]",
            ),
            ("alice shop 10.0.0.7(54321) COMMIT", "alice shop 10.0.0.7"),
            (
                "alice shop 10.0.0.7(54322) UPDATE waiting",
                "alice shop 10.0.0.7",
            ),
            ("alice shop fe80::1(4) startup", "alice shop fe80::1"),
            (
                "16/main: alice shop [local] INSERT",
                "16/main: alice shop [local]",
            ),
            (
                "walsender bob 10.0.0.8(4711) streaming 0/3000148",
                "walsender bob 10.0.0.8",
            ),
            ("a: b [local] idle", "a: b [local]"),
        ] {
            assert_eq!(
                role(&format!("postgres: {title}")),
                format!("postgres: {want}")
            );
        }
    }

    #[test]
    fn a_process_of_postgresql_s_own_is_its_role() {
        for (title, want) in [
            ("checkpointer   ", "checkpointer"),
            (
                "16/main: checkpointer performing shutdown checkpoint",
                "16/main: checkpointer",
            ),
            ("walwriter", "walwriter"),
            ("wal writer process", "wal writer"),
            ("archiver last was 000000010000000000000003", "archiver"),
            ("startup recovering 000000010000000000000003", "startup"),
            ("walreceiver streaming 0/3000148", "walreceiver"),
            ("parallel worker for PID 4711", "parallel worker"),
            (
                "bgworker: parallel worker for PID 4711",
                "bgworker: parallel worker",
            ),
            ("autovacuum worker shop", "autovacuum worker shop"),
            (
                "autovacuum worker process   shop",
                "autovacuum worker process",
            ),
            ("io worker 2", "io worker"),
            (
                "TimescaleDB Background Worker Scheduler",
                "TimescaleDB Background Worker Scheduler",
            ),
            ("pg_cron job 17 runs", "pg_cron job"),
        ] {
            assert_eq!(
                role(&format!("postgres: {title}")),
                format!("postgres: {want}")
            );
        }
    }

    #[test]
    fn other_commands_stay_as_they_are() {
        for command in [
            "",
            "postgres -D /data",
            "imap [alice 10.0.0.7 IDLE]",
            "postgres:",
        ] {
            assert_eq!(role(command), command);
        }
    }

    #[test]
    fn of_titles_that_change_the_common_beginning_stays() {
        assert_eq!(
            common_words("imap [alice FETCH]", "imap [alice IDLE]"),
            "imap [alice"
        );
        assert_eq!(common_words("a", "b"), "");
        assert_eq!(common_words("a b", "a b"), "a b");
    }

    proptest! {
        #[test]
        fn a_role_is_a_role_of_itself(text in "(postgres: )?([a-zé:()\\[\\]0-9]{0,9} ?){0,6}") {
            let once = role(&text);
            prop_assert!(once.len() <= text.len());
            prop_assert_eq!(role(&once).len(), once.len());
        }

        #[test]
        fn the_activity_and_the_port_make_no_difference(
            port in any::<u16>(),
            activity in "[A-Za-z ()]{0,30}"
        ) {
            let title = format!("postgres: u d 127.0.0.1({port}) {activity}");
            prop_assert_eq!(role(&title), "postgres: u d 127.0.0.1");
        }
    }
}
