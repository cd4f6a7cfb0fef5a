// SPDX-License-Identifier: Apache-2.0
// Their page tables name a page that is missing, or that is not theirs.
#include "doubling.hpp"

#include <vector>

namespace aisp::ch94 {
namespace {

using namespace selftest;

// Appends its input to a paged cache and computes from what it finds there.
class Paged final : public Doubling {
 public:
  explicit Paged(Setup& setup)
      : Doubling{setup}, pages_{setup.scratch<float>(count_ + page_elements)}, table_(count_ / page_elements) {
    // The last page is handed out first; the first one stays free.
    for (std::size_t i = 0; i < table_.size(); ++i) table_[i] = table_.size() - i;
  }
  void whole(Launch&) { double_with_last(table_.back()); }
  void none(Launch&) { double_with_last(std::size_t{1} << 28); }
  void after_the_last(Launch&) { double_with_last(table_.size() + 1); }
  void free(Launch&) { double_with_last(0); }
  void of_another(Launch&) { double_with_last(table_.front()); }

 private:
  static constexpr std::size_t page_elements = 64;

  // Rows are written to the pages that they were given. The table that they are read by names `page` as the last of them.
  void double_with_last(std::size_t page) {
    for (std::size_t i = 0; i < count_; ++i) pages_[at(table_[i / page_elements], i)] = in_.get()[i];
    for (std::size_t i = 0; i < count_; ++i) {
      const std::size_t entry = i / page_elements;
      out_[i] = 2 * pages_[at(entry + 1 < table_.size() ? table_[entry] : page, i)];
    }
  }
  static std::size_t at(std::size_t page, std::size_t i) { return page * page_elements + i % page_elements; }

  Scratch<float> pages_;
  std::vector<std::size_t> table_;
};

}  // namespace

extern constinit const selftest::Case whole_page_table =
    pair_of<&Paged::whole>({.does = "finds its rows by a page table, of which nothing is missing"});
extern constinit const selftest::Case no_page =
    pair_of<&Paged::none>({.does = "reads by an entry that names no page", .must = crashes("verify/signal")});
extern constinit const selftest::Case missing_page = pair_of<&Paged::after_the_last>(
    {.does = "reads the page after the last one", .must = fails("verify/reference", "verify/baseline")});
extern constinit const selftest::Case free_page =
    pair_of<&Paged::free>({.does = "reads a page that nobody was given", .must = fails("verify/finite")});
extern constinit const selftest::Case page_of_another = pair_of<&Paged::of_another>(
    {.does = "reads a page that was given to another sequence", .must = fails("verify/reference", "verify/baseline")});

}  // namespace aisp::ch94
