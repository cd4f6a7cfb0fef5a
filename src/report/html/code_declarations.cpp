// SPDX-License-Identifier: Apache-2.0
#include "report/html/code_declarations.hpp"

#include <string_view>
#include <utility>

#include "report/html/code_tokens.hpp"

namespace aisp::report {
namespace {

// Finds where a file declares its variants: `.name = "VARIANT"` followed by `call<&Class::method>`, or "VARIANT" as an argument
// of a function that returns such a declaration.
class Declarations {
 public:
  explicit Declarations(const std::string& source) : source_{source}, code_{tokens_of(source)} {
    std::erase_if(code_, [](const Token& t) { return t.kind == TokenKind::space || t.kind == TokenKind::comment; });
  }

  // Names that lead to what the variant does; nothing where the file does not declare it.
  Names of(const std::string& variant) const {
    const std::string literal = "\"" + variant + "\"";
    Names constants;
    for (std::size_t i = 2; i < code_.size(); ++i)
      if (at(i) == literal && at(i - 1) == "=" && is_name(i - 2) && at(i - 3) != ".") constants.emplace(at(i - 2));
    for (std::size_t i = 3; i < code_.size(); ++i) {
      if (at(i) != literal && !(is_name(i) && constants.contains(at(i)))) continue;
      Names names = begins_variant(i - 3) ? calls(i + 1, end_of_braces(i + 1)) : of_call(i);
      if (!names.empty()) return names;
    }
    return {};
  }

 private:
  std::string_view at(std::size_t i) const { return i < code_.size() ? text_of(source_, code_[i]) : std::string_view{}; }
  bool is_name(std::size_t i) const { return i < code_.size() && code_[i].kind == TokenKind::name; }
  bool begins_variant(std::size_t i) const { return at(i) == "." && at(i + 1) == "name" && at(i + 2) == "="; }
  std::size_t end_of_braces(std::size_t i) const {
    for (int depth = 1; i < code_.size(); ++i) {
      depth += at(i) == "{" ? 1 : at(i) == "}" ? -1 : 0;
      if (depth == 0) break;
    }
    return i;
  }

  // Behind the last of the arguments that begin at `open`, a "<" or a "(".
  std::size_t behind(std::size_t open) const {
    const std::string_view one = at(open), other = one == "<" ? ">" : one == "(" ? ")" : "}";
    int depth = 0;
    for (std::size_t i = open; i < code_.size(); ++i) {
      depth += at(i) == one ? 1 : at(i) == other ? -1 : 0;
      if (depth == 0) return i + 1;
    }
    return code_.size();
  }
  Names names_in(std::size_t begin, std::size_t end) const {
    Names names;
    for (std::size_t i = begin; i < end; ++i) {
      if (!is_name(i)) continue;
      // A method comes without the rest of its class; arguments of a template bring theirs.
      std::string name{at(i)};
      for (; at(i + 1) == ":" && at(i + 2) == ":"; i += 3) name += "::" + std::string{at(i + 3)};
      names.insert(std::move(name));
    }
    return names;
  }
  // In `call<...>` between two places.
  Names calls(std::size_t begin, std::size_t end) const {
    Names names;
    for (std::size_t i = begin; i < end; ++i)
      if (at(i) == "call" && at(i + 1) == "<") names.merge(names_in(i + 2, behind(i + 1)));
    return names;
  }

  // Returns the names in `declare<arguments>("VARIANT", ...)`, whose text stands at `i`: those in its arguments and in its own
  // body.
  Names of_call(std::size_t i) const {
    std::size_t open = i;
    for (int depth = 1; depth > 0 && open > 0;) {
      --open;
      if (at(open) == ";") return {};
      depth += at(open) == ")" || at(open) == "}" ? 1 : at(open) == "(" || at(open) == "{" ? -1 : 0;
    }
    if (at(open) != "(" || open == 0) return {};
    std::size_t declare = open - 1, arguments = open;
    if (at(declare) == ">") {
      for (int depth = 1; depth > 0 && declare > 0;) {
        --declare;
        depth += at(declare) == ">" ? 1 : at(declare) == "<" ? -1 : 0;
      }
      arguments = declare--;
    }
    if (!is_name(declare)) return {};
    Names names = calls(arguments, behind(open));
    for (const std::string& name : names_in(arguments, open)) names.merge(calls_of_constant(name));
    names.merge(calls_of_function(std::string{at(declare)}));
    if (!names.empty()) names.merge(names_in(arguments, open));
    names.erase("call");
    return names;
  }
  // `NAME = call<...>`.
  Names calls_of_constant(std::string_view name) const {
    for (std::size_t i = 0; i < code_.size(); ++i)
      if (at(i) == name && at(i + 1) == "=" && at(i + 2) == "call") return calls(i + 2, i + 3);
    return {};
  }
  // `Variant NAME(...) { return {...}; }`
  Names calls_of_function(std::string_view name) const {
    for (std::size_t i = 1; i < code_.size(); ++i) {
      if (at(i) != name || at(i - 1) != "Variant" || at(i + 1) != "(") continue;
      const std::size_t body = behind(i + 1);
      return at(body) == "{" ? calls(body, behind(body)) : Names{};
    }
    return {};
  }

  std::string_view source_;
  std::vector<Token> code_;
};

}  // namespace

Names entry_points(const std::vector<SourceText>& files, const std::string& variant) {
  for (const SourceText& file : files) {
    Names names = Declarations{file.text}.of(variant);
    if (!names.empty()) return names;
  }
  return {};
}

}  // namespace aisp::report
