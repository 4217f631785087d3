# What set-up, quickstart and tests share: sourced, never run. Bash.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
step=${step:-trireme}

say() { printf '%s: %s\n' "$step" "$*"; }

# logged LOG COMMAND...: runs it with its output in the log; prints the end of that when it fails, and returns its status.
logged() {
  local log=$1 status=0
  shift
  mkdir -p "$(dirname "$log")"
  printf '\n$ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null || status=$?
  if [ "$status" != 0 ]; then
    say "failed with exit code $status: $*"
    say "the end of $log:"
    tail -n 30 "$log" | sed 's/^/    /'
  fi
  return "$status"
}

# At most one compile job a core, and one for each 3 GB of memory.
jobs_here() {
  local cores memory_gb
  # OpenMP's variables, which clusters export as 1, are not about compile jobs.
  cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
  memory_gb=$(awk '/^MemTotal/ {print int($2 / 3000000)}' /proc/meminfo)
  [ "$memory_gb" -ge "$cores" ] || cores=$memory_gb
  [ "$cores" -ge 1 ] || cores=1
  printf '%s' "$cores"
}

# Lets tests write to memory where there is room, instead of to a disk, for which they would wait a third of their time:
# exports TMPDIR, unless it is set. The caller removes the folder $tests_folder, if that is not empty.
tests_folder=
write_tests_to_memory() {
  local free_kb memory_kb limit
  [ -z "${TMPDIR:-}" ] && [ -d /dev/shm ] || return 0
  free_kb=$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)
  memory_kb=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)
  # What a container may use at most, in bytes, or "max".
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  [ "$limit" = max ] || [ $((limit / 1024)) -ge "$memory_kb" ] || memory_kb=$((limit / 1024))
  [ "${free_kb:-0}" -ge 4000000 ] && [ "${memory_kb:-0}" -ge 12000000 ] || return 0
  # Always the same for a clone: what a killed run has left there goes.
  tests_folder=/dev/shm/trireme-tests-$(id -u)-$(printf '%s' "$root" | cksum | cut -d' ' -f1)
  if ! rm -rf "$tests_folder" 2>/dev/null || ! mkdir -m 700 "$tests_folder" 2>/dev/null; then tests_folder=; return 0; fi
  printf '#!/bin/sh\n' >"$tests_folder/program"
  chmod +x "$tests_folder/program"
  if "$tests_folder/program" 2>/dev/null; then export TMPDIR=$tests_folder; fi  # else it is mounted with noexec
}

# build PRESET TARGET... [-- CMAKE ARGUMENTS]: configures (when asked for something new, or never done) and builds.
build() {
  local preset=$1 targets=() log
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do targets+=("$1"); shift; done
  [ $# = 0 ] || shift
  log=$root/build/$preset.log
  mkdir -p "$root/build" && : >"$log"
  say "configuring and building ($preset; log: build/$preset.log)"
  logged "$log" cmake -S "$root" --preset "$preset" "$@" || return
  local status=0 line tenth last=0
  NINJA_STATUS='[%f/%t] ' cmake --build "$root/build/$preset" --parallel "$(jobs_here)" --target "${targets[@]}" \
    2>&1 </dev/null | while IFS= read -r line; do
      printf '%s\n' "$line" >>"$log"
      [[ $line =~ ^\[([0-9]+)/([0-9]+)\] && ${BASH_REMATCH[2]} -gt 20 ]] || continue
      tenth=$((10 * BASH_REMATCH[1] / BASH_REMATCH[2]))
      [ "$tenth" = "$last" ] || say "built ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}"
      last=$tenth
    done || status=$?
  if [ "$status" != 0 ]; then
    say "the build failed; from $log:"
    grep -E 'error:|undefined reference|undefined symbol|FAILED:' "$log" | head -n 20 | sed 's/^/    /' || true
    tail -n 15 "$log" | sed 's/^/    /'
    return 1
  fi
}
