// SPDX-License-Identifier: Apache-2.0
// Images from a file that the page cache holds are cropped, flipped and normalized, and each batch goes through a training step.
// A loader with its defaults does it in one thread, in ordinary memory, and the GPU waits for it. Workers that fill pinned slots
// ahead of the step, and a stream of its own for the copies, let the GPU compute most of the time. What is left is the work of
// the host: bf16 halves what it writes, and bytes that a kernel flips and normalizes leave it only the copying of rows.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <time.h>
#include <aisp/device/vector.cuh>
#include <aisp/host.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>

namespace aisp::ch05 {
namespace {

using bf16 = __nv_bfloat16;

constexpr std::size_t batches = 8, slots = 4, most_workers = 8;
constexpr std::size_t channels = 3, stored_side = 256, side = 224, margin = stored_side - side + 1;  // places of a crop's corner
constexpr std::size_t stored_bytes = channels * stored_side * stored_side, image_values = channels * side * side;
constexpr std::size_t patch_values = 56 * side;  // the step's K: a quarter of a channel
// ImageNet's, of values from 0 to 1.
constexpr float means[channels] = {0.485f, 0.456f, 0.406f}, deviations[channels] = {0.229f, 0.224f, 0.225f};

__host__ __device__ constexpr float scale_of(std::size_t channel) {
  return 1 / (255 * (channel == 0 ? 0.229f : channel == 1 ? 0.224f : 0.225f));
}
__host__ __device__ constexpr float shift_of(std::size_t channel) {
  return channel == 0 ? -0.485f / 0.229f : channel == 1 ? -0.456f / 0.224f : -0.406f / 0.225f;
}

// The place of the crop in an image, and whether it is mirrored.
struct Crop {
  std::size_t left, top;
  bool flip;
  __host__ __device__ explicit Crop(std::uint32_t drawn)
      : left{drawn % margin}, top{drawn / margin % margin}, flip{drawn >= margin * margin} {}
};

constexpr int pixels = 8;  // of a thread

__global__ __launch_bounds__(256) void cast_kernel(const float4* in, uint4* out, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float4 low = in[2 * i], high = in[2 * i + 1];
  alignas(16) bf16 values[pixels] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  out[i] = *reinterpret_cast<const uint4*>(values);
}

// Eight neighbours of a row, which in a mirrored image come from eight others, backward.
__global__ __launch_bounds__(256) void normalize_kernel(const std::uint8_t* in, const std::uint32_t* crops, uint4* out,
                                                        unsigned count) {
  constexpr unsigned row_parts = side / pixels, image_parts = image_values / pixels;
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const unsigned image = i / image_parts, part = i % row_parts, row = i / row_parts;
  const std::size_t channel = i % image_parts / (side * row_parts);
  const bool flip = Crop{crops[image]}.flip;
  const uint2 packed =
      *reinterpret_cast<const uint2*>(in + std::size_t{row} * side + (flip ? row_parts - 1 - part : part) * pixels);
  const unsigned words[2] = {packed.x, packed.y};
  alignas(16) bf16 values[pixels];
#pragma unroll
  for (int k = 0; k < pixels; ++k) {
    const int from = flip ? pixels - 1 - k : k;
    const unsigned byte = words[from / 4] >> (from % 4 * 8) & 0xFF;
    values[k] = __float2bfloat16_rn(static_cast<float>(byte) * scale_of(channel) + shift_of(channel));
  }
  out[i] = *reinterpret_cast<const uint4*>(values);
}

std::uint16_t rounded(float value) {  // to the nearest bf16, of finite values
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
float kept(float value) { return value; }

// One image, row by row, each normalized value converted.
template <class T, class Convert>
void normalize_image(const std::uint8_t* stored, Crop crop, T* out, Convert convert) {
  for (std::size_t channel = 0; channel < channels; ++channel)
    for (std::size_t y = 0; y < side; ++y, out += side) {
      const std::uint8_t* const row = stored + (channel * stored_side + crop.top + y) * stored_side + crop.left;
      const float scale = scale_of(channel), shift = shift_of(channel);
      for (std::size_t x = 0; x < side; ++x) out[x] = convert(static_cast<float>(row[x]) * scale + shift);
      if (crop.flip) std::reverse(out, out + side);
    }
}
void crop_image(const std::uint8_t* stored, Crop crop, std::uint8_t* out) {
  for (std::size_t channel = 0; channel < channels; ++channel)
    for (std::size_t y = 0; y < side; ++y, out += side)
      std::memcpy(out, stored + (channel * stored_side + crop.top + y) * stored_side + crop.left, side);
}

double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class Dataloader final : public Workload {
 public:
  explicit Dataloader(Setup& setup)
      : images_{setup.scaled(128, 8)},
        columns_{setup.scaled(36352, 128)},
        workers_{setup.size("workers")},
        file_{setup.file("images.bin", batches * images_ * stored_bytes)},
        crops_{setup.input<std::uint32_t>(batches * images_, integers(0, 2 * margin * margin - 1),
                                          {.name = "crops", .memory = Memory::pinned})},
        weights_{setup.input<bf16>(patch_values * columns_, uniform(-1, 1), {.name = "weights", .constant = true})},
        batches_{setup.output<bf16>(batches * batch_values(), {.name = "batches"})},
        sums_{setup.output<float>(rows() * columns_, {.name = "sums of the steps"})},
        heap_{setup.scratch<float>(batch_values(), {.name = "heap batch", .memory = Memory::pageable})},
        ring_{setup.scratch<float>(slots * batch_values(), {.name = "ring", .memory = Memory::pinned})},
        device_ring_{setup.scratch<float>(slots * batch_values(), {.name = "device ring"})},
        device_crops_{setup.scratch<std::uint32_t>(batches * images_, {.name = "device crops"})},
        resident_{setup.scratch<bf16>(batches * batch_values(), {.name = "resident batches"})},
        team_{setup.threads(static_cast<int>(workers_), false)},
        device_{setup.device_ordinal(0)},
        copies_{setup.stream()},
        forked_{setup.event()},
        product_{setup, {.m = rows(), .n = columns_, .k = patch_values, .result = CUDA_R_32F}} {
    for (auto* events : {&copied_, &consumed_})
      for (cudaEvent_t& event : *events) event = setup.event();
  }

  Cost cost() const override { return cost_of(sizeof(std::uint8_t)); }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "uint8_ring") return cost_of(sizeof(std::uint8_t));
    if (variant == "bf16_ring") return cost_of(sizeof(bf16));
    return cost_of(variant == "data_resident" ? 0 : sizeof(float));
  }
  double expected_output(int output, std::size_t index) const override {
    if (output == 0) return pixel(index);
    const std::size_t row = index / columns_, column = index % columns_;
    double sum = 0;
    for (std::size_t batch = 0; batch < batches; ++batch)
      for (std::size_t k = 0; k < patch_values; ++k)
        sum += pixel(batch * batch_values() + row * patch_values + k) * weights_.host(k * columns_ + column);
    return sum;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("throughput", static_cast<double>(batches * images_), "images/s");
    if (variant == "data_resident") return;
    metrics.report("image_cpu_time", std::accumulate(busy_seconds_.begin(), busy_seconds_.end(), 0.0) * 1e3, "ms",
                   Metrics::Better::lower);
  }

