// SPDX-License-Identifier: Apache-2.0
// Back through an MLP's GELU: dP = (dY W2^T) * GELU'(P), where P is what the GELU was applied to, and the gradient of its bias,
// the column sums of dP. As three kernels the product is written, read, written and read again, 1.07 GB beside 275 GFLOP. An
// epilogue can also read a second matrix and add up columns: what is left of the passes is the reading of P, which the products
// hide in part.
#include <aisp/device/matrix.cuh>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <optional>

#include "backward_reference.cuh"
#include "gemm/gemm.hpp"
#include "rows.cuh"

namespace aisp::ch09 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned threads = 256, warps = threads / 32;
constexpr unsigned chunk_rows = 128;  // that a block of a pass over the columns, or a tile of the product, adds up

// Returns the slope of GELU in the approximation by tanh: t = tanh(u), and half of x (1 - t^2) u' comes to half of 1 + t.
__device__ __forceinline__ float gelu_slope(float x) {
  constexpr float root_2_over_pi = 0.7978845608f, cubic = 0.044715f;
  const float square = x * x;
  const float t = __tanhf(x * fmaf(square, root_2_over_pi * cubic, root_2_over_pi));
  const float half_x_slope = 0.5f * x * fmaf(square, 3 * root_2_over_pi * cubic, root_2_over_pi);
  return fmaf(half_x_slope, fmaf(-t, t, 1), fmaf(0.5f, t, 0.5f));
}

// Packets of eight columns, one for each thread.
__global__ __launch_bounds__(threads) void dgelu_kernel(uint4* __restrict__ dp, const uint4* __restrict__ p, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  float d[packet], x[packet];
  shared::unpack(dp[i], d);
  shared::unpack(p[i], x);
#pragma unroll
  for (int j = 0; j < packet; ++j) d[j] *= gelu_slope(x[j]);
  dp[i] = shared::pack(d);
}

