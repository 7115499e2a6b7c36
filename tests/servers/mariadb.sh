#!/bin/bash
# A private MariaDB: a fresh data directory, a transaction a row on a socket in DIR, a clean stop.
# Prints what was committed.
#
#   mariadb.sh DIR        as root: the server runs as user mysql, who must be able to reach DIR
set -eu
cd "$1"
chown mysql .
export TMPDIR=$PWD
ask() { mariadb --no-defaults -N -B -S "$PWD/socket" "$@"; }

mariadb-install-db --no-defaults --user=mysql --datadir="$PWD/data" --skip-test-db \
  --auth-root-authentication-method=normal >install.log 2>&1
mariadbd --no-defaults --user=mysql --datadir="$PWD/data" --socket="$PWD/socket" \
  --pid-file="$PWD/pid" --skip-networking >log 2>&1 &
server=$!
trap 'kill -KILL "$server"' EXIT
until ask -e 'select 1' >/dev/null 2>&1; do [ "$SECONDS" -lt 60 ] || exit 99; done
{
  echo 'create database d; use d;'
  echo 'create table t (x int primary key, y text) engine=innodb;'
  seq 1 131 | sed 's/.*/insert into t values (&, "row &");/'
  echo 'select count(*), sum(x) from t;'
} | ask
mariadb-admin --no-defaults -S "$PWD/socket" shutdown
trap - EXIT
wait "$server"
