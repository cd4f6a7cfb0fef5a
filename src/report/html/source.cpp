// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "report/html/code_parts.hpp"
#include "report/html/code_tokens.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"

namespace aisp::report::html {
namespace {

using evidence::PairResult;
using evidence::VariantResult;
using evidence::VariantRole;

std::string file_id(std::string_view path) { return "file-" + id_of(path); }

std::string listing(std::string_view label, std::string_view css_class, const std::string& content) {
  return fmt::format("<pre{} tabindex=\"0\" aria-label=\"{}\">{}</pre>", css_class, escaped(label), content);
}

// The page has each file once, and its script takes the lines from there.
std::string shown(const CodePart& part) {
  const std::string place = fmt::format("{}:{}", part.path, part.line);
  const auto lines = std::count(part.text.begin(), part.text.end(), '\n') + (part.text.ends_with('\n') ? 0 : 1);
  return tag("div",
             tag("div",
                 (part.is_kernel ? "<span class=\"badge kernel\">kernel</span> " : std::string{}) + tag("b", escaped(part.name)) +
                     fmt::format(" <span class=\"place\">{}</span>", escaped(place)),
                 "class=\"head\"") +
                 listing(
                     place, "",
                     fmt::format("<code data-from=\"{}\" data-lines=\"{} {}\"></code>", file_id(part.path), part.line, lines)),
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

std::string side_by_side(const PairResult& pair, const VariantResult& right, const std::vector<SourceText>& files) {
  const std::vector<CodePart> a = parts_of_variant(files, pair.variants.front().name), b = parts_of_variant(files, right.name);
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
    std::vector<CodePart> own = parts_of_variant(files, variant.name);
    std::erase_if(own, [&](const CodePart& part) { return holds(a, part) || holds(b, part); });
    if (!own.empty()) text += folded(named(to_string(variant.role), variant.name), shown(own));
  }
  return text;
}

// Kernels stand out from the rest of the file.
std::string marked(const SourceText& file) {
  std::string code;
  std::size_t done = 0;
  for (const CodePart& kernel : kernels_of(file)) {
    const std::size_t begin = file.text.find(kernel.text, done);
    if (begin == std::string::npos) continue;
    code += highlighted(std::string_view{file.text}.substr(done, begin - done));
    code += tag("mark", highlighted(kernel.text));
    done = begin + kernel.text.size();
  }
  return code + highlighted(std::string_view{file.text}.substr(done));
}

}  // namespace

std::string source_part(const PairResult& pair, const PairSource& source) {
  std::string text = tag("h4", "Source");
  if (!source.missing.empty()) return text + tag("p", escaped(source.missing), "class=\"note\"");
  if (const VariantResult* right = beside_the_baseline(pair)) text += side_by_side(pair, *right, source.files);
  for (const SourceText& file : source.files)
    text += folded(fmt::format("Whole file <code>{}</code>", escaped(file.path)),
                   listing(file.path, " class=\"file\"",
                           fmt::format("<span class=\"numbers\" aria-hidden=\"true\"></span><code data-from=\"{}\"></code>",
                                       file_id(file.path))));
  return text;
}

std::string source_files(const HtmlReport& report) {
  std::map<std::string, const SourceText*> files;
  for (const PairResult& pair : report.run.pairs)
    if (const auto source = report.sources.find(pair.target); source != report.sources.end())
      for (const SourceText& file : source->second.files) files.emplace(file_id(file.path), &file);
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
