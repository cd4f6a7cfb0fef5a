// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/build_info.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/glossary.hpp"
#include "cli/output.hpp"
#include "cli/recorded.hpp"
#include "cli/suite_flags.hpp"
#include "evidence/json.hpp"
#include "machine/needs.hpp"
#include "pair/all_variants.hpp"
#include "pair/code.hpp"
#include "report/numbers.hpp"
#include "run/wire/blank.hpp"
#include "suite/selection.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;
using nlohmann::json;

struct ExplainOptions {
  std::string name;
  std::string expectations_dir;
  bool json = false;
};

std::vector<std::string> needs_of(const pair::Entry& entry) {
  const Needs& needs = entry.pair->needs;
  std::vector<std::string> list;
  if (entry.pair->device != Device::host) {
    list.push_back(fmt::format("compute capability {}.{} or newer", needs.min_sm / 10, needs.min_sm % 10));
    if (needs.max_sm > 0) list.push_back(fmt::format("compute capability {}.x at most", needs.max_sm / 10));
    if (needs.gpus > 1) list.push_back(base::plural(static_cast<std::size_t>(needs.gpus), "GPU"));
  }
  if (needs.peer_access) list.emplace_back("peer access between the GPUs");
  if (needs.dsmem) list.emplace_back("distributed shared memory");
  if (needs.tcgen05) list.emplace_back("tcgen05");
  if (needs.device_memory > 0) list.push_back(base::human_bytes(static_cast<double>(needs.device_memory)) + " per GPU");
  if (needs.host_memory > 0) list.push_back(base::human_bytes(static_cast<double>(needs.host_memory)) + " of host memory");
  if (needs.cpus > 0) list.push_back(base::plural(static_cast<std::size_t>(needs.cpus), "CPU"));
  if (needs.driver > 0) list.push_back("a driver for CUDA " + machine::cuda_version_text(needs.driver));
  for (const Library library : needs.libraries)
    if (library != Library::none) list.emplace_back(name_of(library));
  return list;
}

std::string_view judge_of(const Pair& pair) { return pair.judged_by.empty() ? evidence::time_metric : pair.judged_by; }

bool has_code(const Pair& pair, const Needs& needs) {
  return pair.device == Device::host || machine::has_code_for(needs, base::build_info().cuda_architectures);
}
bool has_code(const Pair& pair, const Variant& variant) { return has_code(pair, pair.needs) && has_code(pair, variant.needs); }

// Calls visit(variant, role) for each variant, the baseline first.
template <class Visit>
void each_variant(const Pair& pair, Visit&& visit) {
  visit(pair.baseline, "baseline");
  for (const Variant& variant : pair.optimized) visit(variant, "optimized");
  for (const Variant& variant : pair.controls) visit(variant, "control");
  for (const Variant& variant : pair.libraries) visit(variant, "library");
}

std::string_view text_of(std::string_view kind, std::string_view name) {
  for (const Term& term : glossary())
    if (term.kind == kind && term.name == name) return term.text;
  return {};
}

struct RecordedOn {
  std::string hardware;
  evidence::ExpectedPair pair;
  bool stale = false;  // the code changed since
};

std::vector<RecordedOn> recorded_of(const pair::Entry& entry, const std::string& folder) {
  std::vector<RecordedOn> list;
  for (evidence::Expectations& file : read_recorded(folder))
    if (const auto found = file.pairs.find(std::string{entry.name}); file.chapter == entry.chapter && found != file.pairs.end()) {
      const bool stale = !pair::has_digest(pair::code_of(entry), found->second.source_digest);
      list.push_back({file.hardware, std::move(found->second), stale});
    }
  return list;
}

// Calls visit(hardware, variant, name, metric) for each recorded metric, a baseline's first.
template <class Visit>
void each_metric(const std::vector<RecordedOn>& recorded, Visit&& visit) {
  for (const RecordedOn& on : recorded) {
    for (const auto& [name, metric] : on.pair.baseline_metrics) visit(on.hardware, on.pair.baseline, name, metric);
    for (const auto& [variant, expected] : on.pair.variants)
      for (const auto& [name, metric] : expected.metrics) visit(on.hardware, variant, name, metric);
  }
}

