//! Limits that people know, each with its source, for the programs that they are about.
//!
//! What it does not do: it applies no limit to a program that it was not made for.

use super::order::Order;
use super::roles::program;
use super::stats::percentile;

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// What it is about.
    pub name: &'static str,
    /// What must stay below it, in ten-thousandths; 10,000 is the longest.
    pub share: u64,
    /// The limit.
    pub limit_ns: u64,
    /// What happens above it.
    pub above: &'static str,
    /// Who says so.
    pub source: &'static str,
    program: &'static [&'static str],
    /// Parts of a file's path.
    files: &'static [&'static str],
}

/// A limit and what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The limit.
    pub threshold: Threshold,
    /// The same percentile of this recording.
    pub measured_ns: u64,
    /// Of how many requests.
    pub n: u64,
}

impl Measured {
    /// Whether the limit is kept.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.measured_ns < self.threshold.limit_ns
    }
}

impl Threshold {
    /// The percentile's name: `p99`, `max`.
    #[must_use]
    pub fn quantile(&self) -> &'static str {
        if self.share >= 10_000 {
            "max"
        } else {
            "p99"
        }
    }
}

const MS: u64 = 1_000_000;

const ALL: [Threshold; 6] = [
    Threshold {
        name: "etcd: sync of the write-ahead log",
        share: 9_900,
        limit_ns: 10 * MS,
        above: "the disk is too slow for etcd; leaders can be lost",
        source: "https://etcd.io/docs/latest/faq/ (wal_fsync_duration_seconds)",
        program: &["etcd"],
        files: &["/wal/", ".wal"],
    },
    Threshold {
        name: "etcd: commit of the back end",
        share: 9_900,
        limit_ns: 25 * MS,
        above: "the disk is too slow for etcd; a commit holds at least one such sync",
        source: "https://etcd.io/docs/latest/faq/ (backend_commit_duration_seconds)",
        program: &["etcd"],
        files: &["/snap/db"],
    },
    Threshold {
        name: "etcd: slow fdatasync",
        share: 10_000,
        limit_ns: 1_000 * MS,
        above: "etcd writes \"slow fdatasync\" into its log",
        source: "etcd, server/storage/wal/wal.go: warnSyncDuration",
        program: &["etcd"],
        files: &["/wal/", ".wal"],
    },
    Threshold {
        name: "ZooKeeper: sync of the transaction log",
        share: 10_000,
        limit_ns: 1_000 * MS,
        above: "ZooKeeper warns of it in its log: it delays every answer",
        source: "https://zookeeper.apache.org/doc/current/zookeeperAdmin.html \
                 (fsync.warningthresholdms)",
        program: &["java"],
        files: &["/version-2/log."],
    },
    Threshold {
        name: "Redis: sync of the append-only file",
        share: 10_000,
        limit_ns: 2_000 * MS,
        above: "with appendfsync everysec Redis stops to answer until the sync has ended",
        source:
            "https://redis.io/docs/latest/operate/oss_and_stack/management/optimization/latency/",
        program: &["redis-server", "valkey-server"],
        files: &["appendonly", ".aof"],
    },
    Threshold {
        name: "CockroachDB: any sync",
        share: 10_000,
        limit_ns: 20_000 * MS,
        above: "the node ends itself (storage.max_sync_duration)",
        source: "https://www.cockroachlabs.com/docs/stable/cluster-settings",
        program: &["cockroach"],
        files: &[""],
    },
];

/// The limits that are about programs of this recording, with what was measured.
#[must_use]
pub fn of(order: &Order) -> Vec<Measured> {
    let processes = &order.requests.table.processes;
    let programs: Vec<String> = processes.iter().map(program).collect();
    let measured = ALL
        .iter()
        .map(|threshold| threshold.measure(order, &programs));
    measured.flatten().collect()
}

impl Threshold {
    /// What was measured; `None` where it is about none of `programs`, those of the processes.
    fn measure(&self, order: &Order, programs: &[String]) -> Option<Measured> {
        let processes: Vec<bool> = programs
            .iter()
            .map(|name| self.program.contains(&name.as_str()))
            .collect();
        if !processes.contains(&true) {
            return None;
        }
        let files = &order.requests.table.files;
        let files: Vec<bool> = files.iter().map(|f| self.names(&f.path)).collect();
        let rows = order.requests.rows;
        let took = order.only(|i| {
            let is_program = processes.get(rows.process[i] as usize) == Some(&true);
            is_program && files.get(rows.file[i] as usize) == Some(&true)
        });
        Some(Measured {
            threshold: *self,
            measured_ns: percentile(&took, self.share)?,
            n: took.len() as u64,
        })
    }

    /// Whether it is about a file with this path.
    fn names(&self, path: &str) -> bool {
        self.files.iter().any(|part| path.contains(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::requests::Requests;
    use crate::record::table::{Done, Table};

    fn measured(exe: &str, path: &str, took_ms: &[u64]) -> Vec<(&'static str, u64, bool)> {
        let mut t = Table::of_one("fdatasync", exe, path);
        for took in took_ms {
            t.rows.time_ns.push(0);
            t.rows.took_ns.push(took * MS);
            t.rows.process.push(0);
            t.rows.file.push(0);
            t.rows.kind.push(0);
            t.rows.done.push(Done::Real);
        }
        let requests = Requests::durability(&t);
        let all = of(&Order::of(&requests));
        let row = |m: &Measured| (m.threshold.quantile(), m.measured_ns / MS, m.is_ok());
        all.iter().map(row).collect()
    }

    #[test]
    fn etcd_s_log_must_be_synced_in_10_ms_by_the_99th_percentile() {
        let wal = "/var/lib/etcd/member/wal/0.wal";
        let mut took = vec![3; 99];
        took.push(500);
        assert_eq!(
            measured("/usr/bin/etcd", wal, &took),
            [("p99", 3, true), ("max", 500, true)]
        );
        took.push(501);
        let slow = measured("/usr/bin/etcd", wal, &took);
        assert_eq!(slow, [("p99", 500, false), ("max", 501, true)]);
    }

    #[test]
    fn no_limit_is_applied_to_a_program_it_was_not_made_for() {
        assert!(measured("/usr/bin/cp", "/x/wal/0.wal", &[500]).is_empty());
        assert!(measured("/usr/bin/etcd", "/x/other", &[500]).is_empty());
    }
}
