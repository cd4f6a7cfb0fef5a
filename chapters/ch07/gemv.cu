// SPDX-License-Identifier: Apache-2.0
// y = A x in bf16, the core of decoding one token: the matrix is read once and nothing of it is used twice, so the product is a
// read at the speed of memory or it is slow. A warp to each row is coalesced at once; what is left are the load instructions,
// one for two bytes a lane, and how many bytes are on their way while sums are made. x is small and stays on the chip.
#include <cuda_bf16.h>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/reduce.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

namespace aisp::ch07 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int columns = 16384;
constexpr int packets = columns / 8;  // of 16 bytes in a row
constexpr int threads = 256, warps = threads / 32;
constexpr int in_flight = 8;
// A block of the persistent kernels has an SM for itself.
constexpr int persistent_threads = 512, persistent_warps = persistent_threads / 32;
constexpr unsigned stages = 4, stage_packets = 128;  // of a warp's ring: 4 x 2 KiB

__device__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000); }
__device__ float multiply_add(unsigned a, unsigned x, float sum) { return fmaf(high(a), high(x), fmaf(low(a), low(x), sum)); }
__device__ float multiply_add(const uint4& a, const uint4& x, float sum) {
  return multiply_add(a.w, x.w, multiply_add(a.z, x.z, multiply_add(a.y, x.y, multiply_add(a.x, x.x, sum))));
}

__device__ unsigned row_of_warp() { return blockIdx.x * warps + threadIdx.x / 32; }
__device__ void store_sum(float* y, unsigned row, float sum) {
  const float total = device::warp_sum(sum);
  if (threadIdx.x % 32 == 0) y[row] = total;
}

__global__ __launch_bounds__(threads) void warp_per_row_kernel(const bf16* a, const bf16* x, float* y) {
  const bf16* const row = a + std::size_t{row_of_warp()} * columns;
  float sum = 0;
  for (int i = threadIdx.x % 32; i < columns; i += 32) sum += __bfloat162float(row[i]) * __bfloat162float(x[i]);
  store_sum(y, row_of_warp(), sum);
}

__global__ __launch_bounds__(threads) void vec16_kernel(const uint4* a, const uint4* x, float* y) {
  const uint4* const row = a + std::size_t{row_of_warp()} * packets;
  float sum = 0;
  for (int i = threadIdx.x % 32; i < packets; i += 32) sum = multiply_add(row[i], x[i], sum);
  store_sum(y, row_of_warp(), sum);
}

__global__ __launch_bounds__(threads) void eight_in_flight_kernel(const uint4* a, const uint4* x, float* y) {
  const uint4* const row = a + std::size_t{row_of_warp()} * packets;
  float sum = 0;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < packets; i += 32 * in_flight) {
    uint4 loaded[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) loaded[k] = row[i + k * 32];
    __syncwarp();  // keeps the compiler, which saves registers, from moving loads between the sums
#pragma unroll
    for (int k = 0; k < in_flight; ++k) sum = multiply_add(loaded[k], x[i + k * 32], sum);
  }
  store_sum(y, row_of_warp(), sum);
}

// x as fp32, the low and the high halves of its packets apart: lanes that read one after the other lie 16 bytes apart.
__global__ __launch_bounds__(persistent_threads) void vec16_x_shared_kernel(const uint4* a, const uint4* x, float* y,
                                                                            unsigned rows) {
  extern __shared__ float4 halves[];
  for (int i = threadIdx.x; i < packets; i += persistent_threads) {
    const uint4 p = x[i];
    halves[i] = make_float4(low(p.x), high(p.x), low(p.y), high(p.y));
    halves[packets + i] = make_float4(low(p.z), high(p.z), low(p.w), high(p.w));
  }
  __syncthreads();
  const unsigned warp = blockIdx.x * persistent_warps + threadIdx.x / 32;
  for (unsigned r = warp; r < rows; r += gridDim.x * persistent_warps) {
    const uint4* const row = a + std::size_t{r} * packets;
    float sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < packets; i += 32) {
      const uint4 p = row[i];
      const float4 f = halves[i], g = halves[packets + i];
      sum = fmaf(high(p.y), f.w, fmaf(low(p.y), f.z, fmaf(high(p.x), f.y, fmaf(low(p.x), f.x, sum))));
      sum = fmaf(high(p.w), g.w, fmaf(low(p.w), g.z, fmaf(high(p.z), g.y, fmaf(low(p.z), g.x, sum))));
    }
    store_sum(y, r, sum);
  }
}

