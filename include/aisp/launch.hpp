// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

namespace aisp {

// The arguments between <<< and >>>, and further launch attributes.
struct Grid {
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;  // dynamic shared memory of a block; more than 48 KiB is requested automatically
  dim3 cluster{};                // blocks of a cluster
  bool cooperative = false;      // all blocks run at once, or the launch fails
  bool overlapping = false;      // may begin before the previous kernel has ended (programmatic dependent launch)
};

// Allows blocks of `kernel` this much dynamic shared memory on the current GPU. Launches do it themselves; occupancy queries
// before a launch need it. Throws Unsupported with both numbers if a block of this GPU cannot have it.
void allow_shared_memory(const void* kernel, std::size_t bytes);
template <class... Parameters>
void allow_shared_memory(void (*kernel)(Parameters...), std::size_t bytes) {
  allow_shared_memory(reinterpret_cast<const void*>(kernel), bytes);
}

// Returns how many clusters of such a launch the current GPU runs at once.
int resident_clusters(const void* kernel, const Grid& grid);
template <class... Parameters>
int resident_clusters(void (*kernel)(Parameters...), const Grid& grid) {
  return resident_clusters(reinterpret_cast<const void*>(kernel), grid);
}

namespace detail {

void launch(const void* kernel, const Grid& grid, cudaStream_t stream, void** arguments);

[[noreturn]] void number_does_not_fit();

// Integers are converted when they fit.
template <class Parameter, class Argument>
Parameter to_parameter(Argument&& argument) {
  using Plain = std::remove_cvref_t<Argument>;
  if constexpr (std::is_integral_v<Parameter> && std::is_integral_v<Plain> && !std::is_same_v<Parameter, bool> &&
                !std::is_same_v<Plain, bool>) {
    if (!std::in_range<Parameter>(argument)) number_does_not_fit();
    return static_cast<Parameter>(argument);
  } else return std::forward<Argument>(argument);
}

template <class... Parameters>
void launch_values(cudaStream_t stream, void (*kernel)(Parameters...), const Grid& grid,
                   std::type_identity_t<Parameters>... values) {
  void* pointers[sizeof...(Parameters) + 1] = {&values...};
  launch(reinterpret_cast<const void*>(kernel), grid, stream, pointers);
}

}  // namespace detail

// Launches kernel<<<grid...>>>(arguments...) on `stream` and throws launch errors; if this GPU lacks clusters or that much shared
// memory, it throws Unsupported.
template <class... Parameters, class... Arguments>
void launch_kernel(cudaStream_t stream, void (*kernel)(Parameters...), const Grid& grid, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "as many arguments as the kernel has parameters");
  detail::launch_values(stream, kernel, grid, detail::to_parameter<Parameters>(std::forward<Arguments>(arguments))...);
}

// The argument of a variant's method. Work must be ordered after what `stream` holds at entry and before what it holds at return:
// other streams fork from it and join it again with events. The harness forks and joins the streams of a pair's further GPUs
// itself.
class Launch {
 public:
  cudaStream_t stream = nullptr;          // the first GPU's; null for host pairs
  std::span<const cudaStream_t> streams;  // one per GPU; streams[0] == stream

  // launch(kernel, {blocks, threads, shared_bytes}, arguments...): launch_kernel on `stream`.
  template <class... Parameters, class... Arguments>
  void operator()(void (*kernel)(Parameters...), const Grid& grid, Arguments&&... arguments) const {
    launch_kernel(stream, kernel, grid, std::forward<Arguments>(arguments)...);
  }

  // Records on `stream` the time of a token that a user waits for. A request's first token gives the time to first token (TTFT),
  // measured from the start of the sample; the distances to its later tokens give the time per output token (TPOT).
  virtual void token(int request = 0) = 0;
  // The same for several requests whose tokens are ready at once, as those of a batch: one event for all.
  virtual void tokens(std::span<const int> requests) = 0;
  // Records a named point in time; "us since the start of the sample" is reported as the metric `name`.
  virtual void mark(const char* name) = 0;
  // The same on one of the workload's own streams.
  virtual void mark(const char* name, cudaStream_t on) = 0;
  virtual void push_range(const char* name) = 0;  // NVTX; prefer Range
  virtual void pop_range() = 0;

 protected:
  ~Launch() = default;
};

// An NVTX range in the domain "aisp", for as long as it lives. Costs nothing when no tool listens.
class Range {
 public:
  Range(Launch& launch, const char* name) : launch_{launch} { launch_.push_range(name); }
  ~Range() { launch_.pop_range(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  Launch& launch_;
};

}  // namespace aisp
