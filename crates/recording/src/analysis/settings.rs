//! The setting by which a program itself decides about its syncs, where it has one.
//!
//! A program that gives up a promise by its own setting knows which one; whoever puts syncs off
//! from outside does not. So the setting comes first, with what it risks. Where a program has none
//! that is known here, nothing is said.

use super::requests::Requests;
use super::roles::program;
use serde::Serialize;
use std::collections::HashSet;

/// A program's setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The program, as people call it.
    pub program: &'static str,
    /// The setting's name.
    pub setting: &'static str,
    /// The values it takes.
    pub values: &'static str,
    /// What is at stake with the faster ones.
    pub risk: &'static str,
    /// Where it is documented.
    pub source: &'static str,
}

/// How a program is recognised.
struct ProgramSetting {
    /// Names of its executables; empty: any that writes such files.
    programs: &'static [&'static str],
    /// Parts of an executable's path.
    folders: &'static [&'static str],
    /// Parts of a file's path, one of which it syncs; empty: any file.
    files: &'static [&'static str],
    setting: Setting,
}

impl ProgramSetting {
    /// Whether one of the processes has it, and syncs such a file; `programs` are their names.
    fn is_used(&self, requests: &Requests, programs: &[String]) -> bool {
        let processes = requests.table.processes.iter().zip(programs);
        let processes: Vec<bool> = processes
            .map(|(p, name)| self.is_of(&p.exe, name))
            .collect();
        let any = processes.contains(&true);
        any && (self.files.is_empty() || syncs_one(requests, &processes, self.files))
    }

    /// Whether it is one of an executable, or of the program of this name.
    fn is_of(&self, exe: &str, program: &str) -> bool {
        let by_name = self.programs.contains(&program);
        let anybody = self.programs.is_empty() && self.folders.is_empty();
        anybody || by_name || self.folders.iter().any(|folder| exe.contains(folder))
    }
}

const fn known(
    programs: &'static [&'static str],
    files: &'static [&'static str],
    setting: Setting,
) -> ProgramSetting {
    ProgramSetting {
        programs,
        folders: &[],
        files,
        setting,
    }
}

const POSTGRES: &[&str] = &["postgres"];
const MARIADB: &[&str] = &["mariadbd", "mysqld"];
const QEMU: &[&str] = &["qemu-system-x86_64", "qemu-system-aarch64", "qemu-kvm"];
const GIT_SOURCE: &str =
    "https://git-scm.com/docs/git-config#Documentation/git-config.txt-corefsync";

