// SPDX-License-Identifier: Apache-2.0
#include "suite/side_by_side.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/system/interrupt.hpp"
#include "evidence/json.hpp"
#include "evidence/results_log.hpp"
#include "evidence/run_record.hpp"
#include "suite/records/records.hpp"

namespace aisp::suite {
namespace {

namespace fs = std::filesystem;

constexpr const char* own_executable = "/proc/self/exe";

evidence::Manifest of_other(const run::Counterpart& other, evidence::Manifest manifest) {
  manifest.aisp_version = other.version;
  manifest.commit = other.commit;
  // This executable's other facts about its own build say nothing of the other.
  manifest.branch = manifest.build_type = manifest.compilers = manifest.cuda_architectures = "";
  manifest.dirty = false;
  return manifest;
}

}  // namespace

fs::path second_process(const fs::path& folder) { return folder / (std::string{evidence::confirmation_prefix} + "side_by_side"); }

SideBySide::SideBySide(run::Counterpart other, const fs::path& folder, const evidence::Manifest& manifest)
    : other_{std::move(other)},
      own_{own_executable, folder},
      own_again_{opened(own_executable, second_process(folder), manifest)},
      other_first_{opened(other_.executable, folder / against_folder, of_other(other_, manifest))},
      other_again_{opened(other_.executable, second_process(folder / against_folder), of_other(other_, manifest))} {}

SideBySide::Place SideBySide::opened(const fs::path& executable, const fs::path& folder, const evidence::Manifest& manifest) {
  base::make_directories(folder);
  base::write_atomically(folder / manifest_file, evidence::json_text(manifest, 2) + '\n');
  const fs::path file = folder / evidence::results_log_file;
  std::error_code none;
  const bool begun = fs::file_size(file, none) > 0 && !none;
  Place place{{executable, folder}, base::AppendFile{file}};
  if (!begun) place.log.append_line(evidence::header_line({manifest.run_id, manifest.started_utc}));
  return place;
}

evidence::PairResult SideBySide::measure(const std::string& target, const Measure& child) {
  const bool both = std::find(other_.targets.begin(), other_.targets.end(), target) != other_.targets.end();
  if (both) keep(other_first_, child);
  evidence::PairResult result = child(own_);
  if (both && result.status == evidence::Status::passed) {
    keep(own_again_, child);
    keep(other_again_, child);
  }
  return result;
}

void SideBySide::keep(Place& place, const Measure& child) {
  if (base::interrupted()) return;
  const evidence::PairResult result = child(place.side);
  const std::lock_guard lock{mutex_};
  place.log.append_line(evidence::to_line(result));
}

}  // namespace aisp::suite
