// SPDX-License-Identifier: Apache-2.0
// The host's side of a paged cache: pages that are handed out, shared and given back, and the table that finds a sequence's.
#pragma once
#include <aisp/check.hpp>
#include <aisp/generators.hpp>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace aisp::decoder {

constexpr int page_rows = 16;
constexpr int pages_for(int tokens) { return (tokens + page_rows - 1) / page_rows; }

// The pages that sequences need in a cache at once, of `tokens` each and `more`, and those that the cache has.
struct Fit {
  int needed = 0, available;
  Fit(std::span<const int> tokens, int more, int pages) : available{pages} {
    for (const int count : tokens) needed += pages_for(count + more);
  }
};
// Throws Unsupported with both numbers where the cache is too small. Statements `refuse_unless(...)` are no part of a pair's
// digest (docs/method.md).
inline void refuse_unless(const Fit& fit) {
  if (fit.needed > fit.available)
    throw Unsupported{"the requests need " + std::to_string(fit.needed) + " pages of " + std::to_string(page_rows) +
                      " tokens at once, and the cache has " + std::to_string(fit.available)};
}

// Pages with a count of those who hold them. Free ones are handed out in random order, given back ones first.
class PageAllocator {
 public:
  explicit PageAllocator(int pages, std::uint64_t seed = 0) : holders_(static_cast<std::size_t>(pages)) {
    for (int page = 0; page < pages; ++page) free_.push_back(page);
    for (std::size_t i = free_.size(); i > 1; --i) std::swap(free_[i - 1], free_[random_bits(seed, i) % i]);
  }
  int available() const { return static_cast<int>(free_.size()); }
  int holders(int page) const { return holders_.at(static_cast<std::size_t>(page)); }

  // -1 where none is left.
  int take() {
    if (free_.empty()) return -1;
    const int page = free_.back();
    free_.pop_back();
    holders_[static_cast<std::size_t>(page)] = 1;
    return page;
  }
  void share(int page) {
    if (holders(page) == 0) throw std::logic_error{"a page is shared that is free"};
    ++holders_[static_cast<std::size_t>(page)];
  }
  // True where nobody holds it any more.
  bool release(int page) {
    int& count = holders_.at(static_cast<std::size_t>(page));
    if (count == 0) throw std::logic_error{"a page is given back twice"};
    if (--count > 0) return false;
    free_.push_back(page);
    return true;
  }

 private:
  std::vector<int> free_, holders_;
};

// Whose entries are rows of `stride` pages, as kernels read them. Those after a sequence's last page name no page.
class PageTable {
 public:
  static constexpr int none = 1 << 28;

  PageTable(PageAllocator& pages, int sequences, int stride)
      : pages_{pages},
        stride_{stride},
        entries_(static_cast<std::size_t>(sequences) * static_cast<std::size_t>(stride), none),
        counts_(static_cast<std::size_t>(sequences)) {}

  // Pages for so many tokens; false, and nothing taken, where too few are left.
  bool grow(int sequence, int tokens) {
    const int wanted = pages_for(tokens) - count(sequence);
    if (wanted > pages_.available()) return false;
    for (int i = 0; i < wanted; ++i) append(sequence, pages_.take());
    return true;
  }
  void append(int sequence, int page) {
    int& of = counts_.at(static_cast<std::size_t>(sequence));
    if (of == stride_) throw std::logic_error{"a sequence grows beyond its row of the table"};
    entries_[at(sequence, of++)] = page;
  }
  // The first `pages` pages of another sequence, which both then hold.
  void share(int sequence, int of, int pages) {
    for (int i = 0; i < pages; ++i) {
      pages_.share(page(of, i));
      append(sequence, page(of, i));
    }
  }
  void release(int sequence) { shrink(sequence, 0); }
  // Gives back what so many tokens do not need.
  void shrink(int sequence, int tokens) {
    for (int& of = counts_.at(static_cast<std::size_t>(sequence)); of > pages_for(tokens);)
      pages_.release(std::exchange(entries_[at(sequence, --of)], none));
  }
  int count(int sequence) const { return counts_.at(static_cast<std::size_t>(sequence)); }
  int page(int sequence, int i) const { return entries_.at(at(sequence, i)); }
  void replace(int sequence, int i, int page) { entries_.at(at(sequence, i)) = page; }
  int stride() const { return stride_; }
  std::span<const int> entries() const { return entries_; }

 private:
  std::size_t at(int sequence, int i) const {
    return static_cast<std::size_t>(sequence) * static_cast<std::size_t>(stride_) + static_cast<std::size_t>(i);
  }

  PageAllocator& pages_;
  int stride_;
  std::vector<int> entries_, counts_;
};

}  // namespace aisp::decoder
