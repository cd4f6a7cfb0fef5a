// SPDX-License-Identifier: Apache-2.0
// Deduplication fills a fresh hash table and probes it at random. With pages of 4 KiB the kernel is entered once for each of
// them, twice (to read it, as a page of zeros, and to write it), and nearly every probe misses the TLB, which cannot hold
// thousands of pages. A page of 2 MiB stands for 512 of them: fewer faults, and a table that the TLB covers. Mapping is measured,
// as the table is new; it is unmapped outside the window.
#include <sys/mman.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <unordered_map>

#include "usage.hpp"

namespace aisp::ch03 {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

enum class Pages : std::uint8_t { small, transparent, reserved };

struct Slot {
  std::uint64_t key;  // 0: empty, which is what the kernel hands out
  std::uint64_t value;
};

// Open addressing with linear probing over fresh anonymous memory.
class Table {
 public:
  Table(std::size_t slots, Pages pages) : slots_{slots}, mapped_bytes_{slots * sizeof(Slot)} {
    constexpr int huge_2m = 21 << 26;  // MAP_HUGE_2MB
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (pages == Pages::reserved) flags |= MAP_HUGETLB | huge_2m;
    else mapped_bytes_ += huge_page;  // room to start at a multiple of 2 MiB
    mapping_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::system_error{errno, std::generic_category(), "cannot map the table"};
    const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
    first_ = reinterpret_cast<Slot*>((address + huge_page - 1) / huge_page * huge_page);
    if (pages != Pages::reserved) ::madvise(mapping_, mapped_bytes_, pages == Pages::small ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  }
  ~Table() { ::munmap(mapping_, mapped_bytes_); }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // The first value of a key stays.
  void insert(std::uint64_t key, std::uint64_t value) {
    Slot& slot = find(key);
    if (slot.key == 0) slot = {key, value};
  }
  // The slot of `key`, or the empty one where the search for it ends. At most one slot in eight is taken, so it ends soon.
  Slot& find(std::uint64_t key) const {
    const std::uint64_t hash = key * 0x9E3779B97F4A7C15ull >> 32;
    std::size_t i = static_cast<std::size_t>(hash * slots_ >> 32);
    while (first_[i].key != 0 && first_[i].key != key) i = i + 1 == slots_ ? 0 : i + 1;
    return first_[i];
  }
  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(first_); }

 private:
  std::size_t slots_;
  std::size_t mapped_bytes_;
  void* mapping_;
  Slot* first_;
};

std::string text_of(const char* path) {
  std::string text;
  std::getline(std::ifstream{path}, text);
  return text;
}
std::string thp_mode() { return text_of("/sys/kernel/mm/transparent_hugepage/enabled"); }

// MiB of the mapping that holds `address` in huge pages of either kind; negative where the kernel does not tell.
double huge_mib(std::uintptr_t address) {
  std::ifstream smaps{"/proc/self/smaps"};
  bool here = false;
  double kib = -1;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long long first = 0, last = 0, size = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx", &first, &last) == 2) {
      if (here) break;
      here = first <= address && address < last;
    } else if (here && (std::sscanf(line.c_str(), "AnonHugePages: %llu", &size) == 1 ||
                        std::sscanf(line.c_str(), "Private_Hugetlb: %llu", &size) == 1)) {
      kib = std::max(kib, 0.0) + static_cast<double>(size);
    }
  }
  return kib < 0 ? -1 : kib / 1024;
}

class TransparentHugePages final : public Workload {
 public:
  explicit TransparentHugePages(Setup& setup)
      : slots_{setup.size("slots")},
        // Twice as many keys as inserts: some come again, and many lookups find nothing.
        keys_{setup.input<std::uint32_t>(slots_ / 8, integers(1, static_cast<std::int64_t>(slots_ / 4)))},
        queries_{setup.input<std::uint32_t>(slots_ / 8, integers(1, static_cast<std::int64_t>(slots_ / 4)))},
        hits_and_checksum_{setup.output<std::uint32_t>(2)} {}

