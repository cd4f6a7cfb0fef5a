// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/system/interrupt.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/commands/peak_levels.hpp"
#include "cli/commands/peak_links.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "evidence/json.hpp"
#include "peak/obtain.hpp"
#include "peak/table.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;
using nlohmann::json;

struct PeakFlags {
  bool json = false;
  bool refresh = false;
  bool quick = false;
  bool levels = false;
  bool links = false;
  std::string svg, csv, markdown;
  std::vector<std::string> peers;
  std::vector<int> gpus;
};

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

// One GPU or the host, as text and as JSON.
struct Shown {
  std::string text;
  json as_json;
};

Shown shown_of(const std::string& what, const peak::Obtained& obtained, const machine::Gpu* gpu) {
  if (!obtained.record)
    return {fmt::format("{}: not measured: {}\n", what, obtained.why_not), {{"record", nullptr}, {"why_not", obtained.why_not}}};
  std::string text =
      fmt::format("{}: {}{}\n", what, peak::heading(*obtained.record), obtained.from_cache ? ", from the cache" : "");
  text += columns(peak::table_rows(*obtained.record, gpu));
  for (const std::string& line : peak::doubtful(*obtained.record, gpu))
    text += fmt::format("doubtful data sheet (?): {}\n", line);
  for (const std::string& line : peak::missing(*obtained.record)) text += fmt::format("not measured: {}\n", line);
  return {text, {{"record", peak::with_references(*obtained.record, gpu)}, {"from_cache", obtained.from_cache}, {"why_not", ""}}};
}

Exit measure_peaks(const PeakFlags& flags) {
  base::install_interrupt_handlers();
  peak::Options options{.quick = flags.quick, .refresh = flags.refresh, .purpose = "aisp peak"};
  options.note = [](const std::string& line) { note("aisp: " + line); };
  if (flags.links) {
    const machine::Topology topology = machine::probe_topology();
    return show_links(topology, wanted_gpus(topology.machine, flags.gpus), options,
                      {.json = flags.json, .svg = flags.svg, .csv = flags.csv, .markdown = flags.markdown, .peers = flags.peers});
  }
  if (!flags.svg.empty() && !flags.levels)
    throw Error{Exit::usage, "--svg: it draws what --levels or --links measures; give one of them too"};
  const machine::Machine machine = machine::probe();
  const std::vector<int> gpus = wanted_gpus(machine, flags.gpus);
  if (flags.levels) return show_levels(machine, gpus, options, {.json = flags.json, .svg = flags.svg});
  json list = json::array();
  std::string text;
  bool good = true;
  const std::vector<peak::Obtained> measured = peak::obtain_gpus(machine, gpus, options);
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const int ordinal = gpus[i];
    const peak::Obtained& obtained = measured[i];
    Shown shown = shown_of(fmt::format("GPU {}", ordinal), obtained, &machine.gpus[static_cast<std::size_t>(ordinal)]);
    shown.as_json["ordinal"] = ordinal;
    list.push_back(std::move(shown.as_json));
    text += shown.text + '\n';
    good = good && obtained.record;
  }
  if (machine.gpus.empty()) text += fmt::format("GPU: not measured: {}; {}\n\n", machine.cuda_error, machine.cuda_advice);
  const peak::Obtained host = peak::obtain_host(machine, options);
  const Shown shown = shown_of("host", host, nullptr);
  good = good && host.record;
  if (flags.json)
    print(evidence::json_text(json{{"schema_version", evidence::schema_version},
                                   {"gpus", list},
                                   {"no_gpu", machine.gpus.empty() ? machine.cuda_error : ""},
                                   {"host", shown.as_json}},
                              2) +
          '\n');
  else show(text + shown.text);
  return good ? Exit::good : Exit::unfit;
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
  command
      ->add_option("--peers", options->peers,
                   "with --links: compare with these GPUs too, recorded elsewhere by --links --json; repeats")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("FILE")
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
