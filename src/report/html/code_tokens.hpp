// SPDX-License-Identifier: Apache-2.0
// C++ and CUDA cut into tokens, as far as showing code needs it. Private to report.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace aisp::report {

enum class TokenKind { space, comment, text, number, keyword, cuda, directive, name, mark };

struct Token {
  TokenKind kind = TokenKind::space;
  std::size_t begin = 0, end = 0;  // places in the source
};

// All of the source, without gaps. Code that does not compile gives tokens too.
std::vector<Token> tokens_of(std::string_view source);

inline std::string_view text_of(std::string_view source, const Token& token) {
  return source.substr(token.begin, token.end - token.begin);
}

// HTML with a span around what has a colour.
std::string highlighted(std::string_view source);

}  // namespace aisp::report
