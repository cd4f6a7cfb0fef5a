// SPDX-License-Identifier: Apache-2.0
// Y = X W, 4096 tokens x 7168, K = 16384, as DeepSeek-V3's largest projection: e4m3 with a scale for each row of X and 128 of K,
// and for each 128 x 128 of W. Every 128 of K sums leave the tensor cores, are scaled and added to others in fp32, which takes a
// quarter of the time of the products. Where all warps do that between the same barriers, the tensor cores wait. A warp that
// loads lets the warpgroups drift apart, so that one multiplies while the other scales. And as the registers of a second set of
// sums are enough for half of the columns, rows of X are read twice from shared memory, unless they are kept in registers, too.
#include <aisp/device/matrix.cuh>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/cutlass.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>

#include "block_scaled_loops.cuh"
#include "gemm/gemm.hpp"
#include "quantization_error.cuh"

namespace aisp::ch19 {
namespace {

using gemm::bf16, gemm::e4m3;
using Store = gemm::TmaStore<>;
using OneBufferStore = gemm::TmaStore<bf16, 1>;

// The engine's loop with X in registers. A tile's columns come in two halves, each with sums of its own, and shared memory would
// have to give the rows to both, beside the columns and what TMA writes: more than it has bandwidth.
struct RowsInRegisters : BlockScaled {
  template <class C, class Queued>
  __device__ __forceinline__ void multiply(gemm::Ring<C>& ring, gemm::Cursor<C>& at, const gemm::Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued&) const {
    static_assert(C::parts == 1);
    const auto add = adder<C>(*this, ring, tile, first_row);
    // For a warp's 16 rows ldmatrix takes 32 bytes in four matrices. In a row, 16 bytes lie at their number ^ row % 8.
    const unsigned lane = device::lane_index(), row = static_cast<unsigned>(first_row) + threadIdx.x % 128 / 32 * 16 + lane % 16;
    clear(sums);
    const int steps = C::steps(tile);
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      unsigned rows[4][4];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        device::load_matrices(rows[i],
                              device::shared_address(ring.a[at.stage]) + row * block + ((2 * i + lane / 16) ^ row % 8) * 16);
#pragma unroll
      for (int chunk = 0; chunk < C::tile_n / block; ++chunk) {
        float products[block / 2];
        const std::uint64_t columns = C::B::descriptor(ring.b[at.stage], chunk * block);
        device::wgmma_touch(products);
        device::wgmma_fence();
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) device::wgmma<C::operands>(products, rows[i], device::advance(columns, i * 32), i > 0);
        device::wgmma_commit();
        const float2 scale = add.scale(at.stage, step, 0, chunk);
        device::wgmma_wait<0>();
        device::wgmma_touch(products);
        if (chunk + 1 == C::tile_n / block) ring.give_back(at.stage);
        add(products, sums[0] + chunk * (block / 2), scale);
      }
      at.next();
    }
  }
};

// The same in quarters of the tile's columns, of which one is under way while the last one is added: with rows in registers
// narrow products read no more than wide ones.
struct QuartersInFlight : BlockScaled {
  template <class C, class Queued>
  __device__ __forceinline__ void multiply(gemm::Ring<C>& ring, gemm::Cursor<C>& at, const gemm::Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued&) const {
    constexpr int width = block / 2, chunks = C::tile_n / width;
    static_assert(C::parts == 1 && chunks % 2 == 0);
    const auto add = adder<C>(*this, ring, tile, first_row);
    const unsigned lane = device::lane_index(), row = static_cast<unsigned>(first_row) + threadIdx.x % 128 / 32 * 16 + lane % 16;
    clear(sums);
    float products[2][width / 2];
    clear(products);  // what is added before there is anything
    float2 scale{};
    int previous = -1;
    const int steps = C::steps(tile);
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      device::wgmma_wait<0>();  // the products under way read the rows' registers
      device::wgmma_touch(products[1]);
      if (previous >= 0) ring.give_back(previous);
      unsigned rows[4][4];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        device::load_matrices(rows[i],
                              device::shared_address(ring.a[at.stage]) + row * block + ((2 * i + lane / 16) ^ row % 8) * 16);
#pragma unroll
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const std::uint64_t columns = C::B::descriptor(ring.b[at.stage], chunk * width);
        device::wgmma_touch(products[chunk % 2]);
        device::wgmma_fence();
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
          device::wgmma<C::operands>(products[chunk % 2], rows[i], device::advance(columns, i * 32), i > 0);
        device::wgmma_commit();
        const float2 next = add.scale(at.stage, step, 0, chunk * width / block);
        const int last = (chunk + chunks - 1) % chunks;
        if (chunk > 0) {
          device::wgmma_wait<1>();
          device::wgmma_touch(products[last % 2]);
        }
        add(products[last % 2], sums[0] + last * (width / 2), scale);
        scale = next;
      }
      previous = at.stage;
      at.next();
    }
    device::wgmma_wait<0>();
    device::wgmma_touch(products[1]);
    ring.give_back(previous);
    add(products[1], sums[0] + (chunks - 1) * (width / 2), scale);
  }
};

