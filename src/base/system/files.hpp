// SPDX-License-Identifier: Apache-2.0
// Files. Everything here throws base::Error with the file's name and the system's reason; disk trouble is Exit::unfit, bad input
// Exit::usage.
#pragma once
#include <unistd.h>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace aisp::base {

// A file descriptor that is closed with it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_{number} {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : number_{other.release()} {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }
  // Returns what close() of the system returns; 0 if nothing is open.
  int close() {
    const int number = release();
    return number >= 0 ? ::close(number) : 0;
  }
  void reset(int number = -1) {
    close();
    number_ = number;
  }

 private:
  int number_ = -1;
};

inline constexpr std::size_t default_read_limit_bytes = std::size_t{256} << 20;

// The whole file. Fails when it is missing, not a regular file, or longer than `max_bytes`. A pipe that somebody put in its place
// is refused, never waited for.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes = default_read_limit_bytes);
// Does the same with a file that the user names, which may be a pipe.
std::string read_input(const std::filesystem::path& path, std::size_t max_bytes = default_read_limit_bytes);

// For /proc and /sys, where a missing or unreadable file is an answer: nothing instead of an error.
std::optional<std::string> try_read_file(const std::filesystem::path& path, std::size_t max_bytes = std::size_t{1} << 20);

// Returns at most `max_bytes` of its beginning.
std::optional<std::string> try_read_beginning(const std::filesystem::path& path, std::size_t max_bytes);

// For a file that aisp names itself and has just opened, with O_NONBLOCK and before it changes a byte of it. Throws base::Error
// (unfit) for a pipe or a device, and for a file with a second name, which whoever sent the folder may have given it.
void demand_own_file(int descriptor, const std::filesystem::path& path);

// All of `bytes`, however many writes that takes and whatever signals come between. 0, or the errno of the write that failed.
// Async-signal-safe.
int write_all(int descriptor, std::string_view bytes);

// For files that aisp names itself. The new content or the old file, never a part of either: temporary file in the same folder,
// fsync, rename, fsync of the folder. A link in its place is replaced, never followed: whoever sent a folder may have put it
// there. Missing folders are made. When the disk is full the old file stays.
void write_atomically(const std::filesystem::path& path, std::string_view content);

// Whether the name is of a temporary file that write_atomically leaves in a folder when it is killed.
bool is_temporary_name(std::string_view filename);

// For a file that the user names. Links are followed, also those that lead nowhere yet, and stay links; pipes, terminals,
// /dev/null, /dev/stdout and /dev/fd/N are written, never replaced; a regular file is replaced as above.
void write_output(const std::filesystem::path& path, std::string_view content);
// Throws what write_output would throw, as far as that can be known without writing: before the work whose outcome goes there.
void demand_writable(const std::filesystem::path& path);

// A file of lines that grows while others read it and survives a crash of its writer: each line is one write, followed by
// fdatasync. Links are not followed.
class AppendFile {
 public:
  enum class Place { here, gone, taken };  // the file is where it was opened; nothing is there any more; something else is there

  explicit AppendFile(const std::filesystem::path& path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&&) = delete;

  // `line` without its newline; a newline inside it is an error of the caller (std::invalid_argument).
  void append_line(std::string_view line);
  Place place() const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

void make_directories(const std::filesystem::path& path);

// Removes what is there, without following links out of it; returns the number of entries removed (0 when nothing was there).
std::uintmax_t remove_tree(const std::filesystem::path& path);

// Throws base::Error (unfit) where /proc is not mounted.
void demand_proc();

// The running executable (/proc/self/exe).
std::filesystem::path self_path();

// A new private folder below `parent` (TMPDIR or /tmp when empty), removed with all it holds when this goes.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(std::string_view prefix = "aisp-", const std::filesystem::path& parent = {});
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace aisp::base
