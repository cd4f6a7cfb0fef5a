// SPDX-License-Identifier: Apache-2.0
// Causal attention over a sequence that is split over two GPUs. Late rows see more keys, so of two halves the later one has three
// quarters of the work. Cut into four chunks, of which a GPU has the first and the last and the other those between, both have
// half. Keys and values of the other GPU are gathered before, or, as in a ring, come while the GPU attends to its own; the two
// partial results are then merged by their log-sum-exps.
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <cmath>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "attention/forward.hpp"
#include "peer_gpus.hpp"
#include "rows.cuh"

namespace aisp::ch13 {
namespace {

using shared::bf16, shared::Each, shared::Gpus;

constexpr int gpus = 2, chunks = 4;
constexpr std::size_t heads = 16, head_size = 128, row_elements = heads * head_size;
constexpr int merge_threads = 256, row_lanes = head_size / shared::packet;

// o = both results for each row and head, weighted by their sums of exponentials. A part that saw no key has a log-sum of -inf.
__global__ __launch_bounds__(merge_threads) void merge_kernel(uint4* o, const float* log_sums, const uint4* part,
                                                              const float* part_log_sums, unsigned rows) {
  const unsigned row = blockIdx.x * (merge_threads / row_lanes) + threadIdx.x / row_lanes;
  if (row >= rows) return;
  const std::size_t at = std::size_t{row} * row_lanes + threadIdx.x % row_lanes;
  const float of_o = log_sums[row], of_part = part_log_sums[row], level = shared::level(fmaxf(of_o, of_part));
  const float weight_o = exp2f((of_o - level) * shared::log2_e), weight_part = exp2f((of_part - level) * shared::log2_e);
  const float scale = 1 / (weight_o + weight_part);
  float x[shared::packet], y[shared::packet];
  shared::unpack(o[at], x);
  shared::unpack(part[at], y);
#pragma unroll
  for (int i = 0; i < shared::packet; ++i) x[i] = (x[i] * weight_o + y[i] * weight_part) * scale;
  o[at] = shared::pack(x);
}

// The queries of a chunk over `slots` chunks of keys from `first_slot` on.
struct Task {
  int chunk, first_slot, slots;
};
// The chunks of each GPU, and where it keeps keys and values of all of them: what its queries see lies together, and a chunk's
// own keys last. Its own are two slots from first_own on.
struct Split {
  std::array<std::array<int, 2>, gpus> own;
  std::array<std::array<int, chunks>, gpus> slot;  // of each chunk
  std::array<std::array<Task, 2>, gpus> all_keys, own_keys;
  std::array<std::vector<Task>, gpus> others_keys;
};
const Split contiguous{.own = {{{0, 1}, {2, 3}}},
                       .slot = {{{0, 1, 2, 3}, {0, 1, 2, 3}}},
                       .all_keys = {{{Task{1, 0, 2}, {0, 0, 1}}, {Task{3, 0, 4}, {2, 0, 3}}}},
                       .own_keys = {{{Task{1, 0, 2}, {0, 0, 1}}, {Task{3, 2, 2}, {2, 2, 1}}}},
                       .others_keys = {{{}, {{2, 0, 2}, {3, 0, 2}}}}};
const Split zigzag{.own = {{{0, 3}, {1, 2}}},
                   .slot = {{{2, 0, 1, 3}, {0, 1, 2, 3}}},
                   .all_keys = {{{Task{3, 0, 4}, {0, 2, 1}}, {Task{2, 0, 3}, {1, 0, 2}}}},
                   .own_keys = {{{Task{3, 2, 2}, {0, 2, 1}}, {Task{2, 1, 2}, {1, 1, 1}}}},
                   .others_keys = {{{{3, 0, 2}}, {{1, 0, 1}, {2, 0, 1}}}}};

class ContextParallel final : public Workload {
 public:
  explicit ContextParallel(Setup& setup)
      : gpus_{setup}, chunk_{setup.shape(setup.size("tokens"), 808) / chunks}, nccl_{setup, gpus_.ordinals(), gpus} {
    if (gpus_.count() != gpus) throw Unsupported{"this pair is written for two GPUs; choose them with --gpus"};
    // The places of a row's largest scores differ: half of the heads have keys that grow from chunk to chunk, in the others they
    // shrink.
    const Axis all_heads{head_size, heads};
    for (int c = 0; c < chunks; ++c) {
      const float grown = 0.5f + 0.4f * static_cast<float>(c), shrunk = 1.7f - 0.4f * static_cast<float>(c);
      const int gpu = c / 2;
      const auto input = [&](const char* name, const Pattern& pattern) {
        return setup.input<bf16>(chunk_elements(), pattern, {.name = name, .device = gpu, .constant = true});
      };
      q_.add(input("q", normal(0, 1)));
      k_.add(
          input("k", normal(0, 1).times(grown, at(all_heads, 0, heads / 2)).times(shrunk, at(all_heads, heads / 2, heads / 2))));
      v_.add(input("v", normal(0, 1)));
    }
    // In the order of chunks; of two outputs for the same chunk, on both GPUs, a variant writes one.
    for (const auto& [chunk, gpu] : {std::pair{0, 0}, {1, 0}, {1, 1}, {2, 1}, {3, 1}, {3, 0}})
      o_.push_back({chunk, gpu, setup.output<bf16>(chunk_elements(), {.name = "o", .device = gpu})});
    for (int gpu = 0; gpu < gpus; ++gpu) {
      for (Each<Scratch<bf16>>* each : {&all_k_[0], &all_v_[0], &all_k_[1], &all_v_[1]})
        each->add(setup.scratch<bf16>(chunks * chunk_elements(), {.name = "keys or values", .device = gpu}));
      zigzag_q_.add(setup.scratch<bf16>(chunk_elements(), {.name = "q", .device = gpu}));
      parts_.add(setup.scratch<bf16>(2 * chunk_elements(), {.name = "o over the other GPU's keys", .device = gpu}));
      log_sums_.add(setup.scratch<float>(4 * chunk_ * heads, {.name = "log-sum-exps", .device = gpu}));
      taken_.add(setup.scratch<unsigned>(1, {.name = "taken", .device = gpu}));
      copying_.add(setup.stream(gpu));
    }
    watching_ = setup.stream(0);
  }

