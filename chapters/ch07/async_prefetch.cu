// SPDX-License-Identifier: Apache-2.0
// A separable 5 x 5 Gaussian over 16384 x 16384 pixels. Blocks march down strips of 256 columns: a row of the strip goes to
// shared memory, the horizontal taps read it, the vertical ones use what is in registers. A block that loads a row, synchronizes
// and computes has one row on its way and nothing while it computes; cp.async keeps six on their way, without registers.
#include <aisp/device/async_copy.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/pair.hpp>

namespace aisp::ch07 {
namespace {

constexpr int strip = 256;                                           // columns of a block, one a thread
constexpr int columns = 16384, segments = 16;                        // 1024 blocks: 8 for each of 132 SMs, all of them at once
constexpr int margin = 4, pitch = columns + 2 * margin;              // of the input: two columns would do, four keep rows aligned
constexpr int segment = strip + 2 * margin, halo = segment - strip;  // floats of a row that a block reads
constexpr unsigned segment_bytes = segment * sizeof(float);
constexpr int radius = 2;
static_assert(pitch * sizeof(float) % 16 == 0 && segment_bytes % 16 == 0);

// The last five rows after the horizontal taps, and the vertical taps over them. Weights are 1, 4, 6, 4, 1 sixteenths.
struct Column {
  float rows[2 * radius + 1];

  static __device__ float taps(float a, float b, float c, float d, float e) {
    return fmaf(0.375f, c, fmaf(0.25f, b + d, 0.0625f * (a + e)));
  }
  __device__ void add(const float* row) {  // a segment; this thread's pixel lies at threadIdx.x + margin
    const float* at = row + threadIdx.x + margin - radius;
#pragma unroll
    for (int k = 0; k < 2 * radius; ++k) rows[k] = rows[k + 1];
    rows[2 * radius] = taps(at[0], at[1], at[2], at[3], at[4]);
  }
  __device__ float blurred() const { return taps(rows[0], rows[1], rows[2], rows[3], rows[4]); }
};

// A block's place in input and output. Output row y needs the input's rows y to y + 4.
struct Place {
  const float* from;
  float* to;
  int rows;  // to read

