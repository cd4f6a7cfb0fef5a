// SPDX-License-Identifier: Apache-2.0
#include "base/files.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/error.hpp"

namespace aisp::base {
namespace {

namespace fs = std::filesystem;

std::string advice_for(int error) {
  switch (error) {
    case ENOSPC: return "; free some space or write elsewhere";
    case EDQUOT: return "; the disk quota is used up";
    case EROFS: return "; write to another folder";
    case EACCES:
    case EPERM: return "; check its owner and permissions";
    default: return {};
  }
}

[[noreturn]] void fail(Exit status, std::string_view what, const fs::path& path, int error) {
  throw Error{status, std::string{what} + " " + path.string() + ": " + std::strerror(error) + advice_for(error)};
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_{number} {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  int close() {
    const int number = std::exchange(number_, -1);
    return number >= 0 ? ::close(number) : 0;
  }

 private:
  int number_;
};

// 0 or the errno of the write that failed.
int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

// 0 or an errno. Some filesystems cannot sync; that is no loss of data.
int sync(int descriptor) {
  if (::fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS) return 0;
  return errno;
}

// Returns false and sets errno when the file cannot be read to its end; `too_long` when it has more than `max_bytes`.
bool read_up_to(const fs::path& path, std::size_t max_bytes, std::string& content, bool& too_long) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file.open()) return false;
  struct stat status {};
  if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0)
    content.reserve(std::min(static_cast<std::size_t>(status.st_size), max_bytes) + 1);
  char block[1 << 16];
  for (;;) {
    const ssize_t got = ::read(file.get(), block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    if (got == 0) return true;
    content.append(block, static_cast<std::size_t>(got));
    too_long = content.size() > max_bytes;
    if (too_long) return true;
  }
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path{"."}; }

// A temporary file goes with this unless it was renamed.
struct Temporary {
  std::string path;
  ~Temporary() {
    if (!path.empty()) ::unlink(path.c_str());
  }
};

// mkstemp makes private files; a replaced file keeps its mode, a new one gets what the umask leaves.
mode_t mode_for(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status.st_mode & 07777;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

std::string read_file(const fs::path& path, std::size_t max_bytes) {
  std::string content;
  bool too_long = false;
  if (!read_up_to(path, max_bytes, content, too_long)) fail(Exit::usage, "cannot read", path, errno);
  if (too_long)
    throw Error{Exit::usage, "cannot read " + path.string() + ": it is longer than " + std::to_string(max_bytes) + " bytes"};
  return content;
}

std::optional<std::string> try_read_file(const fs::path& path, std::size_t max_bytes) {
  std::string content;
  bool too_long = false;
  if (!read_up_to(path, max_bytes, content, too_long) || too_long) return std::nullopt;
  return content;
}

void write_atomically(const fs::path& path, std::string_view content) {
  const fs::path folder = folder_of(path);
  make_directories(folder);
  // A link is written through, so that it stays one.
  std::error_code ignored;
  if (fs::is_symlink(path, ignored)) {
    const fs::path target = fs::weakly_canonical(path, ignored);
    if (!ignored && target != path) return write_atomically(target, content);
  }
  Temporary temporary{(folder / ("." + path.filename().string() + ".XXXXXX")).string()};
  Descriptor file{::mkostemp(temporary.path.data(), O_CLOEXEC)};
  if (!file.open()) {
    const int error = errno;
    temporary.path.clear();
    fail(Exit::unfit, "cannot write", path, error);
  }
  ::fchmod(file.get(), mode_for(path));
  int error = write_all(file.get(), content);
  if (error == 0) error = sync(file.get());
  if (error == 0 && file.close() != 0) error = errno;
  if (error == 0 && ::rename(temporary.path.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) fail(Exit::unfit, "cannot write", path, error);
  temporary.path.clear();
  const Descriptor directory{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory.open()) ::fsync(directory.get());
}

AppendFile::AppendFile(const fs::path& path) : path_{path} {
  make_directories(folder_of(path));
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(Exit::unfit, "cannot write", path, errno);
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_{std::move(other.path_)}, descriptor_{std::exchange(other.descriptor_, -1)} {}

void AppendFile::append_line(std::string_view line) {
  if (line.find('\n') != std::string_view::npos) throw std::invalid_argument{"append_line: a line with a newline in it"};
  std::string bytes{line};
  bytes += '\n';
  struct stat before {};
  ::fstat(descriptor_, &before);
  const int error = write_all(descriptor_, bytes);
  if (error != 0) {
    // Half a line would make the next one unreadable too.
    if (S_ISREG(before.st_mode) && ::ftruncate(descriptor_, before.st_size) != 0) errno = error;
    fail(Exit::unfit, "cannot append to", path_, error);
  }
  if (::fdatasync(descriptor_) != 0 && errno != EINVAL && errno != ENOTSUP) fail(Exit::unfit, "cannot append to", path_, errno);
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error && !fs::is_directory(path)) fail(Exit::unfit, "cannot make the folder", path, error.value());
}

std::uintmax_t remove_tree(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t count = fs::remove_all(path, error);
  if (error) fail(Exit::unfit, "cannot remove", path, error.value());
  return count;
}

fs::path self_path() {
  std::error_code error;
  fs::path path = fs::read_symlink("/proc/self/exe", error);
  if (error) fail(Exit::unfit, "cannot find the running program at", "/proc/self/exe", error.value());
  return path;
}

ScratchDirectory::ScratchDirectory(std::string_view prefix, const fs::path& parent) {
  const char* from_environment = std::getenv("TMPDIR");
  fs::path folder = parent;
  if (folder.empty()) folder = from_environment != nullptr && *from_environment != '\0' ? from_environment : "/tmp";
  make_directories(folder);
  std::string name = (folder / (std::string{prefix} + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) fail(Exit::unfit, "cannot make a folder in", folder, errno);
  path_ = name;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace aisp::base
