// SPDX-License-Identifier: Apache-2.0
// The needs of shipped pairs on made-up machines: each pair runs, or a reason names what it needs and what there is.
#include "machine/needs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/fake_root.hpp"
#include "pair/all_variants.hpp"
#include "pair/registry.hpp"

namespace aisp::machine {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// That packages are built for.
constexpr std::string_view built = "80-real,86-real,89-real,90a-real,100a-real,120a-real";

struct Kind {
  const char* name;
  int sm;
  double memory_gb;
};
constexpr std::array kinds = {Kind{"NVIDIA A100-SXM4-80GB", 80, 80}, Kind{"NVIDIA GeForce RTX 3090", 86, 24},
                              Kind{"NVIDIA L40S", 89, 48},           Kind{"NVIDIA H200", 90, 150},
                              Kind{"NVIDIA B200", 100, 180},         Kind{"NVIDIA GeForce RTX 5090", 120, 32}};

// With a driver that gives all that a chip has.
Machine machine_of(const Kind& kind, std::size_t gpus = 1) {
  Gpu gpu = other_gpu(kind.name, kind.sm, kind.memory_gb);
  std::ranges::fill(gpu.attributes, 1);
  gpu.attributes[cudaDevAttrClusterLaunch] = kind.sm >= 90 ? 1 : 0;
  return machine_with(std::vector<Gpu>(gpus, gpu));
}

std::optional<Obstacle> obstacle(const Needs& needs, Device device, const Machine& machine) {
  std::vector<int> ordinals;
  for (const Gpu& gpu : machine.gpus) ordinals.push_back(gpu.ordinal);
  return unmet(
      needs, device, machine, ordinals, [](Library) { return true; }, built);
}

// Why a run skips the pair: for its own needs, its baseline's, or those of all its optimized variants. Empty: it runs.
std::string why_skipped(const Pair& pair, const Machine& machine) {
  const auto why = [&](const Needs& needs) { return obstacle(needs, pair.device, machine).value_or(Obstacle{}).text(); };
  if (const std::string reason = why(pair.needs) + why(pair.baseline.needs); !reason.empty()) return reason;
  std::string reasons;
  for (const Variant& variant : pair.optimized) {
    if (why(variant.needs).empty()) return {};
    reasons += std::string{variant.name} + ": " + why(variant.needs) + "\n";
  }
  return reasons;
}

// Returns the words that a reason must have about needs that one such GPU does not meet.
std::vector<std::string> needed_and_there(const Needs& needs, const Kind& kind) {
  const std::string there = "sm_" + std::to_string(kind.sm);
  if (needs.gpus > 1) return {"needs " + std::to_string(needs.gpus) + " GPUs", "found 1"};
  if (needs.tcgen05 && kind.sm != 100) return {"needs tcgen05", "sm_100", there};
  if (kind.sm < needs.min_sm) return {"needs sm_" + std::to_string(needs.min_sm) + " or newer", there};
  if (needs.max_sm != 0 && kind.sm > needs.max_sm) return {"is written for", "sm_" + std::to_string(needs.max_sm), there};
  if (needs.dsmem && kind.sm < 90) return {"needs distributed shared memory", "sm_90", there};
  return {"needs what nobody should have to miss on " + there};
}

TEST(ShippedNeeds, AreMetOrTheReasonNamesWhatIsNeededAndWhatThereIs) {
  ASSERT_GT(pair::registry().size(), 100u);
  std::size_t refused = 0;
  for (const Kind& kind : kinds) {
    const Machine machine = machine_of(kind);
    for (const pair::Entry& entry : pair::registry()) {
      if (entry.pair->device == Device::host) continue;
      std::vector<Needs> all{entry.pair->needs};
      for (const Variant* variant : pair::all_variants(*entry.pair)) all.push_back(variant->needs);
      for (const Needs& needs : all) {
        const std::optional<Obstacle> found = obstacle(needs, Device::gpu, machine);
        if (!found) continue;
        ++refused;
        for (const std::string& part : needed_and_there(needs, kind))
          EXPECT_THAT(found->text(), HasSubstr(part)) << entry.target() << " on " << kind.name;
      }
    }
  }
  EXPECT_GT(refused, 100u);
}

TEST(ShippedNeeds, OfEveryGpuPairAreMetByHopper) {
  const auto* const h200 = std::ranges::find(kinds, 90, &Kind::sm);
  for (const pair::Entry& entry : pair::registry()) {
    if (entry.pair->device == Device::host) continue;
    const auto gpus = static_cast<std::size_t>(entry.pair->needs.gpus);
    EXPECT_THAT(why_skipped(*entry.pair, machine_of(*h200, gpus)), IsEmpty()) << entry.target();
  }
}

TEST(ShippedNeeds, OfHostPairsAreOfNoGpu) {
  for (const pair::Entry& entry : pair::registry()) {
    if (entry.pair->device != Device::host) continue;
    EXPECT_THAT(why_skipped(*entry.pair, machine_without_gpu()), IsEmpty()) << entry.target();
    std::vector<Needs> all{entry.pair->needs};
    for (const Variant* variant : pair::all_variants(*entry.pair)) all.push_back(variant->needs);
    for (const Needs& needs : all) {
      constexpr Needs none;
      EXPECT_EQ(needs.min_sm, none.min_sm) << entry.target();
      EXPECT_EQ(needs.max_sm, none.max_sm) << entry.target();
      EXPECT_EQ(needs.gpus, none.gpus) << entry.target();
      EXPECT_TRUE(std::ranges::equal(needs.attributes, none.attributes)) << entry.target();
      EXPECT_EQ(needs.device_memory, 0u) << entry.target();
      EXPECT_EQ(needs.driver, 0) << entry.target();
      EXPECT_FALSE(needs.peer_access || needs.dsmem || needs.tcgen05) << entry.target();
    }
  }
}

}  // namespace
}  // namespace aisp::machine
