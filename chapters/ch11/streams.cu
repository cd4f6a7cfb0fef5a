// SPDX-License-Identifier: Apache-2.0
// Video frames go up, through a filter and down again. One stream uses one unit at a time: a copy engine, the SMs, the other copy
// engine. Three streams joined by events keep all three busy, and the link becomes the only limit; frames cut into bands with
// halo rows shorten the time to fill and drain that pipeline. The control copies without filtering: what the link alone takes.
#include <aisp/device/exponential.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace aisp::ch11 {
namespace {

constexpr int width = 3840, height = 2160, radius = 5;
constexpr int tile_width = 64, tile_height = 16, outputs_per_thread = 4;
constexpr int frame_bytes = width * height * 4;
constexpr int slots = 3;
// Weight of a neighbour: 2^-(distance^2 * spatial_falloff + luma difference^2 * range_falloff).
constexpr float spatial_falloff = 0.06f, range_falloff = 1.0f / 1500;

__device__ float4 unpack(uchar4 p) {
  // The fourth component carries the luma (sum of the channels): alpha is not filtered.
  return make_float4(p.x, p.y, p.z, static_cast<float>(p.x) + p.y + p.z);
}

// Filters rows [first_row, first_row + gridDim.y * tile_height) of a frame; each thread makes four neighbouring pixels, so that a
// value read from shared memory serves four outputs.
__global__ __launch_bounds__(tile_width / outputs_per_thread * tile_height) void bilateral_kernel(const uchar4* in, uchar4* out,
                                                                                                  int first_row, int end_row) {
  constexpr int halo_width = tile_width + 2 * radius, halo_height = tile_height + 2 * radius;
  // Column c lies at [c % 4][c / 4]: threads read every fourth column, and those are neighbours in memory, so no banks collide.
  __shared__ float4 tile[halo_height][outputs_per_thread][(halo_width + outputs_per_thread - 1) / outputs_per_thread];
  const int left = blockIdx.x * tile_width, top = first_row + blockIdx.y * tile_height;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int i = thread; i < halo_width * halo_height; i += blockDim.x * blockDim.y) {
    const int x = min(max(left + i % halo_width - radius, 0), width - 1);
    // Rows beyond the band's halo are still on their way: the last tile of a band must not load them, though it uses none.
    const int y = min(max(top + i / halo_width - radius, 0), min(end_row + radius, height) - 1);
    const int column = i % halo_width;
    tile[i / halo_width][column % outputs_per_thread][column / outputs_per_thread] = unpack(in[y * width + x]);
  }
  __syncthreads();

  const int x0 = threadIdx.x * outputs_per_thread, y = threadIdx.y;
  const auto pixel = [&](int row, int column) {  // `column` counts from the thread's leftmost neighbour
    return tile[row][column % outputs_per_thread][threadIdx.x + column / outputs_per_thread];
  };
  float center[outputs_per_thread];
  float4 sum[outputs_per_thread] = {};
#pragma unroll
  for (int k = 0; k < outputs_per_thread; ++k) center[k] = pixel(y + radius, k + radius).w;
  for (int dy = -radius; dy <= radius; ++dy) {
#pragma unroll
    for (int column = 0; column < outputs_per_thread + 2 * radius; ++column) {
      const float4 p = pixel(y + radius + dy, column);
#pragma unroll
      for (int k = 0; k < outputs_per_thread; ++k) {
        const int dx = column - radius - k;
        if (dx < -radius || dx > radius) continue;
        const float difference = p.w - center[k];
        const float weight = device::exp2_approximate(
            fmaf(difference * -range_falloff, difference, -spatial_falloff * static_cast<float>(dx * dx + dy * dy)));
        sum[k].x = fmaf(weight, p.x, sum[k].x);
        sum[k].y = fmaf(weight, p.y, sum[k].y);
        sum[k].z = fmaf(weight, p.z, sum[k].z);
        sum[k].w += weight;
      }
    }
  }
  if (top + y >= end_row) return;
#pragma unroll
  for (int k = 0; k < outputs_per_thread; ++k) {
    const int index = (top + y) * width + left + x0 + k;
    const float scale = 1 / sum[k].w;
    out[index] = make_uchar4(__float2uint_rn(sum[k].x * scale), __float2uint_rn(sum[k].y * scale),
                             __float2uint_rn(sum[k].z * scale), in[index].w);
  }
}

