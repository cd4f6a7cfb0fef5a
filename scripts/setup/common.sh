# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the parts of setup.sh share: messages, commands that a dry run only prints, logs that are shown on failure only.

dry_run=0
jobs=
logs=build/logs

fail() {
  echo "setup.sh: $*" >&2
  exit 1
}

usage_error() {
  echo "setup.sh: $*; see ./setup.sh --help" >&2
  exit 2
}

say() { echo "$*"; }

# run COMMAND...: prints it in a dry run.
run() {
  if ((dry_run)); then
    printf '  would run:'
    printf ' %q' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# logged NAME COMMAND...: quiet while it works; the end of its log when it does not. The status is the command's.
logged() {
  local name=$1 status=0
  shift
  if ((dry_run)); then
    run "$@"
    return
  fi
  mkdir -p "$logs"
  "$@" >"$logs/$name.log" 2>&1 </dev/null || status=$?
  if ((status)); then
    {
      echo "--- the last lines of $logs/$name.log"
      tail -n 60 "$logs/$name.log"
      echo "--- $name ended with status $status; all of it is in $logs/$name.log"
    } >&2
  fi
  return "$status"
}

# as_root LOG COMMAND...: logged, with sudo unless root already. Sudo asks for its password before output goes to the log.
as_root() {
  local name=$1
  shift
  if ((EUID != 0)); then
    if ((!dry_run)); then
      command -v sudo >/dev/null || fail "root is needed for '$*' and sudo is not installed; run ./setup.sh as root"
      sudo -v || fail "root is needed for '$*' and sudo was refused; run ./setup.sh as root"
    fi
    set -- sudo "$@"
  fi
  logged "$name" "$@"
}

check_machine() {
  [[ $(uname -s) == Linux && $(uname -m) == x86_64 ]] || fail "aisp runs on x86-64 Linux, not on $(uname -s) $(uname -m)"
  distribution=unknown
  if [[ -r /etc/os-release ]]; then
    # shellcheck source=/dev/null
    distribution=$(. /etc/os-release && echo "${ID:-unknown}${VERSION_ID:-}")
  fi
  if [[ -z $jobs ]]; then
    local cpus memory_gib
    cpus=$(nproc)
    memory_gib=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
    jobs=$((memory_gib / 2 < cpus ? memory_gib / 2 : cpus))
    if ((jobs < 1)); then jobs=1; fi
  fi
}
