// SPDX-License-Identifier: Apache-2.0
// A best-fit allocator of device memory with splitting and joining, as frameworks keep one above cudaMalloc. It touches no
// memory: segments come from a source, which tests replace.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

namespace aisp::ch13 {

// A request that does not fit, even after all free segments were given back. The allocator is as it was.
class OutOfMemory : public std::runtime_error {
 public:
  OutOfMemory(std::size_t bytes, std::size_t live_bytes, std::size_t cap_bytes)
      : std::runtime_error{std::to_string(bytes) + " bytes do not fit beside " + std::to_string(live_bytes) +
                           " live ones below a cap of " + std::to_string(cap_bytes)} {}
};

// Free and live blocks of the segments. Neighbours that are free are one block; blocks of two segments are never joined.
class BlockPool {
 public:
  using Address = std::uintptr_t;
  static constexpr std::size_t granule = 512, least_rest = std::size_t{1} << 20;  // a smaller rest is not split off

  // A further segment, all of it free, or more of the segment that ends where this one begins.
  void add_segment(Address first, std::size_t bytes) { add(first, bytes, true); }
  void extend_segment(Address first, std::size_t bytes) { add(first, bytes, blocks_.empty()); }

  // The smallest free block that holds `bytes`, the first of equal ones; 0 where there is none.
  Address take(std::size_t bytes) {
    const auto found = free_.lower_bound({bytes, 0});
    if (found == free_.end()) return 0;
    const auto block = blocks_.find(found->second);
    free_.erase(found);
    if (block->second.bytes - bytes >= least_rest) {
      const Address rest = block->first + bytes;
      blocks_.emplace_hint(std::next(block), rest, Block{block->second.bytes - bytes, true, false});
      free_.emplace(block->second.bytes - bytes, rest);
      block->second.bytes = bytes;
    }
    block->second.is_free = false;
    live_bytes_ += block->second.bytes;
    peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
    return block->first;
  }
  void give(Address address) {
    const auto block = blocks_.find(address);
    if (block == blocks_.end() || block->second.is_free) throw std::runtime_error{"a block is freed that is not live"};
    live_bytes_ -= block->second.bytes;
    block->second.is_free = true;
    insert_free(block);
  }
  // Takes out all segments that are free as a whole, and calls release(first, bytes) for each.
  template <class Release>
  void remove_free_segments(const Release& release) {
    for (auto block = blocks_.begin(); block != blocks_.end();) {
      const auto next = std::next(block);
      const bool is_whole = block->second.begins_segment && (next == blocks_.end() || next->second.begins_segment);
      if (is_whole && block->second.is_free) {
        free_.erase({block->second.bytes, block->first});
        reserved_bytes_ -= block->second.bytes;
        release(block->first, block->second.bytes);
        blocks_.erase(block);
      }
      block = next;
    }
  }

  std::size_t free_bytes_at_end() const {
    return blocks_.empty() || !blocks_.rbegin()->second.is_free ? 0 : blocks_.rbegin()->second.bytes;
  }
  std::size_t reserved_bytes() const { return reserved_bytes_; }
  std::size_t peak_reserved_bytes() const { return peak_reserved_bytes_; }
  std::size_t live_bytes() const { return live_bytes_; }
  std::size_t peak_live_bytes() const { return peak_live_bytes_; }
  void forget_peaks() { peak_reserved_bytes_ = reserved_bytes_, peak_live_bytes_ = live_bytes_; }

 private:
  struct Block {
    std::size_t bytes;
    bool is_free, begins_segment;
  };
  using Blocks = std::map<Address, Block>;

  void add(Address first, std::size_t bytes, bool begins_segment) {
    const auto [block, is_new] = blocks_.emplace(first, Block{bytes, true, begins_segment});
    if (!is_new) throw std::runtime_error{"a segment is added twice"};
    reserved_bytes_ += bytes;
    peak_reserved_bytes_ = std::max(peak_reserved_bytes_, reserved_bytes_);
    insert_free(block);
  }
  // Joins a block that became free with free neighbours of its segment.
  void insert_free(Blocks::iterator block) {
    if (const auto next = std::next(block); next != blocks_.end() && next->second.is_free && !next->second.begins_segment)
      join(block, next);
    if (block != blocks_.begin() && !block->second.begins_segment)
      if (const auto before = std::prev(block); before->second.is_free) {
        free_.erase({before->second.bytes, before->first});
        before->second.bytes += block->second.bytes;
        blocks_.erase(block);
        block = before;
      }
    free_.emplace(block->second.bytes, block->first);
  }
  void join(Blocks::iterator block, Blocks::iterator next) {
    free_.erase({next->second.bytes, next->first});
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }

