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

#include "page_cache.hpp"
#include "token_file.hpp"

namespace aisp::ch05 {
namespace {

// The sum, fetching `next` into the caches meanwhile. The hardware cannot: it follows addresses within a page only.
std::uint32_t sum_while_fetching(const std::uint32_t* tokens, const std::uint32_t* next, std::size_t bytes) {
  constexpr std::size_t line_tokens = 64 / sizeof(std::uint32_t);
  std::uint32_t sum = 0;
  for (std::size_t line = 0; line < bytes / sizeof *tokens; line += line_tokens) {
    __builtin_prefetch(next + line);
    for (std::size_t i = line; i < line + line_tokens; ++i) sum += tokens[i];
  }
  return sum;
}

class Mmap final : public Workload {
 public:
  explicit Mmap(Setup& setup)
      : sample_bytes_{setup.size("sample_bytes")},
        file_{setup.file("tokens.bin", setup.size("file_mib") << 20)},
        samples_{setup.scaled(8192)},
        ids_{random_samples(setup, file_, sample_bytes_, samples_)},
        sums_{setup.output<std::uint32_t>(samples_)},
        heap_{setup.scratch<std::uint32_t>(file_.bytes() / sizeof(std::uint32_t), {.alignment = 4096})} {}

  Cost cost() const override {
    return {.host_bytes = static_cast<double>(samples_ * sample_bytes_ + ids_.bytes() + sums_.bytes())};
  }
  double expected(std::size_t index) const override { return expected_sum(file_, sample_bytes_, ids_.host(index)); }

  void warm(Launch&) { cached_.warm(); }
  // Samples lie anywhere: should pages be dropped after all, a fault reads one page and not its neighbours.
  void map(Launch&) { cached_.map(MADV_RANDOM); }

  void fill_heap(Launch&) {
    cached_.warm();
    read_at(cached_.descriptor(), heap_, file_.bytes(), 0);
  }

  void stream(Launch&) {
    std::ifstream in{file_.path(), std::ios::binary};
    read_from(in);
  }
  void stream_unbuffered(Launch&) {
    std::ifstream in;
    in.rdbuf()->pubsetbuf(nullptr, 0);  // before the file is open
    in.open(file_.path(), std::ios::binary);
    read_from(in);
  }
  void pread(Launch&) {
    std::vector<std::uint32_t> tokens(sample_bytes_ / sizeof(std::uint32_t));
    for (std::size_t i = 0; i < samples_; ++i) {
      read_at(cached_.descriptor(), tokens.data(), sample_bytes_, std::uint64_t{ids_.get()[i]} * sample_bytes_);
      sums_[i] = sum_of(tokens.data(), sample_bytes_);
    }
  }
  void mapped(Launch&) { sum_in_place(cached_.mapping<std::uint32_t>()); }
  // A loader knows which sample comes next, and in a mapping that is an address.
  void mapped_prefetch(Launch&) {
    const auto* const all = cached_.mapping<std::uint32_t>();
    for (std::size_t i = 0; i < samples_; ++i)
      sums_[i] = sum_while_fetching(sample(all, i), sample(all, std::min(i + 1, samples_ - 1)), sample_bytes_);
  }
  void heap(Launch&) { sum_in_place(heap_); }
  void map_in_window(Launch&) {
    void* const all = ::mmap(nullptr, file_.bytes(), PROT_READ, MAP_SHARED | MAP_POPULATE, cached_.descriptor(), 0);
    if (all == MAP_FAILED) fail("cannot map the file");
    sum_in_place(static_cast<const std::uint32_t*>(all));
    ::munmap(all, file_.bytes());
  }

 private:
  const std::uint32_t* sample(const std::uint32_t* all, std::size_t i) const {
    return all + ids_.get()[i] * (sample_bytes_ / sizeof *all);
  }
  void read_from(std::ifstream& in) {
    std::vector<std::uint32_t> tokens(sample_bytes_ / sizeof(std::uint32_t));
    for (std::size_t i = 0; i < samples_; ++i) {
      in.seekg(static_cast<std::streamoff>(ids_.get()[i] * sample_bytes_));
      in.read(reinterpret_cast<char*>(tokens.data()), static_cast<std::streamsize>(sample_bytes_));
      sums_[i] = sum_of(tokens.data(), sample_bytes_);
    }
    if (!in) throw std::runtime_error{"cannot read the file"};
  }
  void sum_in_place(const std::uint32_t* all) {
    for (std::size_t i = 0; i < samples_; ++i) sums_[i] = sum_of(sample(all, i), sample_bytes_);
  }

  std::size_t sample_bytes_;
  FileInput file_;
  std::size_t samples_;
  Input<std::uint32_t> ids_;
  Output<std::uint32_t> sums_;
  Scratch<std::uint32_t> heap_;
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
    .controls = variants({{.name = "ifstream_unbuffered", .run = call<&Mmap::stream_unbuffered>, .prepare = call<&Mmap::warm>},
                          {.name = "heap", .run = call<&Mmap::heap>, .prepare = call<&Mmap::fill_heap>},
                          {.name = "map_in_window", .run = call<&Mmap::map_in_window>, .prepare = call<&Mmap::warm>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .overrides = {.setup_seconds = 120},  // for a file of gigabytes
    .sizes = sizes({{.name = "sample_bytes", .full = 4096, .multiple = 256, .least = 256, .scales = false},
                    {.name = "file_mib", .full = 512, .most = 8192}}),
    .sweep = cases({{"sample_256", "sample_bytes=256"},
                    {"sample_1k", "sample_bytes=1024"},
                    {"sample_4k", "sample_bytes=4096"},
                    {"sample_16k", "sample_bytes=16384"},
                    {"sample_64k", "sample_bytes=65536"},
                    {"file_64m", "file_mib=64"},
                    {"file_256m", "file_mib=256"},
                    {"file_1g", "file_mib=1024"},
                    {"file_2g", "file_mib=2048"}}),
};

}  // namespace aisp::ch05