std::vector<std::string> names_of_set(const Pair& pair, const Variant& best) {
  std::vector<std::string> names;
  for (const Variant* member : pair::members_of_set(pair, best)) names.emplace_back(member->name);
  return names;
}

json variants_json(const Pair& pair) {
  json list = json::array();
  each_variant(pair, [&](const Variant& variant, const char* role) {
    list.push_back({{"name", variant.name},
                    {"role", role},
                    {"is_lesson", variant.name == pair::lesson_of(pair)},
                    {"gains_over", variant.gains_over},
                    {"same_bits_as", variant.same_bits_as},
                    {"best_of", names_of_set(pair, variant)},
                    {"computes_output", variant.outputs != no_outputs},
                    {"changes_precision", variant.changes_precision},
                    {"not_run", variant.not_run},
                    {"has_code", has_code(pair, variant)}});
  });
  return list;
}

json expectations_json(const std::vector<RecordedOn>& recorded) {
  json list = json::array();
  for (const RecordedOn& on : recorded)
    for (const auto& [name, variant] : on.pair.variants)
      list.push_back({{"hardware", on.hardware},
                      {"variant", name},
                      {"speedup", variant.speedup},
                      {"speedup_low", variant.speedup_low},
                      {"speedup_high", variant.speedup_high},
                      {"date_utc", on.pair.recorded.date_utc},
                      {"stale", on.stale}});
  return list;
}

json metrics_json(const std::vector<RecordedOn>& recorded) {
  json list = json::array();
  each_metric(recorded, [&](const auto& hardware, const auto& variant, const auto& name, const auto& metric) {
    list.push_back({{"hardware", hardware},
                    {"variant", variant},
                    {"metric", name},
                    {"value", metric.value},
                    {"unit", metric.unit},
                    {"better", to_string(metric.better)}});
  });
  return list;
}

json pair_json(const pair::Entry& entry, const std::vector<RecordedOn>& recorded) {
  const Pair& pair = *entry.pair;
  const std::string_view bound = to_string(run::recorded(pair.bound));
  return {{"kind", "pair"},
          {"name", entry.target()},
          {"text", pair.teaches},
          {"source", entry.source},
          {"device", to_string(run::recorded(pair.device))},
          {"bound", bound},
          {"bound_text", text_of("bound", bound)},
          {"judged_by", judge_of(pair)},
          {"needs", needs_of(entry)},
          {"architectures", pair.device == Device::host ? "" : base::build_info().cuda_architectures},
          {"has_code", has_code(pair, pair.needs)},
          {"sizes", sizes_json(pair)},
          {"sweep", cases_json(pair.sweep)},
          {"edges", cases_json(pair.edges)},
          {"variants", variants_json(pair)},
          {"expectations", expectations_json(recorded)},
          {"metrics", metrics_json(recorded)}};
}

std::string expectation_line(const RecordedOn& on, const std::string& variant, const evidence::ExpectedVariant& expected) {
  constexpr double widest = 1.5;
  const double low = expected.speedup_low, high = expected.speedup_high;
  const std::string range = high < widest * low ? fmt::format("further runs from {:.3g} to {:.3g}", low, high)
                                                : std::string{"too few or too different runs to expect a range"};
  return fmt::format("{} on {}: {:.3g}x, {}, recorded {}{}", variant, on.hardware, expected.speedup, range,
                     on.pair.recorded.date_utc.substr(0, 10), on.stale ? "; stale: the code changed since" : "");
}

// "tokens_per_second on h200: dense 1.20M, split_k 3.40M tokens/s (higher is better)", a line for each metric and hardware.
std::vector<std::string> metric_lines(const std::vector<RecordedOn>& recorded) {
  struct MetricLine {
    std::vector<std::string> values;
    std::string end;
  };
  std::map<std::string, MetricLine> lines;
  each_metric(recorded, [&](const auto& hardware, const auto& variant, const auto& name, const auto& metric) {
    MetricLine& line = lines[fmt::format("{} on {}", name, hardware)];
    line.values.push_back(fmt::format("{} {}", variant, report::metric_number(metric)));
    line.end = fmt::format("{}{} ({} is better)", metric.unit.empty() ? "" : " ", metric.unit, to_string(metric.better));
  });
  std::vector<std::string> texts;
  for (const auto& [what, line] : lines) texts.push_back(fmt::format("{}: {}{}", what, base::join(line.values, ", "), line.end));
  return texts;
}

