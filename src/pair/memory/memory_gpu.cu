// SPDX-License-Identifier: Apache-2.0
#include "pair/memory/memory.hpp"

#include <aisp/check.hpp>
#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <cmath>

#include "base/device_memory.hpp"
#include "base/own_launch.hpp"
#include "pair/memory/elements.cuh"

namespace aisp::pair::gpu {
namespace {

constexpr int block_threads = 256;
constexpr unsigned compare_blocks = 1056, most_grid_rows = 65535;

unsigned grid_for(std::size_t count) {
  const std::size_t blocks = (count + block_threads - 1) / block_threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 8192 ? 8192 : blocks);
}

__device__ std::size_t first_index() { return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ std::size_t index_step() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

__global__ void fill_kernel(void* data, ElementType type, std::size_t count, Pattern pattern, std::uint64_t seed) {
  for (std::size_t i = first_index(); i < count; i += index_step()) store_pattern(data, type, i, pattern, seed);
}

__global__ void digest_kernel(const void* data, std::size_t bytes, std::size_t words, DigestKey key, unsigned long long* result) {
  unsigned long long sum = 0;
  for (std::size_t i = first_index(); i < words; i += index_step()) sum += digest_part(data, bytes, i, key);
  // One atomic operation a block: millions on one address take longer than reading the data.
  __shared__ unsigned long long block_sum;
  if (threadIdx.x == 0) block_sum = 0;
  __syncthreads();
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xFFFFFFFF, sum, distance);
  if (threadIdx.x % 32 == 0) atomicAdd(&block_sum, sum);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(result, block_sum);
}

__global__ void copy_words_kernel(const std::uint64_t* from, std::uint64_t* to, std::size_t count) {
  for (std::size_t i = first_index(); i < count; i += index_step()) to[i] = from == nullptr ? 0 : from[i];
}

// 16 bytes a thread; the first and the last few one by one.
__global__ void bytes_kernel(unsigned char* data, int value, std::size_t bytes) {
  const std::size_t ahead = min((16 - reinterpret_cast<std::uintptr_t>(data) % 16) % 16, bytes);
  const std::size_t vectors = (bytes - ahead) / 16, behind = ahead + vectors * 16;
  const auto byte = static_cast<unsigned char>(value);
  const unsigned word = byte * 0x01010101u;
  auto* const body = reinterpret_cast<uint4*>(data + ahead);
  for (std::size_t i = first_index(); i < vectors; i += index_step()) body[i] = make_uint4(word, word, word, word);
  if (first_index() < ahead) data[first_index()] = byte;
  if (first_index() < bytes - behind) data[behind + first_index()] = byte;
}

// 16 bytes a thread if both addresses allow it.
__global__ void move_kernel(const unsigned char* from, unsigned char* to, std::size_t bytes) {
  const bool aligned = (reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)) % 16 == 0;
  const std::size_t vectors = aligned ? bytes / 16 : 0;
  for (std::size_t i = first_index(); i < vectors; i += index_step())
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  for (std::size_t i = vectors * 16 + first_index(); i < bytes; i += index_step()) to[i] = from[i];
}

__global__ void byte_mismatch_kernel(const unsigned char* data, int value, std::size_t bytes, unsigned long long* result) {
  unsigned long long wrong = 0;
  for (std::size_t i = first_index(); i < bytes; i += index_step()) wrong += data[i] != static_cast<unsigned char>(value);
  if (wrong != 0) atomicAdd(result, wrong);
}

struct Totals {
  double difference_squared, reference_squared;
  unsigned long long largest_error_bits;  // of a non-negative double, which order as integers
  unsigned long long most_steps_bits;
  unsigned long long mismatches, not_finite, moved;
};

// Adds the errors of this thread's part of one group; `squares`: of the reference in that group, 0 if not known yet.
__device__ void compare_group(const Elements& x, const Elements& reference, const Comparison& how, std::size_t group,
                              double squares, Totals* totals) {
  double difference = 0, squared = 0, largest = 0, most_steps = 0;
  unsigned long long mismatches = 0, not_finite = 0, moved = 0;
  const bool bitwise = x.type == reference.type;
  const std::size_t size = group_size(how.groups, x.count, group);
  const double rms = size == 0 ? 0 : sqrt(squares / static_cast<double>(size));
  for (std::size_t k = first_index(); k < size; k += index_step()) {
    const std::size_t i = group_element(how.groups, group, k);
    const double value = load_value(x.data, x.type, i), expected = load_value(reference.data, reference.type, i);
    const ElementError error = element_error(value, expected, rms);
    difference += error.difference_squared;
    squared += error.reference_squared;
    if (!how.bits) largest = fmax(largest, error.element_error);
    mismatches += bitwise ? !same_bits(x.data, reference.data, x.element_bytes, i) : error.mismatch;
    not_finite += error.not_finite;
    if (!how.steps) continue;
    const double steps = element_steps(value, expected, x.type);
    most_steps = fmax(most_steps, steps);
    moved += steps != 0;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    difference += __shfl_down_sync(0xFFFFFFFF, difference, distance);
    squared += __shfl_down_sync(0xFFFFFFFF, squared, distance);
    largest = fmax(largest, __shfl_down_sync(0xFFFFFFFF, largest, distance));
    most_steps = fmax(most_steps, __shfl_down_sync(0xFFFFFFFF, most_steps, distance));
    moved += __shfl_down_sync(0xFFFFFFFF, moved, distance);
    mismatches += __shfl_down_sync(0xFFFFFFFF, mismatches, distance);
    not_finite += __shfl_down_sync(0xFFFFFFFF, not_finite, distance);
  }
  if (threadIdx.x % 32 != 0) return;
  atomicAdd(&totals->difference_squared, difference);
  atomicAdd(&totals->reference_squared, squared);
  atomicMax(&totals->largest_error_bits, static_cast<unsigned long long>(__double_as_longlong(largest)));
  if (mismatches != 0) atomicAdd(&totals->mismatches, mismatches);
  if (not_finite != 0) atomicAdd(&totals->not_finite, not_finite);
  if (most_steps > 0) atomicMax(&totals->most_steps_bits, static_cast<unsigned long long>(__double_as_longlong(most_steps)));
  if (moved != 0) atomicAdd(&totals->moved, moved);
}

