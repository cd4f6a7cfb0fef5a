// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/system/interrupt.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/commands/peak_links.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "evidence/json.hpp"
#include "peak/obtain.hpp"
#include "peak/table.hpp"
#include "report/pictures/line_picture.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;
using nlohmann::json;

std::vector<int> wanted_gpus(const machine::Machine& machine, const std::vector<int>& chosen) {
  if (!chosen.empty() && machine.gpus.empty())
    throw Error{Exit::unfit, fmt::format("--gpu {}: {}; {}", chosen.front(), machine.cuda_error, machine.cuda_advice)};
  std::vector<int> gpus;
  for (const machine::Gpu& gpu : machine.gpus)
    if (chosen.empty() || std::find(chosen.begin(), chosen.end(), gpu.ordinal) != chosen.end()) gpus.push_back(gpu.ordinal);
  for (const int ordinal : chosen)
    if (std::find(gpus.begin(), gpus.end(), ordinal) == gpus.end())
      throw Error{Exit::usage, fmt::format("--gpu {}: there is no such GPU; this machine has {}", ordinal,
                                           base::plural(machine.gpus.size(), "GPU"))};
  return gpus;
}

void add_marks(report::Staircase& staircase, const std::vector<peak::MemoryLevel>& levels) {
  for (const peak::MemoryLevel& level : levels)
    if (level.beyond_bytes > 0)
      staircase.marks.push_back({level.held_bytes, fmt::format("{}{}", level.name.empty() ? "" : level.name + " ",
                                                               base::human_bytes(level.held_bytes))});
}

std::string picture_of(const peak::PeakRecord& record, const peak::LevelsFound& found) {
  const peak::MemoryLevels& levels = *record.levels;
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
  return report::staircase_svg(peak::heading(record), {latency, rate, pages});
}

// One GPU or the host.
struct ShownPeak {
  bool measured = false;
  std::string text, picture;  // picture: empty without one
  json as_json;
};

// Shows what was obtained; `add` adds to it for the record, and to the record's JSON, which becomes `member`.
ShownPeak shown_of(const std::string& what, const char* member, const peak::Obtained& obtained,
                   const std::function<void(const peak::PeakRecord& record, ShownPeak& shown, json& as_json)>& add) {
  if (!obtained.record)
    return {.text = fmt::format("{}: not measured: {}\n", what, obtained.why_not),
            .picture = {},
            .as_json = {{member, nullptr}, {"why_not", obtained.why_not}}};
  const peak::PeakRecord& record = *obtained.record;
  ShownPeak shown{.measured = true,
                  .text = fmt::format("{}: {}{}\n", what, peak::heading(record), obtained.from_cache ? ", from the cache" : ""),
                  .picture = {},
                  .as_json = {{"from_cache", obtained.from_cache}, {"why_not", ""}}};
  json as_json = peak::record_json(record);
  as_json.erase("schema_version");
  add(record, shown, as_json);
  shown.as_json[member] = std::move(as_json);
  return shown;
}

ShownPeak shown_figures(const std::string& what, const peak::Obtained& obtained, const machine::Gpu* gpu) {
  return shown_of(what, "record", obtained, [&](const peak::PeakRecord& record, ShownPeak& shown, json& as_json) {
    shown.text += columns(peak::table_rows(record, gpu));
    for (const std::string& line : peak::doubtful(record, gpu)) shown.text += fmt::format("doubtful data sheet (?): {}\n", line);
    for (const std::string& line : peak::missing(record)) shown.text += fmt::format("not measured: {}\n", line);
    peak::add_references(as_json, gpu);
  });
}

ShownPeak shown_levels(const std::string& what, const peak::Obtained& obtained, std::vector<peak::Stated> stated) {
  return shown_of(what, "levels", obtained, [&](const peak::PeakRecord& record, ShownPeak& shown, json& as_json) {
    const peak::LevelsFound found = peak::found_in(*record.levels, std::move(stated));
    shown.text += columns(peak::level_rows(*record.levels, found));
    for (const std::string& line : peak::level_notes(*record.levels, found)) shown.text += line + '\n';
    shown.picture = picture_of(record, found);
    peak::add_levels(as_json, found);
  });
}

// Shows the GPUs and the host; a picture shows the first GPU, or the host if there is none.
template <class OfGpu>
Exit show_all(const machine::Machine& machine, const std::vector<int>& gpus, const PeakFlags& flags, const OfGpu& of_gpu,
              const std::function<ShownPeak()>& of_host) {
  json list = json::array();
  std::string text, picture;
  bool good = true;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    ShownPeak shown = of_gpu(i, machine.gpus[static_cast<std::size_t>(gpus[i])]);
    shown.as_json["ordinal"] = gpus[i];
    list.push_back(std::move(shown.as_json));
    text += shown.text + '\n';
    if (picture.empty()) picture = std::move(shown.picture);
    good = good && shown.measured;
  }
  if (machine.gpus.empty()) text += fmt::format("GPU: not measured: {}; {}\n\n", machine.cuda_error, machine.cuda_advice);
  const ShownPeak host = of_host();
  if (picture.empty()) picture = host.picture;
  if (!flags.svg.empty() && !picture.empty()) print_to(flags.svg, picture);
  if (flags.json)
    print(evidence::json_text(json{{"schema_version", evidence::schema_version},
                                   {"gpus", list},
                                   {"no_gpu", machine.gpus.empty() ? machine.cuda_error : ""},
                                   {"host", host.as_json}},
                              2) +
          '\n');
  else if (flags.svg != "-") show(text + host.text);
  return good && host.measured ? Exit::good : Exit::unfit;
}

