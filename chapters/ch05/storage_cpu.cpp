// SPDX-License-Identifier: Apache-2.0
// A shard that the page cache holds is checked record by record. Read as a whole into a new vector, it costs a page fault and a
// zeroed page for every 4 KiB, and it has gone to memory and must come back before its first byte is used. In blocks that stay in
// the core's cache it does neither; a mapping does not even copy. The CRC, three interleaved chains of the CPU's instruction, is
// the same in all variants.
#include <fcntl.h>
#include <sys/mman.h>
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "page_cache.hpp"
#include "usage.hpp"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define CRC_TARGET [[gnu::target("+crc")]]
#else
#define CRC_TARGET [[gnu::target("sse4.2")]]
#endif

namespace aisp::ch05 {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20, record_bytes = mebibyte;

bool has_crc_instruction() {
#if defined(__aarch64__)
  return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
  return __builtin_cpu_supports("sse4.2") != 0;
#endif
}
CRC_TARGET inline std::uint64_t crc_of_word(std::uint64_t crc, std::uint64_t word) {
#if defined(__aarch64__)
  std::uint32_t next;  // compilers have different names for it
  asm("crc32cx %w0, %w1, %x2" : "=r"(next) : "r"(static_cast<std::uint32_t>(crc)), "r"(word));
  return next;
#else
  return __builtin_ia32_crc32di(crc, word);
#endif
}

// A byte without the instruction, for tables and the reference.
constexpr std::uint32_t crc_of_byte(std::uint32_t crc, std::uint32_t byte) {
  crc ^= byte;
  for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc % 2 == 1 ? 0x82F63B78u : 0);
  return crc;
}

// The instruction takes three cycles and can start in each, so three chains run at a time, and are put together every 4080 bytes.
class Crc32c {
 public:
  Crc32c() {
    for (std::size_t byte = 0; byte < 4; ++byte)
      for (std::uint32_t bit = 0; bit < 8; ++bit) {
        std::uint32_t crc = 1u << (byte * 8 + bit);
        for (std::size_t i = 0; i < chain_bytes; ++i) crc = crc_of_byte(crc, 0);
        for (std::uint32_t value = 1u << bit; value < 256; value = (value + 1) | 1u << bit) behind_chain_[byte][value] ^= crc;
      }
  }
  // `crc` is the register before and after, not the inverted result. A multiple of 8 bytes.
  CRC_TARGET std::uint32_t add(std::uint32_t crc, const std::byte* data, std::size_t bytes) const {
    for (; bytes >= 3 * chain_bytes; data += 3 * chain_bytes, bytes -= 3 * chain_bytes) {
      std::uint64_t first = crc, second = 0, third = 0;
      for (std::size_t i = 0; i < chain_bytes; i += 8) {
        first = crc_of_word(first, word_at(data + i));
        second = crc_of_word(second, word_at(data + chain_bytes + i));
        third = crc_of_word(third, word_at(data + 2 * chain_bytes + i));
      }
      const std::uint32_t two = behind_chain(static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
      crc = behind_chain(two) ^ static_cast<std::uint32_t>(third);
    }
    std::uint64_t rest = crc;
    for (std::size_t i = 0; i < bytes; i += 8) rest = crc_of_word(rest, word_at(data + i));
    return static_cast<std::uint32_t>(rest);
  }

 private:
  static constexpr std::size_t chain_bytes = 1360;
  static std::uint64_t word_at(const std::byte* data) {
    std::uint64_t word;
    std::memcpy(&word, data, sizeof word);
    return word;
  }
  // The register after as many zeros as a chain has bytes: linear, so that its four bytes may be looked up one by one.
  std::uint32_t behind_chain(std::uint32_t crc) const {
    return behind_chain_[0][crc & 255] ^ behind_chain_[1][crc >> 8 & 255] ^ behind_chain_[2][crc >> 16 & 255] ^
           behind_chain_[3][crc >> 24];
  }
  std::array<std::array<std::uint32_t, 256>, 4> behind_chain_{};
};

class StorageCpu final : public Workload {
 public:
  explicit StorageCpu(Setup& setup)
      : file_{setup.file("records.bin", setup.size("shard_mib") * mebibyte)},
        sums_{setup.output<std::uint32_t>(file_.bytes() / record_bytes, {.name = "CRCs"})},
        block_{setup.scratch<std::byte>(setup.size("block_kib") << 10, {.name = "block", .alignment = 4096})},
        whole_{setup.scratch<std::byte>(file_.bytes(), {.name = "whole shard", .alignment = 4096})} {
    if (!has_crc_instruction()) throw Unsupported{"this CPU has no instruction for CRC32C (SSE4.2, or CRC32 of Arm)"};
  }

