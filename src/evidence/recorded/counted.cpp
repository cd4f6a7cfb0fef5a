// SPDX-License-Identifier: Apache-2.0
#include "evidence/recorded/counted.hpp"

#include "evidence/profile/profile_fields.hpp"
#include "evidence/recorded/recorded_files.hpp"

namespace aisp::evidence {

static constexpr std::string_view counter_records = "counters";

AISP_DESCRIBE(CountedVariant, name, role, counters)
AISP_DESCRIBE(Counted, schema_version, target, hardware, lesson, source_digest, recorded, variants)

std::vector<std::string> record_counters(const std::filesystem::path& folder, const SuiteResult& suite,
                                         const Manifest& manifest) {
  std::vector<std::string> targets;
  for (const PairResult& pair : suite.pairs) {
    if (not_recordable(pair)) continue;
    Counted counted{.target = pair.target,
                    .lesson = pair.lesson,
                    .hardware = hardware_key(pair, manifest),
                    .source_digest = pair.source_digest};
    for (const VariantResult& variant : pair.variants) {
      if (!variant.counters) continue;
      counted.variants.push_back({variant.name, variant.role, *variant.counters});
      counted.variants.back().counters.report.clear();  // it stays in the run's folder
    }
    if (counted.variants.empty() || counted.hardware.empty()) continue;
    counted.recorded = recorded_of(pair, manifest);
    write_record(folder, counter_records, counted);
    targets.push_back(pair.target);
  }
  return targets;
}

}  // namespace aisp::evidence
