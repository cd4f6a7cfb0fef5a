// SPDX-License-Identifier: Apache-2.0
// The other direction of base/deflate.hpp, written from RFC 1951 alone: bit by bit, and it refuses what is not allowed.
#pragma once
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aisp::tests {

class Inflater {
 public:
  explicit Inflater(std::string_view bytes) : bytes_{bytes} {}

  std::string text() {
    for (bool last = false; !last;) {
      last = bits(1) == 1;
      if (bits(2) != 2) throw std::runtime_error{"a block of another kind"};
      read_block();
    }
    if ((at_ + 7) / 8 != bytes_.size()) throw std::runtime_error{"bytes are left over"};
    return std::move(text_);
  }

 private:
  using Lengths = std::vector<int>;

  int bits(int count) {
    int value = 0;
    for (int i = 0; i < count; ++i, ++at_) {
      if (at_ / 8 >= bytes_.size()) throw std::runtime_error{"it ends too early"};
      value |= (static_cast<unsigned char>(bytes_[at_ / 8]) >> at_ % 8 & 1) << i;
    }
    return value;
  }

  // Codes of one length are consecutive numbers, longer ones continue behind the shorter.
  int symbol(const Lengths& lengths) {
    int code = 0, first = 0;
    for (int length = 1; length <= 15; ++length) {
      code = code << 1 | bits(1);
      int found = -1, count = 0;
      for (std::size_t i = 0; i < lengths.size(); ++i)
        if (lengths[i] == length && first + count++ == code) found = static_cast<int>(i);
      if (found >= 0) return found;
      first = (first + count) << 1;
    }
    throw std::runtime_error{"no such code"};
  }

  static void check_complete(const Lengths& lengths) {
    int used = 0;
    for (const int length : lengths)
      if (length > 0) used += 1 << (15 - length);
    if (used != 1 << 15) throw std::runtime_error{"a code that is not complete"};
  }

  void read_block() {
    const auto literals = static_cast<std::size_t>(257 + bits(5)), distances = static_cast<std::size_t>(1 + bits(5));
    const int given = 4 + bits(4);
    constexpr std::array<std::size_t, 19> order{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    Lengths of_lengths(19);
    for (int i = 0; i < given; ++i) of_lengths[order[static_cast<std::size_t>(i)]] = bits(3);
    check_complete(of_lengths);
    Lengths all;
    while (all.size() < literals + distances) {
      const int found = symbol(of_lengths);
      if (found < 16) all.push_back(found);
      else if (found == 16) all.insert(all.end(), static_cast<std::size_t>(3 + bits(2)), all.back());
      else all.insert(all.end(), static_cast<std::size_t>(found == 17 ? 3 + bits(3) : 11 + bits(7)), 0);
    }
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(literals);
    const Lengths of_literals(all.begin(), middle), of_distances(middle, all.end());
    check_complete(of_literals);
    check_complete(of_distances);
    for (int found = symbol(of_literals); found != 256; found = symbol(of_literals)) {
      if (found < 256) {
        text_ += static_cast<char>(found);
        continue;
      }
      const int length = length_of(found - 257);
      repeat(length, distance_of(symbol(of_distances)));
    }
  }

  int length_of(int code) {
    if (code < 8) return 3 + code;
    if (code == 28) return 258;
    const int extra = code / 4 - 1;
    return 3 + ((4 + code % 4) << extra) + bits(extra);
  }
  int distance_of(int code) {
    if (code < 4) return 1 + code;
    const int extra = code / 2 - 1;
    return 1 + ((2 + code % 2) << extra) + bits(extra);
  }
  void repeat(int length, int distance) {
    if (static_cast<std::size_t>(distance) > text_.size()) throw std::runtime_error{"a repetition from before the beginning"};
    for (int i = 0; i < length; ++i) text_ += text_[text_.size() - static_cast<std::size_t>(distance)];
  }

  std::string_view bytes_;
  std::size_t at_ = 0;  // in bits
  std::string text_;
};

inline std::string inflated(std::string_view bytes) { return Inflater{bytes}.text(); }

inline std::string from_base64(std::string_view text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0, count = 0;
  for (const char c : text.substr(0, text.find('='))) {
    bits = bits << 6 | static_cast<unsigned>(digits.find(c));
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  return bytes;
}

}  // namespace aisp::tests
