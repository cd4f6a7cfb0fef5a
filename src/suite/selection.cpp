// SPDX-License-Identifier: Apache-2.0
#include "suite/selection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/text.hpp"
#include "evidence/expectations/analysis.hpp"
#include "pair/code.hpp"
#include "pair/sizes.hpp"

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

using base::Error;
using base::Exit;

// Returns "--size m=4096", or another origin of the size.
std::string who_said(const Configuration& configuration, const std::string& sizes) {
  const auto origin = configuration.origins.find("size");
  const bool elsewhere = origin != configuration.origins.end() && origin->second != "flag";
  return fmt::format("{} {}", elsewhere ? origin->second + ": size" : "--size", sizes);
}

void check_values(const pair::Entry& entry, const Configuration& configuration) {
  for (const auto& [name, values] : configuration.sizes)
    for (const std::uint64_t value : values)
      if (const auto wrong = pair::wrong_size(*entry.pair, {{name, value}}))
        throw Error{Exit::usage, fmt::format("{} of {}: {}", who_said(configuration, fmt::format("{}={}", name, value)),
                                             entry.target(), *wrong)};
}

void check_case(const pair::Entry& entry, const Case& each, const Configuration& configuration) {
  for (const auto& [name, value] : pair::parse_sizes(each.sizes))
    if (const auto set = configuration.sizes.find(name); set != configuration.sizes.end())
      throw Error{Exit::usage,
                  fmt::format("{} together with --sweep: the case {} of {} sets {} to {}; leave one out",
                              who_said(configuration, pair::size_lists_text({*set})), each.name, entry.target(), name, value)};
}

// Names of results are names of folders, too.
constexpr std::size_t longest_name = 128;

void check_points(const pair::Entry& entry, const Configuration& configuration) {
  const std::size_t grid = pair::grid_size(configuration.sizes), cases = configuration.sweep ? entry.pair->sweep.size() : 1;
  const std::string sizes = pair::size_lists_text(configuration.sizes);
  if (grid * cases > pair::most_points)
    throw Error{Exit::usage,
                fmt::format("{} together with --sweep: {} values for each of the {} cases of {} are more than {} points",
                            who_said(configuration, sizes), grid, cases, entry.target(), pair::most_points)};
  for (const Point& point : points_of(entry, configuration))
    if (point.name.size() > longest_name)
      throw Error{Exit::usage, fmt::format("{} of {}: the name {} is longer than {} letters; sweep fewer sizes at once",
                                           who_said(configuration, sizes), entry.target(), point.name, longest_name)};
}

constexpr double slack = 0.05;

// From 39 pairs on an H100 with default settings: 3.9 s and 54 times the sum of the medians explain 65 % of the variance of their
// times. A pair without a record is assumed to be average.
constexpr double seconds_of_any_pair = 4, executions = 50;
constexpr int seconds_without_record = 6;

std::string hash_of(const std::string& target, int shard) { return base::sha256_hex(fmt::format("{} {}", target, shard)); }

// Returns the shards in the pair's order of preference. The hashes of the others stay when one is added.
std::vector<int> preferences(const std::string& target, int shards) {
  std::vector<std::pair<std::string, int>> hashes;
  for (int shard = 0; shard < shards; ++shard) hashes.emplace_back(hash_of(target, shard), shard);
  std::ranges::sort(hashes);
  std::vector<int> order;
  for (const auto& [hash, shard] : hashes) order.push_back(shard);
  return order;
}