  // The cost of each GPU: half of what all rows together see, and half of all keys and values.
  Cost cost() const override {
    const auto length = static_cast<double>(chunks * chunk_);
    return {.flops = 4 * row_elements * length * (length + 1) / 2 / gpus,
            .math = Math::bf16,
            .peer_bytes = 2 * 2 * static_cast<double>(chunk_elements() * sizeof(bf16))};
  }

  void compute_reference(Launch&) override {
    for (auto* all : {&reference_k_, &reference_v_}) all->clear();
    for (int c = 0; c < chunks; ++c)
      for (std::size_t i = 0; i < chunk_elements(); ++i) {
        reference_k_.push_back(static_cast<float>(k_[c].host(i)));
        reference_v_.push_back(static_cast<float>(v_[c].host(i)));
      }
  }
  double expected_output(int output, std::size_t index) const override {
    const int chunk = o_[static_cast<std::size_t>(output)].chunk;
    const std::size_t row = index / row_elements, of_head = index % row_elements / head_size * head_size;
    const std::size_t keys = static_cast<std::size_t>(chunk) * chunk_ + row + 1;
    std::array<double, head_size> q;
    for (std::size_t i = 0; i < head_size; ++i) q[i] = q_[chunk].host(row * row_elements + of_head + i) / std::sqrt(128.0);
    double sum = 0, weights = 0;  // float64 reaches to exp(709): no maximum need be taken off
    for (std::size_t key = 0; key < keys; ++key) {
      double score = 0;
      for (std::size_t i = 0; i < head_size; ++i)
        score += q[i] * static_cast<double>(reference_k_[key * row_elements + of_head + i]);
      weights += std::exp(score);
      sum += std::exp(score) * static_cast<double>(reference_v_[key * row_elements + index % row_elements]);
    }
    return sum / weights;
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens", static_cast<double>(chunks * chunk_), "tokens/s");
  }

