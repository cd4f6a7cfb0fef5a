// SPDX-License-Identifier: Apache-2.0
#include "base/resident_memory.hpp"

#include <charconv>
#include <fstream>
#include <string>

namespace aisp::base {

namespace {

std::uint64_t status_bytes(const char* field) {
  std::ifstream status{"/proc/self/status"};
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(field)) continue;
    const std::size_t digit = line.find_first_of("0123456789");
    std::uint64_t kibibytes = 0;
    if (digit != std::string::npos) std::from_chars(line.data() + digit, line.data() + line.size(), kibibytes);
    return kibibytes << 10;
  }
  return 0;
}

}  // namespace

std::uint64_t resident_bytes() { return status_bytes("VmRSS:"); }

std::uint64_t peak_resident_bytes() { return status_bytes("VmHWM:"); }

bool reset_peak_resident() {
  std::ofstream clear{"/proc/self/clear_refs"};
  clear << "5\n" << std::flush;  // resets the high-water mark, and nothing else (proc(5))
  return clear.good();
}

}  // namespace aisp::base
