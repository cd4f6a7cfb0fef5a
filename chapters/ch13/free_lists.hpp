// SPDX-License-Identifier: Apache-2.0
// Allocators that hand out parts of one region of device memory and never call the driver: free lists by size class, and a plan
// of offsets made of a recorded step. They touch no memory.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace aisp::ch13 {

// Four size classes to each power of two: 512, 640, 768, 896, 1024, 1280 ... bytes.
inline constexpr std::size_t least_class_bytes = 512;
inline constexpr unsigned size_classes = 4 * 32;
constexpr std::size_t class_bytes(unsigned size_class) {
  return (least_class_bytes << size_class / 4) + (least_class_bytes / 4 << size_class / 4) * (size_class % 4);
}
// The smallest class that holds so many bytes, at least one.
constexpr unsigned class_of(std::size_t bytes) {
  if (bytes <= least_class_bytes) return 0;
  const auto power = static_cast<unsigned>(std::bit_width(bytes - 1)) - 1;  // 2^power < bytes <= 2^(power + 1)
  const std::size_t quarter = std::size_t{1} << power >> 2, above = bytes - (std::size_t{1} << power);
  constexpr unsigned least_power = std::bit_width(least_class_bytes) - 1;
  return 4 * (power - least_power) + static_cast<unsigned>((above + quarter - 1) / quarter);
}

struct Block {
  std::byte* memory = nullptr;  // null: no bytes were asked for
  std::uint32_t number = 0;     // of the planned arena: the step's how many-th allocation it is
  std::uint16_t step = 0;       // of the planned arena: the step that made it
  std::uint8_t size_class = 0;
  bool is_planned = false;
};

// A list of free blocks for each size class. One object serves one stream: the order of the stream is what makes a freed block
// safe to hand out while the kernel that used it still runs.
class FreeLists {
 public:
  FreeLists(std::byte* region, std::size_t bytes) : region_{region}, bytes_{bytes} {
    for (auto& list : free_) list.reserve(16);
  }

  Block allocate(std::size_t bytes) {
    if (bytes == 0) return {};
    const unsigned size_class = class_of(bytes);
    auto& list = free_[size_class];
    if (list.empty()) return {.memory = cut(class_bytes(size_class)), .size_class = static_cast<std::uint8_t>(size_class)};
    std::byte* const memory = list.back();
    list.pop_back();
    return {.memory = memory, .size_class = static_cast<std::uint8_t>(size_class)};
  }
  void release(const Block& block) {
    if (block.memory != nullptr) free_[block.size_class].push_back(block.memory);
  }
  std::size_t reserved_bytes() const { return used_; }

 private:
  std::byte* cut(std::size_t bytes) {
    if (bytes_ - used_ < bytes) throw std::runtime_error{"the region of the free lists is full"};
    std::byte* const memory = region_ + used_;
    used_ += bytes;
    return memory;
  }

  std::byte* region_;
  std::size_t bytes_, used_ = 0;
  std::array<std::vector<std::byte*>, size_classes> free_;
};

// From the event that makes a block to the one that frees it.
struct Lifetime {
  std::size_t bytes = 0;
  std::size_t birth = 0, death = 0;
};

struct Packing {
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
};

// Offsets at which no two blocks that live at the same time overlap: the largest block first, each at the lowest place that is
// free for all its life.
inline Packing packed(const std::vector<Lifetime>& blocks) {
  constexpr std::size_t alignment = 256;
  std::vector<std::size_t> order(blocks.size()), placed;
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  Packing packing{.offsets = std::vector<std::size_t>(blocks.size())};
  const auto end_of = [&](std::size_t i) {
    return packing.offsets[i] + (blocks[i].bytes + alignment - 1) / alignment * alignment;
  };
  for (const std::size_t i : order) {
    std::size_t at = 0;
    for (const std::size_t other : placed) {  // by offset
      if (blocks[other].birth >= blocks[i].death || blocks[i].birth >= blocks[other].death) continue;
      if (packing.offsets[other] >= at + blocks[i].bytes) break;
      at = std::max(at, end_of(other));
    }
    packing.offsets[i] = at;
    packing.bytes = std::max(packing.bytes, end_of(i));
    const auto place = std::upper_bound(placed.begin(), placed.end(), at,
                                        [&](std::size_t offset, std::size_t other) { return offset < packing.offsets[other]; });
    placed.insert(place, i);
  }
  return packing;
}

// Follows the plan of the step before as long as this step makes and frees the same blocks in the same order. From the first
// difference on, blocks come from free lists, and the step is the plan for the next one. Blocks that outlive their step are never
// planned.
class PlannedArena {
 public:
  PlannedArena(std::byte* region, std::size_t bytes, FreeLists& others) : region_{region}, bytes_{bytes}, others_{others} {}

  Block allocate(std::size_t bytes) {
    const std::uint32_t number = made_++;
    if (follows({bytes, number, true}) && plan_.offsets[number] != unplanned) {
      ++planned_live_;
      return {
          .memory = bytes == 0 ? nullptr : region_ + plan_.offsets[number], .number = number, .step = step_, .is_planned = true};
    }
    Block block = others_.allocate(bytes);
    block.number = number;
    block.step = step_;
    return block;
  }
  void release(const Block& block) {
    if (block.step == step_) follows({0, block.number, false});
    if (block.is_planned) --planned_live_;
    else others_.release(block);
  }
  // Between two steps: plans anew if this one was another than planned.
  void end_step() {
    if (!is_following_ || next_ != events_.size()) {
      if (is_following_) events_.resize(next_);
      make_plan();
      ++plans_;
    }
    is_following_ = planned_live_ == 0;  // else the new plan could overlap a block of the old one that lives on
    if (!is_following_) events_.clear();
    next_ = made_ = 0;
    ++step_;
  }
  std::size_t arena_bytes() const { return plan_.bytes; }
  int plans() const { return plans_; }

 private:
  static constexpr std::size_t unplanned = ~std::size_t{0};
  struct Event {
    std::size_t bytes;
    std::uint32_t number;
    bool makes;
    bool operator==(const Event&) const = default;
  };

  bool follows(const Event& event) {
    if (is_following_) {
      if (next_ < events_.size() && events_[next_] == event) {
        ++next_;
        return true;
      }
      is_following_ = false;
      events_.resize(next_);
    }
    events_.push_back(event);
    return false;
  }
  void make_plan() {
    std::vector<Lifetime> all(made_);
    for (std::size_t i = 0; i < events_.size(); ++i) {
      Lifetime& life = all[events_[i].number];
      if (events_[i].makes) life = {events_[i].bytes, i, unplanned};
      else life.death = i;
    }
    std::vector<Lifetime> ending;
    for (const Lifetime& life : all)
      if (life.death != unplanned) ending.push_back(life);
    const Packing packing = packed(ending);
    if (packing.bytes > bytes_) throw std::runtime_error{"the plan does not fit into the arena"};
    plan_ = {std::vector<std::size_t>(made_, unplanned), packing.bytes};
    for (std::size_t i = 0, k = 0; i < all.size(); ++i)
      if (all[i].death != unplanned) plan_.offsets[i] = packing.offsets[k++];
  }

  std::byte* region_;
  std::size_t bytes_;
  FreeLists& others_;
  std::vector<Event> events_;
  Packing plan_;
  std::size_t next_ = 0;
  std::uint32_t made_ = 0;
  std::uint16_t step_ = 0;
  std::size_t planned_live_ = 0;
  int plans_ = 0;
  bool is_following_ = true;
};

}  // namespace aisp::ch13
