// SPDX-License-Identifier: Apache-2.0
#include "evidence/expectations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <regex>

#include "base/error.hpp"
#include "base/files.hpp"
#include "evidence/fields.hpp"
#include "evidence/json.hpp"

namespace aisp::evidence {

namespace fs = std::filesystem;

template <class Visitor>
static void describe(ExpectedVariant& v, Visitor& visit) {
  visit("role", v.role);
  visit("speedup", v.speedup);
  visit("speedup_low", v.speedup_low);
  visit("speedup_high", v.speedup_high);
  visit("median_ms", v.median_ms);
  visit("percent_of_floor", v.percent_of_floor);
  visit("cost", v.cost);
}

template <class Visitor>
static void describe(Recorded& r, Visitor& visit) {
  visit("date_utc", r.date_utc);
  visit("run_id", r.run_id);
  visit("aisp_version", r.aisp_version);
  visit("commit", r.commit);
  visit("gpu", r.gpu);
  visit("driver", r.driver);
  visit("cuda", r.cuda);
  visit("cpu", r.cpu);
  visit("power_limit_w", r.power_limit_w);
  visit("runs", r.runs);
}

template <class Visitor>
static void describe(ExpectedPair& p, Visitor& visit) {
  visit("source_digest", p.source_digest);
  visit("recorded", p.recorded);
  visit("bound", p.bound);
  visit("judged_by", p.judged_by);
  visit("ceilings", p.ceilings);
  visit("baseline", p.baseline);
  visit("baseline_median_ms", p.baseline_median_ms);
  visit("baseline_cost", p.baseline_cost);
  visit("variants", p.variants);
}

template <class Visitor>
static void describe(Expectations& e, Visitor& visit) {
  visit("schema_version", e.schema_version);
  visit("hardware", e.hardware);
  visit("chapter", e.chapter);
  visit("pairs", e.pairs);
}

namespace {

constexpr std::size_t largest_file_bytes = std::size_t{16} << 20;

// std::regex calls itself for every character, so a name that no GPU has would end in a stack overflow.
constexpr std::size_t longest_gpu_name = 128;

std::string folder_name(std::string gpu) {
  gpu.resize(std::min(gpu.size(), longest_gpu_name));
  std::transform(gpu.begin(), gpu.end(), gpu.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  static const std::regex decoration{R"((nvidia|tesla|geforce|graphics|device|sxm\d*|pcie|nvl|hbm\w*|\d+\s*gb)\b)"};
  gpu = std::regex_replace(gpu, decoration, " ");
  gpu = std::regex_replace(gpu, std::regex{"[^a-z0-9]+"}, "_");
  return std::regex_replace(gpu, std::regex{"^_+|_+$"}, "");
}

const ManifestGpu* gpu_of(const PairResult& pair, const Manifest& manifest) {
  for (const ManifestGpu& gpu : manifest.gpus)
    if (!pair.gpus.empty() && gpu.uuid == pair.gpus.front()) return &gpu;
  return nullptr;
}

Recorded recorded_by(const PairResult& pair, const Manifest& manifest) {
  Recorded recorded{.date_utc = pair.started_utc,
                    .run_id = manifest.run_id,
                    .aisp_version = manifest.aisp_version,
                    .commit = manifest.commit + (manifest.dirty ? "+changes" : ""),
                    .cpu = manifest.cpu};
  if (const ManifestGpu* gpu = gpu_of(pair, manifest)) {
    recorded.gpu = gpu->name;
    recorded.driver = manifest.driver_version;
    recorded.cuda = fmt::format("{}.{}", manifest.runtime_cuda_version / 1000, manifest.runtime_cuda_version % 1000 / 10);
    recorded.power_limit_w = gpu->power_limit_w;
  }
  return recorded;
}

}  // namespace

std::string hardware_key(const PairResult& pair, const Manifest& manifest) {
  if (pair.device == "host") return "host";
  const ManifestGpu* gpu = gpu_of(pair, manifest);
  if (gpu == nullptr) return {};
  const std::string name = folder_name(gpu->name) + (gpu->mig ? "_mig" : "");
  return pair.gpus.size() > 1 ? fmt::format("{}x_{}", pair.gpus.size(), name) : name;
}

fs::path expectations_path(const fs::path& folder, const std::string& hardware, const std::string& chapter) {
  return folder / hardware / (chapter + ".json");
}

Expectations parse_expectations(std::string_view text, const std::string& source) {
  const json document = parse_json(text, source);
  Expectations expectations;
  Reader reader{document, source};
  describe(expectations, reader);
  if (expectations.schema_version != evidence::schema_version)
    throw base::Error{base::Exit::usage,
                      fmt::format("{}: schema_version {} is not {}, which this aisp reads; record it again with "
                                  "aisp run --update-expectations",
                                  source, expectations.schema_version, evidence::schema_version)};
  return expectations;
}

std::optional<Expectations> read_expectations(const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return std::nullopt;
  return parse_expectations(base::read_file(file, largest_file_bytes), file.string());
}

void write_expectations(const fs::path& file, const Expectations& expectations) {
  json document;
  Writer writer{document};
  Expectations copy = expectations;
  describe(copy, writer);
  base::make_directories(file.parent_path());
  base::write_atomically(file, json_text(document, 2) + '\n');
}

std::optional<std::string> not_recordable(const PairResult& pair) {
  if (pair.status != Status::passed) return "it did not pass";
  if (!pair.complete) return "its process ended early";
  if (pair.scale != 1) return fmt::format("it ran at scale {}", pair.scale);
  if (pair.sizes_set) return fmt::format("it ran with sizes set: {}", sizes_text(pair));
  if (pair.timing_mode == "timer" || pair.timing_mode == "do_bench" || pair.timing_mode == "kernel")
    return "it was timed in mode " + pair.timing_mode;
  if (best_variant(pair) == nullptr) return "no optimized variant was timed";
  return std::nullopt;
}

ExpectedPair expected_of(const PairResult& pair, const Manifest& manifest, const ExpectedPair* earlier) {
  ExpectedPair expected{.source_digest = pair.source_digest,
                        .recorded = recorded_by(pair, manifest),
                        .bound = pair.bound,
                        .judged_by = pair.judged_by,
                        .ceilings = pair.ceilings};
  const bool same = earlier != nullptr && earlier->source_digest == pair.source_digest &&
                    earlier->recorded.gpu == expected.recorded.gpu && earlier->judged_by == pair.judged_by &&
                    (pair.device != "host" || earlier->recorded.cpu == expected.recorded.cpu);
  if (same) expected.recorded.runs = earlier->recorded.runs + 1;
  for (const VariantResult& variant : pair.variants) {
    if (!variant.timing) continue;
    if (variant.role == VariantRole::baseline) {
      expected.baseline = variant.name;
      expected.baseline_median_ms = variant.timing->summary.median;
      expected.baseline_cost = variant.cost;
    }
    if (!variant.speedup) continue;
    ExpectedVariant& into = expected.variants[variant.name];
    into = {.role = variant.role,
            .speedup = variant.speedup->value,
            .speedup_low = variant.speedup->low,
            .speedup_high = variant.speedup->high,
            .median_ms = variant.timing->summary.median,
            .cost = variant.cost};
    if (variant.floor) into.percent_of_floor = variant.floor->percent;
    if (!same) continue;
    if (const auto before = earlier->variants.find(variant.name); before != earlier->variants.end()) {
      into.speedup_low = std::min(into.speedup_low, before->second.speedup_low);
      into.speedup_high = std::max(into.speedup_high, before->second.speedup_high);
    }
  }
  return expected;
}

const std::pair<const std::string, ExpectedVariant>* best_of(const ExpectedPair& pair) {
  const std::pair<const std::string, ExpectedVariant>* best = nullptr;
  for (const auto& entry : pair.variants)
    if (entry.second.role == VariantRole::optimized && (best == nullptr || entry.second.speedup > best->second.speedup))
      best = &entry;
  return best;
}

Recording record(const fs::path& folder, const SuiteResult& suite, const Manifest& manifest) {
  Recording recording;
  std::map<fs::path, Expectations> files;
  for (const PairResult& pair : suite.pairs) {
    if (const auto why = not_recordable(pair)) {
      recording.left_out.emplace_back(label_in_run(pair), *why);
      continue;
    }
    const std::string hardware = hardware_key(pair, manifest);
    const fs::path path = expectations_path(folder, hardware, pair.chapter);
    auto found = files.find(path);
    if (found == files.end()) {
      found = files.emplace(path, read_expectations(path).value_or(Expectations{})).first;
      found->second.hardware = hardware;
      found->second.chapter = pair.chapter;
    }
    auto& pairs = found->second.pairs;
    const auto earlier = pairs.find(pair.name);
    pairs[pair.name] = expected_of(pair, manifest, earlier == pairs.end() ? nullptr : &earlier->second);
    recording.recorded.push_back(pair.target);
  }
  for (const auto& [path, expectations] : files) {
    write_expectations(path, expectations);
    recording.files.push_back(path);
  }
  return recording;
}

}  // namespace aisp::evidence
