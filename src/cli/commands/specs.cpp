// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "evidence/json.hpp"
#include "machine/gpu_specs.hpp"

namespace aisp::cli {
namespace {

using machine::Fact;
using machine::GpuSpec;
using machine::NumberType;
using nlohmann::json;

std::vector<NumberType> all_rates() {
  std::vector<NumberType> rates;
  for (std::size_t i = 0; i < machine::rate_kinds; ++i) rates.push_back(static_cast<NumberType>(i));
  return rates;
}

json as_json(const GpuSpec& spec) {
  json gpu = {{"key", spec.key}, {"name", spec.name}};
  json sources = json::object();
  for (const auto& [name, fact] : machine::facts_of(spec)) {
    gpu[name] = fact->known() ? json(fact->value) : json(nullptr);
    if (fact->known())
      sources[name] = {{"title", fact->source->title},
                       {"url", fact->source->url},
                       {"reading", text_of(fact->reading)},
                       {"doubt", fact->doubt}};
  }
  for (const NumberType rate : {NumberType::bf16, NumberType::fp8})
    gpu[fmt::format("ridge_{}_flop_per_byte", name_of(rate))] = spec.rate(rate).known() ? json(spec.ridge(rate)) : json(nullptr);
  gpu["sources"] = std::move(sources);
  return gpu;
}

std::string scaled(const Fact& fact, double unit) {
  return fact.known() ? fmt::format("{:.5g}{}", fact.value / unit, machine::mark(fact.doubtful())) : "-";
}

std::vector<std::string> row_of(const GpuSpec& spec) {
  constexpr double giga = 1e9, tera = 1e12, mib = 1 << 20;
  const auto ridge = [&](NumberType rate) {
    const Fact& fact = spec.rate(rate);
    const bool doubtful = fact.doubtful() || spec.memory_bytes_s.doubtful();
    return fact.known() ? fmt::format("{:.0f}{}", spec.ridge(rate), machine::mark(doubtful)) : std::string{"-"};
  };
  std::vector<std::string> row = {std::string{spec.key}, scaled(spec.sms, 1), scaled(spec.l2_bytes, mib),
                                  scaled(spec.memory_bytes, giga), scaled(spec.memory_bytes_s, giga)};
  for (const NumberType rate : all_rates()) row.push_back(scaled(spec.rate(rate), tera));
  row.push_back(spec.link_bytes_s.value > 0 ? scaled(spec.link_bytes_s, giga) : "-");
  row.push_back(scaled(spec.tdp_w, 1));
  row.push_back(ridge(NumberType::bf16));
  row.push_back(ridge(NumberType::fp8));
  return row;
}

std::string table(const std::vector<const GpuSpec*>& specs) {
  std::vector<std::string> head = {"GPU", "SMs", "L2 MiB", "GB", "GB/s"};
  for (const NumberType rate : all_rates()) head.push_back(base::join(base::split(name_of(rate), '_'), " "));
  for (const char* last : {"link GB/s", "W", "ridge bf16", "ridge fp8"}) head.emplace_back(last);
  std::vector<std::vector<std::string>> rows = {std::move(head)};
  for (const GpuSpec* spec : specs) rows.push_back(row_of(*spec));
  return columns(rows) +
         "\nSMs: AMD's compute units. fp64 to fp4: dense TFLOP/s (int8: TOP/s). link: NVLink or Infinity Fabric to all peers, "
         "both directions. W: TDP.\n"
         "ridge: FLOP/byte above which arithmetic limits, not memory. \"-\": none, or not stated.\n"
         "\"?\": doubtful. Where from, and why doubtful: --source\n";
}

std::string source_table(const std::vector<const GpuSpec*>& specs) {
  std::vector<std::vector<std::string>> rows;
  for (const GpuSpec* spec : specs)
    for (const auto& [name, fact] : machine::facts_of(*spec)) {
      if (!fact->known()) continue;
      rows.push_back(
          {std::string{spec->key}, name, fmt::format("{:.5g}", fact->value), citation(*fact), std::string{fact->source->url}});
      if (fact->doubtful()) rows.back().push_back(fmt::format("doubtful: {}", fact->doubt));
    }
  return columns(rows);
}

}  // namespace

void add_specs(CLI::App& app, Action& action) {
  struct SpecsOptions {
    std::vector<std::string> names;
    bool json = false, source = false;
  };
  auto options = std::make_shared<SpecsOptions>();
  CLI::App* command =
      app.add_subcommand("specs", "print what vendors publish about GPUs: SMs, L2, memory, bandwidth, dense rates, ridge points");
  command->add_option("GPU", options->names, "of these GPUs only, as in h200 b200; a family such as h100 is all of its members")
      ->type_name("");
  command->add_flag("--json", options->json, "as JSON, each value with its source and what is doubtful about it");
  command->add_flag("--source", options->source,
                    "every value with the document that states it, and why it is doubtful where it is");
  command->callback([options, &action] {
    action = [options] {
      const std::vector<const GpuSpec*> specs = machine::select_specs(options->names);
      if (options->json) {
        json list = json::array();
        for (const GpuSpec* spec : specs) list.push_back(as_json(*spec));
        print(evidence::json_text({{"schema_version", evidence::schema_version}, {"gpus", list}}, 2) + '\n');
      } else show(options->source ? source_table(specs) : table(specs));
      return base::Exit::good;
    };
  });
}

}  // namespace aisp::cli