  Blocks blocks_;
  std::set<std::pair<std::size_t, Address>> free_;
  std::size_t reserved_bytes_ = 0, peak_reserved_bytes_ = 0, live_bytes_ = 0, peak_live_bytes_ = 0;
};

enum class Rounding : std::uint8_t { granules, eighths };

// To a multiple of 512 bytes, or to a power of two with three binary digits after it.
constexpr std::size_t rounded(std::size_t bytes, Rounding rounding) {
  const std::size_t step =
      rounding == Rounding::granules ? BlockPool::granule : std::max(BlockPool::granule, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

// Segments of the size that is asked for. `Source` has Address make(bytes), which returns 0 where there is no memory, and
// void release(first, bytes).
template <class Source>
class SegmentAllocator {
 public:
  static constexpr std::size_t segment_granule = std::size_t{2} << 20;

  SegmentAllocator(Source source, std::size_t cap_bytes, Rounding rounding)
      : source_{std::move(source)}, cap_bytes_{cap_bytes}, rounding_{rounding} {}
  ~SegmentAllocator() { empty(); }
  SegmentAllocator(const SegmentAllocator&) = delete;
  SegmentAllocator& operator=(const SegmentAllocator&) = delete;

  void* allocate(std::size_t bytes) {
    const std::size_t needed = rounded(bytes, rounding_);
    BlockPool::Address block = pool_.take(needed);
    if (block == 0 && !add_segment(needed)) {
      ++retries_;
      empty();
      if (!add_segment(needed)) throw OutOfMemory{bytes, pool_.live_bytes(), cap_bytes_};
    }
    if (block == 0) block = pool_.take(needed);
    return reinterpret_cast<void*>(block);
  }
  void release(void* block) { pool_.give(reinterpret_cast<BlockPool::Address>(block)); }
  // Gives back all segments that hold nothing.
  void empty() {
    pool_.remove_free_segments([this](BlockPool::Address first, std::size_t bytes) { source_.release(first, bytes); });
  }

  const BlockPool& pool() const { return pool_; }
  int retries() const { return retries_; }
  void forget_peaks() { retries_ = 0, pool_.forget_peaks(); }

 private:
  bool add_segment(std::size_t needed) {
    const std::size_t bytes = (needed + segment_granule - 1) / segment_granule * segment_granule;
    if (pool_.reserved_bytes() + bytes > cap_bytes_) return false;
    const BlockPool::Address first = source_.make(bytes);
    if (first != 0) pool_.add_segment(first, bytes);
    return first != 0;
  }

  Source source_;
  std::size_t cap_bytes_;
  Rounding rounding_;
  BlockPool pool_;
  int retries_ = 0;
};

// One segment that grows at its end. `Source` has Address map(bytes), which returns where the new memory begins, void unmap_all()
// and the size of its handles.
template <class Source>
class ExpandableAllocator {
 public:
  ExpandableAllocator(Source source, std::size_t cap_bytes) : source_{std::move(source)}, cap_bytes_{cap_bytes} {}

  void* allocate(std::size_t bytes) {
    const std::size_t needed = rounded(bytes, Rounding::granules);
    BlockPool::Address block = pool_.take(needed);
    if (block == 0) {
      grow(needed - pool_.free_bytes_at_end(), bytes);
      block = pool_.take(needed);
    }
    return reinterpret_cast<void*>(block);
  }
  void release(void* block) { pool_.give(reinterpret_cast<BlockPool::Address>(block)); }
  void empty() {
    pool_.remove_free_segments([this](BlockPool::Address, std::size_t) { source_.unmap_all(); });
  }

  const BlockPool& pool() const { return pool_; }
  int retries() const { return 0; }
  void forget_peaks() { pool_.forget_peaks(); }

 private:
  void grow(std::size_t missing, std::size_t requested) {
    const std::size_t handle = source_.handle_bytes(), bytes = (missing + handle - 1) / handle * handle;
    if (pool_.reserved_bytes() + bytes > cap_bytes_) throw OutOfMemory{requested, pool_.live_bytes(), cap_bytes_};
    pool_.extend_segment(source_.map(bytes), bytes);
  }

  Source source_;
  std::size_t cap_bytes_;
  BlockPool pool_;
};

}  // namespace aisp::ch13
