// SPDX-License-Identifier: Apache-2.0
// y[i] = x[i] + table[index[i]]: a table of 32 MB would fit into L2, and each of its rows is read 32 times. Between two reads of
// a row tens of megabytes of x and y pass through, and still L2 keeps most of the table by itself. Hints at single accesses say
// which of them to keep, and so does a window over the table; both gain little. L2 can be set aside for windows, but what is set
// aside is lost to all other accesses: with set_aside=1 every variant takes longer than the default policy does without.
#include <aisp/device/vector.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <optional>

namespace aisp::ch07 {
namespace {

constexpr int threads = 256;
constexpr int row_values = 32, row_vectors = row_values / 4;  // eight lanes have a row
constexpr int in_flight = 4;                                  // rows of a thread, requested before the first is used
constexpr std::size_t block_rows = std::size_t{threads} / row_vectors * in_flight;
constexpr std::size_t mebibyte = 1 << 20;

enum class Hints : std::uint8_t { none, streaming, streaming_and_evict_last };

// createpolicy + ld.global.L2::cache_hint: L2 gives up these lines after all others.
__device__ float4 load_evict_last(const float4* from) {
  float4 v;
  asm("{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_last.b64 policy, 1.0;\n"
      "ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], policy;\n"
      "}\n"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "l"(device::global_address(from)));
  return v;
}

template <Hints hints>
__global__ __launch_bounds__(threads) void add_rows_kernel(const float4* x, const float4* table, const unsigned* index,
                                                           float4* y) {
  const std::size_t first = std::size_t{blockIdx.x} * block_rows + threadIdx.x / row_vectors;
  const unsigned vector = threadIdx.x % row_vectors;
  const auto row = [&](int k) { return first + static_cast<std::size_t>(k) * (threads / row_vectors); };
  const auto place = [&](int k) { return row(k) * row_vectors + vector; };
  unsigned from[in_flight];
  float4 a[in_flight], b[in_flight];
#pragma unroll
  for (int k = 0; k < in_flight; ++k) from[k] = hints == Hints::none ? index[row(k)] : __ldcs(&index[row(k)]);
#pragma unroll
  for (int k = 0; k < in_flight; ++k) a[k] = hints == Hints::none ? x[place(k)] : __ldcs(&x[place(k)]);
#pragma unroll
  for (int k = 0; k < in_flight; ++k) {
    const float4* entry = &table[std::size_t{from[k]} * row_vectors + vector];
    b[k] = hints == Hints::streaming_and_evict_last ? load_evict_last(entry) : *entry;
  }
#pragma unroll
  for (int k = 0; k < in_flight; ++k) {
    const float4 sum = make_float4(a[k].x + b[k].x, a[k].y + b[k].y, a[k].z + b[k].z, a[k].w + b[k].w);
    if constexpr (hints == Hints::none) y[place(k)] = sum;
    else __stcs(&y[place(k)], sum);
  }
}

// Lets windows keep as much of L2 as this GPU allows. What no window claims, all other accesses use.
class SetAside {
 public:
  SetAside() {
    check(cudaDeviceGetLimit(&before_, cudaLimitPersistingL2CacheSize));
    check(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, most()));
  }
  ~SetAside() { cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, before_); }
  SetAside(const SetAside&) = delete;
  SetAside& operator=(const SetAside&) = delete;
  static std::size_t most() { return static_cast<std::size_t>(device_attribute(cudaDevAttrMaxPersistingL2CacheSize)); }

 private:
  std::size_t before_ = 0;
};

