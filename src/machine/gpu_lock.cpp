// SPDX-License-Identifier: Apache-2.0
#include "machine/gpu_lock.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"

namespace aisp::machine {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A folder that all users may make files in, and nobody may remove another's from: as /tmp itself.
bool make_shared(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0777) == 0) ::chmod(folder.c_str(), 01777);  // past the umask
  struct stat status {};
  return ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && ::access(folder.c_str(), W_OK | X_OK) == 0;
}

}  // namespace

fs::path lock_directory() {
  if (const std::string stated = environment("AISP_LOCK_DIRECTORY"); !stated.empty()) return stated;
  if (make_shared("/tmp/aisp-locks")) return "/tmp/aisp-locks";
  const std::string own = environment("XDG_RUNTIME_DIR");
  return fs::path{own.empty() ? "/tmp" : own} / ("aisp-locks-" + std::to_string(::getuid()));
}

fs::path gpu_lock_path(const std::string& uuid) {
  std::string name = uuid;
  for (char& c : name)
    if (c == '/') c = '_';
  return lock_directory() / (name + ".lock");
}

base::FileLock lock_gpu(const std::string& uuid, const std::string& purpose, double timeout_s,
                        const std::function<bool()>& give_up) {
  const fs::path path = gpu_lock_path(uuid);
  base::make_directories(path.parent_path());
  bool gave_up = false;
  auto lock = base::FileLock::acquire(
      path, purpose, timeout_s, [&] { return gave_up = give_up && give_up(); }, base::LockUsers::all);
  if (lock) return std::move(*lock);
  const std::string holder = base::FileLock::holder(path);
  const std::string by = holder.empty() ? "another process" : holder;
  if (gave_up) throw base::Error{base::Exit::interrupted, "interrupted while waiting for " + uuid + ", held by " + by};
  throw base::Error{base::Exit::unfit, uuid + " is in use by " + by +
                                           (timeout_s > 0 ? " after waiting " + base::human_duration(timeout_s) : std::string{}) +
                                           "; wait for it, or choose another GPU with --gpus"};
}

}  // namespace aisp::machine
