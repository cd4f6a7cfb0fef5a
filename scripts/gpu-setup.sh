#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The settings that nvidia-smi can change on a GPU before it is measured, each with its command.
set -euo pipefail
# shellcheck source=scripts/tuning/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/tuning/common.sh"

usage() {
  cat <<'TEXT'
usage: scripts/gpu-setup.sh [--check | --apply | --reset] [options]

  --check               print the nvidia-smi commands that would run, and what each changes (the default)
  --apply               run them, after recording what was there in /run/aisp/gpu-setup.before
  --reset               restore what was recorded
  --gpus GPU,...        these GPUs, by nvidia-smi's index or by UUID; all without it. --reset always restores all
  --help

Persistence mode is always switched on: without it the driver unloads a GPU that nobody uses, and the next start waits for
it. What follows is left as it is unless asked for:
  --power-limit W       power cap in watts, within the GPU's range; power-capped chips lower their clock under load
  --lock-clocks MHZ     graphics clock that is held, or MIN,MAX; for numbers that compare from day to day
  --app-clocks MEM,GR   application clocks in MHz, for GPUs and drivers that still have them
  --compute-mode MODE   default, exclusive (one process on a GPU) or prohibited
  --mig on|off          slices instead of one GPU; needs a GPU without processes, on some GPUs a reset (scripts/reset-gpu.sh)

Each line is one setting: ok, would (change), changed, restored, absent (not offered) or cannot, with the reason.
The driver does not tell a clock lock, so --reset unlocks clocks that --apply has locked. A reboot undoes all but MIG.
aisp itself never changes any of this; `aisp doctor` shows it and every result records it.

Exit status: 0 all is as wanted, changed or restored; 1 something could not be; 2 usage; 3 --check found what would change;
4 no nvidia-smi or no GPU.
Environment: AISP_SYSTEM_ROOT is put before /run, for tests.
TEXT
}

gpus=
power_limit_w=
lock_mhz=
app_mhz=
compute_mode=
mig=
declare -A option_table=([--check]=mode=check [--apply]=mode=apply [--reset]=mode=reset [--gpus]=gpus [--power-limit]=power_limit_w
  [--lock-clocks]=lock_mhz [--app-clocks]=app_mhz [--compute-mode]=compute_mode [--mig]=mig)
read_options "$@"
[[ $power_limit_w =~ ^([1-9][0-9]{0,3})?$ ]] || usage_error "--power-limit is a number of watts, not '$power_limit_w'"
[[ $lock_mhz =~ ^([1-9][0-9]{0,4}(,[1-9][0-9]{0,4})?)?$ ]] || usage_error "--lock-clocks is MHz or MIN,MAX, not '$lock_mhz'"
[[ $app_mhz =~ ^([1-9][0-9]{0,4},[1-9][0-9]{0,4})?$ ]] || usage_error "--app-clocks is MEM,GRAPHICS in MHz, not '$app_mhz'"
[[ $compute_mode =~ ^(|default|exclusive|prohibited)$ ]] || usage_error "--compute-mode is default, exclusive or prohibited, not '$compute_mode'"
[[ $mig =~ ^(|on|off)$ ]] || usage_error "--mig is on or off, not '$mig'"
if [[ -n $lock_mhz && $lock_mhz != *,* ]]; then lock_mhz=$lock_mhz,$lock_mhz; fi
if [[ -n $lock_mhz ]] && ((${lock_mhz%,*} > ${lock_mhz#*,})); then usage_error "--lock-clocks $lock_mhz: the first is the smaller one"; fi

smi() { nvidia-smi -i "$1" "--query-gpu=$2" --format=csv,noheader,nounits 2>/dev/null | head -n 1 || true; }

# The option of nvidia-smi that gives a setting a value.
option_of() {
  case $1:$2 in
    'persistence mode':Enabled) echo -pm 1 ;;
    'persistence mode':*) echo -pm 0 ;;
    'power limit':*) echo -pl "${2%.*}" ;;
    'application clocks':*) echo -ac "${2// /}" ;;
    'clock lock':unlocked) echo -rgc ;;
    'clock lock':*) echo -lgc "$2" ;;
    'compute mode':Default) echo -c 0 ;;
    'compute mode':Prohibited) echo -c 2 ;;
    'compute mode':Exclusive_Process) echo -c 3 ;;
    MIG:Enabled) echo -mig 1 ;;
    MIG:*) echo -mig 0 ;;
    *) return 1 ;;
  esac
}

