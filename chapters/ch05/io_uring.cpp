// SPDX-License-Identifier: Apache-2.0
// Shuffled samples are small random reads. A loop of pread asks for one, waits for the device, and asks for the next: the device,
// which could serve dozens at once, idles most of the time. Many requests in flight fill it, from many threads that block or from
// one thread with io_uring, whose O_DIRECT reads also skip the page cache. The page cache is cold: the file's pages are dropped
// before every run, outside the timed window.
#include <fcntl.h>
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>

#include "page_cache.hpp"
#include "ring.hpp"
#include "token_file.hpp"
#include "usage.hpp"

namespace aisp::ch05 {
namespace {

constexpr std::size_t sample_bytes = 4096;

class IoUring final : public Workload {
 public:
  explicit IoUring(Setup& setup)
      : queue_depth_{static_cast<unsigned>(setup.size("queue_depth"))},
        file_{setup.file("tokens.bin", setup.scaled(std::size_t{512} << 20, sample_bytes))},
        samples_{setup.scaled(2000)},
        ids_{random_samples(setup, file_, sample_bytes, samples_)},
        sums_{setup.output<std::uint32_t>(samples_)},
        buffers_{setup.scratch<std::byte>(queue_depth_ * sample_bytes, {.alignment = 4096})},
        team_{setup.threads(static_cast<int>(setup.size("threads")), false)} {
    require_droppable_pages(setup.scratch_directory());
  }

  Cost cost() const override { return {.host_bytes = static_cast<double>(samples_ * sample_bytes)}; }
  double expected(std::size_t index) const override { return expected_sum(file_, sample_bytes, ids_.host(index)); }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("reads", static_cast<double>(samples_), "reads/s");
    metrics.report("cpu_time", used_.cpu_seconds * 1e3, "ms", Metrics::Better::lower);
  }

  // The file exists only when the workload has been constructed, so it is opened here, once.
  void open(Launch&) {
    if (buffered_) return;
    buffered_ = std::make_unique<File>(file_.path(), O_RDONLY);
    random_ = std::make_unique<File>(file_.path(), O_RDONLY);
    if (*buffered_ < 0 || *random_ < 0) fail("cannot open the file");
    if (const int error = ::posix_fadvise(*random_, 0, 0, POSIX_FADV_RANDOM); error != 0)
      fail("cannot advise on the file", error);
  }
  void open_direct(Launch& launch) {
    open(launch);
    if (direct_) return;
    drop_page_cache(*buffered_);
    auto direct = std::make_unique<File>(file_.path(), O_RDONLY | O_DIRECT);
    require_direct_reads(*direct);
    direct_ = std::move(direct);
  }
  void open_ring(Launch& launch) {
    open_direct(launch);
    if (!ring_) ring_ = std::make_unique<Ring>(queue_depth_, buffers_.get(), sample_bytes);
  }
  void drop(Launch&) { drop_page_cache(*buffered_); }

  void pread_loop(Launch&) { read_one_by_one(*buffered_); }
  void pread_random(Launch&) { read_one_by_one(*random_); }
  void pread_direct(Launch&) { read_one_by_one(*direct_); }

  void thread_pool_pread(Launch&) {
    const Usage before = Usage::now();
    std::atomic<std::size_t> next{0};
    team_.run([&](int) {
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < samples_;) read_blocking(*buffered_, i);
    });
    used_ = Usage::now().since(before);
  }

