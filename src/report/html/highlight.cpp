// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.hpp"
#include "report/html/text.hpp"

namespace aisp::report::html {
namespace {

using Words = std::set<std::string, std::less<>>;

Words words_in(std::string_view text) {
  const std::vector<std::string> words = base::split(text, ' ');
  return {words.begin(), words.end()};
}

const char* css_class_of_word(std::string_view word) {
  static const Words keywords = words_in(
      "alignas alignof auto bool break case catch char class concept const consteval constexpr constinit continue "
      "decltype default delete do double else enum explicit extern false final float for friend if inline int long "
      "mutable namespace new noexcept nullptr operator override private protected public reinterpret_cast requires "
      "return short signed sizeof static static_assert static_cast struct switch template this throw true try typename "
      "union unsigned using virtual void volatile while");
  static const Words cuda_words = words_in("threadIdx blockIdx blockDim gridDim warpSize dim3 float4 float2 int4");
  if (keywords.contains(word)) return "k";
  const bool dunder = word.size() > 4 && word.starts_with("__");
  return dunder || cuda_words.contains(word) ? "u" : nullptr;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// C++ and CUDA cut into tokens, as far as colours need it. Code that does not compile has tokens too.
class Scanner {
 public:
  explicit Scanner(std::string_view source) : source_{source} {}

  bool ended() const { return at_ == source_.size(); }
  std::size_t place() const { return at_; }
  // Steps over the next token and returns its CSS class; null if it has no colour.
  const char* next() {
    const std::size_t begin = at_;
    const bool was_empty = line_is_empty_;
    const char c = source_[at_];
    if (is_space(c)) {
      skip_while(is_space);
      line_is_empty_ = was_empty || source_.substr(begin, at_ - begin).find('\n') != std::string_view::npos;
      return nullptr;
    }
    if (starts_with("//")) return skip_while([](char x) { return x != '\n'; }), "c";
    if (starts_with("/*")) return at_ += 2, skip_past("*/"), "c";
    line_is_empty_ = false;
    if (c == '#' && was_empty) return directive();
    if (starts_with("R\"")) return raw_text();
    if (c == '"' || c == '\'') return quoted(c);
    if (is_digit(c)) return skip_while([](char x) { return is_letter(x) || is_digit(x) || x == '.' || x == '\''; }), "n";
    if (!is_letter(c)) return ++at_, nullptr;
    skip_while([](char x) { return is_letter(x) || is_digit(x); });
    return css_class_of_word(source_.substr(begin, at_ - begin));
  }

 private:
  bool starts_with(std::string_view text) const { return source_.substr(at_, text.size()) == text; }
  template <class Predicate>
  void skip_while(Predicate holds) {
    while (at_ < source_.size() && holds(source_[at_])) ++at_;
  }
  void skip_past(std::string_view text) {
    const std::size_t found = source_.find(text, at_);
    at_ = found == std::string_view::npos ? source_.size() : found + text.size();
  }

  const char* directive() {
    do skip_while([](char x) { return x != '\n'; });
    while (at_ < source_.size() && source_[at_ - 1] == '\\' && ++at_ < source_.size());
    return "d";
  }

  const char* quoted(char quote) {
    for (++at_; at_ < source_.size() && source_[at_] != quote && source_[at_] != '\n'; ++at_)
      if (source_[at_] == '\\') ++at_;
    at_ = std::min(at_ + 1, source_.size());
    return "s";
  }

  const char* raw_text() {
    const std::size_t open = source_.find('(', at_);
    if (open == std::string_view::npos) return ++at_, nullptr;
    const std::string close = ")" + std::string{source_.substr(at_ + 2, open - at_ - 2)} + "\"";
    at_ = open;
    skip_past(close);
    return "s";
  }

  std::string_view source_;
  std::size_t at_ = 0;
  bool line_is_empty_ = true;
};

}  // namespace

std::string highlighted(std::string_view source) {
  std::string html;
  std::size_t plain = 0;  // Escaping costs more per call than per byte, so what has no colour is gathered.
  for (Scanner scanner{source}; !scanner.ended();) {
    const std::size_t begin = scanner.place();
    const char* css_class = scanner.next();
    if (css_class == nullptr && !scanner.ended()) continue;
    const std::size_t colored = css_class == nullptr ? scanner.place() : begin;
    if (colored > plain) html += escaped(source.substr(plain, colored - plain));
    plain = scanner.place();
    if (css_class != nullptr)
      html += fmt::format("<i class=\"{}\">{}</i>", css_class, escaped(source.substr(begin, plain - begin)));
  }
  return html;
}

}  // namespace aisp::report::html
