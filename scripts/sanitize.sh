#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# compute-sanitizer over pairs: every tool, small sizes, in parallel, one table.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/lib/options.sh
. "$root/scripts/lib/options.sh"

# Kernels of NVIDIA's libraries, by parts of their mangled names. racecheck reports hazards in those of cuBLAS and cuBLASLt, which
# synchronise in ways that it does not follow, and nobody here could mend them.
library_kernels=(cublas cutlass ampere_ gemvNSP gemv2 gemmk1 gemmSN geam splitKreduce nvjet xmma cudnn CUB_)

# Kernels of pairs that one tool does not check, by "PAIR TOOL": the kernel, and why.
# synccheck takes warps for divergent that come to one barrier by different instructions, in a kernel of ten lines too.
# On machines with one GPU synccheck of ch09:swiglu_dual_gemm does not end, and of gemm_bias_gelu_epilogue not always. Of the former it
# was seen that the process waits in MatmulPlan::tune and the GPU is busy at 132 W, before the pair's own kernels. With two GPUs it ended
# and found nothing, also with all kernels but xmma, with which it did not end on one.
# A graph with a WHILE node ends in an illegal or misaligned access under each tool where the kernel that calls
# cudaGraphSetConditional is checked, in a program of 60 lines without aisp too (compute-sanitizer 2025.3.1, an H200). Without
# that kernel memcheck finds nothing in ch12:conditional_while; its other instance, which the host launches, has the same code
# but for that call. conditional_switch fails on an H100 as well, and ended without any kernel checked; without the one alone
# was not tried to the end.
# initcheck does not see what TMA stores: a kernel that reads 1 KB which another has just stored by cp.async.bulk or a tensor map
# is told of 248 and 256 uninitialised reads. Buffers of pairs have been written before, so that this shows only where a pair
# allocates in its runs.
declare -A left_out=(
  [ch01:preallocated_buffers initcheck]='bias_gelu_kernel, which reads what cuBLASLt stored by TMA, which initcheck does not see'
  [ch08:thresholdtma racecheck]='ring_kernel, whose warps meet at a barrier before one of them frees a stage by an mbarrier; racecheck reports the next store to it'
  [ch09:gemm_bias_gelu_epilogue synccheck]='nvjet, kernels of cuBLASLt, one of which may not end under it'
  [ch09:swiglu_dual_gemm synccheck]='nvjet, kernels of cuBLASLt, one of which may not end under it'
  [ch09:tall_skinny_gram synccheck]='gram_kernel, whose warps come to one barrier in four instances of a function, which PTX allows'
  [ch18:mla_decode racecheck]='mla_kernel, whose two consumers read sums behind a named barrier that stands directly behind their writes, in the machine code too; racecheck reports them, of other instances of the kernel in each run'
  [ch19:sparse_2to4_gemm memcheck]='sm90_xmma_sparse_gemm, a kernel of cuSPARSELt, whose reads of 1 KB end behind the compressed operand at the least size')
setter='the instance in the graph, whose call of cudaGraphSetConditional ends in an illegal access under every tool'
for tool in memcheck racecheck synccheck initcheck; do
  left_out["ch12:conditional_switch $tool"]="filter_kernelILb1, $setter"
  left_out["ch12:conditional_while $tool"]="direction_kernelILb1, $setter"
done
# Libraries that pairs do without, by "PAIR TOOL": the process ends under the tool, in two of them behind hazards of the library's
# kernels, in tree_attention without a word, and nothing is known of the pair's own.
declare -A unwanted=(
  [ch18:mixed_batch_attention racecheck]=cuDNN
  [ch18:sliding_window_attention racecheck]=cuDNN
  [ch18:tree_attention racecheck]=cuDNN)
