// SPDX-License-Identifier: Apache-2.0
#include "profile/tools.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/system/process.hpp"
#include "base/text.hpp"

namespace aisp::profile {
namespace {

namespace fs = std::filesystem;

constexpr double poll_s = 0.1;
constexpr std::uint64_t output_limit_bytes = std::uint64_t{1} << 30;  // of each file that the tool writes

struct Ended {
  std::string failure;
  bool is_refusal = false;
  std::string output;  // stdout and stderr
};

std::string last_line(const std::string& text) {
  const std::vector<std::string> lines = base::split(text, '\n');
  const auto last = std::find_if(lines.rbegin(), lines.rend(), [](const auto& line) { return !base::trim(line).empty(); });
  return last == lines.rend() ? std::string{"it printed nothing"} : base::one_line(std::string{base::trim(*last)}, 160);
}

// The tool's own words for refused counters, anywhere in what it printed.
bool refused(const std::string& output) { return output.find("ERR_NVGPUCTRPERM") != std::string::npos; }

Ended run(const std::string& tool, std::vector<std::string> argv, const ToolRun& tool_run) {
  const fs::path log = tool_run.report.string() + "." + tool + ".log";
  base::Child child{{.argv = std::move(argv), .output = log, .output_limit_bytes = output_limit_bytes}};
  const double began_s = base::monotonic_s();
  std::optional<base::ExitState> state;
  Ended ended;
  while (!(state = child.wait(poll_s))) {
    const bool stopped = tool_run.interrupted && tool_run.interrupted();
    if (!stopped && base::monotonic_s() - began_s < tool_run.limit_s) continue;
    ended.failure = stopped ? fmt::format("{} was interrupted", tool)
                            : fmt::format("{} did not end in {:g} s and was killed; --timeout-multiplier gives it more", tool,
                                          tool_run.limit_s);
    child.terminate();
    break;
  }
  child.kill_leftovers();
  ended.output = base::read_file(log);
  if (!ended.failure.empty()) return ended;
  ended.is_refusal = refused(ended.output);
  if (ended.is_refusal) ended.failure = counters_refused;
  else if (!state->good()) ended.failure = fmt::format("{} ended with {}: {}", tool, state->text(), last_line(ended.output));
  return ended;
}

ToolOutcome absent(const char* tool, const char* package) {
  return {
      .failure = fmt::format("{} is not on PATH; it comes with {}", tool, package), .of_all = true, .report = {}, .counters = {}};
}

fs::path existing(fs::path path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) ? path : fs::path{};
}

// The metrics of a report; ncu prints them when it reads the file again.
Ended print_report(const fs::path& ncu, const fs::path& report, const ToolRun& tool_run) {
  return run("ncu", {ncu.string(), "--import", report.string(), "--csv", "--page", "raw", "--print-units", "base"}, tool_run);
}

template <class Body>
ToolOutcome guarded(const char* tool, const Body& body) {
  try {
    return body();
  } catch (const base::Error& error) {
    return {.failure = fmt::format("{}: {}", tool, error.what()), .report = {}, .counters = {}};
  }
}

using Row = std::vector<std::string>;

// Fields of the lines that begin with a quotation mark; a line whose quotation is not closed is cut off.
std::optional<Row> parse_row(std::string_view line) {
  Row row;
  std::size_t at = 0;
  while (true) {
    if (at >= line.size() || line[at] != '"') return std::nullopt;
    std::string field;
    for (++at;; ++at) {
      if (at >= line.size()) return std::nullopt;
      if (line[at] != '"') field += line[at];
      else if (at + 1 < line.size() && line[at + 1] == '"') field += line[++at];
      else break;
    }
    row.push_back(std::move(field));
    if (++at >= line.size()) return row;
    if (line[at++] != ',') return std::nullopt;
  }
}

std::vector<Row> parse_rows(std::string_view text) {
  std::vector<Row> rows;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (auto row = parse_row(line)) rows.push_back(std::move(*row));
  }
  return rows;
}

// "1,234.5"; nothing for "n/a" and the like.
std::optional<double> number(std::string text) {
  std::erase(text, ',');
  const std::optional<double> value = base::parse_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

// Returns the factor for a value in `unit`; nothing when the unit is none that the metrics have.
std::optional<double> factor(std::string_view unit) {
  constexpr std::array<std::pair<std::string_view, double>, 26> units{{
      {"", 1},         {"%", 1},       {"byte", 1},   {"Kbyte", 1e3},   {"Mbyte", 1e6}, {"Gbyte", 1e9},   {"Tbyte", 1e12},
      {"ns", 1},       {"nsecond", 1}, {"us", 1e3},   {"usecond", 1e3}, {"ms", 1e6},    {"msecond", 1e6}, {"s", 1e9},
      {"second", 1e9}, {"inst", 1},    {"sector", 1}, {"cycle", 1},     {"warp", 1},    {"request", 1},   {"sector/request", 1},
      {"thread", 1},   {"K", 1e3},     {"M", 1e6},    {"G", 1e9},       {"pass", 1},
  }};
  const auto found = std::ranges::find(units, unit, [](const auto& known) { return known.first; });
  if (found != units.end()) return found->second;
  return std::nullopt;
}

bool is_metric(std::string_view column) { return column.find("__") != std::string_view::npos; }

bool adds_up(std::string_view metric) { return metric.ends_with(".sum"); }

}  // namespace

