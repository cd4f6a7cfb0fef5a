// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "pair/memory/memory.hpp"

namespace aisp::pair {
namespace {

constexpr int red_zone_value = 0xA5;
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

void* allocate_host(std::size_t bytes, std::size_t alignment, bool huge_pages) {
  if (huge_pages) alignment = huge_page_bytes;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc{};
  if (huge_pages) madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void* allocate(Memory memory, std::size_t bytes, std::size_t alignment, bool huge_pages) {
  void* base = nullptr;
  switch (memory) {
    case Memory::device: check(cudaMalloc(&base, bytes)); break;
    case Memory::pinned: check(cudaHostAlloc(&base, bytes, cudaHostAllocPortable)); break;
    case Memory::mapped: check(cudaHostAlloc(&base, bytes, cudaHostAllocPortable | cudaHostAllocMapped)); break;
    case Memory::managed: check(cudaMallocManaged(&base, bytes)); break;
    default: base = allocate_host(bytes, alignment, huge_pages);
  }
  return base;
}

// Returns the GPU's pool; null if it has none.
cudaMemPool_t pool_of(int gpu) {
  int supported = 0;
  check(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, gpu));
  cudaMemPool_t pool = nullptr;
  if (supported != 0) check(cudaDeviceGetMemPool(&pool, gpu));
  return pool;
}

std::uint64_t read(cudaMemPool_t pool, cudaMemPoolAttr attribute) {
  std::uint64_t bytes = 0;
  check(cudaMemPoolGetAttribute(pool, attribute, &bytes));
  return bytes;
}

}  // namespace

Allocation::Allocation(Buffer& buffer, int gpu, bool red_zones)
    : buffer_{buffer}, gpu_{buffer.memory == Memory::device ? gpu : -1} {
  const std::size_t zone = red_zones ? red_zone_bytes : 0;
  front_bytes_ = zone == 0 ? 0 : std::max({zone, buffer.alignment, buffer.huge_pages ? huge_page_bytes : zone});
  back_bytes_ = zone;
  total_bytes_ = front_bytes_ + std::max<std::size_t>(buffer.bytes(), 1) + back_bytes_;
  if (gpu >= 0) check(cudaSetDevice(gpu));
  base_ = allocate(buffer.memory, total_bytes_, std::max<std::size_t>(buffer.alignment, 16), buffer.huge_pages);
  buffer.data = static_cast<unsigned char*>(base_) + front_bytes_;
  paint();
}

Allocation::~Allocation() {
  switch (buffer_.memory) {
    case Memory::device:
    case Memory::managed: cudaFree(base_); break;
    case Memory::pinned:
    case Memory::mapped: cudaFreeHost(base_); break;
    default: std::free(base_);
  }
}

void Allocation::paint() {
  if (back_bytes_ == 0) return;
  auto* data = static_cast<unsigned char*>(buffer_.data);
  set_bytes(data - red_zone_bytes, red_zone_value, red_zone_bytes, gpu_);
  set_bytes(data + buffer_.bytes(), red_zone_value, back_bytes_, gpu_);
}

std::string Allocation::damage() const {
  if (back_bytes_ == 0) return {};
  const auto* data = static_cast<const unsigned char*>(buffer_.data);
  const std::size_t front = count_byte_mismatches(data - red_zone_bytes, red_zone_value, red_zone_bytes, gpu_);
  const std::size_t back = count_byte_mismatches(data + buffer_.bytes(), red_zone_value, back_bytes_, gpu_);
  if (front == 0 && back == 0) return {};
  return std::to_string(front + back) + " bytes written " + (front != 0 ? "in front of " : "behind ") + buffer_.name;
}

PoolUse pool_use(const std::vector<int>& gpus) {
  PoolUse use;
  for (const int gpu : gpus) {
    const cudaMemPool_t pool = pool_of(gpu);
    if (pool == nullptr) continue;
    use.used_bytes += read(pool, cudaMemPoolAttrUsedMemCurrent);
    use.reserved_bytes += read(pool, cudaMemPoolAttrReservedMemCurrent);
    use.most_used_bytes += read(pool, cudaMemPoolAttrUsedMemHigh);
    use.most_reserved_bytes += read(pool, cudaMemPoolAttrReservedMemHigh);
  }
  return use;
}

void scrub_pools(const std::vector<int>& gpus) {
  constexpr int scrub_value = 0xDB;
  for (const int gpu : gpus) {
    check(cudaSetDevice(gpu));
    const cudaMemPool_t pool = pool_of(gpu);
    if (pool == nullptr) continue;
    // Free memory may lie in pieces: takes the largest first, as far as the pool gives them without growing.
    const std::uint64_t reserved = read(pool, cudaMemPoolAttrReservedMemCurrent);
    std::vector<void*> pieces;
    for (std::uint64_t bytes = reserved - read(pool, cudaMemPoolAttrUsedMemCurrent); bytes >= 512;) {
      void* piece = nullptr;
      if (cudaMallocFromPoolAsync(&piece, bytes, pool, nullptr) != cudaSuccess) cudaGetLastError();
      if (piece != nullptr && read(pool, cudaMemPoolAttrReservedMemCurrent) > reserved) {
        check(cudaFreeAsync(piece, nullptr));
        check(cudaStreamSynchronize(nullptr));
        check(cudaMemPoolTrimTo(pool, reserved));
        piece = nullptr;
      }
      if (piece == nullptr) {
        bytes /= 2;
        continue;
      }
      check(cudaMemsetAsync(piece, scrub_value, bytes, nullptr));
      pieces.push_back(piece);
      bytes = std::min(bytes, reserved - std::min(reserved, read(pool, cudaMemPoolAttrUsedMemCurrent)));
    }
    for (void* piece : pieces) check(cudaFreeAsync(piece, nullptr));
    check(cudaStreamSynchronize(nullptr));
  }
  if (!gpus.empty()) check(cudaSetDevice(gpus.front()));
}

void reset_pool_marks(const std::vector<int>& gpus) {
  for (const int gpu : gpus) {
    const cudaMemPool_t pool = pool_of(gpu);
    if (pool == nullptr) continue;
    for (const cudaMemPoolAttr mark : {cudaMemPoolAttrUsedMemHigh, cudaMemPoolAttrReservedMemHigh}) {
      std::uint64_t zero = 0;
      check(cudaMemPoolSetAttribute(pool, mark, &zero));
    }
  }
}

}  // namespace aisp::pair
