// SPDX-License-Identifier: Apache-2.0
// A file of weights that a reader can trust. It is written under another name, ends in a trailer with a checksum of all bytes,
// and gets its own name when the trailer is in it: a writer that is killed leaves the checkpoint before it, or none. Against a
// loss of power one would have to wait for fsync as well.
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <aisp/host.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace aisp::ch13 {

// Mixes a word with its place, so that neither a changed nor a moved word leaves the sum of all as it was.
constexpr std::uint64_t checksum_term(std::uint32_t word, std::uint64_t index) {
  std::uint64_t z = (index << 32 | word) + 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 32) * 0xD6E8FEB86659FD93ull;
  return z ^ z >> 32;
}
inline std::uint64_t checksum_of(std::span<const std::uint32_t> words) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < words.size(); ++i) sum += checksum_term(words[i], i);
  return sum;
}

struct CheckpointTrailer {
  static constexpr std::uint64_t right_magic = 0x54504B4350534941;  // "AISPCKPT"
  std::uint64_t magic = right_magic, bytes = 0, checksum = 0, of_trailer = 0;

  CheckpointTrailer() = default;
  CheckpointTrailer(std::uint64_t data_bytes, std::uint64_t data_checksum) : bytes{data_bytes}, checksum{data_checksum} {
    of_trailer = own_sum();
  }
  bool is_whole() const { return magic == right_magic && of_trailer == own_sum(); }

 private:
  std::uint64_t own_sum() const { return (magic ^ bytes * 3 ^ checksum * 5) * 0x9E3779B97F4A7C15ull; }
};

inline std::string partial_name(const std::string& path) { return path + ".partial"; }
// Makes the file that was written under the partial name the checkpoint, in place of the one before.
inline void publish_checkpoint(const std::string& path) {
  if (std::rename(partial_name(path).c_str(), path.c_str()) != 0) fail("cannot rename the checkpoint");
}

// A checkpoint that is being written. Several threads may write parts of it; one of them commits when all parts are written.
class CheckpointWriter {
 public:
  CheckpointWriter(std::string path, std::uint64_t data_bytes)
      : path_{std::move(path)},
        data_bytes_{data_bytes},
        file_{::open(partial_name(path_).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)} {
    if (file_ < 0) fail_to_write(partial_name(path_));
  }
  ~CheckpointWriter() {
    if (file_ >= 0) ::close(file_);
  }
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  void write(const void* data, std::size_t bytes, std::uint64_t offset) const {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t part =
          ::pwrite(file_, static_cast<const std::byte*>(data) + done, bytes - done, static_cast<off_t>(offset + done));
      if (part < 0 && errno != EINTR) fail_to_write(partial_name(path_));
      if (part > 0) done += static_cast<std::size_t>(part);
    }
  }
  void commit(std::uint64_t checksum) {
    const CheckpointTrailer trailer{data_bytes_, checksum};
    write(&trailer, sizeof(trailer), data_bytes_);
    if (::close(std::exchange(file_, -1)) != 0) fail_to_write(partial_name(path_));
    publish_checkpoint(path_);
  }

 private:
  std::string path_;
  std::uint64_t data_bytes_;
  int file_;
};

// Reads a checkpoint into `words`; throws, with the reason, where the file is not all of what was committed.
inline void load_checkpoint(const std::string& path, std::span<std::uint32_t> words) {
  const auto refuse = [&](const char* why) -> void { throw std::runtime_error{"the checkpoint " + path + " " + why}; };
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) refuse("cannot be opened");
  CheckpointTrailer trailer;
  std::byte beyond{};
  const bool is_long_enough = std::fread(words.data(), 1, words.size_bytes(), file) == words.size_bytes() &&
                              std::fread(&trailer, sizeof(trailer), 1, file) == 1;
  const bool is_too_long = std::fread(&beyond, 1, 1, file) == 1;
  std::fclose(file);
  if (!is_long_enough) refuse("is cut off");
  if (is_too_long) refuse("is too long");
  if (!trailer.is_whole()) refuse("has no trailer");
  if (trailer.bytes != words.size_bytes()) refuse("holds another number of bytes");
  if (trailer.checksum != checksum_of(words)) refuse("does not have the bytes that were written");
}

}  // namespace aisp::ch13
