// SPDX-License-Identifier: Apache-2.0
// A density estimate in one dimension: four billion pairs of a query and a centre, one exponential each. Special-function units
// take 16 exponentials a cycle and SM, FMA units 128 operations, and a pair has only three of those: the FMA units idle. An
// exponential as a polynomial costs eight of their slots and none of the special-function units'. With every fourth one both have
// the same to do, and a pair takes six issue slots (counted in the compiled loop): that is the lower bound.
#include <aisp/device/exponential.cuh>
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

constexpr unsigned threads = 256, queries_per_thread = 4, queries_per_block = threads * queries_per_thread;
constexpr unsigned slices = 32;  // of the centres: with half as many blocks of queries as SMs, every SM gets 16 blocks
constexpr int round_of = 32;     // pairs among which a share is spread: eight centres and four queries
constexpr double slots_per_pair = 6;

struct Centres {  // two of them
  float x0, w0, x1, w1;
};

enum class Exponential : std::uint8_t { instruction, intrinsic };

// 2^x for -126 < x <= 0 without a special-function unit: x = whole + part with |part| <= 1/2, a minimax polynomial of degree five
// for 2^part (off by 1.5e-7 at most), and the whole number added to its exponent.
__device__ __forceinline__ float exp2_polynomial(float x) {
  constexpr float to_whole = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number, in the lowest bits
  const float shifted = x + to_whole;
  const float part = x - (shifted - to_whole);
  float y = 0x1.5c08e6p-10f;
  y = fmaf(y, part, 0x1.3d0c54p-7f);
  y = fmaf(y, part, 0x1.c6b6e4p-5f);
  y = fmaf(y, part, 0x1.ebf918p-3f);
  y = fmaf(y, part, 0x1.62e428p-1f);
  y = fmaf(y, part, 1.0000001f);
  return __uint_as_float(__float_as_uint(y) + (__float_as_uint(shifted) << 23));
}

// Whether pair number `pair` of a round is one of `share`, spread evenly.
__device__ constexpr bool chosen(int pair, int share) { return (pair + 1) * share / round_of != pair * share / round_of; }

// Adds up what the centres of slice blockIdx.y weigh at the block's queries; `share` of each 32 pairs go through the polynomial.
template <int share, Exponential how = Exponential::instruction>
__global__ __launch_bounds__(threads) void density_kernel(const float* queries, const Centres* centres, float* parts,
                                                          unsigned slice, unsigned count) {
  extern __shared__ Centres shared[];
  const unsigned first = blockIdx.x * queries_per_block + threadIdx.x;
  for (unsigned i = threadIdx.x; i < slice / 2; i += threads) shared[i] = centres[std::size_t{blockIdx.y} * (slice / 2) + i];
  float q[queries_per_thread], sums[queries_per_thread] = {};
#pragma unroll
  for (unsigned k = 0; k < queries_per_thread; ++k) q[k] = queries[first + k * threads];
  __syncthreads();
  const auto weigh = [&](int pair, float distance) {
    if (how == Exponential::intrinsic) return __expf(-0.6931472f * distance * distance);
    return chosen(pair, share) ? exp2_polynomial(-distance * distance) : device::exp2_approximate(-distance * distance);
  };
  for (unsigned i = 0; i < slice / 2; i += round_of / queries_per_thread / 2) {
#pragma unroll
    for (int c = 0; c < round_of / static_cast<int>(queries_per_thread) / 2; ++c) {
      const Centres two = shared[i + c];
#pragma unroll
      for (int k = 0; k < static_cast<int>(queries_per_thread); ++k) {
        sums[k] = fmaf(two.w0, weigh(8 * c + k, q[k] - two.x0), sums[k]);
        sums[k] = fmaf(two.w1, weigh(8 * c + 4 + k, q[k] - two.x1), sums[k]);
      }
    }
  }
#pragma unroll
  for (unsigned k = 0; k < queries_per_thread; ++k) parts[std::size_t{blockIdx.y} * count + first + k * threads] = sums[k];
}

__global__ void add_slices_kernel(const float* parts, float* sums, unsigned count) {
  const unsigned query = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
#pragma unroll
  for (unsigned s = 0; s < slices; ++s) sum += parts[std::size_t{s} * count + query];
  sums[query] = sum;
}

using Kernel = void (*)(const float*, const Centres*, float*, unsigned, unsigned);

class SpecialFunctions final : public Workload {
 public:
  explicit SpecialFunctions(Setup& setup)
      : share_{setup.size("share")},
        queries_count_{std::size_t{queries_per_block} * ((multiprocessors() + 1) / 2)},
        centres_count_{setup.scaled(65536, slices * 8)},
        queries_{setup.input<float>(queries_count_, uniform(0, 8), {.name = "queries"})},
        // A centre and its weight: exponents reach -64.
        centres_{setup.input<float>(2 * centres_count_, uniform(0, 8), {.name = "centres and their weights"})},
        sums_{setup.output<float>(queries_count_, {.name = "densities"})},
        parts_{setup.scratch<float>(queries_count_ * slices, {.name = "sums of slices"})} {}

