// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/peak_links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/system/files.hpp"
#include "base/system/places.hpp"
#include "cli/output.hpp"
#include "evidence/json.hpp"
#include "peak/table.hpp"
#include "report/markdown/markdown.hpp"
#include "report/pictures/line_picture.hpp"
#include "report/quote.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;
using nlohmann::json;
using peak::Fabric;
using peak::PeakRecord;

constexpr std::size_t longest_links_bytes = std::size_t{16} << 20;

std::vector<Fabric> read_peers(const std::vector<std::string>& files) {
  std::vector<Fabric> peers;
  for (const std::string& file : files) {
    const std::string text = base::read_file(file, longest_links_bytes);
    try {
      const json report = evidence::parse_json(text, "JSON");
      peers.push_back(*peak::read_record(report.at("links"), peak::Subject::fabric).fabric);
    } catch (const std::exception& error) {
      throw Error{Exit::usage,
                  fmt::format("--peers {}: it is not what aisp peak --links --json writes ({})", file, error.what())};
    }
  }
  return peers;
}

// All that is to be said beside the tables.
struct LinkRemarks {
  std::vector<std::string> wrong, slow, others;
};

LinkRemarks said_of(const Fabric& fabric, const peak::Judged& judged) {
  LinkRemarks said{.wrong = peak::wrong_results(fabric), .slow = {}, .others = judged.unclear};
  for (const peak::Slow& slow : judged.slow) said.slow.push_back(peak::line_of(slow));
  if (said.slow.empty() && judged.unclear.empty())
    said.others.push_back(fabric.missing.empty() ? "no GPU and no link is slower than its neighbours"
                                                 : "no GPU and no link is slower than its neighbours, of what was measured");
  for (const std::string& why : fabric.missing) said.others.push_back("not measured: " + why);
  return said;
}

std::vector<std::string> lines_of(const LinkRemarks& said) {
  std::vector<std::string> lines = said.wrong;
  lines.insert(lines.end(), said.slow.begin(), said.slow.end());
  lines.insert(lines.end(), said.others.begin(), said.others.end());
  return lines;
}

json slow_json(const std::vector<peak::Slow>& slow) {
  json list = json::array();
  for (const peak::Slow& each : slow)
    list.push_back({{"subject", each.subject},
                    {"figure", each.figure},
                    {"unit", peak::name_of(each.unit)},
                    {"value", each.value},
                    {"usual", each.usual},
                    {"usual_of", each.usual_of},
                    {"deviations", each.deviations}});
  return list;
}

