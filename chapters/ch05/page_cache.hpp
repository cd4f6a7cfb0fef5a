// SPDX-License-Identifier: Apache-2.0
// Files as the pairs of this chapter open them, and the page cache that they find warm or cold.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <aisp/check.hpp>
#include <aisp/host.hpp>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

namespace aisp::ch05 {

class File {
 public:
  File(const std::filesystem::path& path, int flags) : descriptor_{::open(path.c_str(), flags | O_CLOEXEC, 0600)} {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  operator int() const { return descriptor_; }

 private:
  int descriptor_;
};

// Reads all of `bytes`, however many calls that takes.
inline void read_at(int file, void* to, std::size_t bytes, std::uint64_t offset) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t part = ::pread(file, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(offset + done));
    if (part <= 0) fail("cannot read the file", part == 0 ? EIO : errno);
    done += static_cast<std::size_t>(part);
  }
}

// Writes all of `bytes`; `path` is that of the open file, for the message where the disk is full.
inline void write_all(int file, const std::filesystem::path& path, const void* from, std::size_t bytes) {
  if (file < 0) fail_to_write(path);
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t part = ::write(file, static_cast<const char*>(from) + done, bytes - done);
    if (part < 0) fail_to_write(path);
    done += static_cast<std::size_t>(part);
  }
}

// Only clean pages can be dropped, hence the fsync.
inline void drop_page_cache(int file) {
  if (::fsync(file) != 0) fail("cannot write the file out");
  if (const int error = ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED); error != 0) fail("cannot drop the file's pages", error);
}

// In a file system without a device the page cache is the file.
inline void require_droppable_pages(const std::filesystem::path& folder) {
  constexpr std::size_t page_bytes = 4096;
  const File probe{folder / "probe", O_RDWR | O_CREAT | O_TRUNC};
  const std::array<char, page_bytes> text{};
  write_all(probe, folder / "probe", text.data(), text.size());
  drop_page_cache(probe);
  void* const page = ::mmap(nullptr, page_bytes, PROT_READ, MAP_SHARED, probe, 0);
  if (page == MAP_FAILED) fail("cannot map a file of the scratch folder");
  unsigned char resident = 0;
  const int status = ::mincore(page, page_bytes, &resident);
  ::munmap(page, page_bytes);
  if (status == 0 && (resident & 1) != 0)
    throw Unsupported{
        "the file system of the scratch folder keeps its files in memory, so that none is ever cold; name a folder on a disk "
        "with "
        "--artifacts-dir"};
}

// Throws Unsupported where the file system has no reads past the page cache.
inline void require_direct_reads(int file) {
  alignas(4096) static std::array<std::byte, 4096> block;
  if (file < 0 || ::pread(file, block.data(), block.size(), 0) != static_cast<ssize_t>(block.size()))
    throw Unsupported{std::string{"the file system of the scratch folder refuses O_DIRECT ("} + std::strerror(errno) +
                      "); name a folder on a disk with --artifacts-dir"};
}

}  // namespace aisp::ch05
