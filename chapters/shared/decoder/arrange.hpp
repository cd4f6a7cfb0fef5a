// SPDX-License-Identifier: Apache-2.0
// A step's rows on the host, and their way into device memory.
#pragma once
#include <aisp/device_attribute.hpp>
#include <aisp/setup.hpp>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <vector>

#include "attention.cuh"
#include "batch.hpp"
#include "shape.hpp"

namespace aisp::decoder {

// Tokens of a sequence that a step computes; with `chooses`, the last of them gets a next token.
struct Span {
  int sequence, first_position, tokens;
  bool chooses = true;
};

// Short where it is at most two short blocks: then attention's blocks are many, and each reads keys for 16 rows.
struct Arranged {
  std::vector<int> sequences, positions, chosen_rows;
  std::vector<RowBlock> shorts, longs;
  int most_context = 0;

  Arranged(const Shape& shape, std::span<const Span> spans) {
    const int short_tokens = short_rows / shape.group(), long_tokens = long_rows / shape.group();
    std::vector<std::pair<int, RowBlock>> by_context;
    for (const Span& span : spans) {
      const bool is_short = span.tokens <= 2 * short_tokens;
      for (int done = 0; done < span.tokens;) {
        const int first = static_cast<int>(sequences.size()),
                  now = std::min(span.tokens - done, is_short ? short_tokens : long_tokens);
        if (is_short) shorts.push_back({first, now});
        else by_context.push_back({-(span.first_position + done + now), {first, now}});
        for (int i = 0; i < now; ++i, ++done) {
          sequences.push_back(span.sequence);
          positions.push_back(span.first_position + done);
        }
      }
      most_context = std::max(most_context, span.first_position + span.tokens);
      if (span.chooses) chosen_rows.push_back(static_cast<int>(sequences.size()) - 1);
    }
    std::ranges::stable_sort(by_context, {}, &std::pair<int, RowBlock>::first);
    for (const auto& [context, block] : by_context) longs.push_back(block);
  }
  int rows() const { return static_cast<int>(sequences.size()); }
};

// Room for a step's integers: tokens, sequences, positions, chosen rows and blocks, of at most `rows` rows.
class BatchMemory {
 public:
  BatchMemory(Setup& setup, int rows) : rows_{rows}, memory_{setup.scratch<int>(words(rows))} {}
  static std::size_t words(int rows) { return static_cast<std::size_t>(8 * rows); }

  Batch batch() const { return over(memory_, rows_); }
  // The same over other memory of words(rows) integers, as a pinned copy for the host to fill.
  static Batch over(int* memory, int rows) {
    Batch batch;
    batch.tokens = memory, batch.sequences = memory + rows, batch.positions = memory + 2 * rows,
    batch.chosen_rows = memory + 3 * rows;
    batch.short_blocks = reinterpret_cast<const RowBlock*>(memory + 4 * rows);
    batch.long_blocks = reinterpret_cast<const RowBlock*>(memory + 6 * rows);
    return batch;
  }
  // Copies from pageable memory, which the host may change afterwards. Tokens are the caller's.
  Batch upload(cudaStream_t stream, const Shape& shape, const Arranged& from) const {
    return upload(stream, shape, from, memory_, rows_);
  }
  static Batch upload(cudaStream_t stream, const Shape& shape, const Arranged& from, int* memory, int rows) {
    Batch to = over(memory, rows);
    if (from.rows() > rows) throw std::logic_error{"a step has more rows than there is room for"};
    const auto copy = [&](const void* target, const auto& source) {
      if (!source.empty())
        check(cudaMemcpyAsync(const_cast<void*>(target), source.data(), source.size() * sizeof(source[0]), cudaMemcpyHostToDevice,
                              stream));
    };
    copy(to.sequences, from.sequences);
    copy(to.positions, from.positions);
    copy(to.chosen_rows, from.chosen_rows);
    copy(to.short_blocks, from.shorts);
    copy(to.long_blocks, from.longs);
    check(cudaStreamSynchronize(stream));
    describe(to, shape, from);
    return to;
  }
  // The counts of a step that is in device memory.
  static void describe(Batch& batch, const Shape& shape, const Arranged& from) {
    batch.rows = from.rows();
    batch.chosen = static_cast<int>(from.chosen_rows.size());
    batch.shorts = static_cast<int>(from.shorts.size()), batch.longs = static_cast<int>(from.longs.size());
    batch.most_pieces = std::max((from.most_context + piece_keys - 1) / piece_keys, 1);
    batch.split_longs = batch.longs * shape.kv_heads < 2 * static_cast<int>(multiprocessors());
  }

 private:
  int rows_;
  Scratch<int> memory_;
};

}  // namespace aisp::decoder
