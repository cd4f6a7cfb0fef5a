// SPDX-License-Identifier: Apache-2.0
#include "pair/host_dependent.hpp"

#include <gtest/gtest.h>

namespace aisp::pair {
namespace {

constexpr Pair waits_for_the_gpu{.teaches = "a kernel", .make = nullptr, .baseline = {"a"}, .optimized = variants({{"b"}})};

template <class Change>
bool with(Change change) {
  Pair pair = waits_for_the_gpu;
  change(pair);
  return host_dependent(pair);
}

TEST(HostDependent, NotWhatOnlyWaitsForItsGpu) {
  EXPECT_FALSE(host_dependent(waits_for_the_gpu));
  EXPECT_FALSE(with([](Pair& p) { p.bound = Bound::compute; }));
  EXPECT_FALSE(with([](Pair& p) { p.cache = Cache::hot; }));
  EXPECT_FALSE(with([](Pair& p) { p.needs = {.min_sm = 90, .dsmem = true, .libraries = {Library::cublas}}; }));
  EXPECT_FALSE(with([](Pair& p) { p.needs = {.attributes = {cudaDevAttrMemoryPoolsSupported}}; }));
}

TEST(HostDependent, WhatRunsOnTheHostOrIsLaunchedInsideTheSample) {
  EXPECT_TRUE(with([](Pair& p) { p.device = Device::host; }));
  EXPECT_TRUE(with([](Pair& p) { p.start = Start::immediate; }));
  for (const Bound bound : {Bound::latency, Bound::transfer, Bound::host}) EXPECT_TRUE(with([&](Pair& p) { p.bound = bound; }));
}

TEST(HostDependent, WhatNeedsMoreThanOneGpu) {
  EXPECT_TRUE(with([](Pair& p) { p.needs.gpus = 2; }));
  EXPECT_TRUE(with([](Pair& p) { p.needs.peer_access = true; }));
  EXPECT_TRUE(with([](Pair& p) { p.needs.cpus = 2; }));
  EXPECT_TRUE(with([](Pair& p) { p.needs = {.attributes = {cudaDevAttrConcurrentManagedAccess}}; }));
  EXPECT_TRUE(with([](Pair& p) {
    p.needs = {.attributes = {cudaDevAttrMemoryPoolsSupported, cudaDevAttrHostRegisterSupported}};
  }));
}

TEST(HostDependent, WhereOneVariantIs) {
  EXPECT_TRUE(with([](Pair& p) { p.baseline.host_callbacks = true; }));
  EXPECT_TRUE(with([](Pair& p) { p.optimized.items_[0].needs.cpus = 2; }));
  EXPECT_TRUE(with([](Pair& p) { p.libraries = variants({{.name = "library", .needs = {.libraries = {Library::cufile}}}}); }));
}

}  // namespace
}  // namespace aisp::pair