  __device__ Place(const float* in, float* out, int segment_rows) {
    const std::size_t first = std::size_t{blockIdx.y} * segment_rows;
    from = in + first * pitch + blockIdx.x * strip;
    to = out + first * columns + blockIdx.x * strip + threadIdx.x;
    rows = segment_rows + 2 * radius;
  }
  __device__ const float* row(int r) const { return from + static_cast<std::size_t>(r) * pitch; }
  __device__ void store(int r, const Column& column) const {
    if (r >= 2 * radius) to[static_cast<std::size_t>(r - 2 * radius) * columns] = column.blurred();
  }
};

// Two rows in shared memory, used in turn, so that one barrier for each row is enough in every variant.
__global__ __launch_bounds__(strip) void load_then_compute_kernel(const float* in, float* out, int segment_rows) {
  __shared__ float ring[2][segment];
  const Place place{in, out, segment_rows};
  Column column{};
  for (int r = 0; r < place.rows; ++r) {
    float* row = ring[r % 2];
    row[threadIdx.x] = place.row(r)[threadIdx.x];
    if (threadIdx.x < halo) row[strip + threadIdx.x] = place.row(r)[strip + threadIdx.x];
    __syncthreads();
    column.add(row);
    place.store(r, column);
  }
}

__global__ __launch_bounds__(strip) void register_ahead_kernel(const float* in, float* out, int segment_rows) {
  __shared__ float ring[2][segment];
  const Place place{in, out, segment_rows};
  const bool has_halo = threadIdx.x < halo;
  Column column{};
  float next = place.row(0)[threadIdx.x], next_halo = has_halo ? place.row(0)[strip + threadIdx.x] : 0;
  for (int r = 0; r < place.rows; ++r) {
    float* row = ring[r % 2];
    row[threadIdx.x] = next;
    if (has_halo) row[strip + threadIdx.x] = next_halo;
    __syncthreads();
    if (r + 1 < place.rows) {
      next = place.row(r + 1)[threadIdx.x];
      if (has_halo) next_halo = place.row(r + 1)[strip + threadIdx.x];
    }
    column.add(row);
    place.store(r, column);
  }
}

// A slot more than rows ahead: after the barrier of a row everybody has read the one before it, and its slot is free.
template <int ahead>
__global__ __launch_bounds__(strip) void cp_async_ring_kernel(const float* in, float* out, int segment_rows) {
  __shared__ __align__(16) float ring[ahead + 1][segment];
  const Place place{in, out, segment_rows};
  Column column{};
  const auto copy = [&](int r, int slot) {
    const int first = threadIdx.x * 4;
    if (r < place.rows && first < segment) device::copy_async_16(&ring[slot][first], place.row(r) + first);
    device::commit_copies();  // an empty group at the end, so that the count of groups stays right
  };
  for (int r = 0; r < ahead; ++r) copy(r, r);
  for (int r = 0, slot = 0, freed = ahead; r < place.rows; ++r) {
    device::wait_copies<ahead - 1>();
    __syncthreads();
    copy(r + ahead, freed);
    column.add(ring[slot]);
    place.store(r, column);
    freed = slot;
    slot = slot == ahead ? 0 : slot + 1;
  }
}

template <int ahead>
__global__ __launch_bounds__(strip) void bulk_ring_kernel(const float* in, float* out, int segment_rows) {
  __shared__ __align__(16) float ring[ahead + 1][segment];
  __shared__ std::uint64_t filled[ahead + 1];
  const Place place{in, out, segment_rows};
  Column column{};
  const auto copy = [&](int r, int slot) {
    if (threadIdx.x != 0 || r >= place.rows) return;
    device::barrier_arrive_expect(&filled[slot], segment_bytes);
    device::bulk_load(ring[slot], place.row(r), segment_bytes, &filled[slot]);
  };
  if (threadIdx.x == 0) {
    for (auto& barrier : filled) device::barrier_init(&barrier, 1);
    device::fence_barrier_init();
  }
  __syncthreads();
  for (int r = 0; r < ahead; ++r) copy(r, r);
  for (int r = 0, slot = 0, freed = ahead, parity = 0; r < place.rows; ++r) {
    __syncthreads();
    copy(r + ahead, freed);
    device::barrier_wait(&filled[slot], parity);
    column.add(ring[slot]);
    place.store(r, column);
    freed = slot;
    if (slot++ == ahead) {
      slot = 0;
      parity ^= 1;
    }
  }
}

class AsyncPrefetch final : public Workload {
 public:
  explicit AsyncPrefetch(Setup& setup)
      : ahead_{setup.size("ahead")},
        rows_{setup.scaled(16384, segments)},
        image_{setup.input<float>((rows_ + 2 * radius) * pitch, uniform(0, 1), {.name = "image with margins"})},
        blurred_{setup.output<float>(rows_ * columns, {.name = "blurred"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(image_.bytes() + blurred_.bytes())}; }
  double expected(std::size_t i) const override {
    constexpr double weights[] = {0.0625, 0.25, 0.375, 0.25, 0.0625};
    const std::size_t first = i / columns * pitch + i % columns + margin - radius;
    double sum = 0;
    for (std::size_t y = 0; y < 5; ++y)
      for (std::size_t x = 0; x < 5; ++x) sum += weights[y] * weights[x] * image_.host(first + y * pitch + x);
    return sum;
  }

  void load_then_compute(Launch& launch) { march(launch, load_then_compute_kernel); }
  void register_ahead(Launch& launch) { march(launch, register_ahead_kernel); }
  void cp_async_ahead_1(Launch& launch) { march(launch, cp_async_ring_kernel<1>); }
  void cp_async_ring(Launch& launch) {
    switch (ahead_) {
      case 1: return march(launch, cp_async_ring_kernel<1>);
      case 2: return march(launch, cp_async_ring_kernel<2>);
      case 3: return march(launch, cp_async_ring_kernel<3>);
      case 4: return march(launch, cp_async_ring_kernel<4>);
      case 6: return march(launch, cp_async_ring_kernel<6>);
      case 8: return march(launch, cp_async_ring_kernel<8>);
      case 12: return march(launch, cp_async_ring_kernel<12>);
      default: throw Unsupported{not_compiled};
    }
  }
  void bulk_ring(Launch& launch) {
    switch (ahead_) {
      case 1: return march(launch, bulk_ring_kernel<1>);
      case 2: return march(launch, bulk_ring_kernel<2>);
      case 3: return march(launch, bulk_ring_kernel<3>);
      case 4: return march(launch, bulk_ring_kernel<4>);
      case 6: return march(launch, bulk_ring_kernel<6>);
      case 8: return march(launch, bulk_ring_kernel<8>);
      case 12: return march(launch, bulk_ring_kernel<12>);
      default: throw Unsupported{not_compiled};
    }
  }

 private:
  static constexpr const char* not_compiled = "rings with 1, 2, 3, 4, 6, 8 and 12 rows ahead are compiled";
  void march(Launch& launch, void (*kernel)(const float*, float*, int)) {
    launch(kernel, {dim3{columns / strip, segments}, strip}, image_, blurred_, rows_ / segments);
  }

  std::size_t ahead_, rows_;
  Input<float> image_;
  Output<float> blurred_;
};

}  // namespace

extern constinit const Pair async_prefetch{
    .teaches =
        "a block that loads a row, synchronizes and computes has one row in flight; cp.async keeps six under way without "
        "registers",
    .lesson = "cp_async_ring",
    .make = make<AsyncPrefetch>,
    .baseline = {.name = "load_then_compute", .run = call<&AsyncPrefetch::load_then_compute>},
    .optimized = variants({{.name = "register_ahead", .run = call<&AsyncPrefetch::register_ahead>},
                           {.name = "cp_async_ring", .run = call<&AsyncPrefetch::cp_async_ring>},
                           {.name = "bulk_ring", .run = call<&AsyncPrefetch::bulk_ring>, .needs = {.min_sm = 90}}}),
    // The instruction without the depth.
    .controls = variants({{.name = "cp_async_ahead_1", .run = call<&AsyncPrefetch::cp_async_ahead_1>}}),
    .bound = Bound::memory,
    .tolerance = reduction_of(10),  // five terms along the row, five along the column
    .sizes = sizes({{.name = "ahead", .full = 6, .most = 12, .scales = false}}),
    .sweep = cases({{"ahead_1", "ahead=1"},
                    {"ahead_2", "ahead=2"},
                    {"ahead_3", "ahead=3"},
                    {"ahead_4", "ahead=4"},
                    {"ahead_6", "ahead=6"},
                    {"ahead_8", "ahead=8"},
                    {"ahead_12", "ahead=12"}}),
    .edges = cases({{"ahead_1", "ahead=1"}, {"ahead_3", "ahead=3"}}),
};

}  // namespace aisp::ch07
