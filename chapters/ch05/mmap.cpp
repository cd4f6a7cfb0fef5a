// SPDX-License-Identifier: Apache-2.0
// A loader picks random samples of 4 KiB from a token file that the page cache holds. No disk is involved: a stream seeks, fills
// its own buffer and copies out of it, and even a bare pread enters the kernel and copies for every sample. A mapping made once
// lets the program use the page cache in place. The page cache is warm in all variants, and the mapping is made before the
// clock starts, as a loader makes it once for millions of samples.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "token_file.hpp"

namespace aisp::ch05 {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error{errno, std::generic_category(), what}; }

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
  ~Mmap() override {
    unmap();
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  Cost cost() const override {
    return {.host_bytes = static_cast<double>(samples_ * sample_bytes + ids_.bytes() + sums_.bytes())};
  }
  double expected(std::size_t index) const override { return expected_sum(file_, ids_.host(index)); }

  // The file is new after every refill: it is written out, so that no write-back runs beside the measurement, and read once.
  void warm(Launch&) {
    if (descriptor_ < 0 && (descriptor_ = ::open(file_.path().c_str(), O_RDONLY | O_CLOEXEC)) < 0) fail("cannot open the file");
    if (::fsync(descriptor_) != 0) fail("cannot write the file out");
    std::vector<char> block(std::size_t{1} << 20);
    ssize_t part = 0;
    for (off_t at = 0; (part = ::pread(descriptor_, block.data(), block.size(), at)) > 0;) at += part;
    if (part < 0) fail("cannot read the file");
  }
  void map(Launch& launch) {
    warm(launch);
    unmap();
    void* const memory = ::mmap(nullptr, file_.bytes(), PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor_, 0);
    if (memory == MAP_FAILED) fail("cannot map the file");
    mapping_ = static_cast<const std::uint32_t*>(memory);
    // Samples lie anywhere: should pages be dropped after all, a fault reads one page and not its neighbours.
    ::madvise(memory, file_.bytes(), MADV_RANDOM);
  }

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
      if (::pread(descriptor_, tokens.data(), sample_bytes, offset) != static_cast<ssize_t>(sample_bytes))
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
  const std::uint32_t* sample(std::size_t i) const { return mapping_ + ids_.get()[i] * sample_tokens; }
  void unmap() {
    if (mapping_ != nullptr) ::munmap(const_cast<std::uint32_t*>(mapping_), file_.bytes());
    mapping_ = nullptr;
  }

  FileInput file_;
  std::size_t samples_;
  Input<std::uint32_t> ids_;
  Output<std::uint32_t> sums_;
  int descriptor_ = -1;
  const std::uint32_t* mapping_ = nullptr;
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
