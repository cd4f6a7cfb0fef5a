// SPDX-License-Identifier: Apache-2.0
// Helpers of host pairs: polling, errors of system calls, files in the page cache.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <aisp/check.hpp>
#include <aisp/setup.hpp>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

namespace aisp {

// Pauses in a polling loop: frees the core's resources for its other hardware thread and keeps the loop from speculating ahead.
// 40 to 140 cycles.
inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Throws a system call's error: "cannot open the file: Permission denied".
[[noreturn]] inline void fail(const char* what, int error = errno) {
  throw std::system_error{error, std::generic_category(), what};
}

// Throws a failed write's error; on a full disk it throws Unsupported, so that the pair is skipped.
template <class Path>  // a std::string or a std::filesystem::path, whose header is not needed here
[[noreturn]] void fail_to_write(const Path& file, int error = errno) {
  const std::string name = file.c_str();
  if (error == ENOSPC || error == EDQUOT)
    throw Unsupported{"the disk has no room for " + name + " (" + std::strerror(error) +
                      "); free some space, or name a folder on another disk with --artifacts-dir"};
  throw std::system_error{error, std::generic_category(), "cannot write " + name};
}

// An input file that lies in the page cache. It is new after every refill, so warm() and map() belong into `prepare`.
class CachedFile {
 public:
  explicit CachedFile(const FileInput& file) : file_{file} {}
  ~CachedFile() {
    unmap();
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  CachedFile(const CachedFile&) = delete;
  CachedFile& operator=(const CachedFile&) = delete;

  // Writes the file back, so that no write-back runs during the measurement, and reads it once.
  void warm() {
    if (descriptor_ < 0 && (descriptor_ = ::open(file_.path().c_str(), O_RDONLY | O_CLOEXEC)) < 0) fail("cannot open the file");
    if (::fsync(descriptor_) != 0) fail("cannot write the file out");
    std::vector<char> block(std::size_t{1} << 20);
    ssize_t part = 0;
    for (off_t at = 0; (part = ::pread(descriptor_, block.data(), block.size(), at)) > 0;) at += part;
    if (part < 0) fail("cannot read the file");
  }
  // Maps the whole file and populates its pages; `advice` as for madvise(2).
  void map(int advice = MADV_NORMAL) {
    warm();
    unmap();
    void* const memory = ::mmap(nullptr, file_.bytes(), PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor_, 0);
    if (memory == MAP_FAILED) fail("cannot map the file");
    mapping_ = memory;
    ::madvise(memory, file_.bytes(), advice);
  }

  int descriptor() const { return descriptor_; }
  template <class T>
  const T* mapping() const {
    return static_cast<const T*>(mapping_);
  }

 private:
  void unmap() {
    if (mapping_ != nullptr) ::munmap(mapping_, file_.bytes());
    mapping_ = nullptr;
  }

  const FileInput& file_;
  int descriptor_ = -1;
  void* mapping_ = nullptr;
};

}  // namespace aisp
