// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "base/system/lock.hpp"

namespace aisp::suite {

// The prefix of the folders in a run's folder in which pairs keep files while they run.
inline constexpr const char* scratch_prefix = ".scratch-";

// The folder of one run, held by a lock while the run goes on, so that nobody cleans or resumes it meanwhile.
class RunFolder {
 public:
  // A new one below `artifacts`: `run_id`, or `prefix` and a time stamp, which get a number when they are taken. Throws
  // base::Error: unfit when it cannot be made, usage when `run_id` exists.
  static RunFolder create(const std::filesystem::path& artifacts, const std::string& run_id, const std::string& purpose,
                          const std::string& prefix = {});
  // An earlier one: a path, or a name below `artifacts`, or "latest". What a part of the run that was killed left behind is
  // removed. Throws base::Error: usage when there is none, or when it holds a link, which would lead what is written elsewhere, a
  // pipe or a device; unfit while it is in use.
  static RunFolder reopen(const std::filesystem::path& artifacts, const std::string& run, const std::string& purpose);

  // A new folder in which nothing was written goes with it.
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

// The folder that `run` names, as for reopen(). Throws base::Error (usage) when there is none.
std::filesystem::path find_run(const std::filesystem::path& artifacts, const std::string& run);
// Has files of the names of our results or our manifest in it.
bool is_run_folder(const std::filesystem::path& folder);
// And what they hold was written by aisp: only such a folder may be removed.
bool was_written_by_aisp(const std::filesystem::path& folder);
bool is_in_use(const std::filesystem::path& folder);
// Throws base::Error where reopen() would, and removes nothing; `verb` is what cannot be done with it then.
void demand_free(const std::filesystem::path& folder, std::string_view verb = "continue");
std::filesystem::path lock_file(const std::filesystem::path& folder);

}  // namespace aisp::suite
