// SPDX-License-Identifier: Apache-2.0
// Decoding 8-bit codes to bf16 through a codebook of 256 entries. Small tables are said to belong in constant memory, but its
// cache answers one address at a time: a warp whose lanes ask for 28 different entries asks 28 times. Shared memory answers 32
// addresses at once, as long as they lie in different banks; so does L1, as the control global_table shows.
#include <cuda_bf16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <cub/device/device_transform.cuh>

#include <algorithm>
#include <cstdint>

namespace aisp::ch07 {
namespace {

using bf16 = __nv_bfloat16;
using Entry = std::uint16_t;  // bits of a bf16
constexpr int threads = 512, blocks_per_sm = 4;
constexpr int entries = 256;
constexpr int banks = 32;

__constant__ Entry constant_codebook[entries];

struct ConstantTable {
  __device__ explicit ConstantTable(const Entry*) {}
  __device__ unsigned operator[](unsigned code) const { return constant_codebook[code]; }
};

struct GlobalTable {
  const Entry* codebook;
  __device__ explicit GlobalTable(const Entry* from) : codebook{from} {}
  __device__ unsigned operator[](unsigned code) const { return __ldg(codebook + code); }
};

// Two entries share a word, and 128 words lie in 32 banks: of random codes three or four different words meet in some bank.
struct SharedTable {
  const Entry* codebook;
  __device__ explicit SharedTable(const Entry* from) {
    __shared__ Entry copy[entries];
    for (unsigned i = threadIdx.x; i < entries; i += threads) copy[i] = from[i];
    __syncthreads();
    codebook = copy;
  }
  __device__ unsigned operator[](unsigned code) const { return codebook[code]; }
};

// A copy for every lane, in a bank of its own.
struct ReplicatedTable {
  const unsigned* codebook;
  __device__ explicit ReplicatedTable(const Entry* from) {
    __shared__ unsigned copies[entries * banks];
    for (unsigned i = threadIdx.x; i < entries * banks; i += threads) copies[i] = from[i / banks];
    __syncthreads();
    codebook = copies + threadIdx.x % banks;
  }
  __device__ unsigned operator[](unsigned code) const { return codebook[code * banks]; }
};

// Two results from the two codes that begin at bit `shift`.
template <class Table>
__device__ unsigned decode_two(const Table& table, unsigned codes, int shift) {
  return table[codes >> shift & 0xFF] | table[codes >> (shift + 8) & 0xFF] << 16;
}
template <class Table>
__device__ uint2 decode_four(const Table& table, unsigned codes) {
  return make_uint2(decode_two(table, codes, 0), decode_two(table, codes, 16));
}

template <class Table>
__global__ __launch_bounds__(threads) void four_codes_kernel(const unsigned* codes, const Entry* codebook, uint2* out,
                                                             unsigned count) {
  const Table table{codebook};
#pragma unroll 1
  for (unsigned i = blockIdx.x * threads + threadIdx.x; i < count; i += gridDim.x * threads)
    out[i] = decode_four(table, codes[i]);
}

// Twice eight codes, a block apart, so that the 16 bytes that each lane stores lie side by side.
template <class Table>
__global__ __launch_bounds__(threads) void sixteen_codes_kernel(const uint2* codes, const Entry* codebook, uint4* out,
                                                                unsigned count) {
  const Table table{codebook};
#pragma unroll 1
  for (unsigned i = blockIdx.x * threads * 2 + threadIdx.x; i < count; i += gridDim.x * threads * 2) {
    const uint2 loaded[2] = {codes[i], codes[i + threads]};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint2 low = decode_four(table, loaded[k].x), high = decode_four(table, loaded[k].y);
      out[i + k * threads] = make_uint4(low.x, low.y, high.x, high.y);
    }
  }
}

struct Decode {
  const bf16* codebook;
  __device__ bf16 operator()(std::uint8_t code) const { return codebook[code]; }
};

class Lookup final : public Workload {
 public:
  explicit Lookup(Setup& setup)
      : count_{setup.scaled(256 << 20, std::size_t{threads} * 16)},
        codes_{setup.input<std::uint8_t>(count_, integers(0, static_cast<std::int64_t>(setup.size("codes")) - 1),
                                         {.name = "codes"})},
        codebook_{setup.input<bf16>(entries, normal(0, 1), {.name = "codebook", .constant = true})},
        out_{setup.output<bf16>(count_, {.name = "decoded"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(codes_.bytes() + codebook_.bytes() + out_.bytes())}; }
  double expected(std::size_t i) const override { return codebook_.host(codes_.host(i)); }

  void fill_constant_table(Launch& launch) {
    check(cudaMemcpyToSymbolAsync(constant_codebook, codebook_.get(), codebook_.bytes(), 0, cudaMemcpyDeviceToDevice,
                                  launch.stream));
  }
  template <class Table>
  void four_codes(Launch& launch) {
    launch(four_codes_kernel<Table>, {blocks(4), threads}, reinterpret_cast<const unsigned*>(codes_.get()), table(),
           reinterpret_cast<uint2*>(out_.get()), count_ / 4);
  }
  template <class Table>
  void sixteen_codes(Launch& launch) {
    launch(sixteen_codes_kernel<Table>, {blocks(16), threads}, reinterpret_cast<const uint2*>(codes_.get()), table(),
           reinterpret_cast<uint4*>(out_.get()), count_ / 8);
  }
  void cub_transform(Launch& launch) {
    check(cub::DeviceTransform::Transform(codes_.get(), out_.get(), static_cast<int>(count_), Decode{codebook_}, launch.stream));
  }

 private:
  const Entry* table() const { return reinterpret_cast<const Entry*>(codebook_.get()); }
  // As many as run at once: each copies the table once and goes on from there.
  unsigned blocks(std::size_t codes_of_a_thread) const {
    return std::min(static_cast<unsigned>(count_ / (threads * codes_of_a_thread)), multiprocessors() * blocks_per_sm);
  }

  std::size_t count_;
  Input<std::uint8_t> codes_;
  Input<bf16> codebook_;
  Output<bf16> out_;
};

}  // namespace

extern constinit const Pair lookup{
    .teaches =
        "the constant cache serves one address at a time; a table that data index is read at up to 32 addresses by a warp, "
        "which suits shared memory, and L1 as well",
    .lesson = "shared_table",
    .make = make<Lookup>,
    .baseline = {.name = "constant_table",
                 .run = call<&Lookup::four_codes<ConstantTable>>,
                 .prepare = call<&Lookup::fill_constant_table>},
    .optimized = variants({{.name = "shared_table", .run = call<&Lookup::four_codes<SharedTable>>},
                           {.name = "shared_table_vec16", .run = call<&Lookup::sixteen_codes<SharedTable>>},
                           {.name = "replicated_table", .run = call<&Lookup::sixteen_codes<ReplicatedTable>>}}),
    .controls = variants({{.name = "global_table", .run = call<&Lookup::four_codes<GlobalTable>>}}),
    .libraries = variants({{.name = "cub_device_transform", .run = call<&Lookup::cub_transform>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    .sizes = sizes({{.name = "codes", .full = entries, .most = entries, .scales = false}}),  // different ones in the data
    .sweep = cases({{"codes_1", "codes=1"},
                    {"codes_2", "codes=2"},
                    {"codes_4", "codes=4"},
                    {"codes_8", "codes=8"},
                    {"codes_16", "codes=16"},
                    {"codes_64", "codes=64"},
                    {"codes_256", "codes=256"}}),
    .edges = cases({{"codes_1", "codes=1"}, {"codes_127", "codes=127"}}),
};

}  // namespace aisp::ch07
