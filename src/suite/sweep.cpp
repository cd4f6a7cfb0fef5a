// SPDX-License-Identifier: Apache-2.0
#include "suite/sweep.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"
#include "pair/sizes.hpp"

namespace aisp::suite {
namespace {

using base::Error;
using base::Exit;

// "--size m=4096", or where else they were set.
std::string who_said(const Configuration& configuration, const pair::SizeMap& sizes) {
  const auto origin = configuration.origins.find("size");
  const bool elsewhere = origin != configuration.origins.end() && origin->second != "flag";
  return fmt::format("{} {}", elsewhere ? origin->second + ": size" : "--size", pair::sizes_text(sizes));
}

void check_case(const pair::Entry& entry, const Case& each, const Configuration& configuration) {
  for (const auto& [name, value] : pair::parse_sizes(each.sizes))
    if (const auto set = configuration.sizes.find(name); set != configuration.sizes.end())
      throw Error{Exit::usage, fmt::format("{} together with --sweep: the case {} of {} sets {} to {}; leave one out",
                                           who_said(configuration, {*set}), each.name, entry.target(), name, value)};
}

}  // namespace

void check_sizes(const std::vector<const pair::Entry*>& selected, const Configuration& configuration) {
  for (const pair::Entry* entry : selected) {
    if (const auto wrong = pair::wrong_size(*entry->pair, configuration.sizes))
      throw Error{Exit::usage,
                  fmt::format("{} of {}: {}", who_said(configuration, configuration.sizes), entry->target(), *wrong)};
    if (configuration.sweep)
      for (const Case& each : entry->pair->sweep) check_case(*entry, each, configuration);
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

}  // namespace aisp::suite
