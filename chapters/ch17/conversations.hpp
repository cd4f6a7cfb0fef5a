// SPDX-License-Identifier: Apache-2.0
// Follow-up requests of 32 conversations, whose histories lie on two GPUs: their tokens, where a router sends them, and the steps
// that a GPU computes.
#pragma once
#include <array>
#include <vector>

#include "decoder/arrange.hpp"
#include "decoder/pages.hpp"
#include "decoder/trace.hpp"

namespace aisp::ch17 {

using namespace decoder;

constexpr int gpus = 2, requests = 32, own_tokens = 64, shorter_by = 5, row_multiple = 128;

inline std::size_t size(int n) { return static_cast<std::size_t>(n); }

// The pages of each request's leading blocks on each GPU.
using Matches = std::array<std::array<std::vector<int>, gpus>, requests>;
struct Assignment {
  std::array<int, requests> gpu{}, pulled_from;  // pulled_from: the GPU whose pages it takes along; -1
  Assignment() { pulled_from.fill(-1); }
};

class Conversations {
 public:
  // A conversation has one turn at a time: the first request of the trace from each of 32.
  Conversations(int cached, int on_second) : cached_{cached}, on_second_{on_second} {
    for (int i = Trace::planted; static_cast<int>(all_.size()) < requests; ++i) {
      const Request r = Trace{}.request(i);
      if (std::ranges::none_of(all_, [&](const Request& other) { return other.conversation == r.conversation; }))
        all_.push_back(r);
    }
  }
  int prompt_tokens() const { return cached_ + own_tokens; }
  int history_stride() const { return cached_ + page_rows; }
  // Tokens of a history, whose last page may be part full.
  int history_tokens(int r) const { return cached_ + (r % 3 == 2 ? 7 : 0); }
  // Tokens that a prompt has in common with its history: of some the last turn begins inside of a page.
  int common(int r) const { return cached_ - (r % 4 == 1 ? shorter_by : 0); }
  // Pairs of neighbours have one home, so that either GPU gets as many requests of a home in turn.
  int home(int r) const { return (r / 2 + 1) * on_second_ / requests > r / 2 * on_second_ / requests ? 1 : 0; }
  // The text of number 5 is that of number 4, but for the first page.
  int history_token(std::uint64_t seed, int r, int position, int vocabulary) const {
    Request history = all_[size(r == 5 && position >= page_rows ? 4 : r)];
    history.prompt = history_stride(), history.own = 0;
    return Trace::token(seed, history, position, vocabulary);
  }

  Assignment in_turn(const Matches&) const {
    Assignment to;
    for (int r = 0; r < requests; ++r) to.gpu[size(r)] = r % gpus;
    return to;
  }
  Assignment by_prefix(const Matches& matches) const {
    Assignment to;
    for (int r = 0; r < requests; ++r) to.gpu[size(r)] = matches[size(r)][1].size() > matches[size(r)][0].size() ? 1 : 0;
    return to;
  }
  // Returns an assignment in which the second GPU takes requests of the first, with their pages, while that one has more to do.
  Assignment by_prefix_and_load(const Matches& matches) const {
    Assignment to = by_prefix(matches);
    std::array<int, gpus> load{};
    const auto rows = [&](int r) { return prompt_tokens() - static_cast<int>(matches[size(r)][0].size()) * page_rows; };
    for (int r = 0; r < requests; ++r) load[size(to.gpu[size(r)])] += to.gpu[size(r)] == 0 ? rows(r) : own_tokens;
    for (int r = requests; r-- > 0;) {
      if (to.gpu[size(r)] == 1 || load[0] - load[1] < 2 * rows(r)) continue;
      to.gpu[size(r)] = 1, to.pulled_from[size(r)] = 0;
      load[0] -= rows(r), load[1] += rows(r);
    }
    return to;
  }
  // Histories of the second GPU's are computed on the first, and as many the other way.
  Assignment equal_misses(const Matches&) const {
    Assignment to;
    int moved = 0;
    for (int r = 0; r < requests; ++r) to.gpu[size(r)] = home(r) == 0 && moved++ < on_second_ ? 1 : 0;
    return to;
  }

 private:
  int cached_, on_second_;
  std::vector<Request> all_;
};

// A step that a GPU is to compute; `finished`: the requests whose first tokens it chooses.
struct PlannedStep {
  std::vector<Span> spans;
  std::vector<int> tokens, finished;
  bool is_pulled = false;  // needs pages that are on their way

  int rows() const { return static_cast<int>(tokens.size()); }
  void pad() {
    const int more = (rows() + row_multiple - 1) / row_multiple * row_multiple - rows();
    if (more > 0) spans.push_back({-1, 0, more, false});
    tokens.resize(tokens.size() + size(more), 0);
  }
};
// Appends the rows of `tokens` from `first` on to the last step, and to further ones where that has `most` rows.
inline void pack(std::vector<PlannedStep>& plan, int most, int sequence, int first, const std::vector<int>& tokens, int request) {
  constexpr int least_rows = 17;  // of a span that is not among the first: shorter ones must be
  const int end = static_cast<int>(tokens.size());
  while (first < end) {
    if (plan.empty() || most - plan.back().rows() < least_rows)
      plan.push_back({{}, {}, {}, !plan.empty() && plan.back().is_pulled});
    PlannedStep& step = plan.back();
    const int now = std::min(end - first, most - step.rows());
    const bool chooses = request >= 0 && first + now == end;
    step.spans.push_back({sequence, first, now, chooses});
    step.tokens.insert(step.tokens.end(), tokens.begin() + first, tokens.begin() + first + now);
    if (chooses) step.finished.push_back(request);
    first += now;
  }
}

}  // namespace aisp::ch17
