#!/bin/bash
# A private PostgreSQL: initdb, pgbench on a socket in DIR, a clean stop. Prints what was committed.
#
#   postgresql.sh DIR [CLIENTS [TRANSACTIONS]]
#
# As root: the server runs as user postgres, who has to reach DIR.
set -eu
cd "$1"
bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
readonly bin data=$PWD/data
export PGHOST=$PWD PGUSER=postgres
chown postgres .
pg() { runuser -u postgres -- "$@"; }

pg "$bin/initdb" --auth=trust --no-instructions -D "$data" >initdb.log
pg "$bin/pg_ctl" -s -w -D "$data" -l "$PWD/log" -o "-c listen_addresses= -k $PWD" start
trap 'pg "$bin/pg_ctl" -s -D "$data" -m immediate stop' EXIT
pg "$bin/pgbench" -q -i -s 1 postgres 2>/dev/null
pg "$bin/pgbench" -n -c "${2-2}" -t "${3-67}" postgres | grep 'actually processed'
pg "$bin/psql" -A -t -c 'select count(*) from pgbench_history' postgres
trap - EXIT
pg "$bin/pg_ctl" -s -w -D "$data" -m fast stop
