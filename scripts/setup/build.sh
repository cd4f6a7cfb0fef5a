# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Building, checking and testing, once packages and toolkit are there.

# The value of a variable in a build folder's cache, or nothing.
cached() { sed -n "s/^$2:[A-Z]*=//p" "$1/CMakeCache.txt" 2>/dev/null || true; }

# Ends where a name in the list of chapters is that of no pair.
check_chapters() {
  local answer
  answer=$(cmake "-DPAIRS=$chapters" "-DFOLDER=$root/chapters" -P cmake/choose.cmake) || fail "the pairs of chapters/ cannot be listed"
  [[ $answer =~ ^[0-9]+\ of\ [0-9]+$ ]] || usage_error "--chapters '$chapters': $answer"
  say "Pairs: $answer, those of $chapters"
}

# build_preset PRESET [TARGET...]: configures where something changed, and builds the targets, all without any.
build_preset() {
  local preset=$1 folder=build/$1 fresh=() set=()
  shift
  if [[ -n $architectures ]]; then set=("-DAISP_CUDA_ARCHITECTURES=$architectures"); fi
  if [[ $preset == release ]]; then set+=("-DAISP_PAIRS=$chapters"); fi
  local configured=
  if [[ -f $folder/CMakeCache.txt ]]; then
    configured=$(readlink -f "$(cached "$folder" CMAKE_CUDA_COMPILER)" || true)
    # CMake cannot change a compiler in place.
    if [[ $configured != "$cuda_home/bin/nvcc" ]]; then fresh=(--fresh); fi
  fi
  if [[ $configured != "$cuda_home/bin/nvcc" || ! -f $folder/build.ninja ||
    (-n $architectures && $(cached "$folder" AISP_CUDA_ARCHITECTURES) != "$architectures") ||
    ($preset == release && $(cached "$folder" AISP_PAIRS) != "$chapters") ]]; then
    logged "configure-$preset" cmake --preset "$preset" "${fresh[@]}" "-DCMAKE_CUDA_COMPILER=$cuda_home/bin/nvcc" \
      "-DCUDAToolkit_ROOT=$cuda_home" "${set[@]}" || return 1
  fi
  local name=build-$preset${1:+-$1}
  if ((!dry_run)); then say "Building ${*:-everything} in $folder with $jobs jobs (log: $logs/$name.log)"; fi
  build_targets "$folder" "$name" "$@"
}

# build_targets FOLDER LOG [TARGET...]: says meanwhile how far the build has come.
build_targets() {
  local folder=$1 name=$2 status=0 watched
  shift 2
  local command=(cmake --build "$folder" --parallel "$jobs" ${1:+--target "$@"})
  if ((dry_run)); then
    run "${command[@]}"
    return
  fi
  # The end of its standard input is what ends it.
  exec {watched}> >(exec python3 "$root/scripts/setup/progress.py" "$folder" "$logs/$name.log" "$jobs" "$@")
  local watcher=$!
  logged "$name" "${command[@]}" || status=$?
  exec {watched}>&-
  wait "$watcher" || true
  return "$status"
}

build_and_verify() {
  local aisp=build/release/aisp status=0
  if [[ -n $chapters ]]; then
    build_preset release aisp || fail "the build failed"
  else
    build_preset release || fail "the build failed"
    if ((!dry_run)); then say "$aisp is ready"; fi
    build_cutlass
  fi
  run rm -rf build/verify
  logged verify "$aisp" verify --artifacts-dir build/verify || status=$?
  # 5: nothing here can run, which what follows explains.
  if ((status != 0 && status != 5)); then fail "aisp verify failed with status $status; the program is built, its checks are in $logs/verify.log"; fi
  if ((!dry_run)); then describe_machine "$aisp"; fi
  measure_ceilings "$aisp"
}

# libaisp_cutlass.so: bars beside ours, without which everything else works.
build_cutlass() {
  build_preset release aisp_cutlass ||
    say "warning: libaisp_cutlass.so was not built, so variants by CUTLASS are skipped; $logs/build-release-aisp_cutlass.log says why" >&2
}

build_cutlass_alone() {
  # Pairs in the folder other than these are not built again.
  chapters=$(cached build/release AISP_PAIRS)
  build_preset release aisp_cutlass || fail "libaisp_cutlass.so was not built"
  if ((dry_run)); then return; fi
  [[ -f build/release/libaisp_cutlass.so ]] || fail "$(tail -n 1 "$logs/build-release-aisp_cutlass.log")"
  say "build/release/libaisp_cutlass.so is ready"
}

# Measures a GPU's ceilings, which later runs are compared with; they are kept, so that this is done once.
measure_ceilings() {
  if ! has_gpu; then return; fi
  say "Measuring what this machine gives at most, once (aisp peak)"
  run "$1" peak || fail "aisp peak failed; the program is built: build/release/aisp doctor says what is wrong"
}

build_packages() {
  build_preset packages || fail "the build failed"
  build_preset packages aisp_cutlass || fail "libaisp_cutlass.so was not built"
  run scripts/package --build build/packages --out packages || fail "the packages could not be made"
}

