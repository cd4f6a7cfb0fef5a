// SPDX-License-Identifier: Apache-2.0
#include "report/html/code_parts.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "report/html/code_tokens.hpp"

namespace aisp::report {
namespace {

using Names = std::set<std::string, std::less<>>;

struct Function {
  CodePart part;
  bool is_of_class = false;
  std::vector<std::string> scopes;  // namespaces and classes around it, the outermost first
  Names mentions;                   // names in it, "a::b" where they are qualified
};

// The name of a type brings what the type does: it is how a template is told which way to go.
bool is_meant(const Function& function, const Names& wanted) {
  const auto in_scope = [&](std::string_view scope) {
    return std::find(function.scopes.begin(), function.scopes.end(), scope) != function.scopes.end();
  };
  if (function.is_of_class && !function.scopes.empty() && wanted.contains(function.scopes.back())) return true;
  if (wanted.contains(function.part.name)) return true;
  return std::any_of(wanted.begin(), wanted.end(), [&](const std::string& name) {
    const std::size_t colons = name.rfind("::");
    if (colons == std::string::npos || std::string_view{name}.substr(colons + 2) != function.part.name) return false;
    const std::size_t before = name.rfind("::", colons - 1);
    const std::size_t begin = before == std::string::npos || colons == 0 ? 0 : before + 2;
    return in_scope(std::string_view{name}.substr(begin, colons - begin));
  });
}

// Words before a function's parameters that have parentheses of their own.
constexpr std::array decorations = {"__launch_bounds__", "__cluster_dims__", "__block_size__", "alignas",
                                    "decltype",          "requires",         "noexcept"};

// Finds functions with bodies in namespaces and classes; everything else is passed over.
class Finder {
 public:
  explicit Finder(const SourceText& file) : path_{file.path}, source_{file.text}, all_{tokens_of(source_)} {
    for (const Token& token : all_)
      if (token.kind != TokenKind::space && token.kind != TokenKind::comment) code_.push_back(token);
  }

  std::vector<Function> functions() {
    std::size_t head = 0;
    for (std::size_t i = 0; i < code_.size(); ++i) {
      const std::string_view word = at(i);
      if (word == ";" || word == "}" || code_[i].kind == TokenKind::directive || is_label(i)) head = i + 1;
      while (!scopes_.empty() && i > scopes_.back().end) scopes_.pop_back();
      if (word != "{") continue;
      if (!opens_scope(head, i)) {
        const std::size_t end = closing(i);
        if (const std::size_t name = name_in(head, i); name < i) add(head, i, end, name);
        i = end;
        // Members initialised with braces, and what follows them, belong to the same function.
        if (i + 1 < code_.size() && (at(i + 1) == "," || at(i + 1) == "{")) continue;
      } else {
        const bool is_type = is_class(head);
        if (is_type) classes_.emplace(class_name(head, i));
        scopes_.push_back({closing(i), is_type ? class_name(head, i) : std::string{at(i - 1)}, is_type});
      }
      head = i + 1;
    }
    std::erase_if(found_, [&](const Function& f) { return classes_.contains(f.part.name); });
    return found_;
  }

 private:
  std::string_view at(std::size_t i) const { return i < code_.size() ? text_of(source_, code_[i]) : std::string_view{}; }

  bool is_label(std::size_t i) const {
    return at(i) == ":" && i > 0 && (at(i - 1) == "public" || at(i - 1) == "private" || at(i - 1) == "protected");
  }

  std::size_t closing(std::size_t open) const {
    int depth = 0;
    for (std::size_t i = open; i < code_.size(); ++i) {
      depth += at(i) == "{" ? 1 : at(i) == "}" ? -1 : 0;
      if (depth == 0) return i;
    }
    return code_.size() - 1;
  }

  std::size_t after_template(std::size_t head) const {
    if (at(head) != "template") return head;
    int depth = 0;
    for (std::size_t i = head + 1; i < code_.size(); ++i) {
      depth += at(i) == "<" ? 1 : at(i) == ">" ? -1 : 0;
      if (depth == 0) return i + 1;
    }
    return head;
  }

  bool is_class(std::size_t head) const {
    const std::string_view word = at(after_template(head));
    return word == "class" || word == "struct" || word == "union";
  }
  std::string class_name(std::size_t head, std::size_t end) const {
    std::size_t i = after_template(head) + 1;
    while (i < end && code_[i].kind != TokenKind::name) ++i;
    return std::string{at(i)};
  }
  bool opens_scope(std::size_t head, std::size_t brace) const {
    if (at(head) == "namespace" || (at(head) == "inline" && at(head + 1) == "namespace")) return true;
    if (!is_class(head)) return false;
    for (std::size_t i = after_template(head); i < brace; ++i)
      if (at(i) == "(" && at(i - 1) != "alignas") return false;  // a function that returns a struct
    return true;
  }

  // The name before the parameters; `end` where there are none.
  std::size_t name_in(std::size_t head, std::size_t end) const {
    int depth = 0;
    for (std::size_t i = after_template(head); i < end; ++i) {
      if (at(i) == "=" && depth == 0) return end;
      if (at(i) == "(" && depth == 0 && i > head && code_[i - 1].kind != TokenKind::keyword &&
          std::find(decorations.begin(), decorations.end(), at(i - 1)) == decorations.end())
        return code_[i - 1].kind == TokenKind::name ? i - 1 : end;
      depth += at(i) == "(" ? 1 : at(i) == ")" ? -1 : 0;
    }
    return end;
  }

