#!/bin/bash
# dpkg unpacks packages made of this machine's own files into a root of their own, and configures
# them there: their scripts run in a chroot that knows nothing of the machine outside.
#
#   packages.sh build DIR                  makes DIR/*.deb
#   packages.sh install DIR ROOT           installs them below ROOT, which is made
set -eu
readonly packages="dash grep libc6 sed"

# The files of a package, as names below /, where they really lie: /bin may be a link to usr/bin.
files_of() {
  local file dir
  dpkg -L "$1" | while read -r file; do
    [[ $file == /*/* ]] && { [ -f "$file" ] || [ -L "$file" ]; } || continue
    dir=$(readlink -f "${file%/*}")
    echo "${dir#/}/${file##*/}"
  done
}

build() {
  local name tree
  for name in $packages; do
    tree=$1/$name
    mkdir -p "$tree/DEBIAN"
    files_of "$name" | tar -C / -cf - -T - | tar -C "$tree" -xf -
    printf '%s\n' "Package: $name" 'Version: 1' 'Architecture: all' \
      'Maintainer: Nobody <nobody@example.org>' 'Description: files of this machine' \
      >"$tree/DEBIAN/control"
    printf '#!/bin/sh\necho "%s: $1 in $(pwd)" >&2\n' "$name" >"$tree/DEBIAN/postinst"
    chmod 755 "$tree/DEBIAN/postinst"
    dpkg-deb --root-owner-group -Znone -b "$tree" "$1/$name.deb" >/dev/null
    rm -r "$tree"
  done
}

install() {
  local link
  mkdir -p "$2"/usr/{bin,sbin,lib,lib64} "$2"/var/lib/dpkg/{info,updates}
  for link in bin sbin lib lib64; do ln -s "usr/$link" "$2/$link"; done
  touch "$2/var/lib/dpkg/status" "$2/var/lib/dpkg/available"
  # Images of containers have force-unsafe-io in dpkg's configuration, which leaves out the syncs.
  dpkg --root="$2" --no-force-unsafe-io --log=/dev/null -i "$1"/*.deb
}

"$@"