std::string text_of(const PeakRecord& record, const std::vector<std::string>& lines) {
  std::string text = peak::heading(record) + "\n\n";
  for (const peak::FabricTable& table : peak::fabric_tables(*record.fabric))
    text += table.title + '\n' + columns(table.rows) + '\n';
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

std::string markdown_of(const PeakRecord& record, const std::vector<std::string>& lines) {
  std::string text = report::paragraph(peak::heading(record)) + '\n';
  for (const peak::FabricTable& table : peak::fabric_tables(*record.fabric)) {
    const std::vector<std::string>& heading = table.rows.front();
    report::MarkdownTable markdown{heading, {heading.begin() + 1, heading.end()}};
    std::for_each(table.rows.begin() + 1, table.rows.end(), [&](const std::vector<std::string>& row) { markdown.add(row); });
    text += report::paragraph(table.title + ":") + '\n' + markdown.text() + '\n';
  }
  for (const std::string& line : lines) text += report::list_item(line);
  return text;
}

std::string picture_of(const PeakRecord& record) {
  const Fabric& fabric = *record.fabric;
  report::Staircase rates{
      .title = "Bus bandwidth by size", .y_title = "bus bandwidth", .unit = " GB/s", .lines = {}, .marks = {}, .x_title = "size"};
  report::Staircase times{.title = "Time by size", .y_title = "time", .unit = " us", .lines = {}, .marks = {}, .x_title = "size"};
  for (std::size_t i = 0; i < peak::collectives; ++i) {
    const auto operation = static_cast<peak::Collective>(i);
    const std::string name{name_of(operation)};
    report::Staircase::Line rate{name, {}}, time{name, {}};
    for (const peak::CollectiveTime& point : fabric.times) {
      if (point.operation != operation) continue;
      rate.points.push_back({point.bytes, point.bus_bytes_s(fabric.gpus.size()) * 1e-9});
      time.points.push_back({point.bytes, point.seconds * 1e6});
    }
    rates.lines.push_back(std::move(rate));
    times.lines.push_back(std::move(time));
  }
  return report::staircase_svg(peak::heading(record), {rates, times});
}

std::string csv_of(const Fabric& fabric) {
  std::string text;
  for (const std::vector<std::string>& row : peak::fabric_values(fabric)) text += report::csv_line(row);
  return text;
}

std::array<std::string, 3> files_of(const PeakFlags& flags) { return {flags.svg, flags.csv, flags.markdown}; }

void demand_one_on_standard_output(const PeakFlags& flags) {
  if ((flags.json ? 1 : 0) + std::ranges::count(files_of(flags), "-") > 1)
    throw Error{Exit::usage, "--json, --svg, --csv and --markdown: only one can write to the standard output"};
}

// Tries the files before half a minute of measuring.
void demand_places(const PeakFlags& flags) {
  for (const std::string& file : files_of(flags))
    if (!file.empty()) demand_place_for(file);
}

void write_documents(const PeakRecord& record, const peak::Judged& judged, const LinkRemarks& said, const PeakFlags& flags) {
  if (!flags.svg.empty()) print_to(flags.svg, picture_of(record));
  if (!flags.csv.empty()) print_to(flags.csv, csv_of(*record.fabric));
  if (!flags.markdown.empty()) print_to(flags.markdown, markdown_of(record, lines_of(said)));
  if (flags.json) {
    print(evidence::json_text(json{{"schema_version", evidence::schema_version},
                                   {"links", peak::record_json(record)},
                                   {"slow", slow_json(judged.slow)},
                                   {"unclear", judged.unclear},
                                   {"wrong", said.wrong}},
                              2) +
          '\n');
  } else if (flags.svg != "-" && flags.csv != "-" && flags.markdown != "-") show(text_of(record, lines_of(said)));
}

// A machine without NCCL lacks the collectives alone, and is not at fault.
bool is_whole(const Fabric& fabric) {
  return fabric.missing.empty() || (fabric.nccl.empty() && !fabric.pairs.empty() && fabric.missing.size() == 1);
}

}  // namespace

Exit show_links(const machine::Topology& topology, const std::vector<int>& gpus, const peak::ObtainOptions& options,
                const PeakFlags& flags) {
  demand_one_on_standard_output(flags);
  const std::vector<Fabric> peers = read_peers(flags.peers);
  if (gpus.size() < 2)
    throw Error{Exit::unfit, fmt::format("--links: it takes two GPUs; {}",
                                         topology.machine.gpus.empty() ? topology.machine.cuda_error : "here is one")};
  demand_places(flags);
  const peak::Obtained obtained = peak::obtain_fabric(topology, gpus, options);
  if (!obtained.record) throw Error{Exit::unfit, fmt::format("the links were not measured: {}", obtained.why_not)};
  const Fabric& fabric = *obtained.record->fabric;
  const peak::Judged judged = peak::judge(fabric, peers);
  const LinkRemarks said = said_of(fabric, judged);
  write_documents(*obtained.record, judged, said, flags);
  if (!said.wrong.empty()) return Exit::failed;
  if (!said.slow.empty()) return Exit::regression;
  return is_whole(fabric) ? Exit::good : Exit::unfit;
}

std::string known_links(const machine::Topology& topology, json& object) {
  object = nullptr;
  std::vector<int> gpus;
  for (const machine::Gpu& gpu : topology.machine.gpus) gpus.push_back(gpu.ordinal);
  if (gpus.size() < 2) return {};
  const std::optional<PeakRecord> record =
      peak::load(base::cache_folder(), peak::fabric_key(topology.machine, gpus), peak::Subject::fabric).record;
  if (!record) return "\nCopies between GPUs were not measured here: aisp peak --links measures them\n";
  object = peak::record_json(*record);
  const peak::FabricTable matrix = peak::copy_matrix(*record->fabric);
  std::string text = fmt::format("\n{} (aisp peak --links, {})\n{}", matrix.title, record->measured_utc, columns(matrix.rows));
  for (const std::string& line : lines_of(said_of(*record->fabric, peak::judge(*record->fabric, {})))) text += line + '\n';
  return text;
}

}  // namespace aisp::cli
