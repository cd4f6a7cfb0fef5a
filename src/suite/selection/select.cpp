// SPDX-License-Identifier: Apache-2.0
#include "suite/selection/select.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.hpp"
#include "base/text.hpp"

namespace aisp::suite {
namespace {

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// "7", "07" and "ch7" become "ch07"; everything else stays.
std::string chapter_name(std::string_view text) {
  const std::string_view number = text.substr(0, 2) == "ch" ? text.substr(2) : text;
  if (!all_digits(number) || number.size() > 2) return std::string{text};
  return fmt::format("ch{:0>2}", number);
}

bool is_chapter(std::string_view text) {
  const std::string name = chapter_name(text);
  return name.size() == 4 && name.substr(0, 2) == "ch" && all_digits(std::string_view{name}.substr(2));
}

bool matches(std::string_view target, const pair::Entry& entry) {
  if (target == "all") return true;
  const std::size_t colon = target.find(':');
  if (colon != std::string_view::npos)
    return base::glob_match(chapter_name(target.substr(0, colon)), entry.chapter) &&
           base::glob_match(target.substr(colon + 1), entry.name);
  if (is_chapter(target)) return chapter_name(target) == entry.chapter;
  return base::glob_match(target, entry.name) || base::glob_match(target, entry.chapter);
}

std::string known_chapters(std::span<const pair::Entry> registry) {
  std::vector<std::string> chapters;
  for (const pair::Entry& entry : registry)
    if (chapters.empty() || chapters.back() != entry.chapter) chapters.emplace_back(entry.chapter);
  return fmt::format("{}", fmt::join(chapters, ", "));
}

std::string advice_for(std::string_view target, std::span<const pair::Entry> registry) {
  if (is_chapter(target)) return fmt::format("there are pairs in {}", known_chapters(registry));
  const bool with_chapter = target.find(':') != std::string_view::npos;
  std::vector<std::string> names;
  for (const pair::Entry& entry : registry) names.push_back(with_chapter ? entry.target() : std::string{entry.name});
  const std::vector<std::string> near = base::nearest(names, target, 3);
  return near.empty() ? std::string{"aisp list-targets shows all"} : fmt::format("did you mean {}?", base::join(near, ", "));
}

// A name that does not exist is a slip of the pen; a glob that matches nothing is a selection of nothing.
[[noreturn]] void unknown(std::string_view target, std::span<const pair::Entry> registry) {
  if (base::is_glob(target))
    throw base::Error{base::Exit::nothing,
                      fmt::format("nothing selected: no pair matches '{}'; aisp list-targets shows all", target)};
  throw base::Error{base::Exit::usage, fmt::format("unknown target '{}'; {}", target, advice_for(target, registry))};
}

}  // namespace

std::vector<const pair::Entry*> select(std::span<const pair::Entry> registry, const std::vector<std::string>& targets) {
  if (registry.empty()) throw base::Error{base::Exit::nothing, "there are no pairs in this build"};
  std::vector<bool> chosen(registry.size(), targets.empty());
  for (const std::string& target : targets) {
    bool any = false;
    for (std::size_t i = 0; i < registry.size(); ++i)
      if (matches(target, registry[i])) chosen[i] = any = true;
    if (!any) unknown(target, registry);
  }
  std::vector<const pair::Entry*> selected;
  for (std::size_t i = 0; i < registry.size(); ++i)
    if (chosen[i]) selected.push_back(&registry[i]);
  return selected;
}

}  // namespace aisp::suite