// A block adds up chunk_rows rows of 32 packets, a lane has one of them; with_slope: and does what dgelu_kernel does on the way.
template <bool with_slope>
__global__ __launch_bounds__(threads) void column_pass_kernel(uint4* __restrict__ dp, const uint4* __restrict__ p,
                                                              float* __restrict__ partial, unsigned rows, unsigned row_packets) {
  __shared__ __align__(16) float sums[warps][32 * packet];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
  const unsigned first = blockIdx.y * chunk_rows, end = min(first + chunk_rows, rows);
  float sum[packet] = {};
  if (column < row_packets) {
#pragma unroll 4
    for (unsigned row = first + warp; row < end; row += warps) {
      const std::size_t i = std::size_t{row} * row_packets + column;
      float d[packet];
      shared::unpack(dp[i], d);
      if constexpr (with_slope) {
        float x[packet];
        shared::unpack(p[i], x);
#pragma unroll
        for (int j = 0; j < packet; ++j) d[j] *= gelu_slope(x[j]);
        dp[i] = shared::pack(d);
      }
#pragma unroll
      for (int j = 0; j < packet; ++j) sum[j] += d[j];
    }
  }
  auto* const own = reinterpret_cast<float4*>(&sums[warp][lane * packet]);
  own[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  own[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
  __syncthreads();
  float total = 0;
#pragma unroll
  for (unsigned w = 0; w < warps; ++w) total += sums[w][threadIdx.x];
  const unsigned width = row_packets * packet, element = blockIdx.x * threads + threadIdx.x;
  if (element < width) partial[std::size_t{blockIdx.y} * width + element] = total;
}

// The last step of all variants that add up columns themselves, in a fixed order. A block has eight packets of four columns, so
// that each row gives a whole line: warps of four rows, a block of 128.
constexpr unsigned adding_threads = 1024, adding_warps = adding_threads / 32;
__global__ __launch_bounds__(adding_threads) void add_partials_kernel(const float4* __restrict__ partial, uint2* __restrict__ db,
                                                                      unsigned rows, unsigned row_packets) {
  __shared__ float4 sums[adding_warps][8];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 8 + lane % 8;
  const auto add = [](float4& to, const float4& v) { to.x += v.x, to.y += v.y, to.z += v.z, to.w += v.w; };
  float4 sum{};
  if (column < row_packets) {
#pragma unroll 4
    for (unsigned row = threadIdx.x / 8; row < rows; row += adding_threads / 8)
      add(sum, partial[std::size_t{row} * row_packets + column]);
  }
#pragma unroll
  for (int distance = 8; distance < 32; distance *= 2)
    add(sum, make_float4(__shfl_xor_sync(~0u, sum.x, distance), __shfl_xor_sync(~0u, sum.y, distance),
                         __shfl_xor_sync(~0u, sum.z, distance), __shfl_xor_sync(~0u, sum.w, distance)));
  if (lane < 8) sums[warp][lane] = sum;
  __syncthreads();
  if (threadIdx.x >= 8 || column >= row_packets) return;
  for (unsigned w = 1; w < adding_warps; ++w) add(sum, sums[w][lane]);
  db[column] = make_uint2(device::narrow_bf16(sum.x, sum.y), device::narrow_bf16(sum.z, sum.w));
}

// The engine's epilogue: sums times GELU'(P), and what each tile comes to in each column. These are added up after it, by
// add_partials_kernel, always in the same order; atomics would need no second kernel, and give other bits every time.
struct SlopeAndColumnSums {
  static constexpr int narrowing = 1;
  template <int columns>
  using Kept = gemm::ColumnSums<columns>;

  float* partial = nullptr;  // [row / chunk_rows][column]

  // Rows and columns that do not exist are zero in dY and W2, as TMA brings them.
  template <int count, class Other>
  __device__ __forceinline__ void operator()(float (&sums)[count], const gemm::Fragment&, const Other& p,
                                             gemm::ColumnSums<count * 2>& kept) const {
#pragma unroll
    for (int i = 0; i < count; i += packet) {
      float x[packet];
      p.load(i, x);
#pragma unroll
      for (int j = 0; j < packet; ++j) sums[i + j] *= gelu_slope(x[j]);
    }
    kept.add(sums);
  }
  template <int columns>
  __device__ __forceinline__ void end_tile(const gemm::ColumnSums<columns>& kept, const gemm::Fragment& at,
                                           const gemm::Meeting& meeting) const {
    float* const row = at.first_row < at.row_end
                           ? partial + static_cast<std::size_t>(at.first_row / static_cast<int>(chunk_rows)) * at.column_end
                           : nullptr;
    kept.store(row, at, meeting);
  }
};

// The product with that epilogue. TMA brings P into the boxes from which dP is stored; they are for a whole tile, and take the
// place of stages.
using Along = gemm::Operand<bf16>;
// While one warpgroup is in its epilogue, the other multiplies.
using Pingpong =
    gemm::Config<Along, Along, gemm::InTensorCores, gemm::Shape{.tile_n = 128, .stages = 5, .pingpong = true, .cluster = 2}>;
static_assert(Pingpong::rows == static_cast<int>(chunk_rows), "a warpgroup has a tile of its own");
using FusedPingpong = gemm::Gemm<Pingpong, gemm::Bands, SlopeAndColumnSums, gemm::TmaExchange>;

class GemmBackwardEpilogue final : public Workload {
 public:
  // Weights of a size that dY W2^T has a variance near one. Gradients without a mean: a column's sum is then as small as its rows
  // allow, and one row that is left out shows.
  explicit GemmBackwardEpilogue(Setup& setup)
      : m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        dy_{setup.input<bf16>(m_ * k_, uniform(-1, 1), {.name = "dy"})},
        // [n][k], as the forward product H W2 has them.
        w2_{setup.input<bf16>(n_ * k_, uniform(-largest_weight(), largest_weight()), {.name = "weights"})},
        p_{setup.input<bf16>(m_ * n_, normal(0, 1), {.name = "p"})},
        partial_{setup.scratch<float>((m_ + chunk_rows - 1) / chunk_rows * n_, {.name = "parts of column sums"})},
        dp_{setup.output<bf16>(m_ * n_, {.name = "dp"})},
        db_{setup.output<bf16>(n_, {.name = "gradient of the bias"})},
        reference_{setup, m_, n_, k_},
        gemm_{setup, problem(CUBLASLT_EPILOGUE_DEFAULT)},
        gemm_dgelu_{setup, problem(CUBLASLT_EPILOGUE_DGELU)},
        gemm_dgelu_bgrad_{setup, problem(CUBLASLT_EPILOGUE_DGELU_BGRAD)},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override { return cost_of(p_.bytes() + db_.bytes()); }
  Cost variant_cost(std::string_view variant) const override { return variant == "gemm_alone" ? cost_of(0) : cost(); }
  void compute_reference(Launch& launch) override { reference_.compute(launch, dy_, w2_, p_); }
  double expected_output(int output, std::size_t index) const override {
    if (output == 1) return reference_.column_sum(index);
    const std::size_t row = index / n_, column = index % n_;
    double dh = 0;
    for (std::size_t k = 0; k < k_; ++k) dh += dy_.host(row * k_ + k) * w2_.host(column * k_ + k);
    return dh * backward::gelu_slope(p_.host(index));
  }

  void tune_gemm(Launch& launch) { tune(launch, gemm_); }
  void gemm_alone(Launch& launch) { gemm_.run_tuned(launch, dy_, w2_, dp_); }
  void gemm_then_kernels(Launch& launch) {
    gemm_alone(launch);
    const std::size_t packets = dp_.size() / packet;
    launch(dgelu_kernel, {blocks(packets, threads), threads}, as_packets(dp_.get()), as_packets(p_.get()), packets);
    column_pass(launch, column_pass_kernel<false>);
  }
  void one_pass_after(Launch& launch) {
    gemm_alone(launch);
    column_pass(launch, column_pass_kernel<true>);
  }
  void tune_dgelu(Launch& launch) { tune(launch, gemm_dgelu_); }
  void dgelu_epilogue(Launch& launch) {
    gemm_dgelu_.run_tuned(launch, dy_, w2_, dp_);
    column_pass(launch, column_pass_kernel<false>);
  }
  void tune_dgelu_bgrad(Launch& launch) { tune(launch, gemm_dgelu_bgrad_); }
  void cublaslt_dgelu_bgrad(Launch& launch) { gemm_dgelu_bgrad_.run_tuned(launch, dy_, w2_, dp_); }
  void describe_fused(Launch&) {
    if (!fused_) fused_.emplace(FusedPingpong::Problem{.a = dy_, .b = w2_, .c = dp_, .m = m_, .n = n_, .k = k_, .other = p_});
  }
  void wgmma_dgelu_bgrad(Launch& launch) {
    fused_->run(launch.stream, {partial_});
    add_partials(launch);
  }

 private:
  Cost cost_of(std::size_t bytes_beside_gemm) const {
    return {.flops = 2.0 * static_cast<double>(dp_.size()) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = static_cast<double>(dy_.bytes() + w2_.bytes() + dp_.bytes() + bytes_beside_gemm)};
  }
  float largest_weight() const { return 3 / std::sqrt(static_cast<float>(k_)); }
  MatmulProblem problem(cublasLtEpilogue_t epilogue) const {
    MatmulProblem of{.m = m_, .n = n_, .k = k_, .b_is_transposed = true, .epilogue = epilogue};
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT) of.before_activation = p_.get();
    if (epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) of.bias_gradient = db_.get();
    return of;
  }
  void tune(Launch& launch, const LibraryMatmul& product) const {
    if (!reproducible_) product.tune(launch, dy_, w2_, dp_);
  }
  static unsigned blocks(std::size_t count, unsigned of_block) {
    return static_cast<unsigned>((count + of_block - 1) / of_block);
  }
  static const uint4* as_packets(const bf16* of) { return reinterpret_cast<const uint4*>(of); }
  static uint4* as_packets(bf16* of) { return reinterpret_cast<uint4*>(of); }
  template <class Kernel>
  void column_pass(Launch& launch, Kernel* kernel) const {
    launch(kernel, {dim3{blocks(n_, threads), blocks(m_, chunk_rows)}, threads}, as_packets(dp_.get()), as_packets(p_.get()),
           partial_.get(), m_, n_ / packet);
    add_partials(launch);
  }
  void add_partials(Launch& launch) const {
    launch(add_partials_kernel, {blocks(n_, 32), adding_threads}, reinterpret_cast<const float4*>(partial_.get()),
           reinterpret_cast<uint2*>(db_.get()), blocks(m_, chunk_rows), n_ / 4);
  }

  std::size_t m_, n_, k_;
  Input<bf16> dy_, w2_, p_;
  Scratch<float> partial_;
  Output<bf16> dp_, db_;
  backward::Reference reference_;
  LibraryMatmul gemm_, gemm_dgelu_, gemm_dgelu_bgrad_;
  bool reproducible_;
  std::optional<FusedPingpong> fused_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}}, by_the_engine = FusedPingpong::needs();
constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair gemm_backward_epilogue{
    .teaches = "an epilogue can also read a second matrix and add up columns: dGELU and the bias gradient need no passes",
    .lesson = "wgmma_dgelu_bgrad",
    .make = make<GemmBackwardEpilogue>,
    .baseline = {.name = "gemm_then_kernels",
                 .run = call<&GemmBackwardEpilogue::gemm_then_kernels>,
                 .prepare = call<&GemmBackwardEpilogue::tune_gemm>,
                 .needs = by_cublaslt},
    .optimized = variants({{.name = "one_pass_after",
                            .run = call<&GemmBackwardEpilogue::one_pass_after>,
                            .prepare = call<&GemmBackwardEpilogue::tune_gemm>,
                            .needs = by_cublaslt},
                           {.name = "dgelu_epilogue",
                            .run = call<&GemmBackwardEpilogue::dgelu_epilogue>,
                            .prepare = call<&GemmBackwardEpilogue::tune_dgelu>,
                            .needs = by_cublaslt},
                           {.name = "wgmma_dgelu_bgrad",
                            .run = call<&GemmBackwardEpilogue::wgmma_dgelu_bgrad>,
                            .prepare = call<&GemmBackwardEpilogue::describe_fused>,
                            .needs = by_the_engine,
                            .kernels = no_spills}}),
    // The library's product with nothing after it: what a variant takes beyond that is the price of its epilogue.
    .controls = variants({{.name = "gemm_alone",
                           .run = call<&GemmBackwardEpilogue::gemm_alone>,
                           .prepare = call<&GemmBackwardEpilogue::tune_gemm>,
                           .needs = by_cublaslt,
                           .outputs = no_outputs}}),
    // All of it in one call of the library.
    .libraries = variants({{.name = "cublaslt_dgelu_bgrad",
                            .run = call<&GemmBackwardEpilogue::cublaslt_dgelu_bgrad>,
                            .prepare = call<&GemmBackwardEpilogue::tune_dgelu_bgrad>,
                            .needs = by_cublaslt}}),
    .bound = Bound::compute,
    // A rounding to bf16 is 1.6e-3, and separate kernels have two before the columns are added up: 2.3e-3. Sums of independent
    // terms keep their relative error, and their own rounding makes it 2.8e-3; one row of 32768 that is left out makes 5.5e-3.
    .tolerance = per_output({within(5e-3), within(4e-3)}),
    // Sums near zero do not keep it, so that a norm must be one of many. Beside their own rounding the limit leaves 3.7e-3 to the
    // terms' 2.3e-3, in squares 2.5 times as much, which n sums exceed as often as an F distribution of n and n does: eight in a
    // tenth of the draws, 128 in 2e-7.
    .sizes = sizes({{.name = "m", .full = 32768},
                    {.name = "n", .full = 4096, .multiple = 8, .least = 128, .most = 16384, .scales = false},
                    {.name = "k", .full = 1024, .multiple = 8, .most = 16384, .scales = false}}),
    .edges = cases({{"one_row", "m=1,n=128,k=8"}, {"tails", "m=300,n=328,k=72"}, {"one_more_row", "m=4097,n=4104,k=1032"}}),
};

}  // namespace aisp::ch09