// Structs, though aliases do with CUDA 13.0 (gemm/README.md).
using Operand = gemm::Operand<e4m3>;
template <class Loop, int cluster = 1>
struct Wide : gemm::Config<Operand, Operand, Loop, gemm::Shape{.tile_n = 256, .stages = 4, .cluster = cluster}> {};
template <class Loop>
struct Narrow : gemm::Config<Operand, Operand, Loop, gemm::Shape{.tile_n = 128, .stages = 6}> {};
struct Pingpong : gemm::Config<Operand, Operand, BlockScaled, gemm::Shape{.stages = 6, .pingpong = true}> {};
using BaselineTile = Wide<BlockScaled>;

// No roles and no second tile, as compilers of block programs make it: after the barrier all are done with the stage of the step
// before, and thread 0 fills it again.
template <class C>
__global__ __launch_bounds__(both_warpgroups, 1) void barrier_kernel(const __grid_constant__ gemm::Maps maps,
                                                                     const gemm::Bands schedule, const BlockScaled loop) {
  extern __shared__ __align__(1024) unsigned char memory[];
  gemm::Ring<C>& ring = *reinterpret_cast<gemm::Ring<C>*>(memory);
  gemm::Tile tile;
  if (!schedule.at<C>(static_cast<int>(blockIdx.x), tile)) return;
  const int steps = C::steps(tile);
  const auto load = [&](int step) {
    const int stage = step % C::stages, k = step * C::tile_k;
    std::uint64_t* const full = &ring.full[stage];
    device::barrier_arrive_expect(full, gemm::Ring<C>::stage_bytes);
    C::A::template load<C::tile_m>(ring.a[stage], &maps.a, tile.m, k, full);
    C::B::template load<C::tile_n>(ring.b[stage], &maps.b, tile.n, k, full);
    device::tensor_load_2d(ring.a_scales[stage], &maps.extra, tile.m, step, full);
  };
  if (threadIdx.x == 0) {
    ring.init();
    for (int step = 0; step < C::stages - 1 && step < steps; ++step) load(step);
  }
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), first_row = warp / 4 * C::rows;
  const auto add = adder<C>(loop, ring, tile, first_row);
  float sums[1][C::tile_n / 2];
  clear(sums);
  gemm::Cursor<C> at;
  for (int step = 0; step < steps; ++step) {
    __syncthreads();
    device::barrier_wait(&ring.full[at.stage], at.phase);
#pragma unroll
    for (int chunk = 0; chunk < C::tile_n / block; ++chunk) {
      float products[block / 2];
      queue(ring, at.stage, first_row, chunk * block, products);
      if (chunk == 0 && threadIdx.x == 0 && step + C::stages - 1 < steps) load(step + C::stages - 1);
      const float2 scale = add.scale(at.stage, step, 0, chunk);
      device::wgmma_wait<0>();
      device::wgmma_touch(products);
      add(products, sums[0] + chunk * (block / 2), scale);
    }
    at.next();
  }
  unsigned char* const staging = memory + sizeof ring + warp * gemm::staging_bytes<C, gemm::Identity, Store>;
  const gemm::Fragment of_warp{tile.m + first_row + warp % 4 * 16, tile.n, tile.m_end, schedule.extent.n, 0};
  Store{}.put(sums[0], of_warp, staging, maps.c);
  Store::finish();
}