ToolOutcome run_ncu(const ToolRun& tool_run, MetricSet set) {
  return guarded("ncu", [&]() -> ToolOutcome {
    const auto ncu = base::find_program("ncu");
    if (!ncu) return absent("ncu", "Nsight Compute");
    const fs::path report = tool_run.report.string() + ".ncu-rep";
    const std::vector<std::string> names = metric_names(set);
    std::vector<std::string> argv{ncu->string(), "--clock-control",
                                  "none",        "--profile-from-start",
                                  "off",         "--force-overwrite",
                                  "--export",    report.string(),
                                  "--metrics",   fmt::format("{}", fmt::join(names, ","))};
    argv.insert(argv.end(), tool_run.program.begin(), tool_run.program.end());
    Ended ended = run("ncu", std::move(argv), tool_run);
    if (!ended.failure.empty())
      return {.failure = ended.failure, .of_all = ended.is_refusal, .report = existing(report), .counters = {}};
    if (existing(report).empty())
      return {.failure = "ncu wrote no report: " + last_line(ended.output), .report = {}, .counters = {}};
    ended = print_report(*ncu, report, tool_run);
    const NcuReport parsed = parse_ncu_csv(ended.output);
    if (ended.failure.empty() && parsed.kernels.empty()) ended.failure = "ncu printed no metrics of its report";
    ToolOutcome outcome{
        .failure = ended.failure, .of_all = ended.is_refusal, .report = report, .counters = counters_from(combined(parsed))};
    outcome.counters.source = "ncu";
    outcome.counters.passes = 1;
    return outcome;
  });
}

ToolOutcome run_nsys(const ToolRun& tool_run) {
  return guarded("nsys", [&]() -> ToolOutcome {
    const auto nsys = base::find_program("nsys");
    if (!nsys) return absent("nsys", "Nsight Systems");
    std::vector<std::string> argv{nsys->string(),      "profile",
                                  "--trace",           "cuda,nvtx",
                                  "--sample",          "none",
                                  "--cpuctxsw",        "none",
                                  "--capture-range",   "cudaProfilerApi",
                                  "--force-overwrite", "true",
                                  "--output",          tool_run.report.string()};
    argv.insert(argv.end(), tool_run.program.begin(), tool_run.program.end());
    const Ended ended = run("nsys", std::move(argv), tool_run);
    ToolOutcome outcome{.failure = ended.failure, .report = existing(tool_run.report.string() + ".nsys-rep"), .counters = {}};
    if (outcome.failure.empty() && outcome.report.empty()) outcome.failure = "nsys wrote no report: " + last_line(ended.output);
    return outcome;
  });
}

NcuReport parse_ncu_csv(std::string_view text) {
  NcuReport report;
  const std::vector<Row> rows = parse_rows(text);
  const auto header = std::ranges::find_if(
      rows, [](const Row& row) { return row.front() == "ID" && std::ranges::find(row, "Kernel Name") != row.end(); });
  // Behind the names come the units, and then a row a kernel.
  if (header == rows.end() || rows.end() - header < 2) return report;
  const Row& columns = *header;
  const Row& units = header[1];
  if (units.size() != columns.size()) return report;
  const std::size_t name = static_cast<std::size_t>(std::ranges::find(columns, "Kernel Name") - columns.begin());
  for (auto row = header + 2; row != rows.end(); ++row) {
    if (row->size() != columns.size()) continue;
    report.kernels.push_back((*row)[name]);
    std::map<std::string, double>& values = report.values.emplace_back();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (!is_metric(columns[i])) continue;
      const std::optional<double> value = number((*row)[i]), unit = factor(units[i]);
      if (value && unit) values[columns[i]] = *value * *unit;
    }
  }
  return report;
}

std::map<std::string, double> combined(const NcuReport& report) {
  std::map<std::string, double> sums, weights;
  for (const auto& values : report.values) {
    const auto duration = values.find("gpu__time_duration.sum");
    const double weight = duration != values.end() && duration->second > 0 ? duration->second : 1;
    for (const auto& [metric, value] : values) {
      const double part = adds_up(metric) ? 1 : weight;
      sums[metric] += value * part;
      weights[metric] += part;
    }
  }
  for (auto& [metric, sum] : sums)
    if (!adds_up(metric)) sum /= weights[metric];
  return sums;
}

}  // namespace aisp::profile
