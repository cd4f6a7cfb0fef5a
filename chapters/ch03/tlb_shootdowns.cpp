// SPDX-License-Identifier: Apache-2.0
// All cores read random samples of a file that the page cache holds. A mapping per sample is a lock on the address space twice,
// and its removal an interrupt to every core of the process, because each may hold the address in its TLB. One mapping for all
// samples has none of that; pread has no mapping at all, and copies instead. Two steps tell what a mapping per sample costs: with
// MAP_POPULATE it comes without page faults, and one thread alone has nobody to interrupt. The page cache is warm in all
// variants.
#include <sys/mman.h>
#include <unistd.h>
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <atomic>
#include <fstream>
#include <sstream>
#include <string>

namespace aisp::ch03 {
namespace {

constexpr std::size_t sample_bytes = 65536;
constexpr std::size_t sample_tokens = sample_bytes / sizeof(std::uint32_t);

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

  void warm(Launch&) { cached_.warm(); }
  void map(Launch&) { cached_.map(); }
  void count_interrupts(Launch&) { before_ = Interrupts::now(); }

  void map_each_sample(Launch&) {
    for_all_samples([this](std::size_t i, int) { sums_[i] = sum_in_mapping_of_its_own(i, MAP_SHARED); });
  }
  // The pages come with the mapping: no fault for each of the sixteen.
  void map_populated(Launch&) {
    for_all_samples([this](std::size_t i, int) { sums_[i] = sum_in_mapping_of_its_own(i, MAP_SHARED | MAP_POPULATE); });
  }
  // One thread on one core: the same faults, but nobody to interrupt and nobody who wants the lock.
  void one_thread(Launch&) {
    for (std::size_t i = 0; i < samples_; ++i) sums_[i] = sum_in_mapping_of_its_own(i, MAP_SHARED);
  }
  void map_once(Launch&) {
    for_all_samples([this](std::size_t i, int) {
      sums_[i] = sum_of(cached_.mapping<std::uint32_t>() + static_cast<std::size_t>(offset_of(i)) / sizeof(std::uint32_t));
    });
  }
  void pread_buffers(Launch&) {
    for_all_samples([this](std::size_t i, int worker) {
      std::uint32_t* const buffer = buffers_ + sample_tokens * static_cast<std::size_t>(worker);
      if (::pread(cached_.descriptor(), buffer, sample_bytes, offset_of(i)) != static_cast<ssize_t>(sample_bytes))
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
  std::uint32_t sum_in_mapping_of_its_own(std::size_t i, int flags) const {
    void* const sample = ::mmap(nullptr, sample_bytes, PROT_READ, flags, cached_.descriptor(), offset_of(i));
    if (sample == MAP_FAILED) fail("cannot map a sample");
    const std::uint32_t sum = sum_of(static_cast<const std::uint32_t*>(sample));
    ::munmap(sample, sample_bytes);
    return sum;
  }
  template <class Read>
  void for_all_samples(Read read) {
    std::atomic<std::size_t> next{0};
    team_.run([&](int worker) {
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < samples_;) read(i, worker);
    });
  }
  off_t offset_of(std::size_t sample) const { return static_cast<off_t>(ids_.get()[sample] * sample_bytes); }

  FileInput file_;
  std::size_t samples_;
  Input<std::uint32_t> ids_;
  Output<std::uint32_t> sums_;
  ThreadTeam& team_;
  Scratch<std::uint32_t> buffers_;
  CachedFile cached_{file_};
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
    .optimized = variants({{.name = "map_populated",
                            .run = call<&TlbShootdowns::map_populated>,
                            .prepare = call<&TlbShootdowns::warm>,
                            .reset = call<&TlbShootdowns::count_interrupts>},
                           {.name = "map_once",
                            .run = call<&TlbShootdowns::map_once>,
                            .prepare = call<&TlbShootdowns::map>,
                            .reset = call<&TlbShootdowns::count_interrupts>},
                           {.name = "pread_buffers",
                            .run = call<&TlbShootdowns::pread_buffers>,
                            .prepare = call<&TlbShootdowns::warm>,
                            .reset = call<&TlbShootdowns::count_interrupts>,
                            .gains_over = "map_each_sample"}}),
    .controls = variants({{.name = "one_thread",
                           .run = call<&TlbShootdowns::one_thread>,
                           .prepare = call<&TlbShootdowns::warm>,
                           .reset = call<&TlbShootdowns::count_interrupts>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.cpus = 2},
};

}  // namespace aisp::ch03
