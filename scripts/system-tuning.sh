#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The host settings that the pairs of chapter 3 show the effect of.
set -euo pipefail
# shellcheck source=scripts/tuning/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/tuning/common.sh"

parts=(governor idle thp hugepages irq memlock sysctl)
memlock_file=$system_root/etc/security/limits.d/90-aisp-memlock.conf
memlock_text='# Written by system-tuning.sh of aisp; its --reset removes this file.
*    -  memlock  unlimited
root -  memlock  unlimited'

usage() {
  cat <<'TEXT'
usage: scripts/system-tuning.sh [--check | --apply | --reset] [options]

  --check            say what would change (the default)
  --apply            change it, after recording what was there in /run/aisp/system-tuning.before
  --reset            restore what was recorded
  --only PART,...    of these parts only; all without it. --reset always restores everything
  --huge-pages N     2 MiB pages to reserve [64; what ch03:transparent_huge_pages needs and as much again]
  --idle-latency US  switch off idle states that take longer than this to leave; without it they stay as they are
  --help

Parts, and the pairs that show what they are worth:
  governor   CPU frequency governor performance                                  ch03:idle_wakeup
  idle       idle states, with --idle-latency only; costs power                  ch03:idle_wakeup
  thp        transparent huge pages, and their defragmentation, for madvise      ch03:transparent_huge_pages
  hugepages  reserved 2 MiB pages; a larger reservation is left                  ch03:transparent_huge_pages
  irq        interrupts of GPUs and network cards on CPUs of their NUMA node     ch03:gemm
  memlock    no limit of locked memory for new logins (a file in limits.d)       ch03:pinned_registration, ch03:docker
  sysctl     kernel.numa_balancing 0, vm.zone_reclaim_mode 0, vm.swappiness 10   ch03:numa_unaware, ch03:tlb_shootdowns

Each line is one setting: ok, would (change), changed, restored, absent (not offered here) or cannot, with the reason.
A reboot undoes all but memlock. Running it twice changes nothing more, and --reset still restores what was there first.

Exit status: 0 all is as wanted, changed or restored; 1 something could not be; 2 usage; 3 --check found what would change.
Environment: AISP_SYSTEM_ROOT is put before every path of the system, for tests.
TEXT
}

only=$(IFS=,; echo "${parts[*]}")
huge_pages=64
idle_latency_us=
declare -A option_table=([--check]=mode=check [--apply]=mode=apply [--reset]=mode=reset [--only]=only [--huge-pages]=huge_pages
  [--idle-latency]=idle_latency_us)
