#!/bin/sh
# Makes a base image from Debian's packages, if none can be pulled: a minimal system with Python 3.11, as a tar file.
#
#   docker/base.sh FILE.tar [SUITE [MIRROR]]      needs root and mmdebstrap
#   docker import FILE.tar NAME | podman import FILE.tar NAME | buildah: FROM scratch, ADD FILE.tar /
set -eu

file=$1
suite=${2:-bookworm}
mirror=${3:-http://deb.debian.org/debian}

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

# The hook links /bin to /usr/bin before packages come; else apt would install Perl for a package that moves the files.
mmdebstrap --mode=root --variant=minbase --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
  --include=python3,ca-certificates "$suite" "$root" "$mirror"

# Keep only what a running program may need: no caches, package lists, logs or documentation, except for licences.
rm -rf "$root"/var/cache/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/tmp/* "$root"/run/* \
  "$root"/usr/share/locale/* "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/usr/share/lintian/*
find "$root"/usr/share/doc -type f ! -name copyright -delete
find "$root"/usr/share/doc -type d -empty -delete
find "$root" -name __pycache__ -type d -prune -exec rm -rf {} +
# Traces of the machine on which the image is made.
rm -f "$root"/etc/machine-id "$root"/var/lib/dbus/machine-id
for name in hostname resolv.conf; do : >"$root/etc/$name"; done
# No setuid and setgid programs: nothing in a container needs them.
find "$root" -xdev -type f -perm /6000 -exec chmod a-s {} +

tar --create --file "$file.partial" --directory "$root" --sort=name --numeric-owner --mtime=@315532800 \
  --exclude './dev/*' --exclude './proc/*' --exclude './sys/*' .
mv "$file.partial" "$file"