// Exponents of the scales of x, one 128 of K after the other; of w's, with the other sign.
constexpr int exponents[] = {0, 10, -10, 3, -7, 8, -2, 5, -9, 1, -5, 9, -1, 6, -4, 2, -8, 7, -3, 4, -6};
float exponent_of(std::size_t k_block) {
  // The first two are to be equal.
  return static_cast<float>(k_block < 2 ? 0 : exponents[k_block % std::size(exponents)]);
}

class Fp8BlockScaling final : public Workload {
 public:
  explicit Fp8BlockScaling(Setup& setup)
      : m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        x_{setup.input<e4m3>(m_ * k_, x_values(), {.name = "x"})},
        w_{setup.input<e4m3>(n_ * k_, w_values(), {.name = "w"})},
        x_scales_{setup.input<float>(k_blocks() * m_,
                                     [this](std::span<float> to, std::uint64_t seed) { fill_x_scales(to, seed); },
                                     {.name = "scales of x"})},
        w_scales_{setup.input<float>(n_blocks() * k_blocks(),
                                     [this](std::span<float> to, std::uint64_t seed) { fill_w_scales(to, seed); },
                                     {.name = "scales of w"})},
        y_{setup.output<bf16>(m_ * n_, {.name = "y"})},
        cublaslt_{setup,
                  {.m = m_,
                   .n = n_,
                   .k = k_,
                   .operands = CUDA_R_8F_E4M3,
                   .b_is_transposed = true,
                   .a_scales = x_scales_,
                   .b_scales = w_scales_}},
        error_{setup} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(m_) * static_cast<double>(n_) * static_cast<double>(k_),
            .math = Math::fp8,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + x_scales_.bytes() + w_scales_.bytes() + y_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t row = index / n_, column = index % n_;
    double sum = 0;
    for (std::size_t at = 0; at < k_blocks(); ++at) {
      double products = 0;
      for (std::size_t k = at * block; k < (at + 1) * block; ++k) products += x_.host(row * k_ + k) * w_.host(column * k_ + k);
      sum += products * x_scales_.host(at * m_ + row) * w_scales_.host(column / block * k_blocks() + at);
    }
    return sum;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(m_), "tokens/s");
    error_.report(variant, metrics);
  }

  void validate(std::string_view variant) override {
    const QuantizedRows<E4m3, float> x{x_.get(), k_, x_scales_.get(), 1, block, 1, m_},
        w{w_.get(), k_, w_scales_.get(), block, block, k_blocks(), 1, 1, 2};
    error_.measure(variant, x, m_, w, n_, k_, ResultAt<bf16>{y_.get(), n_, 1});
  }

  void block_barrier(Launch& launch) {
    const auto& prepared = wide_.prepared();
    launch(barrier_kernel<BaselineTile>,
           {.blocks = tiles(), .threads = both_warpgroups, .shared_bytes = decltype(wide_)::shared_bytes}, prepared.maps,
           prepared.schedule, prepared.mainloop);
  }
  // The engine's kernel with as many blocks as tiles, so that each has one.
  void producer(Launch& launch) {
    auto prepared = wide_.prepared();
    prepared.grid.blocks = tiles();
    prepared.run(launch.stream, gemm::gemm_kernel<BaselineTile, gemm::Bands, gemm::Identity, Store>);
  }
  void persistent(Launch& launch) { wide_.run(launch.stream); }
  void rows_in_registers(Launch& launch) { rows_in_registers_.run(launch.stream); }
  void quarters_in_flight(Launch& launch) { quarters_.run(launch.stream); }
  void forced_turns(Launch& launch) { turns_.run(launch.stream); }
  void turns_by_tile(Launch& launch) { pingpong_.run(launch.stream); }
  void two_accumulators(Launch& launch) { two_sets_.run(launch.stream); }
  void multicast(Launch& launch) { wide_pair_.run(launch.stream); }
  void unscaled(Launch& launch) { unscaled_.run(launch.stream); }
  void never_promoted(Launch& launch) { never_promoted_.run(launch.stream); }

  void cublaslt(Launch& launch) { cublaslt_.run(launch, x_, w_, y_); }
  void tune(Launch& launch) { cublaslt_.tune(launch, x_, w_, y_); }
  void cublaslt_tuned(Launch& launch) { cublaslt_.run_tuned(launch, x_, w_, y_); }
  void plan_cutlass(Launch&) {
    if (!cutlass_)
      cutlass_ = plan_cutlass_block_scaled(
          {static_cast<int>(m_), static_cast<int>(n_), static_cast<int>(k_), x_.get(), w_.get(), y_.get()}, x_scales_, w_scales_);
  }
  void cutlass(Launch& launch) { cutlass_->run(launch.stream); }

 private:
  template <class C, class S = Store>
  using Product = gemm::Gemm<C, gemm::Bands, gemm::Identity, S>;

  std::size_t k_blocks() const { return k_ / block; }
  std::size_t n_blocks() const { return (n_ + block - 1) / block; }
  unsigned tiles() const { return static_cast<unsigned>(wide_.schedule().most_tiles()); }
  gemm::Problem<e4m3, e4m3, bf16> problem() const {
    return {.a = x_, .b = w_, .c = y_, .m = m_, .n = n_, .k = k_, .a_scales = x_scales_, .b_scales = w_scales_};
  }

  // 448 for the longest K; its square is always as large beside the results.
  float canceled() const { return 448 * std::sqrt(std::sqrt(static_cast<float>(k_) / 16384)); }
  // Outlier channels, some beyond 448; a row of zeros; groups with a scale of their own that hold subnormals alone; zeros of both
  // signs. What four channels of the first 128 of K add, those of the next 128 take away: more than all the others come to.
  Pattern x_values() const {
    const Axis channels{1, k_}, rows{k_, m_}, groups{block, m_ * k_ / block}, elements{1, m_ * k_};
    return normal(0, 60)
        .times(2, 9, drawn(channels, 8))
        .times(1.0f / 8192, drawn(groups, groups.count / 64))
        .set(-0.0f, drawn(elements, elements.count / 4096))
        .set(canceled(), at(channels, 8, 4))
        .set(-canceled(), at(channels, block + 8, 4))
        .set(0, at(rows, 0));
  }
  // And a block of zeros, whose scale is zero.
  Pattern w_values() const {
    const Axis channels{1, k_}, columns{k_, n_};
    return normal(0, 60)
        .set(canceled(), at(channels, 8, 4))
        .set(canceled(), at(channels, block + 8, 4))
        .set(0, at(columns, 0, block), at(channels, 2 * block, block));
  }
  // Scales of x and w are large where the other's are small, from 2^-10 to 2^10, so that all blocks of K weigh about the same and
  // the wrong scale shows. Those of the first two blocks are equal.
  static float mantissa(std::uint64_t seed, std::size_t index) {
    return 1 + static_cast<float>(random_bits(seed, index) >> 40) * 0x1p-24f;
  }
  void fill_x_scales(std::span<float> to, std::uint64_t seed) const {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const std::size_t at = i / m_;
      to[i] = std::ldexp(mantissa(seed, at < 2 ? i % m_ : i), exponent_of(at));
    }
  }
  void fill_w_scales(std::span<float> to, std::uint64_t seed) const {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const std::size_t at = i % k_blocks();
      to[i] = i == 2 ? 0 : std::ldexp(mantissa(seed, at < 2 ? i - at : i), -exponent_of(at));
    }
  }

  std::size_t m_, n_, k_;
  Input<e4m3> x_, w_;                 // x[m][k], w[n][k]
  Input<float> x_scales_, w_scales_;  // [k / 128][m], [n / 128][k / 128]
  Output<bf16> y_;
  Product<BaselineTile> wide_{problem()};
  Product<Wide<RowsInRegisters>> rows_in_registers_{problem()};
  Product<Wide<QuartersInFlight>> quarters_{problem()};
  Product<Wide<InTurns>> turns_{problem()};
  Product<Wide<BlockScaled, 2>> wide_pair_{problem()};
  Product<Narrow<TwoSets>, OneBufferStore> two_sets_{problem()};
  Product<Pingpong, OneBufferStore> pingpong_{problem()};
  Product<Wide<gemm::Promoted>> unscaled_{problem()};
  Product<Wide<gemm::InTensorCores>> never_promoted_{problem()};
  LibraryMatmul cublaslt_;
  std::unique_ptr<CutlassPlan> cutlass_;
  QuantizationError error_;
};

