// SPDX-License-Identifier: Apache-2.0
#include "suite/records/run_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "evidence/manifest.hpp"
#include "evidence/results_log.hpp"
#include "suite/records/records.hpp"

namespace aisp::suite {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::Exit;

constexpr const char* lock_name = ".lock";

base::FileLock take_lock(const fs::path& folder, const std::string& purpose) {
  if (auto lock = base::FileLock::acquire(lock_file(folder), purpose)) return std::move(*lock);
  throw Error{Exit::unfit, fmt::format("{} is in use by {}; wait for it or choose another run", folder.string(),
                                       base::FileLock::holder(lock_file(folder)))};
}

// Returns false if the folder exists already.
bool try_create(const fs::path& folder) {
  std::error_code error;
  if (fs::create_directory(folder, error)) return true;
  if (!error) return false;
  if (error == std::errc::file_exists) return false;
  throw Error{Exit::unfit,
              fmt::format("cannot make {}: {}; choose another place with --artifacts-dir", folder.string(), error.message())};
}

std::vector<fs::path> runs_below(const fs::path& artifacts) {
  std::vector<fs::path> runs;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator{artifacts, ignored})
    if (is_run_folder(entry.path())) runs.push_back(entry.path());
  return runs;
}

// Requires UTF-8: children get the path in JSON.
void demand_utf8(const fs::path& artifacts) {
  const std::string place = fs::absolute(artifacts).string();
  const std::string known = nlohmann::json(place).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
  if (nlohmann::json::parse(known).get<std::string>() != place)
    throw Error{Exit::unfit, fmt::format("{} is no text in UTF-8, so results cannot name it; choose another place with "
                                         "--artifacts-dir, or another folder to run in",
                                         place)};
}

// Returns the run that began last, by its log: copied or unpacked files have the time of the copy.
fs::path newest(const std::vector<fs::path>& runs) {
  std::error_code ignored;
  std::optional<std::pair<std::string, fs::path>> best;
  for (const fs::path& run : runs) {
    if (!fs::exists(run / evidence::results_log_file, ignored)) continue;
    const auto header = evidence::try_read_log_header(run / evidence::results_log_file);
    best = std::max(best, std::optional{std::pair{header ? header->started_utc : std::string{}, run}});
  }
  return best ? best->second : fs::path{};
}

// Lists everything below without following links.
std::vector<fs::path> everything_below(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator it{folder, error}, end; !error && it != end; it.increment(error))
    paths.push_back(it->path());
  return paths;
}

// Whether a killed process left it: a scratch folder, or a half-written file.
bool is_remains(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with(scratch_prefix) || base::is_temporary_name(name);
}

// Removes what a killed process left; it may be large.
void remove_remains(const fs::path& folder) {
  for (const fs::path& path : everything_below(folder))
    if (is_remains(path)) base::remove_tree(path);
}

// Names the kind of a file that aisp never puts into a run's folder; empty for all others.
std::string_view foreign_kind(const fs::path& path) {
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(path, ignored).type();
  if (type == fs::file_type::symlink) return "a link";
  if (type == fs::file_type::directory) return {};
  if (type != fs::file_type::regular) return "no regular file";
  return fs::hard_link_count(path, ignored) > 1 ? "a hard link to a file that has another name too" : std::string_view{};
}

// Refuses folders with links and pipes: in a folder from elsewhere a link could lead to any file of the user's, and reading a
// pipe could block forever.
void refuse_what_aisp_does_not_make(const fs::path& folder, std::string_view verb) {
  for (const fs::path& path : everything_below(folder))
    if (const std::string_view kind = foreign_kind(path); !kind.empty())
      throw Error{Exit::usage, fmt::format("cannot {} {}: {} is {}, and aisp puts none into a run's folder; remove it", verb,
                                           folder.string(), path.string(), kind)};
}

bool is_our_manifest(const fs::path& file) {
  try {
    const evidence::Manifest manifest = evidence::read_manifest(file);
    return !manifest.run_id.empty() && !manifest.aisp_version.empty();
  } catch (const Error&) {
    return false;
  }
}

bool is_our_configuration(const fs::path& file) {
  try {
    return !read_resumed(file.parent_path(), {}).targets.empty();
  } catch (const Error&) {
    return false;
  }
}

// Says whether a run or a merge was killed here before it had kept anything. A process that is about to take a lock has not
// written its name yet.
bool holds_a_free_lock_and_remains(const fs::path& folder) {
  std::error_code error;
  if (fs::symlink_status(folder, error).type() != fs::file_type::directory) return false;
  const fs::directory_iterator entries{folder, error};
  const bool is_kept = std::any_of(begin(entries), end(entries), [&](const fs::directory_entry& entry) {
    return entry.path() != lock_file(folder) && !is_remains(entry.path());
  });
  return !error && !is_kept && !base::FileLock::holder(lock_file(folder)).empty() && !is_in_use(folder);
}

}  // namespace

