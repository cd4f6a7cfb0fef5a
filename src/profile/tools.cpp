// SPDX-License-Identifier: Apache-2.0
#include "profile/tools.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

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

}  // namespace aisp::profile
