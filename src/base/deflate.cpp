// SPDX-License-Identifier: Apache-2.0
#include "base/deflate.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

namespace aisp::base {
namespace {

constexpr int window = 1 << 15, least_length = 3, most_length = 258;
constexpr int hash_bits = 15;
// Earlier places that are compared with each place, and a length that is not waited for a longer one.
constexpr int most_tries = 256, good_length = 64;
// Three bytes from so far away take more bits than three literals.
constexpr int far = 4096;
constexpr int end_of_block = 256, first_length = 257, length_codes = 29, distance_codes = 30;
constexpr int most_code_bits = 15, most_length_code_bits = 7;
constexpr std::size_t tokens_of_block = 1 << 15;

// A literal byte has length 0; a match repeats `length` bytes from `value` bytes before.
struct Token {
  int length = 0;
  int value = 0;
};

struct Class {  // of lengths or distances that share a code
  int base = 0;
  int extra_bits = 0;
};
constexpr std::array<Class, length_codes> length_classes = [] {
  std::array<Class, length_codes> classes{};
  for (int code = 0; code < length_codes; ++code) {
    const int extra = code < 8 ? 0 : code / 4 - 1;
    classes[static_cast<std::size_t>(code)] = {code < 8 ? 3 + code : ((4 + code % 4) << extra) + 3, extra};
  }
  classes.back() = {most_length, 0};
  return classes;
}();
constexpr std::array<Class, distance_codes> distance_classes = [] {
  std::array<Class, distance_codes> classes{};
  for (int code = 0; code < distance_codes; ++code) {
    const int extra = code < 4 ? 0 : code / 2 - 1;
    classes[static_cast<std::size_t>(code)] = {code < 4 ? 1 + code : ((2 + code % 2) << extra) + 1, extra};
  }
  return classes;
}();

template <std::size_t count>
std::size_t class_of(const std::array<Class, count>& classes, int value) {
  const auto above = std::ranges::upper_bound(classes, value, {}, &Class::base);
  return static_cast<std::size_t>(above - classes.begin()) - 1;
}

class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_{text}, newest_(1 << hash_bits, -1), earlier_(window, -1) {}

  // From here on later places may repeat this one.
  void add(int at) {
    if (!hashable(at)) return;
    int& newest = newest_[hash(at)];
    earlier_[slot(at)] = newest;
    newest = at;
  }
  // The longest repetition of what was added; length 0 without one.
  Token longest(int at) const {
    Token best;
    if (!hashable(at)) return best;
    const int most = std::min<int>(most_length, size() - at);
    int place = newest_[hash(at)];
    for (int tries = 0; tries < most_tries && place >= 0 && at - place <= window && best.length < most; ++tries) {
      const int length = common(place, at, most);
      if (length > best.length && (length > least_length || at - place <= far)) best = {length, at - place};
      const int before = earlier_[slot(place)];
      if (before >= place) break;  // overwritten
      place = before;
    }
    return best.length >= least_length ? best : Token{};
  }
  int size() const { return static_cast<int>(text_.size()); }
  int byte(int at) const { return static_cast<unsigned char>(text_[static_cast<std::size_t>(at)]); }

 private:
  bool hashable(int at) const { return at + least_length <= size(); }
  std::size_t hash(int at) const {
    const auto bytes = static_cast<std::uint32_t>(byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16);
    return (bytes * 2654435761u) >> (32 - hash_bits);
  }
  static std::size_t slot(int at) { return static_cast<std::size_t>(at) % window; }
  int common(int a, int b, int most) const {
    int length = 0;
    while (length < most && byte(a + length) == byte(b + length)) ++length;
    return length;
  }

  std::string_view text_;
  std::vector<int> newest_, earlier_;
};

std::vector<Token> tokens_of(std::string_view text) {
  Matcher matcher{text};
  std::vector<Token> tokens;
  Token match = matcher.longest(0);
  for (int at = 0; at < matcher.size();) {
    matcher.add(at);
    // A longer match may begin one byte later.
    const Token next = match.length < good_length ? matcher.longest(at + 1) : Token{};
    if (match.length == 0 || next.length > match.length) {
      tokens.push_back({0, matcher.byte(at)});
      match = next;
      ++at;
      continue;
    }
    tokens.push_back(match);
    for (int i = 1; i < match.length; ++i) matcher.add(at + i);
    at += match.length;
    match = matcher.longest(at);
  }
  return tokens;
}

using Counts = std::vector<std::uint64_t>;

// Bits of each symbol's code in Huffman's tree; 0: none.
std::vector<int> tree_depths(const Counts& counts) {
  struct Node {
    std::uint64_t count;
    std::size_t index;
    bool operator>(const Node& other) const { return std::pair{count, index} > std::pair{other.count, other.index}; }
  };
  std::priority_queue<Node, std::vector<Node>, std::greater<>> open;
  std::vector<std::size_t> parent(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) open.push({counts[i], i});
  while (open.size() > 1) {
    const Node a = open.top();
    open.pop();
    const Node b = open.top();
    open.pop();
    parent[a.index] = parent[b.index] = parent.size();
    open.push({a.count + b.count, parent.size()});
    parent.push_back(0);
  }
  std::vector<int> depths(parent.size());
  for (std::size_t i = parent.size() - 1; i-- > 0;)
    if (parent[i] > 0) depths[i] = depths[parent[i]] + 1;
  depths.resize(counts.size());
  return depths;
}

// Flatter counts make a flatter tree.
std::vector<int> code_lengths(Counts counts, int most_bits) {
  // A code of one symbol is none that every decoder takes.
  for (std::size_t i = 0; std::ranges::count_if(counts, [](std::uint64_t count) { return count > 0; }) < 2; ++i)
    counts[i] = std::max<std::uint64_t>(counts[i], 1);
  for (;;) {
    std::vector<int> lengths = tree_depths(counts);
    if (std::ranges::max(lengths) <= most_bits) return lengths;
    for (std::uint64_t& count : counts) count = (count + 1) / 2;
  }
}

class Bits {
 public:
  void put(int value, int count) {  // the lowest bit first
    pending_ |= static_cast<std::uint64_t>(value) << filled_;
    for (filled_ += count; filled_ >= 8; filled_ -= 8) {
      bytes_ += static_cast<char>(pending_ & 255);
      pending_ >>= 8;
    }
  }
  std::string finish() {
    if (filled_ > 0) put(0, 8 - filled_);
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
  std::uint64_t pending_ = 0;
  int filled_ = 0;
};

// Codes of these lengths in the order of the symbols, which is all that a decoder must know of them.
class Code {
 public:
  explicit Code(std::vector<int> lengths) : lengths_{std::move(lengths)}, codes_(lengths_.size()) {
    int code = 0;
    for (int length = 1; length <= most_code_bits; ++length, code <<= 1)
      for (std::size_t i = 0; i < lengths_.size(); ++i)
        if (lengths_[i] == length) codes_[i] = reversed(code++, length);
  }
  void put(std::size_t symbol, Bits& bits) const { bits.put(codes_[symbol], lengths_[symbol]); }
  const std::vector<int>& lengths() const { return lengths_; }

