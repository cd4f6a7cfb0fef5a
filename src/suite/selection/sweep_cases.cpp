// SPDX-License-Identifier: Apache-2.0
#include "suite/selection/sweep_cases.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"
#include "pair/sizes.hpp"

namespace aisp::suite {
namespace {

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

}  // namespace

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

}  // namespace aisp::suite
