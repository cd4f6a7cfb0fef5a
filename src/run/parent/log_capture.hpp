// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace aisp::run {

// Writes a child's output to a file: the beginning as it comes, the end from memory at the close; output between them is dropped
// and counted. A full disk loses the log, never the pair.
class LogCapture {
 public:
  LogCapture(const std::filesystem::path& file, std::size_t limit_bytes);
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  void append(std::string_view bytes);
  void close();
  // Returns the last lines, at most `lines` of them and `bytes` bytes.
  std::string tail(std::size_t lines = 8, std::size_t bytes = 2000) const;
  std::size_t total_bytes() const { return total_bytes_; }
  std::size_t dropped_bytes() const { return dropped_bytes_; }
  const std::string& trouble() const { return trouble_; }  // why the file is incomplete; empty if it is complete

 private:
  void write(std::string_view bytes);

  std::size_t head_limit_;
  std::size_t tail_limit_;
  int descriptor_ = -1;
  std::size_t total_bytes_ = 0;
  std::size_t head_bytes_ = 0;
  std::size_t dropped_bytes_ = 0;
  std::string tail_;    // output after the head, up to twice tail_limit_
  std::string recent_;  // the last few KiB of everything
  std::string trouble_;
};

}  // namespace aisp::run