  Cost cost() const override { return {.host_bytes = static_cast<double>(file_.bytes())}; }
  double expected(std::size_t record) const override {
    std::uint32_t crc = ~0u;
    for (std::size_t i = 0; i < record_bytes / 8; ++i) {
      const std::uint64_t word = file_.word(record * (record_bytes / 8) + i);
      for (int byte = 0; byte < 8; ++byte) crc = crc_of_byte(crc, static_cast<std::uint32_t>(word >> 8 * byte & 255));
    }
    return ~crc;
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report("page_faults", used_.page_faults, "", Metrics::Better::lower);
  }

  void warm(Launch&) { cached_.warm(); }
  void keep_vector(Launch&) {
    cached_.warm();
    kept_.resize(file_.bytes());
  }

  void fresh_vector(Launch&) {
    count([&] {
      std::vector<char> shard(file_.bytes());
      read_all(shard);
    });
  }
  void kept_vector(Launch&) {
    count([&] { read_all(kept_); });
  }
  void pread_whole(Launch&) {
    count([&] {
      const File file{file_.path(), O_RDONLY};
      read_at(file, whole_, file_.bytes(), 0);
      add(whole_, file_.bytes());
    });
  }
  void block_stream(Launch&) {
    count([&] {
      const File file{file_.path(), O_RDONLY};
      for (std::size_t at = 0; at < file_.bytes(); at += block_.size()) {
        const std::size_t bytes = std::min(block_.size(), file_.bytes() - at);
        read_at(file, block_, bytes, at);
        add(block_, bytes);
      }
    });
  }
  void mapped(Launch&) {
    count([&] {
      const File file{file_.path(), O_RDONLY};
      void* const shard = ::mmap(nullptr, file_.bytes(), PROT_READ, MAP_SHARED, file, 0);
      if (shard == MAP_FAILED) fail("cannot map the file");
      add(static_cast<const std::byte*>(shard), file_.bytes());
      ::munmap(shard, file_.bytes());
    });
  }

 private:
  template <class Work>
  void count(const Work& work) {
    const Usage before = Usage::now();
    at_ = 0;
    work();
    used_ = Usage::now().since(before);
  }
  void read_all(std::vector<char>& shard) {
    std::ifstream in{file_.path(), std::ios::binary};
    in.read(shard.data(), static_cast<std::streamsize>(shard.size()));
    if (!in) throw std::runtime_error{"cannot read the file"};
    add(reinterpret_cast<const std::byte*>(shard.data()), shard.size());
  }
  // The next bytes of the shard, of which a record may have had the first before.
  void add(const std::byte* data, std::size_t bytes) {
    for (std::size_t part; bytes > 0; data += part, bytes -= part) {
      const std::size_t in_record = at_ % record_bytes;
      part = std::min(bytes, record_bytes - in_record);
      register_ = crc_.add(in_record == 0 ? ~0u : register_, data, part);
      at_ += part;
      if (at_ % record_bytes == 0) sums_[at_ / record_bytes - 1] = ~register_;
    }
  }

  FileInput file_;
  Output<std::uint32_t> sums_;
  Scratch<std::byte> block_, whole_;
  CachedFile cached_{file_};
  std::vector<char> kept_;
  Crc32c crc_;
  std::size_t at_ = 0;
  std::uint32_t register_ = 0;
  Usage used_;
};

}  // namespace

extern constinit const Pair storage_cpu{
    .teaches =
        "reading a whole file into a new vector pays a page fault and a zeroed page for every 4 KiB, and a trip through memory "
        "before the first byte is used",
    .lesson = "block_stream",
    .make = make<StorageCpu>,
    .baseline = {.name = "fresh_vector", .run = call<&StorageCpu::fresh_vector>, .prepare = call<&StorageCpu::warm>},
    .optimized =
        variants({{.name = "kept_vector", .run = call<&StorageCpu::kept_vector>, .prepare = call<&StorageCpu::keep_vector>},
                  {.name = "block_stream", .run = call<&StorageCpu::block_stream>, .prepare = call<&StorageCpu::warm>},
                  {.name = "mapped", .run = call<&StorageCpu::mapped>, .prepare = call<&StorageCpu::warm>}}),
    .controls = variants({{.name = "pread_whole", .run = call<&StorageCpu::pread_whole>, .prepare = call<&StorageCpu::warm>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .sizes = sizes({{.name = "block_kib", .full = 256, .multiple = 4, .least = 4, .scales = false},
                    {.name = "shard_mib", .full = 64, .most = 4096}}),
    .sweep = cases({{"block_4k", "block_kib=4"},
                    {"block_16k", "block_kib=16"},
                    {"block_64k", "block_kib=64"},
                    {"block_256k", "block_kib=256"},
                    {"block_1m", "block_kib=1024"},
                    {"block_4m", "block_kib=4096"},
                    {"block_64m", "block_kib=65536"},
                    {"shard_1m", "shard_mib=1"},
                    {"shard_16m", "shard_mib=16"},
                    {"shard_256m", "shard_mib=256"}}),
    .edges = cases({{"odd_blocks", "block_kib=12,shard_mib=2"}, {"block_beyond_the_file", "block_kib=4096,shard_mib=3"}}),
};

}  // namespace aisp::ch05