struct RingMemory {
  uint4 x[packets];
  uint4 ring[persistent_warps][stages][stage_packets];
  std::uint64_t full[persistent_warps][stages];
};

// Every warp has a ring of its own, which its first lane keeps full: parts of its rows, one after the other. Rows are dealt out
// so that the last ones, fewer than there are warps, spread over all SMs.
__global__ __launch_bounds__(persistent_threads) void bulk_ring_kernel(const uint4* a, const uint4* x, float* y, unsigned rows) {
  extern __shared__ __align__(128) unsigned char space[];
  RingMemory& shared = *reinterpret_cast<RingMemory*>(space);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0)
    for (unsigned s = 0; s < stages; ++s) device::barrier_init(&shared.full[warp][s], 1);
  device::fence_barrier_init();
  for (int i = threadIdx.x; i < packets; i += persistent_threads) shared.x[i] = x[i];
  __syncthreads();

  constexpr unsigned parts = packets / stage_packets, part_bytes = stage_packets * sizeof(uint4);
  const unsigned first = warp * gridDim.x + blockIdx.x, step = gridDim.x * persistent_warps;
  const unsigned all = first < rows ? ((rows - 1 - first) / step + 1) * parts : 0;
  const auto request = [&](unsigned part) {
    const std::size_t row = first + std::size_t{part / parts} * step;
    device::barrier_arrive_expect(&shared.full[warp][part % stages], part_bytes);
    device::bulk_load(shared.ring[warp][part % stages], a + row * packets + part % parts * stage_packets, part_bytes,
                      &shared.full[warp][part % stages]);
  };
  if (lane == 0)
    for (unsigned part = 0; part < min(stages, all); ++part) request(part);
  float sum = 0;
  for (unsigned part = 0; part < all; ++part) {
    device::barrier_wait(&shared.full[warp][part % stages], part / stages % 2);
    const uint4* const from = shared.ring[warp][part % stages];
    const uint4* const times = shared.x + part % parts * stage_packets;
#pragma unroll
    for (unsigned i = 0; i < stage_packets; i += 32) sum = multiply_add(from[i + lane], times[i + lane], sum);
    __syncwarp();  // all lanes have read the stage
    if (lane == 0 && part + stages < all) request(part + stages);
    if (part % parts == parts - 1) {
      store_sum(y, first + part / parts * step, sum);
      sum = 0;
    }
  }
}

