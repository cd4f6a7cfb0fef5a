// SPDX-License-Identifier: Apache-2.0
// Beam search keeps several hypotheses of a request, and after every step some of them go on from another one's tokens. With a
// cache of its own for each beam that copies all keys and values. In a block table it copies page numbers: pages count their
// holders, and only a last page that several beams would write to is copied. Hypotheses of a request have nearly all of their
// pages in common, so that one read of them serves all beams (packed_beams).
#include <aisp/dispatch.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "beam_pages.cuh"
#include "row_cache.hpp"

namespace aisp::ch15 {
namespace {

constexpr double token_bytes = 2.0 * layers * kv_heads * head_size * 2;  // of keys and values, in all layers

class KvCopyOnWrite final : public Workload {
 public:
  explicit KvCopyOnWrite(Setup& setup)
      : search_{static_cast<int>(setup.size("requests")), static_cast<int>(setup.size("beams")),
                static_cast<int>(setup.size("context")),
                static_cast<int>(std::min(setup.size("generated"), setup.size("context")))},
        k_{setup.input<bf16>(pool_elements(), normal(0, 1), {.name = "pages of keys", .constant = true})},
        v_{setup.input<bf16>(pool_elements(), normal(0, 1), {.name = "pages of values", .constant = true})},
        state_{setup.input<int>(search_.state_words(),
                                HostFill<int>{[this](std::span<int> to, std::uint64_t) { search_.fill_state(to); }},
                                {.name = "tables and pages' holders", .constant = true})},
        parents_{setup.input<int>(count(steps * all_beams()), HostFill<int>{[this](std::span<int> to, std::uint64_t) {
                                    for (std::size_t i = 0; i < to.size(); ++i) to[i] = parent_at(static_cast<int>(i));
                                  }},
                                  {.name = "parents", .constant = true})},
        lengths_{setup.input<int>(count(steps * all_beams()), HostFill<int>{[this](std::span<int> to, std::uint64_t) {
                                    for (std::size_t i = 0; i < to.size(); ++i) {
                                      const int at = static_cast<int>(i);
                                      to[i] = search_.length(at % all_beams() / search_.beams()) + at / all_beams() + 1;
                                    }
                                  }},
                                  {.name = "lengths", .constant = true})},
        // Query heads of a group differ in scale, so that their maxima move apart.
        q_{setup.input<bf16>(rows() * head_size, normal(0, 1).times(0.5, 2, all_of(Axis{head_size, group})),
                             {.name = "queries"})},
        new_k_{setup.input<bf16>(rows() / group * head_size, normal(0, 1), {.name = "keys of the steps"})},
        new_v_{setup.input<bf16>(rows() / group * head_size, normal(0, 1), {.name = "values of the steps"})},
        o_{setup.output<bf16>(rows() * head_size, {.name = "o", .groups = {head_size, rows()}})},
        pool_k_{setup.scratch<bf16>(pool_elements())},
        pool_v_{setup.scratch<bf16>(pool_elements())},
        slots_{setup.scratch<bf16>(4 * slot_elements())},
        tables_{setup.scratch<int>(search_.state_words())},
        next_table_{setup.scratch<int>(count(all_beams() * search_.stride()))},
        copied_{setup.scratch<int>(count(all_beams()))},
        shared_pages_{setup.scratch<int>(count(all_beams()))},
        states_{setup.scratch<float>(count((shared_splits + 1) * all_beams() * heads) * head_size)},
        log_sums_{setup.scratch<float>(count((shared_splits + 1) * all_beams() * heads))},
        tickets_{setup.scratch<unsigned>(count(all_beams() * heads))} {
    if (search_.beams() == 6) throw Unsupported{"beams is 2, 4 or 8"};
  }

