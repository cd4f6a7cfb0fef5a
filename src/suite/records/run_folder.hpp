// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "base/system/lock.hpp"

namespace aisp::suite {

// The prefix of the folders in a run's folder in which pairs keep files while they run.
inline constexpr const char* scratch_prefix = ".scratch-";

// The folder of one run, locked while the run goes on, so that it is not cleaned or resumed meanwhile.
class RunFolder {
 public:
  // Creates a folder below `artifacts`: `run_id`, or `prefix` and a time stamp, with a number added if it exists. Throws
  // base::Error: unfit if it cannot be made, usage if `run_id` exists.
  static RunFolder create(const std::filesystem::path& artifacts, const std::string& run_id, const std::string& purpose,
                          const std::string& prefix = {});
  // Opens an earlier folder: a path, or a name below `artifacts`, or "latest". Removes leftovers of a killed part of the run.
  // Throws base::Error: usage if there is none, or if it holds a link, which would redirect writes, a pipe or a device; unfit
  // while it is in use.
  static RunFolder reopen(const std::filesystem::path& artifacts, const std::string& run, const std::string& purpose);

  // Removes a new folder in which nothing was written.
  ~RunFolder();
  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(RunFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string id() const { return path_.filename().string(); }

 private:
  RunFolder(std::filesystem::path path, const std::string& purpose, bool is_new);

  std::filesystem::path path_;
  base::FileLock lock_;
  bool is_new_;
};

// Returns the folder that `run` names, as for reopen(). Throws base::Error (usage) if there is none.
std::filesystem::path find_run(const std::filesystem::path& artifacts, const std::string& run);
// Whether the folder has files with the names of our results or our manifest.
bool is_run_folder(const std::filesystem::path& folder);
// Whether, in addition, aisp wrote their contents: only such a folder may be removed.
bool was_written_by_aisp(const std::filesystem::path& folder);
bool is_in_use(const std::filesystem::path& folder);
// Throws base::Error if reopen() would, and removes nothing; `verb` names the refused action.
void demand_free(const std::filesystem::path& folder, std::string_view verb = "continue");
std::filesystem::path lock_file(const std::filesystem::path& folder);

}  // namespace aisp::suite
