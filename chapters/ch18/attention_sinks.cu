// SPDX-License-Identifier: Apache-2.0
// Decoding without end over the first tokens (sinks) and a window of recent ones, at positions within the cache. A cache that is
// kept in that order is rebuilt for every token: all keys move by one, and are rotated back by one position. A ring moves
// nothing. Its keys can be rotated when they are read. Or they keep the rotation of their place in the text: to the window that
// is the same, and for the sinks there is the query a second time, rotated as if they stood right before the window.
#include <cuda_fp16.h>
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>

#include "cudnn_attention.hpp"
#include "row_cache.hpp"
#include "sink_stream.cuh"

namespace aisp::ch18 {
namespace {

using namespace attention;

constexpr int group = 4, heads = group * kv_heads, steps = 4, row_pieces = head_size / 8;
constexpr int sector = 16, row_sectors = head_size / sector;  // elements of 32 bytes; sectors of a row

// Begins a step: rotates queries to their place in the cache and, for in_ring, in the text; puts the new token's key and value
// into a ring. blockIdx.x: the sequence.
template <Kept kept>
__global__ __launch_bounds__(stream_threads) void begin_step_kernel(Inputs in, Caches to, Rotated out, int step) {
  __shared__ float2 by_place[pairs], by_text[pairs];
  const int sequence = static_cast<int>(blockIdx.x), t = static_cast<int>(threadIdx.x), pair = t % pairs;
  const Stream stream{in.seen[sequence] + step + 1, in.capacity};
  const int newest = stream.cached() - 1, text = stream.tokens - 1;
  if (t < pairs) by_place[t] = angle(in.turns[t], newest);
  else if (t < 2 * pairs) by_text[pair] = angle(in.turns[pair], text);
  __syncthreads();
  for (int head = t / pairs; head < heads; head += stream_threads / pairs) {
    const std::size_t at = (std::size_t(sequence) * heads + head) * pairs + pair;
    const unsigned query = reinterpret_cast<const unsigned*>(in.q)[at];
    reinterpret_cast<unsigned*>(out.by_place)[at] = rotated(query, by_place[pair]);
    if (kept == Kept::in_ring) reinterpret_cast<unsigned*>(out.by_text)[at] = rotated(query, by_text[pair]);
  }
  for (int head = t / pairs; kept != Kept::by_place && head < kv_heads; head += stream_threads / pairs) {
    const std::size_t at = (std::size_t(sequence) * kv_heads + head) * pairs + pair;
    const std::size_t target = ((std::size_t(sequence) * kv_heads + head) * in.capacity + stream.slot_of(text)) * pairs + pair;
    const unsigned key = reinterpret_cast<const unsigned*>(in.new_k)[at];
    reinterpret_cast<unsigned*>(to.k)[target] = kept == Kept::in_ring ? rotated(key, by_text[pair]) : key;
    reinterpret_cast<unsigned*>(to.v)[target] = reinterpret_cast<const unsigned*>(in.new_v)[at];
  }
}

// A new cache from that of the step before: sinks as they are; the window moved by one and rotated back by one position, once the
// cache is full; the new token. blockIdx.x: the KV head of a sequence; a thread has 16 bytes.
__global__ __launch_bounds__(stream_threads) void rebuild_kernel(Inputs in, const bf16* old_k, const bf16* old_v, Caches to,
                                                                 int step) {
  __shared__ float2 back[pairs], newest[pairs];
  const int sequence = static_cast<int>(blockIdx.x) / kv_heads, t = static_cast<int>(threadIdx.x), piece = t % row_pieces;
  const Stream stream{in.seen[sequence] + step + 1, in.capacity};
  const int count = stream.cached(), moved = stream.tokens > stream.capacity ? 1 : 0;
  if (t < pairs) back[t] = angle(in.turns[t], -moved);
  else if (t < 2 * pairs) newest[t - pairs] = angle(in.turns[t - pairs], count - 1);
  __syncthreads();
  const std::size_t first = std::size_t{blockIdx.x} * in.capacity * row_pieces + piece;
  const int stride = static_cast<int>(gridDim.y) * (stream_threads / row_pieces);
  for (int place = static_cast<int>(blockIdx.y) * (stream_threads / row_pieces) + t / row_pieces; place < count;
       place += stride) {
    const bool is_new = place == count - 1, turns = is_new || (place >= sinks && moved > 0);
    const std::size_t from = is_new ? std::size_t{blockIdx.x} * row_pieces + piece
                                    : first + std::size_t(place + (place < sinks ? 0 : moved)) * row_pieces;
    uint4 key = reinterpret_cast<const uint4*>(is_new ? in.new_k : old_k)[from];
    const uint4 value = reinterpret_cast<const uint4*>(is_new ? in.new_v : old_v)[from];
    if (turns) {
      const float2* const by = (is_new ? newest : back) + piece * 4;
      key = make_uint4(rotated(key.x, by[0]), rotated(key.y, by[1]), rotated(key.z, by[2]), rotated(key.w, by[3]));
    }
    reinterpret_cast<uint4*>(to.k)[first + std::size_t(place) * row_pieces] = key;
    reinterpret_cast<uint4*>(to.v)[first + std::size_t(place) * row_pieces] = value;
  }
}

// Keys of a tile turn to their place in the cache as soon as they have arrived, by a table of cosines and sines that L2 holds.
struct RotateOnRead {
  const __half2* table;  // [place][pair]
  Stream stream;
  template <class S>
  __device__ __forceinline__ void operator()(DecodeWarp<S>& own, float (&scores)[8], int first) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int slot = min(first + n * 8 + own.lane() / 4, stream.cached() - 1);
      const uint4* const row = reinterpret_cast<const uint4*>(table + std::size_t(stream.place_of_slot(slot)) * pairs);
#pragma unroll
      for (int i = 0; i < S::pieces; ++i) {
        const uint4 by = row[own.lane() % 4 + i * 4];
        uint4& key = own.keys[n][i];
        const auto turn = [](unsigned bits, unsigned of) {
          return rotated(bits, __half22float2(reinterpret_cast<const __half2&>(of)));
        };
        key = make_uint4(turn(key.x, by.x), turn(key.y, by.y), turn(key.z, by.z), turn(key.w, by.w));
      }
    }
    own.score(scores);
  }
};

