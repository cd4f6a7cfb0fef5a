// SPDX-License-Identifier: Apache-2.0
// A parallel region of GNU's OpenMP in its default settings, as compilers write its calls: its threads spin before they sleep.
#include "../doubling.hpp"

#include <dlfcn.h>

namespace aisp::ch88 {
namespace {

class OpenMp final : public fixtures::Doubling {
 public:
  explicit OpenMp(Setup& setup) : Doubling{setup} {
    void* const library = ::dlopen("libgomp.so.1", RTLD_NOW);
    if (library == nullptr) throw Unsupported{"libgomp.so.1 is not installed"};
    parallel_ = reinterpret_cast<Parallel*>(::dlsym(library, "GOMP_parallel"));
    number_ = reinterpret_cast<int (*)()>(::dlsym(library, "omp_get_thread_num"));
  }
  void baseline(Launch& launch) { slow(launch); }
  void in_parallel(Launch&) { parallel_(&OpenMp::part, this, 2, 0); }

 private:
  using Parallel = void(void (*)(void*), void*, unsigned threads, unsigned flags);

  static void part(void* self) {
    auto& own = *static_cast<OpenMp*>(self);
    const auto which = static_cast<std::size_t>(own.number_());
    for (std::size_t i = own.count_ * which / 2; i < own.count_ * (which + 1) / 2; ++i) own.out_[i] = 2 * own.in_.get()[i];
  }

  Parallel* parallel_ = nullptr;
  int (*number_)() = nullptr;
};

}  // namespace

extern constinit const Pair open_mp{
    .teaches = "a region of OpenMP is a run like any other",
    .make = make<OpenMp>,
    .baseline = {"slow", call<&OpenMp::baseline>},
    .optimized = variants({{"in_parallel", call<&OpenMp::in_parallel>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.cpus = 2},
};

}  // namespace aisp::ch88
