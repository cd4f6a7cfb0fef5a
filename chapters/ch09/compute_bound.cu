// SPDX-License-Identifier: Apache-2.0
// Gravity among all pairs of 65,536 bodies: 77 GFLOP on a megabyte of data, so memory has nothing to do. What counts is how many
// instructions an interaction takes. A root and a division as IEEE 754 wants them are half of them; the reciprocal root of the
// special-function units is one. With four bodies a thread, what is read of the other body serves four interactions, and 13
// instructions are left of each: that is the lower bound.
#include <aisp/pair.hpp>

#include <cmath>
#include <vector>

namespace aisp::ch09 {
namespace {

constexpr unsigned threads = 256, block_threads = 128;  // block_threads: of the kernel with several bodies a thread
constexpr unsigned tile = 256;                          // bodies in shared memory at a time
constexpr unsigned unrolled = 8;                        // interactions of a thread's body in a row; divides a tile
constexpr unsigned bodies_per_thread = 4;
// Slices of the other bodies, so that 65,536 bodies make 32 blocks for each of 132 SMs.
constexpr unsigned slices = 33;
constexpr float softening = 1e-3f;  // squared; bounds the force between near bodies, and makes that of a body on itself zero
constexpr double slots_per_interaction = 13, flops_per_interaction = 18;

// Turns a mass and a squared distance into mass / distance^3.
struct RootAndDivision {
  static __device__ __forceinline__ float weight(float mass, float squared) {
    return mass * (1.0f / sqrtf(squared * squared * squared));
  }
};
// rsqrtf without the three instructions for numbers near zero, which a softened distance is not.
struct ReciprocalRoot {
  static __device__ __forceinline__ float weight(float mass, float squared) {
    float root;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(squared));
    return mass * root * (root * root);
  }
};

struct Vector3 {
  float x = 0, y = 0, z = 0;
};

// Adds to `sum` what `other`, with its mass in w, does to a body at `at`.
template <class Inverse>
__device__ __forceinline__ void interact(const Vector3& at, const float4& other, Vector3& sum) {
  const float x = other.x - at.x, y = other.y - at.y, z = other.z - at.z;
  const float squared = fmaf(x, x, fmaf(y, y, fmaf(z, z, softening)));
  const float weight = Inverse::weight(other.w, squared);
  sum.x = fmaf(weight, x, sum.x), sum.y = fmaf(weight, y, sum.y), sum.z = fmaf(weight, z, sum.z);
}

__device__ __forceinline__ Vector3 place_of(const float4& body) { return {body.x, body.y, body.z}; }

// Three planes of `count`: all accelerations along x, then y, then z.
__device__ __forceinline__ void store(float* to, unsigned body, unsigned count, const Vector3& sum) {
  to[body] = sum.x, to[body + count] = sum.y, to[body + 2 * count] = sum.z;
}

template <class Inverse>
__global__ __launch_bounds__(threads) void body_per_thread_kernel(const float4* __restrict__ bodies,
                                                                  float* __restrict__ accelerations, unsigned count) {
  const unsigned body = blockIdx.x * threads + threadIdx.x;
  if (body >= count) return;
  const Vector3 at = place_of(bodies[body]);
  Vector3 sum;
#pragma unroll 8
  for (unsigned i = 0; i < count; ++i) interact<Inverse>(at, bodies[i], sum);
  store(accelerations, body, count, sum);
}

// Bodies first ... last - 1 pass through shared memory; use(other) sees each of them, and after them up to seven without mass.
template <unsigned block, class Use>
__device__ __forceinline__ void for_staged(const float4* __restrict__ bodies, unsigned first, unsigned last, Use use) {
  __shared__ float4 staged[tile];
  for (; first < last; first += tile) {
    __syncthreads();
    for (unsigned i = threadIdx.x; i < tile; i += block)
      staged[i] = first + i < last ? bodies[first + i] : make_float4(0, 0, 0, 0);
    __syncthreads();
    const unsigned here = min(tile, last - first);
    for (unsigned i = 0; i < here; i += unrolled)
#pragma unroll
      for (unsigned k = 0; k < unrolled; ++k) use(staged[i + k]);
  }
}

template <class Inverse>
__global__ __launch_bounds__(threads) void tiled_kernel(const float4* __restrict__ bodies, float* __restrict__ accelerations,
                                                        unsigned count) {
  const unsigned body = blockIdx.x * threads + threadIdx.x;
  const Vector3 at = place_of(bodies[min(body, count - 1)]);
  Vector3 sum;
  for_staged<threads>(bodies, 0, count, [&](const float4& other) { interact<Inverse>(at, other, sum); });
  if (body < count) store(accelerations, body, count, sum);
}

// Adds the forces of slice blockIdx.y on the block's 512 bodies, of which a thread has four.
__global__ __launch_bounds__(block_threads) void four_bodies_kernel(const float4* __restrict__ bodies, float* __restrict__ parts,
                                                                    unsigned count) {
  const unsigned body = blockIdx.x * block_threads * bodies_per_thread + threadIdx.x;
  const auto begin = [&](unsigned slice) { return static_cast<unsigned>(std::size_t{count} * slice / slices); };
  Vector3 at[bodies_per_thread], sums[bodies_per_thread];
#pragma unroll
  for (unsigned k = 0; k < bodies_per_thread; ++k) at[k] = place_of(bodies[min(body + k * block_threads, count - 1)]);
  for_staged<block_threads>(bodies, begin(blockIdx.y), begin(blockIdx.y + 1), [&](const float4& other) {
#pragma unroll
    for (unsigned k = 0; k < bodies_per_thread; ++k) interact<ReciprocalRoot>(at[k], other, sums[k]);
  });
#pragma unroll
  for (unsigned k = 0; k < bodies_per_thread; ++k)
    if (body + k * block_threads < count)
      store(parts + std::size_t{blockIdx.y} * 3 * count, body + k * block_threads, count, sums[k]);
}

__global__ __launch_bounds__(threads) void add_slices_kernel(const float* __restrict__ parts, float* __restrict__ accelerations,
                                                             unsigned components) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= components) return;
  float sum = 0;