  // Distinct rows of keys and values once a step, and queries, results and new rows.
  Cost cost() const override {
    double distinct = 0, read = 0;
    for (int r = 0; r < search_.requests(); ++r)
      for (int step = 0; step < steps; ++step) {
        distinct += search_.distinct_rows(r, step);
        read += search_.beams() * (search_.length(r) + step + 1.0);
      }
    const double others = static_cast<double>(q_.bytes() + o_.bytes() + 2 * (new_k_.bytes() + new_v_.bytes()));
    return {.flops = 4 * read * layers * heads * head_size, .math = Math::bf16, .bytes = distinct * token_bytes + others};
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    double moved = 0, kept = 0;
    for (int r = 0; r < search_.requests(); ++r)
      for (int step = 0; step < steps; ++step) {
        const double rows = search_.beams() * (search_.length(r) + step);
        moved += variant == "index_select"     ? rows
                 : variant == "copy_generated" ? rows - search_.beams() * search_.prompt()
                                               : search_.copied_rows(r, step);
        kept +=
            variant == "index_select" || variant == "copy_generated" ? rows + search_.beams() : search_.distinct_rows(r, step);
      }
    metrics.report("moved_by_reorder", moved * token_bytes / steps / 1e6, "MB/step", Metrics::Better::lower);
    metrics.report("distinct_cache", kept * token_bytes / steps / 1e6, "MB", Metrics::Better::lower);
    metrics.report_rate("tokens_per_second", steps * static_cast<double>(all_beams()), "tokens/s");
  }
  void compute_reference(Launch&) override { reference_.forget(rows()); }
  double expected(std::size_t i) const override {
    const std::size_t row = i / head_size;
    return reference_.of(row, [&] { return attend(row); })[i % head_size];
  }
  void validate(std::string_view variant) override {
    if (variant != "block_table" && variant != "packed_beams") return;
    std::vector<int> state(search_.state_words());
    check(cudaMemcpy(state.data(), tables_, tables_.bytes(), cudaMemcpyDeviceToHost));
    static_assert(steps % 2 == 0, "the tables of the last step are those with the holders");
    search_.check_state(state);
  }

