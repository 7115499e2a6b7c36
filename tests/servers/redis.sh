#!/bin/bash
# A private Redis that syncs its log at every SET, on a socket in DIR, and its clean stop. Prints
# what it holds.
#
#   redis.sh DIR
set -eu
cd "$1"
ask() { redis-cli -s "$PWD/socket" "$@"; }

redis-server --port 0 --unixsocket "$PWD/socket" --dir "$PWD" --save '' \
  --appendonly yes --appendfsync always >log 2>&1 &
server=$!
trap 'kill -KILL "$server"' EXIT
until ask ping >/dev/null 2>&1; do [ "$SECONDS" -lt 60 ] || exit 99; done
seq 1 229 | sed 's/.*/SET key& value&/' | ask | sort | uniq -c
ask dbsize
ask get key137
ask shutdown nosave
trap - EXIT
wait "$server"
