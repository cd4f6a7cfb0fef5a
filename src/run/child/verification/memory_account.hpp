// SPDX-License-Identifier: Apache-2.0
// The memory of one pair: registered buffers, the pools' use, and the decrease of free memory by the driver's account.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "pair/session.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"

namespace aisp::run {

// Returns the free memory of the GPUs by the driver's account, summed.
std::uint64_t free_device_bytes(const std::vector<int>& gpus);

// Measures the memory of one execution of `variant`. `free_before`: free memory before the session was set up.
evidence::MemoryUse memory_of(pair::Session& session, const Variant& variant, Start start, std::uint64_t free_before,
                              bool& host_peak_is_own);

// Adds memory that a variant allocates and frees in each run, which leaves no trace in the buffers, the pools or the driver's
// account. `most_bytes`: its peak, pools included.
void add_own_allocations(evidence::MemoryUse& use, std::uint64_t most_bytes);

// Returns a message if the driver's figure and ours are further apart than this number of allocations explains; empty otherwise.
std::string disagreement(const evidence::MemoryUse& use, std::size_t allocations);

// Executes each active variant once more and records its memory. Call it before the stopwatch exists, whose own buffers the
// driver would count too. `free_before`: bytes of device memory before the session was set up.
void account_memory(const Context& context, Record& record, pair::Session& session, Start start, std::uint64_t free_before);

}  // namespace aisp::run
