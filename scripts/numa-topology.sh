#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Which CPUs and memory are near which GPU, and commands that stay there.
set -euo pipefail
# shellcheck source=scripts/tuning/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/tuning/common.sh"

usage() {
  cat <<'TEXT'
usage: scripts/numa-topology.sh [--check]
       scripts/numa-topology.sh [--check | --apply] [--diagnose] --gpu GPU [--] COMMAND...

Without a command: NUMA nodes with their CPUs, memory and distances, and the node and CPUs of every GPU and network card,
read from /sys. Needs no root and no tools.

With a command: runs it on the CPUs near a GPU that this process may use, and lets it take memory of the GPU's node first.
  --gpu GPU   index in the list of this script (PCI order, as nvidia-smi's), PCI address or UUID
  --check     print the command with its binding; run nothing
  --apply     run it (the default with a command)
  --diagnose  run it twice, free and then bound, and say of each how long it took and how many pages came from another node
numactl binds CPUs and memory; without it taskset binds CPUs, and memory follows because Linux gives a page to the node that
touches it first (ch03:numa_unaware). The GPU is chosen by CUDA_VISIBLE_DEVICES, unless that is set already or the driver does
not tell the UUID. A binding ends with its command, so there is nothing to reset. Pages are those that the kernel handed out on
the whole machine meanwhile (numastat), so --diagnose wants a machine that is otherwise quiet.

  scripts/numa-topology.sh --gpu 0 build/release/aisp run --gpus 0 --targets ch03

Exit status: the command's; without one 0; 2 usage; 4 the command cannot be bound: no such GPU, no CPU near it, no tool.
Environment: AISP_SYSTEM_ROOT is put before /sys and /proc, for tests.
TEXT
}

gpu=
dry_run=0
diagnose=0
command=()
declare -A option_table=([--check]=dry_run=1 [--apply]=dry_run=0 [--diagnose]=diagnose=1 [--gpu]=gpu [--]=command+ [COMMAND]=command+)
read_options "$@"
if [[ -n $gpu && ${#command[@]} == 0 ]]; then usage_error "--gpu needs a command"; fi
if ((dry_run && diagnose)); then usage_error "--check runs nothing that --diagnose could look at"; fi
if [[ -z $gpu && ${#command[@]} != 0 ]]; then usage_error "'${command[0]}' needs --gpu GPU before it"; fi

# field FILE NAME: what follows "NAME:" in it.
field() { sed -n "s/^$2:[[:space:]]*//p" "$1" 2>/dev/null | head -n 1 || true; }

gpu_information() { field "$system_root/proc/driver/nvidia/gpus/$1/information" "$2"; }

# The node of a device; unknown where firmware or a virtual machine does not tell, unless there is only one.
node_of() {
  local node
  node=$(value_of "$pci_devices/$1/numa_node" || true)
  if [[ $node =~ ^[0-9]+$ ]]; then
    echo "$node"
  elif [[ $(compgen -G "$system_root/sys/devices/system/node/node[0-9]*" | wc -l) == 1 ]]; then
    echo 0
  else
    echo unknown
  fi
}

show_nodes() {
  local node kib distance
  while IFS= read -r node; do
    kib=$(sed -n 's/.*MemTotal: *\([0-9]*\) kB/\1/p' "$node/meminfo" 2>/dev/null || true)
    distance=$(value_of "$node/distance" || true)
    printf 'node %-4s  CPUs %-22s  memory %6.1f GiB  distances %s\n' "${node##*/node}" "$(value_of "$node/cpulist" || true)" \
      "$(awk "BEGIN {print ${kib:-0} / 1048576}")" "$distance"
  done < <(compgen -G "$system_root/sys/devices/system/node/node[0-9]*" | sort -V)
}

show_gpus() {
  local address index=0
  for address in $(gpu_addresses); do
    printf 'GPU %-5s  %s  node %-7s  CPUs %-22s  %s\n' "$index" "$address" "$(node_of "$address")" \
      "$(value_of "$pci_devices/$address/local_cpulist" || true)" "$(gpu_information "$address" Model)"
    index=$((index + 1))
  done
  if ((index == 0)); then echo "no NVIDIA GPU"; fi
}

show_nics() {
  local address names
  for address in $(nic_addresses); do
    names=$({ ls "$pci_devices/$address/net" "$pci_devices/$address/infiniband" 2>/dev/null || true; } | sed '/:$/d; /^$/d' | paste -sd ' ')
    printf 'NIC        %s  node %-7s  CPUs %-22s  %s\n' "$address" "$(node_of "$address")" \
      "$(value_of "$pci_devices/$address/local_cpulist" || true)" "$names"
  done
}

# The PCI address of the GPU that was asked for.
find_gpu() {
  local address index=0
  for address in $(gpu_addresses); do
    if [[ $1 == "$index" || ${1,,} == "$address" || $1 == "$(gpu_information "$address" "GPU UUID")" ]]; then
      echo "$address"
      return
    fi
    index=$((index + 1))
  done
  return 1
}

# pages KIND: what all nodes handed out so far, "local_node" to programs on their own CPUs, "other_node" to those of other nodes.
pages() { cat "$system_root"/sys/devices/system/node/node[0-9]*/numastat 2>/dev/null | awk -v kind="$1" '$1 == kind {sum += $2} END {print sum + 0}'; }

# observe WORD COMMAND...: runs it and says how long it took and where its pages came from.
observe() {
  local word=$1 local_before other_before start status=0 seconds
  local_before=$(pages local_node)
  other_before=$(pages other_node)
  start=$EPOCHREALTIME
  shift
  "$@" || status=$?
  seconds=$(awk "BEGIN {printf \"%.2f\", ${EPOCHREALTIME/,/.} - ${start/,/.}}")
  note "$word: $seconds s, pages: $(($(pages local_node) - local_before)) of the node that asked, $(($(pages other_node) - other_before)) of another"
  return "$status"
}

run_near() {
  local address near node allowed cpus uuid binding=()
  address=$(find_gpu "$gpu") || fail 4 "no GPU '$gpu' here; $0 without options lists them"
  near=$(value_of "$pci_devices/$address/local_cpulist" || true)
  [[ -n $near ]] || fail 4 "the system does not tell which CPUs are near GPU $gpu ($address)"
  allowed=$(field "$system_root/proc/self/status" Cpus_allowed_list)
  cpus=$(common_cpus "$near" "${allowed:-$near}")
  [[ -n $cpus ]] || fail 4 "none of the CPUs near GPU $gpu ($near) is among those that this process may use ($allowed)"
  node=$(node_of "$address")
  # Containers often forbid the system calls of memory policies; taskset does without them.
  if command -v numactl >/dev/null; then
    binding=(numactl "--physcpubind=$cpus")
    if [[ $node != unknown ]]; then binding+=("--preferred=$node"); fi
    if ! "${binding[@]}" true 2>/dev/null; then binding=(); fi
  fi
  if [[ ${#binding[@]} == 0 ]]; then
    command -v taskset >/dev/null || fail 4 "neither a working numactl nor taskset is here; install numactl"
    binding=(taskset -c "$cpus")
  fi
  uuid=$(gpu_information "$address" "GPU UUID")
  if [[ -z ${CUDA_VISIBLE_DEVICES:-} && $uuid == GPU-* ]]; then binding=(env "CUDA_VISIBLE_DEVICES=$uuid" "${binding[@]}"); fi
  if ((dry_run)); then
    printf '%q ' "${binding[@]}" "$@"
    echo
  elif ((diagnose)); then
    if [[ $(compgen -G "$system_root/sys/devices/system/node/node[0-9]*" | wc -l) == 1 ]]; then note "this machine has one node"; fi
    observe free "$@"
    observe "bound to node $node" "${binding[@]}" "$@"
  else
    note "GPU $gpu ($address) is on node $node: ${binding[*]}"
    exec "${binding[@]}" "$@"
  fi
}

if [[ -n $gpu ]]; then
  run_near "${command[@]}"
else
  show_nodes
  show_gpus
  show_nics
fi