describe_machine() {
  local aisp=$1 can=() cannot=() gpus count driver tool
  count() { "$aisp" list-targets --json | python3 -c "import json, sys; print(sum(p.get('device') == '$1' for p in json.load(sys.stdin)))"; }
  can+=("host pairs: $(count host)")
  driver=$(driver_version || true)
  gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^ *//; s/ / x /' | paste -sd, || true)
  count=$(count gpu)
  if [[ -z $gpus || -z $driver ]]; then
    cannot+=("GPU pairs: $count are skipped, because no NVIDIA GPU is visible")
  elif ! at_least "$driver" "$driver_minimum"; then
    cannot+=("GPU pairs: $count are skipped, because driver $driver is older than $driver_minimum (./setup.sh --with-driver)")
  else
    can+=("GPU pairs: $count, on $gpus with driver $driver; what one of them needs beyond that is said when it is skipped")
  fi
  for tool in nsys ncu; do
    if command -v "$tool" >/dev/null; then can+=("profiles with $tool"); else cannot+=("profiles with $tool: not installed (./setup.sh --with-nsight)"); fi
  done
  say "build/release/aisp is ready (CUDA in $cuda_home)."
  say "This machine can run"
  printf '  %s\n' "${can[@]}"
  if [[ ${#cannot[@]} != 0 ]]; then
    say "It cannot run"
    printf '  %s\n' "${cannot[@]}"
  fi
  if [[ -n $chapters ]]; then say "Not built: all pairs but $chapters (./setup.sh builds all, after it libaisp_cutlass.so)"; fi
  say "Next: build/release/aisp doctor, build/release/aisp run${chapters:+ --targets ${chapters//,/ --targets }}"
}

passed=0
failed=0
built=0

# step NAME COMMAND...: one line, counted as one test.
step() {
  local name=$1
  shift
  if ((dry_run)); then
    run "$@"
  elif logged "$name" "$@"; then
    passed=$((passed + 1))
    say "passed  $name"
  else
    failed=$((failed + 1))
    say "FAILED  $name"
  fi
}

step_build() {
  if build_preset "$1"; then
    built=1
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    say "FAILED  build"
  fi
}

# run_tests PRESET [CTEST OPTION...]: all of ctest's tests, counted one by one.
run_tests() {
  local preset=$1 report=$root/build/$1/tests.xml counts
  shift
  rm -f "$report"
  local before=$failed
  if ! logged "test-$preset" ctest --preset "$preset" --parallel "$jobs" --output-junit "$report" "$@"; then failed=$((failed + 1)); fi
  if ((dry_run)); then return; fi
  if ! counts=$(python3 scripts/setup/count-tests.py "$report"); then
    say "FAILED  tests ($preset) did not run to their end"
    return
  fi
  local good bad skipped
  read -r good bad skipped <<<"$counts"
  passed=$((passed + good))
  # A failing ctest without a failing test (none found, a crash) still counts as one.
  if ((bad)); then failed=$((before + bad)); fi
  say "$( ((failed > before)) && echo FAILED || echo passed)  tests ($preset): $good passed, $bad failed, $skipped skipped"
}

finish_tests() {
  if ((dry_run)); then return; fi
  echo "$passed passed, $failed failed"
  if ((failed)); then exit 1; fi
}

check_shell_scripts() {
  local scripts=(setup.sh .ci/run scripts/check-format scripts/check-arm64 scripts/lint scripts/package) script
  while IFS= read -r script; do scripts+=("$script"); done < <(find scripts -name '*.sh' ! -path 'scripts/setup/*' ! -path 'scripts/tuning/*' ! -path 'scripts/lib/*' | sort)
  shellcheck --external-sources --check-sourced "${scripts[@]}"
}

# Each reader of files gets all seeds once, or new texts for as many SECONDS; the fuzzers are built by clang.
fuzz() {
  cmake --preset fuzz "-DCMAKE_CUDA_COMPILER=$cuda_home/bin/nvcc" "-DCUDAToolkit_ROOT=$cuda_home" &&
    cmake --build --preset fuzz --parallel "$jobs" && AISP_JOBS=$jobs tests/fuzz/run "$1"
}

build_and_test() {
  step_build ci
  if ((built)); then run_tests ci; fi
  if ((built)); then step chapter-pages scripts/pages --check --aisp build/ci/aisp; fi
  step lessons scripts/check-lessons
  step timelines scripts/draw-timeline --check
  step diagrams scripts/draw-diagrams --check
  step format scripts/check-format
  # Code that does not compile cannot be linted either.
  if ((built)); then step lint env "AISP_JOBS=$jobs" scripts/lint build/ci; fi
  if ((built)); then step arm64 env "AISP_JOBS=$jobs" scripts/check-arm64 build/ci; fi
  step shellcheck check_shell_scripts
  step fuzz fuzz 0
  finish_tests
}

lint_files() {
  local files
  mapfile -t files < <(find src -name '*.cpp' | sort)
  AISP_JOBS=$jobs scripts/lint build/ci "${files[@]}"
}

# Checks that take long and seldom find anything: the engines beside tuned libraries, clang-tidy file by file, a minute of new texts for each
# reader of files.
check_at_night() {
  step_build ci
  if ((built)); then step engines cmake --build build/ci --parallel "$jobs" --target engine_bench; fi
  if ((built)); then run_tests ci --tests-regex '^engines[.]'; fi
  if ((built)); then step lint lint_files; fi
  step fuzz fuzz 60
  finish_tests
}

build_and_test_sanitized() {
  step_build asan
  if ((built)); then run_tests asan; fi
  finish_tests
}
