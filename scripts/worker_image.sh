#!/bin/bash
# Builds the image of containers/Dockerfile for the tests, by `make image` with Podman, and with Docker in other versions, on a base
# made of Debian's own packages in place of the one that would be pulled. Installs nothing. Once: it is kept by its recipe in ~/.cache/muster, as a
# store of images that the tests' Podman reads, and an archive that their Docker loads; without it they skip. Some 15 minutes on
# 2 cores, most of them Horovod's.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/muster
DOCKER=$HERE/../tests/platforms/worker_image_docker.py
RECIPE=$({ cat "$HERE/../containers/Dockerfile" "$HERE/worker_image.sh" "$DOCKER"; sed -n '/^image:/,/^$/p' "$HERE/../Makefile"; } | sha256sum | cut -c 1-12)
TARGET=$CACHE/worker-image-$RECIPE
BASE=docker.io/library/debian:bookworm-slim

[ "${1:-}" = --where ] && { echo "$TARGET"; exit; }
[ -d "$TARGET" ] && exit
skip() { echo "No image of workers is built, and its tests will skip: $1"; exit 0; }
SOURCES=/etc/apt/sources.list.d/debian.sources
[ -f $SOURCES ] && grep -qs bookworm $SOURCES || skip "this is not Debian 12"
[ "$(id -u)" = 0 ] || skip "that takes root"
for program in apt-get podman chroot make; do command -v $program > /dev/null || skip "there is no $program"; done

mkdir -p "$CACHE"
exec 9> "$CACHE/.worker-image-lock"
flock 9
[ -d "$TARGET" ] && exit  # somebody else has, meanwhile
echo "Building the image of workers for its tests, once: some minutes ($CACHE/worker-image.log)"
exec > "$CACHE/worker-image.log" 2>&1
BUILD=$(mktemp -d "$CACHE/.worker-image-XXXXXX")
leave() { umount --lazy "$BUILD/made/podman/overlay" 2> /dev/null || true; rm -rf --one-file-system "$BUILD"; }
trap leave EXIT

# The base: Debian's smallest system, which trusts whom this machine trusts and gets packages from where it does.
mkdir -p "$BUILD"/{tool,tmp,networks,bin,made/podman}
(cd "$BUILD/tool" && apt-get -q update && apt-get -q download debootstrap && dpkg -x debootstrap_*.deb .)
MIRROR=$(sed -n 's/^URIs: *//p' $SOURCES | head -n 1)
DEBOOTSTRAP_DIR=$BUILD/tool/usr/share/debootstrap "$BUILD/tool/usr/sbin/debootstrap" \
  --variant=minbase --include=ca-certificates bookworm "$BUILD/base" "$MIRROR"
cp -r /usr/local/share/ca-certificates/. "$BUILD/base/usr/local/share/ca-certificates/"
chroot "$BUILD/base" update-ca-certificates
rm -rf "$BUILD/base/etc/apt/sources.list" "$BUILD"/base/var/cache/apt/archives/*.deb "$BUILD"/base/var/lib/apt/lists/*
cp $SOURCES "$BUILD/base/etc/apt/sources.list.d/"
tar -C "$BUILD/base" -cf "$BUILD/base.tar" .

cat > "$BUILD/containers.conf" <<END
[containers]
default_ulimits = []
[network]
network_config_dir = "$BUILD/networks"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "$BUILD/tmp"
END
cat > "$BUILD/bin/podman" <<END
#!/bin/sh
export CONTAINERS_CONF="$BUILD/containers.conf" TMPDIR="$BUILD/tmp"
exec "$(command -v podman)" --root "$BUILD/made/podman" --runroot "$BUILD/runroot" --tmpdir "$BUILD/tmp" "\$@"
END
chmod +x "$BUILD/bin/podman"
TRUST="ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt"
cd "$HERE/.."
"$BUILD/bin/podman" import --change "$TRUST" "$BUILD/base.tar" $BASE
nice -n 10 make image ENGINE="$BUILD/bin/podman" ARGS="--pull=never --isolation=chroot --network=host"
"$BUILD/bin/podman" image prune --force
umount --lazy "$BUILD/made/podman/overlay" 2> /dev/null || true
# A Docker that cannot be had here is no failure: its test skips then.
nice -n 10 .venv/bin/python -m tests.platforms.worker_image_docker "$BUILD/base.tar" $BASE "$TRUST" "$BUILD/made/docker.tar"
mv -T "$BUILD/made" "$TARGET"