// "m: 8192, or another multiple of 256 from 256 to 65536"
std::string size_line(const Size& size) {
  return fmt::format("{}: {}, or another{} from {} to {}", size.name, size.full,
                     size.multiple == 1 ? "" : fmt::format(" multiple of {}", size.multiple), least_value(size), size.most);
}

// "captured_graph (the lesson, changes precision)"
std::string variant_line(const Pair& pair, const Variant& variant) {
  std::vector<std::string> notes;
  if (variant.name == pair::lesson_of(pair)) notes.emplace_back("the lesson");
  if (!variant.gains_over.empty()) notes.push_back(fmt::format("its gain is over {}", variant.gains_over));
  if (!variant.same_bits_as.empty()) notes.push_back(fmt::format("the same bits as {}", variant.same_bits_as));
  if (const auto set = names_of_set(pair, variant); !set.empty())
    notes.push_back("the fastest of itself, " + base::join(set, ", "));
  if (variant.changes_precision) notes.emplace_back("changes precision");
  if (variant.not_run) notes.emplace_back("not run: nobody has had a GPU for it");
  if (!has_code(pair, variant)) notes.emplace_back("this executable has no code for it");
  if (variant.outputs == no_outputs) notes.emplace_back("computes no valid output, so it is not verified");
  return std::string{variant.name} + (notes.empty() ? "" : " (" + base::join(notes, ", ") + ")");
}

// Returns the architectures that this executable has the pair's code for, which its needs do not tell.
std::string code_line(const Pair& pair) {
  return fmt::format(
      "this executable has it for {}{}", base::build_info().cuda_architectures,
      has_code(pair, pair.needs) ? "" : ", none of which the pair can run on; cmake --preset all-architectures builds more");
}

std::string pair_text(const pair::Entry& entry, const std::vector<RecordedOn>& recorded) {
  const Pair& pair = *entry.pair;
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const char* label, std::string_view text) { rows.push_back({label, std::string{text}}); };
  add("pair", entry.target());
  add("teaches", pair.teaches);
  add("source", entry.source);
  each_variant(pair, [&](const Variant& variant, const char* role) { add(role, variant_line(pair, variant)); });
  const std::string_view bound = to_string(run::recorded(pair.bound));
  add("bound", fmt::format("{}: {}", bound, text_of("bound", bound)));
  if (judge_of(pair) != evidence::time_metric) add("judged by", judge_of(pair));
  for (const Size& size : pair.sizes) add("size", size_line(size));
  for (const Case& each : pair.sweep) add("case", fmt::format("{}: {}", each.name, each.sizes));
  for (const Case& each : pair.edges) add("edge", fmt::format("{}: {}", each.name, each.sizes));
  for (const std::string& need : needs_of(entry)) add("needs", need);
  if (pair.device != Device::host) add("code", code_line(pair));
  const auto is_empty = [](const RecordedOn& on) { return on.pair.variants.empty(); };
  if (std::ranges::all_of(recorded, is_empty)) add("expected", "nothing recorded");
  for (const RecordedOn& on : recorded)
    for (const auto& [name, variant] : on.pair.variants) add("expected", expectation_line(on, name, variant));
  for (const std::string& line : metric_lines(recorded)) add("metric", line);
  return columns(rows);
}

// "held back by" and "Held-Back-By" are held_back_by.
std::string as_written(std::string_view word) {
  std::string result = base::lower(word);
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c == ' ' || c == '-'; }, '_');
  return result;
}

// Headings of reports that are words, where files have the name of a field.
std::string field_of(const std::string& word) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> headings{{{"limited_by", "held_back_by"},
                                                                                   {"the_host_decides", "host_decides"},
                                                                                   {"lower_bound", "floor"},
                                                                                   {"of_the_lower_bound", "percent_of_floor"},
                                                                                   {"of_its_lower_bound", "percent_of_floor"},
                                                                                   {"of_its_floor", "percent_of_floor"},
                                                                                   {"of_the_library", "library_share"},
                                                                                   {"gpu_at_work", "gpu_busy_percent"},
                                                                                   {"median", "median_ms"}}};
  const auto found = std::ranges::find(headings, word, [](const auto& heading) { return heading.first; });
  return found == headings.end() ? word : std::string{found->second};
}

