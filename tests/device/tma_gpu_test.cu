// SPDX-License-Identifier: Apache-2.0
// TMA brings the box that the coordinates name, to the places the swizzle names, into the blocks that the mask names; what it
// stores lands there and nowhere else.
#include <aisp/device/cluster.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/tensor_map.hpp>

#include <bit>
#include <cmath>
#include <span>
#include <stdexcept>

#include "gpu_test.hpp"

namespace aisp {
namespace {

constexpr unsigned poison = 0xABCDABCD;
constexpr unsigned blocks = 4;      // of a cluster
constexpr unsigned capacity = 512;  // words of the boxes

struct At {
  int x = 0, y = 0, z = 0;
};

struct Shared {
  alignas(1024) unsigned words[capacity];
  std::uint64_t barrier;

  // By one thread.
  __device__ void init(unsigned bytes) {
    for (unsigned& word : words) word = poison;
    device::barrier_init(&barrier, 1);
    device::fence_barrier_init();
    device::fence_proxy_async_shared();
    if (bytes > 0) device::barrier_arrive_expect(&barrier, bytes);
  }
};

// By one thread: `words` of a box as they come.
template <int dimensions>
__global__ void load_box(const __grid_constant__ CUtensorMap map, At at, unsigned words, unsigned* out) {
  __shared__ Shared shared;
  device::prefetch_tensor_map(&map);
  shared.init(words * 4);
  if constexpr (dimensions == 2) device::tensor_load_2d(shared.words, &map, at.x, at.y, &shared.barrier);
  else device::tensor_load_3d(shared.words, &map, at.x, at.y, at.z, &shared.barrier);
  if (completes(&shared.barrier, 0))
    for (unsigned i = 0; i < words; ++i) out[i] = shared.words[i];
}

// Block `sender` fetches for the blocks of the mask; of the others nothing may change. 0 dimensions: plain bytes.
template <int dimensions>
__global__ void multicast(const __grid_constant__ CUtensorMap map, At at, const unsigned* in, unsigned words, unsigned sender,
                          std::uint16_t mask, unsigned* out) {
  __shared__ Shared shared;
  const unsigned rank = device::cluster_rank();
  const bool receives = (mask >> rank & 1) != 0;
  shared.init(receives ? words * 4 : 0);
  device::cluster_sync();
  if (rank == sender) {
    if constexpr (dimensions == 0) device::bulk_load_multicast(shared.words, in, words * 4, &shared.barrier, mask);
    if constexpr (dimensions == 2) device::tensor_load_2d_multicast(shared.words, &map, at.x, at.y, &shared.barrier, mask);
    if constexpr (dimensions == 3) device::tensor_load_3d_multicast(shared.words, &map, at.x, at.y, at.z, &shared.barrier, mask);
  }
  const bool complete = receives && completes(&shared.barrier, 0);
  device::cluster_sync();
  for (unsigned i = 0; i < words; ++i) out[rank * words + i] = complete || !receives ? shared.words[i] : 0;
}

__global__ void store_box(const __grid_constant__ CUtensorMap map, At at, unsigned words) {
  __shared__ Shared shared;
  for (unsigned i = 0; i < words; ++i) shared.words[i] = 1000 + i;
  device::fence_proxy_async_shared();
  device::tensor_store_2d(&map, at.x, at.y, shared.words);
  device::commit_stores();
  device::wait_stores<0>();
}

// 24 x 40 numbers, and boxes of 4 x 8 of them.
constexpr int rows = 24, columns = 40, box_rows = 4, box_columns = 8, box_words = box_rows * box_columns;

CUtensorMap plain_map(const unsigned* words) {
  return matrix_map(CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, words, rows, columns, box_rows, box_columns, CU_TENSOR_MAP_SWIZZLE_NONE);
}
// Zeros outside of the matrix.
std::vector<unsigned> box_of(const std::vector<unsigned>& matrix, At at) {
  std::vector<unsigned> box;
  for (int y = at.y; y < at.y + box_rows; ++y)
    for (int x = at.x; x < at.x + box_columns; ++x)
      box.push_back(x >= 0 && x < columns && y >= 0 && y < rows ? matrix[y * columns + x] : 0);
  return box;
}

// 6 x 5 x 8 numbers, and boxes of 3 x 2 x 4 of them.
CUtensorMap map_3d(const unsigned* words) {
  const std::uint64_t sizes[] = {8, 5, 6}, strides[] = {8 * 4, 8 * 5 * 4};
  const std::uint32_t box[] = {4, 2, 3};
  return tensor_map(CU_TENSOR_MAP_DATA_TYPE_UINT32, words, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_NONE);
}
std::vector<unsigned> box_3d(const std::vector<unsigned>& tensor, At at) {
  std::vector<unsigned> box;
  for (int z = at.z; z < at.z + 3; ++z)
    for (int y = at.y; y < at.y + 2; ++y)
      for (int x = at.x; x < at.x + 4; ++x) box.push_back(tensor[(z * 5 + y) * 8 + x]);
  return box;
}

// Returns the contents of a cluster's blocks when those of the mask have got `box`.
std::vector<unsigned> in_cluster(const std::vector<unsigned>& box, unsigned mask) {
  std::vector<unsigned> all;
  for (unsigned rank = 0; rank < blocks; ++rank)
    for (const unsigned word : box) all.push_back(mask >> rank & 1 ? word : poison);
  return all;
}

class Tma : public GpuTest<9> {};
class TmaMulticast : public GpuTest<9, 11> {};

TEST_F(Tma, LoadsTheBoxAtTheCoordinates) {
  const std::vector<unsigned> matrix = counted(rows * columns, 1);
  const OnGpu<unsigned> in{matrix};
  for (const At at : {At{16, 5}, At{0, 20}, At{36, 22}, At{-4, -1}}) {
    const OnGpu<unsigned> out{std::vector<unsigned>(box_words, poison)};
    load_box<2><<<1, 1>>>(plain_map(in.get()), at, box_words, out.get());
    check(cudaDeviceSynchronize());
    EXPECT_EQ(out.host(), box_of(matrix, at)) << at.x << ", " << at.y;
  }
}

TEST_F(Tma, FillsWhatLiesOutsideAsAsked) {
  const std::uint64_t sizes[] = {columns, rows}, strides[] = {columns * 4};
  const std::uint32_t box[] = {box_columns, box_rows};
  constexpr At corner{36, 22};
  const std::vector<float> ones(rows * columns, 1);
  const OnGpu<float> in{ones};
  for (const CUtensorMapFloatOOBfill fill :
       {CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA}) {
    const OnGpu<unsigned> out{std::vector<unsigned>(box_words, poison)};
    const CUtensorMap map = tensor_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, in.get(), sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_NONE,
                                       CU_TENSOR_MAP_INTERLEAVE_NONE, fill);
    load_box<2><<<1, 1>>>(map, corner, box_words, out.get());
    check(cudaDeviceSynchronize());
    const std::vector<unsigned> landed = out.host();
    for (int i = 0; i < box_words; ++i) {
      const bool inside = corner.x + i % box_columns < columns && corner.y + i / box_columns < rows;
      const auto value = std::bit_cast<float>(landed[static_cast<std::size_t>(i)]);
      if (!inside && fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) {
        EXPECT_TRUE(std::isnan(value)) << i << ": " << value;
      } else {
        EXPECT_EQ(value, inside ? 1.0f : 0.0f) << i;
      }
    }
  }
}

TEST_F(Tma, TellsTheDriverOfInterleavedLayouts) {
  const OnGpu<unsigned> in{counted(4 * 5 * 6)};
  const std::uint64_t sizes[] = {4, 5, 6}, strides[] = {16, 80};
  const std::uint32_t box[] = {4, 2, 3};
  const auto map = [&](std::size_t dimensions, CUtensorMapInterleave interleave) {
    return tensor_map(CU_TENSOR_MAP_DATA_TYPE_UINT32, in.get(), std::span{sizes}.first(dimensions),
                      std::span{strides}.first(dimensions - 1), std::span{box}.first(dimensions), CU_TENSOR_MAP_SWIZZLE_NONE,
                      interleave);
  };
  EXPECT_NO_THROW(map(2, CU_TENSOR_MAP_INTERLEAVE_NONE));
  EXPECT_NO_THROW(map(3, CU_TENSOR_MAP_INTERLEAVE_16B));
  EXPECT_THROW(map(2, CU_TENSOR_MAP_INTERLEAVE_16B), std::runtime_error) << "it has three dimensions at least";
}

TEST_F(Tma, SwizzlesChunksOf16Bytes) {
  constexpr unsigned height = 16, width = 32;
  const std::vector<unsigned> matrix = counted(height * 2 * width * 2, 1);
  const OnGpu<unsigned> in{matrix}, out{std::vector<unsigned>(height * width, poison)};
  const CUtensorMap map = matrix_map(CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, in.get(), height * 2, width * 2, height, width);
  load_box<2><<<1, 1>>>(map, {width, height}, height * width, out.get());
  check(cudaDeviceSynchronize());
  const std::vector<unsigned> landed = out.host();
  for (unsigned y = 0; y < height; ++y)
    for (unsigned x = 0; x < width; ++x)
      ASSERT_EQ(landed[y * width + (x / 4 ^ y % 8) * 4 + x % 4], matrix[(height + y) * width * 2 + width + x]) << y << ", " << x;
}

TEST_F(Tma, LoadsBoxesOfThreeDimensions) {
  const std::vector<unsigned> tensor = counted(6 * 5 * 8, 1);
  const OnGpu<unsigned> in{tensor}, out{std::vector<unsigned>(24, poison)};
  load_box<3><<<1, 1>>>(map_3d(in.get()), {4, 1, 2}, 24, out.get());
  check(cudaDeviceSynchronize());
  EXPECT_EQ(out.host(), box_3d(tensor, {4, 1, 2}));
}

TEST_F(Tma, StoresTheBoxAtTheCoordinatesAndNothingOutside) {
  for (const At at : {At{16, 5}, At{36, 22}}) {
    std::vector<unsigned> expected(rows * columns, poison);
    const OnGpu<unsigned> out{expected};
    for (int i = 0; i < box_words; ++i)
      if (const int x = at.x + i % box_columns, y = at.y + i / box_columns; x < columns && y < rows)
        expected[y * columns + x] = 1000 + static_cast<unsigned>(i);
    store_box<<<1, 1>>>(plain_map(out.get()), at, box_words);
    check(cudaDeviceSynchronize());
    EXPECT_EQ(out.host(), expected) << at.x << ", " << at.y;
  }
}

TEST_F(TmaMulticast, ReachesTheBlocksOfTheMask) {
  const std::vector<unsigned> matrix = counted(rows * columns, 1), tensor = counted(6 * 5 * 8, 1);
  const OnGpu<unsigned> in{matrix}, in_3d{tensor};
  for (const std::uint16_t mask : {0b1111, 0b1011, 0b0010})
    for (const unsigned sender : {0u, 2u}) {
      const OnGpu<unsigned> bytes{std::vector<unsigned>(blocks * 16)}, box{std::vector<unsigned>(blocks * box_words)},
          deep{std::vector<unsigned>(blocks * 24)};
      launch_cluster(multicast<0>, blocks, 1, CUtensorMap{}, At{}, in.get() + 8, 16u, sender, mask, bytes.get());
      EXPECT_EQ(bytes.host(), in_cluster(counted(16, 9), mask)) << mask << " by " << sender;
      launch_cluster(multicast<2>, blocks, 1, plain_map(in.get()), At{16, 5}, in.get(), unsigned{box_words}, sender, mask,
                     box.get());
      EXPECT_EQ(box.host(), in_cluster(box_of(matrix, {16, 5}), mask)) << mask << " by " << sender;
      launch_cluster(multicast<3>, blocks, 1, map_3d(in_3d.get()), At{4, 1, 2}, in_3d.get(), 24u, sender, mask, deep.get());
      EXPECT_EQ(deep.host(), in_cluster(box_3d(tensor, {4, 1, 2}), mask)) << mask << " by " << sender;
    }
}

}  // namespace
}  // namespace aisp
