// SPDX-License-Identifier: Apache-2.0
#include "base/system/lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"

namespace aisp::base {
namespace {

// A file that may be read can be locked, so only those who may write it may read it.
mode_t mode_for_writers(int descriptor) {
  struct stat status {};
  ::fstat(descriptor, &status);
  const mode_t writers = status.st_mode & 0222;
  return writers | writers << 1;
}

// In a sticky folder the kernel may refuse O_CREAT on another user's file (fs.protected_regular), so creating is a step of its
// own. A file that may only be read can be locked all the same.
int open_lock(const std::filesystem::path& path, LockUsers users) {
  constexpr int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  for (int attempt = 0; attempt < 3; ++attempt) {
    int descriptor = ::open(path.c_str(), O_RDWR | flags);
    if (descriptor < 0 && errno == EACCES) descriptor = ::open(path.c_str(), O_RDONLY | flags);
    if (descriptor >= 0 || errno != ENOENT) return descriptor;
    descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | flags, 0666);
    if (descriptor >= 0) ::fchmod(descriptor, users == LockUsers::all ? 0666 : mode_for_writers(descriptor));
    if (descriptor >= 0 || errno != EEXIST) return descriptor;
  }
  return -1;
}

bool try_lock(int descriptor) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0)
    if (errno != EINTR) return false;
  return true;
}

void write_holder(int descriptor, const std::string& purpose) {
  const std::string text = "process " + std::to_string(::getpid()) + " (" + purpose + ") since " + utc_now() + "\n";
  // Only for people to read, so failures do not matter.
  if (::ftruncate(descriptor, 0) == 0 && ::pwrite(descriptor, text.data(), text.size(), 0) < 0) errno = 0;
}

}  // namespace

std::optional<FileLock> FileLock::acquire(const std::filesystem::path& path, const std::string& purpose, double timeout_s,
                                          const std::function<bool()>& give_up, LockUsers users) {
  const int descriptor = open_lock(path, users);
  if (descriptor < 0)
    throw Error{Exit::unfit, "cannot open the lock file " + path.string() + ": " + std::strerror(errno) +
                                 "; remove it, or check the permissions of its folder"};
  FileLock lock{path, descriptor};
  demand_own_file(descriptor, path);
  const double deadline = monotonic_s() + timeout_s;
  double pause_s = 0.002;
  while (!try_lock(descriptor)) {
    const double left = deadline - monotonic_s();
    if (left <= 0 || (give_up && give_up())) return std::nullopt;
    sleep_s(std::min(pause_s, left));
    pause_s = std::min(pause_s * 2, 0.1);
  }
  write_holder(descriptor, purpose);
  return lock;
}

std::string FileLock::holder(const std::filesystem::path& path) {
  return std::string{trim(try_read_file(path, 4096).value_or(""))};
}

FileLock::~FileLock() { release(); }
FileLock::FileLock(FileLock&& other) noexcept
    : path_{std::move(other.path_)}, descriptor_{std::exchange(other.descriptor_, -1)} {}
FileLock& FileLock::operator=(FileLock&& other) noexcept {
  if (this != &other) {
    release();
    path_ = std::move(other.path_);
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

void FileLock::release() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

}  // namespace aisp::base