  // One thread: whenever reads are done, their buffers are summed and given to the next reads.
  void io_uring_direct(Launch&) {
    const Usage before = Usage::now();
    const unsigned batch = std::max(1u, queue_depth_ / 4);  // completions that are waited for together: fewer system calls
    std::uint32_t started = 0;
    std::size_t finished = 0;
    const auto start_next = [&](unsigned slot) {
      if (started == samples_) return;
      ring_->push_read(*direct_, offset_of(started), slot, started);
      ++started;
    };
    for (unsigned slot = 0; slot < queue_depth_; ++slot) start_next(slot);
    while (finished < samples_) {
      const auto in_flight = static_cast<unsigned>(started - finished);
      ring_->submit_and_wait(std::min(in_flight, batch));
      ring_->take([&](unsigned slot, std::uint32_t sample, int result) {
        if (result != static_cast<int>(sample_bytes)) fail("cannot read the file", result < 0 ? -result : EIO);
        sums_[sample] = sum_of(reinterpret_cast<const std::uint32_t*>(ring_->buffer(slot)), sample_bytes);
        ++finished;
        start_next(slot);
      });
    }
    used_ = Usage::now().since(before);
  }

 private:
  std::uint64_t offset_of(std::size_t sample) const { return std::uint64_t{ids_.get()[sample]} * sample_bytes; }
  void read_one_by_one(int file) {
    const Usage before = Usage::now();
    for (std::size_t i = 0; i < samples_; ++i) read_blocking(file, i);
    used_ = Usage::now().since(before);
  }
  void read_blocking(int file, std::size_t sample) const {
    alignas(sample_bytes) std::array<std::uint32_t, sample_bytes / sizeof(std::uint32_t)> tokens;
    read_at(file, tokens.data(), sample_bytes, offset_of(sample));
    sums_[sample] = sum_of(tokens.data(), sample_bytes);
  }

  unsigned queue_depth_;
  FileInput file_;
  std::size_t samples_;
  Input<std::uint32_t> ids_;
  Output<std::uint32_t> sums_;
  Scratch<std::byte> buffers_;
  ThreadTeam& team_;
  std::unique_ptr<File> buffered_, random_, direct_;
  std::unique_ptr<Ring> ring_;
  Usage used_;
};

}  // namespace

extern constinit const Pair io_uring{
    .teaches = "one read at a time leaves the device idle between requests; shuffled samples need many in flight",
    .lesson = "thread_pool_pread",
    .make = make<IoUring>,
    .baseline = {.name = "pread_loop",
                 .run = call<&IoUring::pread_loop>,
                 .prepare = call<&IoUring::open>,
                 .reset = call<&IoUring::drop>},
    .optimized = variants({{.name = "thread_pool_pread",
                            .run = call<&IoUring::thread_pool_pread>,
                            .prepare = call<&IoUring::open>,
                            .reset = call<&IoUring::drop>},
                           {.name = "io_uring_direct",
                            .run = call<&IoUring::io_uring_direct>,
                            .prepare = call<&IoUring::open_ring>,
                            .reset = call<&IoUring::drop>}}),
    .controls = variants({{.name = "pread_direct",
                           .run = call<&IoUring::pread_direct>,
                           .prepare = call<&IoUring::open_direct>,
                           .reset = call<&IoUring::drop>},
                          {.name = "pread_random",
                           .run = call<&IoUring::pread_random>,
                           .prepare = call<&IoUring::open>,
                           .reset = call<&IoUring::drop>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .overrides = {.setup_seconds = 60, .measurement_seconds = 30},
    // Threads: not one for each CPU, because they wait most of the time.
    .sizes = sizes({{.name = "queue_depth", .full = 64, .most = 256, .scales = false},
                    {.name = "threads", .full = 32, .most = 128, .scales = false}}),
    .sweep = cases({{"depth_1", "queue_depth=1"},
                    {"depth_4", "queue_depth=4"},
                    {"depth_16", "queue_depth=16"},
                    {"depth_64", "queue_depth=64"},
                    {"depth_128", "queue_depth=128"},
                    {"depth_256", "queue_depth=256"},
                    {"threads_1", "threads=1"},
                    {"threads_4", "threads=4"},
                    {"threads_16", "threads=16"},
                    {"threads_32", "threads=32"},
                    {"threads_64", "threads=64"},
                    {"threads_128", "threads=128"}}),
};

}  // namespace aisp::ch05
