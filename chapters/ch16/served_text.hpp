// SPDX-License-Identifier: Apache-2.0
// A server's output for a request's tokens: text, of which characters may be divided among tokens, until a token or a string ends
// it or it is long enough.
#pragma once
#include <aisp/generators.hpp>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aisp::ch16 {

inline constexpr int word_bytes = 8;  // at most, of a word or of what stands for one that is no text
inline constexpr std::string_view no_character = "\xEF\xBF\xBD";

// Some words are parts of characters of two and of three bytes; some end a request.
class Vocabulary {
 public:
  explicit Vocabulary(int words) {
    constexpr std::string_view parts[] = {"\xC3", "\xA9", "\xE2\x82", "\xAC"};
    for (int i = 0; i < words; ++i) {
      std::string word;
      const std::uint64_t bits = random_bits(0x7E87, static_cast<std::uint64_t>(i));
      if (i % 16 < 4) word = parts[i % 16];
      else
        for (std::uint64_t k = 0; k < 1 + bits % 7; ++k)
          word += k == 0 && bits % 3 == 0 ? ' ' : static_cast<char>('a' + (bits >> (8 + 5 * k)) % 26);
      words_.push_back(word);
    }
  }
  std::string_view operator[](int token) const { return words_[static_cast<std::size_t>(token)]; }
  static bool ends(int token) { return token % 512 == 7; }

 private:
  std::vector<std::string> words_;
};

// When a request ends: with such a token, after so many, or where this string is in its text, which is then cut off.
struct EndsAt {
  int tokens;
  std::string stop;
};

// A request's text, token by token. A character is written when its last byte is there.
class TextStream {
 public:
  void begin(unsigned char* to) { text_ = to, length_ = pending_bytes_ = missing_ = 0; }
  // False where the string that ends the request is in the text now.
  bool append(std::string_view word, std::string_view stop) {
    const int before = length_;
    for (const char byte : word) push(static_cast<unsigned char>(byte));
    const int from = std::max(before - static_cast<int>(stop.size()) + 1, 0);
    const std::size_t found = view().substr(static_cast<std::size_t>(from)).find(stop);
    if (found == std::string_view::npos) return true;
    const int end = std::exchange(length_, from + static_cast<int>(found));
    std::fill(text_ + length_, text_ + end, static_cast<unsigned char>(0));  // what is cut off is not seen
    pending_bytes_ = missing_ = 0;
    return false;
  }
  void finish() {
    if (missing_ > 0) write(no_character);
    missing_ = pending_bytes_ = 0;
  }
  std::string_view view() const { return {reinterpret_cast<const char*>(text_), static_cast<std::size_t>(length_)}; }

 private:
  void write(std::string_view bytes) {
    std::copy(bytes.begin(), bytes.end(), text_ + length_);
    length_ += static_cast<int>(bytes.size());
  }
  void push(unsigned char byte) {
    const bool continues = (byte & 0xC0) == 0x80;
    if (missing_ > 0 && !continues) finish();
    if (missing_ == 0) {
      missing_ = byte < 0x80 ? 0 : byte >= 0xC2 && byte < 0xE0 ? 1 : byte >= 0xE0 && byte < 0xF0 ? 2 : -1;
      if (missing_ < 0) {
        missing_ = 0;
        return write(no_character);
      }
    } else --missing_;
    pending_[pending_bytes_++] = static_cast<char>(byte);
    if (missing_ > 0) return;
    write({pending_, static_cast<std::size_t>(pending_bytes_)});
    pending_bytes_ = 0;
  }

  unsigned char* text_ = nullptr;
  int length_ = 0, pending_bytes_ = 0, missing_ = 0;
  char pending_[4] = {};
};

// The same of all tokens at once, for comparison: whole characters stay, and what is none becomes one sign. A character that may
// still be continued counts if this is all.
inline std::string text_of(const Vocabulary& vocabulary, std::span<const int> tokens, bool is_all) {
  std::string bytes, text;
  for (const int token : tokens) bytes += vocabulary[token];
  for (std::size_t i = 0; i < bytes.size();) {
    const std::string_view rest = std::string_view{bytes}.substr(i);
    std::size_t whole = 1, seen = 1;
    if (rest.starts_with('\xC3')) whole = 2;
    if (rest.starts_with('\xE2')) whole = 3;
    while (seen < whole && seen < rest.size() && (rest[seen] & 0xC0) == 0x80) ++seen;
    if (seen < whole && seen == rest.size() && !is_all) break;
    const bool is_character = seen == whole && (rest[0] & 0xC0) != 0x80;
    text += is_character ? rest.substr(0, whole) : no_character;
    i += seen;
  }
  return text;
}

// Returns the tokens and text that a request is to have, from the tokens that it makes if nothing ends it.
inline std::pair<std::vector<int>, std::string> ended(const Vocabulary& vocabulary, std::span<const int> tokens,
                                                      const EndsAt& at) {
  for (int count = 1;; ++count) {
    const auto own = tokens.first(static_cast<std::size_t>(count));
    const bool ends = Vocabulary::ends(own.back());
    const auto with_text = ends ? own.first(own.size() - 1) : own;
    const std::string text = text_of(vocabulary, with_text, false);
    const std::size_t found = text.find(at.stop);
    if (found != std::string::npos) return {{own.begin(), own.end()}, text.substr(0, found)};
    if (ends || count == at.tokens) return {{own.begin(), own.end()}, text_of(vocabulary, with_text, true)};
  }
}

}  // namespace aisp::ch16
