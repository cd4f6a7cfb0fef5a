#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The nightly job: verify, run with the gate, analyze. One exit status, and none is lost on the way.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/lib/options.sh
. "$root/scripts/lib/options.sh"

usage() {
  cat <<'TEXT'
usage: scripts/nightly.sh [options] [-- FLAG...]

  1. aisp verify          every variant once, results checked
  2. aisp run --gate      measures, and measures again what seems to have regressed
  3. aisp analyze         writes what people and CI services read into DIR/NAME/nightly

  --targets TARGET        as for aisp run; repeats [all]
  --artifacts-dir DIR     where runs are kept [artifacts]
  --expectations-dir DIR  what is compared with [expectations]
  --hardware KEY          fail with 4 unless something was measured on this hardware (as h200): a runner that lost its GPU
                          skips everything, and that must not be green
  --threshold PERCENT     loss of speedup that is a regression [5]
  --checks                before all that, ./setup.sh --nightly: what CI leaves to the night (source tree only); and with its
                          build, by this machine's own compiler, scripts/check-wgmma, aisp peak without a cache and aisp selftest
  --strict                slower, drifted, stale and lost coverage are regressions too
  --run-id NAME           name of the run [nightly_ and the time, UTC]
  --aisp FILE             the executable [build/release/aisp, or the one that was installed with this script]
  --dry-run               print the commands and stop
  -- FLAG...              further flags for aisp run, as -- --jobs 1

A failing verify does not stop the run: the other pairs are measured all the same, and the end is 1.
Exit status: that of the worst step: 130 interrupted, 4 environment unfit, 2 usage, 1 a pair was wrong, crashed or timed out,
3 regression confirmed by a second measurement, 5 nothing selected or nothing
that could be compared, 0 good.
On GitHub Actions (GITHUB_ACTIONS=true) findings become annotations and the report becomes the job's summary.
TEXT
}

targets=()
artifacts=artifacts
expectations=expectations
hardware=
threshold=5
strict=0
run_id=nightly_$(date -u +%Y%m%d_%H%M%S)
aisp=$root/build/release/aisp
# Installed, the scripts are in share/aisp.
if [[ -x $root/../../bin/aisp ]]; then aisp=$root/../../bin/aisp; fi
checks=0
dry_run=0
run_flags=()
declare -A option_table=([--targets]=targets+ [--artifacts-dir]=artifacts [--expectations-dir]=expectations
  [--hardware]=hardware [--threshold]=threshold [--strict]=strict=1 [--run-id]=run_id [--aisp]=aisp [--checks]=checks=1 [--dry-run]=dry_run=1 [--]=run_flags+)
read_options "$@"
[[ $run_id =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]*$ && $run_id != latest ]] ||
  usage_error "--run-id is the name of a folder, of letters, digits, -, _ and ., not '$run_id'"
[[ $threshold =~ ^[0-9]{1,2}(\.[0-9]+)?$ ]] || usage_error "--threshold is a percentage of at least 0 and below 100, not '$threshold'"
reports=$artifacts/$run_id/nightly
selection=()
for target in "${targets[@]}"; do selection+=(--targets "$target"); done

verify=("$aisp" verify "${selection[@]}" --artifacts-dir "$artifacts" --run-id "verify_$run_id")
run=("$aisp" run "${selection[@]}" --gate --expectations-dir "$expectations" --threshold "$threshold"
  --artifacts-dir "$artifacts" --run-id "$run_id" "${run_flags[@]}")
analyze=("$aisp" analyze "$run_id" --require-confirmation --expectations-dir "$expectations" --threshold "$threshold"
  --artifacts-dir "$artifacts" --output-csv "$reports/proof_of_benefit.csv" --junit "$reports/junit.xml"
  --json "$reports/analysis.json" --github-action-benchmark "$reports/github-action-benchmark.json")
if [[ $strict == 1 ]]; then analyze+=(--strict); fi
if [[ ${GITHUB_ACTIONS:-} == true ]]; then analyze+=(--github); fi

steps=(verify run analyze)
if [[ $checks == 1 ]]; then
  [[ -x $root/setup.sh ]] || usage_error "--checks needs a source tree: $root has no setup.sh"
  # shellcheck disable=SC2034  # by its name
  checking=("$root/setup.sh" --nightly)
  # shellcheck disable=SC2034  # by its name
  reading=("$root/scripts/check-wgmma" "$root/build/ci")
  first_cache=${TMPDIR:-/tmp}/aisp-nightly-$$
  # As at a machine's first start, whose ceilings nobody has measured.
  # shellcheck disable=SC2034  # by its name
  starting=(env "XDG_CACHE_HOME=$first_cache" "$root/build/ci/aisp" peak --quick)
  # shellcheck disable=SC2034  # by its name
  cheating=("$root/build/ci/aisp" selftest)
  steps=(checking reading starting cheating "${steps[@]}")
fi
if [[ $dry_run == 1 ]]; then
  for step in "${steps[@]}"; do
    declare -n words=$step
    printf '%q ' "${words[@]}"
    echo
  done
  exit 0
fi
[[ -x $aisp && -f $aisp ]] || fail 4 "$aisp is no executable; build it with ./setup.sh, or name it with --aisp"
[[ -d $expectations ]] ||
  fail 2 "$expectations: there are no expectations; record them with aisp run --update-expectations, or name their folder with --expectations-dir"
[[ -z $hardware || -d $expectations/$hardware ]] || fail 2 "$expectations holds nothing for $hardware; record it there first"

# The rank of a status among those that a night can end with; what aisp never returns (killed by a signal) counts as 1.
rank() {
  case $1 in
    0) echo 0 ;;
    5) echo 1 ;;
    3) echo 2 ;;
    2) echo 4 ;;
    4) echo 5 ;;
    130) echo 6 ;;
    *) echo 3 ;;
  esac
}

worst=0
said=()
# end_of STEP STATUS: remembers how a step ended.
end_of() {
  local status=$2
  said+=("$1 $status")
  case $status in 0 | 1 | 2 | 3 | 4 | 5 | 130) ;; *) status=1 ;; esac
  if (($(rank "$status") > $(rank "$worst"))); then worst=$status; fi
}

finish() {
  local steps
  printf -v steps '%s, ' "${said[@]}"
  note "${steps%, }; exit $worst"
  if [[ -n ${GITHUB_STEP_SUMMARY:-} && -f $artifacts/$run_id/benchmark_test_results.md ]]; then
    cat "$artifacts/$run_id/benchmark_test_results.md" >>"$GITHUB_STEP_SUMMARY" || note "the job's summary could not be written"
  fi
  exit "$worst"
}

# step NAME COMMAND...: no pipe, so that the status is the command's own.
step() {
  local name=$1 status=0
  shift
  note "$name: $*"
  "$@" || status=$?
  end_of "$name" "$status"
}

if [[ $checks == 1 ]]; then
  trap 'rm -rf "$first_cache"' EXIT
  step checks "${checking[@]}"
  step wgmma "${reading[@]}"
  step peak "${starting[@]}"
  step selftest "${cheating[@]}"
fi
step verify "${verify[@]}"
if (($(rank "$worst") > $(rank 1) || worst == 5)); then finish; fi
step run "${run[@]}"
if [[ $worst == 130 || ! -f $artifacts/$run_id/results.jsonl ]]; then finish; fi
step analyze "${analyze[@]}"
if [[ -n $hardware ]] && ! grep -qF "\"hardware\": \"$hardware\"" "$reports/analysis.json"; then
  note "nothing was measured on $hardware; see the reasons in $reports/proof_of_benefit.csv, and aisp doctor"
  end_of hardware 4
fi
finish
