// SPDX-License-Identifier: Apache-2.0
// An audit of an allocator: which blocks are live, and an error for each that overlaps another, is used or freed when it is not
// live, or stays.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>

namespace aisp::ch13 {

class LiveBlocks {
 public:
  // A block of no bytes has no place and cannot overlap.
  void allocated(const void* block, std::size_t bytes) {
    if (bytes == 0) return;
    const Address first = address_of(block);
    const auto after = live_.lower_bound(first);
    if (after != live_.end() && after->first < first + bytes) overlap(bytes, after->second);
    if (after != live_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second > first) overlap(bytes, before->second);
    }
    live_.emplace_hint(after, first, bytes);
    bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, bytes_);
  }
  void used(const void* block, std::size_t bytes) const {
    if (bytes == 0) return;
    const auto after = live_.upper_bound(address_of(block));
    const bool is_live =
        after != live_.begin() && address_of(block) + bytes <= std::prev(after)->first + std::prev(after)->second;
    if (!is_live) throw std::runtime_error{std::to_string(bytes) + " bytes are used that no live block holds"};
  }
  void freed(const void* block, std::size_t bytes) {
    if (bytes == 0) return;
    const auto found = live_.find(address_of(block));
    if (found == live_.end()) throw std::runtime_error{"a block is freed that is not live"};
    if (found->second != bytes) throw std::runtime_error{"a block is freed with another size than it was allocated with"};
    bytes_ -= bytes;
    live_.erase(found);
  }
  void require_none() const {
    if (!live_.empty())
      throw std::runtime_error{std::to_string(live_.size()) + " blocks of " + std::to_string(bytes_) + " bytes were never freed"};
  }
  std::size_t bytes() const { return bytes_; }
  std::size_t peak_bytes() const { return peak_bytes_; }

 private:
  using Address = std::uintptr_t;
  static Address address_of(const void* block) { return reinterpret_cast<Address>(block); }
  [[noreturn]] static void overlap(std::size_t bytes, std::size_t live_bytes) {
    throw std::runtime_error{"a block of " + std::to_string(bytes) + " bytes overlaps a live one of " +
                             std::to_string(live_bytes)};
  }

  std::map<Address, std::size_t> live_;
  std::size_t bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace aisp::ch13
