// SPDX-License-Identifier: Apache-2.0
// c = a + b does one addition for 12 bytes: an arithmetic intensity of 1/12 where the ridge lies near 12, so the time is the
// bytes over the bandwidth. Wide accesses only remove what separates the plain loop from that roof.
// Storing the same numbers as bf16 moves half the bytes, and that alone halves the time, at the price of an error that is shown.
#include <cuda_bf16.h>
#include <aisp/pair.hpp>

namespace aisp::ch01 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int threads = 256;
constexpr int wide_threads = 1024;                              // of the vectorized kernel
constexpr std::size_t granule = std::size_t{wide_threads} * 8;  // elements of a block with bf16, two blocks with fp32

__global__ __launch_bounds__(threads) void scalar_kernel(const float* a, const float* b, float* c, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) c[i] = a[i] + b[i];
}

__device__ float4 add(const float4& x, const float4& y) { return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w); }

// bf16 is only how the numbers are stored: it is the upper half of fp32, they are added as such, and each sum is rounded once.
__device__ unsigned add_pair(unsigned x, unsigned y) {
  const float low = __uint_as_float(x << 16) + __uint_as_float(y << 16);
  const float high = __uint_as_float(x & 0xFFFF0000) + __uint_as_float(y & 0xFFFF0000);
  const __nv_bfloat162 sum = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const unsigned&>(sum);
}
__device__ uint4 add(const uint4& x, const uint4& y) {
  return make_uint4(add_pair(x.x, y.x), add_pair(x.y, y.y), add_pair(x.z, y.z), add_pair(x.w, y.w));
}

// Two 16-byte loads a thread and as many threads as fit: that is enough in flight, and blocks that end soon leave no long tail.
// No cache hints: nothing is used twice, but where L2 is full of others' data, as here, loads that ask for early eviction run
// against it (0.80 ms against 0.73 ms on an H200).
template <class Packet>
__global__ __launch_bounds__(wide_threads) void vectorized_kernel(const Packet* a, const Packet* b, Packet* c) {
  const std::size_t i = std::size_t{blockIdx.x} * wide_threads + threadIdx.x;
  c[i] = add(a[i], b[i]);
}

__global__ __launch_bounds__(threads) void narrow_kernel(const float2* in, __nv_bfloat162* out) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  out[i] = __float22bfloat162_rn(in[i]);
}

class RooflineVectorAdd final : public Workload {
 public:
  explicit RooflineVectorAdd(Setup& setup)
      : count_{setup.scaled(std::size_t{256} << 20, granule)},
        a_{setup.input<float>(count_, uniform(-1, 1), {.name = "a", .constant = true})},
        b_{setup.input<float>(count_, uniform(-1, 1), {.name = "b", .constant = true})},
        c_{setup.output<float>(count_, {.name = "c"})},
        a_stored_{setup.scratch<bf16>(count_, {.name = "a as bf16"})},
        b_stored_{setup.scratch<bf16>(count_, {.name = "b as bf16"})},
        c_stored_{setup.output<bf16>(count_, {.name = "c as bf16"})} {}

  Cost cost() const override { return cost_of(sizeof(float)); }
  Cost variant_cost(std::string_view variant) const override {
    return cost_of(variant == "bf16_storage" ? sizeof(bf16) : sizeof(float));
  }
  // Both outputs are held against the fp32 sum of the operands; bf16_storage also against the sum of what it stores of them.
  double expected_output(int, std::size_t i) const override {
    return static_cast<float>(a_.host(i)) + static_cast<float>(b_.host(i));
  }
  double expected_quantized(std::string_view, int, std::size_t i) const override {
    return stored(a_.host(i)) + stored(b_.host(i));
  }

  void scalar(Launch& launch) {
    scalar_kernel<<<static_cast<unsigned>(count_ / threads), threads, 0, launch.stream>>>(a_, b_, c_, count_);
    check(cudaGetLastError());
  }
  void vectorized(Launch& launch) { stream_through<float4>(launch, a_.get(), b_.get(), c_.get()); }
  // A program that stores bf16 has its operands in that form already: making them is set-up.
  void store_as_bf16(Launch& launch) {
    narrow(launch, a_, a_stored_);
    narrow(launch, b_, b_stored_);
  }
  void bf16_storage(Launch& launch) { stream_through<uint4>(launch, a_stored_.get(), b_stored_.get(), c_stored_.get()); }

 private:
  static double stored(double value) {
    return static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(value))));
  }
  Cost cost_of(std::size_t element_bytes) const {
    return {.flops = static_cast<double>(count_), .bytes = 3.0 * static_cast<double>(count_ * element_bytes)};
  }
  template <class Packet, class T>
  void stream_through(Launch& launch, const T* a, const T* b, T* c) const {
    const auto blocks = static_cast<unsigned>(count_ * sizeof(T) / sizeof(Packet) / wide_threads);
    vectorized_kernel<<<blocks, wide_threads, 0, launch.stream>>>(
        reinterpret_cast<const Packet*>(a), reinterpret_cast<const Packet*>(b), reinterpret_cast<Packet*>(c));
    check(cudaGetLastError());
  }
  void narrow(Launch& launch, const float* in, bf16* out) const {
    narrow_kernel<<<static_cast<unsigned>(count_ / 2 / threads), threads, 0, launch.stream>>>(
        reinterpret_cast<const float2*>(in), reinterpret_cast<__nv_bfloat162*>(out));
    check(cudaGetLastError());
  }

  std::size_t count_;
  Input<float> a_, b_;
  Output<float> c_;
  Scratch<bf16> a_stored_, b_stored_;
  Output<bf16> c_stored_;
};

constexpr std::uint32_t fp32_output = 1, bf16_output = 2;

}  // namespace

extern constinit const Pair roofline_vector_add{
    .teaches = "at an arithmetic intensity of 1/12 the math is free: time follows bytes, so halving the bytes halves the time",
    .lesson = "bf16_storage",
    .make = make<RooflineVectorAdd>,
    .baseline = {.name = "scalar", .run = call<&RooflineVectorAdd::scalar>, .outputs = fp32_output},
    .optimized = variants({{.name = "vectorized", .run = call<&RooflineVectorAdd::vectorized>, .outputs = fp32_output},
                           {.name = "bf16_storage",
                            .run = call<&RooflineVectorAdd::bf16_storage>,
                            .prepare = call<&RooflineVectorAdd::store_as_bf16>,
                            .changes_precision = true,
                            // One rounding to 8 bits: at most 3.9e-3 of an element, and less than half of that in the norm.
                            .tolerance = within(2.5e-3, 4e-3),
                            .outputs = bf16_output}}),
    .bound = Bound::memory,
    .tolerance = exact,
};

}  // namespace aisp::ch01
