// SPDX-License-Identifier: Apache-2.0
#include "base/system/clock.hpp"

#include <array>
#include <cmath>
#include <ctime>

namespace aisp::base {
namespace {

std::string formatted(std::time_t time, const char* format) {
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 40> text{};
  std::strftime(text.data(), text.size(), format, &parts);
  return text.data();
}

}  // namespace

double monotonic_s() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::string utc_text(std::time_t time) { return formatted(time, "%Y-%m-%dT%H:%M:%SZ"); }
std::string utc_now() { return utc_text(std::time(nullptr)); }
std::string folder_timestamp(std::time_t time) { return formatted(time, "%Y%m%d_%H%M%S"); }
std::string folder_timestamp() { return folder_timestamp(std::time(nullptr)); }

void sleep_s(double seconds) {
  if (!(seconds > 0)) return;
  const double whole = std::floor(seconds);
  const timespec duration{static_cast<std::time_t>(whole), static_cast<long>((seconds - whole) * 1e9)};
  ::nanosleep(&duration, nullptr);
}

}  // namespace aisp::base
