// SPDX-License-Identifier: Apache-2.0
// A loader picks random samples of 4 KiB from a token file that the page cache holds. No disk is involved: a stream seeks, fills
// its own buffer and copies out of it, and even a bare pread enters the kernel and copies for every sample. A mapping made once
// lets the program use the page cache in place. The page cache is warm in all variants, and the mapping is made before the
// clock starts, as a loader makes it once for millions of samples.
#include <sys/mman.h>
#include <unistd.h>
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "token_file.hpp"

namespace aisp::ch05 {
namespace {

// The same, fetching `next` into the caches meanwhile. The hardware cannot: it follows addresses within a page only.
std::uint32_t sum_while_fetching(const std::uint32_t* tokens, const std::uint32_t* next) {
  constexpr std::size_t line_tokens = 64 / sizeof(std::uint32_t);
  std::uint32_t sum = 0;
  for (std::size_t line = 0; line < sample_tokens; line += line_tokens) {
    __builtin_prefetch(next + line);
    for (std::size_t i = line; i < line + line_tokens; ++i) sum += tokens[i];
  }
  return sum;
}

class Mmap final : public Workload {
 public:
  explicit Mmap(Setup& setup)
      : file_{token_file(setup)},
        samples_{setup.scaled(8192)},
        ids_{random_samples(setup, file_, samples_)},
        sums_{setup.output<std::uint32_t>(samples_)} {}

  Cost cost() const override {
    return {.host_bytes = static_cast<double>(samples_ * sample_bytes + ids_.bytes() + sums_.bytes())};
  }
  double expected(std::size_t index) const override { return expected_sum(file_, ids_.host(index)); }

  void warm(Launch&) { cached_.warm(); }
  // Samples lie anywhere: should pages be dropped after all, a fault reads one page and not its neighbours.
  void map(Launch&) { cached_.map(MADV_RANDOM); }

  void stream(Launch&) {
    std::ifstream in{file_.path(), std::ios::binary};
    std::vector<std::uint32_t> tokens(sample_tokens);
    for (std::size_t i = 0; i < samples_; ++i) {
      in.seekg(static_cast<std::streamoff>(ids_.get()[i] * sample_bytes));
      in.read(reinterpret_cast<char*>(tokens.data()), static_cast<std::streamsize>(sample_bytes));
      sums_[i] = sum_of(tokens.data());
    }
    if (!in) throw std::runtime_error{"cannot read the file"};
  }
  void pread(Launch&) {
    std::vector<std::uint32_t> tokens(sample_tokens);
    for (std::size_t i = 0; i < samples_; ++i) {
      const auto offset = static_cast<off_t>(ids_.get()[i] * sample_bytes);
      if (::pread(cached_.descriptor(), tokens.data(), sample_bytes, offset) != static_cast<ssize_t>(sample_bytes))
        fail("cannot read the file");
      sums_[i] = sum_of(tokens.data());
    }
  }
  void mapped(Launch&) {
    for (std::size_t i = 0; i < samples_; ++i) sums_[i] = sum_of(sample(i));
  }
  // A loader knows which sample comes next, and in a mapping that is an address.
  void mapped_prefetch(Launch&) {
    for (std::size_t i = 0; i < samples_; ++i) sums_[i] = sum_while_fetching(sample(i), sample(std::min(i + 1, samples_ - 1)));
  }

 private:
  const std::uint32_t* sample(std::size_t i) const { return cached_.mapping<std::uint32_t>() + ids_.get()[i] * sample_tokens; }

  FileInput file_;
  std::size_t samples_;
  Input<std::uint32_t> ids_;
  Output<std::uint32_t> sums_;
  CachedFile cached_{file_};
};

}  // namespace

extern constinit const Pair mmap{
    .teaches = "with the data in the page cache the cost is system calls, stream buffers and copies; a mapping has none of them",
    .lesson = "mapped",
    .make = make<Mmap>,
    .baseline = {.name = "ifstream", .run = call<&Mmap::stream>, .prepare = call<&Mmap::warm>},
    .optimized = variants({{.name = "pread", .run = call<&Mmap::pread>, .prepare = call<&Mmap::warm>},
                           {.name = "mapped", .run = call<&Mmap::mapped>, .prepare = call<&Mmap::map>},
                           {.name = "mapped_prefetch", .run = call<&Mmap::mapped_prefetch>, .prepare = call<&Mmap::map>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch05