# Prints the driver's present value of a setting; for MIG the one after a pending reset.
now_of() {
  case $1 in
    'persistence mode') smi "$2" persistence_mode ;;
    'power limit') smi "$2" power.limit ;;
    'application clocks') smi "$2" clocks.applications.memory,clocks.applications.graphics ;;
    'compute mode') smi "$2" compute_mode ;;
    MIG) smi "$2" mig.mode.pending ;;
    'clock lock') lock_of "$2" ;;
  esac
}

# The driver does not tell; what --apply has recorded does.
lock_of() {
  local lock=
  if [[ -f $record ]]; then lock=$(awk -F '\t' -v key="$1" '$1 == "clock lock" && $3 == key {print $2}' "$record"); fi
  echo "${lock:-unlocked}"
}

# Runs nvidia-smi; prints why not. It tells some refusals by its words alone.
set_gpu() {
  local name=$1 value=$2 uuid=$3 output option
  if ((EUID != 0)); then
    echo "needs root (sudo)"
    return 1
  fi
  read -ra option <<<"$(option_of "$name" "$value")"
  if output=$(nvidia-smi -i "$uuid" "${option[@]}" 2>&1) && [[ $output != *"not supported"* && $output != *"ermission"* ]]; then return; fi
  output=$(grep -v '^ *$' <<<"$output" | head -n 1)
  echo "nvidia-smi ${option[*]}: ${output:-failed}"
  return 1
}