const ALL: [ProgramSetting; 21] = [
    ProgramSetting {
        programs: &[],
        folders: &["/dovecot/"],
        files: &[],
        setting: Setting {
            program: "Dovecot",
            setting: "mail_fsync",
            values: "always, optimized (default), never",
            risk: "never: a power cut can lose mail that was accepted, and damage indexes, which \
                   are rebuilt",
            source: "https://doc.dovecot.org/latest/core/summaries/settings.html#mail_fsync",
        },
    },
    known(
        POSTGRES,
        &[],
        Setting {
            program: "PostgreSQL",
            setting: "synchronous_commit",
            values:
                "on (default), remote_apply, remote_write, local, off; also for one session or \
                     transaction",
            risk: "off: a crash loses the commits of the last moments, up to three times \
                   wal_writer_delay (0.6 s by default); the database stays consistent",
            source: "https://www.postgresql.org/docs/current/runtime-config-wal.html",
        },
    ),
    known(
        POSTGRES,
        &[],
        Setting {
            program: "PostgreSQL",
            setting: "fsync",
            values: "on (default), off",
            risk:
                "off: a power cut can damage the whole database beyond repair; only for one that \
                   can be made anew",
            source: "https://www.postgresql.org/docs/current/runtime-config-wal.html",
        },
    ),
    known(
        MARIADB,
        &[],
        Setting {
            program: "MariaDB, MySQL",
            setting: "innodb_flush_log_at_trx_commit",
            values: "1 (default), 2, 0",
            risk: "2: a power cut loses about a second of transactions; 0: a crash of the server \
                   does too; tables stay consistent",
            source: "https://mariadb.com/docs/server/server-usage/storage-engines/innodb/\
                     innodb-system-variables",
        },
    ),
    known(
        MARIADB,
        &[],
        Setting {
            program: "MariaDB, MySQL",
            setting: "sync_binlog",
            values: "1 (default of MySQL), 0 (default of MariaDB), N",
            risk:
                "0 or N: a power cut can lose the last events of the binary log, so that replicas \
                   and the server differ",
            source: "https://dev.mysql.com/doc/refman/8.4/en/replication-options-binary-log.html",
        },
    ),
    known(
        &["redis-server", "valkey-server"],
        &[],
        Setting {
            program: "Redis, Valkey",
            setting: "appendfsync",
            values: "always, everysec (default), no",
            risk: "everysec: a power cut loses about a second of writes; no: what the kernel had \
                   not yet written, some 30 s",
            source: "https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/",
        },
    ),
    known(
        &[],
        &[
            ".db-wal",
            ".sqlite-wal",
            ".sqlite3-wal",
            "-journal",
            ".db-journal",
        ],
        Setting {
            program: "SQLite",
            setting: "PRAGMA synchronous",
            values: "EXTRA, FULL (default), NORMAL, OFF",
            risk: "NORMAL with journal_mode=WAL: a power cut loses the last commits, the database \
                   stays consistent; OFF: it can be damaged",
            source: "https://www.sqlite.org/pragma.html#pragma_synchronous",
        },
    ),
    known(
        &["dpkg"],
        &[],
        Setting {
            program: "dpkg",
            setting: "--force-unsafe-io (also force-unsafe-io in /etc/dpkg/dpkg.cfg.d)",
            values: "off (default), on",
            risk: "on: a power cut while packages are unpacked can leave files of them empty; \
                   dpkg's own database is still synced",
            source: "https://manpages.debian.org/stable/dpkg/dpkg.1.en.html",
        },
    ),
    known(
        &["etcd"],
        &[],
        Setting {
            program: "etcd",
            setting: "--unsafe-no-fsync",
            values: "off (default), on",
            risk:
                "on: a power cut loses what was acknowledged, and a member can come back damaged \
                   and spoil its cluster; for tests only",
            source: "https://etcd.io/docs/latest/op-guide/configuration/",
        },
    ),
    known(
        &["git"],
        &[],
        Setting {
            program: "git",
            setting: "core.fsync",
            values: "none, committed, added, all, or single components",
            risk: "fewer components: a power cut can leave objects or references empty, so that \
                   the repository has to be fetched anew",
            source: GIT_SOURCE,
        },
    ),
    known(
        &["git"],
        &[],
        Setting {
            program: "git",
            setting: "core.fsyncMethod",
            values: "fsync (default), batch, writeout-only",
            risk: "batch: one flush for many loose objects, as safe on journaling file systems; \
                   writeout-only: nothing asks the disk to empty its cache",
            source: GIT_SOURCE,
        },
    ),
    known(
        &["rsync"],
        &[],
        Setting {
            program: "rsync",
            setting: "--fsync",
            values: "off (default), on: whoever started it asked for it",
            risk: "off: a power cut soon after the copy can leave files of it empty or cut off",
            source: "https://download.samba.org/pub/rsync/rsync.1",
        },
    ),
    known(
        &["mongod"],
        &[],
        Setting {
            program: "MongoDB",
            setting: "write concern j, storage.journal.commitIntervalMs",
            values: "j: true, false; 1 to 500 ms (default 100)",
            risk: "j: false: a power cut loses the writes since the last sync of the journal",
            source: "https://www.mongodb.com/docs/manual/core/journaling/",
        },
    ),
    known(
        &["java"],
        &["/translog/", "/translog-"],
        Setting {
            program: "Elasticsearch, OpenSearch",
            setting: "index.translog.durability",
            values: "request (default), async (every index.translog.sync_interval, 5 s)",
            risk: "async: a power cut loses what was acknowledged in the last interval",
            source: "https://www.elastic.co/guide/en/elasticsearch/reference/current/\
                     index-modules-translog.html",
        },
    ),
    known(
        &["java"],
        &["/version-2/log."],
        Setting {
            program: "ZooKeeper",
            setting: "forceSync",
            values: "yes (default), no",
            risk:
                "no: a power cut loses what was acknowledged, and members can disagree afterwards",
            source: "https://zookeeper.apache.org/doc/current/zookeeperAdmin.html",
        },
    ),
    known(
        &["java"],
        &["/commitlog/CommitLog-"],
        Setting {
            program: "Cassandra",
            setting: "commitlog_sync",
            values: "periodic (default, 10 s), batch, group",
            risk: "periodic: a power cut of all replicas at once loses the last period",
            source: "https://cassandra.apache.org/doc/latest/cassandra/managing/configuration/\
                     cass_yaml_file.html",
        },
    ),
    known(
        &["systemd-journald"],
        &[],
        Setting {
            program: "systemd-journald",
            setting: "SyncIntervalSec",
            values: "5min (default), any time; messages of CRIT and worse are synced at once",
            risk: "longer: a power cut loses more of the log",
            source: "https://www.freedesktop.org/software/systemd/man/latest/journald.conf.html",
        },
    ),
    known(
        QEMU,
        &[],
        Setting {
            program: "QEMU",
            setting: "cache of a drive",
            values: "writeback (default), none, writethrough, directsync, unsafe",
            risk: "unsafe: flushes of the guest are ignored; a power cut can damage its file \
                   systems; writethrough and directsync sync after each write",
            source: "https://www.qemu.org/docs/master/system/invocation.html",
        },
    ),
    known(
        &["slapd"],
        &[],
        Setting {
            program: "OpenLDAP",
            setting: "dbnosync (olcDbNoSync)",
            values: "off (default), on",
            risk: "on: a power cut loses the last changes and can damage the database",
            source: "https://www.openldap.org/software/man.cgi?query=slapd-mdb",
        },
    ),
    known(
        &["smbd"],
        &[],
        Setting {
            program: "Samba",
            setting: "strict sync",
            values: "yes (default), no",
            risk: "no: a client's request for durability is answered without a sync",
            source: "https://www.samba.org/samba/docs/current/man-html/smb.conf.5.html",
        },
    ),
    known(
        &["vim", "vim.basic", "nvim"],
        &[],
        Setting {
            program: "Vim",
            setting: "fsync",
            values: "on (default of most), off",
            risk: "off: a power cut soon after a save can leave the file empty",
            source: "https://vimhelp.org/options.txt.html#%27fsync%27",
        },
    ),
];

