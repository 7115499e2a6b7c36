#!/bin/bash
# A slow or erratic disk: a file system on a loop device over a one-file FUSE with slow flushes.
#
#   slowdisk.sh up DIR SIZE FS [SLOW_MS [BAD_MS BAD_P [RW_BAD]]]     then use DIR/mnt
#   slowdisk.sh down DIR
#
# A flush takes SLOW_MS (8: a disk with 7,200 turns a minute); of BAD_P of them (0 to 1), a further
# BAD_MS. With RW_BAD=1 reads and writes are erratic too. SEED=n in the environment chooses which.
# Needs root, fuse3, libfuse3-dev, gcc, mkfs.FS. With 8 ms an fdatasync after an append takes 16 ms
# on ext4 (a commit of the journal is two flushes), after an overwrite 8. As long as there is a file
# DIR/img.quick flushes take no time: so it is while it is made and taken away.
set -eu
tools=$(cd "$(dirname "$0")" && pwd)

usage() {
  sed -n '3,6s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

up() {
  local dir=$1 size=$2 kind=$3 loop flags
  mkdir -p "$dir/fuse" "$dir/mnt"
  read -r -a flags < <(pkg-config --cflags --libs fuse3)
  gcc -O2 -Wall -Wextra -o "$dir/slowdisk" "$tools/slowdisk.c" "${flags[@]}"
  truncate -s "$size" "$dir/img"
  : >"$dir/img.quick"
  BACKING=$dir/img SLOW_MS=${4:-0} BAD_MS=${5:-0} BAD_P=${6:-0} RW_BAD=${7:-0} \
    "$dir/slowdisk" "$dir/fuse"
  loop=$(losetup -f --show "$dir/fuse/disk")
  echo "$loop" >"$dir/loop"
  "mkfs.$kind" -q "$loop"
  mount "$loop" "$dir/mnt"
  sync -f "$dir/mnt"
  rm "$dir/img.quick"
  echo "$dir/mnt on $loop ($kind)"
}

down() {
  local dir=$1
  [ ! -d "$dir" ] || : >"$dir/img.quick"
  ! mountpoint -q "$dir/mnt" || umount "$dir/mnt" || umount -l "$dir/mnt"
  [ ! -s "$dir/loop" ] || losetup -d "$(cat "$dir/loop")" 2>/dev/null || true
  fusermount3 -u "$dir/fuse" 2>/dev/null || fusermount3 -uz "$dir/fuse" 2>/dev/null || true
  rm -rf "$dir"
}

case ${1:-} in
up)
  [ $# -ge 4 ] || usage
  shift
  up "$@"
  ;;
down)
  [ $# -eq 2 ] || usage
  down "$2"
  ;;
*) usage ;;
esac