// The tile that begins with the sinks is scored twice, and of their rows the scores with the second query are taken.
struct SinksApart {
  const bf16* q;  // rotated for the sinks, of the KV head's group
  template <class S>
  __device__ __forceinline__ void operator()(DecodeWarp<S>& own, float (&scores)[8], int first) const {
    own.score(scores);
    if (first >= sinks) return;
    static_assert(S::rows <= 8 && sinks <= 8);
    DecodeWarp<S> of_sinks;
#pragma unroll
    for (int i = 0; i < S::pieces; ++i) {
      of_sinks.q[0][i] = of_sinks.q[1][i] = uint4{0, 0, 0, 0};
      if (own.lane() / 4 < S::rows)
        of_sinks.q[0][i] = *reinterpret_cast<const uint4*>(q + own.lane() / 4 * head_size + own.lane() % 4 * 8 + i * 32);
#pragma unroll
      for (int n = 0; n < 2; ++n) of_sinks.keys[n][i] = own.keys[n][i];
    }
    float apart[8] = {};
    of_sinks.score(apart);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (first + own.lane() % 4 * 2 + i < sinks) scores[i] = apart[i];
  }
};

using Work = Decode<ContiguousCache, FixedSplits, bf16>;
__global__ __launch_bounds__(decode_threads, 2) void rotate_on_read_kernel(const __grid_constant__ Work work, Inputs in,
                                                                           const __half2* table, int step) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Piece piece;
  work.splits.piece(static_cast<int>(blockIdx.y), piece);
  decode_block<head_size, group, 1>(work, static_cast<int>(blockIdx.x), piece, memory,
                                    RotateOnRead{table, {in.seen[piece.sequence] + step + 1, in.capacity}});
}
__global__ __launch_bounds__(decode_threads, 2) void sinks_apart_kernel(const __grid_constant__ Work work,
                                                                        const bf16* for_sinks) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Piece piece;
  work.splits.piece(static_cast<int>(blockIdx.y), piece);
  const int head = static_cast<int>(blockIdx.x);
  decode_block<head_size, group, 1>(work, head, piece, memory,
                                    SinksApart{for_sinks + (std::size_t(piece.sequence) * heads + head * group) * head_size});
}

