// SPDX-License-Identifier: Apache-2.0
#include "knowledge/estimate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/error.hpp"
#include "base/text.hpp"

namespace aisp::knowledge {
namespace {

using base::Error;
using base::Exit;

// Weights alone are kept in int4; no sheet of today states a rate.
NumberType native_rate(NumberType precision) { return precision == NumberType::int4 ? NumberType::bf16 : precision; }

// Values without units of their own are widened to what the GPU multiplies: FP4 to 8 bits, else to 16.
NumberType math_of(NumberType precision, const machine::GpuSpec& gpu) {
  const NumberType native = native_rate(precision);
  if (gpu.rate(native).known()) return native;
  return precision == NumberType::fp4 && gpu.rate(NumberType::fp8).known() ? NumberType::fp8 : NumberType::bf16;
}

Pass pass_of(double flops, double bytes, const Estimate& machine, double gpus) {
  Pass pass{.flops = flops, .bytes = bytes};
  const double compute_s = flops / (gpus * machine.flops_s);
  const double memory_s = bytes / (gpus * machine.bytes_s);
  pass.memory_bound = memory_s >= compute_s;
  pass.seconds = std::max(compute_s, memory_s);
  return pass;
}

Pass prefill_of(const Question& q, const Estimate& e) {
  const double tokens = q.batch * q.prompt;
  const double positions = q.batch * q.model.positions_seen(q.prompt);
  const double flops = 2 * q.model.active_parameters * tokens + q.model.attention_flops_per_position() * positions;
  const double bytes = q.model.parameters_read(tokens) * bytes_per_element(q.weights) +
                       q.batch * q.model.positions_held(q.prompt) * e.cache_bytes_per_token;
  return pass_of(flops, bytes, e, q.gpus);
}

Pass decode_of(const Question& q, const Estimate& e, double context) {
  const double held = q.model.positions_held(context);
  const double flops = q.batch * (2 * q.model.active_parameters + q.model.attention_flops_per_position() * held);
  const double bytes = q.model.parameters_read(q.batch) * bytes_per_element(q.weights) + q.batch * held * e.cache_bytes_per_token;
  return pass_of(flops, bytes, e, q.gpus);
}

void find_ridge_batches(const Question& q, Estimate& e) {
  const double weights = e.ridge * e.fit.weights_bytes;  // such batches reach every expert
  e.ridge_batch_weights_alone = weights / (2 * q.model.active_parameters);
  const double held = q.model.positions_held(q.context);
  const double flops = 2 * q.model.active_parameters + q.model.attention_flops_per_position() * held;
  const double gain = flops - e.ridge * held * e.cache_bytes_per_token;
  if (gain > 0) e.ridge_batch = weights / gain;
}

}  // namespace

const std::vector<NumberType>& all_precisions() {
  static const std::vector<NumberType> all = {NumberType::fp32, NumberType::bf16, NumberType::fp16, NumberType::fp8,
                                              NumberType::int8, NumberType::fp4,  NumberType::int4};
  return all;
}

NumberType parse_precision(std::string_view word) {
  std::vector<std::string> names;
  for (const NumberType precision : all_precisions()) {
    if (name_of(precision) == base::lower(word)) return precision;
    names.emplace_back(name_of(precision));
  }
  throw Error{Exit::usage, fmt::format("unknown data type '{}'; known are {}", word, base::join(names, ", "))};
}

double bytes_per_element(NumberType precision) {
  constexpr double nvfp4_scale = 1.0 / 16;
  return machine::traits_of(precision).bytes + (precision == NumberType::fp4 ? nvfp4_scale : 0);
}

double Gemm::rounded_intensity() const {
  const auto rounded = [](double value) {
    const double digit = std::pow(10, std::floor(std::log10(value)) - 1);
    return std::round(value / digit) * digit;
  };
  return rounded(flops()) / rounded(bytes());
}

NumberType usual_cache(NumberType weights) { return bytes_per_element(weights) < 2 ? NumberType::bf16 : weights; }

void check_question(const Question& q) {
  check_model(q.model);
  check_count("--gpus", q.gpus, 1e6);
  check_count("--batch", q.batch, 1e9);
  check_count("--context", q.context, 1e9);
  check_count("--prompt", q.prompt, 1e9);
  if (q.prompt > q.context)
    throw Error{Exit::usage, fmt::format("--prompt {:g} is longer than --context {:g}, which holds it", q.prompt, q.context)};
  if (q.training && !q.tokens_per_second)
    throw Error{Exit::usage, "--training says what --tokens-per-second measured; give both"};
  if (q.tokens_per_second && (!(*q.tokens_per_second > 0) || *q.tokens_per_second > 1e12))
    throw Error{Exit::usage, fmt::format("--tokens-per-second must be above 0 and at most 1e12, not {:g}", *q.tokens_per_second)};
}

Fit fit_of(const Question& q, NumberType weights, NumberType cache) {
  Fit fit{.weights = weights, .cache = cache};
  fit.weights_bytes = q.model.parameters * bytes_per_element(weights);
  fit.cache_bytes = q.batch * q.model.positions_held(q.context) * q.model.kv_elements_per_token() * bytes_per_element(cache);
  fit.gpus_needed = std::ceil(fit.total_bytes() / q.gpu->memory().value);
  fit.fits = fit.gpus_needed <= q.gpus;
  return fit;
}

Estimate estimate(const Question& q) {
  check_question(q);
  Estimate e;
  e.math = math_of(q.weights, *q.gpu);
  e.math_replaced = q.weights == NumberType::int4 || e.math != native_rate(q.weights);
  e.flops_s = q.gpu->rate(e.math).value;
  e.bytes_s = q.gpu->memory_bytes_s.value;
  e.ridge = q.gpu->ridge(e.math);
  e.memory_bytes = q.gpus * q.gpu->memory().value;
  e.cache_bytes_per_token = q.model.kv_elements_per_token() * bytes_per_element(q.cache);
  e.fit = fit_of(q, q.weights, q.cache);
  for (const NumberType precision : all_precisions()) e.by_precision.push_back(fit_of(q, precision, usual_cache(precision)));
  const double sequences = (e.memory_bytes - e.fit.weights_bytes) / (q.model.positions_held(q.context) * e.cache_bytes_per_token);
  e.largest_batch = std::max(0.0, std::floor(sequences));
  e.largest_batch_each = std::max(0.0, std::floor(sequences / q.gpus));
  e.prefill = prefill_of(q, e);
  e.decode = decode_of(q, e, q.context);
  e.decode_weights_alone = decode_of(q, e, 0);
  const double element = bytes_per_element(q.weights);
  e.prefill_gemm = {.m = q.prompt, .k = q.model.hidden, .n = q.model.hidden, .bytes_per_element = element};
  e.decode_gemm = {.m = q.batch, .k = q.model.hidden, .n = q.model.hidden, .bytes_per_element = element};
  find_ridge_batches(q, e);
  const double flops_per_parameter = q.training ? 6 : 2;
  if (q.tokens_per_second) e.mfu = flops_per_parameter * q.model.active_parameters * *q.tokens_per_second / (q.gpus * e.flops_s);
  return e;
}

const machine::Fact& limit_of(const Pass& pass, const Question& q, const Estimate& e) {
  return pass.memory_bound ? q.gpu->memory_bytes_s : q.gpu->rate(e.math);
}

std::vector<machine::Doubt> doubts_of(const Question& q, const Estimate& e) {
  return machine::doubts_of(*q.gpu, {&q.gpu->memory(), &q.gpu->memory_bytes_s, &q.gpu->rate(e.math)});
}

std::vector<machine::Doubt> doubts_of(const Candidate& candidate) {
  const machine::GpuSpec& gpu = *candidate.question.gpu;
  return machine::doubts_of(gpu, {&gpu.memory(), &gpu.memory_bytes_s, &gpu.rate(candidate.estimate.math), &gpu.tdp_w});
}

std::vector<Candidate> rank_gpus(const Question& q) {
  std::vector<Candidate> candidates;
  for (const machine::GpuSpec* gpu : machine::all_specs()) {
    Question question = q;
    question.gpu = gpu;
    question.gpus = std::max(q.gpus, fit_of(question, q.weights, q.cache).gpus_needed);
    candidates.push_back({question, estimate(question)});
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.decode_tokens_s_per_gpu() > b.decode_tokens_s_per_gpu();
  });
  return candidates;
}

}  // namespace aisp::knowledge