std::string gpu_name(int ordinal) { return fmt::format("GPU {}", ordinal); }

Exit show_levels(const machine::Machine& machine, const std::vector<int>& gpus, const peak::ObtainOptions& options,
                 const PeakFlags& flags) {
  if (flags.json && flags.svg == "-")
    throw Error{Exit::usage, "--json and --svg both write to the standard output; give --svg another place"};
  if (!flags.svg.empty()) demand_place_for(flags.svg);
  const auto of_gpu = [&](std::size_t i, const machine::Gpu& gpu) {
    return shown_levels(gpu_name(gpus[i]), peak::obtain_levels(machine, gpus[i], options), peak::stated_sizes(gpu));
  };
  return show_all(machine, gpus, flags, of_gpu, [&] {
    return shown_levels("host", peak::obtain_levels(machine, std::nullopt, options), peak::stated_sizes_of_host());
  });
}

Exit measure_peaks(const PeakFlags& flags) {
  base::install_interrupt_handlers();
  peak::ObtainOptions options{.quick = flags.quick, .refresh = flags.refresh, .purpose = "aisp peak"};
  options.note = [](const std::string& line) { note("aisp: " + line); };
  if (flags.links) {
    const machine::Topology topology = machine::probe_topology();
    return show_links(topology, wanted_gpus(topology.machine, flags.gpus), options, flags);
  }
  if (!flags.svg.empty() && !flags.levels)
    throw Error{Exit::usage, "--svg: it draws what --levels or --links measures; give one of them too"};
  const machine::Machine machine = machine::probe();
  const std::vector<int> gpus = wanted_gpus(machine, flags.gpus);
  if (flags.levels) return show_levels(machine, gpus, options, flags);
  const std::vector<peak::Obtained> measured = peak::obtain_gpus(machine, gpus, options);
  const auto of_gpu = [&](std::size_t i, const machine::Gpu& gpu) { return shown_figures(gpu_name(gpus[i]), measured[i], &gpu); };
  return show_all(machine, gpus, flags, of_gpu,
                  [&] { return shown_figures("host", peak::obtain_host(machine, options), nullptr); });
}

}  // namespace

void add_peak(CLI::App& app, Action& action) {
  auto options = std::make_shared<PeakFlags>();
  CLI::App* command =
      app.add_subcommand("peak", "measure peak rates of memory, arithmetic and links, cached and used as ceilings by aisp run");
  command->add_flag("--json", options->json, "as JSON, each figure beside the data sheet's and the recorded one");
  add_numbers(*command, "--gpu", options->gpus, "of this GPU only, by number; repeats [all]")->type_name("N");
  command->add_flag("--refresh", options->refresh, "measure again, whatever is known already");
  CLI::Option* quick = command->add_flag("--quick", options->quick, "short bursts only, in seconds instead of a minute");
  CLI::Option* levels =
      command
          ->add_flag("--levels", options->levels,
                     "latency and bandwidth of registers, shared memory, caches, memory and address translation instead, and the "
                     "sizes that their steps tell")
          ->excludes(quick);
  CLI::Option* links =
      command
          ->add_flag("--links", options->links,
                     "copies from each GPU to each, NCCL's collectives by size, and GPUs and links that are slower than their "
                     "neighbours instead; always measured anew. Status 3: one is slow, 1: a collective gave wrong results, 4: "
                     "something could not be measured")
          ->excludes(quick)
          ->excludes(levels);
  add_repeated(*command, "--peers", options->peers, "FILE",
               "with --links: compare with these GPUs too, recorded elsewhere by --links --json; repeats")
      ->needs(links);
  command->add_option("--csv", options->csv, "with --links: one value a row; - is the standard output, instead of the tables")
      ->type_name("FILE")
      ->needs(links);
  command->add_option("--markdown", options->markdown, "with --links: the tables as Markdown, likewise")
      ->type_name("FILE")
      ->needs(links);
  command
      ->add_option("--svg", options->svg,
                   "with --levels: the staircase of the first GPU, or of the host without one, as a picture; with --links: the "
                   "collectives by size; - is the standard output, instead of the table")
      ->type_name("FILE");
  command->callback([options, &action] { action = [options] { return measure_peaks(*options); }; });
}

}  // namespace aisp::cli
