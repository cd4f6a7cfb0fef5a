// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/buffers.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace aisp {

// One registered allocation, which the harness fills, poisons, hashes, compares and counts. Authors hold typed handles to its
// view.
struct Buffer : BufferView {
  std::string name;
  Role role = Role::scratch;
  ElementType type = ElementType::record;
  Memory memory = Memory::device;
  int device = 0;
  bool unordered = false;
  bool huge_pages = false;
  Axis groups{};
  bool constant = false;
  std::uint64_t drawn = 0;  // seed of the present contents; the view's differs while they are hidden
  std::size_t alignment = 256;
  Function<void(void* host, std::uint64_t seed)> fill;  // inputs and inouts that are filled on the host
  std::vector<std::byte> filled;                        // their contents, which host_copy points to
  std::vector<std::byte> others;                        // contents that take their place where they may not be known
};

}  // namespace aisp

namespace aisp::pair {

// The memory of a Buffer, with a red zone before and after it, freed by the destructor. `gpu` is a CUDA ordinal (-1: host pair).
class Allocation {
 public:
  Allocation(Buffer& buffer, int gpu, bool red_zones);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  // Paint the red zones, and describe damage since then; empty if there is none.
  void paint();
  std::string damage() const;
  std::size_t bytes() const { return total_bytes_; }
  int gpu() const { return gpu_; }  // where its kernels run: -1 for host memory

 private:
  Buffer& buffer_;
  int gpu_;
  std::size_t front_bytes_ = 0;
  std::size_t back_bytes_ = 0;
  std::size_t total_bytes_ = 0;
  void* base_ = nullptr;
};

}  // namespace aisp::pair
