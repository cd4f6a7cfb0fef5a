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
#include "cli/list.hpp"
#include "cli/output.hpp"
#include "cli/recorded.hpp"
#include "evidence/json.hpp"
#include "machine/needs.hpp"
#include "pair/all_variants.hpp"
#include "pair/code.hpp"
#include "report/numbers.hpp"
#include "run/wire/blank.hpp"
#include "suite/selection/select.hpp"

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
  if (needs.driver > 0) list.push_back(fmt::format("a driver for CUDA {}.{}", needs.driver / 1000, needs.driver % 1000 / 10));
  for (const Library library : needs.libraries)
    if (library != Library::none) list.emplace_back(name_of(library));
  return list;
}

bool has_code(const Needs& needs) { return machine::has_code_for(needs, base::build_info().cuda_architectures); }

json variants_of(const Pair& pair) {
  const bool host = pair.device == Device::host;
  json list = json::array();
  const auto add = [&](const Variant& variant, const char* role) {
    list.push_back({{"name", variant.name},
                    {"role", role},
                    {"is_lesson", variant.name == pair::lesson_of(pair)},
                    {"gains_over", variant.gains_over},
                    {"same_bits_as", variant.same_bits_as},
                    {"computes_output", variant.outputs != no_outputs},
                    {"changes_precision", variant.changes_precision},
                    {"not_run", variant.not_run},
                    {"has_code", host || (has_code(pair.needs) && has_code(variant.needs))}});
  };
  add(pair.baseline, "baseline");
  for (const Variant& variant : pair.optimized) add(variant, "optimized");
  for (const Variant& variant : pair.controls) add(variant, "control");
  for (const Variant& variant : pair.libraries) add(variant, "library");
  return list;
}

std::string_view text_of(std::string_view kind, std::string_view name) {
  for (const Term& term : glossary())
    if (term.kind == kind && term.name == name) return term.text;
  return {};
}

struct RecordedOn {
  std::string hardware;
  evidence::ExpectedPair pair;
};

std::vector<RecordedOn> recorded_of(const pair::Entry& entry, const std::string& folder) {
  std::vector<RecordedOn> list;
  for (evidence::Expectations& file : read_recorded(folder))
    if (const auto found = file.pairs.find(std::string{entry.name}); file.chapter == entry.chapter && found != file.pairs.end())
      list.push_back({file.hardware, std::move(found->second)});
  return list;
}

json expectations_of(const pair::Entry& entry, const std::vector<RecordedOn>& recorded) {
  json list = json::array();
  for (const auto& [hardware, pair] : recorded)
    for (const auto& [name, variant] : pair.variants)
      list.push_back({{"hardware", hardware},
                      {"variant", name},
                      {"speedup", variant.speedup},
                      {"speedup_low", variant.speedup_low},
                      {"speedup_high", variant.speedup_high},
                      {"date_utc", pair.recorded.date_utc},
                      {"stale", !pair::has_digest(pair::code_of(entry), pair.source_digest)}});
  return list;
}

json metrics_of(const std::vector<RecordedOn>& recorded) {
  json list = json::array();
  for (const RecordedOn& on : recorded) {
    const auto add = [&](const std::string& variant, const evidence::RecordedMetrics& metrics) {
      for (const auto& [name, metric] : metrics)
        list.push_back({{"hardware", on.hardware},
                        {"variant", variant},
                        {"metric", name},
                        {"value", metric.value},
                        {"unit", metric.unit},
                        {"better", metric.better == evidence::Direction::higher ? "higher" : "lower"}});
    };
    add(on.pair.baseline, on.pair.baseline_metrics);
    for (const auto& [name, variant] : on.pair.variants) add(name, variant.metrics);
  }
  return list;
}

json pair_json(const pair::Entry& entry, const std::string& folder) {
  const Pair& pair = *entry.pair;
  const std::string_view bound = to_string(run::recorded(pair.bound));
  const bool host = pair.device == Device::host;
  const std::vector<RecordedOn> recorded = recorded_of(entry, folder);
  return {{"kind", "pair"},
          {"name", entry.target()},
          {"text", pair.teaches},
          {"source", entry.source},
          {"device", to_string(run::recorded(pair.device))},
          {"bound", bound},
          {"bound_text", text_of("bound", bound)},
          {"judged_by", pair.judged_by.empty() ? evidence::time_metric : pair.judged_by},
          {"needs", needs_of(entry)},
          {"architectures", host ? "" : base::build_info().cuda_architectures},
          {"has_code", host || has_code(pair.needs)},
          {"sizes", sizes_json(pair)},
          {"sweep", cases_json(pair.sweep)},
          {"edges", cases_json(pair.edges)},
          {"variants", variants_of(pair)},
          {"expectations", expectations_of(entry, recorded)},
          {"metrics", metrics_of(recorded)}};
}

std::string expectation_line(const json& entry) {
  constexpr double widest = 1.5;
  const auto number = [&](const char* name) { return entry[name].get<double>(); };
  const double low = number("speedup_low"), high = number("speedup_high");
  const std::string range = high < widest * low ? fmt::format("further runs from {:.3g} to {:.3g}", low, high)
                                                : std::string{"too few or too different runs to expect a range"};
  return fmt::format("{} on {}: {:.3g}x, {}, recorded {}{}", entry["variant"].get<std::string>(),
                     entry["hardware"].get<std::string>(), number("speedup"), range,
                     entry["date_utc"].get<std::string>().substr(0, 10),
                     entry["stale"].get<bool>() ? "; stale: the code changed since" : "");
}

