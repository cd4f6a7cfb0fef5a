// SPDX-License-Identifier: Apache-2.0
#include "machine/gpu_specs.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"
#include "machine/gpu_specs_table.hpp"

namespace aisp::machine {
namespace {

// "RTX 4090", "rtx_4090" and "rtx-4090" are the same word.
std::string plain(std::string_view word) {
  std::string text;
  for (const char c : base::lower(word))
    if (c != ' ' && c != '-' && c != '_') text += c;
  return text;
}

// "NVIDIA H200" and "NVIDIA GeForce RTX 4090", as drivers name them, and the products' names; not "NVIDIA H200 NVL".
bool is_name_of(const GpuSpec& spec, const std::string& wanted) {
  const std::string reported = plain(spec.reported);
  return wanted == plain(spec.name) || wanted == reported || wanted == "nvidia" + reported ||
         wanted == "nvidiageforce" + reported;
}

[[noreturn]] void unknown_gpu(std::string_view word, std::string_view otherwise) {
  std::vector<std::string> names;
  for (const GpuSpec* spec : all_specs()) names.emplace_back(spec->key);
  const std::vector<std::string> near = base::nearest(names, base::lower(word));
  throw base::Error{base::Exit::usage,
                    "unknown GPU '" + std::string{word} + "'; " +
                        (near.empty() ? "known are " + base::join(names, ", ") : "the nearest are " + base::join(near, ", ")) +
                        std::string{otherwise}};
}

}  // namespace

std::string_view text_of(Reading reading) {
  switch (reading) {
    case Reading::stated: break;
    case Reading::half: return "half of the rate with sparsity";
    case Reading::share: return "one GPU's share of a total";
    case Reading::half_share: return "one GPU's share of half the rate with sparsity";
    case Reading::derived: return "not stated; from the FP4 rate, 1 : 2 : 4 for 16, 8 and 4 bits";
    case Reading::slow_fp64: return "1/64 of the fp32 rate";
    case Reading::rt_cores: return "one for each ray tracing core";
    case Reading::dies: return "all dies together; each of them uses its own";
  }
  return "";
}

std::string citation(const Fact& fact) {
  const std::string title{fact.source->title};
  return fact.reading == Reading::stated ? title : title + " (" + std::string{text_of(fact.reading)} + ")";
}

std::vector<NamedFact> facts_of(const GpuSpec& spec) {
  std::vector<NamedFact> facts = {{"memory_bytes", &spec.memory_bytes},
                                  {"device_bytes", &spec.device_bytes},
                                  {"bandwidth_bytes_s", &spec.memory_bytes_s},
                                  {"link_bytes_s", &spec.link_bytes_s},
                                  {"tdp_w", &spec.tdp_w},
                                  {"sm_count", &spec.sms},
                                  {"l2_bytes", &spec.l2_bytes}};
  for (std::size_t i = 0; i < rate_kinds; ++i)
    facts.push_back({std::string{name_of(static_cast<NumberType>(i))} + "_flop_s", &spec.flops_s[i]});
  return facts;
}

std::vector<Doubt> doubts_of(const GpuSpec& spec, const std::vector<const Fact*>& used) {
  std::vector<Doubt> doubts;
  for (const NamedFact& each : facts_of(spec))
    if (each.fact->doubtful() && std::ranges::find(used, each.fact) != used.end())
      doubts.push_back({each.name, each.fact->doubt});
  return doubts;
}

std::vector<std::string> lines_of(const std::vector<Doubt>& doubts) {
  std::vector<std::pair<std::string, std::string_view>> lines;
  for (const Doubt& doubt : doubts) {
    const auto same = std::ranges::find(lines, doubt.why, &std::pair<std::string, std::string_view>::second);
    if (same == lines.end()) lines.emplace_back(doubt.of, doubt.why);
    else same->first += ", " + doubt.of;
  }
  std::vector<std::string> texts;
  for (const auto& [names, why] : lines) texts.push_back(names + ": " + std::string{why});
  return texts;
}

std::vector<const GpuSpec*> all_specs() {
  std::vector<const GpuSpec*> specs;
  for (const GpuSpec& spec : gpu_table)
    if (!spec.key.empty()) specs.push_back(&spec);
  return specs;
}

const GpuSpec& find_spec(std::string_view word, std::string_view otherwise) {
  const std::string wanted = plain(word);
  for (const GpuSpec* spec : all_specs())
    if (plain(spec->key) == wanted) return *spec;
  for (const GpuSpec* spec : all_specs())
    if (plain(spec->family) == wanted) return *spec;
  for (const GpuSpec* spec : all_specs())
    if (is_name_of(*spec, wanted)) return *spec;
  unknown_gpu(word, otherwise);
}

std::vector<const GpuSpec*> select_specs(const std::vector<std::string>& words) {
  if (words.empty()) return all_specs();
  std::vector<const GpuSpec*> chosen;
  for (const std::string& word : words) {
    const GpuSpec& first = find_spec(word);
    const bool whole_family = plain(first.family) == plain(word);
    for (const GpuSpec* spec : all_specs()) {
      const bool meant = spec == &first || (whole_family && spec->family == first.family);
      if (meant && std::find(chosen.begin(), chosen.end(), spec) == chosen.end()) chosen.push_back(spec);
    }
  }
  return chosen;
}

const GpuSpec* spec_of_reported(std::string_view name) {
  const auto* const found = std::find_if(gpu_table.begin(), gpu_table.end(),
                                         [&](const GpuSpec& spec) { return name.find(spec.reported) != std::string_view::npos; });
  return found == gpu_table.end() ? nullptr : &*found;
}

const RecordedCeilings* recorded_of_reported(std::string_view name) {
  const GpuSpec* const spec = spec_of_reported(name);
  return spec != nullptr && spec->recorded != nullptr && spec->recorded->gpu == name ? spec->recorded : nullptr;
}

}  // namespace aisp::machine
