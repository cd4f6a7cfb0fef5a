// SPDX-License-Identifier: Apache-2.0
#include "run/parent/log_capture.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/system/files.hpp"

namespace aisp::run {
namespace {

constexpr std::size_t recent_limit = 8 * 1024;

// Keeps at least the last `limit` bytes; erases only when twice as many are there, so that each byte moves about once.
void keep_last(std::string& text, std::size_t limit) {
  if (text.size() > 2 * limit) text.erase(0, text.size() - limit);
}

}  // namespace

LogCapture::LogCapture(const std::filesystem::path& file, std::size_t limit_bytes)
    : head_limit_{limit_bytes / 2}, tail_limit_{limit_bytes / 2} {
  if (file.empty()) return;
  descriptor_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (descriptor_ < 0) {
    trouble_ = fmt::format("cannot write {}: {}", file.string(), std::strerror(errno));
    return;
  }
  try {
    base::demand_own_file(descriptor_, file);
    if (::ftruncate(descriptor_, 0) != 0) trouble_ = fmt::format("cannot empty {}: {}", file.string(), std::strerror(errno));
  } catch (const base::Error& error) {
    trouble_ = error.what();
    ::close(std::exchange(descriptor_, -1));
  }
}

LogCapture::~LogCapture() { close(); }

void LogCapture::write(std::string_view bytes) {
  if (descriptor_ < 0) return;
  const int error = base::write_all(descriptor_, bytes);
  if (error == 0) return;
  if (trouble_.empty()) trouble_ = fmt::format("the log is cut short: {}", std::strerror(error));
  ::close(descriptor_);
  descriptor_ = -1;
}

void LogCapture::append(std::string_view bytes) {
  total_bytes_ += bytes.size();
  recent_ += bytes;
  keep_last(recent_, recent_limit);
  const std::size_t to_head = std::min(bytes.size(), head_limit_ - head_bytes_);
  write(bytes.substr(0, to_head));
  head_bytes_ += to_head;
  tail_ += bytes.substr(to_head);
  keep_last(tail_, tail_limit_);
}

void LogCapture::close() {
  const std::size_t kept = std::min(tail_.size(), tail_limit_);
  dropped_bytes_ = std::max(dropped_bytes_, total_bytes_ - head_bytes_ - kept);
  if (descriptor_ < 0) return;
  if (total_bytes_ > head_bytes_ + kept)
    write(fmt::format("\n[aisp: {} bytes dropped here]\n", total_bytes_ - head_bytes_ - kept));
  write(std::string_view{tail_}.substr(tail_.size() - kept));
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

std::string LogCapture::tail(std::size_t lines, std::size_t bytes) const {
  std::string_view text{recent_};
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::size_t begin = text.size();
  while (begin > 0 && lines > 0 && text.size() - begin < bytes) {
    --begin;
    if (text[begin] == '\n' && --lines == 0) ++begin;
  }
  return std::string{text.substr(begin)};
}

}  // namespace aisp::run
