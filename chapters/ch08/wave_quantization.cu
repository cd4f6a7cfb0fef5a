// SPDX-License-Identifier: Apache-2.0
// A density estimate: for each query the weighted Gaussians of 22528 centres in three dimensions are added up. With 1024 queries
// a block there are 144 blocks for 132 SMs, and one block keeps its SM busy: twelve SMs get two, and the others wait as long as
// the first took. Smaller blocks spread the rest better; cutting each block's centres into eleven slices gives every SM the same
// number of blocks, for a second kernel that adds the slices' sums in a fixed order. A pair of points takes nine issue slots:
// that is the lower bound.
#include <aisp/device/async_copy.cuh>
#include <aisp/device/exponential.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

constexpr unsigned large = 1024, small = 256;  // threads of a block, and queries
constexpr unsigned tile = 1024;                // centres in shared memory at a time
constexpr unsigned slices = 11;
constexpr double slots_per_pair = 9;

// A query's sum over the centres of the block's slice (blockIdx.y). Points are float4: three coordinates, scaled so that the
// exponential is 2^-(squared distance), and a centre's weight. One tile is copied while the one before it is in use.
template <unsigned threads>
__global__ __launch_bounds__(threads) void density_kernel(const float4* queries, const float4* centres, float* sums,
                                                          unsigned slice, unsigned count) {
  __shared__ float4 ring[2][tile];
  const unsigned query = blockIdx.x * threads + threadIdx.x;
  const float4* const from = centres + std::size_t{blockIdx.y} * slice;
  const auto copy = [&](unsigned first) {
    for (unsigned i = threadIdx.x; i < tile; i += threads) device::copy_async_16(&ring[first / tile % 2][i], from + first + i);
    device::commit_copies();
  };
  const float4 q = queries[query];
  float sum = 0;
  copy(0);
  for (unsigned first = 0; first < slice; first += tile) {
    if (first + tile < slice) copy(first + tile);
    else device::commit_copies();
    device::wait_copies<1>();
    __syncthreads();
    const float4* const points = ring[first / tile % 2];
    float part = 0;
#pragma unroll 8
    for (unsigned i = 0; i < tile; ++i) {
      const float4 c = points[i];
      const float dx = q.x - c.x, dy = q.y - c.y, dz = q.z - c.z;
      part = fmaf(c.w, device::exp2_approximate(-fmaf(dx, dx, fmaf(dy, dy, dz * dz))), part);
    }
    sum += part;
    __syncthreads();
  }
  sums[std::size_t{blockIdx.y} * count + query] = sum;
}

__global__ void add_slices_kernel(const float* parts, float* sums, unsigned count) {
  const unsigned query = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
#pragma unroll
  for (unsigned s = 0; s < slices; ++s) sum += parts[std::size_t{s} * count + query];
  sums[query] = sum;
}

class WaveQuantization final : public Workload {
 public:
  explicit WaveQuantization(Setup& setup)
      : blocks_{setup.size("blocks") > 0 ? setup.size("blocks") : multiprocessors() + std::max(multiprocessors() / 11, 1u)},
        queries_count_{blocks_ * large},
        centres_count_{setup.scaled(22528, slices * tile)},
        // Also as many as two whole waves of blocks take.
        queries_{setup.input<float>(4 * std::max(queries_count_, two_waves()), uniform(0, 3), {.name = "queries"})},
        centres_{setup.input<float>(4 * centres_count_, uniform(0, 3), {.name = "centres and their weights"})},
        sums_{setup.output<float>(queries_count_, {.name = "densities"})},
        parts_{setup.scratch<float>(std::max(queries_count_ * slices, two_waves()), {.name = "sums of slices"})} {}

