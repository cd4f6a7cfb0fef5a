// SPDX-License-Identifier: Apache-2.0
// One batch of a recommender: 13 dense columns, 26 of categories and the labels, 2.2 MB in 40 arrays. The bytes need about 1 us a
// column, but every copy also has a fixed cost for the call and for starting the engine. Where the loader writes all columns into
// one slab from the start, there is one copy, and a column on the device is an offset into it. The control packs columns that
// exist apart with one thread, and tells whether that still pays.
#include <aisp/pair.hpp>

#include <cstring>
#include <string>
#include <vector>

namespace aisp::ch01 {
namespace {

constexpr std::size_t dense_columns = 13, sparse_columns = 26;
using Word = std::uint32_t;  // of the slab: columns have elements of 4 and of 8 bytes

class PackedTransfers final : public Workload {
 public:
  explicit PackedTransfers(Setup& setup)
      : rows_{setup.scaled(8192, 64)},  // whole multiples of 256 bytes, so every column in the slab is aligned
        dense_{columns<float>(setup, dense_columns, "dense ", uniform(0, 10))},
        sparse_{columns<std::int64_t>(setup, sparse_columns, "sparse ", integers(0, (std::int64_t{1} << 40) - 1))},
        labels_{setup.input<float>(rows_, integers(0, 1), {.name = "labels", .memory = Memory::pinned})},
        slab_{setup.input<Word>(slab_words(), same_batch(), {.name = "slab", .memory = Memory::pinned})},
        packed_here_{setup.scratch<Word>(slab_words(), {.name = "packed here", .memory = Memory::pinned})},
        out_{setup.output<Word>(slab_words(), {.name = "device slab"})} {
    std::size_t offset = 0;
    const auto append = [&](const auto& column) {
      columns_.push_back({column.get(), offset, column.bytes()});
      offset += column.bytes() / sizeof(Word);
    };
    for (const auto& column : dense_) append(column);
    for (const auto& column : sparse_) append(column);
    append(labels_);
  }

  Cost cost() const override { return {.host_to_device = static_cast<double>(out_.bytes())}; }

  // The bits of word `index`, from the column that it belongs to.
  double expected(std::size_t index) const override {
    const std::size_t sparse_start = dense_columns * rows_, labels_start = sparse_start + sparse_columns * 2 * rows_;
    if (index < sparse_start) return bits_of(dense_[index / rows_].host(index % rows_));
    if (index >= labels_start) return bits_of(labels_.host(index - labels_start));
    const std::size_t half = index - sparse_start;  // of a category's 8 bytes, the lower one first
    const auto category = static_cast<std::uint64_t>(sparse_[half / (2 * rows_)].host(half / 2 % rows_));
    return static_cast<double>(static_cast<Word>(category >> half % 2 * 32));
  }

  void column_copies(Launch& launch) {
    for (const Column& column : columns_)
      check(cudaMemcpyAsync(out_ + column.offset, column.source, column.bytes, cudaMemcpyHostToDevice, launch.stream));
  }
  void pack_then_copy(Launch& launch) {
    for (const Column& column : columns_) std::memcpy(packed_here_ + column.offset, column.source, column.bytes);
    check(cudaMemcpyAsync(out_, packed_here_, slab_.bytes(), cudaMemcpyHostToDevice, launch.stream));
  }
  void packed(Launch& launch) { check(cudaMemcpyAsync(out_, slab_, slab_.bytes(), cudaMemcpyHostToDevice, launch.stream)); }

 private:
  struct Column {
    const void* source;
    std::size_t offset;  // in the slab, in words
    std::size_t bytes;
  };

  template <class T>
  std::vector<Input<T>> columns(Setup& setup, std::size_t count, const std::string& name, Pattern values) const {
    std::vector<Input<T>> result;
    for (std::size_t i = 0; i < count; ++i)
      result.push_back(setup.input<T>(rows_, values, {.name = (name + std::to_string(i)).c_str(), .memory = Memory::pinned}));
    return result;
  }
  std::size_t slab_words() const { return (dense_columns + 2 * sparse_columns + 1) * rows_; }

  // The slab holds the same batch. It is declared after the columns, so these are filled first, and it follows their seeds by
  // copying them.
  HostFill<Word> same_batch() {
    return [this](std::span<Word> words, std::uint64_t) {
      for (const Column& column : columns_) std::memcpy(&words[column.offset], column.source, column.bytes);
    };
  }
  static double bits_of(double value) {
    const float number = static_cast<float>(value);
    Word bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
  }

  std::size_t rows_;
  std::vector<Input<float>> dense_;
  std::vector<Input<std::int64_t>> sparse_;
  Input<float> labels_;
  Input<Word> slab_;
  Scratch<Word> packed_here_;
  Output<Word> out_;
  std::vector<Column> columns_;
};

}  // namespace

extern constinit const Pair packed_transfers{
    .teaches = "each copy has a fixed cost of microseconds, so small arrays belong in one transfer",
    .lesson = "packed",
    .make = make<PackedTransfers>,
    .baseline = {.name = "column_copies", .run = call<&PackedTransfers::column_copies>},
    .optimized = variants({{.name = "packed", .run = call<&PackedTransfers::packed>}}),
    .controls = variants({{.name = "pack_then_copy", .run = call<&PackedTransfers::pack_then_copy>}}),
    .bound = Bound::latency,
    .tolerance = exact,
    .start = Start::immediate,                  // the calls are the subject
    .reference_samples = std::size_t{1} << 20,  // every word
};

}  // namespace aisp::ch01