// Accesses of kernels that are launched meanwhile keep what they read of [base, base + bytes) in L2.
class Window {
 public:
  Window(cudaStream_t stream, const void* base, std::size_t bytes) : stream_{stream} {
    check(cudaStreamGetAttribute(stream_, cudaStreamAttributeAccessPolicyWindow, &before_));
    const auto longest = static_cast<std::size_t>(device_attribute(cudaDevAttrMaxAccessPolicyWindowSize));
    cudaStreamAttrValue value{};
    value.accessPolicyWindow.base_ptr = const_cast<void*>(base);
    value.accessPolicyWindow.num_bytes = std::min(bytes, longest);
    // If the table is larger than the part set aside, only as much as fits persists: all of it would push itself out.
    value.accessPolicyWindow.hitRatio = std::min(1.0f, static_cast<float>(SetAside::most()) / static_cast<float>(bytes));
    value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    value.accessPolicyWindow.missProp = cudaAccessPropertyNormal;
    check(cudaStreamSetAttribute(stream_, cudaStreamAttributeAccessPolicyWindow, &value));
  }
  ~Window() { cudaStreamSetAttribute(stream_, cudaStreamAttributeAccessPolicyWindow, &before_); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

 private:
  cudaStream_t stream_;
  cudaStreamAttrValue before_{};
};

class L2Persistence final : public Workload {
 public:
  explicit L2Persistence(Setup& setup)
      : rows_{setup.scaled(std::size_t{8} << 20, block_rows)},
        table_rows_{setup.size("table_mib") * mebibyte / (row_values * sizeof(float))},
        x_{setup.input<float>(rows_ * row_values, uniform(-1, 1), {.name = "x"})},
        table_{setup.input<float>(table_rows_ * row_values, uniform(-1, 1), {.name = "table"})},
        index_{setup.input<unsigned>(rows_, integers(0, static_cast<std::int64_t>(table_rows_) - 1), {.name = "index"})},
        y_{setup.output<float>(rows_ * row_values, {.name = "y"})} {
    // For all variants, since it is the device's, and no run may leave it changed.
    if (setup.size("set_aside") == 1) set_aside_.emplace();
  }

  Cost cost() const override { return {.bytes = static_cast<double>(x_.bytes() + table_.bytes() + index_.bytes() + y_.bytes())}; }
  double expected(std::size_t i) const override {
    const double entry = table_.host(std::size_t{index_.host(i / row_values)} * row_values + i % row_values);
    return static_cast<double>(static_cast<float>(x_.host(i)) + static_cast<float>(entry));
  }

  // Drops the lines that an earlier variant kept.
  void forget(Launch&) { check(cudaCtxResetPersistingL2Cache()); }

  void default_policy(Launch& launch) { add<Hints::none>(launch); }
  void streaming_hints(Launch& launch) { add<Hints::streaming>(launch); }
  void evict_hints(Launch& launch) { add<Hints::streaming_and_evict_last>(launch); }
  void persisting_window(Launch& launch) {
    const Window window{launch.stream, table_, table_.bytes()};
    add<Hints::none>(launch);
  }

 private:
  template <Hints hints>
  void add(Launch& launch) {
    launch(add_rows_kernel<hints>, {static_cast<unsigned>(rows_ / block_rows), threads}, vectors(x_), vectors(table_), index_,
           reinterpret_cast<float4*>(y_.get()));
  }
  static const float4* vectors(const float* p) { return reinterpret_cast<const float4*>(p); }

  std::size_t rows_, table_rows_;
  Input<float> x_, table_;
  Input<unsigned> index_;
  Output<float> y_;
  std::optional<SetAside> set_aside_;
};

}  // namespace

extern constinit const Pair l2_persistence{
    .teaches =
        "L2 keeps most of a table that is read again and again: eviction hints add a little, and L2 that is set aside for a "
        "window is lost to all other accesses",
    .lesson = "evict_hints",
    .make = make<L2Persistence>,
    .baseline = {.name = "default_policy", .run = call<&L2Persistence::default_policy>, .reset = call<&L2Persistence::forget>},
    .optimized = variants(
        {{.name = "streaming_hints", .run = call<&L2Persistence::streaming_hints>, .reset = call<&L2Persistence::forget>},
         {.name = "evict_hints", .run = call<&L2Persistence::evict_hints>, .reset = call<&L2Persistence::forget>},
         {.name = "persisting_window",
          .run = call<&L2Persistence::persisting_window>,
          .reset = call<&L2Persistence::forget>,
          .gains_over = "default_policy"}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .needs = {.attributes = {cudaDevAttrMaxPersistingL2CacheSize}},
    .sizes = sizes({{.name = "table_mib", .full = 32, .most = 1024, .scales = false}, option("set_aside")}),
    .sweep = cases({{"mib_2", "table_mib=2"},
                    {"mib_4", "table_mib=4"},
                    {"mib_8", "table_mib=8"},
                    {"mib_16", "table_mib=16"},
                    {"mib_24", "table_mib=24"},
                    {"mib_32", "table_mib=32"},
                    {"mib_48", "table_mib=48"},
                    {"mib_64", "table_mib=64"},
                    {"set_aside", "set_aside=1"}}),
    .edges = cases({{"table_mib_1", "table_mib=1"}, {"table_mib_15", "table_mib=15,set_aside=1"}}),
};

}  // namespace aisp::ch07
