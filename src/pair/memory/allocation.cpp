// SPDX-License-Identifier: Apache-2.0
#include "pair/memory/allocation.hpp"

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

}  // namespace aisp::pair