# Small sizes of pairs of which --scale alone leaves so much that a job may not come to an end. Edges are not verified with them.
# profiling_overhead compares no times below 1000 rounds; those of a tool mean nothing.
declare -A small=(
  [ch06:autotuning]='width=512'
  [ch09:implicit_gemm_conv]='images=2,height=16,width=20,channels_in=64,channels_out=128'
  [ch09:micro_tiling_matmul]='m=128,outputs=4'
  [ch09:tall_skinny_gram]='rows=3000'
  [ch13:host_sync]='tokens=4'
  [ch13:metric_reduction]='tensors=9,elements=100003'
  [ch13:mixed_precision]='tokens=1032,in=520,out=248'
  [ch13:profiling_overhead]='rounds=100'
  [ch14:autotuned_gemm]='tokens=72,hidden=136,ffn=264'
  [ch14:fp8_quantize_gemm]='m=144,n=272,k=256'
  [ch15:guided_decoding]='requests=5,vocabulary=1001'
  [ch15:kv_handoff]='tokens=33,layers=2'
  [ch15:moe_overlap]='tokens=333,hidden=192,ffn=128,shared_ffn=192'
  [ch16:chunked_prefill]='requests=5,prompt=130,chunk=37,narrow=1'
  [ch16:flash_decoding]='context=300'
  [ch16:top_p_sampling]='rows=4,vocabulary=33000'
  [ch16:weight_only_int4]='hidden=1024,ffn=1024'
  [ch18:attention_sinks]='batch=2,seen=700,window=300'
  [ch18:block_sparse_attention]='batch=1,context=600,kept=4'
  [ch18:cascade_attention]='batch=4,prefix=256'
  [ch18:gqa_packing]='batch=2,context=300'
  [ch18:linear_attention]='heads=2,tokens=200'
  [ch18:mixed_batch_attention]='requests=3,cached=100,chunk=70,context=150'
  [ch18:mla_decode]='batch=1,context=70'
  [ch18:paged_attention]='batch=3,context=150'
  [ch18:ragged_decode_balance]='batch=4,total=900,longest=500'
  [ch18:rope_kv_append]='tokens=130'
  [ch18:sliding_window_attention]='heads=2,kv_heads=1,tokens=400,window=130'
  [ch18:tree_attention]='batch=2,nodes=20,context=300'
  [ch19:fp4_weight_quantization]='rows=136,tokens=20,k=256'
  [ch19:fp8_block_scaling]='m=144,n=144,k=512'
  [ch19:fp8_decode_gemm]='tokens=20,n=192,k=272'
  [ch19:fp8_delayed_scaling]='m=144,n=208,k=272'
  [ch19:fp8_training_step]='tokens=256,microbatches=1,depth=48,width=80'
  [ch19:int8_outliers]='m=144,n=192,k=272,outliers=9'
  [ch19:quantized_kv_cache]='batch=2,context=130'
  [ch19:sparse_2to4_gemm]='rows=48,tokens=80,k=64'
  [ch20:bf16_mlp]='tokens=130,hidden=512,ffn=192'
  [ch20:dlrm_inference]='batch=24,rows=300'
  [ch20:expert_parallel_moe]='tokens=333,hidden=192,experts=64,ffn=128'
  [ch20:vector_search]='vectors=30001,queries=5,k=20')
# initcheck takes the parts of cuBLASLt's split K for uninitialised, so the kernel that adds them up is left out of all pairs.
split_k_reduction=splitKreduce

