// SPDX-License-Identifier: Apache-2.0
// Shuffled samples are small random reads. A loop of pread asks for one, waits for the device, and asks for the next: the device,
// which could serve dozens at once, idles most of the time. Many requests in flight fill it, from many threads that block or from
// one thread with io_uring, whose O_DIRECT reads also skip the page cache. The page cache is cold: the file's pages are dropped
// before every run, outside the timed window.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "ring.hpp"
#include "token_file.hpp"

namespace aisp::ch05 {
namespace {

constexpr unsigned queue_depth = 64;
constexpr unsigned batch = queue_depth / 4;  // completions that are waited for together: a quarter of the system calls
constexpr int reading_threads = 32;          // not one per CPU: they wait most of the time

class File {
 public:
  File(const std::filesystem::path& path, int flags) : descriptor_{::open(path.c_str(), flags | O_CLOEXEC, 0600)} {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  operator int() const { return descriptor_; }

 private:
  int descriptor_;
};

// Only clean pages can be dropped, hence the fsync.
void drop_page_cache(int file) {
  if (::fsync(file) != 0) fail("cannot write the file out");
  if (const int error = ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED); error != 0) fail("cannot drop the file's pages", error);
}

// In a file system without a device behind it the page cache is the file.
void require_droppable_pages(const std::filesystem::path& folder) {
  const File probe{folder / "probe", O_RDWR | O_CREAT | O_TRUNC};
  const std::array<char, sample_bytes> text{};
  if (::write(probe, text.data(), text.size()) != static_cast<ssize_t>(text.size())) fail("cannot write to the scratch folder");
  drop_page_cache(probe);
  void* const page = ::mmap(nullptr, sample_bytes, PROT_READ, MAP_SHARED, probe, 0);
  if (page == MAP_FAILED) fail("cannot map a file of the scratch folder");
  unsigned char resident[sample_bytes / 4096] = {};
  const int status = ::mincore(page, sample_bytes, resident);
  ::munmap(page, sample_bytes);
  if (status == 0 && (resident[0] & 1) != 0)
    throw Unsupported{"the file system of the scratch folder keeps its files in memory; choose a folder on a disk"};
}

class IoUring final : public Workload {
 public:
  explicit IoUring(Setup& setup)
      : file_{token_file(setup)},
        samples_{setup.scaled(500)},
        ids_{random_samples(setup, file_, samples_)},
        sums_{setup.output<std::uint32_t>(samples_)},
        buffers_{setup.scratch<std::byte>(queue_depth * sample_bytes, {.alignment = 4096})},
        team_{setup.threads(reading_threads, false)} {
    require_droppable_pages(setup.scratch_directory());
  }

  Cost cost() const override { return {.host_bytes = static_cast<double>(samples_ * sample_bytes)}; }
  double expected(std::size_t index) const override { return expected_sum(file_, ids_.host(index)); }

  // The file exists only when the workload has been constructed, so it is opened here, once.
  void open(Launch&) {
    if (buffered_) return;
    buffered_ = std::make_unique<File>(file_.path(), O_RDONLY);
    if (*buffered_ < 0) fail("cannot open the file");
  }
  void open_direct(Launch& launch) {
    open(launch);
    if (ring_) return;
    drop_page_cache(*buffered_);
    auto direct = std::make_unique<File>(file_.path(), O_RDONLY | O_DIRECT);
    if (*direct < 0 || ::pread(*direct, buffers_.get(), sample_bytes, 0) != static_cast<ssize_t>(sample_bytes))
      throw Unsupported{std::string{"the file system of the scratch folder refuses O_DIRECT ("} + std::strerror(errno) + ")"};
    ring_ = std::make_unique<Ring>(queue_depth, buffers_.get(), sample_bytes);
    direct_ = std::move(direct);
  }
  void drop(Launch&) { drop_page_cache(*buffered_); }

  void pread_loop(Launch&) {
    for (std::size_t i = 0; i < samples_; ++i) read_blocking(i);
  }

  void thread_pool_pread(Launch&) {
    std::atomic<std::size_t> next{0};
    team_.run([&](int) {
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < samples_;) read_blocking(i);
    });
  }

  // One thread: whenever reads are done, their buffers are summed and given to the next reads.
  void io_uring_direct(Launch&) {
    std::uint32_t started = 0;
    std::size_t finished = 0;
    const auto start_next = [&](unsigned slot) {
      if (started == samples_) return;
      ring_->push_read(*direct_, offset_of(started), slot, started);
      ++started;
    };
    for (unsigned slot = 0; slot < queue_depth; ++slot) start_next(slot);
    while (finished < samples_) {
      const auto in_flight = static_cast<unsigned>(started - finished);
      ring_->submit_and_wait(std::min(in_flight, batch));
      ring_->take([&](unsigned slot, std::uint32_t sample, int result) {
        if (result != static_cast<int>(sample_bytes)) fail("cannot read the file", result < 0 ? -result : EIO);
        sums_[sample] = sum_of(reinterpret_cast<const std::uint32_t*>(ring_->buffer(slot)));
        ++finished;
        start_next(slot);
      });
    }
  }

 private:
  std::uint64_t offset_of(std::size_t sample) const { return std::uint64_t{ids_.get()[sample]} * sample_bytes; }
  void read_blocking(std::size_t sample) const {
    std::array<std::uint32_t, sample_tokens> tokens;
    const auto offset = static_cast<off_t>(offset_of(sample));
    if (::pread(*buffered_, tokens.data(), sample_bytes, offset) != static_cast<ssize_t>(sample_bytes))
      fail("cannot read the file");
    sums_[sample] = sum_of(tokens.data());
  }

  FileInput file_;
  std::size_t samples_;
  Input<std::uint32_t> ids_;
  Output<std::uint32_t> sums_;
  Scratch<std::byte> buffers_;
  ThreadTeam& team_;
  std::unique_ptr<File> buffered_, direct_;
  std::unique_ptr<Ring> ring_;
};

}  // namespace

extern constinit const Pair io_uring{
    .teaches = "one read at a time leaves the device idle between requests; shuffled samples need many in flight",
    .lesson = "io_uring_direct",
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
                            .prepare = call<&IoUring::open_direct>,
                            .reset = call<&IoUring::drop>,
                            .gains_over = "pread_loop"}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch05
