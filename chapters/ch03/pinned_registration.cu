// SPDX-License-Identifier: Apache-2.0
// Two heap batches of 32 MiB, filled by a loader, go to the GPU. Page-locking a batch lets the copy engine read it, but walks and
// locks its 8192 pages and maps them for the GPU, which can take longer than the copy that it is for. Out of the loop it costs
// nothing: buffers are registered once, and the loader fills them again and again. Where a buffer cannot be kept, 2 MiB pages
// leave the driver far less to walk. Filling is not timed.
#include <sys/mman.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "limits.hpp"

namespace aisp::ch03 {
namespace {

constexpr std::size_t batches = 2;
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20, huge_page_floats = huge_page_bytes / sizeof(float);

class PinnedRegistration final : public Workload {
 public:
  explicit PinnedRegistration(Setup& setup)
      : count_{setup.scaled(16 * huge_page_floats, huge_page_floats)},
        // Whole pages: those are what gets locked, and no other allocation shares them.
        heap_{setup.input<float>(batches * count_, uniform(-1, 1),
                                 {.name = "heap batches", .memory = Memory::pageable, .alignment = 4096})},
        pool_{setup.input<float>(batches * count_, same_batches(),
                                 {.name = "pool", .memory = Memory::pageable, .alignment = 4096})},
        huge_{setup.input<float>(batches * count_, same_batches(),
                                 {.name = "huge batches", .memory = Memory::pageable, .huge_pages = true})},
        out_{setup.output<float>(batches * count_, {.name = "device batches"})} {
    // If the system gives huge pages to everybody, the other two would be made of them as well. A kernel without huge pages
    // refuses, and then all is as it should be.
    ::madvise(const_cast<float*>(heap_.get()), heap_.bytes(), MADV_NOHUGEPAGE);
    ::madvise(const_cast<float*>(pool_.get()), pool_.bytes(), MADV_NOHUGEPAGE);
  }
  ~PinnedRegistration() override {
    for (std::size_t b = 0; b < registered_; ++b) cudaHostUnregister(batch(pool_, b));
  }

  Cost cost() const override { return {.host_to_device = static_cast<double>(out_.bytes())}; }
  double expected(std::size_t index) const override { return heap_.host(index); }

  // All of the device's copy, against the heap batches themselves.
  void validate(std::string_view) override {
    std::vector<float> part(huge_page_floats);
    for (std::size_t first = 0; first < out_.size(); first += huge_page_floats) {
      check(cudaMemcpy(part.data(), out_ + first, huge_page_bytes, cudaMemcpyDeviceToHost));
      if (std::memcmp(part.data(), heap_ + first, huge_page_bytes) != 0)
        throw std::runtime_error{"the copy differs from the batches behind element " + std::to_string(first)};
    }
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    const double kept_bytes = variant == "pinned_pool" ? static_cast<double>(pool_.bytes()) : 0;
    metrics.report("kept_registered", kept_bytes / (1 << 20), "MiB", Metrics::Better::lower);
    metrics.report("kernel_locked", locked_mib(), "MiB", Metrics::Better::lower);
    report_limit(metrics, "memlock_limit", memlock_mib_, "MiB");
  }

  void register_each(Launch& launch) { upload_registering(heap_, launch); }

  void register_pool(Launch&) {
    for (; registered_ < batches; ++registered_) lock(batch(pool_, registered_));
  }
  void pinned_pool(Launch& launch) {
    for (std::size_t b = 0; b < batches; ++b) upload(pool_, b, launch);
  }

  void find_huge_pages(Launch&) {
    std::ifstream setting{"/sys/kernel/mm/transparent_hugepage/enabled"};
    std::string text;
    if (!std::getline(setting, text) || text.find("[never]") != std::string::npos)
      throw Unsupported{"the system has transparent huge pages switched off"};
  }
  void huge_page_register(Launch& launch) { upload_registering(huge_, launch); }

 private:
  // All sources hold the same batches. The heap ones are declared first, so they are filled first, and the others copy them.
  HostFill<float> same_batches() {
    return [this](std::span<float> values, std::uint64_t) { std::copy_n(heap_.get(), values.size(), values.data()); };
  }

  float* batch(const float* from, std::size_t b) const { return const_cast<float*>(from) + b * count_; }
  void lock(float* batch) const { check(cudaHostRegister(batch, count_ * sizeof(float), cudaHostRegisterDefault)); }
  void upload(const float* from, std::size_t b, Launch& launch) const {
    check(cudaMemcpyAsync(out_ + b * count_, from + b * count_, count_ * sizeof(float), cudaMemcpyHostToDevice, launch.stream));
  }
  // A batch that belongs to the loader: it comes, is locked, copied, and goes.
  void upload_registering(const float* from, Launch& launch) const {
    for (std::size_t b = 0; b < batches; ++b) {
      lock(batch(from, b));
      upload(from, b, launch);
      check(cudaStreamSynchronize(launch.stream));  // pages must stay locked until they have been read
      check(cudaHostUnregister(batch(from, b)));
    }
  }

  std::size_t count_;  // floats in a batch
  Input<float> heap_, pool_, huge_;
  Output<float> out_;
  std::size_t registered_ = 0;  // batches of the pool
  double memlock_mib_ = memlock_limit_mib();
};

}  // namespace

extern constinit const Pair pinned_registration{
    .teaches = "page-locking is expensive: pin once, or from huge pages",
    .lesson = "pinned_pool",
    .make = make<PinnedRegistration>,
    .baseline = {.name = "register_each", .run = call<&PinnedRegistration::register_each>},
    .optimized = variants({{.name = "pinned_pool",
                            .run = call<&PinnedRegistration::pinned_pool>,
                            .prepare = call<&PinnedRegistration::register_pool>},
                           {.name = "huge_page_register",
                            .run = call<&PinnedRegistration::huge_page_register>,
                            .prepare = call<&PinnedRegistration::find_huge_pages>,
                            .gains_over = "register_each"}}),
    .bound = Bound::transfer,
    .tolerance = exact,
    .needs = {.attributes = {cudaDevAttrHostRegisterSupported}},
    .start = Start::immediate,  // registration works on the host and waits for the copies
};

}  // namespace aisp::ch03
