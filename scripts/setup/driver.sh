# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The NVIDIA driver and the Nsight tools, from NVIDIA's package repository; only when asked for.

driver_minimum=580
cuda_release=13-0

driver_version() { nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1; }

add_nvidia_repository() {
  local name
  case $distribution in
    debian12) name=debian12 ;;
    ubuntu24.04) name=ubuntu2404 ;;
    *) fail "driver and Nsight packages are known for Debian 12 and Ubuntu 24.04, not for $distribution; see NVIDIA's installation guide" ;;
  esac
  if [[ $(dpkg-query -W -f '${db:Status-Status}' cuda-keyring 2>/dev/null) == installed ]]; then return; fi
  if ! command -v wget >/dev/null; then apt_install wget ca-certificates; fi
  local package=/tmp/cuda-keyring.deb
  if ((!dry_run)); then package=$(mktemp --suffix=.deb); fi
  run wget -q -O "$package" "https://developer.download.nvidia.com/compute/cuda/repos/$name/x86_64/cuda-keyring_1.1-1_all.deb" ||
    fail "NVIDIA's package repository cannot be reached"
  as_root dpkg-keyring dpkg -i "$package"
  run rm -f "$package"
}

install_driver() {
  local present
  present=$(driver_version || true)
  if [[ -n $present ]] && at_least "$present" "$driver_minimum"; then
    say "driver: $present is installed"
    return
  fi
  if ((!dry_run)) && [[ -f /.dockerenv || -f /run/.containerenv ]]; then fail "--with-driver: the driver belongs to the host, not into a container"; fi
  say "driver: installing ${present:+over $present }from NVIDIA's repository"
  add_nvidia_repository
  apt_install "linux-headers-$(uname -r)" nvidia-open
  say "driver: reboot now (sudo reboot), then run ./setup.sh again; the new kernel module is loaded only then"
}

install_nsight() {
  if command -v nsys >/dev/null && command -v ncu >/dev/null; then
    say "Nsight: nsys and ncu are installed"
    return
  fi
  say "Nsight: installing Nsight Systems and Nsight Compute from NVIDIA's repository"
  add_nvidia_repository
  apt_install "cuda-nsight-systems-$cuda_release" "cuda-nsight-compute-$cuda_release"
}
