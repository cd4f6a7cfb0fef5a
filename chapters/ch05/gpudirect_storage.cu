// SPDX-License-Identifier: Apache-2.0
// A weight file that the page cache holds goes to device memory. Copied from a mapping, as loaders of safetensors do it, it
// passes through the driver's staging buffer, which one thread fills. Blocks that are read into pinned slots and fetched from
// there while the next one is read still have one thread that copies, and the link waits for it: only several threads keep it
// busy. With the size `cold` the file's pages are dropped before every run: only then has cuFile's path past the host's memory
// anything to win.
#include <fcntl.h>
#include <aisp/host.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "cufile.hpp"
#include "page_cache.hpp"
#include "usage.hpp"

namespace aisp::ch05 {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr std::size_t cufile_bytes = 16 * mebibyte;  // of a call
constexpr std::size_t most_threads = 16, slots_each = 2;

class GpudirectStorage final : public Workload {
 public:
  explicit GpudirectStorage(Setup& setup)
      : block_bytes_{setup.size("block_kib") << 10},
        threads_{setup.size("threads")},
        is_cold_{setup.size("cold") == 1},
        file_{setup.file("weights.bin", setup.scaled(128 * mebibyte, mebibyte))},
        out_{setup.output<std::uint32_t>(file_.bytes() / sizeof(std::uint32_t), {.name = "weights"})},
        pinned_{
            setup.scratch<std::byte>(std::max(file_.bytes(), slots_each * threads_ * block_bytes_), {.memory = Memory::pinned})},
        heap_{setup.scratch<std::byte>(file_.bytes(), {.memory = Memory::pageable, .alignment = 4096})},
        team_{setup.threads(static_cast<int>(threads_), false)},
        device_{setup.device_ordinal(0)},
        cufile_{setup, setup.scratch_directory()} {
    for (cudaEvent_t& event : slot_free_) event = setup.event();
    if (is_cold_) require_droppable_pages(setup.scratch_directory());
  }

  Cost cost() const override { return {.host_to_device = static_cast<double>(file_.bytes())}; }
  double expected(std::size_t index) const override {
    return static_cast<std::uint32_t>(file_.word(index / 2) >> (index % 2 * 32));
  }
  // Compares all of the device's copy with the file.
  void validate(std::string_view) override {
    check(cudaMemcpy(pinned_, out_, file_.bytes(), cudaMemcpyDeviceToHost));
    const auto* const words = reinterpret_cast<const std::uint64_t*>(pinned_.get());
    for (std::size_t i = 0; i < file_.bytes() / sizeof *words; ++i)
      if (words[i] != file_.word(i)) throw std::runtime_error{"word " + std::to_string(i) + " differs from the file"};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report("page_faults", used_.page_faults, "", Metrics::Better::lower);
    metrics.report("cpu_time", used_.cpu_seconds * 1e3, "ms", Metrics::Better::lower);
    if (variant.starts_with("cufile"))
      metrics.report("direct_path", cufile_->has_direct_path() ? 1 : 0, "", Metrics::Better::higher);
  }

  void warm(Launch&) { cached_.warm(); }
  void drop(Launch&) {
    if (is_cold_) drop_page_cache(cached_.descriptor());
  }

  // Reads as a loader without mappings does. new[] without a value, so that the buffer is not also filled with zeros.
  void read_heap(Launch& launch) {
    const Usage before = Usage::now();
    const std::unique_ptr<std::byte[]> buffer{new std::byte[file_.bytes()]};
    read_at(cached_.descriptor(), buffer.get(), file_.bytes(), 0);
    upload(0, buffer.get(), file_.bytes(), launch);
    check(cudaStreamSynchronize(launch.stream));
    used_ = Usage::now().since(before);
  }
  void kept_heap(Launch& launch) { read_to(heap_, launch); }
  void pinned_buffer(Launch& launch) { read_to(pinned_, launch); }
  void mapped(Launch& launch) {
    const Usage before = Usage::now();
    void* const mapping = ::mmap(nullptr, file_.bytes(), PROT_READ, MAP_SHARED, cached_.descriptor(), 0);
    if (mapping == MAP_FAILED) fail("cannot map the file");
    upload(0, mapping, file_.bytes(), launch);
    check(cudaStreamSynchronize(launch.stream));
    ::munmap(mapping, file_.bytes());
    used_ = Usage::now().since(before);
  }

  void pinned_pipeline_1(Launch& launch) {
    const Usage before = Usage::now();
    send_blocks(0, 1, launch);
    used_ = Usage::now().since(before);
  }
  void pinned_pipeline(Launch& launch) {
    const Usage before = Usage::now();
    team_.run([&](int worker) {
      check(cudaSetDevice(device_));
      send_blocks(static_cast<std::size_t>(worker), threads_, launch);
    });
    used_ = Usage::now().since(before);
  }

  // Without O_DIRECT cuFile may use the page cache, as all others do; with it, it reads the disk.
  void open_cufile(Launch& launch) {
    warm(launch);
    if (reads_) return;
    (void)*cufile_;
    opened_.emplace(file_.path(), is_cold_ ? O_RDONLY | O_DIRECT : O_RDONLY);
    if (is_cold_) require_direct_reads(*opened_);
    reads_.emplace(*opened_, out_.get(), file_.bytes());
  }
  void cufile_threads(Launch&) {
    const Usage before = Usage::now();
    team_.run([&](int worker) {
      check(cudaSetDevice(device_));
      for (std::size_t at = static_cast<std::size_t>(worker) * cufile_bytes; at < file_.bytes(); at += threads_ * cufile_bytes)
        reads_->read(at, std::min(cufile_bytes, file_.bytes() - at));
    });
    used_ = Usage::now().since(before);
  }
  void cufile_one_call(Launch&) {
    const Usage before = Usage::now();
    reads_->read(0, file_.bytes());
    used_ = Usage::now().since(before);
  }