class Streams final : public Workload {
 public:
  explicit Streams(Setup& setup)
      : frames_{static_cast<int>(setup.scaled(8))},
        bands_{static_cast<int>(setup.size("bands"))},
        in_{setup.input<std::uint8_t>(bytes(), integers(0, 255), {.name = "frames", .memory = Memory::pinned})},
        out_{setup.output<std::uint8_t>(bytes(), {.name = "filtered", .memory = Memory::pinned})},
        device_in_{setup.scratch<uchar4>(static_cast<std::size_t>(slots) * width * height)},
        device_out_{setup.scratch<uchar4>(static_cast<std::size_t>(slots) * width * height)} {
    for (auto& stream : {&up_, &compute_, &down_}) *stream = setup.stream();
    for (auto* events : {&uploaded_, &filtered_, &downloaded_})
      for (cudaEvent_t& event : *events) event = setup.event();
    forked_ = setup.event();
  }

  Cost cost() const override {
    return {.host_to_device = static_cast<double>(bytes()), .device_to_host = static_cast<double>(bytes())};
  }

  double expected(std::size_t index) const override {
    const std::size_t frame = index / frame_bytes * frame_bytes;
    const int channel = static_cast<int>(index % 4);
    const int pixel = static_cast<int>(index % frame_bytes / 4), x = pixel % width, y = pixel / width;
    const auto value = [&](int px, int py, int c) -> double {
      px = std::clamp(px, 0, width - 1);
      py = std::clamp(py, 0, height - 1);
      return in_.host(frame + (static_cast<std::size_t>(py) * width + px) * 4 + c);
    };
    const auto luma = [&](int px, int py) { return value(px, py, 0) + value(px, py, 1) + value(px, py, 2); };
    if (channel == 3) return value(x, y, 3);
    double weights = 0, sum = 0;
    for (int dy = -radius; dy <= radius; ++dy)
      for (int dx = -radius; dx <= radius; ++dx) {
        const double difference = luma(x + dx, y + dy) - luma(x, y);
        const double weight = std::exp2(-difference * difference * range_falloff - (dx * dx + dy * dy) * spatial_falloff);
        weights += weight;
        sum += weight * value(x + dx, y + dy, channel);
      }
    return std::round(sum / weights);
  }