usage() {
  cat <<'TEXT'
usage: scripts/sanitize.sh [options]

Runs `aisp verify` of each GPU pair under compute-sanitizer, a job per pair and tool, and prints a table of what was found:
  clean          the tool ran to its end and found nothing
  N findings     in the pair's own kernels, or in its calls of CUDA
  N library      findings in kernels of NVIDIA's libraries only; they do not count as findings
  tool error     the tool or the pair ended before a result, with the first line of why; not a finding, but not clean either
  over SECONDS   stopped by --limit; a tool error too
  skipped        the pair cannot run here, with its reason

  -t, --targets TARGET   as for aisp run; repeats [all]
  --tools TOOL,...       of memcheck, racecheck, synccheck, initcheck [all four]
  --scale X              part of each workload's size [0.02]; some pairs have sizes of their own here
  -j, --jobs N           jobs at once [4]; of racecheck one for four CPUs: more only slow one another
  --limit SECONDS        of one job [120]
  --logs DIR             where each job's output is kept, as CHAPTER_NAME.TOOL.log [sanitize_DATE_TIME]
  --resume DIR           as --logs, with the logs of a run that was interrupted: jobs that ended there are not run again
  --aisp FILE            the executable [build/release/aisp]
  --sanitizer FILE       the tool [compute-sanitizer]
  -h, --help

Exit status: 0 nothing was found and every job has a result, 1 findings, 2 usage, 4 no tool, no executable, or jobs without a
result, 5 nothing selected.
Of a pair and tool where a kernel is left out, because the tool cannot see what it needs, a line below the table says so and why.
memcheck pads every allocation by 64 KiB, so that it also sees what runs over the end of one buffer into the next.
Known of the tools: racecheck sees shared memory only and follows neither mbarriers nor asynchronous copies on every path, so
its warnings in kernels that use TMA deserve a look at the code before they are believed. initcheck does not see what TMA stores.
racecheck of ch09:micro_tiling_matmul does not come to an end in 400 s, because the width and the depth of its product are
constants: with 256 columns and a depth of 64 compiled in it is clean, in 19 s.
racecheck keeps its books in the host's memory, of one pair 115 GB, where Linux killed it; fewer jobs leave each of them more.
initcheck leaves out the kernel by which cuBLASLt adds up the parts of a split K. All other kernels of libraries are checked: where they
are left out (--kernel-name-exclude), racecheck ends in an internal error, and initcheck takes what they wrote for uninitialised.
TEXT
}

targets=()
tool_list=memcheck,racecheck,synccheck,initcheck
scale=0.02
jobs=4
limit_s=120
padding_bytes=65536
resume=
logs=sanitize_$(date -u +%Y%m%d_%H%M%S)
aisp=$root/build/release/aisp
sanitizer=compute-sanitizer

declare -A option_table=([-t]=targets+ [--targets]=targets+ [--tools]=tool_list [--scale]=scale [-j]=jobs [--jobs]=jobs [--limit]=limit_s
  [--logs]=logs [--resume]=resume [--aisp]=aisp [--sanitizer]=sanitizer)
