// SPDX-License-Identifier: Apache-2.0
// The choice among several ways in which a library can do the same work, by the clock.
#pragma once
#include <aisp/check.hpp>
#include <aisp/front_end.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <exception>
#include <optional>
#include <vector>

namespace aisp {

// The reason why `--reproducible` leaves out a variant that is chosen by the clock.
inline constexpr const char* not_reproducible =
    "the clock would choose its algorithm, which --reproducible rules out; the library's own choice is measured beside it";

namespace detail {

class TimingEvents {
 public:
  TimingEvents() {
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event));
  }
  ~TimingEvents() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  TimingEvents(const TimingEvents&) = delete;
  TimingEvents& operator=(const TimingEvents&) = delete;

  // Milliseconds of one run() out of `runs`; one more goes before them, so that the GPU never waits for the next launch.
  template <class Run>
  float time(cudaStream_t stream, int runs, const Run& run) const {
    run();
    check(cudaEventRecord(events_[0], stream));
    for (int i = 0; i < runs; ++i) run();
    check(cudaEventRecord(events_[1], stream));
    check(cudaEventSynchronize(events_[1]));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]));
    return milliseconds / static_cast<float>(runs);
  }

 private:
  std::array<cudaEvent_t, 2> events_{};
};

}  // namespace detail

}  // namespace aisp

namespace aisp::inline AISP_FRONT_END {

// Returns the index of the fastest of `count` alternatives; `run(i)` queues the i-th on `stream`. Each is timed on warm buffers
// in several rounds, so that all see the same clock. The library's own order breaks ties; alternatives that it refuses, or that
// take twice as long as the best, are left out. Returns nothing if none runs.
template <class Run>
std::optional<std::size_t> fastest(cudaStream_t stream, std::size_t count, const Run& run) {
  constexpr int rounds = 5, most_runs = 20;
  constexpr float long_enough_ms = 0.2f, told_apart = 0.99f;
  const detail::TimingEvents events;
  std::vector<std::vector<float>> times_ms(count);
  float best_ms = INFINITY;
  for (std::size_t i = 0; i < count; ++i) try {
      times_ms[i].push_back(events.time(stream, 1, [&] { run(i); }));
      best_ms = std::min(best_ms, times_ms[i].front());
    } catch (const CudaError&) {
      throw;
    } catch (const std::exception&) {
      cudaGetLastError();  // clears the error of a launch that the library tried
    }
  const int runs = std::clamp(static_cast<int>(std::ceil(long_enough_ms / best_ms)), 1, most_runs);
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < count; ++i)
      if (!times_ms[i].empty() && times_ms[i].front() < 2 * best_ms)
        times_ms[i].push_back(events.time(stream, runs, [&] { run(i); }));
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<float>& each = times_ms[i];
    if (each.size() < 2) continue;
    each.erase(each.begin());  // the first run's time does not count
    std::ranges::nth_element(each, each.begin() + rounds / 2);
    const float median_ms = each[rounds / 2];
    if (chosen && median_ms >= told_apart * best_ms) continue;
    chosen = i;
    best_ms = median_ms;
  }
  return chosen;
}

// clang-format 14 cannot settle on the comment of an inline namespace.
// clang-format off
}  // namespace aisp::inline AISP_FRONT_END
// clang-format on