  // Up to the comment that stands directly above.
  std::size_t start_of(std::size_t head) const {
    auto token = std::find_if(all_.begin(), all_.end(), [&](const Token& t) { return t.begin == code_[head].begin; });
    std::size_t start = token->begin;
    while (token != all_.begin()) {
      --token;
      const std::string_view text = text_of(source_, *token);
      const bool gap = token->kind == TokenKind::space && std::count(text.begin(), text.end(), '\n') > 1;
      if (gap || (token->kind != TokenKind::space && token->kind != TokenKind::comment)) break;
      if (token->kind == TokenKind::comment && is_first_in_line(token->begin)) start = token->begin;
    }
    return source_.rfind('\n', start) == std::string_view::npos ? 0 : source_.rfind('\n', start) + 1;
  }
  bool is_first_in_line(std::size_t place) const {
    while (place > 0 && source_[place - 1] == ' ') --place;
    return place == 0 || source_[place - 1] == '\n';
  }

  // With what stands before it: "wide::launch". The qualifiers are names too, of types where they are no namespaces.
  std::string name_at(std::size_t i) const {
    std::string text{at(i)};
    while (i >= 3 && at(i - 1) == ":" && at(i - 2) == ":" && code_[i - 3].kind == TokenKind::name) {
      i -= 3;
      text = std::string{at(i)} + "::" + text;
    }
    return text;
  }

  struct Scope {
    std::size_t end;
    std::string name;
    bool is_type;
  };

  void add(std::size_t head, std::size_t brace, std::size_t end, std::size_t name) {
    const std::size_t start = start_of(head);
    Function function;
    function.part = {
        .name = std::string{at(name)},
        .path = path_,
        .text = std::string{source_.substr(start, code_[end].end - start)},
        .line = static_cast<int>(std::count(source_.begin(), source_.begin() + static_cast<std::ptrdiff_t>(start), '\n')) + 1};
    for (std::size_t i = head; i < brace; ++i) function.part.is_kernel |= at(i) == "__global__";
    for (const Scope& scope : scopes_) function.scopes.push_back(scope.name);
    function.is_of_class = !scopes_.empty() && scopes_.back().is_type;
    for (std::size_t i = head; i <= end; ++i)
      if (code_[i].kind == TokenKind::name && i != name) function.mentions.insert(name_at(i));
    found_.push_back(std::move(function));
  }

  std::string path_;
  std::string_view source_;
  std::vector<Token> all_, code_;
  std::vector<Function> found_;
  Names classes_;
  std::vector<Scope> scopes_;
};

// The names in `call<&Class::method>` and the like that follow `.name = "VARIANT"`, up to the next variant.
Names entry_points(const std::string& source, const std::string& variant) {
  std::vector<Token> code = tokens_of(source);
  std::erase_if(code, [](const Token& t) { return t.kind == TokenKind::space || t.kind == TokenKind::comment; });
  const auto at = [&](std::size_t i) { return i < code.size() ? text_of(source, code[i]) : std::string_view{}; };
  const auto names_variant = [&](std::size_t i) { return at(i) == "." && at(i + 1) == "name" && at(i + 2) == "="; };
  Names names;
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (!names_variant(i) || at(i + 3) != "\"" + variant + "\"") continue;
    for (i += 4; i < code.size() && !names_variant(i); ++i) {
      if (at(i) != "call" || at(i + 1) != "<") continue;
      int depth = 0;
      for (++i; i < code.size(); ++i) {
        depth += at(i) == "<" ? 1 : at(i) == ">" ? -1 : 0;
        if (depth == 0) break;
        if (code[i].kind != TokenKind::name) continue;
        // A method comes without the rest of its class; arguments of a template bring theirs.
        std::string name{at(i)};
        for (; at(i + 1) == ":" && at(i + 2) == ":"; i += 3) name += "::" + std::string{at(i + 3)};
        names.insert(std::move(name));
      }
    }
    break;
  }
  return names;
}

}  // namespace

std::vector<CodePart> parts_of_variant(const std::vector<SourceText>& files, const std::string& variant) {
  if (files.empty()) return {};
  std::vector<Function> all;
  for (const SourceText& file : files) {
    std::vector<Function> found = Finder{file}.functions();
    all.insert(all.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
  }
  Names wanted = entry_points(files.front().text, variant);
  std::vector<bool> taken(all.size(), false);
  for (bool grew = true; grew;) {
    grew = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (taken[i] || !is_meant(all[i], wanted)) continue;
      taken[i] = grew = true;
      wanted.insert(all[i].mentions.begin(), all[i].mentions.end());
    }
  }
  std::vector<CodePart> parts;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (taken[i]) parts.push_back(all[i].part);
  return parts;
}

std::vector<CodePart> kernels_of(const SourceText& file) {
  std::vector<CodePart> kernels;
  for (const Function& function : Finder{file}.functions())
    if (function.part.is_kernel) kernels.push_back(function.part);
  return kernels;
}

}  // namespace aisp::report
