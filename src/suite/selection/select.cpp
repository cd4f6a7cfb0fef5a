// SPDX-License-Identifier: Apache-2.0
#include "suite/selection/select.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/text.hpp"
#include "evidence/expectations/analysis.hpp"

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

template <class Named>
bool matches(std::string_view target, const Named& entry) {
  if (target == "all") return true;
  const std::size_t colon = target.find(':');
  if (colon != std::string_view::npos)
    return base::glob_match(chapter_name(target.substr(0, colon)), entry.chapter) &&
           base::glob_match(target.substr(colon + 1), entry.name);
  if (is_chapter(target)) return chapter_name(target) == entry.chapter;
  return base::glob_match(target, entry.name) || base::glob_match(target, entry.chapter);
}

// "ch07" and "transpose" of each pair, also of those that are not built.
using Names = std::set<std::pair<std::string, std::string>>;

std::string known_chapters(const Names& pairs) {
  std::set<std::string> chapters;
  for (const auto& [chapter, name] : pairs) chapters.insert(chapter);
  return fmt::format("{}", fmt::join(chapters, ", "));
}

std::string advice_for(std::string_view target, const Names& pairs) {
  if (is_chapter(target)) return fmt::format("there are pairs in {}", known_chapters(pairs));
  const bool with_chapter = target.find(':') != std::string_view::npos;
  std::vector<std::string> names;
  for (const auto& [chapter, name] : pairs) names.push_back(with_chapter ? chapter + ":" + name : name);
  const std::vector<std::string> near = base::nearest(names, target, 3);
  return near.empty() ? std::string{"aisp list-targets shows all"} : fmt::format("did you mean {}?", base::join(near, ", "));
}

// Throws: an unknown name is a typing error; a glob without a match selects nothing.
[[noreturn]] void unknown(std::string_view target, const Names& pairs) {
  if (base::is_glob(target))
    throw base::Error{base::Exit::nothing,
                      fmt::format("nothing selected: no pair matches '{}'; aisp list-targets shows all", target)};
  throw base::Error{base::Exit::usage, fmt::format("unknown target '{}'; {}", target, advice_for(target, pairs))};
}

// Marks the pairs that the target names.
template <class Named>
bool choose(std::string_view target, std::span<const Named> all, std::vector<bool>& chosen) {
  bool any = false;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (matches(target, all[i])) chosen[i] = any = true;
  return any;
}

template <class Named>
std::vector<const Named*> chosen_of(std::span<const Named> all, const std::vector<bool>& chosen) {
  std::vector<const Named*> list;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (chosen[i]) list.push_back(&all[i]);
  return list;
}

}  // namespace

Selection select(std::span<const pair::Entry> registry, std::span<const pair::NotBuilt> not_built,
                 const std::vector<std::string>& targets) {
  if (registry.empty() && not_built.empty()) throw base::Error{base::Exit::nothing, "there are no pairs in this build"};
  std::vector<bool> built(registry.size(), targets.empty()), left_out(not_built.size(), targets.empty());
  for (const std::string& target : targets) {
    const bool any_built = choose(target, registry, built);
    if (choose(target, not_built, left_out) || any_built) continue;
    Names names;
    for (const pair::Entry& entry : registry) names.emplace(entry.chapter, entry.name);
    for (const pair::NotBuilt& pair : not_built) names.emplace(pair.chapter, pair.name);
    unknown(target, names);
  }
  return {chosen_of(registry, built), chosen_of(not_built, left_out)};
}

std::vector<const pair::Entry*> select(std::span<const pair::Entry> registry, const std::vector<std::string>& targets) {
  return select(registry, {}, targets).built;
}

Selection select_here(const std::vector<std::string>& targets) { return select(pair::registry(), pair::not_built(), targets); }

std::string build_command(const std::vector<std::string>& targets) {
  if (targets.empty() || std::ranges::find(targets, "all") != targets.end()) return "./setup.sh";
  std::vector<std::string> wanted = base::split(pair::chosen_at_build(), ',');
  for (const std::string& target : targets)
    if (std::ranges::find(wanted, target) == wanted.end()) wanted.push_back(target);
  std::erase(wanted, "");
  const std::string list = base::join(wanted, ",");
  return "./setup.sh --chapters " + (list.find_first_of("*?[ ") == std::string::npos ? list : "'" + list + "'");
}

std::string not_built_reason(const std::vector<std::string>& targets) {
  return fmt::format("{}; {} builds it", evidence::not_built, build_command(targets));
}

std::string built_part() {
  const std::size_t here = pair::registry().size(), left_out = pair::not_built().size();
  if (left_out == 0) return {};
  return fmt::format("{} of {}, chosen with --chapters {}", here, here + left_out, pair::chosen_at_build());
}

void demand_built(const Selection& selection, const std::vector<std::string>& targets) {
  if (!selection.built.empty() || selection.not_built.empty()) return;
  const std::size_t more = selection.not_built.size() - 1;
  throw base::Error{base::Exit::nothing, fmt::format("{}{} not built; {} builds {}", selection.not_built.front()->target(),
                                                     more == 0 ? " is" : fmt::format(" and {} more are", more),
                                                     build_command(targets), more == 0 ? "it" : "them")};
}

std::vector<evidence::PairResult> results_of_not_built(const Selection& selection, const std::vector<std::string>& targets) {
  std::vector<evidence::PairResult> results;
  for (const pair::NotBuilt* pair : selection.not_built) {
    evidence::PairResult result;
    result.target = pair->target();
    result.chapter = pair->chapter;
    result.name = pair->name;
    result.status = evidence::Status::skipped;
    result.reason = not_built_reason(targets);
    result.started_utc = base::utc_now();
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace aisp::suite