 private:
  void upload(std::size_t offset, const void* from, std::size_t bytes, Launch& launch) {
    check(cudaMemcpyAsync(reinterpret_cast<std::byte*>(out_.get()) + offset, from, bytes, cudaMemcpyHostToDevice, launch.stream));
  }
  void read_to(std::byte* buffer, Launch& launch) {
    const Usage before = Usage::now();
    read_at(cached_.descriptor(), buffer, file_.bytes(), 0);
    upload(0, buffer, file_.bytes(), launch);
    used_ = Usage::now().since(before);
  }
  // Every worker has slots of its own and fills one while the other is on its way. All copies go to one stream: there is one
  // link.
  void send_blocks(std::size_t worker, std::size_t workers, Launch& launch) {
    for (std::size_t block = worker; block * block_bytes_ < file_.bytes(); block += workers) {
      const std::size_t slot = block % (slots_each * workers), offset = block * block_bytes_;
      const std::size_t bytes = std::min(block_bytes_, file_.bytes() - offset);
      std::byte* const staging = pinned_ + slot * block_bytes_;
      check(cudaEventSynchronize(slot_free_[slot]));  // returns at once where the slot was never used
      read_at(cached_.descriptor(), staging, bytes, offset);
      upload(offset, staging, bytes, launch);
      check(cudaEventRecord(slot_free_[slot], launch.stream));
    }
  }

  std::size_t block_bytes_, threads_;
  bool is_cold_;
  FileInput file_;
  Output<std::uint32_t> out_;
  Scratch<std::byte> pinned_, heap_;
  ThreadTeam& team_;
  int device_;
  std::array<cudaEvent_t, slots_each * most_threads> slot_free_{};
  CachedFile cached_{file_};
  Usage used_;
  Opened<CuFile> cufile_;
  std::optional<File> opened_;
  std::optional<CuFileReads> reads_;
};

}  // namespace

extern constinit const Pair gpudirect_storage{
    .teaches =
        "one thread that copies out of the page cache is slower than the link, so overlapping it with the transfer gains little; "
        "several threads, each with pinned blocks of its own, keep the link busy",
    .lesson = "pinned_pipeline",
    .make = make<GpudirectStorage>,
    .baseline = {.name = "mapped",
                 .run = call<&GpudirectStorage::mapped>,
                 .prepare = call<&GpudirectStorage::warm>,
                 .reset = call<&GpudirectStorage::drop>},
    .optimized = variants({{.name = "pinned_pipeline_1",
                            .run = call<&GpudirectStorage::pinned_pipeline_1>,
                            .prepare = call<&GpudirectStorage::warm>,
                            .reset = call<&GpudirectStorage::drop>},
                           {.name = "pinned_pipeline",
                            .run = call<&GpudirectStorage::pinned_pipeline>,
                            .prepare = call<&GpudirectStorage::warm>,
                            .reset = call<&GpudirectStorage::drop>,
                            .needs = {.cpus = 2}}}),
    .controls = variants({{.name = "read_heap",
                           .run = call<&GpudirectStorage::read_heap>,
                           .prepare = call<&GpudirectStorage::warm>,
                           .reset = call<&GpudirectStorage::drop>},
                          {.name = "kept_heap",
                           .run = call<&GpudirectStorage::kept_heap>,
                           .prepare = call<&GpudirectStorage::warm>,
                           .reset = call<&GpudirectStorage::drop>},
                          {.name = "pinned_buffer",
                           .run = call<&GpudirectStorage::pinned_buffer>,
                           .prepare = call<&GpudirectStorage::warm>,
                           .reset = call<&GpudirectStorage::drop>}}),
    .libraries = variants({{.name = "cufile",
                            .run = call<&GpudirectStorage::cufile_threads>,
                            .prepare = call<&GpudirectStorage::open_cufile>,
                            .reset = call<&GpudirectStorage::drop>,
                            .needs = {.libraries = {Library::cufile}}},
                           {.name = "cufile_one_call",
                            .run = call<&GpudirectStorage::cufile_one_call>,
                            .prepare = call<&GpudirectStorage::open_cufile>,
                            .reset = call<&GpudirectStorage::drop>,
                            .needs = {.libraries = {Library::cufile}}}}),
    .bound = Bound::transfer,
    .tolerance = exact,
    .start = Start::immediate,  // threads of the host read and wait while the sample runs
    .timeline = true,
    .sizes = sizes({{.name = "block_kib", .full = 2048, .multiple = 4, .least = 4, .most = 16384, .scales = false},
                    {.name = "threads", .full = 8, .most = most_threads, .scales = false},
                    option("cold")}),
    .sweep = cases({{"block_256k", "block_kib=256"},
                    {"block_512k", "block_kib=512"},
                    {"block_1m", "block_kib=1024"},
                    {"block_2m", "block_kib=2048"},
                    {"block_4m", "block_kib=4096"},
                    {"block_16m", "block_kib=16384"},
                    {"threads_1", "threads=1"},
                    {"threads_2", "threads=2"},
                    {"threads_4", "threads=4"},
                    {"threads_16", "threads=16"},
                    {"cold", "cold=1"}}),
    .edges = cases({{"odd_blocks", "block_kib=1028,threads=3"}}),
};

}  // namespace aisp::ch05