  // Place each split's data on its GPUs before the run.
  void place_contiguous(Launch& launch) { place(launch, contiguous); }
  void place_zigzag(Launch& launch) { place(launch, zigzag); }
  void place_all(Launch& launch) {
    place(launch, zigzag);
    gpus_.meet(launch.streams);
    for (int gpu = 0; gpu < gpus; ++gpu)
      for_others(zigzag, gpu, [&](const bf16* from, bf16* to) { copy(from, 1 - gpu, to, gpu, launch.streams[gpu]); });
  }
  // A tile that is used before it has come is no number.
  void forget_contiguous(Launch& launch) { forget(launch, contiguous); }
  void forget_zigzag(Launch& launch) { forget(launch, zigzag); }

  void contiguous_gather(Launch& launch) { gather_and_attend(launch, contiguous); }
  void zigzag_gather(Launch& launch) { gather_and_attend(launch, zigzag); }
  void ring(Launch& launch) { attend_in_ring(launch, contiguous); }
  void zigzag_ring(Launch& launch) { attend_in_ring(launch, zigzag); }
  void zigzag_no_exchange(Launch& launch) { attend_all(launch, zigzag); }

 private:
  struct ChunkOutput {
    int chunk, gpu;
    Output<bf16> data;
  };
  struct Result {
    const bf16* o;
    float* log_sums;
  };
  template <class Mask, class Order>
  using Pass = attention::ForwardPass<head_size, head_size, Mask, attention::Dense, attention::Scaled, true, Order>;

  std::size_t chunk_elements() const { return chunk_ * row_elements; }
  const bf16* keys(const Split& split, int gpu, int slot) const {
    return all_k_[&split == &zigzag][gpu] + static_cast<std::size_t>(slot) * chunk_elements();
  }
  const bf16* values(const Split& split, int gpu, int slot) const {
    return all_v_[&split == &zigzag][gpu] + static_cast<std::size_t>(slot) * chunk_elements();
  }
  static int slot(const Split& split, int gpu, int chunk) {
    return split.slot[static_cast<std::size_t>(gpu)][static_cast<std::size_t>(chunk)];
  }
  static std::span<const int> own(const Split& split, int gpu) { return split.own[static_cast<std::size_t>(gpu)]; }

  // Calls use(from, to) for the keys and for the values of each chunk that the other GPU has.
  template <class Use>
  void for_others(const Split& split, int gpu, const Use& use) const {
    const int other = 1 - gpu;
    for (const int chunk : own(split, other)) {
      const int from = slot(split, other, chunk), to = slot(split, gpu, chunk);
      use(keys(split, other, from), const_cast<bf16*>(keys(split, gpu, to)));
      use(values(split, other, from), const_cast<bf16*>(values(split, gpu, to)));
    }
  }

  void copy(const bf16* from, int from_gpu, const bf16* to, int to_gpu, cudaStream_t stream) const {
    check(cudaMemcpyPeerAsync(const_cast<bf16*>(to), gpus_.ordinal(to_gpu), from, gpus_.ordinal(from_gpu),
                              chunk_elements() * sizeof(bf16), stream));
  }
  void place(Launch& launch, const Split& split) const {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      check(cudaMemsetAsync(taken_[gpu], 0, taken_[gpu].bytes(), launch.streams[gpu]));
      for (const int chunk : own(split, gpu)) {
        const auto bring = [&](const bf16* from, const bf16* to) { copy(from, chunk / 2, to, gpu, launch.streams[gpu]); };
        bring(k_[chunk], keys(split, gpu, slot(split, gpu, chunk)));
        bring(v_[chunk], values(split, gpu, slot(split, gpu, chunk)));
        if (chunk / 2 != gpu) bring(q_[chunk], zigzag_q_[gpu]);
      }
    }
  }
  void forget(Launch& launch, const Split& split) const {
    for (int gpu = 0; gpu < gpus; ++gpu)
      for_others(split, gpu, [&](const bf16*, bf16* to) {
        check(cudaMemsetAsync(to, 0xFF, chunk_elements() * sizeof(bf16), launch.streams[gpu]));
      });
    for (int gpu = 0; gpu < gpus; ++gpu) check(cudaMemsetAsync(parts_[gpu], 0xFF, parts_[gpu].bytes(), launch.streams[gpu]));
  }

