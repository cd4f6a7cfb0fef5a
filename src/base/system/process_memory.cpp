// SPDX-License-Identifier: Apache-2.0
#include "base/system/process_memory.hpp"

#include <charconv>
#include <fstream>
#include <string>

namespace aisp::base {

namespace {

// The number behind `field` in a file of a field a line; 0 where there is none.
std::uint64_t number_behind(const char* field, const char* file) {
  std::ifstream lines{file};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(field)) continue;
    const std::size_t digit = line.find_first_of("0123456789");
    std::uint64_t number = 0;
    if (digit != std::string::npos) std::from_chars(line.data() + digit, line.data() + line.size(), number);
    return number;
  }
  return 0;
}

std::uint64_t status_bytes(const char* field) { return number_behind(field, "/proc/self/status") << 10; }

}  // namespace

std::uint64_t resident_bytes() { return status_bytes("VmRSS:"); }

std::uint64_t peak_resident_bytes() { return status_bytes("VmHWM:"); }

std::uint64_t memory_kills() { return number_behind("oom_kill ", "/proc/vmstat"); }

bool reset_peak_resident() {
  std::ofstream clear{"/proc/self/clear_refs"};
  clear << "5\n" << std::flush;  // resets the high-water mark, and nothing else (proc(5))
  return clear.good();
}

}  // namespace aisp::base
