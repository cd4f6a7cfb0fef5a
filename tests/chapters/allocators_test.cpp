// SPDX-License-Identifier: Apache-2.0
// The allocators of chapter 13 on addresses without memory, under an audit; and allocators with a planted fault, which the audit
// must find.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ch13/block_pool.hpp"
#include "ch13/free_lists.hpp"
#include "ch13/live_blocks.hpp"

namespace aisp::ch13 {
namespace {

constexpr std::size_t kib = 1024, mib = 1024 * kib;
std::byte* const region = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);

// Segments of made-up addresses, which follow one another without a gap.
class MadeUpSegments {
 public:
  explicit MadeUpSegments(std::size_t* live_bytes) : live_bytes_{live_bytes} {}
  BlockPool::Address make(std::size_t bytes) {
    *live_bytes_ += bytes;
    return std::exchange(next_, next_ + bytes);
  }
  void release(BlockPool::Address, std::size_t bytes) { *live_bytes_ -= bytes; }

 private:
  BlockPool::Address next_ = std::uintptr_t{1} << 40;
  std::size_t* live_bytes_;
};

class MadeUpRange {
 public:
  static std::size_t handle_bytes() { return 20 * mib; }
  BlockPool::Address map(std::size_t bytes) { return std::exchange(next_, next_ + bytes); }
  void unmap_all() { next_ = std::uintptr_t{1} << 40; }