// `known`: the totals of an earlier pass, for the squares of the reference.
__global__ void compare_kernel(Elements x, Elements reference, Comparison how, const Totals* known, Totals* totals) {
  for (std::size_t group = blockIdx.y; group < how.groups.count; group += gridDim.y)
    compare_group(x, reference, how, group, known == nullptr ? 0 : known[group].reference_squared, totals + group);
}

__global__ void not_finite_kernel(Elements x, unsigned long long* result) {
  unsigned long long wrong = 0;
  for (std::size_t i = first_index(); i < x.count; i += index_step()) wrong += !is_finite(load_value(x.data, x.type, i));
  if (wrong != 0) atomicAdd(result, wrong);
}

__global__ void unwritten_kernel(Elements first, int first_poison, Elements second, int second_poison,
                                 unsigned long long* result) {
  unsigned long long unwritten = 0;
  for (std::size_t i = first_index(); i < first.count; i += index_step())
    unwritten += holds_byte(first.data, first.element_bytes, i, first_poison) &&
                 holds_byte(second.data, second.element_bytes, i, second_poison);
  if (unwritten != 0) atomicAdd(result, unwritten);
}

Norms norms_of(const Totals& totals) {
  Norms norms;
  norms.difference_squared = totals.difference_squared;
  norms.reference_squared = totals.reference_squared;
  static_assert(sizeof(double) == sizeof(totals.largest_error_bits));
  __builtin_memcpy(&norms.largest_element_error, &totals.largest_error_bits, sizeof(double));
  __builtin_memcpy(&norms.most_steps, &totals.most_steps_bits, sizeof(double));
  norms.mismatches = totals.mismatches;
  norms.not_finite = totals.not_finite;
  norms.moved = totals.moved;
  return norms;
}

// A zeroed value in device memory, read back when the work is done.
template <class T>
class Cell {
 public:
  Cell() { check(cudaMemset(get(), 0, sizeof(T))); }
  T* get() const { return memory_.as<T>(); }
  T read() const {
    check(cudaGetLastError());
    T value;
    check(cudaMemcpy(&value, get(), sizeof(T), cudaMemcpyDeviceToHost));
    return value;
  }

 private:
  const base::DeviceMemory memory_{sizeof(T)};
};

__global__ void gather_kernel(Elements from, const std::size_t* indices, std::size_t count, unsigned char* to) {
  const auto* bytes = static_cast<const unsigned char*>(from.data);
  for (std::size_t i = first_index(); i < count; i += index_step())
    for (std::size_t b = 0; b < from.element_bytes; ++b)
      to[i * from.element_bytes + b] = bytes[indices[i] * from.element_bytes + b];
}

template <class T>
void sort_as(void* data, std::size_t count) {
  auto* keys = static_cast<T*>(data);
  std::size_t workspace_bytes = 0;
  const int items = static_cast<int>(count);
  const base::DeviceMemory other{count * sizeof(T)};
  cub::DoubleBuffer<T> buffers{keys, other.as<T>()};
  check(cub::DeviceRadixSort::SortKeys(nullptr, workspace_bytes, buffers, items));
  const base::DeviceMemory workspace{workspace_bytes};
  check(cub::DeviceRadixSort::SortKeys(workspace.as<void>(), workspace_bytes, buffers, items));
  if (buffers.Current() != keys) check(cudaMemcpy(keys, buffers.Current(), count * sizeof(T), cudaMemcpyDeviceToDevice));
  check(cudaDeviceSynchronize());
}

}  // namespace

void fill_pattern(void* data, ElementType type, std::size_t count, const Pattern& pattern, std::uint64_t seed) {
  const base::OwnLaunch own;
  fill_kernel<<<grid_for(count), block_threads>>>(data, type, count, pattern, seed);
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
}

