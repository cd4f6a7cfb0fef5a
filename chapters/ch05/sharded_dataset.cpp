// SPDX-License-Identifier: Apache-2.0
// Samples in random order, each a file of its own or all packed into one. A small file costs a walk along its path, an inode and
// a descriptor every time; a shard whose table of offsets is in memory costs them once. A shard that was shuffled when it was
// written is read in large blocks, in the one order that it has. The page cache and the kernel's table of paths are warm; with
// the size `cold` both are dropped before every run, the table where that is allowed.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "page_cache.hpp"
#include "token_file.hpp"

namespace aisp::ch05 {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;

void shuffle(std::span<std::uint32_t> order, std::uint64_t seed) {
  std::iota(order.begin(), order.end(), 0u);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_bits(seed, i) % i]);
}

class ShardedDataset final : public Workload {
 public:
  explicit ShardedDataset(Setup& setup)
      : sample_bytes_{setup.size("sample_kib") << 10},
        samples_{std::max<std::size_t>(1, setup.scaled(2000 * 16) * 1024 / sample_bytes_)},
        is_cold_{setup.size("cold") == 1},
        folder_{std::filesystem::path{setup.scratch_directory()} / "samples"},
        shuffled_path_{std::filesystem::path{setup.scratch_directory()} / "shuffled.shard"},
        shard_{setup.file("samples.shard", samples_ * sample_bytes_)},
        order_{setup.input<std::uint32_t>(samples_, HostFill<std::uint32_t>{shuffle}, {.name = "order"})},
        sums_{setup.output<std::uint32_t>(samples_)},
        buffer_{setup.scratch<std::uint32_t>(std::max(block_bytes, sample_bytes_) / sizeof(std::uint32_t), {.alignment = 4096})} {
    if (is_cold_) require_droppable_pages(setup.scratch_directory());
    for (std::size_t i = 0; i < samples_; ++i) {
      offsets_.push_back(i * sample_bytes_);
      paths_.push_back((folder_ / (std::to_string(i) + ".sample")).string());
    }
    shuffled_.resize(samples_);
    shuffle(shuffled_, samples_);
  }