  Result result(int gpu, int chunk) const {
    for (const ChunkOutput& each : o_)
      if (each.chunk == chunk && each.gpu == gpu)
        return {each.data, log_sums_[gpu] + static_cast<std::size_t>(chunk % 2) * chunk_ * heads};
    throw std::logic_error{"no output for this chunk"};
  }
  Result part(int gpu, int chunk) const {
    const auto place = static_cast<std::size_t>(chunk % 2);
    return {parts_[gpu] + place * chunk_elements(), log_sums_[gpu] + (2 + place) * chunk_ * heads};
  }
  template <class Mask, class Order>
  void attend(Launch& launch, const Split& split, int gpu, const Task& task, const Order& order, const Result& to) const {
    const std::size_t length = static_cast<std::size_t>(task.slots) * chunk_;
    const auto tensor = [](const bf16* data, std::size_t rows) { return attention::rows_first(data, 1, rows, heads, head_size); };
    const bf16* const q = task.chunk / 2 == gpu ? q_[task.chunk].get() : zigzag_q_[gpu].get();
    const Pass<Mask, Order> pass{{tensor(q, chunk_), tensor(keys(split, gpu, task.first_slot), length),
                                  tensor(values(split, gpu, task.first_slot), length), tensor(to.o, chunk_)},
                                 {.mask = {},
                                  .keys = {static_cast<int>(chunk_), static_cast<int>(length)},
                                  .score = {static_cast<float>(1 / std::sqrt(128.0)) * shared::log2_e},
                                  .order = order,
                                  .log_sums = to.log_sums,
                                  .log_sum_strides = {heads, 1, 0}}};
    const SelectedGpu selected{gpus_.ordinal(gpu)};
    pass.run([&](auto kernel, const Grid& grid, const auto&... arguments) {
      launch_kernel(launch.streams[gpu], kernel, grid, arguments...);
    });
  }
  void attend_causal(Launch& launch, const Split& split, int gpu, std::span<const Task> tasks) const {
    for (const Task& task : tasks)
      attend<attention::Causal>(launch, split, gpu, task,
                                attention::longest_first(chunk_, static_cast<std::size_t>(task.slots) * chunk_, 2 * head_size,
                                                         heads, 1, 1, taken_[gpu].get()),
                                result(gpu, task.chunk));
  }
  void attend_all(Launch& launch, const Split& split) const {
    for (int gpu = 0; gpu < gpus; ++gpu) attend_causal(launch, split, gpu, split.all_keys[static_cast<std::size_t>(gpu)]);
    mark_ends(launch);
  }
  // When each GPU is done.
  void mark_ends(Launch& launch) const {
    launch.mark("gpu_0");
    gpus_.order(1, launch.streams[1], watching_);
    launch.mark("gpu_1", watching_);
    gpus_.order(0, watching_, launch.stream);
  }

  // With two ranks an all-gather is one exchange.
  void gather_and_attend(Launch& launch, const Split& split) const {
    nccl_->together([&] {
      for (int gpu = 0; gpu < gpus; ++gpu)
        for_others(split, gpu, [&](const bf16* from, bf16* to) {
          nccl_->send(1 - gpu, from, chunk_elements(), nccl::Type::bf16, gpu, launch.streams[1 - gpu]);
          nccl_->receive(gpu, to, chunk_elements(), nccl::Type::bf16, 1 - gpu, launch.streams[gpu]);
        });
    });
    attend_all(launch, split);
  }
  void attend_in_ring(Launch& launch, const Split& split) const {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      gpus_.order(gpu, launch.streams[gpu], copying_[gpu]);
      for_others(split, gpu, [&](const bf16* from, bf16* to) { copy(from, 1 - gpu, to, gpu, copying_[gpu]); });
      attend_causal(launch, split, gpu, split.own_keys[static_cast<std::size_t>(gpu)]);
      gpus_.order(gpu, copying_[gpu], launch.streams[gpu]);
      for (const Task& task : split.others_keys[static_cast<std::size_t>(gpu)]) {
        const Result whole = result(gpu, task.chunk), more = part(gpu, task.chunk);
        attend<attention::NoMask>(launch, split, gpu, task, attention::in_order(chunk_, heads, 1), more);
        const std::size_t rows = chunk_ * heads, of_block = merge_threads / row_lanes;
        gpus_.launch(gpu, launch.streams[gpu], merge_kernel,
                     {static_cast<unsigned>((rows + of_block - 1) / of_block), merge_threads},
                     reinterpret_cast<uint4*>(const_cast<bf16*>(whole.o)), whole.log_sums, reinterpret_cast<const uint4*>(more.o),
                     more.log_sums, rows);
      }
    }
    mark_ends(launch);
  }

