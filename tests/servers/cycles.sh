#!/bin/bash
# A server under load while its processes are attached and let go of again and again; everything
# that it answered is checked.
#
#   cycles.sh postgresql|redis|mariadb|etcd|python|java DIR CYCLES SYNCLATER
#
# Says how many requests were answered at once, and ends with 0 where nothing was wrong.
set -eu
kind=$1 cycles=$3 synclater=$4
cd "$2"
load=
ends() {
  touch "$PWD/stop"
  [ -z "$load" ] || { wait "$load" || { echo "the load failed"; cat load.log; exit 1; }; }
  load=
}
fail() {
  echo "$*" >&2
  exit 1
}

# Attaches the processes that `processes` prints, lets them work, lets go of them.
cycle() {
  local pids session
  pids=$(processes | sed 's/^/--pid /')
  session=$("$synclater" attach --until 1s --json $pids) || fail "cycle $1 of $pids: $session"
  session=$(sed -n 's/.*"id":"\([^"]*\)".*/\1/p' <<<"$session")
  sleep "0.0$((RANDOM % 10))"
  "$synclater" detach --json "$session" >detached || fail "cycle $1: $(cat detached)"
  skipped=$((skipped + $(sed -n 's/^  "skipped": \([0-9]*\).*/\1/p' detached)))
}
all_cycles() {
  skipped=0
  for i in $(seq "$cycles"); do cycle "$i"; done
  # A ledger entry may take longer than a few cycles on a busy disk.
  for i in $(seq 50); do
    [ "$skipped" = 0 ] || break
    cycle "$((cycles + i))"
  done
  ends
  [ "$skipped" -gt 0 ] || fail "nothing was put off"
  echo "$cycles cycles, $skipped requests answered at once"
}

postgresql() {
  local bin
  bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
  local data=$PWD/data
  export PGHOST=$PWD PGUSER=postgres
  chown postgres .
  pg() { runuser -u postgres -- "$@"; }
  ask() { pg "$bin/psql" -A -t -v ON_ERROR_STOP=1 -c "$1" postgres; }
  pg "$bin/initdb" --auth=trust --no-instructions -D "$data" >initdb.log
  pg "$bin/pg_ctl" -s -w -D "$data" -l "$PWD/log" -o "-c listen_addresses= -k $PWD" start
  trap 'pg "$bin/pg_ctl" -s -D "$data" -m immediate stop' EXIT
  pg "$bin/pgbench" -q -i -s 1 postgres 2>/dev/null
  ask 'create extension amcheck' >/dev/null
  while [ ! -e stop ]; do
    pg "$bin/pgbench" -n -c 4 -t 100 postgres >>load.log 2>&1 || exit 1
  done &
  load=$!
  processes() {
    local first
    first=$(head -n 1 "$data/postmaster.pid")
    # Its own processes, which stay, and whichever clients are connected.
    echo "$first"
    pgrep -P "$first" -f 'checkpointer|writer|walwriter'
  }
  all_cycles
  ! grep -E 'ERROR|FATAL|PANIC' log || fail "errors in its log"
  ask "select bt_index_check(c.oid, true) from pg_index i join pg_class c on c.oid = i.indexrelid
    join pg_am a on a.oid = c.relam where a.amname = 'btree' and c.relpersistence = 'p'" >checked
  [ "$(ask 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from
    pgbench_history) and (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from
    pgbench_history)')" = t ] || fail "the balances differ"
  trap - EXIT
  pg "$bin/pg_ctl" -s -w -D "$data" -m fast stop
}

redis() {
  ask() { redis-cli -s "$PWD/socket" "$@"; }
  redis-server --port 0 --unixsocket "$PWD/socket" --dir "$PWD" --save '' \
    --appendonly yes --appendfsync always >log 2>&1 &
  server=$!
  trap 'kill -KILL "$server"' EXIT
  until ask ping >/dev/null 2>&1; do [ "$SECONDS" -lt 60 ] || exit 99; done
  (
    round=0
    while [ ! -e stop ]; do
      round=$((round + 1))
      seq 1 200 | sed "s/.*/SET key$round.& value&/" | ask | sort | uniq -c >answers
      [ "$(tr -s ' ' <answers)" = ' 200 OK' ] || { cat answers; exit 1; }
      echo $((round * 200)) >sets
    done
  ) >load.log 2>&1 &
  load=$!
  processes() { echo "$server"; }
  all_cycles
  [ "$(ask dbsize)" = "$(cat sets)" ] || fail "keys are missing"
  ask shutdown nosave
  trap - EXIT
  wait "$server"
  redis-check-aof appendonlydir/*.manifest >checked || fail "$(cat checked)"
}

mariadb() {
  chown mysql .
  export TMPDIR=$PWD
  ask() { command mariadb --no-defaults -N -B -S "$PWD/socket" "$@"; }
  mariadb-install-db --no-defaults --user=mysql --datadir="$PWD/data" --skip-test-db \
    --auth-root-authentication-method=normal >install.log 2>&1
  mariadbd --no-defaults --user=mysql --datadir="$PWD/data" --socket="$PWD/socket" \
    --pid-file="$PWD/pid" --skip-networking >log 2>&1 &
  server=$!
  trap 'kill -KILL "$server"' EXIT
  until ask -e 'select 1' >/dev/null 2>&1; do [ "$SECONDS" -lt 60 ] || exit 99; done
  while [ ! -e stop ]; do
    mariadb-slap --no-defaults -S "$PWD/socket" --concurrency=4 --number-of-queries=200 \
      --auto-generate-sql --auto-generate-sql-load-type=write --engine=innodb >>load.log 2>&1 ||
      exit 1
  done &
  load=$!
  processes() { echo "$server"; }
  all_cycles
  ! grep -E '\[ERROR\]|InnoDB: .*corrupt' log || fail "errors in its log"
  {
    echo 'create database d; use d; create table t (x int primary key) engine=innodb;'
    seq 1 131 | sed 's/.*/insert into t values (&);/'
    echo 'check table t; select count(*) from t;'
  } | ask | tail -n 2 >checked
  grep -q 'status.OK' checked && grep -qx 131 checked || fail "$(cat checked)"
  mariadb-admin --no-defaults -S "$PWD/socket" shutdown
  trap - EXIT
  wait "$server"
}