read_options "$@"
[[ $huge_pages =~ ^[0-9]{1,9}$ ]] || usage_error "--huge-pages is a number of pages, not '$huge_pages'"
[[ $idle_latency_us =~ ^[0-9]{0,9}$ ]] || usage_error "--idle-latency is a number of microseconds, not '$idle_latency_us'"
for part in ${only//,/ }; do
  [[ " ${parts[*]} " == *" $part "* ]] || usage_error "--only knows ${parts[*]}, not '$part'"
done
[[ -n ${only//,/} ]] || usage_error "--only needs a part: ${parts[*]}"

# Files of every CPU by a pattern below its folder.
cpu_files() {
  compgen -G "$system_root/sys/devices/system/cpu/cpu[0-9]*/$1" | sort -V
}

tune_governor() {
  local files offered=
  mapfile -t files < <(cpu_files cpufreq/scaling_governor)
  if [[ ${#files[@]} != 0 ]]; then offered=$(value_of "${files[0]%/*}/scaling_available_governors" || true); fi
  if [[ -n $offered && " $offered " != *" performance "* ]]; then
    result absent "governor" "this CPU offers only: $offered"
  else
    settle "governor" performance "${files[@]}"
  fi
}

tune_idle() {
  local state latency files=()
  if [[ -z $idle_latency_us ]]; then return; fi
  while IFS= read -r state; do
    latency=$(value_of "$state" || echo 0)
    if ((latency > idle_latency_us)); then files+=("${state%/*}/disable"); fi
  done < <(cpu_files 'cpuidle/state[0-9]*/latency')
  settle "idle states over $idle_latency_us us off" 1 "${files[@]}"
}

tune_thp() {
  local folder=$system_root/sys/kernel/mm/transparent_hugepage
  settle "transparent huge pages" madvise "$folder/enabled"
  settle "huge page defragmentation" madvise "$folder/defrag"
}

tune_hugepages() {
  local file=$system_root/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages now
  now=$(value_of "$file" || echo 0)
  if ((now > huge_pages)); then
    result ok "reserved 2 MiB pages" "$now, more than the $huge_pages asked for"
  else
    settle "reserved 2 MiB pages" "$huge_pages" "$file"
  fi
}

tune_irq() {
  local address nodes=("$system_root"/sys/devices/system/node/node[0-9]*)
  if [[ ${#nodes[@]} -lt 2 ]]; then
    result ok "interrupts" "one NUMA node: every CPU is near"
    return
  fi
  if grep -qsx irqbalance "$system_root"/proc/[0-9]*/comm; then
    note "irqbalance runs and moves interrupts again; stop it while measuring: systemctl stop irqbalance"
  fi
  for address in $(gpu_addresses) $(nic_addresses); do tune_device_irq "$address"; done
}

# Only interrupts that leave the node are moved: within it, whatever spreads them may go on.
tune_device_irq() {
  local near irq file now files=()
  near=$(value_of "$pci_devices/$1/local_cpulist" || true)
  for irq in "$pci_devices/$1/msi_irqs"/*; do
    file=$system_root/proc/irq/${irq##*/}/smp_affinity_list
    now=$(value_of "$file" || true)
    if [[ -z $near || -z $now ]]; then continue; fi
    if [[ $(common_cpus "$now" "$now") != $(common_cpus "$now" "$near") ]]; then files+=("$file"); fi
  done
  if [[ ${#files[@]} != 0 ]]; then
    settle "interrupts of $1" "$near" "${files[@]}"
  elif compgen -G "$pci_devices/$1/msi_irqs/*" >/dev/null; then
    result ok "interrupts of $1" "on its node's CPUs (${near:-not told})"
  fi
}

memlock_present() { [[ -f $memlock_file && $(<"$memlock_file") == "$memlock_text" ]]; }

tune_memlock() {
  local folder=${memlock_file%/*} fault shown=${memlock_file#"$system_root"}
  if memlock_present; then
    result ok "memlock" "unlimited for new logins ($shown)"
  elif [[ -e $memlock_file ]]; then
    result cannot "memlock" "$shown holds something else; move it away"
  elif [[ ! -d $folder ]]; then
    result absent "memlock" "no ${folder#"$system_root"}; use ulimit -l, LimitMEMLOCK= or docker --ulimit memlock=-1"
  elif [[ $mode == check ]]; then
    result would "memlock" "unlimited for new logins: write $shown"
  else
    fault=$(fault_of "$folder")
    if [[ -z $fault ]]; then fault=$(write_value "$memlock_file" "$memlock_text") || true; fi
    if [[ -n $fault ]]; then result cannot "memlock" "$shown: $fault"; else result changed "memlock" "unlimited for new logins ($shown)"; fi
  fi
}

restore_one() {
  local value=$2 file=$system_root$3 fault
  if [[ ! $3 =~ ^/(sys|proc)/ || $3 == *..* ]]; then
    echo "$3 is no file of the kernel"
    return 1
  fi
  # A CPU or device that is gone has nothing to restore.
  if [[ ! -e $file || $(value_of "$file") == "$value" ]]; then return; fi
  fault=$(fault_of "$file")
  if [[ -z $fault ]]; then fault=$(write_value "$file" "$value") || fault="the kernel refuses: $fault"; fi
  if [[ -z $fault ]]; then return; fi
  echo "$3: $fault"
  return 1
}

reset_memlock() {
  local fault
  if [[ ! -e $memlock_file ]]; then return; fi
  if ! memlock_present; then
    result cannot "memlock" "${memlock_file#"$system_root"} was changed by somebody else and is left"
    return
  fi
  fault=$(fault_of "${memlock_file%/*}")
  if [[ -n $fault ]]; then
    result cannot "memlock" "${memlock_file#"$system_root"}: $fault"
  else
    rm -f "$memlock_file"
    result restored "memlock" "${memlock_file#"$system_root"} removed; new logins have the limits from before"
  fi
}

tune_sysctl() {
  settle "kernel.numa_balancing" 0 "$system_root/proc/sys/kernel/numa_balancing"
  settle "vm.zone_reclaim_mode" 0 "$system_root/proc/sys/vm/zone_reclaim_mode"
  settle "vm.swappiness" 10 "$system_root/proc/sys/vm/swappiness"
}

tune() {
  case $1 in
    governor) tune_governor ;;
    idle) tune_idle ;;
    thp) tune_thp ;;
    hugepages) tune_hugepages ;;
    irq) tune_irq ;;
    memlock) tune_memlock ;;
    sysctl) tune_sysctl ;;
  esac
}

if [[ $mode != check ]]; then lock_record; fi
if [[ $mode == reset ]]; then
  restore_all
  reset_memlock
else
  for part in "${parts[@]}"; do
    if [[ ,$only, == *,$part,* ]]; then tune "$part"; fi
  done
fi
finish
