// SPDX-License-Identifier: Apache-2.0
#include "report/html/code_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "report/html/text.hpp"

namespace aisp::report {
namespace {

constexpr std::array keywords = {"alignas",
                                 "alignof",

                                 "auto",
                                 "bool",
                                 "break",
                                 "case",
                                 "catch",
                                 "char",
                                 "class",
                                 "concept",
                                 "const",
                                 "consteval",
                                 "constexpr",
                                 "constinit",
                                 "continue",
                                 "decltype",
                                 "default",
                                 "delete",
                                 "do",
                                 "double",
                                 "else",
                                 "enum",
                                 "explicit",
                                 "extern",
                                 "false",
                                 "final",
                                 "float",
                                 "for",
                                 "friend",
                                 "if",
                                 "inline",
                                 "int",
                                 "long",
                                 "mutable",
                                 "namespace",
                                 "new",
                                 "noexcept",
                                 "nullptr",
                                 "operator",
                                 "override",
                                 "private",
                                 "protected",
                                 "public",
                                 "requires",
                                 "return",
                                 "short",
                                 "signed",
                                 "sizeof",
                                 "static",
                                 "static_assert",
                                 "static_cast",
                                 "struct",
                                 "switch",
                                 "template",
                                 "this",
                                 "throw",
                                 "true",
                                 "try",
                                 "typename",
                                 "union",
                                 "unsigned",
                                 "using",
                                 "virtual",
                                 "void",
                                 "volatile",
                                 "while",
                                 "reinterpret_cast"};
constexpr std::array cuda_words = {"threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize",
                                   "dim3",      "float4",   "float2",   "int4"};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

template <class List>
bool is_among(const List& list, std::string_view word) {
  return std::any_of(list.begin(), list.end(), [&](std::string_view other) { return other == word; });
}

TokenKind kind_of(std::string_view word) {
  if (is_among(keywords, word)) return TokenKind::keyword;
  const bool dunder = word.size() > 4 && word.substr(0, 2) == "__";
  return dunder || is_among(cuda_words, word) ? TokenKind::cuda : TokenKind::name;
}

class Scanner {
 public:
  explicit Scanner(std::string_view source) : source_{source} {}

  std::vector<Token> all() {
    std::vector<Token> tokens;
    while (at_ < source_.size()) {
      Token token{.begin = at_};
      token.kind = next();
      token.end = at_;
      if (token.kind != TokenKind::space && token.kind != TokenKind::comment) line_is_empty_ = false;
      if (source_.substr(token.begin, token.end - token.begin).find('\n') != std::string_view::npos) line_is_empty_ = true;
      tokens.push_back(token);
    }
    return tokens;
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

  TokenKind next() {
    const char c = source_[at_];
    if (is_space(c)) return skip_while(is_space), TokenKind::space;
    if (starts_with("//")) return skip_while([](char x) { return x != '\n'; }), TokenKind::comment;
    if (starts_with("/*")) return at_ += 2, skip_past("*/"), TokenKind::comment;
    if (c == '#' && line_is_empty_) return directive();
    if (starts_with("R\"")) return raw_text();
    if (c == '"' || c == '\'') return quoted(c);
    if (is_digit(c))
      return skip_while([](char x) { return is_letter(x) || is_digit(x) || x == '.' || x == '\''; }), TokenKind::number;
    if (is_letter(c)) {
      const std::size_t begin = at_;
      skip_while([](char x) { return is_letter(x) || is_digit(x); });
      return kind_of(source_.substr(begin, at_ - begin));
    }
    ++at_;
    return TokenKind::mark;
  }

  TokenKind directive() {
    do skip_while([](char x) { return x != '\n'; });
    while (at_ < source_.size() && source_[at_ - 1] == '\\' && ++at_ < source_.size());
    return TokenKind::directive;
  }

  TokenKind quoted(char quote) {
    for (++at_; at_ < source_.size() && source_[at_] != quote && source_[at_] != '\n'; ++at_)
      if (source_[at_] == '\\') ++at_;
    at_ = std::min(at_ + 1, source_.size());
    return TokenKind::text;
  }

  TokenKind raw_text() {
    const std::size_t open = source_.find('(', at_);
    if (open == std::string_view::npos) return ++at_, TokenKind::mark;
    const std::string close = ")" + std::string{source_.substr(at_ + 2, open - at_ - 2)} + "\"";
    at_ = open;
    skip_past(close);
    return TokenKind::text;
  }

  std::string_view source_;
  std::size_t at_ = 0;
  bool line_is_empty_ = true;
};

const char* css_class_of(TokenKind kind) {
  switch (kind) {
    case TokenKind::comment: return "c";
    case TokenKind::text: return "s";
    case TokenKind::number: return "n";
    case TokenKind::keyword: return "k";
    case TokenKind::cuda: return "u";
    case TokenKind::directive: return "d";
    default: return nullptr;
  }
}

}  // namespace

std::vector<Token> tokens_of(std::string_view source) { return Scanner{source}.all(); }

std::string highlighted(std::string_view source) {
  std::string plain, html;
  // Escaping costs more per call than per byte, so what has no colour is gathered.
  const auto flush = [&] {
    if (!plain.empty()) html += html::escaped(plain);
    plain.clear();
  };
  for (const Token& token : tokens_of(source)) {
    const char* css_class = css_class_of(token.kind);
    if (css_class == nullptr) {
      plain += text_of(source, token);
      continue;
    }
    flush();
    html += fmt::format("<i class=\"{}\">{}</i>", css_class, html::escaped(text_of(source, token)));
  }
  flush();
  return html;
}

}  // namespace aisp::report