// The meanings of a name: terms, all of them for no name, and pairs.
struct Meanings {
  std::vector<Term> terms;
  std::vector<const pair::Entry*> pairs;
};

Meanings meanings(const std::string& name) {
  Meanings found;
  for (const Term& term : glossary())
    if (name.empty() || as_written(term.name) == field_of(as_written(name))) found.terms.push_back(term);
  if (name.empty()) return found;
  for (const pair::Entry& entry : pair::registry())
    if (entry.name == name || entry.target() == name || entry.chapter == name) found.pairs.push_back(&entry);
  return found;
}

[[noreturn]] void reject(const std::string& name) {
  for (const pair::NotBuilt& pair : pair::not_built())
    if (pair.name == name || pair.target() == name || pair.chapter == name)
      throw Error{Exit::nothing, fmt::format("{} is not built; {} builds it", name, suite::build_command({name}))};
  std::vector<std::string> known;
  for (const Term& term : glossary()) known.emplace_back(term.name);
  for (const pair::Entry& entry : pair::registry())
    known.push_back(name.find(':') == std::string::npos ? std::string{entry.name} : entry.target());
  const std::vector<std::string> near = base::nearest(known, name.substr(0, 80));
  throw Error{Exit::usage,
              fmt::format("nothing is known of '{}'; {}", base::one_line(name, 80),
                          near.empty() ? "aisp explain lists what is" : fmt::format("did you mean {}?", base::join(near, ", ")))};
}

// All words under the headings of their kinds, what a reader of a run meets first at the top.
std::string all_terms() {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> headings{
      {{"status", "Statuses of pairs and variants"},
       {"verdict", "Verdicts on speedups"},
       {"role", "Roles of variants"},
       {"bound", "What bounds a pair"},
       {"column", "Columns and fields"},
       {"finding", "Findings of analyze and of run --gate"},
       {"change", "Findings of compare"},
       {"check", "Checks"},
       {"metric", "Metrics that pairs of streams and ranks report"}}};
  std::string text;
  for (const auto& [kind, heading] : headings) {
    std::vector<std::vector<std::string>> rows;
    for (const Term& term : glossary())
      if (term.kind == kind) rows.push_back({"  " + std::string{term.name}, std::string{term.text}});
    text += fmt::format("{}{}\n{}", text.empty() ? "" : "\n", heading, columns(rows));
  }
  return text;
}

std::string as_json(const Meanings& found, const std::string& expectations_dir) {
  json list = json::array();
  for (const Term& term : found.terms) list.push_back({{"kind", term.kind}, {"name", term.name}, {"text", term.text}});
  for (const pair::Entry* entry : found.pairs) list.push_back(pair_json(*entry, recorded_of(*entry, expectations_dir)));
  return evidence::json_text(list, 2) + '\n';
}

std::string as_text(const Meanings& found, const std::string& expectations_dir) {
  std::vector<std::vector<std::string>> rows;
  for (const Term& term : found.terms) rows.push_back({std::string{term.name}, std::string{term.kind}, std::string{term.text}});
  std::string pairs;
  for (const pair::Entry* entry : found.pairs)
    pairs += (pairs.empty() ? "" : "\n") + pair_text(*entry, recorded_of(*entry, expectations_dir));
  return columns(rows) + pairs;
}

Exit explain(const ExplainOptions& options) {
  const Meanings found = meanings(options.name);
  if (found.terms.empty() && found.pairs.empty()) reject(options.name);
  if (options.json) print(as_json(found, options.expectations_dir));
  else if (!options.name.empty()) show(as_text(found, options.expectations_dir));
  else {
    show(all_terms());
    note("aisp: pairs are explained too; aisp list-targets names them");
  }
  return Exit::good;
}

}  // namespace

void add_explain(CLI::App& app, Action& action) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* command =
      app.add_subcommand("explain", "explain what a column, check, metric, status, verdict, finding, pair or chapter means");
  command->add_option("NAME", options->name, "a word of a report, a pair or a chapter; all words without it")->type_name("");
  command->add_option("--expectations-dir", options->expectations_dir, expectations_to_read_help)->type_name("DIR");
  command->add_flag("--json", options->json, "as a JSON array");
  command->callback([options, &action] { action = [options] { return explain(*options); }; });
}

}  // namespace aisp::cli
