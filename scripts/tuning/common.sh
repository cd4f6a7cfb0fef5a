# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the tuning scripts share: check, apply and reset of settings, with a record of what was there before.
# The record lies in /run, which a reboot empties, as it undoes the settings themselves.

# shellcheck source=scripts/lib/options.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/options.sh"

system_root=${AISP_SYSTEM_ROOT:-}
record=$system_root/run/aisp/${program%.sh}.before
mode=check
would_change=0
failures=0

# result STATUS NAME TEXT: one line of the answer.
result() {
  case $1 in
    would) would_change=$((would_change + 1)) ;;
    cannot) failures=$((failures + 1)) ;;
  esac
  printf '%-8s  %-34s  %s\n' "$1" "$2" "$3"
}

# Prints the value in a file of the kernel, of several words the one in brackets.
value_of() {
  local line
  { IFS= read -r line <"$1"; } 2>/dev/null || [[ -n ${line:-} ]] || return 1
  if [[ $line =~ \[([^]]+)\] ]]; then line=${BASH_REMATCH[1]}; fi
  printf '%s' "$line"
}

# Why a file cannot be written, or nothing.
fault_of() {
  if [[ -w $1 ]]; then return; fi
  if ((EUID != 0)); then echo "needs root (sudo)"; else echo "read-only here, as in a container"; fi
}

# Prints the kernel's words when it refuses.
write_value() {
  local message
  if message=$({ printf '%s\n' "$2" >"$1"; } 2>&1); then return; fi
  echo "${message##*: }"
  return 1
}

# One change at a time, and none that could not be undone: needs the folder of the record. Says why there is none.
open_record() {
  local folder=${record%/*} fault
  if ! mkdir -p "$folder" 2>/dev/null || [[ ! -w $folder ]]; then
    fault=$(fault_of "$folder")
    echo "${fault:-$folder cannot be made}, so what was there before cannot be recorded"
    return 1
  fi
}

lock_record() {
  [[ -d ${record%/*} ]] || return 0
  exec 9<"${record%/*}"
  flock --nonblock 9 || fail 1 "another tuning script is changing this machine; wait for it"
}

recorded() { [[ -f $record ]] && awk -F '\t' -v name="$1" -v key="$2" '$1 == name && $3 == key {found = 1} END {exit !found}' "$record"; }

# remember NAME VALUE KEY: the first value counts, because that is the one from before all changes.
remember() {
  if recorded "$1" "$3"; then return; fi
  printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$record"
}

# settle NAME WANTED FILE...: files of the kernel that are to hold a value, told as one line.
settle() {
  local name=$1 wanted=$2 file now text
  local different=() before=()
  shift 2
  for file in "$@"; do
    if now=$(value_of "$file") && [[ $now != "$wanted" ]]; then
      different+=("$file")
      before+=("$now")
    fi
  done
  if [[ $# == 0 || (${#different[@]} == 0 && ! -e $1) ]]; then
    result absent "$name" "not offered here"
  elif [[ ${#different[@]} == 0 ]]; then
    result ok "$name" "$wanted"
  else
    text="$(printf '%s\n' "${before[@]}" | sort -u | paste -sd '|' | sed 's/|/ or /g') -> $wanted"
    if (($# > 1)); then text+=" (${#different[@]} of $#)"; fi
    if [[ $mode == check ]]; then result would "$name" "$text"; else change "$name" "$wanted" "$text" "${different[@]}"; fi
  fi
}

# change NAME WANTED TEXT FILE...
change() {
  local name=$1 wanted=$2 text=$3 file fault now
  shift 3
  if ! fault=$(open_record); then
    result cannot "$name" "$text: $fault"
    return
  fi
  for file in "$@"; do
    now=$(value_of "$file")
    fault=$(fault_of "$file")
    if [[ -z $fault ]]; then
      remember "$name" "$now" "${file#"$system_root"}"
      fault=$(write_value "$file" "$wanted") || fault="the kernel refuses: $fault"
    fi
    if [[ -z $fault ]]; then
      now=$(value_of "$file")
      [[ $now == "$wanted" ]] || fault="the kernel made it $now"
    fi
    if [[ -n $fault ]]; then
      result cannot "$name" "$text: ${file#"$system_root"}: $fault"
      return
    fi
  done
  result changed "$name" "$text"
}

# Calls the script's own restore_one NAME VALUE KEY, which prints why it cannot, for each record; what fails stays recorded.
restore_all() {
  local name value key fault left='' names=()
  local -A restored=() refused=()
  if [[ ! -s $record ]]; then
    result ok "record" "nothing is recorded since the machine started; nothing to restore"
    return
  fi
  while IFS=$'\t' read -r name value key; do
    if [[ -z ${restored[$name]:-}${refused[$name]:-} ]]; then names+=("$name"); fi
    if fault=$(restore_one "$name" "$value" "$key" </dev/null); then
      restored[$name]=$value
    else
      refused[$name]=$fault
      left+="$name"$'\t'"$value"$'\t'"$key"$'\n'
    fi
  done <"$record"
  for name in "${names[@]}"; do
    if [[ -n ${refused[$name]:-} ]]; then result cannot "$name" "${refused[$name]}"; else result restored "$name" "${restored[$name]}"; fi
  done
  if [[ -z $left ]]; then rm -f "$record"; elif [[ -w $record ]]; then printf '%s' "$left" >"$record"; fi
}

# Ends with the status that --help tells.
finish() {
  if ((would_change)); then note "$would_change would change: $0 with --apply does it, as root; --reset undoes it"; fi
  if ((failures)); then exit 1; fi
  if ((would_change)); then exit 3; fi
  exit 0
}

# "0-2,8" as 0 1 2 8
expand_cpus() {
  local part cpu
  for part in ${1//,/ }; do
    for ((cpu = ${part%-*}; cpu <= ${part#*-}; ++cpu)); do echo "$cpu"; done
  done
}

# Those of the first list that are in the second, as a list.
common_cpus() {
  comm -12 <(expand_cpus "$1" | sort) <(expand_cpus "$2" | sort) | sort -n | awk '
    function put() { if (n++) printf ","; printf first == last ? "%d" : "%d-%d", first, last }
    NR == 1 { first = last = $1; next }
    $1 == last + 1 { last = $1; next }
    { put(); first = last = $1 }
    END { if (NR) put() }'
}

pci_devices=$system_root/sys/bus/pci/devices

# PCI addresses of NVIDIA's GPUs; where the driver tells which of them are ours, as in a container, of those only.
gpu_addresses() {
  local device
  for device in "$pci_devices"/*; do
    if [[ $(value_of "$device/vendor") == 0x10de && $(value_of "$device/class") == 0x030[02]* ]]; then
      if [[ ! -d $system_root/proc/driver/nvidia/gpus || -d $system_root/proc/driver/nvidia/gpus/${device##*/} ]]; then echo "${device##*/}"; fi
    fi
  done
}

nic_addresses() {
  local device
  for device in "$pci_devices"/*; do
    if [[ $(value_of "$device/class") == 0x02* ]]; then echo "${device##*/}"; fi
  done
}
