// SPDX-License-Identifier: Apache-2.0
// Adding a residual in bf16: y = x + r. What a memory delivers is bytes in flight over its latency (Little's law), and 2048
// threads of an SM with two 2-byte loads each hold 8 KB where about 20 KB are needed. Wider accesses bring more bytes with every
// load; so would more loads at once, at a price in instructions.
#include <cuda_bf16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <cub/device/device_transform.cuh>

#include <algorithm>
#include <tuple>

namespace aisp::ch07 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int threads = 256;
constexpr int columns = 8192;
constexpr int scalars = 8;  // of the control that has as many bytes in flight as the 16-byte accesses

// `bytes` of each tensor in one access.
template <int bytes>
struct alignas(bytes) Packet {
  unsigned words[bytes / 4];
};
template <>
struct alignas(2) Packet<2> {
  bf16 value;
};

__device__ bf16 add(bf16 a, bf16 b) { return __hadd(a, b); }
__device__ unsigned add(unsigned a, unsigned b) {
  const __nv_bfloat162 sum = __hadd2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const unsigned&>(sum);
}

template <int bytes>
__device__ Packet<bytes> load(const Packet<bytes>* from) {
  return *from;
}
template <int bytes>
__device__ void store(Packet<bytes>* to, const Packet<bytes>& value) {
  *to = value;
}
#if AISP_SM >= 100
template <>
__device__ Packet<32> load(const Packet<32>* from) {
  Packet<32> p;
  asm("ld.global.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
      : "=r"(p.words[0]), "=r"(p.words[1]), "=r"(p.words[2]), "=r"(p.words[3]), "=r"(p.words[4]), "=r"(p.words[5]),
        "=r"(p.words[6]), "=r"(p.words[7])
      : "l"(device::global_address(from)));
  return p;
}
template <>
__device__ void store(Packet<32>* to, const Packet<32>& p) {
  asm volatile("st.global.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"l"(device::global_address(to)), "r"(p.words[0]),
               "r"(p.words[1]), "r"(p.words[2]), "r"(p.words[3]), "r"(p.words[4]), "r"(p.words[5]), "r"(p.words[6]),
               "r"(p.words[7])
               : "memory");
}
#endif

// The grid covers the tensor, and each thread has one packet; fewer warps an SM, which only the sweep asks for, take turns.
template <int bytes>
__global__ __launch_bounds__(threads) void add_kernel(const Packet<bytes>* x, const Packet<bytes>* r, Packet<bytes>* y,
                                                      unsigned count) {
#pragma unroll 1
  for (unsigned i = blockIdx.x * threads + threadIdx.x; i < count; i += gridDim.x * threads) {
    const Packet<bytes> a = load(x + i), b = load(r + i);
    Packet<bytes> sum;
    if constexpr (bytes == 2) sum.value = add(a.value, b.value);
    else
      for (int word = 0; word < bytes / 4; ++word) sum.words[word] = add(a.words[word], b.words[word]);
    store(y + i, sum);
  }
}

__global__ __launch_bounds__(threads) void eight_scalars_kernel(const bf16* x, const bf16* r, bf16* y, unsigned count) {
#pragma unroll 1
  for (unsigned i = blockIdx.x * threads * scalars + threadIdx.x; i < count; i += gridDim.x * threads * scalars) {
    bf16 a[scalars], b[scalars];
#pragma unroll
    for (int k = 0; k < scalars; ++k) a[k] = x[i + k * threads], b[k] = r[i + k * threads];
#pragma unroll
    for (int k = 0; k < scalars; ++k) y[i + k * threads] = add(a[k], b[k]);
  }
}

struct AddBf16 {
  __device__ bf16 operator()(bf16 a, bf16 b) const { return add(a, b); }
};

class CopyScalar final : public Workload {
 public:
  explicit CopyScalar(Setup& setup)
      : count_{setup.scaled(16384) * columns},
        warps_{setup.size("warps")},
        x_{setup.input<bf16>(count_, uniform(-1, 1), {.name = "x"})},
        r_{setup.input<bf16>(count_, uniform(-1, 1), {.name = "residual"})},
        y_{setup.output<bf16>(count_, {.name = "y"})} {}

  Cost cost() const override {
    return {.flops = static_cast<double>(count_), .bytes = static_cast<double>(x_.bytes() + r_.bytes() + y_.bytes())};
  }
  // Float64 holds the sum of two bf16 of these magnitudes; rounding to fp32 first changes no bit, for what lies between the two
  // formats is either exact or far from the middle between two bf16.
  double expected(std::size_t i) const override {
    return static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(x_.host(i) + r_.host(i)))));
  }

  template <int bytes>
  void packets(Launch& launch) {
    const std::size_t packets = count_ * sizeof(bf16) / bytes;
    launch(add_kernel<bytes>, {blocks(packets), threads}, reinterpret_cast<const Packet<bytes>*>(x_.get()),
           reinterpret_cast<const Packet<bytes>*>(r_.get()), reinterpret_cast<Packet<bytes>*>(y_.get()), packets);
  }
  void eight_scalars(Launch& launch) { launch(eight_scalars_kernel, {blocks(count_ / scalars), threads}, x_, r_, y_, count_); }
  void cub_transform(Launch& launch) {
    check(cub::DeviceTransform::Transform(::cuda::std::make_tuple(x_.get(), r_.get()), y_.get(), static_cast<int>(count_),
                                          AddBf16{}, launch.stream));
  }

 private:
  // For so many threads with work; 64 warps are all that an SM holds, and then every thread has one packet.
  unsigned blocks(std::size_t work) const {
    const auto all = static_cast<unsigned>(work / threads);
    return warps_ == 64 ? all : std::min(all, multiprocessors() * static_cast<unsigned>(warps_) * 32 / threads);
  }

  std::size_t count_, warps_;  // warps: of an SM
  Input<bf16> x_, r_;
  Output<bf16> y_;
};

}  // namespace

extern constinit const Pair copy_scalar{
    .teaches = "two-byte accesses leave too few bytes in flight to fill the memory's latency; wide ones fill it",
    .lesson = "vec16_bytes",
    .make = make<CopyScalar>,
    .baseline = {.name = "vec2_bytes", .run = call<&CopyScalar::packets<2>>},
    .optimized = variants({{.name = "vec4_bytes", .run = call<&CopyScalar::packets<4>>},
                           {.name = "vec16_bytes", .run = call<&CopyScalar::packets<16>>},
                           {.name = "vec32_bytes", .run = call<&CopyScalar::packets<32>>, .needs = {.min_sm = 100}}}),
    .controls = variants({{.name = "eight_scalars", .run = call<&CopyScalar::eight_scalars>},
                          {.name = "vec8_bytes", .run = call<&CopyScalar::packets<8>>}}),
    .libraries = variants({{.name = "cub_device_transform", .run = call<&CopyScalar::cub_transform>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "warps", .full = 64, .multiple = 8, .most = 64, .scales = false}}),
    .sweep = cases({{"warps_8", "warps=8"},
                    {"warps_16", "warps=16"},
                    {"warps_24", "warps=24"},
                    {"warps_32", "warps=32"},
                    {"warps_48", "warps=48"},
                    {"warps_64", "warps=64"}}),
    .edges = cases({{"warps_8", "warps=8"}, {"warps_24", "warps=24"}}),
};

}  // namespace aisp::ch07
