// SPDX-License-Identifier: Apache-2.0
// Whether this machine can run a pair or variant, in plain words.
#pragma once
#include <aisp/needs.hpp>
#include <aisp/pair.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/machine.hpp"

namespace aisp::machine {

// For which GPUs an executable has code. `built` is the list it was built for, as CMake writes it, with commas:
// "80-real,90a-real". An empty list, or one with words such as "native", tells nothing, and every answer is yes.

// Why something cannot be, one plain clause, and the way round it.
struct Obstacle {
  std::string reason, advice;
  std::string text() const { return advice.empty() ? reason : reason + "; " + advice; }
};

// Any code: of the same major version and no newer, or PTX that the driver translates.
bool has_code(std::string_view built, int sm);
// Code with the instructions of this architecture (100a) or its family (100f) alone.
bool has_specific_code(std::string_view built, int sm);

// "this executable has no code for sm_100a (it has 90a-real)", and how to build one that has.
Obstacle lacking_code(std::string_view built, int sm);

// Why `needs` are not met on these GPUs (ordinals; the first needs.gpus of them would be used) and the way round it, one line;
// nothing when they are met. `has_library` is for tests; `built` are the architectures that this executable has code for,
// empty where that is not asked.
std::optional<Obstacle> unmet(const Needs& needs, Device device, const Machine& machine, const std::vector<int>& gpus,
                              const std::function<bool(Library)>& has_library = {}, std::string_view built = {});

// Whether those architectures have code for any GPU on which these needs can be met.
bool has_code_for(const Needs& needs, std::string_view built);

// The part of a workload's full size that fits this much device memory: 1 from 16 GB up, 0.5 from 8, 0.25 from 4, else 0.1.
double memory_scale(std::uint64_t device_memory_bytes);
// The smallest of the GPUs given; 1 without one.
double memory_scale(const Machine& machine, const std::vector<int>& gpus);

// Distributed shared memory between the blocks of a cluster.
bool has_dsmem(const Gpu& gpu);
// The tensor memory accelerator: bulk and tensor copies of compute capability 9.0 and above.
bool has_tma(const Gpu& gpu);

struct Answer {
  bool yes = false;
  std::string why;
  std::string advice{};  // what to use instead; may be empty
};
// The fifth-generation tensor core's instructions (tcgen05), tensor memory included.
Answer tcgen05_support(const Gpu& gpu);

}  // namespace aisp::machine
