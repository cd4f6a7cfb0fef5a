// SPDX-License-Identifier: Apache-2.0
// Records of one pair each beside the expectations, in expectations/<hardware>/<kind>/<chapter>_<name>.json. Nothing is held
// against them: READMEs show them. Not for use beyond evidence's own .cpp files.
#pragma once
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "evidence/expectations/expectations.hpp"
#include "evidence/fields.hpp"
#include "evidence/json.hpp"
#include "evidence/names.hpp"

namespace aisp::evidence {

template <class Visitor>
void describe(Recorded& r, Visitor& visit) {
  visit("date_utc", r.date_utc);
  visit("run_id", r.run_id);
  visit("aisp_version", r.aisp_version);
  visit("commit", r.commit);
  visit("gpu", r.gpu);
  visit("driver", r.driver);
  visit("cuda", r.cuda);
  visit("cpu", r.cpu);
  visit("power_limit_w", r.power_limit_w);
}

std::filesystem::path record_path(const std::filesystem::path& folder, const std::string& hardware, std::string_view kind,
                                  const std::string& target);
// By hardware, then target; none where the folder is missing.
std::vector<std::filesystem::path> record_files(const std::filesystem::path& folder, std::string_view kind);
// By whom and when the pair was measured.
Recorded recorded_of(const PairResult& pair, const Manifest& manifest);

// In whole or not at all; throws base::Error (Exit::unfit).
template <class Record>
void write_record(const std::filesystem::path& folder, std::string_view kind, Record& record) {
  json document;
  Writer writer{document};
  describe(record, writer);
  const std::filesystem::path file = record_path(folder, record.hardware, kind, record.target);
  base::make_directories(file.parent_path());
  base::write_atomically(file, json_text(document, 2) + '\n');
}

// A record as its file holds it; `how` is the run that records it. Throws base::Error (Exit::usage) naming `source` where it is
// none, or of another version.
template <class Record>
Record parse_record(std::string_view text, const std::string& source, int version, std::string_view how) {
  const json document = parse_json(text, source);
  Record record;
  Reader reader{document, source};
  describe(record, reader);
  if (record.schema_version != version)
    throw base::Error{base::Exit::usage,
                      fmt::format("{}: schema_version {} is not {}, which this aisp reads; record it again with {} "
                                  "--update-expectations",
                                  source, record.schema_version, version, how)};
  if (!is_target(record.target)) throw base::Error{base::Exit::usage, fmt::format("{}: its target is none", source)};
  return record;
}

// All of one kind, each by parse(text, source). Throws base::Error (Exit::usage) naming the file that cannot be read or lies
// where another belongs.
template <class Parse>
auto read_records(const std::filesystem::path& folder, std::string_view kind, Parse parse) {
  constexpr std::size_t largest_file_bytes = std::size_t{16} << 20;
  std::vector<decltype(parse(std::string_view{}, std::string{}))> records;
  for (const std::filesystem::path& file : record_files(folder, kind)) {
    const auto& record = records.emplace_back(parse(base::read_file(file, largest_file_bytes), file.string()));
    if (record_path(folder, record.hardware, kind, record.target) != file)
      throw base::Error{base::Exit::usage, fmt::format("{}: it says that it is of {} on {}; move it to its place", file.string(),
                                                       record.target, record.hardware)};
  }
  return records;
}

}  // namespace aisp::evidence
