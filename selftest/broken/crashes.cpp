// SPDX-License-Identifier: Apache-2.0
// They end their process, or throw.
#include "doubling.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

namespace aisp::ch92 {
namespace {

using namespace selftest;

class Crashes final : public Doubling {
 public:
  using Doubling::Doubling;
  void aborting(Launch&) { std::abort(); }
  void writing_wildly(Launch&) {
    volatile std::uintptr_t wild = 16;
    *reinterpret_cast<volatile int*>(wild) = 1;
  }
  void throwing(Launch&) { throw std::runtime_error{"the gears are jammed"}; }
  void exiting(Launch&) { ::_exit(0); }
  // Bounded, so that the machine survives; twice, because some sandboxes accept the limit and do not keep it.
  void hoarding(Launch&) {
    // Beyond what the process has mapped already, so that the harness can still tell it.
    const std::uintmax_t mapped = mapped_bytes();
    const rlimit limit{.rlim_cur = mapped + (1ull << 30), .rlim_max = mapped + (1ull << 30)};
    ::setrlimit(RLIMIT_AS, &limit);
    std::vector<std::unique_ptr<char[]>> hoard;
    while (hoard.size() < 64) hoard.push_back(std::make_unique<char[]>(64 << 20));
    throw std::bad_alloc{};
  }

 private:
  static std::uintmax_t mapped_bytes() {
    std::uintmax_t pages = 0;
    std::ifstream{"/proc/self/statm"} >> pages;
    return pages * static_cast<std::uintmax_t>(::sysconf(_SC_PAGESIZE));
  }
};

class DiesLast final : public Doubling {
 public:
  using Doubling::Doubling;
  ~DiesLast() override { std::abort(); }
};

}  // namespace

extern constinit const selftest::Case abort_call =
    pair_of<&Crashes::aborting>({.does = "calls abort()", .must = crashes("verify/signal")});
extern constinit const selftest::Case segfault =
    pair_of<&Crashes::writing_wildly>({.does = "writes through a wild pointer", .must = crashes("verify/signal")});
extern constinit const selftest::Case throw_in_run =
    pair_of<&Crashes::throwing>({.does = "throws in a measured function", .must = fails("verify/run")});
extern constinit const selftest::Case exit_well = pair_of<&Crashes::exiting>(
    {.does = "ends its process with status 0 before there is a result", .must = crashes("verify/no_result")});
extern constinit const selftest::Case exhaust_memory =
    pair_of<&Crashes::hoarding>({.does = "asks for memory until there is none", .must = fails("verify/run")});
extern constinit const selftest::Case abort_in_destructor =
    pair_of<&Doubling::doubled, DiesLast>({.does = "calls abort() when it is taken down", .must = crashes("teardown/signal")});

}  // namespace aisp::ch92