class Gemv final : public Workload {
 public:
  explicit Gemv(Setup& setup)
      : rows_{setup.size("rows")},
        a_{setup.input<bf16>(rows_ * columns, uniform(-1, 1), {.name = "matrix"})},
        x_{setup.input<bf16>(columns, uniform(-1, 1), {.name = "x"})},
        y_{setup.output<float>(rows_, {.name = "y"})},
        cublas_{setup},
        lt_{setup, {.m = rows_, .n = 1, .k = columns, .result = CUDA_R_32F, .b_is_transposed = true}} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(a_.size()), .bytes = static_cast<double>(a_.bytes() + x_.bytes() + y_.bytes())};
  }
  double expected(std::size_t row) const override {
    double sum = 0;
    for (std::size_t i = 0; i < columns; ++i) sum += a_.host(row * columns + i) * x_.host(i);
    return sum;
  }

  void warp_per_row(Launch& launch) { launch(warp_per_row_kernel, {blocks(), threads}, a_, x_, y_); }
  void vec16(Launch& launch) { launch(vec16_kernel, {blocks(), threads}, a_packets(), x_packets(), y_); }
  void eight_in_flight(Launch& launch) { launch(eight_in_flight_kernel, {blocks(), threads}, a_packets(), x_packets(), y_); }
  void bulk_ring(Launch& launch) {
    launch(bulk_ring_kernel, {.blocks = multiprocessors(), .threads = persistent_threads, .shared_bytes = sizeof(RingMemory)},
           a_packets(), x_packets(), y_, rows_);
  }
  void vec16_x_shared(Launch& launch) {
    constexpr std::size_t bytes = columns * sizeof(float);
    constexpr unsigned blocks_per_sm = 3;  // what the shared memory of an SM holds
    launch(vec16_x_shared_kernel,
           {.blocks = multiprocessors() * blocks_per_sm, .threads = persistent_threads, .shared_bytes = bytes}, a_packets(),
           x_packets(), y_, rows_);
  }

  // cuBLAS's matrices are column-major: it sees A transposed.
  void cublas_gemm(Launch& launch) {
    const auto gemm = Cublas::function<Cublas::GemmEx>("cublasGemmEx");
    const float one = 1, zero = 0;
    cublas_->use(launch.stream);
    check(gemm(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, rows(), 1, columns, &one, a_, CUDA_R_16BF, columns, x_, CUDA_R_16BF,
               columns, &zero, y_, CUDA_R_32F, rows(), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
  void cublas_gemv(Launch& launch) {
    const auto gemv = Cublas::function<decltype(cublasTSSgemvStridedBatched)>("cublasTSSgemvStridedBatched");
    const float one = 1, zero = 0;
    cublas_->use(launch.stream);
    check(gemv(cublas_->handle(), CUBLAS_OP_T, columns, rows(), &one, a_, columns, 0, x_, 1, 0, &zero, y_, 1, 0, 1));
  }
  void tune(Launch& launch) { lt_.tune(launch, a_, x_, y_); }
  void cublaslt_tuned(Launch& launch) { lt_.run_tuned(launch, a_, x_, y_); }

 private:
  const uint4* a_packets() const { return reinterpret_cast<const uint4*>(a_.get()); }
  const uint4* x_packets() const { return reinterpret_cast<const uint4*>(x_.get()); }
  int rows() const { return static_cast<int>(rows_); }
  unsigned blocks() const { return static_cast<unsigned>(rows_ / warps); }

  std::size_t rows_;
  Input<bf16> a_, x_;
  Output<float> y_;
  Opened<Cublas> cublas_;
  LibraryMatmul lt_;
};

// The libraries multiply on tensor cores, which cut off what does not fit beside the largest of a sum's terms: half of 2^-23 on
// average, 1024 times for K = 16384, and always towards zero, of sums that are two thirds of the last one on average. Together
// that is 4e-5, where one accumulator takes the whole row.
constexpr Tolerance sums_in_tensor_cores = within(4e-5);

}  // namespace

extern constinit const Pair gemv{
    .teaches = "a matrix-vector product, the core of decoding, is one read of the matrix, wide and with many loads in flight",
    .lesson = "vec16",
    .make = make<Gemv>,
    .baseline = {.name = "warp_per_row", .run = call<&Gemv::warp_per_row>},
    .optimized = variants({{.name = "vec16", .run = call<&Gemv::vec16>},
                           {.name = "eight_in_flight", .run = call<&Gemv::eight_in_flight>},
                           {.name = "bulk_ring", .run = call<&Gemv::bulk_ring>, .needs = {.min_sm = 90}}}),
    .controls = variants({{.name = "vec16_x_shared", .run = call<&Gemv::vec16_x_shared>}}),
    .libraries = variants({{.name = "cublas_gemm_ex",
                            .run = call<&Gemv::cublas_gemm>,
                            .needs = {.libraries = {Library::cublas}},
                            .tolerance = sums_in_tensor_cores},
                           {.name = "cublas_gemv",
                            .run = call<&Gemv::cublas_gemv>,
                            .needs = {.libraries = {Library::cublas}},
                            .tolerance = sums_in_tensor_cores},
                           {.name = "cublaslt_tuned",
                            .run = call<&Gemv::cublaslt_tuned>,
                            .prepare = call<&Gemv::tune>,
                            .needs = {.libraries = {Library::cublaslt}},
                            .tolerance = sums_in_tensor_cores}}),
    .bound = Bound::memory,
    .tolerance = reduction_of(columns),
    .sizes = sizes({{.name = "rows", .full = 16384, .multiple = warps, .most = 1u << 17}}),
    .sweep = cases({{"rows_512", "rows=512"},
                    {"rows_1024", "rows=1024"},
                    {"rows_2048", "rows=2048"},
                    {"rows_4096", "rows=4096"},
                    {"rows_8192", "rows=8192"},
                    {"rows_16384", "rows=16384"},
                    {"rows_65536", "rows=65536"}}),
    .edges = cases({{"rows_8", "rows=8"}, {"rows_24", "rows=24"}}),
};

}  // namespace aisp::ch07