// A step in one launch: each block rotates the queries of its group and puts its KV head's new token into the ring. They go
// through global memory to threads of the same block alone. Half of the threads turn to the place, half to the text. The first
// tiles come to L2 meanwhile.
__global__ __launch_bounds__(decode_threads, 2) void whole_step_kernel(const __grid_constant__ Work work, Inputs in, Caches to,
                                                                       Rotated out, int step) {
  static_assert(decode_threads == 2 * pairs);
  extern __shared__ __align__(1024) unsigned char memory[];
  Piece piece;
  work.splits.piece(static_cast<int>(blockIdx.y), piece);
  const int head = static_cast<int>(blockIdx.x), t = static_cast<int>(threadIdx.x), pair = t % pairs;
  const std::size_t row = std::size_t(piece.sequence) * kv_heads + head, first_row = row * in.capacity;
  for (int i = t; i < min(decode_warps * decode_tile, in.capacity) * row_sectors; i += decode_threads) {
    device::prefetch_l2(to.k + (first_row * row_sectors + i) * sector);
    device::prefetch_l2(to.v + (first_row * row_sectors + i) * sector);
  }
  const bool by_text = t >= pairs;
  const Stream stream{in.seen[piece.sequence] + step + 1, in.capacity};
  const float2 by = angle(in.turns[pair], (by_text ? stream.tokens : stream.cached()) - 1);
  const std::size_t first_query = std::size_t(piece.sequence) * heads + head * group;
#pragma unroll
  for (std::size_t i = 0; i < group; ++i) {
    const std::size_t at = (first_query + i) * pairs + pair;
    reinterpret_cast<unsigned*>(by_text ? out.by_text : out.by_place)[at] =
        rotated(reinterpret_cast<const unsigned*>(in.q)[at], by);
  }
  const std::size_t from = row * pairs + pair, target = (first_row + stream.slot_of(stream.tokens - 1)) * pairs + pair;
  if (by_text) reinterpret_cast<unsigned*>(to.k)[target] = rotated(reinterpret_cast<const unsigned*>(in.new_k)[from], by);
  else reinterpret_cast<unsigned*>(to.v)[target] = reinterpret_cast<const unsigned*>(in.new_v)[from];
  __syncthreads();
  decode_block<head_size, group, 1>(work, head, piece, memory, SinksApart{out.by_place + first_query * head_size});
}