std::uint64_t digest(const void* data, std::size_t bytes, const DigestKey& key) {
  const std::size_t words = (bytes + 7) / 8;
  const Cell<unsigned long long> result;
  const base::OwnLaunch own;
  digest_kernel<<<grid_for(words), block_threads>>>(data, bytes, words, key, result.get());
  return result.read();
}

void queue_digest(const void* data, std::size_t bytes, std::uint64_t* sum, cudaStream_t stream, const DigestKey& key) {
  const std::size_t words = (bytes + 7) / 8;
  static_assert(sizeof(unsigned long long) == sizeof *sum);
  const base::OwnLaunch own;
  digest_kernel<<<grid_for(words), block_threads, 0, stream>>>(data, bytes, words, key,
                                                               reinterpret_cast<unsigned long long*>(sum));
  check(cudaGetLastError());
}

void queue_copy(const std::uint64_t* from, std::uint64_t* to, std::size_t count, cudaStream_t stream) {
  const base::OwnLaunch own;
  copy_words_kernel<<<1, block_threads, 0, stream>>>(from, to, count);
  check(cudaGetLastError());
}

void queue_bytes(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  const base::OwnLaunch own;
  bytes_kernel<<<grid_for(bytes / 16), block_threads, 0, stream>>>(static_cast<unsigned char*>(data), value, bytes);
  check(cudaGetLastError());
}

void queue_move(const void* from, void* to, std::size_t bytes, cudaStream_t stream) {
  const base::OwnLaunch own;
  move_kernel<<<grid_for(bytes / 16), block_threads, 0, stream>>>(static_cast<const unsigned char*>(from),
                                                                  static_cast<unsigned char*>(to), bytes);
  check(cudaGetLastError());
}

std::size_t count_byte_mismatches(const void* data, int value, std::size_t bytes) {
  const Cell<unsigned long long> result;
  const base::OwnLaunch own;
  byte_mismatch_kernel<<<grid_for(bytes), block_threads>>>(static_cast<const unsigned char*>(data), value, bytes, result.get());
  return result.read();
}

Norms compare(const Elements& x, const Elements& reference, const Comparison& how) {
  const std::size_t groups = how.groups.count, bytes = groups * sizeof(Totals);
  const auto rows = static_cast<unsigned>(std::min<std::size_t>(groups, most_grid_rows));
  const dim3 grid{std::min(grid_for(x.count / groups), std::max(1u, compare_blocks / rows)), rows};
  const base::DeviceMemory squares{bytes}, found{bytes};
  const auto pass = [&](const Totals* known, const base::DeviceMemory& totals) {
    check(cudaMemset(totals.as<void>(), 0, bytes));
    const base::OwnLaunch own;
    compare_kernel<<<grid, block_threads>>>(x, reference, how, known, totals.as<Totals>());
    check(cudaGetLastError());
  };
  if (!how.bits) pass(nullptr, squares);
  pass(how.bits ? nullptr : squares.as<Totals>(), found);
  std::vector<Totals> totals(groups);
  check(cudaMemcpy(totals.data(), found.as<void>(), bytes, cudaMemcpyDeviceToHost));
  std::vector<Norms> of_groups(groups);
  for (std::size_t g = 0; g < groups; ++g) of_groups[g] = norms_of(totals[g]);
  return whole_of(of_groups);
}

std::size_t count_not_finite(const Elements& x) {
  const Cell<unsigned long long> result;
  const base::OwnLaunch own;
  not_finite_kernel<<<grid_for(x.count), block_threads>>>(x, result.get());
  return result.read();
}

std::size_t count_unwritten(const Elements& first, int first_poison, const Elements& second, int second_poison) {
  const Cell<unsigned long long> result;
  const base::OwnLaunch own;
  unwritten_kernel<<<grid_for(first.count), block_threads>>>(first, first_poison, second, second_poison, result.get());
  return result.read();
}

void gather(const Elements& from, const std::vector<std::size_t>& indices, void* to) {
  const std::size_t bytes = indices.size() * from.element_bytes;
  const base::DeviceMemory places{indices.size() * sizeof(std::size_t)}, found{bytes};
  check(cudaMemcpy(places.as<void>(), indices.data(), indices.size() * sizeof(std::size_t), cudaMemcpyHostToDevice));
  const base::OwnLaunch own;
  gather_kernel<<<grid_for(indices.size()), block_threads>>>(from, places.as<std::size_t>(), indices.size(),
                                                             found.as<unsigned char>());
  check(cudaGetLastError());
  check(cudaMemcpy(to, found.as<void>(), bytes, cudaMemcpyDeviceToHost));
}

bool sort_elements(void* data, ElementType type, std::size_t count) {
  if (count > 0x7FFFFFFF) return false;
  switch (type) {
    case ElementType::i32: sort_as<std::int32_t>(data, count); return true;
    case ElementType::u32: sort_as<std::uint32_t>(data, count); return true;
    case ElementType::f32: sort_as<float>(data, count); return true;
    case ElementType::u64: sort_as<unsigned long long>(data, count); return true;
    case ElementType::i64: sort_as<long long>(data, count); return true;
    default: return false;
  }
}

}  // namespace aisp::pair::gpu
