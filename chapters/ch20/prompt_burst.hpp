// SPDX-License-Identifier: Apache-2.0
// Prompts that come at once, how they are put into groups, and when each group's first tokens are there.
#pragma once
#include <aisp/check.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

#include "decoder/trace.hpp"

namespace aisp::ch20 {

// Lengths as in the trace, from an eighth of the mean to four times the mean, in the order of arrival; together `mean` each. With
// `one_word` the first prompt has one token, and the longest one has what it lacks.
inline std::vector<int> burst_of_prompts(int mean, int count, bool one_word) {
  const int least = std::max(mean / 8, 1), most = 4 * mean;
  const decoder::Trace trace{{0.67 * mean, 0.9, least, most}};
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back(trace.request(decoder::Trace::planted + i).prompt);
  const double factor = static_cast<double>(mean) * count / std::accumulate(lengths.begin(), lengths.end(), 0);
  for (int& length : lengths) length = std::clamp(static_cast<int>(length * factor), least, most);
  int missing = mean * count - std::accumulate(lengths.begin(), lengths.end(), 0);
  for (std::size_t i = 0; missing != 0; i = (i + 1) % lengths.size()) {
    const int now = std::clamp(lengths[i] + missing, least, most);
    missing -= now - lengths[i];
    lengths[i] = now;
  }
  if (one_word) {
    *std::ranges::max_element(lengths) += lengths[0] - 1;
    lengths[0] = 1;
  }
  return lengths;
}

// In this order, as many prompts to a group as have at most so many tokens together, and one at least.
inline std::vector<std::vector<int>> groups_of(const std::vector<int>& order, const std::vector<int>& lengths, int most_tokens) {
  std::vector<std::vector<int>> groups;
  int tokens = 0;
  for (const int request : order) {
    const int length = lengths[static_cast<std::size_t>(request)];
    if (groups.empty() || tokens + length > most_tokens) groups.emplace_back(), tokens = 0;
    groups.back().push_back(request);
    tokens += length;
  }
  return groups;
}

// The moment at which each group is done, from the beginning of a run.
class GroupTimes {
 public:
  GroupTimes() = default;
  ~GroupTimes() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  GroupTimes(const GroupTimes&) = delete;
  GroupTimes& operator=(const GroupTimes&) = delete;

  // For so many groups, outside of runs.
  void make(std::size_t groups) {
    while (events_.size() < groups + 1) {
      events_.push_back(nullptr);
      check(cudaEventCreate(&events_.back()));
    }
  }
  void begin(cudaStream_t stream) const { check(cudaEventRecord(events_[0], stream)); }
  void done(cudaStream_t stream, std::size_t group) const { check(cudaEventRecord(events_[group + 1], stream)); }
  double since_begin_ms(std::size_t group) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_[0], events_[group + 1]));
    return ms;
  }

 private:
  std::vector<cudaEvent_t> events_;
};

}  // namespace aisp::ch20