  void prepare(Launch& launch) { check(cudaMemsetAsync(tickets_, 0, tickets_.bytes(), launch.stream)); }
  void reset_slots(Launch& launch) {
    for (int side = 0; side < 2; ++side)
      launch(unfold_kernel,
             {dim3{static_cast<unsigned>(search_.context()), 2 * layers, static_cast<unsigned>(all_beams())},
              kv_heads * row_packets},
             packets(k_.get()), packets(v_.get()), state_.get(), search_.pages(), search_.stride(), slots(side), lengths_.get(),
             side == 0 ? search_.context() : search_.prompt(), capacity());
  }
  void reset_pages(Launch& launch) {
    check(cudaMemcpyAsync(pool_k_, k_, k_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
    check(cudaMemcpyAsync(pool_v_, v_, v_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
    check(cudaMemcpyAsync(tables_, state_, state_.bytes(), cudaMemcpyDeviceToDevice, launch.stream));
  }

  void index_select(Launch& launch) { in_slots(launch, 0); }
  void copy_generated(Launch& launch) { in_slots(launch, search_.prompt()); }
  void block_table(Launch& launch) {
    for (int step = 0; step < steps; ++step) {
      reorder_and_append(launch, step);
      for (int layer = 0; layer < layers; ++layer) attend_alone(launch, step, layer, in_pages(step, layer));
    }
  }
  void packed_beams(Launch& launch) {
    for (int step = 0; step < steps; ++step) {
      reorder_and_append(launch, step);
      for (int layer = 0; layer < layers; ++layer)
        dispatch<2, 4>("beams read together", search_.packed(), [&]<int together>() {
          Grid grid =
              decode_grid<head_size, group, together>(kv_heads, all_beams() / search_.packed() * shared_splits + all_beams());
          launch(packed_kernel<together>, grid,
                 Decode<Pages, OwnPieces, float>{q_ + first_row(step, layer) * head_size,
                                                 in_pages(step, layer),
                                                 {lengths(step), shared_pages_},
                                                 heads,
                                                 scale_log2(),
                                                 states_,
                                                 log_sums_},
                 all_beams());
          float* const no_log_sums = nullptr;
          launch(merge_states<head_size, FixedSplits, float, bf16>, merge_grid(all_beams() * heads, 1),
                 FixedSplits{nullptr, shared_splits + 1}, states_.get(), log_sums_.get(), all_beams() * heads,
                 o_ + first_row(step, layer) * head_size, no_log_sums);
        });
    }
  }

 private:
  using Alone = MergedByLast<FixedSplits, bf16>;
  using Row = std::array<double, head_size>;

  static std::size_t count(int n) { return static_cast<std::size_t>(n); }
  static const uint4* packets(const bf16* elements) { return reinterpret_cast<const uint4*>(elements); }
  static uint4* packets(bf16* elements) { return reinterpret_cast<uint4*>(elements); }
  static float scale_log2() { return log2_e / std::sqrt(static_cast<float>(head_size)); }
  int all_beams() const { return search_.all_beams(); }
  int capacity() const { return search_.stride() * page_rows; }  // of slots
  int parent_at(int i) const { return search_.parent(i % all_beams() / search_.beams(), i / all_beams(), i % search_.beams()); }
  std::size_t rows() const { return count(steps * layers * all_beams() * heads); }
  std::size_t first_row(int step, int layer) const { return count((step * layers + layer) * all_beams() * heads); }
  std::size_t pool_elements() const { return layers * count(search_.pages()) * page_elements; }
  std::size_t slot_elements() const { return count(layers * all_beams()) * kv_heads * count(capacity()) * head_size; }
  Rows16 slots(int side) const {
    bf16* const k = slots_ + static_cast<std::size_t>(2 * side) * slot_elements();
    return {packets(k), packets(k + slot_elements())};
  }
  const int* lengths(int step) const { return lengths_.get() + count(step * all_beams()); }
  const int* parents(int step) const { return parents_.get() + count(step * all_beams()); }
  NewRows new_rows(int step) const {
    const std::size_t first = first_row(step, 0) / group * head_size;
    return {packets(new_k_.get() + first), packets(new_v_.get() + first)};
  }

  void in_slots(Launch& launch, int first) {
    const auto chunks = static_cast<unsigned>((search_.context() + steps - first + select_rows - 1) / select_rows),
               beams = static_cast<unsigned>(all_beams());
    for (int step = 0; step < steps; ++step) {
      const Rows16 from = slots(step % 2), to = slots((step + 1) % 2);
      launch(select_kernel, {dim3{chunks, kv_heads * 2 * layers, beams}, threads}, from, to, parents(step), lengths(step), first,
             search_.beams(), capacity());
      launch(append_to_slots_kernel, {dim3{beams, 2 * layers}, threads}, new_rows(step), to, capacity(), lengths(step));
      for (int layer = 0; layer < layers; ++layer) {
        const std::size_t of_layer = slot_elements() / layers * count(layer), head = count(capacity()) * head_size;
        attend_alone(launch, step, layer,
                     ContiguousCache{reinterpret_cast<const bf16*>(to.k) + of_layer,
                                     reinterpret_cast<const bf16*>(to.v) + of_layer, head_size, head, head * kv_heads});
      }
    }
  }
  Tables tables(int step) const {
    int *const first = tables_.get(), *const second = next_table_.get(), *const holders = first + search_.table_words();
    return {step % 2 == 0 ? first : second,
            step % 2 == 0 ? second : first,
            holders,
            holders + search_.pages(),
            holders + 2 * search_.pages(),
            copied_,
            shared_pages_,
            search_.pages(),
            search_.stride(),
            search_.beams(),
            search_.packed()};
  }
  void reorder_and_append(Launch& launch, int step) {
    launch(reorder_kernel, {static_cast<unsigned>(search_.requests()), threads}, tables(step), parents(step), lengths(step));
    launch(append_to_pages_kernel, {dim3{static_cast<unsigned>(all_beams()), 2 * layers}, threads}, tables(step), new_rows(step),
           Rows16{packets(pool_k_.get()), packets(pool_v_.get())}, lengths(step));
  }
  Pages in_pages(int step, int layer) const {
    const std::size_t of_layer = pool_elements() / layers * count(layer);
    return {pool_k_ + of_layer, pool_v_ + of_layer, head_size,       page_rows * head_size,
            page_elements,      tables(step).to,    search_.stride()};
  }
  template <class Cache>
  void attend_alone(Launch& launch, int step, int layer, const Cache& cache) {
    const std::size_t first = first_row(step, layer) * head_size;
    launch(decode_kernel<head_size, group, 1, Cache, Alone, float>, decode_grid<head_size, group>(kv_heads, all_beams() * splits),
           Decode<Cache, Alone, float>{q_ + first,
                                       cache,
                                       {{lengths(step), splits}, tickets_, o_ + first, nullptr},
                                       heads,
                                       scale_log2(),
                                       states_,
                                       log_sums_});
  }

  // A row of the results in float64.
  Row attend(std::size_t row) const {
    const int head = static_cast<int>(row) % heads, beam = static_cast<int>(row) / heads % all_beams(),
              layer = static_cast<int>(row) / heads / all_beams() % layers,
              step = static_cast<int>(row) / heads / all_beams() / layers, request = beam / search_.beams(),
              before = search_.length(request);
    Row q{}, result{};
    for (int d = 0; d < head_size; ++d)
      q[count(d)] = q_.host(row * head_size + count(d)) / std::sqrt(static_cast<double>(head_size));
    // Returns a value at a position, from the row among the pages or among those of the steps.
    const auto value = [&](const Input<bf16>& pages, const Input<bf16>& of_steps, int position, int d) {
      const int of = std::max(position - before, -1),
                owner = request * search_.beams() + search_.ancestor(request, beam % search_.beams(), step, of);
      if (of >= 0)
        return of_steps.host((count((of * layers + layer) * all_beams() + owner) * kv_heads + count(head / group)) * head_size +
                             count(d));
      const int page = state_.host(count(owner * search_.stride() + position / page_rows));
      return pages.host(
          ((count(layer * search_.pages() + page) * kv_heads + count(head / group)) * page_rows + count(position % page_rows)) *
              head_size +
          count(d));
    };
    std::vector<double> scores(count(before + step + 1));
    double most = -1e300, sum = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      for (int d = 0; d < head_size; ++d) scores[i] += q[count(d)] * value(k_, new_k_, static_cast<int>(i), d);
      most = std::max(most, scores[i]);
    }
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const double weight = std::exp(scores[i] - most);
      sum += weight;
      for (int d = 0; d < head_size; ++d) result[count(d)] += weight * value(v_, new_v_, static_cast<int>(i), d);
    }
    for (double& x : result) x /= sum;
    return result;
  }

  BeamSearch search_;
  Input<bf16> k_, v_;  // [layer][page][head][row][head_size]
  Input<int> state_, parents_, lengths_;
  Input<bf16> q_, new_k_, new_v_;
  Output<bf16> o_;
  Scratch<bf16> pool_k_, pool_v_, slots_;
  Scratch<int> tables_, next_table_, copied_, shared_pages_;
  Scratch<float> states_, log_sums_;
  Scratch<unsigned> tickets_;
  shared::RowCache<Row> reference_;
};

}  // namespace

extern constinit const Pair kv_copy_on_write{
    .teaches = "a reorder of beams moves all keys and values of a contiguous cache, and a few page numbers of a block table",
    .lesson = "block_table",
    .make = make<KvCopyOnWrite>,
    .baseline = {.name = "index_select",
                 .run = call<&KvCopyOnWrite::index_select>,
                 .prepare = call<&KvCopyOnWrite::prepare>,
                 .reset = call<&KvCopyOnWrite::reset_slots>},
    .optimized = variants({{.name = "block_table",
                            .run = call<&KvCopyOnWrite::block_table>,
                            .prepare = call<&KvCopyOnWrite::prepare>,
                            .reset = call<&KvCopyOnWrite::reset_pages>,
                            .same_bits_as = "index_select"},
                           {.name = "packed_beams",
                            .run = call<&KvCopyOnWrite::packed_beams>,
                            .prepare = call<&KvCopyOnWrite::prepare>,
                            .reset = call<&KvCopyOnWrite::reset_pages>}}),
    // Beams of a request have one prompt, so that only what was generated need move.
    .controls = variants({{.name = "copy_generated",
                           .run = call<&KvCopyOnWrite::copy_generated>,
                           .prepare = call<&KvCopyOnWrite::prepare>,
                           .reset = call<&KvCopyOnWrite::reset_slots>,
                           .same_bits_as = "index_select"}}),
    .bound = Bound::memory,
    // Weights and results are rounded to bf16 once each, 1.6e-3 and 1.6e-3, and a group of 128 elements scatters.
    .tolerance = within(5e-3),
    .needs = {.min_sm = 80},
    .sizes = sizes({{.name = "requests", .full = 16, .most = 64, .scales = false},
                    {.name = "beams", .full = 4, .multiple = 2, .most = most_beams, .scales = false},
                    {.name = "context", .full = 2048, .multiple = 16, .least = 32, .most = 8192, .scales = false},
                    {.name = "generated", .full = 1024, .multiple = 16, .least = 16, .most = 8192, .scales = false}}),
    .sweep = cases({{"generated_1", "generated=16"},
                    {"generated_25", "generated=512"},
                    {"generated_50", "generated=1024"},
                    {"generated_90", "generated=1840"},
                    {"beams_2", "beams=2"},
                    {"beams_8", "beams=8,requests=8"}}),
    .edges = cases({{"short", "context=32,generated=16"},
                    {"two_beams", "beams=2,requests=5,context=64,generated=32"},
                    {"eight_beams", "beams=8,requests=17,context=48,generated=48"},
                    {"one_request", "requests=1,context=272,generated=256"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch15