  Cost cost() const override {
    return {.host_bytes = static_cast<double>(slots_ * sizeof(Slot) + keys_.bytes() + queries_.bytes())};
  }
  double expected(std::size_t index) const override { return reference_[index]; }
  void compute_reference(Launch&) override {
    std::unordered_map<std::uint32_t, std::uint32_t> first_index;
    for (std::size_t i = 0; i < keys_.size(); ++i) first_index.try_emplace(keys_.host(i), static_cast<std::uint32_t>(i));
    std::uint32_t hits = 0, checksum = 0;
    for (std::size_t i = 0; i < queries_.size(); ++i)
      if (const auto found = first_index.find(queries_.host(i)); found != first_index.end()) ++hits, checksum += found->second;
    reference_ = {static_cast<double>(hits), static_cast<double>(checksum)};
  }

  void require_transparent(Launch&) {
    const std::string mode = thp_mode();
    if (mode.empty()) throw Unsupported{"this kernel has no transparent huge pages"};
    if (mode.find("[never]") != std::string::npos) throw Unsupported{"transparent huge pages are switched off on this machine"};
    if (text_of("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") != std::to_string(huge_page))
      throw Unsupported{"this kernel's huge pages are not of 2 MiB"};
  }
  void require_reserved(Launch&) {
    table_.reset();
    try {
      const Table probe{slots_, Pages::reserved};
    } catch (const std::system_error& refused) {
      throw Unsupported{std::string{"too few huge pages of 2 MiB are reserved ("} + refused.code().message() + ")"};
    }
  }
  void unmap(Launch&) { table_.reset(); }

  void small_pages(Launch&) { build_and_probe(Pages::small); }
  void madvise_huge(Launch&) { build_and_probe(Pages::transparent); }
  void hugetlb(Launch&) { build_and_probe(Pages::reserved); }

  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report("page_faults", used_.page_faults, "count", Metrics::Better::lower);
    if (!table_) return;
    if (const double mib = huge_mib(table_->address()); mib >= 0)
      metrics.report("huge_pages", mib, "MiB", Metrics::Better::higher);
    // If programs get huge pages unasked, small ones are not what they would see.
    if (variant == "small_pages" && thp_mode().find("[always]") != std::string::npos)
      metrics.report("opted_out_of_huge_pages", 1, "flag", Metrics::Better::lower);
  }

 private:
  void build_and_probe(Pages pages) {
    const Usage before = Usage::now();
    Table& table = table_.emplace(slots_, pages);
    for (std::size_t i = 0; i < keys_.size(); ++i) table.insert(keys_.get()[i], i);
    std::uint32_t hits = 0, checksum = 0;
    for (std::size_t i = 0; i < queries_.size(); ++i) {
      const Slot& slot = table.find(queries_.get()[i]);
      hits += slot.key != 0;
      checksum += static_cast<std::uint32_t>(slot.value);
    }
    hits_and_checksum_[0] = hits;
    hits_and_checksum_[1] = checksum;
    used_ = Usage::now().since(before);
  }

  std::size_t slots_;
  Input<std::uint32_t> keys_, queries_;
  Output<std::uint32_t> hits_and_checksum_;
  std::optional<Table> table_;
  Usage used_;
  std::array<double, 2> reference_{};
};

}  // namespace

extern constinit const Pair transparent_huge_pages{
    .teaches = "with 2 MiB pages a table takes 512 times fewer faults and fits the TLB",
    .lesson = "madvise_huge",
    .make = make<TransparentHugePages>,
    .baseline = {.name = "small_pages",
                 .run = call<&TransparentHugePages::small_pages>,
                 .reset = call<&TransparentHugePages::unmap>},
    .optimized = variants({{.name = "madvise_huge",
                            .run = call<&TransparentHugePages::madvise_huge>,
                            .prepare = call<&TransparentHugePages::require_transparent>,
                            .reset = call<&TransparentHugePages::unmap>},
                           {.name = "hugetlb",
                            .run = call<&TransparentHugePages::hugetlb>,
                            .prepare = call<&TransparentHugePages::require_reserved>,
                            .reset = call<&TransparentHugePages::unmap>,
                            .gains_over = "small_pages"}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .sizes = sizes({{.name = "slots", .full = 1u << 22, .multiple = huge_page / sizeof(Slot), .most = 1u << 28}}),
    .sweep =
        cases({{"mib_2", "slots=131072"}, {"mib_8", "slots=524288"}, {"mib_32", "slots=2097152"}, {"mib_64", "slots=4194304"}}),
};

}  // namespace aisp::ch03
