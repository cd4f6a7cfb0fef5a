// SPDX-License-Identifier: Apache-2.0
// For pairs on several GPUs: selection of a GPU, and access to another GPU's memory.
#pragma once
#include <aisp/check.hpp>

#include <string>

namespace aisp {

// Selects a GPU for as long as it lives: kernels can be launched only on streams of the selected one.
class SelectedGpu {
 public:
  explicit SelectedGpu(int ordinal) {
    check(cudaGetDevice(&previous_));
    check(cudaSetDevice(ordinal));
  }
  ~SelectedGpu() { cudaSetDevice(previous_); }
  SelectedGpu(const SelectedGpu&) = delete;
  SelectedGpu& operator=(const SelectedGpu&) = delete;

 private:
  int previous_ = 0;
};

// Maps the memory of GPU `owner` into the address space of GPU `user`, both CUDA ordinals; unmaps it only if it was not mapped
// before.
class PeerAccess {
 public:
  PeerAccess(int user, int owner) : user_{user}, owner_{owner} {
    int possible = 0;
    check(cudaDeviceCanAccessPeer(&possible, user, owner));
    if (possible == 0)
      throw Unsupported{"GPU " + std::to_string(user) + " cannot access the memory of GPU " + std::to_string(owner)};
    const SelectedGpu selected{user};
    const cudaError_t status = cudaDeviceEnablePeerAccess(owner, 0);
    enabled_ = status == cudaSuccess;
    if (status == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
    else check(status);
  }
  ~PeerAccess() {
    if (!enabled_) return;
    int previous = 0;
    cudaGetDevice(&previous);
    cudaSetDevice(user_);
    cudaDeviceDisablePeerAccess(owner_);
    cudaSetDevice(previous);
  }
  PeerAccess(const PeerAccess&) = delete;
  PeerAccess& operator=(const PeerAccess&) = delete;

 private:
  int user_, owner_;
  bool enabled_ = false;
};

}  // namespace aisp