class AttentionSinks final : public Workload {
 public:
  explicit AttentionSinks(Setup& setup)
      : batch_{setup.size("batch")},
        capacity_{sinks + setup.size("window")},
        seen_{setup.size("seen")},
        tokens_{setup.input<int>(batch_, HostFill<int>{fill_tokens_seen(seen_, capacity_)},
                                 {.name = "tokens seen", .constant = true})},
        turns_{setup.input<double>(pairs, HostFill<double>{fill_turns}, {.name = "turns", .constant = true})},
        // Scores of sinks are larger, so that a wrong rotation shows.
        k_{setup.input<bf16>(batch_ * kv_heads * capacity_ * head_size,
                             normal(0, 1).times(1.5, at(Axis{head_size, capacity_}, 0, sinks)),
                             {.name = "cached keys", .constant = true})},
        v_{setup.input<bf16>(k_.size(), normal(0, 1), {.name = "cached values", .constant = true})},
        q_{setup.input<bf16>(steps * batch_ * heads * head_size, normal(0, 1), {.name = "q"})},
        new_k_{setup.input<bf16>(steps * batch_ * kv_heads * head_size, normal(0, 1), {.name = "new keys"})},
        new_v_{setup.input<bf16>(new_k_.size(), normal(0, 1), {.name = "new values"})},
        o_{setup.output<bf16>(q_.size(), {.name = "o", .groups = {head_size, steps * batch_ * heads}})},
        caches_{setup.scratch<bf16>(4 * k_.size(), {.name = "caches"})},
        queries_{setup.scratch<bf16>(2 * batch_ * heads * head_size, {.name = "rotated queries"})},
        lengths_{setup.input<int>(steps * batch_, HostFill<int>{fill_rows_cached(seen_, capacity_, batch_)},
                                  {.name = "rows cached in each step", .constant = true})},
        table_{setup.scratch<__half2>(capacity_ * pairs, {.name = "cosines and sines"})},
        reproducible_{setup.reproducible()},
        cudnn_{setup, shared::AttentionSizes{batch_, heads, kv_heads, 1, capacity_, head_size}} {}

  // Each step reads the whole cache once.
  Cost cost() const override {
    double rows = 0;
    for (std::size_t i = 0; i < lengths_.size(); ++i) rows += lengths_.host(i);
    return {.flops = 4 * rows * heads * head_size,
            .math = Math::bf16,
            .bytes = rows * 2 * kv_heads * head_size * sizeof(bf16) + static_cast<double>(q_.bytes() + o_.bytes())};
  }
  void compute_reference(Launch&) override { rows_.forget(steps * batch_ * heads); }
  double expected(std::size_t i) const override {
    const std::size_t row = i / head_size, sequence = row / heads % batch_, head = row % heads / group,
                      step = row / heads / batch_;
    const Stream now = stream(sequence, static_cast<int>(step)), before = stream(sequence, -1);
    // Returns element d of the token at a place, from the input that has it.
    const auto element = [&](const Input<bf16>& cached, const Input<bf16>& fresh, std::size_t place, std::size_t d) -> double {
      const int text = now.text_of(static_cast<int>(place));
      if (text >= before.tokens)
        return fresh.host(((static_cast<std::size_t>(text - before.tokens) * batch_ + sequence) * kv_heads + head) * head_size +
                          d);
      const auto first = static_cast<std::size_t>(text < sinks ? text : text - before.tokens + before.cached());
      return cached.host(((sequence * kv_heads + head) * capacity_ + first) * head_size + d);
    };
    // Only the distance of two rotations counts: here keys turn back to the query.
    const auto key = [&](std::size_t place, std::size_t d) {
      const double turns = turns_.host(d / 2) * (static_cast<double>(place) - (now.cached() - 1));
      const double by = 2 * 3.14159265358979323846 * (turns - std::floor(turns));
      const double x = element(k_, new_k_, place, d / 2 * 2), y = element(k_, new_k_, place, d / 2 * 2 + 1);
      return d % 2 == 0 ? x * std::cos(by) - y * std::sin(by) : x * std::sin(by) + y * std::cos(by);
    };
    return rows_.of(row, [&] {
      return attend(
          static_cast<std::size_t>(now.cached()), [&](std::size_t d) { return q_.host(row * head_size + d); }, key,
          [&](std::size_t place, std::size_t d) { return element(v_, new_v_, place, d); });
    })[i % head_size];
  }