constexpr KernelLimits no_spills{.local_bytes = 0};
template <Method run>
constexpr Variant scaled(std::string_view name, const Needs& needs = {}) {
  return {.name = name, .run = run, .needs = needs, .same_bits_as = "block_barrier", .kernels = no_spills};
}
template <Method run>
constexpr Variant control(std::string_view name) {
  return {.name = name, .run = run, .outputs = no_outputs, .kernels = no_spills};
}

}  // namespace

extern constinit const Pair fp8_block_scaling{
    .teaches =
        "scales inside the K loop cost arithmetic that hides under another warpgroup's products, where nothing keeps both in "
        "step",
    .lesson = "producer",
    .make = make<Fp8BlockScaling>,
    .baseline = {.name = "block_barrier", .run = call<&Fp8BlockScaling::block_barrier>, .kernels = no_spills},
    .optimized = variants(
        {scaled<call<&Fp8BlockScaling::producer>>("producer"), scaled<call<&Fp8BlockScaling::persistent>>("persistent")}),
    // Other ways to keep the tensor cores busy, and to fetch less; `persistent` without scales; and without adding at all.
    .controls = variants({scaled<call<&Fp8BlockScaling::forced_turns>>("forced_turns"),
                          scaled<call<&Fp8BlockScaling::turns_by_tile>>("turns_by_tile"),
                          scaled<call<&Fp8BlockScaling::two_accumulators>>("two_accumulators"),
                          scaled<call<&Fp8BlockScaling::rows_in_registers>>("rows_in_registers"),
                          scaled<call<&Fp8BlockScaling::quarters_in_flight>>("quarters_in_flight"),
                          scaled<call<&Fp8BlockScaling::multicast>>("multicast", {.dsmem = true}),
                          control<call<&Fp8BlockScaling::unscaled>>("unscaled"),
                          control<call<&Fp8BlockScaling::never_promoted>>("never_promoted")}),
    .libraries =
        variants({{.name = "cublaslt", .run = call<&Fp8BlockScaling::cublaslt>, .needs = {.libraries = {Library::cublaslt}}},
                  {.name = "cublaslt_tuned",
                   .run = call<&Fp8BlockScaling::cublaslt_tuned>,
                   .prepare = call<&Fp8BlockScaling::tune>,
                   .needs = {.libraries = {Library::cublaslt}}},
                  {.name = "cutlass",
                   .run = call<&Fp8BlockScaling::cutlass>,
                   .prepare = call<&Fp8BlockScaling::plan_cutlass>,
                   .needs = {.libraries = {Library::cutlass}}}}),
    .bound = Bound::compute,
    // The tensor cores keep about 14 bits of a sum. Those that cancel each other are 1.7 times the results: another 1e-3, beside
    // 1.6e-3 of the rounding to bf16.
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .max_sm = 90},
    // The library wants groups of four scales along K, and the engine rows of them that TMA can begin at.
    .sizes = sizes({{.name = "m", .full = 4096, .multiple = 16},
                    {.name = "n", .full = 7168, .multiple = 16, .most = 1u << 15, .scales = false},
                    {.name = "k", .full = 16384, .multiple = 512, .most = 1u << 15, .scales = false}}),
    .sweep = cases({{"k_2048", "k=2048"},
                    {"k_4096", "k=4096"},
                    {"k_8192", "k=8192"},
                    {"k_16384", "k=16384"},
                    {"m_64", "m=64"},
                    {"m_512", "m=512"},
                    {"m_2048", "m=2048"},
                    {"m_8192", "m=8192"}}),
    .edges = cases({{"least", "m=16,n=16,k=512"}, {"tails", "m=272,n=336,k=1024"}, {"odd_tiles", "m=1296,n=2112,k=1536"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch19
