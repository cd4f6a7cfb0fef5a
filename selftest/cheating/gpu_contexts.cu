// SPDX-License-Identifier: Apache-2.0
// They compute in a CUDA context or a process of their own, for which nobody waits.
//
// None has a child process use the GPU: after a fork CUDA is of no use, and another program could be given the memory of a pair,
// but not its code.
#include "computing_ahead.hpp"
#include "doubling.cuh"

#include <cuda.h>
#include <aisp/driver_function.hpp>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace aisp::ch97 {
namespace {

using namespace selftest;

// Not those of cuda.h, which stand for the newest version of each function.
constexpr unsigned since = 12000;
using Create = CUresult(CUcontext*, CUexecAffinityParam*, int, unsigned, CUdevice);
using Take = CUresult(CUcontext*);
using Give = CUresult(CUcontext);
using CopyAsync = CUresult(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t, CUstream);

void demand(CUresult status) {
  if (status != CUDA_SUCCESS) throw std::runtime_error{"the driver answers " + std::to_string(static_cast<int>(status))};
}

class OtherContext {
 public:
  OtherContext() {
    int gpu = 0;
    check(cudaGetDevice(&gpu));
    check(cudaFree(nullptr));
    demand(required_driver_function<Take>("cuCtxGetCurrent", since)(&pairs_));
    demand(required_driver_function<Create>("cuCtxCreate", since)(&own_, nullptr, 0, 0, gpu));
    leave();
  }
  ~OtherContext() { destroy_(own_); }
  OtherContext(const OtherContext&) = delete;
  OtherContext& operator=(const OtherContext&) = delete;

  // What the calling thread does in `work` is done in this context, calls of the runtime and launches too.
  template <class Work>
  void with(Work&& work) {
    demand(enter_(own_));
    try {
      work();
    } catch (...) {
      leave();
      throw;
    }
    leave();
  }
  void copy_from_pairs(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
    demand(copy_(reinterpret_cast<CUdeviceptr>(to), own_, reinterpret_cast<CUdeviceptr>(from), pairs_, bytes, stream));
  }
  void copy_to_pairs(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
    demand(copy_(reinterpret_cast<CUdeviceptr>(to), pairs_, reinterpret_cast<CUdeviceptr>(from), own_, bytes, stream));
  }

 private:
  void leave() {
    CUcontext left = nullptr;
    demand(leave_(&left));
  }

  Give& enter_ = required_driver_function<Give>("cuCtxPushCurrent", since);
  Take& leave_ = required_driver_function<Take>("cuCtxPopCurrent", since);
  Give& destroy_ = required_driver_function<Give>("cuCtxDestroy", since);
  CopyAsync& copy_ = required_driver_function<CopyAsync>("cuMemcpyPeerAsync", since);
  CUcontext pairs_ = nullptr, own_ = nullptr;
};

// All has been computed when run() returns, and the timed stream only copies.
class BeforeTheStart final : public GpuDoubling {
 public:
  explicit BeforeTheStart(Setup& setup) : GpuDoubling{setup} {
    other_.with([&] {
      check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
      check(cudaMalloc(&in_there_, in_.bytes()));
      check(cudaMalloc(&out_there_, out_.bytes()));
    });
  }
  ~BeforeTheStart() override {
    other_.with([&] {
      cudaFree(in_there_);
      cudaFree(out_there_);
      cudaStreamDestroy(stream_);
    });
  }
  void there(Launch& launch) {
    other_.with([&] {
      other_.copy_from_pairs(in_there_, in_, in_.bytes(), stream_);
      double_kernel<1><<<blocks(), block_threads, 0, stream_>>>(in_there_, out_there_, count_);
      check(cudaGetLastError());
      check(cudaStreamSynchronize(stream_));
    });
    other_.copy_to_pairs(out_, out_there_, out_.bytes(), launch.stream);
  }

 private:
  OtherContext other_;
  cudaStream_t stream_ = nullptr;
  float* in_there_ = nullptr;
  float* out_there_ = nullptr;
};

// Its input lies in memory that the host and all contexts share.
class Ahead : public GpuDoubling {
 public:
  explicit Ahead(Setup& setup)
      : GpuDoubling{setup, std::size_t{1} << 20, Memory::mapped},
        kept_{setup.scratch<float>(count_, {.memory = Memory::mapped})},
        kept_of_{in_.get(), count_} {}
  void what_it_has(Launch& launch) {
    while (!kept_of_.is_present()) rest();
    check(cudaMemcpyAsync(out_, kept_, out_.bytes(), cudaMemcpyHostToDevice, launch.stream));
  }

 protected:
  Scratch<float> kept_;
  KeptOf kept_of_;
};

class ByAThread final : public Ahead {
 public:
  explicit ByAThread(Setup& setup)
      : Ahead{setup}, thread_{[this](const std::stop_token& stop) { other_.with([&] { watch_inputs(stop); }); }} {}

 private:
  void watch_inputs(const std::stop_token& stop) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::microseconds{20}))
      if (!kept_of_.is_present())
        kept_of_.renew([&] {
          double_kernel<1><<<blocks(), block_threads, 0, stream>>>(in_, kept_, count_);
          check(cudaStreamSynchronize(stream));
        });
    cudaStreamDestroy(stream);
  }

  OtherContext other_;
  std::jthread thread_;  // the last, because it uses all others
};

// On the CPU, behind the back of a process that only copies.
class ByAChild final : public Ahead {
 public:
  explicit ByAChild(Setup& setup)
      : Ahead{setup}, child_{[this] {
          if (!kept_of_.is_present())
            kept_of_.renew([this] {
              for (std::size_t i = 0; i < count_; ++i) kept_.get()[i] = 2 * in_.get()[i];
            });
        }} {}

 private:
  Twin child_;
};

}  // namespace

extern constinit const selftest::Case gpu_other_context = pair_of<&BeforeTheStart::there>(
    {.does = "computes in another CUDA context before the sample starts, and copies what comes out",
     .must = fails("audit/hidden_work"),
     .needs_cupti = true});
extern constinit const selftest::Case gpu_other_context_ahead =
    pair_of<&Ahead::what_it_has, ByAThread>({.does = "has a thread compute in another CUDA context whenever inputs change",
                                             .must = fails("audit/early_work"),
                                             .needs_cupti = true});
extern constinit const selftest::Case gpu_child_ahead = pair_of<&Ahead::what_it_has, ByAChild>(
    {.does = "has a child process compute on the CPU whenever inputs change", .must = fails("measurement/child_work")});

}  // namespace aisp::ch97