fs::path lock_file(const fs::path& folder) { return folder / lock_name; }

bool is_run_folder(const fs::path& folder) {
  std::error_code ignored;
  return std::ranges::any_of(std::array{evidence::results_log_file, manifest_file, configuration_file},
                             [&](const char* file) { return fs::is_regular_file(folder / file, ignored); });
}

bool was_written_by_aisp(const fs::path& folder) {
  return evidence::try_read_log_header(folder / evidence::results_log_file) || is_our_manifest(folder / manifest_file) ||
         is_our_configuration(folder / configuration_file);
}

bool is_in_use(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(lock_file(folder), ignored) && !base::FileLock::acquire(lock_file(folder), "a look at it");
}

void demand_free(const fs::path& folder, std::string_view verb) {
  std::error_code ignored;
  if (fs::exists(lock_file(folder), ignored)) take_lock(folder, "a look at it");
  refuse_what_aisp_does_not_make(folder, verb);
}

RunFolder::RunFolder(fs::path path, const std::string& purpose, bool is_new)
    : path_{std::move(path)}, lock_{take_lock(path_, purpose)}, is_new_{is_new} {}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : path_{std::move(other.path_)}, lock_{std::move(other.lock_)}, is_new_{std::exchange(other.is_new_, false)} {}

RunFolder::~RunFolder() {
  std::error_code ignored;
  const std::uintmax_t log_bytes = fs::file_size(path_ / evidence::results_log_file, ignored);
  const bool has_begun = !ignored && log_bytes > 0;
  if (!is_new_ || has_begun) return;
  // A full disk may have allowed the first files only; a folder of these alone would just occupy its name.
  const std::vector<fs::path> all = everything_below(path_);
  if (std::ranges::all_of(all, [](const fs::path& path) {
        const std::string name = path.filename().string();
        return name == lock_name || name == configuration_file || name == manifest_file || name == evidence::results_log_file;
      }))
    fs::remove_all(path_, ignored);
}

RunFolder RunFolder::create(const fs::path& artifacts, const std::string& run_id, const std::string& purpose,
                            const std::string& prefix) {
  demand_utf8(artifacts);
  try {
    base::make_directories(artifacts);
  } catch (const Error& error) {
    throw Error{Exit::unfit, fmt::format("{}; choose another place with --artifacts-dir", error.what())};
  }
  if (!run_id.empty()) {
    const fs::path folder = artifacts / run_id;
    if (try_create(folder)) return RunFolder{folder, purpose, true};
    if (holds_a_free_lock_and_remains(folder)) {
      RunFolder taken{folder, purpose, true};
      remove_remains(folder);
      return taken;
    }
    throw Error{Exit::usage, fmt::format("{} exists already; continue it with --resume {}, or choose another --run-id",
                                         folder.string(), folder.string())};
  }
  const std::string stamp = prefix + base::folder_timestamp();
  for (int number = 1; number < 1000; ++number) {
    const fs::path folder = artifacts / (number == 1 ? stamp : fmt::format("{}_{}", stamp, number));
    if (try_create(folder)) return RunFolder{folder, purpose, true};
  }
  throw Error{Exit::unfit, fmt::format("cannot find a free name below {}", artifacts.string())};
}

fs::path find_run(const fs::path& artifacts, const std::string& run) {
  if (run == "latest") {
    if (const fs::path folder = newest(runs_below(artifacts)); !folder.empty()) return folder;
    throw Error{Exit::usage, fmt::format("latest: there is no run below {}", artifacts.string())};
  }
  for (const fs::path& folder : {artifacts / run, fs::path{run}})
    if (is_run_folder(folder)) return folder.has_filename() ? folder : folder.parent_path();
  std::vector<std::string> names;
  for (const fs::path& folder : runs_below(artifacts)) names.push_back(folder.filename().string());
  const std::vector<std::string> near = base::nearest(names, run, 3);
  throw Error{Exit::usage, fmt::format("there is no run '{}', here or below {}{}", run, artifacts.string(),
                                       near.empty() ? "" : fmt::format("; did you mean {}?", base::join(near, ", ")))};
}

RunFolder RunFolder::reopen(const fs::path& artifacts, const std::string& run, const std::string& purpose) {
  RunFolder folder{find_run(artifacts, run), purpose, false};
  remove_remains(folder.path());
  refuse_what_aisp_does_not_make(folder.path(), "continue");
  return folder;
}

}  // namespace aisp::suite
