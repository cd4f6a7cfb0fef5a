// SPDX-License-Identifier: Apache-2.0
#include "fuzz/readers.hpp"

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "base/text.hpp"
#include "evidence/expectations/analysis.hpp"
#include "evidence/expectations/expectations.hpp"
#include "evidence/json.hpp"
#include "evidence/manifest.hpp"
#include "evidence/results_log.hpp"
#include "evidence/run_record.hpp"
#include "knowledge/model.hpp"
#include "report/analysis/analysis.hpp"
#include "run/wire/protocol.hpp"
#include "suite/settings/configuration.hpp"

namespace aisp::fuzz {
namespace {

constexpr const char* source = "seed.txt";

// As `aisp analyze` treats a run.
void read_results(std::string_view text) {
  evidence::ResultsLog log = evidence::parse_results_log(text, source);
  for (const evidence::PairResult& pair : log.results) evidence::to_line(pair);
  const std::vector<evidence::RunRecord> runs{{.folder = "run", .manifest = {}, .pairs = std::move(log.results), .warnings = {}}};
  evidence::ExpectationFolder none{"/nonexistent"};
  const evidence::Analysis analysis = evidence::analyze(runs, none, {});
  report::analysis_json(analysis);
  report::junit_xml(analysis);
  report::github_annotations(analysis);
  report::google_benchmark(runs);
  evidence::as_expectations(runs.front().pairs, runs.front().manifest);
}

void read_expectations(std::string_view text) {
  const evidence::Expectations expectations = evidence::parse_expectations(text, source);
  for (const auto& [name, pair] : expectations.pairs) evidence::applicable(pair, pair.source_digest, {});
}

void read_manifest(std::string_view text) {
  const evidence::Manifest manifest = evidence::parse_manifest(text, source);
  evidence::PairResult pair;
  pair.device = evidence::Device::gpu;
  for (const evidence::ManifestGpu& gpu : manifest.gpus) {
    pair.gpus = {gpu.uuid};
    evidence::hardware_key(pair, manifest);
  }
  evidence::differences(manifest, {});
  evidence::json_text(manifest);
}

void read_configuration(std::string_view text) {
  suite::Configuration configuration;
  suite::apply_text(configuration, text, source);
}

void read_model(std::string_view text) { knowledge::parse_model_config(text, source); }

// Nothing that a child writes may end in an exception.
void read_protocol(std::string_view text) {
  run::LineSplitter lines{4096};
  lines.feed(text, [](std::string_view line) {
    try {
      run::parse_message(line);
    } catch (...) {
      std::fputs("parse_message threw\n", stderr);
      std::abort();
    }
  });
}

constexpr Reader all_readers[] = {{"results", read_results},   {"expectations", read_expectations},
                                  {"manifest", read_manifest}, {"configuration", read_configuration},
                                  {"model", read_model},       {"protocol", read_protocol}};

void demand(bool holds, const Reader& reader, const char* what, const char* line) {
  if (holds) return;
  std::fprintf(stderr, "%.*s: %s: %s\n", static_cast<int>(reader.name.size()), reader.name.data(), what, line);
  std::abort();
}

}  // namespace

std::span<const Reader> readers() { return all_readers; }

bool feed(const Reader& reader, std::string_view text) {
  try {
    reader.read(text);
    return true;
  } catch (const base::Error& error) {
    const std::string line = base::one_line(error.what());
    demand(error.status() == base::Exit::usage || error.status() == base::Exit::unfit, reader, "wrong exit status", error.what());
    demand(line.find(source) != std::string::npos, reader, "the error does not name the file", error.what());
    demand(line.size() > std::string_view{source}.size() + 5, reader, "the error says nothing", error.what());
    return false;
  }
}

}  // namespace aisp::fuzz
