// SPDX-License-Identifier: Apache-2.0
// The staircase of a CPU: the same chase as on a GPU, by one thread.
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/error.hpp"
#include "machine/host.hpp"
#include "peak/levels/levels.hpp"
#include "peak/parts.hpp"

namespace aisp::peak {
namespace {

constexpr std::size_t host_line_bytes = 64, host_page_bytes = 4096;
// So many pages take turns that no prefetcher follows, and so few that their addresses stay translated.
constexpr std::size_t window_bytes = 128 * kib;
constexpr std::size_t longest_host_warm_up = std::size_t{1} << 18, steps = std::size_t{1} << 16;
constexpr int host_repetitions = 7;

// Fresh memory, in large pages or in none.
class HostArea {
 public:
  HostArea(std::size_t bytes, bool large_pages) : bytes_{bytes} {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw base::Error{base::Exit::unfit, "there is no memory for the chase"};
    // A kernel without them does as it likes.
    static_cast<void>(::madvise(data_, bytes, large_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
  }
  ~HostArea() { ::munmap(data_, bytes_); }
  HostArea(const HostArea&) = delete;
  HostArea& operator=(const HostArea&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
};

void link(char* base, const std::vector<std::uint64_t>& order) {
  for (std::size_t i = 0; i < order.size(); ++i)
    *reinterpret_cast<char**>(base + order[i]) = base + order[i + 1 == order.size() ? 0 : i + 1];
}

char* follow(char* at, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) at = *reinterpret_cast<char* volatile*>(at);
  return at;
}

// Returns the CPU time of this thread: what other processes take of the CPU meanwhile does not count.
double cpu_time_s() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The least of several: whatever else runs in the caches only adds.
double chase_ns(char* base, const std::vector<std::uint64_t>& order) {
  link(base, order);
  double least_s = std::numeric_limits<double>::infinity();
  // Without a full warm-up, linking has left the caches as a chase would: the end of the order was touched last.
  char* at = base + order.front();
  if (order.size() <= longest_host_warm_up) at = follow(at, order.size());
  for (int i = 0; i < host_repetitions; ++i) {
    const double start_s = cpu_time_s();
    at = follow(at, steps);
    least_s = std::min(least_s, cpu_time_s() - start_s);
  }
  return least_s / static_cast<double>(steps) * 1e9;
}

}  // namespace

MemoryLevels measure_host_levels() {
  const machine::Host host = machine::read_host();
  const std::size_t last_level = machine::last_level_cache_bytes();
  const std::size_t most = std::min<std::size_t>(std::clamp<std::size_t>(4 * last_level, 256 * mib, 1024 * mib),
                                                 std::max<std::size_t>(host.memory_available_bytes / 8, 64 * mib));
  MemoryLevels levels{.page_bytes = host_page_bytes};
  {
    const HostArea area{most, true};
    for (const std::size_t bytes : chase_sizes(4 * kib, most, 8, host_line_bytes))
      levels.lines.push_back({.bytes = static_cast<double>(bytes),
                              .ns = chase_ns(area.data(), chase_of_lines(bytes, host_line_bytes, window_bytes, bytes))});
  }
  const HostArea area{most, false};
  for (const std::size_t bytes : chase_sizes(8 * host_page_bytes, most, 8, host_page_bytes))
    levels.pages.push_back({.bytes = static_cast<double>(bytes),
                            .ns = chase_ns(area.data(), chase_of_pages(bytes, host_line_bytes, host_page_bytes, bytes))});
  return levels;
}

}  // namespace aisp::peak
