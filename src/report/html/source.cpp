// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"

namespace aisp::report::html {
namespace {

using evidence::PairResult;
using evidence::VariantResult;
using evidence::VariantRole;

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

namespace {

std::string file_id(std::string_view path) { return "file-" + id_of(path); }

std::string listing(std::string_view label, std::string_view css_class, const std::string& content) {
  return fmt::format("<pre{} tabindex=\"0\" aria-label=\"{}\">{}</pre>", css_class, escaped(label), content);
}

// The page has each file once, and its script takes the lines from there.
std::string shown(const CodePart& part) {
  const std::string place = fmt::format("{}:{}", part.path, part.line);
  return tag("div",
             tag("div",
                 (part.is_kernel ? "<span class=\"badge kernel\">kernel</span> " : std::string{}) + tag("b", escaped(part.name)) +
                     fmt::format(" <span class=\"place\">{}</span>", escaped(place)),
                 "class=\"head\"") +
                 listing(place, "",
                         fmt::format("<code data-from=\"{}\" data-lines=\"{} {}\"></code>", file_id(part.path), part.line,
                                     part.lines)),
             part.is_kernel ? "class=\"part kernel\"" : "class=\"part\"") +
         "\n";
}

std::string shown(const std::vector<CodePart>& parts) {
  std::string text;
  for (const CodePart& part : parts) text += shown(part);
  return text;
}

bool holds(const std::vector<CodePart>& parts, const CodePart& part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

const VariantResult* beside_the_baseline(const PairResult& pair) {
  const VariantResult* chosen = nullptr;
  for (const VariantResult& variant : pair.variants) {
    if (variant.name == pair.lesson) return &variant;
    if (chosen == nullptr && variant.role == VariantRole::optimized) chosen = &variant;
  }
  return chosen;
}

bool holds_kernel(const std::vector<CodePart>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](const CodePart& part) { return part.is_kernel; });
}

// Every side shows a kernel: its own, or else the one that it shares with the other side and launches in another way.
std::string side(const std::string& title, const std::vector<CodePart>& own, const std::vector<CodePart>& all) {
  std::string text = tag("h5", title) + shown(own);
  if (!holds_kernel(own) && holds_kernel(all)) {
    std::vector<CodePart> kernels = all;
    std::erase_if(kernels, [](const CodePart& part) { return !part.is_kernel; });
    text += tag("p", "Its kernel is the other side's too; what differs is how it is launched and with which template arguments.",
                "class=\"note\"") +
            shown(kernels);
  } else if (!holds_kernel(all)) {
    text += tag("p",
                "No kernel that these files compile is launched: the work is a library's, the host's, or of code that is "
                "compiled at run time.",
                "class=\"note\"");
  }
  return tag("div", text, "class=\"side\"");
}

std::string named(std::string_view role, const std::string& variant) {
  return fmt::format("{} <code>{}</code>", role, escaped(variant));
}

// In the order of the files; nothing where the declaration of the pair does not name the variant.
std::vector<CodePart> parts_of_variant(const PairSource& source, const std::string& variant) {
  const auto found = source.variants.find(variant);
  if (found == source.variants.end()) return {};
  std::vector<CodePart> parts;
  std::size_t place = 0;
  for (const PaneSource& file : source.files)
    for (const CodePart& function : file.functions)
      if (place < found->second.size() && found->second[place++] == '1') parts.push_back(function);
  return parts;
}

std::string side_by_side(const PairResult& pair, const VariantResult& right, const PairSource& source) {
  const std::vector<CodePart> a = parts_of_variant(source, pair.variants.front().name), b = parts_of_variant(source, right.name);
  std::vector<CodePart> only_a, only_b, both;
  for (const CodePart& part : a) (holds(b, part) ? both : only_a).push_back(part);
  for (const CodePart& part : b)
    if (!holds(a, part)) only_b.push_back(part);
  if (a.empty() && b.empty())
    return tag("p", "The declaration does not tell which functions belong to which variant; the whole file is below.",
               "class=\"note\"");
  std::string text = tag("div",
                         side(named("baseline", pair.variants.front().name), only_a, a) +
                             side(named(right.name == pair.lesson ? "lesson" : "optimized", right.name), only_b, b),
                         "class=\"sides\"");
  if (!both.empty()) text += folded(fmt::format("Used by both ({})", both.size()), shown(both));
  for (const VariantResult& variant : pair.variants) {
    if (&variant == &pair.variants.front() || &variant == &right) continue;
    std::vector<CodePart> own = parts_of_variant(source, variant.name);
    std::erase_if(own, [&](const CodePart& part) { return holds(a, part) || holds(b, part); });
    if (!own.empty()) text += folded(named(to_string(variant.role), variant.name), shown(own));
  }
  return text;
}

// Kernels stand out from the rest of the file.
std::string marked(const PaneSource& file) {
  std::string_view rest = file.text;
  // Returns the next lines, as many as asked for.
  const auto lines = [&rest](int count) {
    std::size_t size = 0;
    for (; count > 0 && size < rest.size(); --count) size = std::min(rest.find('\n', size), rest.size() - 1) + 1;
    const std::string_view text = rest.substr(0, size);
    rest.remove_prefix(size);
    return text;
  };
  std::string code;
  int line = 1;
  for (const CodePart& kernel : file.functions) {
    if (!kernel.is_kernel || kernel.line < line) continue;
    code += highlighted(lines(kernel.line - line));
    const std::string_view text = lines(kernel.lines), inside = text.substr(0, text.find_last_not_of('\n') + 1);
    code += tag("mark", highlighted(inside)) + std::string{text.substr(inside.size())};
    line = kernel.line + kernel.lines;
  }
  return code + highlighted(rest);
}

}  // namespace

std::string source_part(const PairResult& pair, const PairSource& source) {
  std::string text = tag("h4", "Source");
  if (!source.missing.empty()) return text + tag("p", escaped(source.missing), "class=\"note\"");
  if (const VariantResult* right = beside_the_baseline(pair)) text += side_by_side(pair, *right, source);
  for (const PaneSource& file : source.files)
    text += folded(fmt::format("Whole file <code>{}</code>", escaped(file.path)),
                   listing(file.path, " class=\"file\"",
                           fmt::format("<span class=\"numbers\" aria-hidden=\"true\"></span><code data-from=\"{}\"></code>",
                                       file_id(file.path))));
  return text;
}

std::string source_files(const HtmlReport& report) {
  std::map<std::string, const PaneSource*> files;
  for (const PairResult& pair : report.run.pairs)
    if (const auto source = report.sources.find(pair.target); source != report.sources.end())
      for (const PaneSource& file : source->second.files) files.emplace(file_id(file.path), &file);
  constexpr std::size_t at_once = 16;  // a part that is opened for one file is decompressed in a few milliseconds
  std::string text;
  std::vector<std::pair<std::string, std::string>> part;
  for (const auto& [id, file] : files) {
    part.emplace_back(id, marked(*file));
    if (part.size() < at_once && id != files.rbegin()->first) continue;
    text += stored_together(part);
    part.clear();
  }
  return text;
}

}  // namespace aisp::report::html

namespace aisp::report {

void PairSource::add(PaneSource file, const std::string& functions) {
  std::istringstream lines{functions};
  int end = 0;
  for (std::string kind, name; lines >> kind;) {
    if (kind == "variant") {
      lines >> name;
      lines >> variants[name];
      continue;
    }
    CodePart part{.path = file.path, .is_kernel = kind == "kernel"};
    lines >> part.line >> part.lines >> part.name;
    part.line += end;
    end = part.line + part.lines - 1;
    file.functions.push_back(std::move(part));
  }
  files.push_back(std::move(file));
}

}  // namespace aisp::report
