// SPDX-License-Identifier: Apache-2.0
#include "base/system/files.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/system/places.hpp"
#include "base/text.hpp"

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
    case EFBIG: return "; raise the limit on the size of files (ulimit -f)";
    case ELOOP: return "; it is a link that is not followed; remove it";
    default: return {};
  }
}

[[noreturn]] void fail(Exit status, std::string_view what, const fs::path& path, int error) {
  throw Error{status, std::string{what} + " " + path.string() + ": " + std::strerror(error) + advice_for(error)};
}

// 0 or an errno. Some filesystems cannot sync; that is no loss of data.
int sync(int descriptor) {
  if (::fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS) return 0;
  return errno;
}

enum class FileKind { regular, any };  // any: a pipe is waited for and read to its end

constexpr int not_regular = ESPIPE;  // in errno; nothing that opens or reads gives it

// Returns false and sets errno when the file cannot be read to its end; `too_long` when it has more than `max_bytes`.
bool read_up_to(const fs::path& path, std::size_t max_bytes, std::string& content, bool& too_long,
                FileKind kind = FileKind::regular) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | (kind == FileKind::regular ? O_NONBLOCK | O_NOCTTY : 0))};
  if (!file.open()) return false;
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return false;
  if (kind == FileKind::regular && !S_ISREG(status.st_mode)) {
    errno = S_ISDIR(status.st_mode) ? EISDIR : not_regular;
    return false;
  }
  if (S_ISREG(status.st_mode) && status.st_size > 0)
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

std::string read_whole(const fs::path& path, std::size_t max_bytes, FileKind kind) {
  std::string content;
  bool too_long = false;
  errno = 0;
  if (!read_up_to(path, max_bytes, content, too_long, kind)) {
    if (errno == not_regular) throw Error{Exit::usage, "cannot read " + path.string() + ": it is no regular file"};
    fail(Exit::usage, "cannot read", path, errno);
  }
  if (too_long)
    throw Error{Exit::usage, "cannot read " + path.string() + ": it is longer than " + std::to_string(max_bytes) + " bytes"};
  return content;
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path{"."}; }

constexpr std::string_view temporary_mark = ".part-", temporary_digits = "XXXXXX";

// A private file beside `path`, which goes with this unless it took that place.
class Temporary {
 public:
  explicit Temporary(const fs::path& path)
      : path_{path},
        own_{(folder_of(path) / ("." + path.filename().string())).string().append(temporary_mark).append(temporary_digits)},
        file_{::mkostemp(own_.data(), O_CLOEXEC)} {
    if (!file_.open()) fail(Exit::unfit, "cannot write", path, errno);
  }
  ~Temporary() {
    if (!own_.empty()) ::unlink(own_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  int get() const { return file_.get(); }
  // 0 or an errno.
  int take_place() {
    if (file_.close() != 0 || ::rename(own_.c_str(), path_.c_str()) != 0) return errno;
    own_.clear();
    return 0;
  }

 private:
  fs::path path_;
  std::string own_;
  Descriptor file_;
};

// mkstemp makes private files; a replaced file keeps its mode, a new one gets what the umask leaves.
mode_t mode_for(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode)) return status.st_mode & 07777;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

// The file that a user's path leads to once links are followed.
struct Destination {
  fs::path path;
  int descriptor = -1;    // one of this process, with its own place in what it writes
  bool in_place = false;  // a pipe or a device
};

// N for /dev/fd/N and whatever else leads to a descriptor that this process has already; -1 for others.
int own_descriptor(const fs::path& path) {
  std::error_code error;
  const fs::path folder = fs::canonical(folder_of(path), error);
  if (error || folder != fs::path{"/proc"} / std::to_string(::getpid()) / "fd") return -1;
  return parse_number<int>(path.filename().string()).value_or(-1);
}

Destination without_links(const fs::path& path, const fs::path& named) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) status = {};
  if (S_ISDIR(status.st_mode) || !path.has_filename()) fail(Exit::unfit, "cannot write", named, EISDIR);
  if (S_ISBLK(status.st_mode)) throw Error{Exit::unfit, "cannot write " + named.string() + ": it is a block device"};
  return {.path = path, .in_place = status.st_mode != 0 && !S_ISREG(status.st_mode)};
}

Destination destination_of(const fs::path& named) {
  constexpr int most_links = 40;  // as many as the kernel follows
  fs::path path = named;
  for (int links = 0; links < most_links; ++links) {
    if (const int number = own_descriptor(path); number >= 0) return {.path = named, .descriptor = number};
    std::error_code no_link;
    const fs::path next = fs::read_symlink(path, no_link);
    if (no_link) return without_links(path, named);
    path = next.is_absolute() ? next : folder_of(path) / next;
  }
  fail(Exit::unfit, "cannot write", named, ELOOP);
}