  Cost cost() const override {
    const double pairs = static_cast<double>(queries_count_) * static_cast<double>(centres_count_);
    return {.flops = 4 * pairs,
            .bytes = static_cast<double>(queries_.bytes() + centres_.bytes() + sums_.bytes()),
            .seconds = seconds_on_all_sms(pairs * slots_per_pair, 128)};
  }
  void compute_reference(Launch&) override {
    points_.resize(centres_.size());
    for (std::size_t i = 0; i < points_.size(); ++i) points_[i] = centres_.host(i);
  }
  double expected(std::size_t index) const override {
    const double query = queries_.host(index);
    double sum = 0;
    for (std::size_t i = 0; i < points_.size(); i += 2)
      sum += points_[i + 1] * std::exp2(-(query - points_[i]) * (query - points_[i]));
    return sum;
  }
  void metrics(std::string_view, Metrics& metrics) override { launched_.report(metrics); }

  void special_units(Launch& launch) { estimate(launch, density_kernel<0>); }
  void quarter_polynomial(Launch& launch) { estimate(launch, density_kernel<8>); }
  void choose(Launch& launch) {
    if (!chosen_) chosen_ = fastest(launch.stream, candidates.size(), [&](std::size_t i) { estimate(launch, candidates[i]); });
  }
  void swept_share(Launch& launch) { estimate(launch, candidates.at(chosen_.value())); }
  void intrinsic_expf(Launch& launch) { estimate(launch, density_kernel<0, Exponential::intrinsic>); }
  void polynomial_share(Launch& launch) { estimate(launch, eighths.at(share_ / 4 - 1)); }

 private:
  static constexpr std::array<Kernel, 6> candidates{density_kernel<4>, density_kernel<6>,  density_kernel<7>,
                                                    density_kernel<8>, density_kernel<10>, density_kernel<16>};
  static constexpr std::array<Kernel, 8> eighths{density_kernel<4>,  density_kernel<8>,  density_kernel<12>, density_kernel<16>,
                                                 density_kernel<20>, density_kernel<24>, density_kernel<28>, density_kernel<32>};
  void estimate(Launch& launch, Kernel kernel) {
    const std::size_t slice = centres_count_ / slices;
    const Grid grid{dim3{static_cast<unsigned>(queries_count_ / queries_per_block), slices}, threads,
                    slice * sizeof(Centres) / 2};
    launched_.launch(launch, kernel, grid, queries_, reinterpret_cast<const Centres*>(centres_.get()), parts_, slice,
                     queries_count_);
    launch(add_slices_kernel, {static_cast<unsigned>(queries_count_ / threads), threads}, parts_, sums_, queries_count_);
  }

  std::size_t share_, queries_count_, centres_count_;
  Input<float> queries_, centres_;
  Output<float> sums_;
  Scratch<float> parts_;
  std::vector<double> points_;
  std::optional<std::size_t> chosen_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair special_functions{
    .teaches = "where exponentials are the limit, a polynomial on the idle FMA units takes a share of them",
    .lesson = "quarter_polynomial",
    .make = make<SpecialFunctions>,
    .baseline = {.name = "special_units", .run = call<&SpecialFunctions::special_units>},
    .optimized = variants({{.name = "quarter_polynomial", .run = call<&SpecialFunctions::quarter_polynomial>},
                           {.name = "swept_share",
                            .run = call<&SpecialFunctions::swept_share>,
                            .prepare = call<&SpecialFunctions::choose>,
                            .best_of = {"quarter_polynomial"}}}),
    .controls = variants({{.name = "intrinsic_expf", .run = call<&SpecialFunctions::intrinsic_expf>},
                          {.name = "polynomial_share", .run = call<&SpecialFunctions::polynomial_share>}}),
    .bound = Bound::compute,
    // 2048 terms a slice, each exponential off by two units of the last place.
    .tolerance = within(1e-5),
    // The share of the control polynomial_share, in 32 pairs; the baseline has none.
    .sizes = sizes({{.name = "share", .full = 32, .multiple = 4, .most = 32, .scales = false}}),
    .sweep = cases({{"share_4", "share=4"},
                    {"share_8", "share=8"},
                    {"share_12", "share=12"},
                    {"share_16", "share=16"},
                    {"share_20", "share=20"},
                    {"share_24", "share=24"},
                    {"share_28", "share=28"},
                    {"share_32", "share=32"}}),
    .edges = cases({{"share_4", "share=4"}, {"share_12", "share=12"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch08
