// SPDX-License-Identifier: Apache-2.0
// aisp::fastest: candidates are timed as the harness times samples.
#include <aisp/libraries/fastest.hpp>

#include <aisp/check.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "measure/candidates.hpp"
#include "measure/execution/cold_cache.hpp"
#include "measure/execution/gate.hpp"
#include "pair/session.hpp"

namespace aisp {
namespace measure {
namespace {

using namespace std::chrono_literals;
using RunCandidate = std::function<void(std::size_t)>;

// A candidate that has not been queued by then waits for the GPU.
constexpr auto longest_gate = 20ms;
// Between executions the GPU rests for this share of the last one, so that a chip at its power cap keeps a sample's clock.
constexpr double rest_share = 0.5, longest_rest_ms = 2, shortest_rest_ms = 0.1;

int present_gpu() {
  int gpu = 0;
  check(cudaGetDevice(&gpu));
  return gpu;
}

class CandidateTimer {
 public:
  CandidateTimer(cudaStream_t stream, std::size_t count, const RunCandidate& run)
      : stream_{stream}, run_{run}, cold_{{present_gpu()}}, runs_(count) {
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event));
    cold_.evict();  // loads its code
    for (std::size_t i = 0; i < count; ++i) runs_[i] = queue(i);
    check(cudaStreamSynchronize(stream_));
  }
  ~CandidateTimer() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  CandidateTimer(const CandidateTimer&) = delete;
  CandidateTimer& operator=(const CandidateTimer&) = delete;

  // Returns nothing if the candidate is refused.
  std::optional<double> time_ms(std::size_t i) {
    if (!runs_[i]) return std::nullopt;
    std::optional<double> ms = execute_ms(i);
    // Queueing may have been interrupted once; one that waits for the GPU itself is timed, like all after it, from an open gate.
    if (forced_open_) ms = execute_ms(i);
    if (forced_open_) gated_ = false, ms = execute_ms(i);
    if (ms && rest_share * *ms > shortest_rest_ms)
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>{std::min(rest_share * *ms, longest_rest_ms)});
    return ms;
  }

 private:
  // Whether the library takes it.
  bool queue(std::size_t i) {
    try {
      run_(i);
      return true;
    } catch (const CudaError&) {
      throw;
    } catch (const std::exception&) {
      cudaGetLastError();  // clears the error of a launch that the library tried
      return false;
    }
  }

  std::optional<double> execute_ms(std::size_t i) {
    if (pair::present_cache() == Cache::hot) queue(i);
    else cold_.evict(), cold_.wait();
    check(cudaStreamSynchronize(stream_));
    if (gated_) gate_.close(stream_);
    check(cudaEventRecord(events_[0], stream_));
    runs_[i] = queue(i);
    check(cudaEventRecord(events_[1], stream_));
    gate_.open();
    check(cudaEventSynchronize(events_[1]));
    forced_open_ = gated_ && gate_.forced_open();
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_[0], events_[1]));
    return runs_[i] ? std::optional{static_cast<double>(ms)} : std::nullopt;
  }

  cudaStream_t stream_;
  const RunCandidate& run_;
  ColdCache cold_;
  Gate gate_{longest_gate};
  std::array<cudaEvent_t, 2> events_{};
  std::vector<bool> runs_;
  bool gated_ = true, forced_open_ = false;
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace
}  // namespace measure

std::optional<std::size_t> detail::fastest(cudaStream_t stream, std::size_t count, void (*run)(const void*, std::size_t),
                                           const void* by, std::span<float> times_ms) {
  if (count == 0) return std::nullopt;
  const measure::RunCandidate run_one = [&](std::size_t i) { run(by, i); };
  measure::CandidateTimer timer{stream, count, run_one};
  const measure::Chosen chosen =
      measure::choose_fastest(count, {.time_ms = [&](std::size_t i) { return timer.time_ms(i); }, .now_s = measure::seconds});
  std::ranges::transform(chosen.median_ms.begin(), chosen.median_ms.begin() + static_cast<std::ptrdiff_t>(times_ms.size()),
                         times_ms.begin(), [](double ms) { return static_cast<float>(ms); });
  return chosen.candidate;
}

}  // namespace aisp
