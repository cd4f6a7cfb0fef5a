// SPDX-License-Identifier: Apache-2.0
// The choice among several ways in which the same work can be done, by the clock.
#pragma once
#include <cuda_runtime_api.h>
#include <aisp/front_end.hpp>

#include <cstddef>
#include <optional>
#include <span>

namespace aisp {

// The reason why `--reproducible` leaves out a variant that is chosen by the clock.
inline constexpr const char* not_reproducible =
    "the clock would choose its algorithm, which --reproducible rules out; the library's own choice is measured beside it";

namespace detail {

std::optional<std::size_t> fastest(cudaStream_t stream, std::size_t count, void (*run)(const void* by, std::size_t candidate),
                                   const void* by, std::span<float> times_ms);

}  // namespace detail

}  // namespace aisp

namespace aisp::inline AISP_FRONT_END {

// Returns the index of the fastest of `count` candidates; `run(i)` queues the i-th on `stream`, and throws if it is refused. They
// are timed as samples are: alone, with a cold L2 unless the pair wants it hot, in random order, with pauses. The first that runs
// is the default, and of those that the clock cannot tell apart the earliest is chosen: put the library's or the pair's own
// choice first. Returns nothing if none runs. `times_ms`: of each candidate, as far as it was timed; infinite for a refused one.
template <class Run>
std::optional<std::size_t> fastest(cudaStream_t stream, std::size_t count, const Run& run, std::span<float> times_ms = {}) {
  const auto run_one = [](const void* by, std::size_t candidate) { (*static_cast<const Run*>(by))(candidate); };
  return detail::fastest(stream, count, run_one, &run, times_ms);
}

// clang-format 14 cannot settle on the comment of an inline namespace.
// clang-format off
}  // namespace aisp::inline AISP_FRONT_END
// clang-format on
