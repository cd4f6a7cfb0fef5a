# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0

# package or package:command; a package whose command exists counts as there, wherever it came from.
build_packages=(g++:g++ cmake:cmake ninja-build:ninja git:git ccache:ccache python3:python3
  libcli11-dev nlohmann-json3-dev libfmt-dev libtomlplusplus-dev libdeflate-dev)
# Packages that scripts/package needs besides.
packaging_packages=(dpkg-dev:dpkg-shlibdeps python3-hatchling)
test_packages=(libgtest-dev libgmock-dev python3-jsonschema python3-yaml python3-pandas python3-venv python3-pytest python3-nbclient python3-ipykernel g++-aarch64-linux-gnu:aarch64-linux-gnu-g++ clang-format-14:clang-format-14 clang-tidy:clang-tidy shellcheck:shellcheck
  clang-16:clang++-16 libclang-rt-16-dev
  openmpi-bin:mpirun slurmctld slurmd slurm-client:srun munge)

missing_packages() {
  local entry package command
  for entry in "$@"; do
    package=${entry%%:*}
    command=${entry#*:}
    if [[ $entry == *:* ]] && command -v "$command" >/dev/null; then continue; fi
    if [[ $package == clang-format-14 ]] && clang-format --version 2>/dev/null | grep -q 'version 14\.'; then continue; fi
    if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]]; then continue; fi
    echo "$package"
  done
}

install_packages() {
  local wanted=("${build_packages[@]}") missing=()
  case $1 in
    release | cutlass) ;;
    packages) wanted+=("${packaging_packages[@]}") ;;
    *) wanted+=("${packaging_packages[@]}" "${test_packages[@]}") ;;
  esac
  mapfile -t missing < <(missing_packages "${wanted[@]}")
  apt_install "${missing[@]}"
  # A test that lacks one of them fails from here on; elsewhere it is skipped.
  if [[ $1 == ci ]]; then export AISP_TEST_PACKAGES=1; fi
  if ((dry_run)); then return; fi
  local version
  version=$(cmake --version | awk 'NR == 1 {print $3}')
  at_least "$version" 3.25 || fail "cmake is $version and 3.25 is needed; use Debian 12, Ubuntu 24.04 or a newer cmake"
}

apt_install() {
  if [[ $# == 0 ]]; then return; fi
  command -v apt-get >/dev/null || fail "these packages are missing and there is no apt-get to install them: $*"
  say "packages: installing $*"
  as_root apt-update apt-get -qq update || fail "apt-get update failed; check the network, or install these packages yourself: $*"
  as_root apt-install env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" ||
    fail "apt-get could not install: $*"
}

# at_least VERSION MINIMUM
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# unpack_wheels FOLDER NAME WHEEL...: wheels from PyPI into FOLDER/site, without what they depend on. NAME and NAME-venv are the logs.
unpack_wheels() {
  local work=$1 name=$2
  shift 2
  # The interpreter's own ensurepip is what makes a virtual environment; Debian ships it apart. A subshell: apt_install ends the
  # script where it fails.
  if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then (apt_install python3-venv) || return 1; fi
  run rm -rf "$work" || return 1
  logged "$name-venv" python3 -m venv "$work/venv" || return 1
  logged "$name" "$work/venv/bin/python" -m pip install --no-input --no-cache-dir --disable-pip-version-check --no-deps --only-binary=:all: \
    --target "$work/site" "$@"
}