  void open(Launch& launch) {
    if (!tuned_) product_.tune(launch, resident_, weights_, sums_);
    tuned_ = true;
    cached_.map();
  }
  // The step's data on the GPU from the start.
  void fill_resident(Launch& launch) {
    open(launch);
    bf16_ring(launch);
    check(cudaMemcpyAsync(resident_, batches_, batches_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
  }
  void data_resident(Launch& launch) {
    for (std::size_t batch = 0; batch < batches; ++batch) step(resident_ + batch * batch_values(), batch, launch);
  }

  void one_thread(Launch& launch) {
    busy_seconds_ = {};
    one_batch_at_a_time(launch, [&](std::size_t batch) {
      for (std::size_t image = 0; image < images_; ++image) normalize(batch, image, 0);
    });
  }
  void workers(Launch& launch) {
    busy_seconds_ = {};
    one_batch_at_a_time(launch, [&](std::size_t batch) {
      std::atomic<std::size_t> next{0};
      team_.run([&](int worker) {
        for (std::size_t image; (image = next.fetch_add(1, std::memory_order_relaxed)) < images_;)
          normalize(batch, image, worker);
      });
    });
  }

  void pinned_ring(Launch& launch) {
    work_ahead(
        launch,
        [this](std::size_t batch, std::size_t image, float* slot) {
          normalize_image(stored(batch, image), crop(batch, image), slot + image * image_values, kept);
        },
        [&](std::size_t batch, const float* slot) {
          float* const arriving = device_ring_ + batch % slots * batch_values();
          if (batch >= slots) check(cudaStreamWaitEvent(copies_, consumed_[batch % slots]));
          copy(arriving, slot, batch_values() * sizeof(float), batch, launch);
          cast(arriving, batch, launch.stream);
          check(cudaEventRecord(consumed_[batch % slots], launch.stream));
        });
  }
  void bf16_ring(Launch& launch) {
    work_ahead(
        launch,
        [this](std::size_t batch, std::size_t image, float* slot) {
          normalize_image(stored(batch, image), crop(batch, image), reinterpret_cast<std::uint16_t*>(slot) + image * image_values,
                          rounded);
        },
        [&](std::size_t batch, const float* slot) {
          copy(values_of(batch), slot, batch_values() * sizeof(bf16), batch, launch);
        });
  }
  void uint8_ring(Launch& launch) {
    work_ahead(
        launch,
        [this](std::size_t batch, std::size_t image, float* slot) {
          crop_image(stored(batch, image), crop(batch, image), reinterpret_cast<std::uint8_t*>(slot) + image * image_values);
        },
        [&](std::size_t batch, const float* slot) {
          auto* const arriving = reinterpret_cast<std::uint8_t*>(device_ring_ + batch % slots * batch_values());
          if (batch >= slots) check(cudaStreamWaitEvent(copies_, consumed_[batch % slots]));
          check(cudaMemcpyAsync(device_crops_ + batch * images_, crops_ + batch * images_, images_ * sizeof(std::uint32_t),
                                cudaMemcpyHostToDevice, copies_));
          copy(arriving, slot, batch_values(), batch, launch);
          normalize_kernel<<<blocks(), 256, 0, launch.stream>>>(arriving, device_crops_ + batch * images_,
                                                                reinterpret_cast<uint4*>(values_of(batch)), parts());
          check(cudaGetLastError());
          check(cudaEventRecord(consumed_[batch % slots], launch.stream));
        });
  }

 private:
  std::size_t batch_values() const { return images_ * image_values; }
  std::size_t rows() const { return batch_values() / patch_values; }
  unsigned parts() const { return static_cast<unsigned>(batch_values() / pixels); }
  unsigned blocks() const { return (parts() + 255) / 256; }
  const std::uint8_t* stored(std::size_t batch, std::size_t image) const {
    return cached_.mapping<std::uint8_t>() + (batch * images_ + image) * stored_bytes;
  }
  Crop crop(std::size_t batch, std::size_t image) const { return Crop{crops_.get()[batch * images_ + image]}; }
  bf16* values_of(std::size_t batch) const { return batches_ + batch * batch_values(); }

  Cost cost_of(std::size_t value_bytes) const {
    return {.flops = 2.0 * batches * static_cast<double>(rows()) * static_cast<double>(columns_) * patch_values,
            .math = Math::bf16,
            .host_to_device = static_cast<double>(batches * batch_values() * value_bytes)};
  }
  // A value of a batch, from what the file was made of.
  double pixel(std::size_t index) const {
    const std::size_t image = index / image_values, channel = index / (side * side) % channels, y = index / side % side,
                      x = index % side;
    const Crop crop{crops_.host(image)};
    const std::size_t column = crop.left + (crop.flip ? side - 1 - x : x);
    const std::size_t at = image * stored_bytes + (channel * stored_side + crop.top + y) * stored_side + column;
    const auto byte = static_cast<double>(file_.word(at / 8) >> (at % 8 * 8) & 0xFF);
    return (byte / 255 - static_cast<double>(means[channel])) / static_cast<double>(deviations[channel]);
  }

  void normalize(std::size_t batch, std::size_t image, int worker) {
    const double before = thread_cpu_seconds();
    normalize_image(stored(batch, image), crop(batch, image), heap_ + image * image_values, kept);
    busy_seconds_[static_cast<std::size_t>(worker)] += thread_cpu_seconds() - before;
  }
  // From pageable memory the copy returns when the driver has read all of it, so that the next batch may be written.
  template <class Fill>
  void one_batch_at_a_time(Launch& launch, const Fill& fill) {
    for (std::size_t batch = 0; batch < batches; ++batch) {
      fill(batch);
      check(cudaMemcpyAsync(device_ring_, heap_, heap_.bytes(), cudaMemcpyHostToDevice, launch.stream));
      cast(device_ring_, batch, launch.stream);
      step(values_of(batch), batch, launch);
    }
  }

  // Workers take the images in their order. The one that finishes the last image of a batch sends it, after the batches before
  // it. A slot is free again when its last batch was copied.
  template <class Fill, class Send>
  void work_ahead(Launch& launch, const Fill& fill, const Send& send) {
    busy_seconds_ = {};
    check(cudaEventRecord(forked_, launch.stream));
    check(cudaStreamWaitEvent(copies_, forked_));
    std::atomic<std::size_t> next{0}, sent{0};
    std::array<std::atomic<std::size_t>, batches> finished{};
    const auto await_sent = [&](std::size_t batch) {
      for (std::size_t now; (now = sent.load(std::memory_order_acquire)) < batch;) sent.wait(now, std::memory_order_acquire);
    };
    team_.run([&](int worker) {
      check(cudaSetDevice(device_));
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < batches * images_;) {
        const std::size_t batch = i / images_, image = i % images_;
        float* const slot = ring_ + batch % slots * batch_values();
        if (batch >= slots) {
          await_sent(batch - slots + 1);
          check(cudaEventSynchronize(copied_[batch % slots]));
        }
        const double before = thread_cpu_seconds();
        fill(batch, image, slot);
        busy_seconds_[static_cast<std::size_t>(worker)] += thread_cpu_seconds() - before;
        if (finished[batch].fetch_add(1, std::memory_order_acq_rel) + 1 < images_) continue;
        await_sent(batch);
        send(batch, slot);
        step(values_of(batch), batch, launch);
        sent.store(batch + 1, std::memory_order_release);
        sent.notify_all();
      }
    });
  }

  // To the GPU on the stream of the copies; what follows on the launch's stream finds it there.
  void copy(void* to, const float* slot, std::size_t bytes, std::size_t batch, Launch& launch) {
    check(cudaMemcpyAsync(to, slot, bytes, cudaMemcpyHostToDevice, copies_));
    check(cudaEventRecord(copied_[batch % slots], copies_));
    check(cudaStreamWaitEvent(launch.stream, copied_[batch % slots]));
  }
  void cast(const float* from, std::size_t batch, cudaStream_t stream) {
    cast_kernel<<<blocks(), 256, 0, stream>>>(reinterpret_cast<const float4*>(from), reinterpret_cast<uint4*>(values_of(batch)),
                                              parts());
    check(cudaGetLastError());
  }
  // Sums over the batches, as gradients of small batches are added up.
  void step(const bf16* batch_data, std::size_t batch, Launch& launch) {
    product_.run_tuned(launch, batch_data, weights_, sums_, 1, batch == 0 ? 0.0f : 1.0f);
  }

  std::size_t images_, columns_, workers_;
  FileInput file_;
  Input<std::uint32_t> crops_;
  Input<bf16> weights_;
  Output<bf16> batches_;
  Output<float> sums_;
  Scratch<float> heap_, ring_, device_ring_;
  Scratch<std::uint32_t> device_crops_;
  Scratch<bf16> resident_;
  ThreadTeam& team_;
  int device_;
  cudaStream_t copies_;
  cudaEvent_t forked_;
  std::array<cudaEvent_t, slots> copied_{}, consumed_{};
  LibraryMatmul product_;
  bool tuned_ = false;
  CachedFile cached_{file_};
  std::array<double, most_workers> busy_seconds_{};
};

}  // namespace

extern constinit const Pair dataloader{
    .teaches =
        "fill pinned slots ahead on workers, so that images, copies and steps overlap; send bytes, not floats, and the workers "
        "have less than a third of the work",
    .lesson = "pinned_ring",
    .make = make<Dataloader>,
    .baseline = {.name = "one_thread", .run = call<&Dataloader::one_thread>, .prepare = call<&Dataloader::open>},
    .optimized = variants({{.name = "workers", .run = call<&Dataloader::workers>, .prepare = call<&Dataloader::open>},
                           {.name = "pinned_ring", .run = call<&Dataloader::pinned_ring>, .prepare = call<&Dataloader::open>},
                           {.name = "bf16_ring", .run = call<&Dataloader::bf16_ring>, .prepare = call<&Dataloader::open>},
                           {.name = "uint8_ring", .run = call<&Dataloader::uint8_ring>, .prepare = call<&Dataloader::open>}}),
    .controls = variants({{.name = "data_resident",
                           .run = call<&Dataloader::data_resident>,
                           .prepare = call<&Dataloader::fill_resident>,
                           .outputs = no_outputs}}),
    .bound = Bound::host,
    // A value is rounded to bf16 once, after one in fp32 that may tip it over. Sums of 8 x 12544 products of values so rounded.
    .tolerance = per_output({within_steps(1, 0.01), rounded_to_bf16}),
    .needs = {.cpus = 2, .libraries = {Library::cublaslt}},
    .start = Start::immediate,  // workers fill and wait while the sample runs
    .timeline = true,
    .sizes = sizes({{.name = "workers", .full = 8, .most = most_workers, .scales = false}}),
    .sweep =
        cases({{"workers_1", "workers=1"}, {"workers_2", "workers=2"}, {"workers_4", "workers=4"}, {"workers_8", "workers=8"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch05
