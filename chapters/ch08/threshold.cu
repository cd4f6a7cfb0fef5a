// SPDX-License-Identifier: Apache-2.0
// Companding with a dead zone, as audio coders do it: samples up to t become 0, others sign(x) (scale |x|^0.75 + offset), with
// another scale and offset above u. Written as five cases, each has its own powf, and nearly every warp has lanes in all of them,
// so it runs them all. The cases differ in constants and sign only: one powf of |x|, constants by selection, and no lane waits.
#include <aisp/pair.hpp>

#include <cmath>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

constexpr int threads = 256;
constexpr int loudest =
    4096;  // samples are whole numbers from -4096 to 4096, and so are the thresholds: they occur as values, too

struct Line {
  float scale, offset;
};
struct Curve {
  float t, u;
  Line low, high;  // up to u, and above it
};
constexpr Curve audio{2048, 3072, {1.5f, 3.0f}, {1.25f, 111.0f}};

// Follows the specification case by case.
__device__ float by_cases(float x, const Curve& curve) {
  if (x > curve.u) return curve.high.scale * powf(x, 0.75f) + curve.high.offset;
  if (x > curve.t) return curve.low.scale * powf(x, 0.75f) + curve.low.offset;
  if (x >= -curve.t) return 0;
  if (x >= -curve.u) return -(curve.low.scale * powf(-x, 0.75f) + curve.low.offset);
  return -(curve.high.scale * powf(-x, 0.75f) + curve.high.offset);
}

__device__ float by_selection(float x, const Curve& curve) {
  const float magnitude = fabsf(x);
  const bool high = magnitude > curve.u;
  const float scale = high ? curve.high.scale : curve.low.scale;
  const float offset = high ? curve.high.offset : curve.low.offset;
  const float companded = scale * powf(magnitude, 0.75f) + offset;
  return magnitude > curve.t ? copysignf(companded, x) : 0.0f;
}

__global__ __launch_bounds__(threads) void ladder_kernel(const float* in, float* out, Curve curve) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  out[i] = by_cases(in[i], curve);
}

__global__ __launch_bounds__(threads) void predicated_kernel(const float* in, float* out, Curve curve) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  out[i] = by_selection(in[i], curve);
}

__global__ __launch_bounds__(threads) void predicated_vec4_kernel(const float4* in, float4* out, Curve curve) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  const float4 x = in[i];
  out[i] = make_float4(by_selection(x.x, curve), by_selection(x.y, curve), by_selection(x.z, curve), by_selection(x.w, curve));
}

class Threshold final : public Workload {
 public:
  explicit Threshold(Setup& setup)
      : count_{setup.scaled(std::size_t{128} << 20, 4 * threads)},
        in_{setup.input<float>(count_, integers(-loudest, loudest), {.name = "samples"})},
        ascending_{setup.input<float>(count_, sequence(-static_cast<std::int64_t>(count_ / 2)), {.name = "ascending samples"})},
        out_{setup.output<float>(count_, {.name = "companded"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t index) const override {
    const double x = in_.host(index), magnitude = std::abs(x);
    if (magnitude <= audio.t) return 0;
    const Line& line = magnitude > audio.u ? audio.high : audio.low;
    return std::copysign(line.scale * std::pow(magnitude, 0.75) + line.offset, x);
  }
  void metrics(std::string_view, Metrics& metrics) override { launched_.report(metrics); }

  void branch_ladder(Launch& launch) { run(launch, ladder_kernel, in_, audio); }
  void predicated(Launch& launch) { run(launch, predicated_kernel, in_, audio); }
  void predicated_vec4(Launch& launch) {
    launched_.launch(launch, predicated_vec4_kernel, {blocks() / 4, threads}, reinterpret_cast<const float4*>(in_.get()),
                     reinterpret_cast<float4*>(out_.get()), audio);
  }
  // The ladder where the lanes of a warp agree, on thresholds at the same shares of the samples: what divergence costs.
  void ladder_on_ascending(Launch& launch) {
    const float wider = static_cast<float>(count_) / (2 * loudest);
    Curve curve = audio;
    curve.t *= wider;
    curve.u *= wider;
    run(launch, ladder_kernel, ascending_, curve);
  }

 private:
  unsigned blocks() const { return static_cast<unsigned>(count_ / threads); }
  void run(Launch& launch, void (*kernel)(const float*, float*, Curve), const float* in, const Curve& curve) {
    launched_.launch(launch, kernel, {blocks(), threads}, in, out_, curve);
  }

  std::size_t count_;
  Input<float> in_, ascending_;
  Output<float> out_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair threshold{
    .teaches =
        "where branches differ in constants and sign only, compute once on the magnitude and select: no lane waits for others",
    .lesson = "predicated",
    .make = make<Threshold>,
    .baseline = {.name = "branch_ladder", .run = call<&Threshold::branch_ladder>},
    .optimized = variants({{.name = "predicated", .run = call<&Threshold::predicated>},
                           {.name = "predicated_vec4", .run = call<&Threshold::predicated_vec4>}}),
    .controls = variants({{.name = "ladder_on_ascending", .run = call<&Threshold::ladder_on_ascending>, .outputs = no_outputs}}),
    .bound = Bound::memory,
    // powf is within 4 units of the last place, 2.4e-7 at most.
    .tolerance = within(1e-6),
    .reference_samples = 65536,  // some of them at a threshold, or next to one
};

}  // namespace aisp::ch08
