// SPDX-License-Identifier: Apache-2.0
#include "measure/execution/gate.hpp"

#include <cuda.h>
#include <aisp/check.hpp>
#include <aisp/driver_function.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "measure/gpu_kernels.hpp"

namespace aisp::measure {
namespace {

using namespace std::chrono_literals;

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void store(std::uint32_t* flag, std::uint32_t value) { std::atomic_ref<std::uint32_t>{*flag}.store(value); }

}  // namespace

Gate::Gate(std::chrono::milliseconds longest) : longest_{longest} {
  check(cudaHostAlloc(reinterpret_cast<void**>(&flag_), sizeof *flag_, cudaHostAllocMapped | cudaHostAllocPortable));
  *flag_ = 0;
  check(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_flag_), flag_, 0));
  wait_value_ = reinterpret_cast<void*>(
      driver_function<CUresult(CUstream, CUdeviceptr, cuuint32_t, unsigned)>("cuStreamWaitValue32", 12000));
  watcher_ = std::jthread{[this](const std::stop_token& stop) { watch(stop); }};
}

Gate::~Gate() {
  open();
  watcher_.request_stop();
  watcher_.join();
  cudaFreeHost(flag_);
}

void Gate::close(cudaStream_t stream) {
  ++epoch_;
  forced_ = false;
  if (wait_value_ != nullptr) {
    const auto wait = reinterpret_cast<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned)>(wait_value_);
    if (wait(stream, reinterpret_cast<CUdeviceptr>(device_flag_), epoch_, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS)
      wait_value_ = nullptr;
  }
  if (wait_value_ == nullptr) launch_spin_until(device_flag_, epoch_, stream);
  closed_at_ms_ = now_ms();
}

void Gate::open() {
  closed_at_ms_ = 0;
  store(flag_, epoch_);
}

void Gate::watch(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock{mutex};
  while (!stop.stop_requested()) {
    wake.wait_for(lock, stop, std::min(100ms, longest_), [] { return false; });
    const std::int64_t closed_at = closed_at_ms_;
    if (closed_at == 0 || now_ms() - closed_at < longest_.count()) continue;
    forced_ = true;
    store(flag_, epoch_);
  }
}

}  // namespace aisp::measure
