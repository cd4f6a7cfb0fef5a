// SPDX-License-Identifier: Apache-2.0
// Beams of several requests over some steps: which beam goes on from which, what they have in common, and the pages that they
// begin with.
#pragma once
#include <aisp/generators.hpp>

#include <algorithm>
#include <bit>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace aisp::ch15 {

constexpr int page_rows = 16, steps = 8, most_beams = 8;
constexpr int private_tokens = 64;  // at a hypothesis' end, which the others do not share when a run begins
constexpr int pages_for(int tokens) { return (tokens + page_rows - 1) / page_rows; }

class BeamSearch {
 public:
  BeamSearch(int requests, int beams, int context, int generated)
      : requests_{requests},
        beams_{beams},
        context_{context},
        generated_{generated},
        stride_{pages_for(context + steps)},
        pages_{2 * all_beams()} {  // free ones that a reorder finds
    for (int r = 0; r < requests_; ++r) pages_ += shared_pages(r) + beams_ * (pages_for(length(r) + steps) - shared_pages(r));
  }

  int requests() const { return requests_; }
  int beams() const { return beams_; }
  int all_beams() const { return requests_ * beams_; }
  int packed() const { return std::min(beams_, 4); }  // beams whose common pages are read together
  int prompt() const { return context_ - generated_; }
  int context() const { return context_; }
  int stride() const { return stride_; }  // of the tables
  int pages() const { return pages_; }
  // Tokens before the first step: all places within a page.
  int length(int request) const { return context_ - request % page_rows; }
  // Tokens that all beams of a request have in common then.
  int common(int request) const {
    return length(request) - std::min(private_tokens, std::max(generated_ - request % page_rows, 1));
  }

  // The beam of a request that another one goes on from. Some requests keep their beams, or take all of them from the first, or
  // turn them around; in one a beam is left by all for several steps; in the others beams stay three times out of four.
  int parent(int request, int step, int beam) const {
    switch (request) {
      case 0: return beam;
      case 1: return 0;
      case 2: return (beam + 1) % beams_;
      case 3: return beam == 1 && step >= 2 && step < 6 ? 0 : beam;
      default: break;
    }
    const std::uint64_t bits = random_bits(0x15B7, static_cast<std::uint64_t>((request * steps + step) * most_beams + beam));
    return bits % 4 > 0 ? beam : static_cast<int>((bits >> 8) % static_cast<std::uint64_t>(beams_));
  }
  // The beam of `step` that has become `beam` of a later one; of step -1, of the cache before the first.
  int ancestor(int request, int beam, int later, int step) const {
    for (int s = later; s > step; --s) beam = parent(request, s, beam);
    return beam;
  }
  // Rows of the cache that a step's beams see, each counted once.
  double distinct_rows(int request, int step) const {
    const auto ancestors = [&](int of) {
      unsigned met = 0;
      for (int beam = 0; beam < beams_; ++beam) met |= 1u << ancestor(request, beam, step, of);
      return static_cast<double>(std::popcount(met));
    };
    double rows = common(request) + ancestors(-1) * (length(request) - common(request));
    for (int s = 0; s <= step; ++s) rows += ancestors(s);
    return rows;
  }
  // Rows of last pages that more than one beam goes on from, for all but one of these.
  double copied_rows(int request, int step) const {
    unsigned met = 0;
    for (int beam = 0; beam < beams_; ++beam) met |= 1u << parent(request, step, beam);
    return (beams_ - std::popcount(met)) * ((length(request) + step) % page_rows);
  }

  // The state of the pages, in integers: tables of `stride` entries, the holders of each page, a ring of free pages, and how many
  // of it have been taken and given back.
  std::size_t table_words() const { return size(all_beams() * stride_); }
  std::size_t state_words() const { return table_words() + 2 * size(pages_) + 2; }
  void fill_state(std::span<int> to) const {
    std::vector<int> order(size(pages_));
    for (int i = 0; i < pages_; ++i) order[size(i)] = i;
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_bits(0x15B8, i) % i]);
    std::ranges::fill(to, 0);
    int* const holders = to.data() + table_words();
    std::size_t used = 0;
    for (int r = 0; r < requests_; ++r)
      for (int i = 0; i < pages_for(length(r)); ++i)
        for (int beam = 0; beam < beams_; ++beam) {
          const int page = order[i < shared_pages(r) && beam > 0 ? used - 1 : used++];
          to[size((r * beams_ + beam) * stride_ + i)] = page;
          ++holders[page];
        }
    std::copy(order.begin() + static_cast<std::ptrdiff_t>(used), order.end(), holders + pages_);
    to.back() = pages_ - static_cast<int>(used);  // as if these had been given back
  }
  // After the last step every page must have as many holders as tables name it, and those that none names be free, once each.
  void check_state(std::span<const int> state) const {
    constexpr int is_free = -1;
    const int *const holders = state.data() + table_words(), *const free = holders + pages_, *const counters = free + pages_;
    std::vector<int> named(size(pages_));
    for (int beam = 0; beam < all_beams(); ++beam)
      for (int i = 0; i < pages_for(length(beam / beams_) + steps); ++i) ++named[size(state[size(beam * stride_ + i)])];
    for (int i = counters[0]; i < counters[1]; ++i) {
      int& of_page = named[size(free[i % pages_])];
      of_page = of_page == 0 ? is_free : -2;
    }
    for (int page = 0; page < pages_; ++page)
      if (named[size(page)] != (holders[page] > 0 ? holders[page] : is_free))
        throw std::runtime_error{"page " + std::to_string(page) + " has " + std::to_string(holders[page]) +
                                 " holders, which is not what tables and the list of free pages say"};
  }

 private:
  static std::size_t size(int n) { return static_cast<std::size_t>(n); }
  int shared_pages(int request) const { return common(request) / page_rows; }

  int requests_, beams_, context_, generated_, stride_, pages_;
};

}  // namespace aisp::ch15