same_value() { [[ ${1// /} == "${2// /}" || (${1%.*} == "${2%.*}" && ${1%.*} =~ ^[0-9]+$) ]]; }

# ask INDEX UUID NAME WANTED
ask() {
  local index=$1 uuid=$2 name=$3 wanted=$4 label="GPU $1 $3" now text fault
  now=$(now_of "$name" "$uuid")
  if [[ -z $now || $now == *N/A* || $now == *"Not Supported"* || $now == *"not a valid"* ]]; then
    # Only what nobody asked for may be missing.
    if [[ $name == 'persistence mode' ]]; then result absent "$label" "not offered here"; else result cannot "$label" "this GPU or driver does not offer it"; fi
  elif same_value "$now" "$wanted"; then
    result ok "$label" "$now"
  elif fault=$(refusal "$name" "$wanted" "$uuid") && [[ -n $fault ]]; then
    result cannot "$label" "$now -> $wanted: $fault"
  else
    text="$now -> $wanted: nvidia-smi -i $index $(option_of "$name" "$wanted")"
    if [[ $mode == check ]]; then result would "$label" "$text"; else apply_gpu "$label" "$text" "$name" "$wanted" "$uuid" "$now"; fi
  fi
}

# apply_gpu LABEL TEXT NAME WANTED UUID NOW
apply_gpu() {
  local label=$1 text=$2 name=$3 wanted=$4 uuid=$5 now=$6 fault
  if ! fault=$(open_record); then
    result cannot "$label" "$text: $fault"
    return
  fi
  if [[ $name == 'clock lock' ]]; then remember_lock "$uuid" "$wanted"; else remember "$name" "$now" "$uuid"; fi
  if ! fault=$(set_gpu "$name" "$wanted" "$uuid"); then
    if [[ $name == 'clock lock' ]]; then remember_lock "$uuid" unlocked; fi
    result cannot "$label" "$text: $fault"
  elif now=$(now_of "$name" "$uuid") && ! same_value "$now" "$wanted"; then
    result cannot "$label" "$text: it is $now afterwards"
  else
    if [[ $name == MIG && $(smi "$uuid" mig.mode.current) != "$wanted" ]]; then text+="; takes effect after scripts/reset-gpu.sh"; fi
    result changed "$label" "$text"
  fi
}

# The last lock is what is known of a lock, so it replaces the one before.
remember_lock() {
  local kept=
  if [[ -f $record ]]; then kept=$(awk -F '\t' -v key="$1" '!($1 == "clock lock" && $3 == key)' "$record"); fi
  printf '%s%s\t%s\t%s\n' "${kept:+$kept$'\n'}" "clock lock" "$2" "$1" >"$record"
}

# Why a change is not even tried, or nothing.
refusal() {
  local name=$1 wanted=$2 uuid=$3 range least most pids
  case $name in
    'power limit')
      range=$(smi "$uuid" power.min_limit,power.max_limit)
      least=${range%%.*} most=${range#*, }
      most=${most%%.*}
      if [[ $least =~ ^[0-9]+$ && $most =~ ^[0-9]+$ ]] && ((wanted < least || wanted > most)); then echo "this GPU takes $least to $most W"; fi
      ;;
    MIG)
      pids=$(nvidia-smi -i "$uuid" --query-compute-apps=pid --format=csv,noheader 2>/dev/null | paste -sd ' ')
      if [[ $pids =~ [0-9] ]]; then echo "processes use this GPU (pid $pids); end them first"; fi
      ;;
  esac
}

# The record's key is a UUID, because indices change with the machine.
restore_one() {
  local name=$1 value=$2 uuid=$3
  if [[ ! $uuid =~ ^GPU-[0-9a-fA-F-]+$ ]] || ! option_of "$name" "$value" >/dev/null; then
    echo "the record says '$name' '$value' of '$uuid', which is no setting"
    return 1
  fi
  if [[ -z $(smi "$uuid" index) ]]; then
    echo "GPU $uuid is not there"
    return 1
  fi
  if [[ $name == 'clock lock' ]]; then value=unlocked; elif same_value "$(now_of "$name" "$uuid")" "$value"; then return; fi
  set_gpu "$name" "$value" "$uuid"
}

# MIG first: switching it resets the other settings on some GPUs.
set_up() {
  local index=$1 uuid=$2
  if [[ -n $mig ]]; then ask "$index" "$uuid" MIG "$([[ $mig == on ]] && echo Enabled || echo Disabled)"; fi
  ask "$index" "$uuid" "persistence mode" Enabled
  if [[ -n $power_limit_w ]]; then ask "$index" "$uuid" "power limit" "$power_limit_w"; fi
  if [[ -n $lock_mhz ]]; then ask "$index" "$uuid" "clock lock" "$lock_mhz"; fi
  if [[ -n $app_mhz ]]; then ask "$index" "$uuid" "application clocks" "$app_mhz"; fi
  case $compute_mode in
    default) ask "$index" "$uuid" "compute mode" Default ;;
    exclusive) ask "$index" "$uuid" "compute mode" Exclusive_Process ;;
    prohibited) ask "$index" "$uuid" "compute mode" Prohibited ;;
  esac
}

command -v nvidia-smi >/dev/null || fail 4 "no nvidia-smi; install the driver (./setup.sh --with-driver) or start the container with its GPUs"
present=$(nvidia-smi --query-gpu=index,uuid --format=csv,noheader 2>/dev/null) || fail 4 "nvidia-smi finds no GPU; see aisp doctor"
[[ $present == *GPU-* ]] || fail 4 "nvidia-smi finds no GPU; see aisp doctor"
declare -A known=()
order=()
while IFS=', ' read -r index uuid; do
  known[$index]=$uuid
  known[$uuid]=$index
  order+=("$index")
done <<<"$present"
if [[ -n $gpus ]]; then
  order=()
  for gpu in ${gpus//,/ }; do
    [[ -n ${known[$gpu]:-} ]] || usage_error "--gpus: no GPU '$gpu' here; nvidia-smi -L lists them"
    if [[ $gpu == GPU-* ]]; then gpu=${known[$gpu]}; fi
    order+=("$gpu")
  done
fi

if [[ $mode != check ]]; then lock_record; fi
if [[ $mode == reset ]]; then
  restore_all
else
  for index in "${order[@]}"; do set_up "$index" "${known[$index]}"; done
fi
finish
