// SPDX-License-Identifier: Apache-2.0
// All cores read random samples of a file that the page cache holds. A mapping per sample is a lock on the address space twice,
// and its removal an interrupt to every core of the process, because each may hold the address in its TLB. One mapping for all
// samples has none of that; pread has no mapping at all, and copies instead. The page cache is warm in all variants.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <aisp/pair.hpp>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace aisp::ch03 {
namespace {

constexpr std::size_t sample_bytes = 65536;
constexpr std::size_t sample_tokens = sample_bytes / sizeof(std::uint32_t);

[[noreturn]] void fail(const char* what) { throw std::system_error{errno, std::generic_category(), what}; }

std::uint32_t sum_of(const std::uint32_t* tokens) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < sample_tokens; ++i) sum += tokens[i];
  return sum;
}

// Machine-wide counts since boot; negative where there is no such line. ARM cores pass such news on without interrupts.
struct Interrupts {
  double tlb_shootdowns = -1;
  double function_calls = -1;

  static Interrupts now() {
    Interrupts counts;
    std::ifstream file{"/proc/interrupts"};
    for (std::string line; std::getline(file, line);) {
      if (line.find("TLB shootdowns") != std::string::npos) counts.tlb_shootdowns = sum_of_cpus(line);
      if (line.find("Function call interrupts") != std::string::npos) counts.function_calls = sum_of_cpus(line);
    }
    return counts;
  }

 private:
  static double sum_of_cpus(const std::string& line) {
    std::istringstream columns{line.substr(line.find(':') + 1)};
    double sum = 0;
    for (double count; columns >> count;) sum += count;
    return sum;
  }
};

class TlbShootdowns final : public Workload {
 public:
  explicit TlbShootdowns(Setup& setup)
      : file_{setup.file("tokens.bin", setup.scaled(std::size_t{256} << 20, sample_bytes))},
        samples_{setup.scaled(2000)},
        ids_{setup.input<std::uint32_t>(samples_, integers(0, static_cast<std::int64_t>(file_.bytes() / sample_bytes) - 1))},
        sums_{setup.output<std::uint32_t>(samples_)},
        team_{setup.threads(setup.cpus())},
        buffers_{setup.scratch<std::uint32_t>(sample_tokens * static_cast<std::size_t>(team_.size()), {.alignment = 4096})} {}
  ~TlbShootdowns() override {
    unmap();
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  Cost cost() const override {
    return {.host_bytes = static_cast<double>(samples_ * sample_bytes + ids_.bytes() + sums_.bytes())};
  }
  double expected(std::size_t index) const override {
    constexpr std::size_t words = sample_bytes / sizeof(std::uint64_t);
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < words; ++i) {
      const std::uint64_t word = file_.word(ids_.host(index) * words + i);
      sum += static_cast<std::uint32_t>(word) + static_cast<std::uint32_t>(word >> 32);
    }
    return sum;
  }

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
    mapping_ = memory;
  }
  void count_interrupts(Launch&) { before_ = Interrupts::now(); }

  void map_each_sample(Launch&) {
    for_all_samples([this](std::size_t i, int) {
      void* const sample = ::mmap(nullptr, sample_bytes, PROT_READ, MAP_SHARED, descriptor_, offset_of(i));
      if (sample == MAP_FAILED) fail("cannot map a sample");
      sums_[i] = sum_of(static_cast<const std::uint32_t*>(sample));
      ::munmap(sample, sample_bytes);
    });
  }
  void map_once(Launch&) {
    for_all_samples([this](std::size_t i, int) {
      sums_[i] =
          sum_of(static_cast<const std::uint32_t*>(mapping_) + static_cast<std::size_t>(offset_of(i)) / sizeof(std::uint32_t));
    });
  }
  void pread_buffers(Launch&) {
    for_all_samples([this](std::size_t i, int worker) {
      std::uint32_t* const buffer = buffers_ + sample_tokens * static_cast<std::size_t>(worker);
      if (::pread(descriptor_, buffer, sample_bytes, offset_of(i)) != static_cast<ssize_t>(sample_bytes))
        fail("cannot read the file");
      sums_[i] = sum_of(buffer);
    });
  }

  void metrics(std::string_view, Metrics& metrics) override {
    const Interrupts after = Interrupts::now();
    if (before_.tlb_shootdowns >= 0)
      metrics.report("tlb_shootdowns", after.tlb_shootdowns - before_.tlb_shootdowns, "count", Metrics::Better::lower);
    if (before_.function_calls >= 0)
      metrics.report("function_call_interrupts", after.function_calls - before_.function_calls, "count", Metrics::Better::lower);
  }

 private:
  template <class Read>
  void for_all_samples(Read read) {
    std::atomic<std::size_t> next{0};
    team_.run([&](int worker) {
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < samples_;) read(i, worker);
    });
  }
  off_t offset_of(std::size_t sample) const { return static_cast<off_t>(ids_.get()[sample] * sample_bytes); }
  void unmap() {
    if (mapping_ != nullptr) ::munmap(mapping_, file_.bytes());
    mapping_ = nullptr;
  }

  FileInput file_;
  std::size_t samples_;
  Input<std::uint32_t> ids_;
  Output<std::uint32_t> sums_;
  ThreadTeam& team_;
  Scratch<std::uint32_t> buffers_;
  int descriptor_ = -1;
  void* mapping_ = nullptr;
  Interrupts before_;
};

}  // namespace

extern constinit const Pair tlb_shootdowns{
    .teaches =
        "munmap must clear the address from every core's TLB: an interrupt to each of them, plus a lock on the address space",
    .lesson = "map_once",
    .make = make<TlbShootdowns>,
    .baseline = {.name = "map_each_sample",
                 .run = call<&TlbShootdowns::map_each_sample>,
                 .prepare = call<&TlbShootdowns::warm>,
                 .reset = call<&TlbShootdowns::count_interrupts>},
    .optimized = variants({{.name = "map_once",
                            .run = call<&TlbShootdowns::map_once>,
                            .prepare = call<&TlbShootdowns::map>,
                            .reset = call<&TlbShootdowns::count_interrupts>},
                           {.name = "pread_buffers",
                            .run = call<&TlbShootdowns::pread_buffers>,
                            .prepare = call<&TlbShootdowns::warm>,
                            .reset = call<&TlbShootdowns::count_interrupts>,
                            .gains_over = "map_each_sample"}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.cpus = 2},
};

}  // namespace aisp::ch03
