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
  std::size_t alignment = 256;
  Function<void(void* host, std::uint64_t seed)> fill;  // inputs and inouts that are filled on the host
  std::vector<std::byte> filled;                        // their contents, which host_copy points to
};

}  // namespace aisp
