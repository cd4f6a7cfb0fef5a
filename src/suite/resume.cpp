// SPDX-License-Identifier: Apache-2.0
#include "suite/resume.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "machine/needs.hpp"
#include "pair/sizes.hpp"
#include "suite/records.hpp"

namespace aisp::suite {
namespace {

std::string as_text(const nlohmann::json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::vector<std::string> as_values(const nlohmann::json& value) {
  if (!value.is_array()) return {as_text(value)};
  std::vector<std::string> values;
  for (const nlohmann::json& item : value) values.push_back(as_text(item));
  return values;
}

bool was_set(const nlohmann::json& setting) { return setting.is_object() && setting.value("origin", "default") != "default"; }

// Small GPUs scale the workload down by themselves.
bool has_scale(const evidence::PairResult& earlier, const Placement& placement, double scale, const machine::Machine& machine) {
  if (placement.choices.empty()) return earlier.scale == scale;
  return std::ranges::any_of(placement.choices, [&](const std::vector<int>& gpus) {
    return earlier.scale == scale * machine::memory_scale(machine, gpus);
  });
}

bool has_sizes(const evidence::PairResult& earlier, const Pair& pair, const run::Request& wish) {
  return earlier.sizes_set == !wish.sizes.empty() && earlier.sizes == pair::sizes_in_effect(pair, wish.sizes, earlier.scale);
}

}  // namespace

std::string other_settings(const evidence::PairResult& earlier, const Placement& placement, const run::Request& wish,
                           const machine::Machine& machine) {
  std::vector<std::string> others;
  if (!has_scale(earlier, placement, wish.scale, machine)) others.push_back(fmt::format("scale {}", earlier.scale));
  if (!has_sizes(earlier, *placement.entry->pair, wish))
    others.push_back(earlier.sizes.empty() ? "sizes not known" : fmt::format("sizes {}", evidence::sizes_text(earlier)));
  if (earlier.seed != wish.seed) others.push_back(fmt::format("seed {}", earlier.seed));
  if (earlier.timing_mode != run::to_string(wish.mode)) others.push_back(fmt::format("mode {}", earlier.timing_mode));
  if (earlier.reproducible != wish.reproducible) others.emplace_back(wish.reproducible ? "not reproducible" : "reproducible");
  if (earlier.alternated != wish.alternate) others.emplace_back(wish.alternate ? "not alternating" : "alternating");
  return base::join(others, ", ");
}

Resumed read_resumed(const std::filesystem::path& folder) {
  Resumed resumed;
  const std::filesystem::path file = folder / configuration_file;
  const auto text = base::try_read_file(file, 64 << 20);
  if (!text) return resumed;
  try {
    const nlohmann::json json = evidence::parse_json(*text, file.string());
    if (const auto targets = json.find("targets"); targets != json.end()) targets->get_to(resumed.targets);
    for (const Setting& setting : settings()) {
      // Where the run lies is known, and the name of a new one has no meaning here.
      if (setting.name == "artifacts-dir" || setting.name == "run-id") continue;
      const auto found = json.find(std::string{setting.name});
      if (found != json.end() && was_set(*found))
        apply(resumed.configuration, setting.name, as_values(found->at("value")), "resumed run");
    }
  } catch (const nlohmann::json::exception& error) {
    throw base::Error{base::Exit::usage,
                      fmt::format("cannot continue {}: {} is damaged ({})", folder.string(), configuration_file, error.what())};
  }
  return resumed;
}

}  // namespace aisp::suite
