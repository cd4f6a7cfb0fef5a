// SPDX-License-Identifier: Apache-2.0
// One 128 MiB batch goes to the GPU. The copy engine cannot read memory that may be paged out, so from ordinary heap memory the
// calling thread copies everything, piece by piece, to the driver's page-locked staging buffer first, and sets the pace. From
// page-locked sources, allocated or registered, only the link does; data that must stay pageable can be staged by more threads.
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>

namespace aisp::ch01 {
namespace {

constexpr std::size_t block_bytes = std::size_t{4} << 20, block_floats = block_bytes / sizeof(float);
constexpr int staging_threads = 4, slots = 8;
static_assert(slots % staging_threads == 0, "a slot always belongs to the same thread, so slots need no locks");

class PinnedMemory final : public Workload {
 public:
  explicit PinnedMemory(Setup& setup)
      : count_{setup.scaled(32 * block_floats, block_floats)},
        heap_{setup.input<float>(count_, uniform(-1, 1), {.name = "heap batch", .memory = Memory::pageable})},
        pinned_{setup.input<float>(count_, same_batch(), {.name = "pinned batch", .memory = Memory::pinned})},
        // Whole pages: those are what gets locked, and no other allocation shares them.
        registered_{setup.input<float>(count_, same_batch(),
                                       {.name = "registered batch", .memory = Memory::pageable, .alignment = 4096})},
        out_{setup.output<float>(count_, {.name = "device batch"})},
        ring_{setup.scratch<float>(slots * block_floats, {.name = "staging ring", .memory = Memory::pinned})},
        // Not bound to CPUs: neighbouring numbers may be two halves of one core, which copy no faster than one.
        team_{setup.threads(staging_threads, false)},
        device_{setup.device_ordinal(0)} {
    for (cudaEvent_t& event : slot_free_) event = setup.event();
  }
  ~PinnedMemory() override {
    if (is_registered_) cudaHostUnregister(const_cast<float*>(registered_.get()));
  }

  Cost cost() const override { return {.host_to_device = static_cast<double>(out_.bytes())}; }
  double expected(std::size_t index) const override { return heap_.host(index); }

  // All of the device's copy, against the heap batch itself.
  void validate(std::string_view) override {
    for (std::size_t first = 0; first < count_; first += block_floats) {
      check(cudaMemcpy(ring_, out_ + first, block_bytes, cudaMemcpyDeviceToHost));
      if (std::memcmp(ring_, heap_ + first, block_bytes) != 0)
        throw std::runtime_error{"block " + std::to_string(first / block_floats) + " differs from the batch"};
    }
  }

  // Copies as cudaMemcpy does, on the timed stream: from pageable memory this call, too, returns only when the driver has read
  // the whole source.
  void pageable(Launch& launch) { upload(heap_, launch); }

  // The producer of the batch writes to page-locked memory in the first place.
  void pinned(Launch& launch) { upload(pinned_, launch); }

  // A heap buffer that lives long: locking its pages is dear, but happens once.
  void register_batch(Launch&) {
    if (is_registered_) return;
    check(cudaHostRegister(const_cast<float*>(registered_.get()), registered_.bytes(), cudaHostRegisterDefault));
    is_registered_ = true;
  }
  void registered(Launch& launch) { upload(registered_, launch); }

  // Each thread fills its own slots in turn, so its next block is copied to one while the other is on its way. All transfers go
  // to one stream: there is one link, and in what order blocks cross it does not matter.
  void staged_threads(Launch& launch) {
    team_.run([this, &launch](int worker) {
      check(cudaSetDevice(device_));
      for (std::size_t block = static_cast<std::size_t>(worker); block < count_ / block_floats; block += staging_threads) {
        const std::size_t slot = block % slots;
        float* const staging = ring_ + slot * block_floats;
        check(cudaEventSynchronize(slot_free_[slot]));  // returns at once where the slot was never used
        std::memcpy(staging, heap_ + block * block_floats, block_bytes);
        check(cudaMemcpyAsync(out_ + block * block_floats, staging, block_bytes, cudaMemcpyHostToDevice, launch.stream));
        check(cudaEventRecord(slot_free_[slot], launch.stream));
      }
    });
  }

 private:
  // All three sources hold the same batch. The heap batch is declared first, so it is filled first, and the others follow its
  // seed by copying it.
  HostFill<float> same_batch() {
    return [this](std::span<float> values, std::uint64_t) { std::copy_n(heap_.get(), values.size(), values.data()); };
  }
  void upload(const float* from, Launch& launch) {
    check(cudaMemcpyAsync(out_, from, out_.bytes(), cudaMemcpyHostToDevice, launch.stream));
  }

  std::size_t count_;
  Input<float> heap_, pinned_, registered_;
  Output<float> out_;
  Scratch<float> ring_;
  ThreadTeam& team_;
  int device_;
  std::array<cudaEvent_t, slots> slot_free_{};
  bool is_registered_ = false;
};

}  // namespace

extern constinit const Pair pinned_memory{
    .teaches = "a pageable copy goes through a driver staging buffer on one CPU thread; a page-locked one is pure DMA",
    .lesson = "pinned",
    .make = make<PinnedMemory>,
    .baseline = {.name = "pageable", .run = call<&PinnedMemory::pageable>},
    .optimized = variants({{.name = "pinned", .run = call<&PinnedMemory::pinned>},
                           {.name = "registered",
                            .run = call<&PinnedMemory::registered>,
                            .prepare = call<&PinnedMemory::register_batch>,
                            .needs = {.attributes = {cudaDevAttrHostRegisterSupported}},
                            .gains_over = "pageable"},
                           {.name = "staged_threads",
                            .run = call<&PinnedMemory::staged_threads>,
                            .needs = {.cpus = staging_threads},
                            .gains_over = "pageable"}}),
    .bound = Bound::transfer,
    .tolerance = exact,
    .start = Start::immediate,  // pageable copies and staging threads work on the host while the sample runs
};

}  // namespace aisp::ch01
