// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace aisp::base {

// The users who may take a lock: those whom the umask lets write its file, or all, whatever the umask.
enum class LockUsers { writers, all };

// An exclusive advisory lock (flock) on a file. The kernel drops it when the holder dies, however it dies. The file stays and
// names the last holder.
class FileLock {
 public:
  // Nothing when another process has held it for `timeout_s` (0: one try) or `give_up` says so. `purpose` is for whoever finds it
  // taken. Throws base::Error when the file can neither be made nor opened, and when it is a pipe, a device, a link, or has a
  // second name.
  static std::optional<FileLock> acquire(const std::filesystem::path& path, const std::string& purpose, double timeout_s = 0,
                                         const std::function<bool()>& give_up = {}, LockUsers users = LockUsers::writers);
  // "process 1234 (aisp run --targets ch07) since 2026-11-21T15:30:12Z"; empty when nobody wrote it.
  static std::string holder(const std::filesystem::path& path);

  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }

 private:
  FileLock(std::filesystem::path path, int descriptor) : path_{std::move(path)}, descriptor_{descriptor} {}
  void release();

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace aisp::base