  Gpus gpus_;
  std::size_t chunk_;            // tokens
  Each<Input<bf16>> q_, k_, v_;  // of each chunk
  std::vector<ChunkOutput> o_;
  std::array<Each<Scratch<bf16>>, 2> all_k_, all_v_;  // of both splits: [slot][token][head]
  Each<Scratch<bf16>> zigzag_q_, parts_;
  Each<Scratch<float>> log_sums_;
  Each<Scratch<unsigned>> taken_;
  Each<cudaStream_t> copying_;
  cudaStream_t watching_ = nullptr;
  Opened<Nccl> nccl_;
  std::vector<float> reference_k_, reference_v_;
};

constexpr std::uint32_t outputs_of_contiguous = 0b011011, outputs_of_zigzag = 0b101101;

}  // namespace

extern constinit const Pair context_parallel{
    .teaches =
        "half of a causal sequence is no half of the work: the later GPU has three quarters; give each an early and a late "
        "chunk",
    .lesson = "zigzag_gather",
    .make = make<ContextParallel>,
    .baseline = {.name = "contiguous_gather",
                 .run = call<&ContextParallel::contiguous_gather>,
                 .prepare = call<&ContextParallel::place_contiguous>,
                 .reset = call<&ContextParallel::forget_contiguous>,
                 .needs = {.libraries = {Library::nccl}},
                 .outputs = outputs_of_contiguous},
    .optimized = variants({{.name = "zigzag_gather",
                            .run = call<&ContextParallel::zigzag_gather>,
                            .prepare = call<&ContextParallel::place_zigzag>,
                            .reset = call<&ContextParallel::forget_zigzag>,
                            .needs = {.libraries = {Library::nccl}},
                            .outputs = outputs_of_zigzag},
                           {.name = "zigzag_ring",
                            .run = call<&ContextParallel::zigzag_ring>,
                            .prepare = call<&ContextParallel::place_zigzag>,
                            .reset = call<&ContextParallel::forget_zigzag>,
                            .outputs = outputs_of_zigzag}}),
    .controls = variants({{.name = "ring",
                           .run = call<&ContextParallel::ring>,
                           .prepare = call<&ContextParallel::place_contiguous>,
                           .reset = call<&ContextParallel::forget_contiguous>,
                           .outputs = outputs_of_contiguous},
                          {.name = "zigzag_no_exchange",
                           .run = call<&ContextParallel::zigzag_no_exchange>,
                           .prepare = call<&ContextParallel::place_all>,
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // Weights are rounded to bf16 before they are summed, results once more, and those of a ring before they are merged: 1.6e-3
    // each.
    .tolerance = within(5e-3),
    .needs = {.min_sm = 90, .max_sm = 90, .gpus = 2, .peer_access = true},
    .start = Start::immediate,
    .verification = Verification::small_shape,
    .timeline = true,
    .sizes = sizes({{.name = "tokens", .full = 32768, .multiple = chunks, .most = 131072}}),
    .sweep = cases({{"tokens_4096", "tokens=4096"},
                    {"tokens_8192", "tokens=8192"},
                    {"tokens_16384", "tokens=16384"},
                    {"tokens_32768", "tokens=32768"},
                    {"tokens_65536", "tokens=65536"}}),
    // Chunks that are shorter than a tile, and no multiple of it.
    .edges = cases({{"one_token_each", "tokens=4"}, {"tail", "tokens=1556"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch13
