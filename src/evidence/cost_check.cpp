// SPDX-License-Identifier: Apache-2.0
#include "evidence/cost_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace aisp::evidence {
namespace {

// Returns the counted variant whose measured work is the smallest part of its declaration.
template <class Part>
std::optional<CostPart> least(const PairResult& pair, const Part& part_of) {
  std::optional<CostPart> result;
  for (const VariantResult& variant : pair.variants) {
    if (!variant.counters || variant.status != Status::passed) continue;
    const std::optional<CostPart> part = part_of(variant);
    if (part && (!result || part->ratio() < result->ratio())) result = part;
  }
  return result;
}

std::optional<CostPart> bytes_of(const VariantResult& variant) {
  const std::optional<double> measured = dram_bytes(*variant.counters);
  if (!measured || variant.cost.bytes <= 0 || variant.cost.bytes_of != ByteKind::device_memory) return std::nullopt;
  const double unwritten = variant.counters->drained ? 0 : variant.counters->l2_bytes;
  return CostPart{variant.name, variant.cost.bytes, *measured, unwritten, {}};
}

// Returns the counter for a type of math. Scalar types are not counted in launches of graphs, so a variant is compared only if at
// least its own type was counted.
std::string_view counted_as(std::string_view math) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> names{{{"fp64", "fp64"},
                                                                                {"fp64_tensor", "tensor fp64"},
                                                                                {"fp32", "fp32"},
                                                                                {"tf32", "tensor tf32"},
                                                                                {"fp16", "tensor fp16"},
                                                                                {"bf16", "tensor bf16"},
                                                                                {"fp8", "tensor fp8"},
                                                                                {"int8", "tensor int8"}}};
  const auto found = std::ranges::find(names, math, [](const auto& name) { return name.first; });
  return found == names.end() ? std::string_view{} : found->second;
}

std::optional<CostPart> flops_of(const VariantResult& variant) {
  const Counters& counters = *variant.counters;
  const auto own = counters.flops.find(std::string{counted_as(variant.cost.math)});
  if (variant.cost.flops <= 0 || own == counters.flops.end()) return std::nullopt;
  double executed = 0;
  // Compilers set constants with half-precision instructions, which would pass for work.
  for (const auto& [type, count] : counters.flops)
    if (type != "fp16" || own->first == "tensor fp16") executed += count;
  return CostPart{variant.name, variant.cost.flops, executed, 0, {}};
}

std::string numbers(const CostPart& part, const char* unit) {
  return fmt::format("{:.4g} {} measured against {:.4g} declared ({:+.0f} %)", part.measured, unit, part.declared,
                     (part.ratio() - 1) * 100);
}

void judge_bytes(CostPart& part, const PairResult& pair, double l2_bytes) {
  if (part.measured + part.unwritten < (1 - cost_tolerance) * part.declared)
    part.fault = fmt::format("{} moves less than the declared cost: {}", part.variant, numbers(part, "bytes"));
  else if (pair.bound == Bound::memory && part.declared > l2_bytes && part.ratio() > 1 + cost_tolerance)
    part.fault =
        fmt::format("every variant moves more than the declared cost, {} the least: {}", part.variant, numbers(part, "bytes"));
}

// Returns why a pair with counters has nothing to compare.
std::string nothing_declared(const PairResult& pair) {
  const DeclaredCost& cost = pair.variants.front().cost;
  if (cost.bytes > 0) return fmt::format("its cost is of another kind: {}", to_string(cost.bytes_of));
  return "declares neither bytes of device memory nor FLOPs";
}

}  // namespace

std::optional<double> dram_bytes(const Counters& counters) {
  if (!counters.dram_read_bytes || !counters.dram_write_bytes) return std::nullopt;
  return *counters.dram_read_bytes + *counters.dram_write_bytes;
}

std::vector<std::string> CostCheck::faults() const {
  std::vector<std::string> result;
  for (const std::optional<CostPart>* part : {&bytes, &flops})
    if (*part && !(*part)->fault.empty()) result.push_back((*part)->fault);
  return result;
}

CostCheck check_cost(const PairResult& pair) {
  CostCheck check;
  if (pair.status == Status::skipped || pair.variants.empty()) {
    check.not_compared = pair.reason.empty() ? "nothing ran" : pair.reason;
    return check;
  }
  if (pair.device == Device::host) {
    check.not_compared = "runs on the host";
    return check;
  }
  const auto counted =
      std::ranges::find_if(pair.variants, [](const VariantResult& variant) { return variant.counters.has_value(); });
  if (counted == pair.variants.end()) {
    const auto why = std::ranges::find_if(
        pair.lost, [](const Lost& lost) { return lost.kind == LostKind::counters || lost.kind == LostKind::counters_refused; });
    check.not_compared = why == pair.lost.end() ? "no counters" : why->text;
    return check;
  }
  check.bytes = least(pair, bytes_of);
  check.flops = least(pair, flops_of);
  if (check.bytes) judge_bytes(*check.bytes, pair, counted->counters->l2_bytes);
  if (check.flops && check.flops->ratio() < 1 - cost_tolerance)
    check.flops->fault =
        fmt::format("{} computes less than the declared cost: {}", check.flops->variant, numbers(*check.flops, "FLOPs"));
  if (!check.bytes && !check.flops) check.not_compared = nothing_declared(pair);
  return check;
}

void judge_cost(PairResult& pair) {
  if (pair.status != Status::passed) return;
  for (const std::string& fault : check_cost(pair).faults()) {
    pair.problems.push_back(
        {Stage::counters, {}, "declared_cost", fault, "correct the workload's cost(), or the variant that is named"});
    if (pair.reason.empty()) pair.reason = fault;
    pair.status = Status::failed;
  }
}

bool nothing_counted(const SuiteResult& suite) {
  const auto counted = [](const VariantResult& variant) { return variant.counters.has_value(); };
  bool any_passed = false;
  for (const PairResult& pair : suite.pairs) {
    if (pair.device != Device::gpu || pair.status != Status::passed) continue;
    if (std::any_of(pair.variants.begin(), pair.variants.end(), counted)) return false;
    any_passed = true;
  }
  return any_passed;
}

}  // namespace aisp::evidence
