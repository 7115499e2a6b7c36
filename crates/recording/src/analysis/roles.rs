//! Who a process is: the program's name, and its role where the command line or the path tells it.
//!
//! PostgreSQL's processes all run `postgres`; what each does is in its command line. So it is with
//! every program that writes `name: role` there, and with the parts of Dovecot and Postfix, whose
//! executables have names of their own.

use crate::record::table::Process;

/// The last part of a path.
#[must_use]
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The program of a process: the name of its executable, or of its command where that is unknown.
#[must_use]
pub fn program(process: &Process) -> String {
    let exe = base_name(&process.exe);
    let exe = exe.strip_suffix(" (deleted)").unwrap_or(exe);
    if !exe.is_empty() {
        return exe.to_owned();
    }
    let command = process.command.split(' ').next().unwrap_or("");
    match base_name(command).trim_end_matches(':') {
        "" => "(not known)".to_owned(),
        name => name.to_owned(),
    }
}

/// The role of a process within its program, where it tells.
#[must_use]
pub fn role(process: &Process) -> Option<String> {
    let program = program(process);
    if program == "postgres" {
        return of_postgres(process);
    }
    match title(process, &program) {
        Some(title) if !title.trim().is_empty() => Some(title.trim().to_owned()),
        _ => of_suite(process, &program),
    }
}

/// What a process wrote over its command line, behind its program's name.
fn title<'a>(process: &'a Process, program: &str) -> Option<&'a str> {
    let rest = process.command.strip_prefix(program)?;
    rest.strip_prefix(": ")
}

/// The role of one of PostgreSQL's processes.
pub(super) fn of_postgres(process: &Process) -> Option<String> {
    let program = program(process);
    match title(process, &program) {
        _ if program != "postgres" => None,
        Some(title) => Some(of_title(title)),
        None => has_data_folder(&process.command).then(|| "postmaster".to_owned()),
    }
}

/// Program and role in a few words: `postgres: checkpointer`, `imap`.
#[must_use]
pub fn name(process: &Process) -> String {
    let program = program(process);
    match role(process) {
        // Dovecot's and Postfix's roles hold the program's name.
        Some(role) if role.ends_with(program.as_str()) => role,
        Some(role) => format!("{program}: {role}"),
        None => program,
    }
}

fn has_data_folder(command: &str) -> bool {
    command.split(' ').any(|word| word == "-D")
}

/// Titles that PostgreSQL's own processes have, from their beginning.
const POSTGRES: [&str; 16] = [
    "checkpointer",
    "background writer",
    "walwriter",
    "walreceiver",
    "walsummarizer",
    "walsender",
    "autovacuum launcher",
    "autovacuum worker",
    "logical replication launcher",
    "logical replication",
    "archiver",
    "startup",
    "logger",
    "stats collector",
    "parallel worker",
    "io worker",
];

/// Of `15/main: anna shop [local] COMMIT`: a backend that serves a client.
fn of_title(title: &str) -> String {
    let title = title.trim();
    // The cluster's name, where one is set, stands in front with a colon.
    let after = title.split_once(": ").map(|(_, rest)| rest);
    for text in [Some(title), after].into_iter().flatten() {
        if let Some(known) = POSTGRES.iter().find(|known| text.starts_with(**known)) {
            return (*known).to_owned();
        }
        if text.starts_with("bgworker") || text.starts_with("background worker") {
            return "background worker".to_owned();
        }
    }
    "client backend".to_owned()
}

/// Of programs that are made of many: the part is the executable's name.
fn of_suite(process: &Process, program: &str) -> Option<String> {
    let suites = [("/dovecot/", "Dovecot"), ("/postfix/", "Postfix")];
    let suite = suites.iter().find(|(path, _)| process.exe.contains(path))?;
    Some(format!("{}'s {program}", suite.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(exe: &str, command: &str) -> String {
        name(&Process {
            exe: exe.into(),
            command: command.into(),
            ..Process::default()
        })
    }

    #[test]
    fn postgresql_s_processes_are_told_apart_by_what_they_do() {
        let exe = "/usr/lib/postgresql/15/bin/postgres";
        for (command, want) in [
            ("postgres: checkpointer ", "postgres: checkpointer"),
            ("postgres: walwriter", "postgres: walwriter"),
            ("postgres: 15/main: walwriter ", "postgres: walwriter"),
            (
                "postgres: anna shop [local] COMMIT",
                "postgres: client backend",
            ),
            (
                "postgres: 15/main: anna shop 10.0.0.7(5432) idle",
                "postgres: client backend",
            ),
            (
                "postgres: autovacuum worker shop",
                "postgres: autovacuum worker",
            ),
            (
                "postgres: walsender repl 10.0.0.8(1) streaming 0/3",
                "postgres: walsender",
            ),
            (
                "/usr/lib/postgresql/15/bin/postgres -D /var/lib/x",
                "postgres: postmaster",
            ),
            ("/usr/lib/postgresql/15/bin/postgres --single", "postgres"),
        ] {
            assert_eq!(named(exe, command), want);
        }
    }

    #[test]
    fn other_programs_that_tell_their_role_are_heard() {
        assert_eq!(
            named("/usr/sbin/nginx", "nginx: worker process"),
            "nginx: worker process"
        );
        assert_eq!(
            named("/usr/lib/dovecot/imap", "dovecot/imap"),
            "Dovecot's imap"
        );
        assert_eq!(
            named("/usr/lib/postfix/sbin/cleanup", "cleanup -z -t unix"),
            "Postfix's cleanup"
        );
        assert_eq!(named("/usr/bin/dpkg (deleted)", "dpkg -i x.deb"), "dpkg");
        assert_eq!(named("", "sh -c sync"), "sh");
        assert_eq!(named("", ""), "(not known)");
    }
}
