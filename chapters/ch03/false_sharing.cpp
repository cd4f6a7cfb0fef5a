// SPDX-License-Identifier: Apache-2.0
// Every thread counts the classes of its share of the labels in eight counters of its own, and yet they disturb each other:
// caches own memory by lines of 64 bytes, the counters of two threads lie in one line, and each store takes the line away from
// the other core. Padding gives each thread lines of its own; counting in vector registers needs no line at all until the end.
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace aisp::ch03 {
namespace {

constexpr int classes = 8;
// Two lines: processors fetch lines in pairs, so a neighbouring line is disturbed as well.
constexpr std::size_t padded_bytes = 128;
constexpr std::size_t padded_stride = padded_bytes / sizeof(std::uint32_t);

struct Range {
  const std::uint8_t* begin;
  const std::uint8_t* end;
};

// Volatile makes every label one load and one store of its counter, which is what the plain `++counters[label]` compiles to as
// well (which counter it is only the data tell); it keeps a cleverer compiler from turning the loop into the registers of
// count_in_registers. Where the counters lie is all that `shared_vector` and `padded` differ in.
void count_in_memory(Range labels, volatile std::uint32_t* counters) {
  for (int c = 0; c < classes; ++c) counters[c] = 0;
  for (const std::uint8_t* label = labels.begin; label != labels.end; ++label) counters[*label] = counters[*label] + 1;
}

using Bytes = std::uint8_t __attribute__((vector_size(16)));

// Without an address to be stored to, a count can be a register, and then one comparison counts a class in sixteen labels. The
// eight-bit counts hold 255 such steps, then move to the wide ones on the stack.
void count_in_registers(Range labels, std::uint32_t* counters) {
  std::array<std::uint32_t, classes> local{};
  while (labels.end - labels.begin >= static_cast<std::ptrdiff_t>(sizeof(Bytes))) {
    const auto steps = std::min<std::ptrdiff_t>(255, (labels.end - labels.begin) / static_cast<std::ptrdiff_t>(sizeof(Bytes)));
    std::array<Bytes, classes> found{};
    for (std::ptrdiff_t step = 0; step < steps; ++step, labels.begin += sizeof(Bytes)) {
      Bytes sixteen;
      std::memcpy(&sixteen, labels.begin, sizeof sixteen);
      for (std::uint8_t c = 0; c < classes; ++c) found[c] -= reinterpret_cast<Bytes>(sixteen == c);  // equal lanes hold -1
    }
    for (std::size_t c = 0; c < classes; ++c)
      for (std::size_t lane = 0; lane < sizeof(Bytes); ++lane) local[c] += found[c][lane];
  }
  for (; labels.begin != labels.end; ++labels.begin) ++local[*labels.begin];
  std::copy(local.begin(), local.end(), counters);
}

class FalseSharing final : public Workload {
 public:
  explicit FalseSharing(Setup& setup)
      : count_{setup.scaled(std::size_t{1} << 26, 64)},
        labels_{setup.input<std::uint8_t>(count_, integers(0, classes - 1))},
        counts_{setup.output<std::uint32_t>(classes)},
        team_{setup.threads(setup.cpus())},
        // A vector of the heap may start anywhere in a line; starting at one makes neighbours 2k and 2k + 1 share it in every
        // run.
        shared_{setup.scratch<std::uint32_t>(workers() * classes, {.alignment = 64})},
        padded_{setup.scratch<std::uint32_t>(workers() * padded_stride, {.alignment = padded_bytes})} {}

  Cost cost() const override { return {.host_bytes = static_cast<double>(labels_.bytes() + counts_.bytes())}; }
  double expected(std::size_t index) const override { return reference_[index]; }
  void compute_reference(Launch&) override {
    reference_.fill(0);
    for (std::size_t i = 0; i < count_; ++i) reference_[labels_.host(i)] += 1;
  }

  void shared_vector(Launch&) {
    team_.run([this](int worker) { count_in_memory(share_of(worker), counters(shared_, classes, worker)); });
    merge(shared_, classes);
  }
  void padded(Launch&) {
    team_.run([this](int worker) { count_in_memory(share_of(worker), counters(padded_, padded_stride, worker)); });
    merge(padded_, padded_stride);
  }
  // Back to the shared vector: eight stores of a thread in all cannot hurt.
  void local_then_merge(Launch&) {
    team_.run([this](int worker) { count_in_registers(share_of(worker), counters(shared_, classes, worker)); });
    merge(shared_, classes);
  }

 private:
  std::size_t workers() const { return static_cast<std::size_t>(team_.size()); }
  Range share_of(int worker) const {
    const auto w = static_cast<std::size_t>(worker);
    return {labels_ + count_ * w / workers(), labels_ + count_ * (w + 1) / workers()};
  }
  static std::uint32_t* counters(std::uint32_t* all, std::size_t stride, int worker) {
    return all + stride * static_cast<std::size_t>(worker);
  }
  void merge(const std::uint32_t* all, std::size_t stride) const {
    for (std::size_t c = 0; c < classes; ++c) {
      std::uint32_t sum = 0;
      for (std::size_t worker = 0; worker < workers(); ++worker) sum += all[worker * stride + c];
      counts_[c] = sum;
    }
  }

  std::size_t count_;
  Input<std::uint8_t> labels_;
  Output<std::uint32_t> counts_;
  ThreadTeam& team_;
  Scratch<std::uint32_t> shared_, padded_;
  std::array<double, classes> reference_{};
};

}  // namespace

extern constinit const Pair false_sharing{
    .teaches = "cores own memory by 64-byte lines; two counters in one line move that line back and forth",
    .lesson = "padded",
    .make = make<FalseSharing>,
    .baseline = {.name = "shared_vector", .run = call<&FalseSharing::shared_vector>},
    .optimized = variants({{.name = "padded", .run = call<&FalseSharing::padded>},
                           {.name = "local_then_merge", .run = call<&FalseSharing::local_then_merge>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.cpus = 2},
};

}  // namespace aisp::ch03