read_options "$@"
IFS=, read -ra tools <<<"$tool_list"
((${#tools[@]} > 0)) || usage_error "--tools needs a tool"
for tool in "${tools[@]}"; do
  [[ $tool =~ ^(memcheck|racecheck|synccheck|initcheck)$ ]] || usage_error "--tools knows memcheck, racecheck, synccheck and initcheck, not '$tool'"
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || usage_error "--jobs is a whole number from 1, not '$jobs'"
[[ $limit_s =~ ^[1-9][0-9]*$ ]] || usage_error "--limit is whole seconds from 1, not '$limit_s'"
[[ $scale =~ ^(0?\.[0-9]+|1(\.0*)?)$ ]] || usage_error "--scale is a number above 0, at most 1, not '$scale'"
[[ -z $resume || -d $resume ]] || usage_error "--resume is the folder of an earlier run's logs, and there is no '$resume'"
logs=${resume:-$logs}
[[ -x $aisp ]] || fail 4 "$aisp cannot be run; build it with ./setup.sh, or name it with --aisp"
command -v "$sanitizer" >/dev/null ||
  fail 4 "$sanitizer not found; it comes with the CUDA toolkit (cuda-sanitizer-api), or name it with --sanitizer"

selection=()
for target in "${targets[@]}"; do selection+=(--targets "$target"); done
# "ch07:transpose gpu" a line.
listed=$("$aisp" run --list --json - "${selection[@]}") || exit $?
list=$(python3 -c 'import json, sys
for pair in json.load(sys.stdin):
    print(pair["target"], pair.get("device", "gpu"))' <<<"$listed")
pairs=()
while read -r target device; do
  [[ $device == gpu ]] && pairs+=("$target")
done <<<"$list"
((${#pairs[@]} > 0)) || fail 5 "no GPU pair is selected"
mkdir -p "$logs" || fail 4 "$logs: cannot be made"

log_of() { echo "$logs/${1/:/_}.$2.log"; }

# One pair under one tool; the end of its log says how it ended.
run_job() {
  local target=$1 tool=$2 log status=0 started=$SECONDS
  log=$(log_of "$target" "$tool")
  local options=(--tool "$tool" --error-exitcode 9 --print-limit 1000 --target-processes application-only)
  # Buffers lie close together: without padding, what runs over the end of one is in the next, which is no error. Red zones around
  # them, which the pair's memory belongs to, would hide it all the same.
  [[ $tool == memcheck ]] && options+=(--leak-check no --padding "$padding_bytes")
  [[ $tool == initcheck ]] && options+=(--kernel-name-exclude "kernel_substring=$split_k_reduction")
  [[ -n ${left_out[$target $tool]:-} ]] && options+=(--kernel-name-exclude "kernel_substring=${left_out[$target $tool]%%,*}")
  local sizes=()
  [[ -n ${small[$target]:-} ]] && sizes=(--size "${small[$target]}")
  rm -rf "$logs/artifacts/${target/:/_}_$tool"  # of a run that was interrupted
  # Nothing is timed, so jobs share the GPU: each has a lock of its own.
  AISP_MEMORY_CHECKER=1 AISP_PEAK=off AISP_LOCK_DIRECTORY="$logs/locks/${target/:/_}_$tool" \
    AISP_WITHOUT_LIBRARIES="${unwanted[$target $tool]:-}" timeout -k 5 "$limit_s" "$sanitizer" "${options[@]}" \
    "$aisp" verify --in-process --scale "$scale" "${sizes[@]}" --targets "$target" --artifacts-dir "$logs/artifacts" \
    --run-id "${target/:/_}_$tool" --timeout-multiplier 20 --color never >"$log" 2>&1 || status=$?
  printf '\nsanitize: status %d after %d s\n' "$status" "$((SECONDS - started))" >>"$log"
}

has_ended() { grep -qs '^sanitize: status ' "$(log_of "$1" "$2")"; }

is_library() {
  local name
  for name in "${library_kernels[@]}"; do [[ $1 == *"$name"* ]] && return 0; done
  return 1
}

# Findings in a log as "OWN LIBRARY". Each begins with a line "========= Invalid ...", and names its kernel there or in a line of its
# own, as in "=========     at some_kernel(int *)+0x50".
count_findings() {
  local own=0 library=0 pending=0 line
  while IFS= read -r line; do
    case $line in
      '========= Error: Race'* | '========= Warning: Race'* | '========= Error: Potential'* | '========= Warning: Potential'* | \
        '========= Invalid '* | '========= Uninitialized '* | '========= Barrier error'* | '========= Program hit '* | \
        '========= Divergent thread'* | '========= Misaligned '* | '========= Stack overflow'* | '========= Illegal '* | \
        '========= Out-of-range '* | '========= Leaked '*)
        own=$((own + pending))
        pending=1
        # racecheck names the kernel in the same line.
        if is_library "$line"; then
          library=$((library + 1))
          pending=0
        fi
        ;;
      '=========     at '* | '=========     in '* | *' in kernel '*)
        if ((pending)) && is_library "$line"; then
          library=$((library + 1))
          pending=0
        fi
        ;;
    esac
  done <"$1"
  echo "$((own + pending)) $library"
}

# Prints the tool's own count from its summary line.
summary_of() { sed -nE 's/^========= (ERROR|RACECHECK) SUMMARY: ([0-9]+) .*/\2/p' "$1" | tail -1; }
skip_reason() { sed -nE "s/^$1 +skipped +(.*)/\1/p" "$2" | head -1; }
failure_of() {
  local line
  line=$(grep -m1 -E "^$1 +(failed|crashed|timeout) |^aisp: error:|^========= (Internal|Error: |Target application|Fatal)" "$2" | cut -c1-90) || true
  echo "${line:-status $3}"
}

# Writes "WORD<tab>detail": clean, findings, library, error or skipped.
verdict_of() {
  local target=$1 tool=$2 log status own library counted reason
  log=$(log_of "$target" "$tool")
  status=$(sed -nE 's/^sanitize: status ([0-9]+) after.*/\1/p' "$log" | tail -1)
  if [[ $status == 124 || $status == 137 ]]; then
    printf 'error\tover %s s\n' "$limit_s"
    return
  fi
  counted=$(summary_of "$log")
  reason=$(skip_reason "$target" "$log")
  read -r own library < <(count_findings "$log")
  # A finding of a kind that is not known here counts all the same.
  if [[ -n $counted ]] && ((counted > own + library)); then own=$((counted - library)); fi
  if grep -q '^========= Internal Sanitizer Error' "$log"; then
    printf 'error\ttool error: %s\n' "$(grep -m1 '^========= Internal' "$log" | cut -c11-90)"
  elif ((own > 0)); then printf 'findings\t%d finding%s\n' "$own" "$( ((own == 1)) || echo s)"
  elif [[ -z $counted ]] || grep -q '^========= Target application returned an error' "$log"; then printf 'error\ttool error: %s\n' "$(failure_of "$target" "$log" "$status")"
  elif [[ -n $reason ]]; then printf 'skipped\tskipped: %s\n' "$reason"
  elif [[ $status != 0 && $status != 9 ]]; then printf 'error\ttool error: %s\n' "$(failure_of "$target" "$log" "$status")"
  elif ((library > 0)); then printf 'library\t%d library\n' "$library"
  else printf 'clean\tclean\n'; fi
}

trap 'note "interrupted; go on with --resume $logs"; trap - INT TERM; kill -- $(jobs -p) 2>/dev/null; exit 130' INT TERM
started=$SECONDS
running=0
for target in "${pairs[@]}"; do
  for tool in "${tools[@]}"; do
    if [[ -n $resume ]] && has_ended "$target" "$tool"; then continue; fi
    if ((running >= jobs)); then
      wait -n || true
      running=$((running - 1))
    fi
    run_job "$target" "$tool" &
    running=$((running + 1))
  done
done
wait

declare -A count=([clean]=0 [findings]=0 [library]=0 [error]=0 [skipped]=0)
row() {
  printf '%-32s' "$1"
  shift
  printf '  %-14s' "$@"
  printf '\n'
}
row pair "${tools[@]}"
details=()
for target in "${pairs[@]}"; do
  cells=()
  for tool in "${tools[@]}"; do
    IFS=$'\t' read -r word text < <(verdict_of "$target" "$tool")
    count[$word]=$((count[$word] + 1))
    cells+=("${text%%:*}")
    [[ $word == clean ]] || details+=("$target $tool: $text ($(log_of "$target" "$tool"))")
    [[ -z ${left_out[$target $tool]:-} ]] ||
      details+=("$target $tool: without ${left_out[$target $tool]}")
    [[ -z ${unwanted[$target $tool]:-} ]] ||
      details+=("$target $tool: without variants of ${unwanted[$target $tool]}, with which the process ends under the tool")
  done
  row "$target" "${cells[@]}"
done
echo
printf '%s\n' "${details[@]}" | grep . || true
printf '%d jobs in %d s: %d clean, %d with findings, %d in library kernels only, %d without a result, %d skipped; logs in %s\n' \
  "$((${#pairs[@]} * ${#tools[@]}))" "$((SECONDS - started))" "${count[clean]}" "${count[findings]}" "${count[library]}" \
  "${count[error]}" "${count[skipped]}" "$logs"
((count[findings] == 0)) || exit 1
((count[error] == 0)) || exit 4
