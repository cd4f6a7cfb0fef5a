#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The way back for a GPU that hangs, has errors pending or needs a reset after MIG was switched. Ends what runs on it.
set -euo pipefail

# shellcheck source=scripts/lib/options.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/options.sh"

system_root=${AISP_SYSTEM_ROOT:-}
# Each holds a GPU open, so each must stop before modules can be unloaded.
services=(nvidia-persistenced nvidia-fabricmanager nvidia-dcgm dcgm-exporter)
# In the order in which they let go of each other.
modules=(nvidia_peermem nvidia_uvm nvidia_drm nvidia_modeset nvidia)

usage() {
  cat <<'TEXT'
usage: scripts/reset-gpu.sh [options]

Ends every process that uses a GPU, switches persistence mode off, reloads NVIDIA's kernel modules, resets the GPUs, and puts
persistence mode and services back. Says what it would do and asks before it does anything. Needs root.

  --dry-run      say what would be done, and stop; needs no root
  --gpus N,...   these GPUs only, by nvidia-smi's index; modules serve all GPUs and are then left alone
  --no-modules   do not reload the kernel modules
  --grace S      seconds between asking processes to end and killing them [10]
  --yes          do not ask; without a terminal nothing is done unless this is given
  --help

Exit status: 0 done (or --dry-run); 1 a step failed, which is named, or the answer was no; 2 usage;
4 it cannot be done here: no root, no nvidia-smi, no GPU, a container (modules belong to the host), no terminal to ask on.
Environment: AISP_SYSTEM_ROOT is put before /proc, for tests.
TEXT
}

dry_run=0
gpus=
reload=1
assume_yes=0
grace_s=10
declare -A option_table=([--dry-run]=dry_run=1 [--gpus]=gpus [--no-modules]=reload=0 [--grace]=grace_s [--yes]=assume_yes=1)
read_options "$@"
[[ -z $gpus || $gpus =~ ^[0-9]{1,3}(,[0-9]{1,3})*$ ]] || usage_error "--gpus is a list of indices such as 0,2, not '$gpus'"
[[ $grace_s =~ ^[0-9]{1,4}$ ]] || usage_error "--grace is a number of seconds, not '$grace_s'"

in_container() { [[ -e $system_root/.dockerenv || -e $system_root/run/.containerenv ]]; }

# Those who wait for the answer of this script must not be ended by it.
is_ancestor() {
  local pid=$$ wanted=$1
  while ((pid > 1)); do
    if ((pid == wanted)); then return 0; fi
    pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null || echo 0)
  done
  return 1
}

# Process ids that hold the device files of the chosen GPUs open, with the files' minor numbers as nvidia-smi's indices. The
# file that all GPUs share says nothing about which of them is used, so it counts when all are reset.
find_holders() {
  local link target pid pattern='/nvidia(-uvm|-uvm-tools|-modeset|ctl|[0-9]+)$'
  if [[ -n $gpus ]]; then pattern="/nvidia(${minors// /|})\$"; fi
  for link in "$system_root"/proc/[0-9]*/fd/*; do
    target=$(readlink "$link" 2>/dev/null || true)
    if [[ $target =~ ^/dev$pattern ]]; then
      pid=${link#"$system_root"/proc/}
      echo "${pid%%/*}"
    fi
  done | sort -nu
}

command_of() { tr '\0' ' ' <"$system_root/proc/$1/cmdline" 2>/dev/null | cut -c 1-80 || true; }

minor_of() {
  local address
  address=$(nvidia-smi -i "$1" --query-gpu=pci.bus_id --format=csv,noheader | head -n 1)
  # The driver's own folder has four digits of domain where nvidia-smi prints eight.
  address=${address,,}
  sed -n 's/^Device Minor:[[:space:]]*//p' "$system_root/proc/driver/nvidia/gpus/${address#0000}/information" 2>/dev/null || true
}

look_around() {
  local gpu minor module present
  command -v nvidia-smi >/dev/null || fail 4 "no nvidia-smi; there is no driver whose GPU could be reset"
  present=$(nvidia-smi --query-gpu=index,persistence_mode --format=csv,noheader 2>/dev/null) ||
    fail 4 "nvidia-smi does not answer; if the driver hangs, only a reboot helps"
  mapfile -t chosen < <(if [[ -n $gpus ]]; then tr , '\n' <<<"$gpus"; else cut -d , -f 1 <<<"$present"; fi)
  for gpu in "${chosen[@]}"; do
    persistence[$gpu]=$(awk -F ', *' -v gpu="$gpu" '$1 == gpu {print $2}' <<<"$present")
    [[ -n ${persistence[$gpu]} ]] || fail 4 "there is no GPU ${gpu:-at all} here; nvidia-smi -L lists them"
    if [[ -n $gpus ]]; then
      minor=$(minor_of "$gpu")
      minors+="${minors:+ }${minor:-$gpu}"
    fi
  done
  mapfile -t holders < <(find_holders)
  if [[ -n $gpus ]]; then reload=0; fi
  if ((reload)); then
    for module in "${modules[@]}"; do
      if grep -q "^$module " "$system_root/proc/modules" 2>/dev/null; then loaded+=("$module"); fi
    done
  fi
  for service in "${services[@]}"; do
    if command -v systemctl >/dev/null && systemctl is-active --quiet "$service"; then active+=("$service"); fi
  done
}

