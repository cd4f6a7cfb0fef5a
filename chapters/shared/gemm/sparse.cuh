// SPDX-License-Identifier: Apache-2.0
// A of bf16 in which two of every four neighbours along K are zero (2:4), stored without them: half of the products, half of the
// bytes of A and a sixteenth for where they were. B's tiles are what they are for a dense A.
//
// Blocks of A lie as [m / 64][k / 64], rows that do not exist included, each one piece of memory: first the values, 64 rows of 64
// bytes as wgmma reads them with the 64-byte swizzle, then a word of metadata for each thread of a warpgroup.
#pragma once
#include <aisp/device/wgmma_sparse.cuh>

#include "packed.cuh"

namespace aisp::gemm {

struct Sparse24 {
  using Element = std::uint8_t;
  using Factor = bf16;
  static constexpr Major major = Major::k;
  static constexpr bool packed = true;
  static constexpr int tile_k = 64, values_bytes = 64 * 64, block_bytes = values_bytes + warpgroup_threads * 4;
  static constexpr int lines = block_bytes / 128;
  static_assert(block_bytes % 512 == 0, "the swizzle of every block begins anew");
  template <int extent>
  static constexpr unsigned tile_bytes = extent / 64 * block_bytes;
  template <int extent>
  static constexpr int tile_elements = tile_bytes<extent>;

  template <int extent>
  static __device__ __forceinline__ void load(Element* tile, const CUtensorMap* map, int first, int k, std::uint64_t* full,
                                              std::uint16_t = 0) {
    static_assert(extent % 64 == 0);
    device::tensor_load_3d(tile, map, 0, k / tile_k * lines, first / 64, full);
  }

  // Return the place in a block of the eight values (16 bytes) of a row and a quarter of its K, and of the half-word that says
  // which they are.
  static __host__ __device__ constexpr unsigned values_at(unsigned row, unsigned quarter) {
    return row * 64 + (quarter ^ row / 2 % 4) * 16;
  }
  static __host__ __device__ constexpr unsigned metadata_at(unsigned row, unsigned quarter) {
    const unsigned thread = row / 16 * 32 + row % 8 * 4 + quarter;
    return values_bytes + thread * 4 + row % 16 / 8 * 2;
  }
};

// Sums stay in the tensor cores. A stage is two products of 32 along K, and each thread's word of metadata is for both.
struct SparseInTensorCores {
  static constexpr bool scaled = false;
  static constexpr int arrivals = 4;
  template <int tile_n>
  static constexpr int extra_sums = 0;

  template <class C>
  struct Registers {
    unsigned metadata[C::parts];
  };

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    using B = typename C::B;
    constexpr int block_bytes = C::A::block_bytes;
    const unsigned own_metadata = C::A::values_bytes + threadIdx.x % warpgroup_threads * 4;
    int previous = -1;
    const auto visit = [&](Registers<C>& now, Registers<C>&, int step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      const std::uint8_t* const blocks = ring.a[at.stage] + first_row / 64 * block_bytes;
#pragma unroll
      for (int part = 0; part < C::parts; ++part) {
        now.metadata[part] = *reinterpret_cast<const unsigned*>(blocks + part * block_bytes + own_metadata);
        asm volatile("" : "+r"(now.metadata[part])::"memory");  // before the fence
        device::wgmma_touch(sums[part]);
      }
      device::wgmma_fence();
      const std::uint64_t b = B::descriptor(ring.b[at.stage], 0);
#pragma unroll
      for (int part = 0; part < C::parts; ++part) {
        const std::uint64_t a = device::operand_of_64_bytes(blocks + part * block_bytes);
        device::wgmma_sparse<0, B::major>(sums[part], a, b, now.metadata[part], step > 0);
        device::wgmma_sparse<1, B::major>(sums[part], device::advance(a, 32), device::advance(b, 2 * B::step_bytes),
                                          now.metadata[part]);
      }
      device::wgmma_commit();
      device::wgmma_wait<1>();
      if (previous >= 0) ring.give_back(previous);
      previous = at.stage;
      at.next();
    };
    detail::in_turns<Registers<C>>(C::steps(tile), visit, [](Registers<C>&) {});
    queued();
    device::wgmma_wait<0>();
#pragma unroll
    for (auto& part : sums) device::wgmma_touch(part);
    ring.give_back(previous);
  }
};

}  // namespace aisp::gemm
