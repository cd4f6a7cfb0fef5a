// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/peak_levels.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "cli/output.hpp"
#include "evidence/json.hpp"
#include "peak/table.hpp"
#include "report/pictures/staircase_picture.hpp"

namespace aisp::cli {
namespace {

using base::Exit;
using nlohmann::json;
using peak::Levels;
using peak::LevelsFound;

struct ShownLevels {
  std::string text;
  json as_json;
  std::string picture;  // empty without a measurement
};

void add_marks(report::Staircase& staircase, const std::vector<peak::Level>& levels) {
  for (const peak::Level& level : levels)
    if (level.beyond_bytes > 0)
      staircase.marks.push_back({level.held_bytes, fmt::format("{}{}", level.name.empty() ? "" : level.name + " ",
                                                               base::human_bytes(level.held_bytes))});
}

std::string picture_of(const Levels& levels, const LevelsFound& found) {
  report::Staircase latency{.title = "Latency over the working set", .y_title = "latency of a load", .unit = " ns"};
  report::Staircase rate{.title = "Bandwidth over the working set", .y_title = "bandwidth", .unit = " GB/s"};
  report::Staircase pages{.title = "Latency over the pages' span",
                          .y_title = fmt::format("latency of a load, one line of each {}", base::human_bytes(levels.page_bytes)),
                          .unit = " ns"};
  latency.lines = {{"every line", {}}};
  rate.lines = {{"every line", {}}};
  pages.lines = {{"a line of each page", {}}};
  for (const peak::ChasePoint& point : levels.lines) {
    latency.lines[0].points.push_back({point.bytes, point.ns});
    rate.lines[0].points.push_back({point.bytes, point.bytes_s / 1e9});
  }
  for (const peak::ChasePoint& point : levels.pages) pages.lines[0].points.push_back({point.bytes, point.ns});
  add_marks(latency, found.memory);
  add_marks(rate, found.memory);
  add_marks(pages, found.translation);
  return report::staircase_svg(peak::heading({levels.key, levels.measured_utc}), {latency, rate, pages});
}

ShownLevels shown_of(const std::string& what, const peak::ObtainedLevels& obtained, std::vector<peak::Stated> stated) {
  if (!obtained.levels)
    return {
        fmt::format("{}: not measured: {}\n", what, obtained.why_not), {{"levels", nullptr}, {"why_not", obtained.why_not}}, ""};
  const Levels& levels = *obtained.levels;
  const LevelsFound found = peak::found_in(levels, std::move(stated));
  std::string text = fmt::format("{}: {}{}\n", what, peak::heading({levels.key, levels.measured_utc}),
                                 obtained.from_cache ? ", from the cache" : "");
  text += columns(peak::level_rows(levels, found));
  for (const std::string& line : peak::level_notes(levels, found)) text += line + '\n';
  return {text,
          {{"levels", peak::with_levels(levels, found)}, {"from_cache", obtained.from_cache}, {"why_not", ""}},
          picture_of(levels, found)};
}

}  // namespace

Exit show_levels(const machine::Machine& machine, const std::vector<int>& gpus, const peak::Options& options,
                 const LevelFlags& flags) {
  if (flags.json && flags.svg == "-")
    throw base::Error{Exit::usage, "--json and --svg both write to the standard output; give --svg another place"};
  if (!flags.svg.empty()) demand_place_for(flags.svg);
  json list = json::array();
  std::string text, picture;
  bool good = true;
  for (const int ordinal : gpus) {
    const machine::Gpu& gpu = machine.gpus[static_cast<std::size_t>(ordinal)];
    const peak::ObtainedLevels obtained = peak::obtain_levels(machine, ordinal, options);
    ShownLevels shown = shown_of(fmt::format("GPU {}", ordinal), obtained, peak::stated_sizes(gpu));
    shown.as_json["ordinal"] = ordinal;
    list.push_back(std::move(shown.as_json));
    text += shown.text + '\n';
    if (picture.empty()) picture = std::move(shown.picture);
    good = good && obtained.levels;
  }
  if (machine.gpus.empty()) text += fmt::format("GPU: not measured: {}; {}\n\n", machine.cuda_error, machine.cuda_advice);
  const peak::ObtainedLevels host = peak::obtain_levels_of_host(machine, options);
  const ShownLevels shown = shown_of("host", host, peak::stated_sizes_of_host());
  good = good && host.levels;
  if (picture.empty()) picture = shown.picture;
  if (!flags.svg.empty() && !picture.empty()) print_to(flags.svg, picture);
  if (flags.json)
    print(evidence::json_text(json{{"schema_version", evidence::schema_version},
                                   {"gpus", list},
                                   {"no_gpu", machine.gpus.empty() ? machine.cuda_error : ""},
                                   {"host", shown.as_json}},
                              2) +
          '\n');
  else if (flags.svg != "-") show(text + shown.text);
  return good ? Exit::good : Exit::unfit;
}

}  // namespace aisp::cli