#pragma unroll
  for (unsigned s = 0; s < slices; ++s) sum += parts[std::size_t{s} * components + i];
  accelerations[i] = sum;
}

class ComputeBound final : public Workload {
 public:
  explicit ComputeBound(Setup& setup)
      : count_{setup.size("bodies")},
        // Places in a cube of side 1, and masses.
        bodies_{setup.input<float>(4 * count_, uniform(0.5f, 1.5f), {.name = "bodies"})},
        accelerations_{setup.output<float>(3 * count_, {.name = "accelerations"})},
        parts_{setup.scratch<float>(3 * count_ * slices, {.name = "sums of slices"})} {}

  Cost cost() const override {
    const double pairs = static_cast<double>(count_) * static_cast<double>(count_);
    return {.flops = flops_per_interaction * pairs,
            .bytes = static_cast<double>(bodies_.bytes() + accelerations_.bytes()),
            .issue_slots = slots_per_interaction * pairs / 32,
            .special_functions = pairs};
  }
  void compute_reference(Launch&) override {
    bodies_on_host_.resize(bodies_.size());
    for (std::size_t i = 0; i < bodies_on_host_.size(); ++i) bodies_on_host_[i] = bodies_.host(i);
  }
  double expected(std::size_t index) const override {
    const std::size_t axis = index / count_;
    const double* const at = &bodies_on_host_[4 * (index % count_)];
    double sum = 0;
    for (std::size_t j = 0; j < count_; ++j) {
      const double* const other = &bodies_on_host_[4 * j];
      double squared = static_cast<double>(softening);
      for (std::size_t k = 0; k < 3; ++k) squared += (other[k] - at[k]) * (other[k] - at[k]);
      sum += other[3] * (other[axis] - at[axis]) / (squared * std::sqrt(squared));
    }
    return sum;
  }

  void root_and_division(Launch& launch) {
    launch(body_per_thread_kernel<RootAndDivision>, grid(), bodies(), accelerations_, count_);
  }
  void rsqrt(Launch& launch) { launch(body_per_thread_kernel<ReciprocalRoot>, grid(), bodies(), accelerations_, count_); }
  void rsqrt_tiled(Launch& launch) { launch(tiled_kernel<ReciprocalRoot>, grid(), bodies(), accelerations_, count_); }
  void tiled_ieee(Launch& launch) { launch(tiled_kernel<RootAndDivision>, grid(), bodies(), accelerations_, count_); }
  void register_blocked(Launch& launch) {
    launch(four_bodies_kernel, {dim3{blocks_of(count_, block_threads * bodies_per_thread), slices}, block_threads}, bodies(),
           parts_, count_);
    launch(add_slices_kernel, {blocks_of(3 * count_, threads), threads}, parts_, accelerations_, 3 * count_);
  }

 private:
  static unsigned blocks_of(std::size_t count, unsigned each) { return static_cast<unsigned>((count + each - 1) / each); }
  Grid grid() const { return {blocks_of(count_, threads), threads}; }
  const float4* bodies() const { return reinterpret_cast<const float4*>(bodies_.get()); }

  std::size_t count_;
  Input<float> bodies_;
  Output<float> accelerations_;
  Scratch<float> parts_;
  std::vector<double> bodies_on_host_;
};

}  // namespace

extern constinit const Pair compute_bound{
    .teaches = "beyond the ridge no byte counts, but instructions do: cheaper ones first, and then loads that return sooner",
    .lesson = "rsqrt",
    .make = make<ComputeBound>,
    .baseline = {.name = "root_and_division", .run = call<&ComputeBound::root_and_division>},
    .optimized =
        variants({{.name = "rsqrt", .run = call<&ComputeBound::rsqrt>, .kernels = {.local_bytes = 0}},
                  {.name = "rsqrt_tiled", .run = call<&ComputeBound::rsqrt_tiled>, .kernels = {.local_bytes = 0}},
                  {.name = "register_blocked", .run = call<&ComputeBound::register_blocked>, .kernels = {.local_bytes = 0}}}),
    // The memory tuning that everybody tries first, with the baseline's arithmetic.
    .controls = variants({{.name = "tiled_ieee", .run = call<&ComputeBound::tiled_ieee>}}),
    .bound = Bound::compute,
    // Chains of 65,536 additions err by 4e-6; rsqrt adds 2 units of the last place, weights in half precision would add 3e-4.
    .tolerance = within(1e-5),
    // Four times as many additions err by twice as much: 8e-6.
    .sizes = sizes({{.name = "bodies", .full = 65536, .most = 1 << 18}}),
    .edges = cases({{"two_bodies", "bodies=2"}, {"less_than_a_tile", "bodies=33"}, {"odd", "bodies=1031"}}),
    .reference_samples = 1024,
};

}  // namespace aisp::ch09