// Returns a digest of everything that shards of one run must have in common.
std::string digest_of(const std::vector<const pair::Entry*>& selected, const std::vector<int>& shards) {
  base::Sha256 digest;
  for (std::size_t i = 0; i < selected.size(); ++i) {
    digest.update(fmt::format("{} {}\n", selected[i]->target(), shards[i]));
    for (const pair::CodeDigest& code : pair::code_of(*selected[i]).digests) digest.update(code.digest);
  }
  return digest.hex().substr(0, 16);
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

void check_sizes(const std::vector<const pair::Entry*>& selected, const Configuration& configuration) {
  for (const pair::Entry* entry : selected) {
    check_values(*entry, configuration);
    if (configuration.sweep)
      for (const Case& each : entry->pair->sweep) check_case(*entry, each, configuration);
    check_points(*entry, configuration);
  }
}

std::vector<const pair::Entry*> with_cases(std::vector<const pair::Entry*> selected, const Configuration& configuration) {
  if (!configuration.sweep) return selected;
  std::erase_if(selected, [](const pair::Entry* entry) { return entry->pair->sweep.empty(); });
  if (selected.empty())
    throw Error{Exit::nothing,
                "nothing selected: no selected pair declares cases for --sweep; aisp list-targets --json names those that do"};
  return selected;
}

std::vector<Point> points_of(const pair::Entry& entry, const Configuration& configuration) {
  std::vector<Point> points;
  const auto add = [&](const std::string& name, const pair::SizeMap& sizes) {
    for (pair::SizeMap& at : pair::grid_of(configuration.sizes)) {
      const std::string own = pair::point_name(configuration.sizes, at);
      at.insert(sizes.begin(), sizes.end());
      points.push_back({name + (name.empty() || own.empty() ? "" : "_") + own, std::move(at)});
    }
  };
  if (!configuration.sweep) add("", {});
  else
    for (const Case& each : entry.pair->sweep) add(std::string{each.name}, pair::parse_sizes(each.sizes));
  return points;
}

std::vector<int> cut(const std::vector<ShardedPair>& pairs, int shards) {
  std::vector<std::size_t> order(pairs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::tuple{-pairs[i].seconds, pairs[i].target}; });
  std::int64_t total = 0;
  for (const ShardedPair& pair : pairs) total += pair.seconds;
  const double most = (1 + slack) * static_cast<double>(total) / shards;
  std::vector<std::int64_t> loads(static_cast<std::size_t>(shards), 0);
  std::vector<int> chosen(pairs.size(), 0);
  std::size_t left = pairs.size();
  for (const std::size_t i : order) {
    const std::vector<int> wanted = preferences(pairs[i].target, shards);
    const auto load = [&](int shard) { return loads[static_cast<std::size_t>(shard)]; };
    const auto empty = static_cast<std::size_t>(std::ranges::count(loads, 0));
    const auto has_room = [&](int shard) {
      return load(shard) == 0 || (left > empty && static_cast<double>(load(shard) + pairs[i].seconds) <= most);
    };
    auto found = std::ranges::find_if(wanted, has_room);
    if (found == wanted.end()) found = std::ranges::min_element(wanted, {}, load);
    chosen[i] = *found;
    loads[static_cast<std::size_t>(*found)] += pairs[i].seconds;
    --left;
  }
  return chosen;
}

int expected_seconds(const pair::Entry& entry, const std::vector<evidence::Expectations>& recorded) {
  double slowest_ms = 0;
  for (const evidence::Expectations& file : recorded) {
    const auto found = file.pairs.find(std::string{entry.name});
    if (file.chapter != entry.chapter || found == file.pairs.end()) continue;
    double sum_ms = found->second.baseline_median_ms;
    for (const auto& [name, variant] : found->second.variants) sum_ms += variant.median_ms;
    slowest_ms = std::max(slowest_ms, sum_ms);
  }
  if (slowest_ms == 0) return seconds_without_record;
  // An hour is longer than any pair may run, and keeps sums of damaged records within an int.
  return static_cast<int>(std::lround(std::min(seconds_of_any_pair + executions * slowest_ms / 1e3, 3600.0)));
}

Part take_part(const std::vector<const pair::Entry*>& selected, const Configuration& configuration,
               const std::vector<evidence::Expectations>& recorded) {
  const ShardNumber wanted = configuration.shard;
  if (static_cast<std::size_t>(wanted.count) > selected.size())
    throw base::Error{base::Exit::usage,
                      fmt::format("--shard {}/{}: {} selected, which is not enough for {}; use fewer shards", wanted.index,
                                  wanted.count, selected.size() == 1 ? "1 pair is" : fmt::format("{} pairs are", selected.size()),
                                  base::plural(static_cast<std::size_t>(wanted.count), "shard"))};
  std::vector<ShardedPair> pairs;
  for (const pair::Entry* entry : selected) {
    const auto points = static_cast<std::int64_t>(points_of(*entry, configuration).size());
    pairs.push_back({entry->target(), points * expected_seconds(*entry, recorded)});
  }
  const std::vector<int> shards = cut(pairs, wanted.count);
  Part part{.shard = {wanted.index, wanted.count, digest_of(selected, shards)}, .selected = {}};
  for (std::size_t i = 0; i < selected.size(); ++i) {
    part.all_seconds += pairs[i].seconds;
    if (shards[i] + 1 != wanted.index) continue;
    part.selected.push_back(selected[i]);
    part.seconds += pairs[i].seconds;
  }
  return part;
}

}  // namespace aisp::suite