  // Three differences, four operations for the squared distance, two for the weighted sum and the exponential.
  Cost cost() const override {
    const double pairs = static_cast<double>(queries_count_) * static_cast<double>(centres_count_);
    return {.flops = 10 * pairs,
            .bytes = static_cast<double>(queries_count_ * sizeof(float4) + centres_.bytes() + sums_.bytes()),
            .seconds = seconds_on_all_sms(pairs * slots_per_pair, 128)};
  }
  void compute_reference(Launch&) override {
    points_.resize(centres_.size());
    for (std::size_t i = 0; i < points_.size(); ++i) points_[i] = centres_.host(i);
  }
  double expected(std::size_t index) const override {
    const double x = queries_.host(4 * index), y = queries_.host(4 * index + 1), z = queries_.host(4 * index + 2);
    double sum = 0;
    for (std::size_t i = 0; i < points_.size(); i += 4) {
      const double dx = x - points_[i], dy = y - points_[i + 1], dz = z - points_[i + 2];
      sum += points_[i + 3] * std::exp2(-(dx * dx + dy * dy + dz * dz));
    }
    return sum;
  }
  void metrics(std::string_view, Metrics& metrics) override { launched_.report(metrics); }

  void block_per_1024(Launch& launch) { estimate<large>(launch, queries_count_, 1, sums_); }
  void small_blocks(Launch& launch) { estimate<small>(launch, queries_count_, 1, sums_); }
  void split_centres(Launch& launch) {
    estimate<large>(launch, queries_count_, slices, parts_);
    launch(add_slices_kernel, {static_cast<unsigned>(blocks_), large}, parts_, sums_, queries_count_);
  }
  // The baseline with one block an SM, and with two.
  void one_wave_exactly(Launch& launch) { estimate<large>(launch, two_waves() / 2, 1, parts_); }
  void two_waves_exactly(Launch& launch) { estimate<large>(launch, two_waves(), 1, parts_); }

 private:
  static std::size_t two_waves() { return std::size_t{2} * large * multiprocessors(); }
  template <unsigned threads>
  void estimate(Launch& launch, std::size_t queries, unsigned cut_into, float* to) {
    const Grid grid{dim3{static_cast<unsigned>(queries / threads), cut_into}, threads};
    launched_.launch(launch, density_kernel<threads>, grid, reinterpret_cast<const float4*>(queries_.get()),
                     reinterpret_cast<const float4*>(centres_.get()), to, centres_count_ / cut_into, queries);
  }

  std::size_t blocks_, queries_count_, centres_count_;
  Input<float> queries_, centres_;
  Output<float> sums_;
  Scratch<float> parts_;
  std::vector<double> points_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair wave_quantization{
    .teaches = "144 equal blocks on 132 SMs take as long as 264: cut the work so that every SM gets the same number of blocks",
    .lesson = "split_centres",
    .make = make<WaveQuantization>,
    .baseline = {.name = "block_per_1024", .run = call<&WaveQuantization::block_per_1024>},
    .optimized =
        variants({{.name = "small_blocks", .run = call<&WaveQuantization::small_blocks>},
                  {.name = "split_centres", .run = call<&WaveQuantization::split_centres>, .gains_over = "block_per_1024"}}),
    .controls =
        variants({{.name = "one_wave_exactly", .run = call<&WaveQuantization::one_wave_exactly>, .outputs = no_outputs},
                  {.name = "two_waves_exactly", .run = call<&WaveQuantization::two_waves_exactly>, .outputs = no_outputs}}),
    .bound = Bound::compute,
    // 22528 terms in tiles of 1024, each exponential off by two units of the last place.
    .tolerance = within(1e-5),
    .sizes = sizes({{.name = "blocks", .full = 0, .multiple = 1, .most = 4096, .scales = false}}),  // 0: for this GPU's SMs
    .sweep = cases({{"blocks_66", "blocks=66"},
                    {"blocks_132", "blocks=132"},
                    {"blocks_133", "blocks=133"},
                    {"blocks_144", "blocks=144"},
                    {"blocks_198", "blocks=198"},
                    {"blocks_264", "blocks=264"},
                    {"blocks_265", "blocks=265"}}),
    .edges = cases({{"blocks_1", "blocks=1"}, {"blocks_133", "blocks=133"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch08