Descriptor open_in_place(const Destination& to) {
  if (to.descriptor >= 0) return Descriptor{::fcntl(to.descriptor, F_DUPFD_CLOEXEC, 0)};
  return Descriptor{::open(to.path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY)};
}

}  // namespace

std::string read_file(const fs::path& path, std::size_t max_bytes) { return read_whole(path, max_bytes, FileKind::regular); }
std::string read_input(const fs::path& path, std::size_t max_bytes) { return read_whole(path, max_bytes, FileKind::any); }

std::optional<std::string> try_read_file(const fs::path& path, std::size_t max_bytes) {
  std::string content;
  bool too_long = false;
  if (!read_up_to(path, max_bytes, content, too_long) || too_long) return std::nullopt;
  return content;
}

std::optional<std::string> try_read_beginning(const fs::path& path, std::size_t max_bytes) {
  std::string content;
  bool too_long = false;
  if (!read_up_to(path, max_bytes, content, too_long)) return std::nullopt;
  content.resize(std::min(content.size(), max_bytes));
  return content;
}

void demand_own_file(int descriptor, const fs::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail(Exit::unfit, "cannot write", path, errno);
  if (!S_ISREG(status.st_mode)) throw Error{Exit::unfit, "cannot write " + path.string() + ": it is no regular file; remove it"};
  if (status.st_nlink > 1)
    throw Error{Exit::unfit, "cannot write " + path.string() +
                                 ": the file has another name too (a hard link) and would change there; remove it"};
}

int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

void write_atomically(const fs::path& path, std::string_view content) {
  const fs::path folder = folder_of(path);
  make_directories(folder);
  Temporary file{path};
  ::fchmod(file.get(), mode_for(path));
  int error = write_all(file.get(), content);
  if (error == 0) error = sync(file.get());
  if (error == 0) error = file.take_place();
  if (error != 0) fail(Exit::unfit, "cannot write", path, error);
  const Descriptor directory{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory.open()) ::fsync(directory.get());
}

bool is_temporary_name(std::string_view filename) {
  const std::size_t mark = filename.rfind(temporary_mark);
  return filename.starts_with('.') && mark != std::string_view::npos &&
         filename.size() == mark + temporary_mark.size() + temporary_digits.size();
}

void write_output(const fs::path& path, std::string_view content) {
  const Destination to = destination_of(path);
  if (to.descriptor < 0 && !to.in_place) return write_atomically(to.path, content);
  const Descriptor file = open_in_place(to);
  if (!file.open() && errno == EINTR) throw Error{Exit::interrupted, "interrupted while nobody read from " + path.string()};
  if (!file.open()) fail(Exit::unfit, "cannot write", path, errno);
  if (const int error = write_all(file.get(), content); error != 0) fail(Exit::unfit, "cannot write", path, error);
}

void demand_writable(const fs::path& path) {
  const Destination to = destination_of(path);
  if (to.descriptor >= 0) {
    const int flags = ::fcntl(to.descriptor, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) fail(Exit::unfit, "cannot write", path, EBADF);
  } else if (to.in_place) {
    // Opening a pipe would wait for its reader, and end what it reads.
    if (::access(to.path.c_str(), W_OK) != 0) fail(Exit::unfit, "cannot write", path, errno);
  } else {
    make_directories(folder_of(to.path));
    const Temporary attempt{to.path};
  }
}

AppendFile::AppendFile(const fs::path& path) : path_{path} {
  make_directories(folder_of(path));
  Descriptor file{::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666)};
  if (!file.open()) fail(Exit::unfit, "cannot write", path, errno);
  demand_own_file(file.get(), path);
  descriptor_ = file.release();
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

AppendFile::Place AppendFile::place() const {
  struct stat opened {
  }, found{};
  if (::stat(path_.c_str(), &found) != 0) return Place::gone;
  const bool same = ::fstat(descriptor_, &opened) == 0 && opened.st_dev == found.st_dev && opened.st_ino == found.st_ino;
  return same ? Place::here : Place::taken;
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

void demand_proc() {
  std::error_code ignored;
  if (!fs::exists("/proc/self", ignored))
    throw Error{Exit::unfit, "/proc is not mounted; aisp needs it to start its workers (mount -t proc proc /proc)"};
}

fs::path self_path() {
  std::error_code error;
  fs::path path = embedded() ? fs::path{program()} : fs::read_symlink(program(), error);
  if (error) {
    demand_proc();
    fail(Exit::unfit, "cannot find the running program at", program(), error.value());
  }
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
