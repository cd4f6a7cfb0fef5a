// SPDX-License-Identifier: Apache-2.0
#include "run/parent/tool_profiles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/system/files.hpp"
#include "evidence/limits.hpp"
#include "profile/tools.hpp"

namespace aisp::run {
namespace {

using evidence::Status;
using evidence::VariantResult;

class ToolProfiles {
 public:
  ToolProfiles(evidence::PairResult& result, const Request& request, const ToolSettings& settings)
      : result_{result}, request_{request}, settings_{settings} {}

  void run() {
    // If CUPTI reads counters, a variant without them cannot be counted: ncu would hold its kernels back just as well. A refusal
    // by the driver holds for both and was reported.
    if (std::ranges::none_of(result_.variants, has_counters) && std::ranges::none_of(result_.lost, is_refusal))
      each("ncu", [&](VariantResult& variant) { return ncu(variant); });
    if (request_.counters == CounterLevel::full) each("nsys", [&](VariantResult& variant) { return nsys(variant); });
  }

 private:
  static bool has_counters(const VariantResult& variant) { return variant.counters.has_value(); }

  static bool is_refusal(const evidence::Lost& lost) { return lost.kind == evidence::LostKind::counters_refused; }

  // Runs a tool on each variant; if the first fails for a reason that all share, it reports one line and does not spend minutes
  // on each.
  template <class Body>
  void each(const char* tool, const Body& body) {
    std::string said;
    for (VariantResult& variant : result_.variants) {
      if (variant.status != Status::passed || (settings_.interrupted && settings_.interrupted())) continue;
      const profile::ToolOutcome outcome = body(variant);
      const std::string& failure = outcome.failure;
      if (failure.empty() || failure == said) continue;
      const bool of_all = outcome.of_all;
      const std::string whose = of_all ? std::string{} : fmt::format(" of {}", variant.name);
      result_.lost.push_back({evidence::LostKind::tool_profile, fmt::format("no {} profile{}: {}", tool, whose, failure)});
      if (of_all) return;
      said = failure;
    }
  }

  profile::ToolRun tool_run(const VariantResult& variant, double limit_s) const {
    const std::filesystem::path folder = settings_.folder / settings_.pair_folder / "profiles";
    base::make_directories(folder);
    return {.program = {settings_.executable, "__execute", nlohmann::json(request_).dump(), variant.name},
            .report = std::filesystem::absolute(folder / variant.name),
            .limit_s = limit_s,
            .interrupted = settings_.interrupted};
  }

  profile::ToolOutcome ncu(VariantResult& variant) {
    const auto set = request_.counters == CounterLevel::full ? profile::MetricSet::full : profile::MetricSet::deep;
    profile::ToolOutcome outcome = profile::run_ncu(tool_run(variant, settings_.ncu_limit_s), set);
    if (!outcome.failure.empty()) return outcome;
    variant.counters = outcome.counters;
    variant.counters->report = fmt::format("{}/profiles/{}", settings_.pair_folder, outcome.report.filename().string());
    return outcome;
  }

  profile::ToolOutcome nsys(VariantResult& variant) {
    profile::ToolOutcome outcome = profile::run_nsys(tool_run(variant, settings_.nsys_limit_s));
    if (outcome.failure.empty())
      variant.nsys_report = fmt::format("{}/profiles/{}", settings_.pair_folder, outcome.report.filename().string());
    return outcome;
  }

  evidence::PairResult& result_;
  const Request& request_;
  const ToolSettings& settings_;
};

}  // namespace

void add_tool_profiles(evidence::PairResult& result, const Request& request, const ToolSettings& settings) {
  if (request.counters == CounterLevel::none || result.device == evidence::Device::host || result.status != Status::passed)
    return;
  ToolProfiles{result, request, settings}.run();
  evidence::name_limits(result);
}

}  // namespace aisp::run
