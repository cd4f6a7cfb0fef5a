// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/estimate_output.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json_fields.hpp"
#include "base/text.hpp"
#include "cli/output.hpp"
#include "evidence/json.hpp"

namespace aisp::knowledge {

AISP_DESCRIBE(Model, name, source, parameters, active_parameters, layers, hidden, heads, kv_heads, head_dim, experts,
              experts_per_token)

}  // namespace aisp::knowledge

namespace aisp::cli {
namespace {

using knowledge::Estimate;
using knowledge::Fit;
using knowledge::Gemm;
using knowledge::Pass;
using knowledge::Question;
using nlohmann::json;

// Decimal, as the makers count memory.
std::string amount(double bytes) {
  if (bytes >= 1e12) return base::significant(bytes / 1e12, 4) + " TB";
  if (bytes >= 1e9) return base::significant(bytes / 1e9) + " GB";
  if (bytes >= 1e6) return base::significant(bytes / 1e6) + " MB";
  return base::significant(bytes / 1e3) + " kB";
}

// Doubt of a figure of the sheet is doubt of all that follows from it: the mark comes behind number and unit.
std::string_view mark_of(const machine::Fact& fact) { return machine::mark(fact.doubtful()); }
std::string_view mark_of(const Pass& pass, const Question& q, const Estimate& e) {
  return mark_of(knowledge::limit_of(pass, q, e));
}
std::string_view mark_of_ridge(const Question& q, const Estimate& e) {
  return machine::mark(q.gpu->memory_bytes_s.doubtful() || q.gpu->rate(e.math).doubtful());
}

constexpr const char* what_the_mark_means = "\n\"?\": rests on a doubtful figure of the data sheet\n";

std::string doubts_text(const std::vector<machine::Doubt>& doubts) {
  std::string text = doubts.empty() ? "" : what_the_mark_means;
  for (const std::string& line : machine::lines_of(doubts)) text += fmt::format("  {}\n", line);
  return text;
}

json doubts_json(const std::vector<machine::Doubt>& doubts) {
  json object = json::object();
  for (const machine::Doubt& doubt : doubts) object[doubt.of] = doubt.why;
  return object;
}

std::string plural(double count, std::string_view noun) { return base::plural(static_cast<std::size_t>(count), noun); }

std::string gpus_of(const Question& q) { return fmt::format("{:.0f} x {}", q.gpus, q.gpu->name); }

std::string memory_text(const Question& q, const Estimate& e) {
  const double left = e.memory_bytes - e.fit.total_bytes();
  const std::string_view mark = mark_of(q.gpu->memory());
  std::vector<std::vector<std::string>> rows = {{"  weights, cache", "weights", "KV cache", "together", "fits from"}};
  for (const Fit& fit : e.by_precision)
    rows.push_back({fmt::format("  {}, {}", name_of(fit.weights), name_of(fit.cache)), amount(fit.weights_bytes),
                    amount(fit.cache_bytes), amount(fit.total_bytes()), plural(fit.gpus_needed, "GPU") + std::string{mark}});
  const std::string verdict = e.fit.fits ? fmt::format("fits, {}{} left for activations and the runtime", amount(left), mark)
                                         : fmt::format("does not fit, {}{} too much; it takes {}{}", amount(-left), mark,
                                                       plural(e.fit.gpus_needed, "GPU"), mark);
  return fmt::format(
      "memory: {}\n"
      "  weights {} + KV cache {} = {} of {}{}\n"
      "  KV cache {} a token; at most {}{} of {:.0f} positions at once\n{}",
      verdict, amount(e.fit.weights_bytes), amount(e.fit.cache_bytes), amount(e.fit.total_bytes()), amount(e.memory_bytes), mark,
      amount(e.cache_bytes_per_token), plural(e.largest_batch, "sequence"), mark, q.context, columns(rows));
}

std::string pass_text(const Pass& pass, std::string_view mark) {
  return fmt::format("{} FLOP/byte, {} bound, at least {}{}", base::significant(pass.intensity(), 4),
                     pass.memory_bound ? "memory" : "compute", base::display_ms(pass.seconds * 1e3), mark);
}

std::string gemm_text(const Gemm& gemm) {
  return fmt::format("{:.0f} x {:.0f} x {:.0f}: {:.4f} FLOP/byte (about {})", gemm.m, gemm.k, gemm.n, gemm.intensity(),
                     base::significant(gemm.rounded_intensity(), 3));
}

std::string speed_text(const Question& q, const Estimate& e) {
  const std::string_view ridge = mark_of_ridge(q, e), decode = mark_of(e.decode, q, e),
                         alone = mark_of(e.decode_weights_alone, q, e);
  const std::string with_cache =
      e.ridge_batch
          ? fmt::format("{}{} with the cache of {:.0f} positions", base::significant(*e.ridge_batch), ridge, q.context)
          : fmt::format("none{} with the cache of {:.0f} positions, whose reading alone takes longer", ridge, q.context);
  const double alone_tokens_s = q.batch / e.decode_weights_alone.seconds;
  return fmt::format(
      "speed: {}{} {}, {}{} a GPU; ridge {:.0f} FLOP/byte{}\n"
      "  prefill of {:.0f} tokens: {}\n"
      "    a projection, {}\n"
      "  decode step of {:.0f}: {}, at most {} tokens/s{}\n"
      "    a projection, {}\n"
      "    weights alone: {}{}, at most {} tokens/s{}\n"
      "  batch at the ridge: {}{} for the weights alone, {}\n",
      base::human_rate(e.flops_s, "FLOP"), mark_of(q.gpu->rate(e.math)), name_of(e.math), base::human_rate(e.bytes_s, "B"),
      mark_of(q.gpu->memory_bytes_s), e.ridge, ridge, q.batch * q.prompt, pass_text(e.prefill, mark_of(e.prefill, q, e)),
      gemm_text(e.prefill_gemm), q.batch, pass_text(e.decode, decode), base::significant(e.decode_tokens_s(q)), decode,
      gemm_text(e.decode_gemm), base::display_ms(e.decode_weights_alone.seconds * 1e3), alone, base::significant(alone_tokens_s),
      alone, base::significant(e.ridge_batch_weights_alone), ridge, with_cache);
}

json fit_json(const Fit& fit) {
  return {{"weights", name_of(fit.weights)}, {"cache", name_of(fit.cache)},      {"weights_bytes", fit.weights_bytes},
          {"cache_bytes", fit.cache_bytes},  {"total_bytes", fit.total_bytes()}, {"fits", fit.fits},
          {"gpus_needed", fit.gpus_needed}};
}

json pass_json(const Pass& pass) {
  return {{"flops", pass.flops},
          {"bytes", pass.bytes},
          {"intensity_flop_per_byte", pass.intensity()},
          {"bound", pass.memory_bound ? "memory" : "compute"},
          {"floor_ms", pass.seconds * 1e3}};
}

json decode_json(const Pass& pass, double batch) {
  json decode = pass_json(pass);
  decode["tokens_per_second"] = batch / pass.seconds;
  return decode;
}

json gemm_json(const Gemm& gemm) {
  return {{"m", gemm.m},
          {"k", gemm.k},
          {"n", gemm.n},
          {"intensity_flop_per_byte", gemm.intensity()},
          {"rounded_intensity_flop_per_byte", gemm.rounded_intensity()}};
}

}  // namespace

std::string estimate_text(const Question& q, const Estimate& e) {
  const std::string parameters =
      q.model.active_parameters < q.model.parameters
          ? fmt::format("{} billion parameters, {} billion active", base::significant(q.model.parameters / 1e9, 4),
                        base::significant(q.model.active_parameters / 1e9, 4))
          : fmt::format("{} billion parameters", base::significant(q.model.parameters / 1e9, 4));
  std::string text = fmt::format("{} ({}) on {}: {}, KV cache {}, batch {:.0f}, context {:.0f}\n\n", q.model.name, parameters,
                                 gpus_of(q), name_of(q.weights), name_of(q.cache), q.batch, q.context);
  text += memory_text(q, e) + '\n' + speed_text(q, e);
  if (e.mfu)
    text += fmt::format("\nmodel FLOP utilization{}: {:.1f} %{} at {} tokens/s ({} FLOP a parameter and token)\n",
                        q.training ? " of training" : "", *e.mfu * 100, mark_of(q.gpu->rate(e.math)),
                        base::significant(*q.tokens_per_second, 4), q.training ? 6 : 2);
  return text + doubts_text(knowledge::doubts_of(q, e));
}

std::string estimate_json(const Question& q, const Estimate& e) {
  json fits = json::array();
  for (const Fit& fit : e.by_precision) fits.push_back(fit_json(fit));
  json memory = fit_json(e.fit);
  memory["memory_bytes"] = e.memory_bytes;
  memory["cache_per_token_bytes"] = e.cache_bytes_per_token;
  memory["largest_batch"] = e.largest_batch;
  const json whole = {{"schema_version", evidence::schema_version},
                      {"model", base::json_of(q.model)},
                      {"question",
                       {{"gpu", q.gpu->key},
                        {"gpus", q.gpus},
                        {"batch", q.batch},
                        {"context", q.context},
                        {"prompt", q.prompt},
                        {"training", q.training}}},
                      {"memory", memory},
                      {"by_precision", fits},
                      {"roofline",
                       {{"math", name_of(e.math)},
                        {"math_replaced", e.math_replaced},
                        {"flop_s", e.flops_s},
                        {"bandwidth_bytes_s", e.bytes_s},
                        {"ridge_flop_per_byte", e.ridge}}},
                      {"prefill", pass_json(e.prefill)},
                      {"prefill_gemm", gemm_json(e.prefill_gemm)},
                      {"decode", decode_json(e.decode, q.batch)},
                      {"decode_gemm", gemm_json(e.decode_gemm)},
                      {"decode_weights_alone", decode_json(e.decode_weights_alone, q.batch)},
                      {"ridge_batch", e.ridge_batch ? json(*e.ridge_batch) : json(nullptr)},
                      {"ridge_batch_weights_alone", e.ridge_batch_weights_alone},
                      {"mfu", e.mfu ? json(*e.mfu) : json(nullptr)},
                      {"doubts", doubts_json(knowledge::doubts_of(q, e))}};
  return evidence::json_text(whole, 2) + '\n';
}

std::vector<std::string> ranking_row(const knowledge::Candidate& candidate) {
  const Question& of = candidate.question;
  const Estimate& e = candidate.estimate;
  // How many GPUs there are depends on what one holds.
  const bool number = of.gpu->memory().doubtful(), power = of.gpu->tdp_w.doubtful();
  const bool prefill = knowledge::limit_of(e.prefill, of, e).doubtful(), decode = knowledge::limit_of(e.decode, of, e).doubtful();
  const auto marked = [](std::string text, bool doubtful) { return (text += machine::mark(doubtful)); };
  const double tokens_s = e.decode_tokens_s(of);
  return {
      std::string{of.gpu->key},
      marked(plural(of.gpus, "GPU"), number),
      marked(base::display_ms(e.prefill.seconds * 1e3), number || prefill),
      marked(base::display_ms(e.decode.seconds * 1e3), number || decode),
      marked(base::significant(tokens_s), number || decode),
      marked(base::significant(candidate.decode_tokens_s_per_gpu()), decode),
      of.gpu->tdp_w.known() ? marked(base::significant(tokens_s / (of.gpus * of.gpu->tdp_w.value) * 1e3), decode || power) : "-"};
}

std::string ranking_text(const Question& q, const std::vector<knowledge::Candidate>& ranked) {
  std::vector<std::vector<std::string>> rows = {{"GPU", "needs", "prefill", "decode step", "tokens/s", "per GPU", "per kW"}};
  std::string doubts;
  for (const knowledge::Candidate& candidate : ranked) {
    rows.push_back(ranking_row(candidate));
    for (const std::string& line : machine::lines_of(knowledge::doubts_of(candidate)))
      doubts += fmt::format("  {} {}\n", candidate.question.gpu->key, line);
  }
  return fmt::format("{}: {}, KV cache {}, batch {:.0f}, context {:.0f}; the best decoding per GPU first\n\n{}", q.model.name,
                     name_of(q.weights), name_of(q.cache), q.batch, q.context, columns(rows)) +
         "\nneeds: as many GPUs as hold weights and cache. Times are lower bounds, tokens/s upper bounds; communication between "
         "GPUs is not counted. per kW: of the GPUs' TDP.\n" +
         (doubts.empty() ? "" : what_the_mark_means + doubts);
}

std::string ranking_json(const Question& q, const std::vector<knowledge::Candidate>& ranked) {
  json list = json::array();
  for (const knowledge::Candidate& candidate : ranked) {
    const Question& of = candidate.question;
    list.push_back({{"gpu", of.gpu->key},
                    {"gpus", of.gpus},
                    {"weights", name_of(of.weights)},
                    {"cache", name_of(of.cache)},
                    {"math", name_of(candidate.estimate.math)},
                    {"prefill", pass_json(candidate.estimate.prefill)},
                    {"decode", decode_json(candidate.estimate.decode, of.batch)},
                    {"tokens_per_second_per_gpu", candidate.decode_tokens_s_per_gpu()},
                    {"tdp_w", of.gpu->tdp_w.known() ? json(of.gpu->tdp_w.value) : json(nullptr)},
                    {"doubts", doubts_json(knowledge::doubts_of(candidate))}});
  }
  return evidence::json_text(
             {{"schema_version", evidence::schema_version}, {"model", base::json_of(q.model)}, {"ranking", std::move(list)}}, 2) +
         '\n';
}

}  // namespace aisp::cli