 private:
  BlockPool::Address next_ = std::uintptr_t{1} << 40;
};

// Makes and frees blocks of random sizes in random order under an audit, and frees all at the end unless one is forgotten.
template <class Allocate, class Release>
void churn(const Allocate& allocate, const Release& release, std::size_t most_bytes, bool forgets_one = false) {
  using Held = decltype(allocate(std::size_t{1}));
  std::mt19937_64 random{7};
  struct Live {
    Held block;
    std::size_t bytes;
  };
  std::vector<Live> live;
  LiveBlocks audit;
  const auto address = [](const Held& block) -> const void* {
    if constexpr (requires { block.memory; }) return block.memory;
    else return block;
  };
  const auto free_at = [&](std::size_t i) {
    audit.used(address(live[i].block), live[i].bytes);
    audit.freed(address(live[i].block), live[i].bytes);
    release(live[i].block);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (int turn = 0; turn < 3000; ++turn) {
    if (live.size() > 20 || (!live.empty() && random() % 3 == 0)) free_at(random() % live.size());
    else {
      const std::size_t bytes = 1 + random() % most_bytes;
      live.push_back({allocate(bytes), bytes});
      audit.allocated(address(live.back().block), bytes);
    }
  }
  while (live.size() > (forgets_one ? 1 : 0)) free_at(live.size() - 1);
  audit.require_none();
}

std::string fault_of(const auto& work) {
  try {
    work();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "none";
}

TEST(Allocators, TheAuditFindsPlantedFaults) {
  const auto release = [](FreeLists& lists, const Block& block) { lists.release(block); };
  const auto allocate = [](FreeLists& lists, std::size_t bytes) { return lists.allocate(bytes); };
  const auto fault_with = [](const auto& allocate_from, const auto& release_to, bool forgets_one = false) {
    FreeLists lists{region, 512 * mib};
    return fault_of([&] {
      churn([&](std::size_t bytes) { return allocate_from(lists, bytes); }, [&](const Block& block) { release_to(lists, block); },
            mib, forgets_one);
    });
  };
  EXPECT_EQ(fault_with(allocate, release), "none");
  const auto too_short = [](FreeLists& lists, std::size_t bytes) { return lists.allocate(bytes * 7 / 8); };
  EXPECT_THAT(fault_with(too_short, release), testing::HasSubstr("overlaps a live one"));
  const auto twice = [](FreeLists& lists, const Block& block) { lists.release(block), lists.release(block); };
  EXPECT_THAT(fault_with(allocate, twice), testing::HasSubstr("overlaps a live one"));
  EXPECT_THAT(fault_with(allocate, release, true), testing::HasSubstr("never freed"));

  LiveBlocks audit;
  audit.allocated(region, 100);
  audit.used(region + 50, 50);
  EXPECT_THAT(fault_of([&] { audit.used(region + 50, 51); }), testing::HasSubstr("no live block holds"));
  audit.freed(region, 100);
  EXPECT_THAT(fault_of([&] { audit.used(region, 1); }), testing::HasSubstr("no live block holds"));
  EXPECT_THAT(fault_of([&] { audit.freed(region, 100); }), testing::HasSubstr("not live"));
}

TEST(Allocators, SizeClassesHoldWhatIsAskedForAndLittleMore) {
  for (std::size_t bytes = 1; bytes < 70 * kib; ++bytes) {
    const unsigned of = class_of(bytes);
    ASSERT_GE(class_bytes(of), bytes);
    ASSERT_TRUE(of == 0 || class_bytes(of - 1) < bytes) << bytes;
  }
  EXPECT_EQ(class_bytes(class_of(mib)), mib);
  EXPECT_EQ(class_bytes(class_of(mib + 1)), mib + mib / 4);
}

TEST(Allocators, ABlockFreedOnOneStreamIsNotGivenToAnother) {
  FreeLists first{region, mib}, second{region + mib, mib};
  const Block block = first.allocate(64 * kib);
  first.release(block);
  EXPECT_NE(second.allocate(64 * kib).memory, block.memory);
  EXPECT_EQ(first.allocate(64 * kib).memory, block.memory);
}

TEST(Allocators, SegmentsAreReusedAndGivenBack) {
  std::size_t driver_bytes = 0;
  {
    SegmentAllocator<MadeUpSegments> segments{MadeUpSegments{&driver_bytes}, 4096 * mib, Rounding::granules};
    const auto allocate = [&](std::size_t bytes) { return segments.allocate(bytes); };
    const auto release = [&](void* block) { segments.release(block); };
    churn(allocate, release, 64 * mib);
    EXPECT_EQ(segments.pool().live_bytes(), 0u);
    EXPECT_EQ(segments.pool().reserved_bytes(), driver_bytes);
    EXPECT_GE(segments.pool().peak_reserved_bytes(), segments.pool().peak_live_bytes());
    EXPECT_THROW(segments.release(region), std::runtime_error);
  }
  EXPECT_EQ(driver_bytes, 0u);
}

TEST(Allocators, ARequestThatDoesNotFitLeavesTheAllocatorAsItWas) {
  std::size_t driver_bytes = 0;
  SegmentAllocator<MadeUpSegments> segments{MadeUpSegments{&driver_bytes}, 100 * mib, Rounding::granules};
  void* const held = segments.allocate(60 * mib);
  segments.release(segments.allocate(30 * mib));
  EXPECT_THROW(segments.allocate(50 * mib), OutOfMemory);
  EXPECT_EQ(segments.retries(), 1);
  EXPECT_EQ(segments.pool().live_bytes(), 60 * mib);
  EXPECT_EQ(driver_bytes, 60 * mib);  // the free segment went back before the request was refused
  EXPECT_NE(segments.allocate(40 * mib), held);

  ExpandableAllocator<MadeUpRange> expandable{{}, 100 * mib};
  void* const first = expandable.allocate(60 * mib);
  EXPECT_THROW(expandable.allocate(50 * mib), OutOfMemory);
  expandable.release(first);
  EXPECT_EQ(expandable.allocate(90 * mib), first);
}

TEST(Allocators, ARangeThatGrowsKeepsFreeSpaceInOnePiece) {
  ExpandableAllocator<MadeUpRange> expandable{{}, 4096 * mib};
  churn([&](std::size_t bytes) { return expandable.allocate(bytes); }, [&](void* block) { expandable.release(block); }, 64 * mib);
  EXPECT_EQ(expandable.pool().free_bytes_at_end(), expandable.pool().reserved_bytes());

  // Steps of different sizes and equal sums: the segments of the first do not serve the second.
  std::size_t driver_bytes = 0;
  SegmentAllocator<MadeUpSegments> segments{MadeUpSegments{&driver_bytes}, 4096 * mib, Rounding::granules};
  ExpandableAllocator<MadeUpRange> range{{}, 4096 * mib};
  const auto step = [](auto& allocator, std::vector<std::size_t> sizes_mib) {
    std::vector<void*> blocks;
    for (const std::size_t size : sizes_mib) blocks.push_back(allocator.allocate(size * mib));
    for (void* const block : blocks) allocator.release(block);
    return allocator.pool().reserved_bytes() / mib;
  };
  EXPECT_EQ(step(segments, {40, 60, 100}), 200u);
  EXPECT_EQ(step(segments, {110, 90}), 310u);
  EXPECT_EQ(step(range, {40, 60, 100}), 200u);
  EXPECT_EQ(step(range, {110, 90}), 200u);
}

struct StepEvent {
  std::size_t block, bytes;  // no bytes: the block is freed
};

// Runs a step under an audit; a block that is not freed outlives it and is returned.
std::vector<Block> run_step(PlannedArena& arena, LiveBlocks& audit, const std::vector<StepEvent>& events) {
  std::vector<Block> blocks(8);
  std::vector<std::size_t> sizes(8);
  for (const auto& [block, bytes] : events) {
    if (bytes > 0) {
      blocks[block] = arena.allocate(bytes), sizes[block] = bytes;
      audit.allocated(blocks[block].memory, bytes);
    } else {
      audit.freed(blocks[block].memory, sizes[block]);
      arena.release(blocks[block]);
      sizes[block] = 0;
    }
  }
  std::vector<Block> outliving;
  for (std::size_t b = 0; b < blocks.size(); ++b)
    if (sizes[b] > 0) outliving.push_back(blocks[b]);
  arena.end_step();
  return outliving;
}

TEST(Allocators, APlanIsFollowedUntilAStepIsAnother) {
  FreeLists lists{region, 64 * mib};
  PlannedArena arena{region + 64 * mib, 64 * mib, lists};
  LiveBlocks audit;
  const std::vector<StepEvent> usual{{0, mib}, {1, 2 * mib}, {0, 0}, {2, mib}, {1, 0}, {3, 3 * mib}, {2, 0}, {3, 0}};
  run_step(arena, audit, usual);
  EXPECT_EQ(arena.plans(), 1);
  EXPECT_EQ(arena.arena_bytes(), 4 * mib);  // 3 and 2 together; 0 and 1 where 3 will be
  const std::size_t from_lists = lists.reserved_bytes();
  for (int step = 0; step < 3; ++step) run_step(arena, audit, usual);
  EXPECT_EQ(arena.plans(), 1);
  EXPECT_EQ(lists.reserved_bytes(), from_lists);

  // Block 0 lives longer than planned: 2 must not be put into its place.
  run_step(arena, audit, {{0, mib}, {1, 2 * mib}, {2, mib}, {0, 0}, {1, 0}, {3, 3 * mib}, {2, 0}, {3, 0}});
  EXPECT_EQ(arena.plans(), 2);
  run_step(arena, audit, {{0, mib}, {1, 2 * mib}, {0, 0}, {1, 0}});  // ends early
  EXPECT_EQ(arena.plans(), 3);
  audit.require_none();
}

TEST(Allocators, ABlockThatOutlivesItsStepKeepsItsPlace) {
  FreeLists lists{region, 64 * mib};
  PlannedArena arena{region + 64 * mib, 64 * mib, lists};
  LiveBlocks audit;
  const std::vector<StepEvent> usual{{0, mib}, {1, mib}, {0, 0}, {1, 0}}, keeps_one{{0, mib}, {1, mib}, {0, 0}};
  run_step(arena, audit, usual);
  const std::vector<Block> kept = run_step(arena, audit, keeps_one);  // planned, and not freed when the plan says so
  ASSERT_EQ(kept.size(), 1u);
  run_step(arena, audit, usual);
  audit.freed(kept[0].memory, mib);
  arena.release(kept[0]);
  const int plans = arena.plans();
  for (int step = 0; step < 3; ++step) run_step(arena, audit, usual);
  EXPECT_LE(arena.plans(), plans + 1);
  audit.require_none();
}

TEST(Allocators, PackedBlocksThatLiveTogetherDoNotOverlap) {
  std::mt19937_64 random{3};
  std::vector<Lifetime> blocks;
  for (std::size_t i = 0; i < 300; ++i) {
    const std::size_t birth = random() % 500;
    blocks.push_back({random() % mib, birth, birth + 1 + random() % 60});
  }
  const Packing packing = packed(blocks);
  std::size_t peak = 0;
  for (std::size_t time = 0; time < 600; ++time) {
    LiveBlocks audit;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (blocks[i].birth <= time && time < blocks[i].death) audit.allocated(region + packing.offsets[i], blocks[i].bytes);
    peak = std::max(peak, audit.bytes());
  }
  EXPECT_GE(packing.bytes, peak);
  EXPECT_LT(packing.bytes, peak + peak / 5);
}

}  // namespace
}  // namespace aisp::ch13