  template <Kept kept>
  void begin(Launch& launch) {
    launch(begin_kernel<kept>, {dim3{static_cast<unsigned>(batch_ * kv_heads), 8}, stream_threads}, inputs(0), cache(0));
  }
  void rebuilt_cache(Launch& launch) {
    for (int step = 0; step < steps; ++step) {
      const Caches from = cache(step % 2), to = cache((step + 1) % 2);
      const bf16 *const old_k = from.k, *const old_v = from.v;
      launch(rebuild_kernel, {dim3{static_cast<unsigned>(batch_ * kv_heads), 16}, stream_threads}, inputs(step), old_k, old_v, to,
             step);
      begin_step<Kept::by_place>(launch, step);
      launch(decode_kernel<head_size, group, 1, ContiguousCache, FixedSplits, bf16>, grid(), work(step, to, by_place()));
      launch.token();
    }
  }
  void fill_table(Launch& launch) {
    launch(fill_table_kernel, {static_cast<unsigned>((table_.size() + stream_threads - 1) / stream_threads), stream_threads},
           turns_.get(), table_.get(), static_cast<int>(table_.size()));
  }
  void ring_rotate_on_read(Launch& launch) {
    for (int step = 0; step < steps; ++step) {
      begin_step<Kept::in_ring_not_rotated>(launch, step);
      const __half2* const table = table_;
      launch(rotate_on_read_kernel, grid(), work(step, cache(0), by_place()), inputs(step), table, step);
      launch.token();
    }
  }
  void ring_buffer(Launch& launch) {
    for (int step = 0; step < steps; ++step) {
      begin_step<Kept::in_ring>(launch, step);
      const bf16* const for_sinks = by_place();
      launch(sinks_apart_kernel, grid(), work(step, cache(0), by_text()), for_sinks);
      launch.token();
    }
  }
  void one_kernel_a_step(Launch& launch) {
    for (int step = 0; step < steps; ++step) {
      launch(whole_step_kernel, grid(), work(step, cache(0), by_text()), inputs(step), cache(0), Rotated{by_place(), by_text()},
             step);
      launch.token();
    }
  }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, q_, k_, v_, o_);
  }
  void cudnn_reading(Launch& launch) {
    for (int step = 0; step < steps; ++step) {
      const std::size_t first = static_cast<std::size_t>(step) * batch_ * heads * head_size;
      cudnn_->run(launch.stream, q_.get() + first, k_, v_, o_.get() + first);
      launch.token();
    }
  }

 private:
  Stream stream(std::size_t sequence, int step) const { return {tokens_.host(sequence) + step + 1, static_cast<int>(capacity_)}; }
  Inputs inputs(int step) const {
    const std::size_t done = static_cast<std::size_t>(step) * batch_;
    return {tokens_,
            turns_,
            k_,
            v_,
            q_.get() + done * heads * head_size,
            new_k_.get() + done * kv_heads * head_size,
            new_v_.get() + done * kv_heads * head_size,
            static_cast<int>(capacity_)};
  }
  Caches cache(int which) const {
    bf16* const k = caches_.get() + 2 * static_cast<std::size_t>(which) * k_.size();
    return {k, k + k_.size()};
  }
  bf16* by_place() const { return queries_; }
  bf16* by_text() const { return queries_.get() + queries_.size() / 2; }
  template <Kept kept>
  void begin_step(Launch& launch, int step) {
    launch(begin_step_kernel<kept>, {static_cast<unsigned>(batch_), stream_threads}, inputs(step), cache(0),
           Rotated{by_place(), by_text()}, step);
  }
  Grid grid() const { return decode_grid<head_size, group>(kv_heads, static_cast<int>(batch_)); }
  Work work(int step, const Caches& cache, const bf16* q) const {
    const std::size_t head = capacity_ * head_size;
    return {q,
            {cache.k, cache.v, head_size, head, kv_heads * head},
            {lengths_.get() + static_cast<std::size_t>(step) * batch_, 1},
            heads,
            score_scale_log2(),
            o_.get() + static_cast<std::size_t>(step) * batch_ * heads * head_size,
            nullptr};
  }

  std::size_t batch_, capacity_, seen_;
  Input<int> tokens_;
  Input<double> turns_;
  Input<bf16> k_, v_, q_, new_k_, new_v_;
  Output<bf16> o_;  // [step][sequence][head]
  Scratch<bf16> caches_, queries_;
  Input<int> lengths_;  // [step][sequence]
  Scratch<__half2> table_;
  bool reproducible_;
  Opened<shared::CudnnAttention> cudnn_;
  shared::RowCache<Row> rows_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair attention_sinks{
    .teaches = "a window with sinks need not move: keys keep their rotation, and a second query rotation places the sinks",
    .lesson = "ring_buffer",
    .make = make<AttentionSinks>,
    .baseline = {.name = "rebuilt_cache",
                 .run = call<&AttentionSinks::rebuilt_cache>,
                 .reset = call<&AttentionSinks::begin<Kept::by_place>>,
                 // Its keys are rounded once more in each of four steps: a score is off by sqrt(6) / sqrt(2) times as much.
                 .tolerance = within(1.8e-2),
                 .kernels = nothing_spilled},
    // The first step is not moving alone.
    .optimized = variants({{.name = "ring_rotate_on_read",
                            .run = call<&AttentionSinks::ring_rotate_on_read>,
                            .prepare = call<&AttentionSinks::fill_table>,
                            .reset = call<&AttentionSinks::begin<Kept::in_ring_not_rotated>>,
                            .kernels = nothing_spilled},
                           {.name = "ring_buffer",
                            .run = call<&AttentionSinks::ring_buffer>,
                            .reset = call<&AttentionSinks::begin<Kept::in_ring>>,
                            .kernels = nothing_spilled},
                           {.name = "one_kernel_a_step",
                            .run = call<&AttentionSinks::one_kernel_a_step>,
                            .reset = call<&AttentionSinks::begin<Kept::in_ring>>,
                            .same_bits_as = "ring_buffer",
                            .kernels = nothing_spilled}}),
    // The time of reading alone: the library cannot rotate the sinks in another way.
    .controls = variants({{.name = "cudnn_reading",
                           .run = call<&AttentionSinks::cudnn_reading>,
                           .prepare = call<&AttentionSinks::tune_cudnn>,
                           .needs = {.libraries = {Library::cudnn}},
                           .outputs = no_outputs}}),
    .bound = Bound::memory,
    // Queries and keys are rounded to bf16 once they are rotated, 1.6e-3 each: a score is off by 2.3e-3, that of a sink, whose
    // key is longer, by 3.4e-3. Over many keys that averages to 3.4e-3 with the roundings of weights and results. Where two keys
    // have all the weight, a row is off by half of the difference of their scores' errors, which is 2.4e-3, and in one row of
    // 10^5 five times that. A row with the sinks' second rotation left out is off by 0.15.
    .tolerance = within(1.2e-2),
    .sizes = sizes({{.name = "batch", .full = 64, .most = 4096},
                    {.name = "window", .full = 4092, .most = 65532, .scales = false},
                    // Tokens before the first step, with full caches of one sequence: others are elsewhere.
                    {.name = "seen", .full = 12000, .most = 1 << 20, .scales = false}}),
    .sweep = cases({{"window_256", "window=256"},
                    {"window_1024", "window=1024"},
                    {"window_4092", "window=4092"},
                    {"window_16380", "window=16380,seen=40000"}}),
    .edges = cases({{"three_tokens", "batch=2,window=60,seen=3"},
                    {"four_tokens", "batch=2,window=60,seen=4"},
                    {"five_tokens", "batch=2,window=60,seen=5"},
                    {"full_in_a_step", "batch=2,window=60,seen=63"},
                    {"four_places", "batch=5,window=61,seen=300"},
                    {"one_token_of_window", "batch=1,window=1,seen=9"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch18