  Cost cost() const override { return {.host_bytes = static_cast<double>(shard_.bytes())}; }
  double expected(std::size_t sample) const override { return expected_sum(shard_, sample_bytes_, sample); }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("throughput", static_cast<double>(samples_), "samples/s");
  }

  // Every sample's own file, with what the shard holds now.
  void split(Launch&) {
    cached_.warm();
    if (split_from_ == shard_.word(0)) return;
    ::mkdir(folder_.c_str(), 0700);
    for (std::size_t i = 0; i < samples_; ++i) {
      read_at(cached_.descriptor(), buffer_, sample_bytes_, offsets_[i]);
      const File file{paths_[i], O_WRONLY | O_CREAT | O_TRUNC};
      write_all(file, paths_[i], buffer_, sample_bytes_);
    }
    write_out();
    split_from_ = shard_.word(0);
  }
  void keep_open(Launch& launch) {
    split(launch);
    if (!open_.empty()) return;
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    constexpr std::size_t others = 256;  // descriptors of the rest of the process
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < samples_ + others)
      throw Unsupported{"a process may open " + std::to_string(limit.rlim_max) + " files here, not " + std::to_string(samples_) +
                        "; raise the limit (ulimit -Hn)"};
    if (limit.rlim_cur < samples_ + others) {
      limit.rlim_cur = samples_ + others;
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) fail("cannot raise the limit of open files");
    }
    for (const std::string& path : paths_) open_.push_back(std::make_unique<File>(path, O_RDONLY));
  }
  void open_shard(Launch&) { cached_.warm(); }
  // The second shard, whose order is that of an epoch.
  void write_shuffled(Launch&) {
    cached_.warm();
    if (!shuffled_file_) shuffled_file_ = std::make_unique<File>(shuffled_path_, O_RDWR | O_CREAT | O_TRUNC);
    if (*shuffled_file_ >= 0) ::lseek(*shuffled_file_, 0, SEEK_SET);
    for (const std::uint32_t sample : shuffled_) {
      read_at(cached_.descriptor(), buffer_, sample_bytes_, offsets_[sample]);
      write_all(*shuffled_file_, shuffled_path_, buffer_, sample_bytes_);
    }
    write_out();
  }

  void drop_files(Launch&) {
    if (!is_cold_) return;
    for (const std::string& path : paths_)
      if (const File file{path, O_RDONLY}; file >= 0) ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    drop_paths();
  }
  void drop_shards(Launch&) {
    if (!is_cold_) return;
    drop_page_cache(cached_.descriptor());
    if (shuffled_file_) drop_page_cache(*shuffled_file_);
    drop_paths();
  }

  void files(Launch&) {
    for (std::size_t i = 0; i < samples_; ++i) {
      const std::uint32_t sample = order_[i];
      const File file{paths_[sample], O_RDONLY};
      use(file, 0, sample);
    }
  }
  void files_kept_open(Launch&) {
    for (std::size_t i = 0; i < samples_; ++i) use(*open_[order_[i]], 0, order_[i]);
  }
  void indexed_shard(Launch&) {
    for (std::size_t i = 0; i < samples_; ++i) use(cached_.descriptor(), offsets_[order_[i]], order_[i]);
  }
  void sequential_shard(Launch&) {
    std::size_t next = 0;
    const std::size_t samples_of_block = std::max<std::size_t>(1, block_bytes / sample_bytes_);
    while (next < samples_) {
      const std::size_t count = std::min(samples_of_block, samples_ - next);
      read_at(*shuffled_file_, buffer_, count * sample_bytes_, next * sample_bytes_);
      for (std::size_t i = 0; i < count; ++i, ++next)
        sums_[shuffled_[next]] = sum_of(buffer_ + i * (sample_bytes_ / sizeof(std::uint32_t)), sample_bytes_);
    }
  }

 private:
  void use(int file, std::uint64_t offset, std::uint32_t sample) {
    read_at(file, buffer_, sample_bytes_, offset);
    sums_[sample] = sum_of(buffer_, sample_bytes_);
  }
  // So that no write-back runs beside the measurement, and the pages can be dropped.
  void write_out() const {
    if (::syncfs(cached_.descriptor()) != 0) fail("cannot write the files out");
  }
  // Inodes and entries of directories, of the whole machine: root alone may, and elsewhere they stay.
  static void drop_paths() {
    const File drop{"/proc/sys/vm/drop_caches", O_WRONLY};
    if (drop >= 0 && ::write(drop, "2", 1) < 0) return;
  }

  std::size_t sample_bytes_, samples_;
  bool is_cold_;
  std::filesystem::path folder_, shuffled_path_;
  FileInput shard_;
  Input<std::uint32_t> order_;
  Output<std::uint32_t> sums_;
  Scratch<std::uint32_t> buffer_;
  CachedFile cached_{shard_};
  std::vector<std::uint64_t> offsets_;
  std::vector<std::string> paths_;
  std::vector<std::uint32_t> shuffled_;
  std::vector<std::unique_ptr<File>> open_;
  std::unique_ptr<File> shuffled_file_;
  std::uint64_t split_from_ = 0;  // the shard's first word
};

}  // namespace

extern constinit const Pair sharded_dataset{
    .teaches =
        "a small file costs a path walk, an inode and a descriptor each time; a shard with an offset table costs them once",
    .lesson = "indexed_shard",
    .make = make<ShardedDataset>,
    .baseline = {.name = "files",
                 .run = call<&ShardedDataset::files>,
                 .prepare = call<&ShardedDataset::split>,
                 .reset = call<&ShardedDataset::drop_files>},
    .optimized = variants({{.name = "indexed_shard",
                            .run = call<&ShardedDataset::indexed_shard>,
                            .prepare = call<&ShardedDataset::open_shard>,
                            .reset = call<&ShardedDataset::drop_shards>},
                           {.name = "sequential_shard",
                            .run = call<&ShardedDataset::sequential_shard>,
                            .prepare = call<&ShardedDataset::write_shuffled>,
                            .reset = call<&ShardedDataset::drop_shards>}}),
    .controls = variants({{.name = "files_kept_open",
                           .run = call<&ShardedDataset::files_kept_open>,
                           .prepare = call<&ShardedDataset::keep_open>,
                           .reset = call<&ShardedDataset::drop_files>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .sizes = sizes({{.name = "sample_kib", .full = 16, .most = 4096, .scales = false}, option("cold")}),
    .sweep = cases({{"sample_1k", "sample_kib=1"},
                    {"sample_4k", "sample_kib=4"},
                    {"sample_16k", "sample_kib=16"},
                    {"sample_64k", "sample_kib=64"},
                    {"sample_256k", "sample_kib=256"},
                    {"sample_1m", "sample_kib=1024"},
                    {"cold", "cold=1"}}),
    .edges = cases({{"tail", "sample_kib=24"}, {"few", "sample_kib=4096"}}),
};

}  // namespace aisp::ch05
