#!/usr/bin/env bash
# Runs a command on two hosts that this one Linux machine plays: two_hosts.sh COMMAND ARGUMENTS...
#
# Each host has network, host name (a and b) and /etc/hosts of its own, in namespaces; a cable (a veth pair) joins them.
# They share files, processes, cores and memory. The command runs on host a, and may be mpirun with --host a:2,b:2:
# OMPI_MCA_plm_rsh_agent names a program that runs commands on either host, as ssh does. When the command ends, by itself
# or by a signal, whatever still runs on the hosts is ended, and their namespaces are gone. Exit code: the command's, or 2
# if the hosts cannot be made.
set -euo pipefail

fail() { echo "two_hosts.sh: $*" >&2; exit 2; }
[ $# -gt 0 ] || fail "name a command: two_hosts.sh COMMAND ARGUMENTS..."
[ "$(uname)" = Linux ] || fail "needs Linux, whose namespaces play the hosts"
for tool in ip unshare nsenter; do
  command -v $tool >/dev/null || fail "needs \"$tool\" (Debian's packages iproute2 and util-linux)"
done
if [ "$(id -u)" != 0 ]; then  # a user namespace gives the rights of root over namespaces made in it
  unshare --user --map-root-user --net true 2>/dev/null ||
    fail "needs root, because this system lets users make no namespaces: sudo -E $0 ..."
  exec unshare --user --map-root-user "$0" "$@"
fi
reason=$(unshare --net --uts --mount true 2>&1) ||
  fail "root may make no namespaces here ($reason); in a container, run it with --privileged"

scratch=$(mktemp -d)
declare -A holder=()

on() {  # on HOST COMMAND...
  local host=$1
  shift
  nsenter --target "${holder[$host]}" --net --uts --mount --wd="$PWD" -- "$@"
}

# shellcheck disable=SC2317  # the trap calls it
# The processes on the hosts, by their network namespaces; not this one's, which are other ones.
on_the_hosts() {
  local process net
  for process in /proc/[0-9]*; do
    net=$(readlink "$process/ns/net" 2>/dev/null) || continue
    case " ${nets:-} " in *" $net "*) echo "${process#/proc/}" ;; esac
  done
}

# shellcheck disable=SC2317
clean_up() {
  trap - EXIT
  local left
  for signal in TERM KILL; do
    left=$(on_the_hosts)
    [ -n "$left" ] || break
    # shellcheck disable=SC2086
    kill -$signal $left 2>/dev/null || true
    for _ in {1..20}; do
      sleep 0.1
      [ -n "$(on_the_hosts)" ] || break
    done
  done
  wait 2>/dev/null || true
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

printf '127.0.0.1 localhost\n10.77.0.1 a\n10.77.0.2 b\n' >"$scratch/hosts"
for host in a b; do
  # A process holds each host's namespaces. It says when they exist, and a mount that this shell would see is private.
  unshare --net --uts --mount --propagation private sh -c "
    hostname $host && mount --bind '$scratch/hosts' /etc/hosts && ip link set lo up && touch '$scratch/$host.ready' &&
    exec sleep infinity" &
  holder[$host]=$!
  until [ -e "$scratch/$host.ready" ]; do
    kill -0 "${holder[$host]}" 2>/dev/null || fail "host $host cannot be made: the message above says why"
    sleep 0.02
  done
  nets="${nets:-} $(readlink "/proc/${holder[$host]}/ns/net")"
done
on a ip link add eth0 type veth peer name eth0 netns "${holder[b]}" ||
  fail "no veth pair can be made; the kernel's module \"veth\" may be missing (modprobe veth)"
on a ip address add 10.77.0.1/24 dev eth0
on b ip address add 10.77.0.2/24 dev eth0
on a ip link set eth0 up
on b ip link set eth0 up

# Like ssh, it hands on no variables, starts in the home folder and leaves the command line to a shell.
cat >"$scratch/rsh" <<EOF
#!/bin/sh
case \$1 in
  a) target=${holder[a]} ;;
  b) target=${holder[b]} ;;
  *) echo "there is no host \$1, only a and b" >&2; exit 255 ;;
esac
shift
exec nsenter --target \$target --net --uts --mount --wd="\$HOME" -- \
  env -i HOME="\$HOME" PATH="$PATH" USER="\${USER:-root}" /bin/sh -c "\$*"
EOF
chmod +x "$scratch/rsh"
export OMPI_MCA_plm_rsh_agent="$scratch/rsh"
export OMPI_MCA_btl=tcp,self  # Open MPI would take the shared memory of one machine, which real hosts do not have
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

on a "$@" &
command=$!
code=0
wait $command || code=$?
exit $code