show_plan() {
  local pid
  echo "This will"
  if [[ ${#active[@]} != 0 ]]; then echo "  stop, and afterwards start again, the services ${active[*]}"; fi
  for pid in "${holders[@]}"; do echo "  end process $pid: $(command_of "$pid")"; done
  if [[ ${#holders[@]} == 0 ]]; then echo "  end no process: none uses these GPUs"; fi
  echo "  switch persistence mode off on GPU ${chosen[*]}, and afterwards back to what it was"
  if [[ ${#loaded[@]} != 0 ]]; then echo "  unload and load the kernel modules ${loaded[*]}"; fi
  echo "  reset GPU ${chosen[*]}; what is in their memory is lost"
}

refuse_unfit() {
  local pid
  ((EUID == 0)) || fail 4 "needs root: sudo $0"
  if ((reload)) && in_container; then fail 4 "kernel modules belong to the host, and this is a container; run it there, or with --no-modules"; fi
  for pid in "${holders[@]}"; do
    if is_ancestor "$pid"; then fail 4 "process $pid ($(command_of "$pid")) uses a GPU and started this script; run it from elsewhere"; fi
  done
}

confirm() {
  local answer
  if ((assume_yes)); then return; fi
  [[ -t 0 ]] || fail 4 "no terminal to ask on; nothing was done (--yes does it without asking)"
  read -r -p "Type yes to go on: " answer || answer=
  [[ $answer == yes ]] || fail 1 "nothing was done"
}

# step TEXT COMMAND...
step() {
  local text=$1 output
  shift
  if output=$("$@" 2>&1); then
    echo "done    $text"
  else
    echo "FAILED  $text: $(grep -v '^ *$' <<<"$output" | tail -n 1)"
    failed=1
  fi
}

alive() {
  local pid
  for pid in "${holders[@]}"; do
    if kill -0 "$pid" 2>/dev/null; then echo "$pid"; fi
  done
}

end_holders() {
  local waited=0 left
  if [[ ${#holders[@]} == 0 ]]; then return; fi
  kill -TERM "${holders[@]}" 2>/dev/null || true
  while [[ -n $(alive) ]] && ((waited < 10 * grace_s)); do
    sleep 0.1
    waited=$((waited + 1))
  done
  mapfile -t left < <(alive)
  if [[ ${#left[@]} != 0 ]]; then
    kill -KILL "${left[@]}" 2>/dev/null || true
    sleep 0.5
  fi
  mapfile -t left < <(alive)
  if [[ ${#left[@]} == 0 ]]; then
    echo "done    ended ${#holders[@]} processes"
  else
    echo "FAILED  processes ${left[*]} do not end; they wait in the driver, and only a reboot helps"
    failed=1
  fi
}

act() {
  local service gpu i
  for service in "${active[@]}"; do step "stopped $service" systemctl stop "$service"; done
  end_holders
  for gpu in "${chosen[@]}"; do
    if [[ ${persistence[$gpu]} == Enabled ]]; then step "persistence mode of GPU $gpu off" nvidia-smi -i "$gpu" -pm 0; fi
  done
  # Modules first: with them gone and back, a GPU that the driver has given up on answers again.
  if [[ ${#loaded[@]} != 0 ]]; then
    for module in "${loaded[@]}"; do step "unloaded $module" modprobe -r "$module"; done
    for ((i = ${#loaded[@]} - 1; i >= 0; --i)); do step "loaded ${loaded[i]}" modprobe "${loaded[i]}"; done
  fi
  for gpu in "${chosen[@]}"; do step "reset GPU $gpu" nvidia-smi -i "$gpu" --gpu-reset; done
  for service in "${active[@]}"; do step "started $service" systemctl start "$service"; done
  for gpu in "${chosen[@]}"; do
    if [[ ${persistence[$gpu]} == Enabled ]]; then step "persistence mode of GPU $gpu on" nvidia-smi -i "$gpu" -pm 1; fi
  done
}

chosen=() holders=() loaded=() active=()
declare -A persistence=()
minors=
failed=0
look_around
show_plan
if ((dry_run)); then exit 0; fi
refuse_unfit
confirm
act
exit "$failed"
