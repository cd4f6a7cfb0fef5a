// SPDX-License-Identifier: Apache-2.0
// The GPU side of memory.hpp, on the current device. Not for use beyond memory.cpp.
#pragma once
#include "pair/memory/memory.hpp"

namespace aisp::pair::gpu {

void fill_pattern(void* data, ElementType type, std::size_t count, const Pattern& pattern, std::uint64_t seed);
std::uint64_t digest(const void* data, std::size_t bytes, const DigestKey& key);
void queue_digest(const void* data, std::size_t bytes, std::uint64_t* sum, cudaStream_t stream, const DigestKey& key);
void queue_copy(const std::uint64_t* from, std::uint64_t* to, std::size_t count, cudaStream_t stream);  // null: zeros
void queue_bytes(void* data, int value, std::size_t bytes, cudaStream_t stream);
void queue_move(const void* from, void* to, std::size_t bytes, cudaStream_t stream);
std::size_t count_byte_mismatches(const void* data, int value, std::size_t bytes);
Norms compare(const Elements& x, const Elements& reference, const Comparison& how);
std::size_t count_not_finite(const Elements& x);
std::size_t count_unwritten(const Elements& first, int first_poison, const Elements& second, int second_poison);
void gather(const Elements& from, const std::vector<std::size_t>& indices, void* to);
bool sort_elements(void* data, ElementType type, std::size_t count);  // false: this type is sorted on the host

}  // namespace aisp::pair::gpu
