// SPDX-License-Identifier: Apache-2.0
// All GPUs of a pair in one process, each of which may address the memory of all others.
#pragma once
#include <aisp/launch.hpp>
#include <aisp/peer.hpp>
#include <aisp/setup.hpp>

#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace aisp::shared {

constexpr int most_gpus = 8;

// One pointer for each GPU, as a kernel takes them.
template <class T>
struct OnGpus {
  T* at[most_gpus];
};

// One T for each GPU.
template <class T>
class Each {
 public:
  void add(T item) { items_.push_back(std::move(item)); }
  const T& operator[](int gpu) const { return items_[static_cast<std::size_t>(gpu)]; }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

  template <class Element>
  OnGpus<Element> pointers() const {
    OnGpus<Element> result{};
    Element** to = result.at;
    for (const T& item : items_) *to++ = item;
    return result;
  }

 private:
  std::vector<T> items_;
};

// An object of a library that belongs to one GPU, as a handle with its workspace: made, and destroyed, while that is selected.
// `Opened<OnGpu<CublasLt>> lt_` is made by `lt_{setup, ordinal}`.
template <class T>
class OnGpu {
 public:
  static constexpr Library library = T::library;

  template <class... Arguments>
  explicit OnGpu(int ordinal, const Arguments&... arguments) : ordinal_{ordinal} {
    const SelectedGpu selected{ordinal};
    object_ = std::make_unique<T>(arguments...);
  }
  ~OnGpu() {
    int previous = 0;
    cudaGetDevice(&previous);
    cudaSetDevice(ordinal_);
    object_.reset();
    cudaSetDevice(previous);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  T& operator*() const { return *object_; }

 private:
  int ordinal_;
  std::unique_ptr<T> object_;
};

using Streams = std::span<const cudaStream_t>;  // one for each GPU

class Gpus {
 public:
  explicit Gpus(Setup& setup) {
    if (setup.gpus() > most_gpus) throw Unsupported{"this pair is written for at most 8 GPUs; choose some with --gpus"};
    for (int gpu = 0; gpu < setup.gpus(); ++gpu) {
      ordinals_.push_back(setup.device_ordinal(gpu));
      done_.add(setup.event(gpu));
    }
    for (const int user : ordinals_)
      for (const int owner : ordinals_)
        if (user != owner) access_.emplace_back(user, owner);
  }

  int count() const { return static_cast<int>(ordinals_.size()); }
  int ordinal(int gpu) const { return ordinals_[static_cast<std::size_t>(gpu)]; }
  const int* ordinals() const { return ordinals_.data(); }

  // kernel<<<grid>>>(arguments...) on `stream`, which is one of the GPU's.
  template <class... Parameters, class... Arguments>
  void launch(int gpu, cudaStream_t stream, void (*kernel)(Parameters...), const Grid& grid, Arguments&&... arguments) const {
    const SelectedGpu selected{ordinal(gpu)};
    launch_kernel(stream, kernel, grid, std::forward<Arguments>(arguments)...);
  }

  // Work that comes after on `later` waits for what `earlier`, a stream of `gpu`, holds now.
  void order(int gpu, cudaStream_t earlier, cudaStream_t later) const {
    check(cudaEventRecord(done_[gpu], earlier));
    check(cudaStreamWaitEvent(later, done_[gpu]));
  }
  // The stream of each GPU waits for those of all others, so that what they wrote into its memory is complete.
  void meet(Streams streams) const {
    for (int gpu = 0; gpu < count(); ++gpu) check(cudaEventRecord(done_[gpu], streams[gpu]));
    for (int gpu = 0; gpu < count(); ++gpu)
      for (int other = 0; other < count(); ++other)
        if (other != gpu) check(cudaStreamWaitEvent(streams[gpu], done_[other]));
  }

 private:
  std::vector<int> ordinals_;
  Each<cudaEvent_t> done_;
  std::deque<PeerAccess> access_;
};

}  // namespace aisp::shared
