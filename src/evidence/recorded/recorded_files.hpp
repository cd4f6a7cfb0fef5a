// SPDX-License-Identifier: Apache-2.0
// Records of one pair each beside the expectations, in expectations/<hardware>/<kind>/<chapter>_<name>.json. Nothing is held
// against them: READMEs show them. Not for use beyond evidence's own .cpp files.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "base/system/files.hpp"
#include "evidence/expectations/expectations.hpp"
#include "evidence/fields.hpp"
#include "evidence/json.hpp"

namespace aisp::evidence {

AISP_DESCRIBE(Recorded, date_utc, run_id, aisp_version, commit, gpu, driver, cuda, cpu, power_limit_w)

std::filesystem::path record_path(const std::filesystem::path& folder, const std::string& hardware, std::string_view kind,
                                  const std::string& target);
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

}  // namespace aisp::evidence