# Go, with system calls of its own.
etcd() {
  local port=$((20000 + RANDOM % 20000)) peer
  peer=http://127.0.0.1:$((port + 1))
  export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=127.0.0.1:$port
  command etcd --data-dir "$PWD/data" --listen-peer-urls "$peer" \
    --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
    --listen-client-urls "http://$ETCDCTL_ENDPOINTS" \
    --advertise-client-urls "http://$ETCDCTL_ENDPOINTS" >log 2>&1 &
  server=$!
  trap 'kill -KILL "$server"' EXIT
  until etcdctl endpoint health >/dev/null 2>&1; do [ "$SECONDS" -lt 60 ] || exit 99; done
  (
    round=0
    while [ ! -e stop ]; do
      round=$((round + 1))
      for k in 1 2 3 4; do
        etcdctl put "key$round.$k" "value $round.$k" >"answer$k" 2>&1 &
      done
      wait
      [ "$(cat answer[1-4] | sort | uniq -c | tr -s ' ')" = ' 4 OK' ] || { cat answer*; exit 1; }
      echo $((round * 4)) >puts
    done
  ) >load.log 2>&1 &
  load=$!
  processes() { echo "$server"; }
  all_cycles
  [ "$(etcdctl get key --prefix --keys-only | grep -c .)" = "$(cat puts)" ] || fail "keys are missing"
  trap - EXIT
  kill "$server"
  wait "$server" || true
  ! grep -E 'panic|fatal|SIG[A-Z]+:' log || fail "$(cat log)"
}

python() {
  /usr/bin/python3 - >load.log 2>&1 <<'END' &
import os, sqlite3, threading
def work(name):
    base = sqlite3.connect(name)
    base.execute("pragma journal_mode = wal")
    base.execute("pragma synchronous = full")
    base.execute("create table t (x integer primary key)")
    n = 0
    while not os.path.exists("stop"):
        base.execute("insert into t values (?)", (n,))
        base.commit()
        n += 1
        assert base.execute("select count(*) from t").fetchone() == (n,)
    assert base.execute("pragma integrity_check").fetchone() == ("ok",)
    done.append(n)
done = []
threads = [threading.Thread(target=work, args=(f"base{k}",)) for k in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == 3, done
END
  load=$!
  processes() { echo "$load"; }
  all_cycles
}

java() {
  cat >Load.java <<'END'
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.*;
import java.util.concurrent.atomic.AtomicInteger;

public class Load {
    static final AtomicInteger done = new AtomicInteger();

    static void work(int k) {
        try (FileChannel file = new RandomAccessFile("file" + k, "rw").getChannel()) {
            ByteBuffer bytes = ByteBuffer.allocate(8);
            long n = 0;
            for (; !Files.exists(Path.of("stop")); n++) {
                bytes.clear();
                bytes.putLong(n).flip();
                if (file.write(bytes, 8 * (n % 512)) != 8) throw new Exception("a short write");
                file.force(n % 2 == 0);
                bytes.clear();
                if (file.read(bytes, 8 * (n % 512)) != 8 || bytes.flip().getLong() != n)
                    throw new Exception("a wrong number");
                byte[] garbage = new byte[10000];
                if (garbage[(int) (n % 10000)] != 0) throw new Exception("a wrong byte");
            }
            if (n > 0) done.incrementAndGet();
        } catch (Throwable e) {
            e.printStackTrace();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Thread[] threads = new Thread[3];
        for (int k = 0; k < 3; k++) {
            int number = k;
            threads[k] = new Thread(() -> work(number));
            threads[k].start();
        }
        Files.createFile(Path.of("begun"));
        for (Thread thread : threads) thread.join();
        System.exit(done.get() == 3 ? 0 : 1);
    }
}
END
  command javac Load.java
  command java -Xmx256m -cp . Load >load.log 2>&1 &
  load=$!
  until [ -e begun ]; do
    [ "$SECONDS" -lt 60 ] && kill -0 "$load" || fail "$(cat load.log)"
  done
  processes() { echo "$load"; }
  all_cycles
}

"$kind"