  void one_stream(Launch& launch) {
    for (int frame = 0; frame < frames_; ++frame) {
      upload(frame, 0, 0, height, launch.stream);
      filter(0, 0, height, launch.stream);
      download(frame, 0, 0, height, launch.stream);
    }
  }
  void three_streams(Launch& launch) { pipeline(launch, 1, true); }
  void three_streams_chunked(Launch& launch) { pipeline(launch, bands_, true); }
  void copies_only(Launch& launch) { pipeline(launch, bands_, false); }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(frames_) * frame_bytes; }
  uchar4* device_in(int slot) const { return device_in_.get() + static_cast<std::size_t>(slot) * width * height; }
  uchar4* device_out(int slot) const { return device_out_.get() + static_cast<std::size_t>(slot) * width * height; }

  void upload(int frame, int slot, int first_row, int end_row, cudaStream_t stream) {
    const std::size_t pixel = static_cast<std::size_t>(first_row) * width;
    check(cudaMemcpyAsync(device_in(slot) + pixel, in_.get() + static_cast<std::size_t>(frame) * frame_bytes + pixel * 4,
                          static_cast<std::size_t>(end_row - first_row) * width * 4, cudaMemcpyHostToDevice, stream));
  }
  void filter(int slot, int first_row, int end_row, cudaStream_t stream) {
    const dim3 block{tile_width / outputs_per_thread, tile_height};
    const dim3 grid{width / tile_width, static_cast<unsigned>((end_row - first_row + tile_height - 1) / tile_height)};
    bilateral_kernel<<<grid, block, 0, stream>>>(device_in(slot), device_out(slot), first_row, end_row);
    check(cudaGetLastError());
  }
  void download(int frame, int slot, int first_row, int end_row, cudaStream_t stream) {
    const std::size_t pixel = static_cast<std::size_t>(first_row) * width;
    check(cudaMemcpyAsync(out_.get() + static_cast<std::size_t>(frame) * frame_bytes + pixel * 4, device_out(slot) + pixel,
                          static_cast<std::size_t>(end_row - first_row) * width * 4, cudaMemcpyDeviceToHost, stream));
  }

  // A band is filtered when its halo below has arrived: an upload brings the rows from the end of one halo to the end of the
  // next.
  void pipeline(Launch& launch, int bands, bool filters) {
    check(cudaEventRecord(forked_, launch.stream));
    check(cudaStreamWaitEvent(up_, forked_));
    check(cudaStreamWaitEvent(down_, forked_));
    for (int frame = 0; frame < frames_; ++frame) {
      const auto slot = static_cast<std::size_t>(frame % slots);
      if (frame >= slots) {  // the slot is free when its last frame was filtered (input) and downloaded (output)
        check(cudaStreamWaitEvent(up_, filtered_[slot]));
        check(cudaStreamWaitEvent(compute_, downloaded_[slot]));
      }
      for (int band = 0; band < bands; ++band) {
        const int first_row = height * band / bands, end_row = height * (band + 1) / bands;
        const int arrived = std::min(end_row + radius, height);
        upload(frame, static_cast<int>(slot), band == 0 ? 0 : std::min(first_row + radius, height), arrived, up_);
        pass(uploaded_[slot], up_, compute_);
        if (filters) filter(static_cast<int>(slot), first_row, end_row, compute_);
        pass(filtered_[slot], compute_, down_);
        download(frame, static_cast<int>(slot), first_row, end_row, down_);
      }
      check(cudaEventRecord(downloaded_[slot], down_));
    }
    check(cudaStreamWaitEvent(launch.stream, downloaded_[static_cast<std::size_t>((frames_ - 1) % slots)]));
  }
  static void pass(cudaEvent_t event, cudaStream_t from, cudaStream_t to) {
    check(cudaEventRecord(event, from));
    check(cudaStreamWaitEvent(to, event));
  }

  int frames_, bands_;
  Input<std::uint8_t> in_;
  Output<std::uint8_t> out_;
  Scratch<uchar4> device_in_, device_out_;
  cudaStream_t up_ = nullptr, compute_ = nullptr, down_ = nullptr;
  std::array<cudaEvent_t, slots> uploaded_{}, filtered_{}, downloaded_{};
  cudaEvent_t forked_ = nullptr;
};

}  // namespace

extern constinit const Pair streams{
    .teaches = "copy up, compute and copy down are three units, and three streams joined by events keep all of them busy",
    .lesson = "three_streams",
    .make = make<Streams>,
    .baseline = {.name = "one_stream", .run = call<&Streams::one_stream>},
    .optimized = variants({{.name = "three_streams", .run = call<&Streams::three_streams>},
                           {.name = "three_streams_chunked", .run = call<&Streams::three_streams_chunked>}}),
    .controls = variants({{.name = "copies_only", .run = call<&Streams::copies_only>, .outputs = no_outputs}}),
    .bound = Bound::transfer,
    // Outputs are rounded to 8 bits, and float and float64 may round one level apart, in few places.
    .tolerance = within_steps(1, 1e-3),
    .start = Start::immediate,
    .timeline = true,
    .sizes = sizes({{.name = "bands", .full = 6, .most = 64, .scales = false}}),
    .sweep = cases({{"bands_1", "bands=1"},
                    {"bands_2", "bands=2"},
                    {"bands_3", "bands=3"},
                    {"bands_6", "bands=6"},
                    {"bands_12", "bands=12"},
                    {"bands_24", "bands=24"}}),
    .edges = cases({{"uneven_bands", "bands=7"}}),
};

}  // namespace aisp::ch11
