#!/usr/bin/env bash
# The README's commands on a bare Debian 12: a root made by debootstrap that holds nothing but ca-certificates, and the
# project's last commit; no tool, cache or setting of this machine. Then the bundles in a second bare root, with nothing
# but Python and the torch package: no compiler. Needs root, debootstrap, 40 GB and a network; prints what each took.
#   scripts/check_fresh.sh FOLDER [quickstart] [test] [bundle] [gpu_bundle]     the parts to try (default: all)
# The roots are made in FOLDER and stay there. Certificates of this machine are copied into them, for it may sit behind a
# proxy. Exit code 0: all parts passed.
set -euo pipefail
step=fresh
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
[ "$(id -u)" = 0 ] || { say "this needs root (debootstrap, chroot)"; exit 2; }
command -v debootstrap >/dev/null || { say "debootstrap is missing: apt-get install debootstrap"; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- quickstart test bundle gpu_bundle
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

# make_root NAME: an empty Debian 12 with ca-certificates.
make_root() {
  local new=$folder/$1
  [ -x "$new/bin/bash" ] && return
  say "making the root $new"
  debootstrap --variant=minbase --include=ca-certificates bookworm "$new" "$mirror" >"$folder/$1.log" 2>&1 ||
    { tail -n 5 "$folder/$1.log"; exit 1; }
  cp /etc/resolv.conf /etc/hosts "$new/etc/"
  cp /etc/ssl/certs/ca-certificates.crt "$new/etc/ssl/certs/"
}

# in_root NAME COMMAND: in a mount and process space of its own, with an environment of its own.
in_root() {
  local new=$folder/$1
  unshare --mount --pid --fork bash -c '
    mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount --rbind /sys "$1/sys" && mount -t tmpfs tmp "$1/tmp" &&
    exec chroot "$1" /usr/bin/env -i HOME=/root TERM=dumb LANG=C.UTF-8 \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
      bash -c "$2"' _ "$new" "$2"
}

failed=0
# part NAME ROOT COMMAND: runs it and prints its verdict and its time.
part() {
  local start=$SECONDS status=0
  say "$1: $3"
  in_root "$2" "$3" >"$folder/$1.out" 2>&1 </dev/null || status=$?
  tail -n 4 "$folder/$1.out" | sed 's/^/    /'
  say "$1: exit code $status after $((SECONDS - start)) s (all it said: $folder/$1.out)"
  [ "$status" = 0 ] || failed=1
}

for name in "$@"; do
  case $name in
    quickstart | test)
      make_root source
      if [ ! -d "$folder/source/trireme" ]; then
        mkdir "$folder/source/trireme"
        git archive HEAD | tar x -C "$folder/source/trireme"
      fi
      part "$name" source "cd /trireme && ./$name.sh" ;;
    bundle | gpu_bundle)
      archive=$(find "$root/build/release" -maxdepth 1 -name "$([ "$name" = bundle ] && echo 'trireme-[0-9]*.zst' || echo 'trireme-gpu-check-*.gz')")
      [ -f "$archive" ] || { say "no archive: cmake --build build/release --target $name"; exit 2; }
      make_root bundled
      cp "$archive" "$folder/bundled/root/"
      part python bundled "[ -d /root/venv ] || { apt-get update -q && apt-get install -qy --no-install-recommends python3-venv zstd &&
        python3 -m venv /root/venv && /root/venv/bin/pip install -q torch==2.11.0; }"
      use="bin/trireme env && bin/trireme train share/trireme/configs/leaves_vit.toml --ranks 2 && bin/trireme eval runs/leaves_vit"
      [ "$name" = bundle ] || use="share/trireme/gpu_check.sh --dry /root/checked"
      part "$name" bundled "cd /root && . venv/bin/activate && tar xf $(basename "$archive") && cd $(basename "${archive%.tar.*}") &&
        $use && ! command -v gcc" ;;
    *) say "no part $name (known: quickstart, test, bundle, gpu_bundle)"; exit 2 ;;
  esac
done
exit "$failed"
