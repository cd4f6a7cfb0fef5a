// SPDX-License-Identifier: Apache-2.0
// One of several GPUs that serve a model: its pages of the cache with their tables, and the steps that the host puts together.
// What a step needs in integers is filled into pinned memory and sent in one copy, so that no step waits for another.
#pragma once
#include <aisp/setup.hpp>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "arrange.hpp"
#include "decoder.hpp"
#include "pages.hpp"

namespace aisp::decoder {

class ServingGpu {
 public:
  using Pages = attention::PagedCache<page_rows>;
  struct Room {
    int pages, sequences, pages_of_sequence;
    int steps, rows;  // steps in a run, and rows of each
  };

  ServingGpu(Setup& setup, const Shape& shape, const Room& room, int device)
      : shape_{shape},
        room_{room},
        k_{setup.scratch<bf16>(elements(), {.name = "pages of keys", .device = device})},
        v_{setup.scratch<bf16>(elements(), {.name = "pages of values", .device = device})},
        integers_{setup.scratch<int>(words(), {.name = "tables and steps", .device = device})},
        staged_{setup.scratch<int>(words(), {.name = "tables and steps of the host", .memory = Memory::pinned})},
        next_{setup.scratch<int>(count(room.steps * room.rows), {.device = device})} {}

  // In the prepare of each variant: no sequence has a page.
  void clear() {
    pages_ = std::make_unique<PageAllocator>(room_.pages, 15);
    table_ = std::make_unique<PageTable>(*pages_, room_.sequences, room_.pages_of_sequence);
  }
  PageTable& table() { return *table_; }
  PageAllocator& pages() { return *pages_; }
  const int* entries() const { return integers_; }  // of the table, in device memory

  // At the beginning of a run.
  void begin() { used_ = 0; }
  void send_table(cudaStream_t stream) {
    std::ranges::copy(table_->entries(), staged_.get());
    check(cudaMemcpyAsync(integers_, staged_, table_->entries().size_bytes(), cudaMemcpyHostToDevice, stream));
  }
  // A step of these rows with their tokens; without tokens they are the caller's.
  Step<Pages> send(cudaStream_t stream, const Model& model, const Arranged& from, const std::vector<int>& tokens) {
    if (used_ == room_.steps || from.rows() > room_.rows) throw std::logic_error{"a step for which there is no room"};
    const std::size_t at = table_words() + count(used_) * BatchMemory::words(room_.rows);
    const Batch host = BatchMemory::over(staged_ + at, from.rows());
    Batch batch = BatchMemory::over(integers_ + at, from.rows());
    std::ranges::copy(tokens, host.tokens);
    std::ranges::copy(from.sequences, host.sequences);
    std::ranges::copy(from.positions, host.positions);
    std::ranges::copy(from.chosen_rows, const_cast<int*>(host.chosen_rows));
    std::ranges::copy(from.shorts, const_cast<RowBlock*>(host.short_blocks));
    std::ranges::copy(from.longs, const_cast<RowBlock*>(host.long_blocks));
    check(cudaMemcpyAsync(integers_ + at, staged_ + at, BatchMemory::words(from.rows()) * sizeof(int), cudaMemcpyHostToDevice,
                          stream));
    BatchMemory::describe(batch, shape_, from);
    Step<Pages> of_batch = step(model, batch);
    of_batch.next = next_ + used_++ * room_.rows;
    return of_batch;
  }
  Step<Pages> step(const Model& model, const Batch& batch) const {
    const std::size_t head_size = count(shape_.head_size), head = head_size * page_rows;
    Step<Pages> of_batch{
        model, batch, {k_, v_, head_size, head, page_elements(), integers_, room_.pages_of_sequence}, layer_elements(), next_};
    of_batch.overlapping = false;
    return of_batch;
  }
  bf16* keys(int layer, int page) const { return k_ + count(layer) * layer_elements() + count(page) * page_elements(); }
  bf16* values(int layer, int page) const { return v_ + count(layer) * layer_elements() + count(page) * page_elements(); }
  int layers() const { return shape_.layers; }
  std::size_t page_elements() const { return count(page_rows * shape_.kv_columns()); }
  std::size_t layer_elements() const { return count(room_.pages) * page_elements(); }

 private:
  static std::size_t count(int n) { return static_cast<std::size_t>(n); }
  std::size_t elements() const { return count(shape_.layers) * layer_elements(); }
  // Even, since blocks of rows stand among the integers of a step.
  std::size_t table_words() const { return count((room_.sequences * room_.pages_of_sequence + 1) / 2 * 2); }
  std::size_t words() const { return table_words() + count(room_.steps) * BatchMemory::words(room_.rows); }

  Shape shape_;
  Room room_;
  Scratch<bf16> k_, v_;
  Scratch<int> integers_, staged_, next_;
  std::unique_ptr<PageAllocator> pages_;
  std::unique_ptr<PageTable> table_;
  int used_ = 0;
};

}  // namespace aisp::decoder