// "tokens_per_second on h200: dense 1.20M, split_k 3.40M tokens/s (higher is better)", a line for each metric and hardware.
std::vector<std::string> metric_lines(const json& metrics) {
  struct MetricLine {
    std::vector<std::string> values;
    std::string end;
  };
  std::map<std::string, MetricLine> lines;
  for (const json& entry : metrics) {
    const auto word = [&](const char* name) { return entry[name].get<std::string>(); };
    MetricLine& line = lines[fmt::format("{} on {}", word("metric"), word("hardware"))];
    const evidence::RecordedMetric metric{.value = entry["value"].get<double>(), .unit = word("unit")};
    line.values.push_back(fmt::format("{} {}", word("variant"), report::metric_number(metric)));
    line.end = fmt::format("{}{} ({} is better)", metric.unit.empty() ? "" : " ", metric.unit, word("better"));
  }
  std::vector<std::string> texts;
  for (const auto& [what, line] : lines) texts.push_back(fmt::format("{}: {}{}", what, base::join(line.values, ", "), line.end));
  return texts;
}

// "m: 8192, or another multiple of 256 from 256 to 65536"
std::string size_line(const json& size) {
  const auto number = [&](const char* name) { return size[name].get<std::uint64_t>(); };
  return fmt::format("{}: {}, or another{} from {} to {}", size["name"].get<std::string>(), number("full"),
                     number("multiple") == 1 ? "" : fmt::format(" multiple of {}", number("multiple")), number("least"),
                     number("most"));
}

// "captured_graph (the lesson, changes precision)"
std::string variant_line(const json& variant) {
  std::vector<std::string> notes;
  if (variant["is_lesson"].get<bool>()) notes.emplace_back("the lesson");
  if (const auto over = variant["gains_over"].get<std::string>(); !over.empty()) notes.push_back("its gain is over " + over);
  if (const auto as = variant["same_bits_as"].get<std::string>(); !as.empty()) notes.push_back("the same bits as " + as);
  if (variant["changes_precision"].get<bool>()) notes.emplace_back("changes precision");
  if (variant["not_run"].get<bool>()) notes.emplace_back("not run: nobody has had a GPU for it");
  if (!variant["has_code"].get<bool>()) notes.emplace_back("this executable has no code for it");
  if (!variant["computes_output"].get<bool>()) notes.emplace_back("computes no valid output, so it is not verified");
  return variant["name"].get<std::string>() + (notes.empty() ? "" : " (" + base::join(notes, ", ") + ")");
}

// Returns the architectures that this executable has the pair's code for, which its needs do not tell.
std::string code_line(const json& pair) {
  return "this executable has it for " + pair["architectures"].get<std::string>() +
         (pair["has_code"].get<bool>() ? ""
                                       : ", none of which the pair can run on; cmake --preset all-architectures builds more");
}

std::string pair_text(const json& pair) {
  const auto word = [&](const char* name) { return pair[name].get<std::string>(); };
  std::vector<std::vector<std::string>> rows{{"pair", word("name")}, {"teaches", word("text")}, {"source", word("source")}};
  for (const json& variant : pair["variants"]) rows.push_back({variant["role"].get<std::string>(), variant_line(variant)});
  rows.push_back({"bound", word("bound") + ": " + word("bound_text")});
  if (word("judged_by") != evidence::time_metric) rows.push_back({"judged by", word("judged_by")});
  for (const json& size : pair["sizes"]) rows.push_back({"size", size_line(size)});
  for (const json& each : pair["sweep"])
    rows.push_back({"case", each["name"].get<std::string>() + ": " + each["sizes"].get<std::string>()});
  for (const json& each : pair["edges"])
    rows.push_back({"edge", each["name"].get<std::string>() + ": " + each["sizes"].get<std::string>()});
  for (const json& need : pair["needs"]) rows.push_back({"needs", need.get<std::string>()});
  if (word("device") != to_string(evidence::Device::host)) rows.push_back({"code", code_line(pair)});
  if (pair["expectations"].empty()) rows.push_back({"expected", "nothing recorded"});
  for (const json& entry : pair["expectations"]) rows.push_back({"expected", expectation_line(entry)});
  for (const std::string& line : metric_lines(pair["metrics"])) rows.push_back({"metric", line});
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

std::vector<json> meanings(const ExplainOptions& options) {
  std::vector<json> found;
  for (const Term& term : glossary())
    if (as_written(term.name) == field_of(as_written(options.name)))
      found.push_back({{"kind", term.kind}, {"name", term.name}, {"text", term.text}});
  for (const pair::Entry& entry : pair::registry())
    if (entry.name == options.name || entry.target() == options.name || entry.chapter == options.name)
      found.push_back(pair_json(entry, options.expectations_dir));
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

Exit explain(const ExplainOptions& options) {
  std::vector<json> found;
  if (!options.name.empty()) {
    found = meanings(options);
    if (found.empty()) reject(options.name);
  } else {
    for (const Term& term : glossary()) found.push_back({{"kind", term.kind}, {"name", term.name}, {"text", term.text}});
  }
  if (options.json) {
    print(evidence::json_text(found, 2) + '\n');
    return Exit::good;
  }
  if (options.name.empty()) {
    show(all_terms());
    note("aisp: pairs are explained too; aisp list-targets names them");
    return Exit::good;
  }
  std::vector<std::vector<std::string>> rows;
  std::string pairs;
  for (const json& one : found)
    if (one["kind"] == "pair") pairs += (pairs.empty() ? "" : "\n") + pair_text(one);
    else rows.push_back({one["name"].get<std::string>(), one["kind"].get<std::string>(), one["text"].get<std::string>()});
  show(columns(rows) + pairs);
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