 private:
  static int reversed(int code, int length) {
    int result = 0;
    for (; length > 0; --length, code >>= 1) result = result << 1 | (code & 1);
    return result;
  }

  std::vector<int> lengths_, codes_;
};

struct Run {  // of equal code lengths
  std::size_t symbol = 0;
  int extra = 0, extra_bits = 0;
};

std::vector<Run> runs_of(const std::vector<int>& lengths) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < lengths.size();) {
    std::size_t end = i;
    while (end < lengths.size() && lengths[end] == lengths[i]) ++end;
    int left = static_cast<int>(end - i);
    if (lengths[i] > 0) {
      runs.push_back({static_cast<std::size_t>(lengths[i])});
      --left;
    }
    while (left >= 3) {
      const int count = std::min(left, lengths[i] > 0 ? 6 : 138);
      if (lengths[i] > 0) runs.push_back({16, count - 3, 2});
      else if (count <= 10) runs.push_back({17, count - 3, 3});
      else runs.push_back({18, count - 11, 7});
      left -= count;
    }
    for (; left > 0; --left) runs.push_back({static_cast<std::size_t>(lengths[i])});
    i = end;
  }
  return runs;
}

void put_codes(const Code& literals, const Code& distances, Bits& bits) {
  std::vector<int> lengths = literals.lengths();
  lengths.insert(lengths.end(), distances.lengths().begin(), distances.lengths().end());
  const std::vector<Run> runs = runs_of(lengths);
  Counts counts(19);
  for (const Run& run : runs) ++counts[run.symbol];
  const Code code{code_lengths(counts, most_length_code_bits)};
  bits.put(static_cast<int>(literals.lengths().size()) - 257, 5);
  bits.put(static_cast<int>(distances.lengths().size()) - 1, 5);
  bits.put(19 - 4, 4);
  for (const std::size_t symbol : {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15})
    bits.put(code.lengths()[symbol], 3);
  for (const Run& run : runs) {
    code.put(run.symbol, bits);
    bits.put(run.extra, run.extra_bits);
  }
}

void put_block(const Token* begin, const Token* end, bool last, Bits& bits) {
  Counts literal_counts(first_length + length_codes), distance_counts(distance_codes);
  literal_counts[end_of_block] = 1;
  for (const Token* token = begin; token != end; ++token) {
    if (token->length == 0) {
      ++literal_counts[static_cast<std::size_t>(token->value)];
      continue;
    }
    ++literal_counts[first_length + class_of(length_classes, token->length)];
    ++distance_counts[class_of(distance_classes, token->value)];
  }
  const Code literals{code_lengths(literal_counts, most_code_bits)}, distances{code_lengths(distance_counts, most_code_bits)};
  bits.put(last ? 1 : 0, 1);
  bits.put(2, 2);
  put_codes(literals, distances, bits);
  for (const Token* token = begin; token != end; ++token) {
    if (token->length == 0) {
      literals.put(static_cast<std::size_t>(token->value), bits);
      continue;
    }
    const std::size_t length = class_of(length_classes, token->length), distance = class_of(distance_classes, token->value);
    literals.put(first_length + length, bits);
    bits.put(token->length - length_classes[length].base, length_classes[length].extra_bits);
    distances.put(distance, bits);
    bits.put(token->value - distance_classes[distance].base, distance_classes[distance].extra_bits);
  }
  literals.put(end_of_block, bits);
}

}  // namespace

std::string deflated(std::string_view text) {
  const std::vector<Token> tokens = tokens_of(text);
  Bits bits;
  std::size_t begin = 0;
  do {
    const std::size_t end = std::min(begin + tokens_of_block, tokens.size());
    put_block(tokens.data() + begin, tokens.data() + end, end == tokens.size(), bits);
    begin = end;
  } while (begin < tokens.size());
  return bits.finish();
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string result;
  unsigned bits = 0, count = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (count += 8; count >= 6; count -= 6) result += digits[bits >> (count - 6) & 63];
  }
  if (count > 0) result += digits[bits << (6 - count) & 63];
  while (result.size() % 4 != 0) result += '=';
  return result;
}

}  // namespace aisp::base