/// The settings of the programs that made requests.
#[must_use]
pub fn of(requests: &Requests) -> Vec<Setting> {
    let processes = requests.table.processes.iter();
    let programs: Vec<String> = processes.map(program).collect();
    ALL.iter()
        .filter(|known| known.is_used(requests, &programs))
        .map(|known| known.setting)
        .collect()
}

/// Whether one of `processes` asked for a sync of a file with one of `parts` in its path.
fn syncs_one(requests: &Requests, processes: &[bool], parts: &[&str]) -> bool {
    let files = requests.table.files.iter().enumerate();
    let files: HashSet<usize> = files
        .filter(|(_, f)| parts.iter().any(|part| f.path.contains(part)))
        .map(|(k, _)| k)
        .collect();
    let rows = requests.rows;
    let mut all = requests.all().map(|i| i as usize);
    !files.is_empty()
        && all.any(|i| {
            let is_one = processes.get(rows.process[i] as usize) == Some(&true);
            is_one && files.contains(&(rows.file[i] as usize))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::table::Table;

    fn of_one(exe: &str, path: &str) -> Vec<&'static str> {
        let mut t = Table::of_one("fsync", exe, path);
        t.rows.time_ns.push(0);
        t.rows.process.push(0);
        t.rows.file.push(0);
        of(&Requests::durability(&t))
            .iter()
            .map(|s| s.setting)
            .collect()
    }

    #[test]
    fn a_program_is_recognised_by_name_folder_or_file() {
        assert_eq!(of_one("/usr/lib/dovecot/imap", "/m/1"), ["mail_fsync"]);
        let pg = of_one("/usr/lib/postgresql/15/bin/postgres", "/x");
        assert_eq!(pg, ["synchronous_commit", "fsync"]);
        assert_eq!(of_one("/opt/app", "/x/app.db-wal"), ["PRAGMA synchronous"]);
        assert_eq!(
            of_one("/opt/jdk/bin/java", "/x/version-2/log.1"),
            ["forceSync"]
        );
        assert!(of_one("/opt/jdk/bin/java", "/x/y").is_empty());
        assert!(of_one("/usr/bin/cp", "/x").is_empty());
    }

    #[test]
    fn every_setting_has_values_a_risk_and_a_source() {
        for ProgramSetting { setting: s, .. } in &ALL {
            assert!(s.values.contains(','), "{s:?}");
            assert!(
                s.risk.len() > 20 && s.source.starts_with("https://"),
                "{s:?}"
            );
        }
    }
}
