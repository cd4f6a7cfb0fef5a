// SPDX-License-Identifier: Apache-2.0
#include "report/html/code_parts.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "report/html/code_declarations.hpp"
#include "report/html/code_tokens.hpp"

namespace aisp::report {
namespace {

struct Function {
  CodePart part;
  bool is_of_class = false;
  std::vector<std::string> scopes;  // namespaces and classes around it, the outermost first
  Names mentions;                   // names in it, "a::b" where they are qualified
};

// A variable, a constant or another name for a type, outside of functions: what it mentions is what it stands for.
struct Alias {
  Names names, mentions;
};

struct Contents {
  std::vector<Function> functions;
  std::vector<Alias> aliases;
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

  Contents contents() {
    std::size_t head = 0;
    for (std::size_t i = 0; i < code_.size(); ++i) {
      const std::string_view word = at(i);
      if (word == ";") add_alias(head, i);
      if (word == ";" || word == "}" || code_[i].kind == TokenKind::directive || is_label(i)) head = i + 1;
      while (!scopes_.empty() && i > scopes_.back().end) scopes_.pop_back();
      if (word != "{") continue;
      if (in_parentheses(head, i)) {  // an argument by default
        i = closing(i);
        continue;
      }
      if (!opens_scope(head, i)) {
        const std::size_t end = closing(i);
        if (const std::size_t name = name_in(head, i); name < i) add(head, i, end, name);
        else add_alias(head, end);
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
    for (std::size_t i = 1; i < code_.size(); ++i)
      if (code_[i].kind == TokenKind::name && at(i).ends_with('_') && at(i + 1) == "{" && (at(i - 1) == "," || at(i - 1) == ":"))
        add_initialiser(i);
    std::erase_if(found_.functions, [&](const Function& f) { return classes_.contains(f.part.name); });
    return std::move(found_);
  }

 private:
  std::string_view at(std::size_t i) const { return i < code_.size() ? text_of(source_, code_[i]) : std::string_view{}; }

  bool is_label(std::size_t i) const {
    return at(i) == ":" && i > 0 && (at(i - 1) == "public" || at(i - 1) == "private" || at(i - 1) == "protected");
  }

  bool in_parentheses(std::size_t head, std::size_t end) const {
    int depth = 0;
    for (std::size_t i = head; i < end; ++i) depth += at(i) == "(" ? 1 : at(i) == ")" ? -1 : 0;
    return depth > 0;
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
    found_.functions.push_back(std::move(function));
  }

  // Adds the names of the statement between two places: those before "=", "{", "," and its end.
  void add_alias(std::size_t head, std::size_t end) {
    Alias alias;
    int depth = 0;
    bool has_name = false;
    for (std::size_t i = after_template(head); i < end; ++i) {
      const std::string_view word = at(i), next = i + 1 < end ? at(i + 1) : std::string_view{";"};
      if (code_[i].kind == TokenKind::name) {
        const bool ends = next == "=" || next == "{" || next == "[" || next == "," || next == ";";
        if (depth == 0 && ends && (!has_name || next != "{")) {
          alias.names.insert(std::string{word});
          has_name = next != ",";
        } else mention(alias, i);
      }
      depth += word == "<" || word == "(" || word == "{" ? 1 : word == ">" || word == ")" || word == "}" ? -1 : 0;
    }
    if (!alias.names.empty() && !alias.mentions.empty()) found_.aliases.push_back(std::move(alias));
  }

  // A member that a constructor initialises with what stands in braces.
  void add_initialiser(std::size_t member) {
    Alias alias{{std::string{at(member)}}, {}};
    for (std::size_t i = member + 1; i < closing(member + 1); ++i)
      if (code_[i].kind == TokenKind::name) mention(alias, i);
    if (!alias.mentions.empty()) found_.aliases.push_back(std::move(alias));
  }
  // A type brings its methods, whose scope is its name alone.
  void mention(Alias& alias, std::size_t i) const {
    alias.mentions.insert(name_at(i));
    alias.mentions.insert(std::string{at(i)});
  }

  std::string path_;
  std::string_view source_;
  std::vector<Token> all_, code_;
  Contents found_;
  Names classes_;
  std::vector<Scope> scopes_;
};

// Which functions the wanted names lead to, through other functions, and through aliases where that is asked.
std::vector<bool> reached(const Contents& all, Names wanted, bool through_aliases) {
  std::vector<bool> taken(all.functions.size(), false), followed(all.aliases.size(), !through_aliases);
  for (bool grew = true; grew;) {
    grew = false;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (taken[i] || !is_meant(all.functions[i], wanted)) continue;
      taken[i] = grew = true;
      wanted.insert(all.functions[i].mentions.begin(), all.functions[i].mentions.end());
    }
    for (std::size_t i = 0; i < followed.size(); ++i) {
      const Alias& alias = all.aliases[i];
      if (followed[i] || std::ranges::none_of(alias.names, [&](const std::string& name) { return wanted.contains(name); }))
        continue;
      followed[i] = grew = true;
      wanted.insert(alias.mentions.begin(), alias.mentions.end());
    }
  }
  return taken;
}

}  // namespace

std::vector<CodePart> parts_of_variant(const std::vector<SourceText>& files, const std::string& variant) {
  Contents all;
  for (const SourceText& file : files) {
    Contents found = Finder{file}.contents();
    std::ranges::move(found.functions, std::back_inserter(all.functions));
    std::ranges::move(found.aliases, std::back_inserter(all.aliases));
  }
  const Names wanted = entry_points(files, variant);
  const std::vector<bool> named = reached(all, wanted, false);
  std::vector<bool> taken = named;
  const auto has_kernel = [&] {
    for (std::size_t i = 0; i < taken.size(); ++i)
      if (taken[i] && all.functions[i].part.is_kernel) return true;
    return false;
  };
  // For an engine that is a member, or a table of kernels, the kernels it launches are enough.
  if (!wanted.empty() && !has_kernel()) {
    const std::vector<bool> behind_names = reached(all, wanted, true);
    for (std::size_t i = 0; i < taken.size(); ++i) taken[i] = named[i] || (behind_names[i] && all.functions[i].part.is_kernel);
  }
  std::vector<CodePart> parts;
  for (std::size_t i = 0; i < taken.size(); ++i)
    if (taken[i]) parts.push_back(all.functions[i].part);
  return parts;
}

std::vector<CodePart> kernels_of(const SourceText& file) {
  std::vector<CodePart> kernels;
  for (const Function& function : Finder{file}.contents().functions)
    if (function.part.is_kernel) kernels.push_back(function.part);
  return kernels;
}

}  // namespace aisp::report
