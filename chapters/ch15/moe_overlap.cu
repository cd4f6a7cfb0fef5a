// SPDX-License-Identifier: Apache-2.0
// A mixture of experts over two GPUs: half of a layer's rows cross the link before the routed experts and their results cross it
// after, and the multiprocessors wait twice. The shared expert needs neither: half of its tokens are computed under the dispatch
// and half under the return. Who moves the rows decides what is left: NCCL's blocks take multiprocessors away from the products,
// copy engines do not.
#include <cuda_bf16.h>
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "moe/reference.cuh"
#include "overlapped_half.hpp"
#include "rows.cuh"
#include "two_gpus.hpp"

namespace aisp::ch15 {
namespace {

using overlapped::Extents, overlapped::Half, overlapped::top_k, overlapped::bf16;
using shared::copy_to_other, shared::on_both, shared::packet;
constexpr int threads = 256;

// A block reads a token and writes it to the rows of its slots.
__global__ __launch_bounds__(threads) void permute_kernel(const uint4* tokens, const int* row_of_slot, uint4* rows, int packets) {
  const int* const places = row_of_slot + std::size_t{blockIdx.x} * top_k;
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads) {
    const uint4 loaded = tokens[std::size_t{blockIdx.x} * packets + i];
#pragma unroll
    for (int k = 0; k < top_k; ++k) rows[static_cast<std::size_t>(places[k]) * packets + i] = loaded;
  }
}

// out = what the shared expert made of the token + the sum of its slots' rows, each times its share.
__global__ __launch_bounds__(threads) void combine_kernel(const uint4* rows, const int* row_of_slot, const float* shares,
                                                          const uint4* of_shared, uint4* out, int packets) {
  const std::size_t token = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads) {
    uint4 loaded[top_k];
#pragma unroll
    for (int k = 0; k < top_k; ++k) loaded[k] = rows[static_cast<std::size_t>(row_of_slot[token * top_k + k]) * packets + i];
    float sum[packet];
    shared::unpack(of_shared[token * packets + i], sum);
#pragma unroll
    for (int k = 0; k < top_k; ++k) {
      float x[packet];
      shared::unpack(loaded[k], x);
      const float share = shares[token * top_k + k];
#pragma unroll
      for (int j = 0; j < packet; ++j) sum[j] = fmaf(share, x[j], sum[j]);
    }
    out[token * packets + i] = shared::pack(sum);
  }
}

class MoeOverlap final : public Workload {
 public:
  explicit MoeOverlap(Setup& setup)
      : gpus_{setup},
        of_{setup.size("tokens"), setup.size("hidden"), setup.size("experts"), setup.size("ffn"), setup.size("shared_ffn")},
        multiprocessors_{static_cast<int>(setup.size("shared_multiprocessors"))},
        channels_{static_cast<int>(setup.size("channels"))},
        halves_{on_both([&](int gpu) {
          return Half{setup, of_, static_cast<moe::Routing>(setup.size("routing")), gpu};
        })},
        exact_{setup.scratch<double>(of_.tokens * of_.hidden, {.name = "float64 results"})},
        exact_activated_{setup.scratch<double>(of_.tokens * std::max(of_.ffn, of_.shared_ffn), {.name = "float64 activations"})},
        index_{setup.scratch<int>(moe::reference::index_words(of_.tokens, of_.experts), {.name = "rows of the reference"})},
        nccl_{setup, gpus_.ordinals(), 2},
        few_{setup, gpus_.ordinals(), 2, channels_} {
    if (of_.experts % 2 != 0 || of_.experts < top_k)
      throw Unsupported{"experts are split over two GPUs: an even number from 8 on"};
  }

  // The cost of one GPU, with half of its slots on the other one.
  Cost cost() const override {
    const double tokens = static_cast<double>(of_.tokens), hidden = static_cast<double>(of_.hidden);
    const double width = static_cast<double>(top_k * of_.ffn + of_.shared_ffn);
    const double weights = static_cast<double>(half(0).routed.bytes() + half(0).common.bytes());
    return {.flops = 6 * tokens * hidden * width,
            .math = Math::bf16,
            .bytes = weights + 4 * tokens * hidden,
            .peer_bytes = tokens * top_k * hidden * sizeof(bf16)};
  }
  Cost variant_cost(std::string_view variant) const override {
    Cost cost = this->cost();
    if (variant == "no_exchange") cost.peer_bytes = 0;
    if (variant.ends_with("_alone")) cost.flops = cost.bytes = 0;
    return cost;
  }

  void compute_reference(Launch& launch) override {
    const auto narrow = [](std::size_t extent) { return static_cast<int>(extent); };
    const int hidden = narrow(of_.hidden), shared_ffn = narrow(of_.shared_ffn);
    const moe::ExpertWeights &first = half(0).routed, &second = half(1).routed;
    const moe::reference::Experts routed{{first.gate_up, second.gate_up},
                                         {first.down, second.down},
                                         narrow(of_.experts),
                                         narrow(of_.of_gpu()),
                                         hidden,
                                         narrow(of_.ffn)};
    for (const std::size_t gpu : {0, 1}) {
      const Half& own = halves_[gpu];
      check(cudaMemsetAsync(exact_, 0, exact_.bytes(), launch.stream));
      moe::reference::add_choices(
          launch.stream, routed, own.tokens, of_.tokens, [&](std::size_t slot) { return own.experts_of.host(slot); }, own.shares,
          top_k, exact_activated_, index_, exact_);
      const moe::reference::Experts common{{own.common.gate_up}, {own.common.down}, 1, 1, hidden, shared_ffn};
      moe::reference::add_choice(launch.stream, common, own.tokens, std::vector<int>(of_.tokens), nullptr, 1, exact_activated_,
                                 index_, exact_);
      expected_[gpu].resize(exact_.size());
      check(cudaMemcpyAsync(expected_[gpu].data(), exact_, exact_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
    }
  }
  double expected_output(int output, std::size_t i) const override { return expected_[static_cast<std::size_t>(output)][i]; }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant.ends_with("_alone")) return;
    metrics.report_rate("token_rate", 2 * static_cast<double>(of_.tokens), "tokens/s");
  }

  // The choices are known: where each slot's row lies, and where groups begin.
  void place(Launch& launch) {
    std::array<moe::Grouped, 2> grouped;
    for (const std::size_t gpu : {0, 1}) {
      std::vector<int> experts_of(of_.slots());
      for (std::size_t slot = 0; slot < of_.slots(); ++slot) experts_of[slot] = halves_[gpu].experts_of.host(slot);
      grouped[gpu] = moe::group_by_expert(experts_of, of_.experts);
      const auto of_first = static_cast<std::size_t>(grouped[gpu].offsets[of_.of_gpu()]);
      kept_[gpu] = gpu == 0 ? of_first : of_.slots() - of_first;
    }
    for (const std::size_t gpu : {0, 1}) {
      const auto first_own = static_cast<int>(gpu == 0 ? 0 : sent_by(1)), first_sent = static_cast<int>(gpu == 0 ? kept_[0] : 0);
      const int sent = static_cast<int>(kept_[gpu] + sent_by(1 - gpu));
      const std::size_t first_expert = gpu * of_.of_gpu();
      std::vector<int> rows = grouped[gpu].row_of_slot, offsets{0};
      for (int& row : rows) {
        const bool is_own = row >= first_own && row < first_own + static_cast<int>(kept_[gpu]);
        row += is_own ? -first_own : sent - first_sent;
      }
      for (const std::size_t source : {gpu, 1 - gpu})
        for (std::size_t expert = first_expert; expert < first_expert + of_.of_gpu(); ++expert)
          offsets.push_back(offsets.back() + grouped[source].offsets[expert + 1] - grouped[source].offsets[expert]);
      copy_to(launch, halves_[gpu].row_of_slot, rows);
      copy_to(launch, halves_[gpu].offsets, offsets);
    }
  }

  void one_stream(Launch& launch) {
    permute(launch);
    exchange(launch, *nccl_, dispatch);
    run_routed(launch);
    exchange(launch, *nccl_, give_back);
    for (const std::size_t gpu : {0, 1}) run_shared(gpu, launch.streams[gpu], 0, of_.tokens, 0);
    combine(launch);
  }
  void shared_overlap(Launch& launch) {
    overlap(launch, multiprocessors_, [&](Way way) { exchange(launch, *nccl_, way); });
  }
  void few_channels(Launch& launch) {
    const SelectedGpu selected{gpus_.ordinal(0)};
    const int others = static_cast<int>(multiprocessors()) - channels_;
    overlap(launch, std::max(others, 2), [&](Way way) { exchange(launch, *few_, way); });
  }
  void copy_engine(Launch& launch) {
    overlap(launch, 0, [&](Way way) { copy(launch, way); });
  }

  // The shared expert next to the routed ones: two streams, and both exchanges are waited for.
  void overlap_elsewhere(Launch& launch) {
    permute(launch);
    exchange(launch, *nccl_, dispatch);
    to_side(launch);
    run_routed(launch);
    for (const std::size_t gpu : {0, 1}) run_shared(gpu, halves_[gpu].side, 0, of_.tokens, 0);
    from_side(launch);
    exchange(launch, *nccl_, give_back);
    combine(launch);
  }
  void no_exchange(Launch& launch) {
    permute(launch);
    run_routed(launch);
    for (const std::size_t gpu : {0, 1}) run_shared(gpu, launch.streams[gpu], 0, of_.tokens, 0);
    combine(launch);
  }
  void exchange_alone(Launch& launch) {
    for (const Way way : {dispatch, give_back}) exchange(launch, *nccl_, way);
  }
  void copies_alone(Launch& launch) {
    for (const Way way : {dispatch, give_back}) copy(launch, way);
  }

 private:
  enum Way : std::uint8_t { dispatch, give_back };
  struct Message {
    const bf16* from;
    bf16* to;
    std::size_t elements;
  };

  const Half& half(int gpu) const { return halves_[static_cast<std::size_t>(gpu)]; }
  std::size_t sent_by(std::size_t gpu) const { return of_.slots() - kept_[gpu]; }
  static void copy_to(Launch& launch, const Scratch<int>& to, const std::vector<int>& numbers) {
    check(cudaMemcpyAsync(to, numbers.data(), numbers.size() * sizeof(int), cudaMemcpyDefault, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  static int packets(std::size_t elements) { return static_cast<int>(elements / packet); }

  void permute(Launch& launch) const {
    for (const int gpu : {0, 1})
      gpus_.launch(gpu, launch.streams[static_cast<std::size_t>(gpu)], permute_kernel,
                   {static_cast<unsigned>(of_.tokens), threads}, reinterpret_cast<const uint4*>(half(gpu).tokens.get()),
                   half(gpu).row_of_slot.get(), reinterpret_cast<uint4*>(half(gpu).rows.get()), packets(of_.hidden));
  }
  void run_routed(Launch& launch) const {
    for (const std::size_t gpu : {0, 1}) {
      const SelectedGpu selected{gpus_.ordinal(static_cast<int>(gpu))};
      halves_[gpu].up.run(launch.streams[gpu]);
      halves_[gpu].down.run(launch.streams[gpu]);
    }
  }
  void run_shared(std::size_t gpu, cudaStream_t stream, std::size_t first, std::size_t count, int multiprocessors) const {
    const SelectedGpu selected{gpus_.ordinal(static_cast<int>(gpu))};
    halves_[gpu].run_shared(stream, first, count, multiprocessors);
  }
  void combine(Launch& launch) const {
    for (const int gpu : {0, 1}) {
      const Half& own = half(gpu);
      gpus_.launch(gpu, launch.streams[static_cast<std::size_t>(gpu)], combine_kernel,
                   {static_cast<unsigned>(of_.tokens), threads}, reinterpret_cast<const uint4*>(own.results.get()),
                   own.row_of_slot.get(), own.shares.get(), reinterpret_cast<const uint4*>(own.of_shared.get()),
                   reinterpret_cast<uint4*>(own.out.get()), packets(of_.hidden));
    }
  }

  // Rows go to the other GPU, after those of its own tokens; results of received rows go back, after all others.
  Message message(std::size_t from, Way way) const {
    const std::size_t to = 1 - from, last = kept_[from] + sent_by(to), last_there = kept_[to] + sent_by(from);
    if (way == dispatch)
      return {halves_[from].rows + last * of_.hidden, halves_[to].rows + kept_[to] * of_.hidden, sent_by(from) * of_.hidden};
    return {halves_[from].results + kept_[from] * of_.hidden, halves_[to].results + last_there * of_.hidden,
            sent_by(to) * of_.hidden};
  }
  void exchange(Launch& launch, const Nccl& nccl, Way way) const {
    nccl.together([&] {
      for (const int from : {0, 1}) {
        const int to = 1 - from;
        const Message sent = message(static_cast<std::size_t>(from), way);
        nccl.send(from, sent.from, sent.elements, nccl::Type::bf16, to, launch.streams[static_cast<std::size_t>(from)]);
        nccl.receive(to, sent.to, sent.elements, nccl::Type::bf16, from, launch.streams[static_cast<std::size_t>(to)]);
      }
    });
  }
  void copy(Launch& launch, Way way) const {
    for (const int from : {0, 1}) {
      const Message sent = message(static_cast<std::size_t>(from), way);
      if (sent.elements > 0)
        copy_to_other(gpus_, from, sent.to, sent.from, sent.elements * sizeof(bf16),
                      launch.streams[static_cast<std::size_t>(from)]);
    }
    gpus_.meet(launch.streams);
  }

  void to_side(Launch& launch) const {
    for (const std::size_t gpu : {0, 1}) gpus_.order(static_cast<int>(gpu), launch.streams[gpu], halves_[gpu].side);
  }
  void from_side(Launch& launch) const {
    for (const std::size_t gpu : {0, 1}) gpus_.order(static_cast<int>(gpu), halves_[gpu].side, launch.streams[gpu]);
  }
  // Half of the shared expert's tokens under each exchange, begun when it begins.
  template <class Exchange>
  void overlap(Launch& launch, int multiprocessors, Exchange exchange) const {
    const std::size_t middle = of_.tokens / 2;
    permute(launch);
    to_side(launch);
    exchange(dispatch);
    for (const std::size_t gpu : {0, 1}) run_shared(gpu, halves_[gpu].side, 0, middle, multiprocessors);
    run_routed(launch);
    to_side(launch);
    exchange(give_back);
    for (const std::size_t gpu : {0, 1}) run_shared(gpu, halves_[gpu].side, middle, of_.tokens - middle, multiprocessors);
    from_side(launch);
    combine(launch);
  }

  shared::Gpus gpus_;
  Extents of_;
  int multiprocessors_, channels_;
  std::array<Half, 2> halves_;
  Scratch<double> exact_, exact_activated_;
  Scratch<int> index_;
  Opened<Nccl> nccl_, few_;
  std::array<std::size_t, 2> kept_{};  // rows of a GPU's own tokens for its own experts
  std::array<std::vector<double>, 2> expected_;
};

constexpr Needs by_nccl{.libraries = {Library::nccl}};
constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair moe_overlap{
    .teaches = "experts on other GPUs wait for tokens twice a layer; the shared expert waits for none and is computed meanwhile",
    .lesson = "shared_overlap",
    .make = make<MoeOverlap>,
    .baseline = {.name = "one_stream",
                 .run = call<&MoeOverlap::one_stream>,
                 .prepare = call<&MoeOverlap::place>,
                 .needs = by_nccl},
    .optimized = variants({{.name = "shared_overlap",
                            .run = call<&MoeOverlap::shared_overlap>,
                            .prepare = call<&MoeOverlap::place>,
                            .needs = by_nccl,
                            .same_bits_as = "one_stream"},
                           {.name = "copy_engine",
                            .run = call<&MoeOverlap::copy_engine>,
                            .prepare = call<&MoeOverlap::place>,
                            .same_bits_as = "one_stream",
                            .kernels = no_spills}}),
    // The shared expert where it hides no exchange; NCCL on fewer multiprocessors; the layer without its exchanges; and the
    // exchanges alone.
    .controls = variants({{.name = "overlap_elsewhere",
                           .run = call<&MoeOverlap::overlap_elsewhere>,
                           .prepare = call<&MoeOverlap::place>,
                           .needs = by_nccl,
                           .same_bits_as = "one_stream"},
                          {.name = "few_channels",
                           .run = call<&MoeOverlap::few_channels>,
                           .prepare = call<&MoeOverlap::place>,
                           .needs = by_nccl,
                           .same_bits_as = "one_stream"},
                          {.name = "no_exchange",
                           .run = call<&MoeOverlap::no_exchange>,
                           .prepare = call<&MoeOverlap::place>,
                           .outputs = no_outputs},
                          {.name = "exchange_alone",
                           .run = call<&MoeOverlap::exchange_alone>,
                           .prepare = call<&MoeOverlap::place>,
                           .needs = by_nccl,
                           .outputs = no_outputs},
                          {.name = "copies_alone",
                           .run = call<&MoeOverlap::copies_alone>,
                           .prepare = call<&MoeOverlap::place>,
                           .outputs = no_outputs}}),
    .bound = Bound::transfer,
    // Activations, results of the experts and of the shared one, and the output are rounded to bf16.
    .tolerance = within(5e-3),
    .needs = {.min_sm = 90, .max_sm = 90, .gpus = 2, .peer_access = true},
    .timeline = true,
    .sizes = sizes({{.name = "tokens", .full = 4096, .most = 16384},
                    {.name = "hidden", .full = 4096, .multiple = 64, .most = 8192, .scales = false},
                    {.name = "experts", .full = 64, .multiple = 2, .most = 512, .scales = false},
                    {.name = "ffn", .full = 512, .multiple = 64, .most = 8192, .scales = false},
                    {.name = "shared_ffn", .full = 4096, .multiple = 64, .most = 16384, .scales = false},
                    {.name = "routing", .full = 0, .least = 0, .most = 3, .scales = false},
                    {.name = "shared_multiprocessors", .full = 88, .least = 2, .most = 1024, .scales = false},
                    {.name = "channels", .full = 16, .most = 32, .scales = false}}),
    .sweep = cases({{"tokens_256", "tokens=256"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_4096", "tokens=4096"},
                    {"shared_ffn_2048", "shared_ffn=2048"},
                    {"shared_ffn_8192", "shared_ffn=8192"},
                    {"multiprocessors_64", "shared_multiprocessors=64"},
                    {"multiprocessors_88", "shared_multiprocessors=88"},
                    {"multiprocessors_104", "shared_multiprocessors=104"},
                    {"multiprocessors_128", "shared_multiprocessors=128"},
                    {"zipf", "routing=1"}}),
    .edges = cases({{"one_token", "tokens=1,hidden=128,experts=8,ffn=64,shared_ffn=64"},
                    {"tail", "tokens=333,hidden=192,ffn=128,shared_ffn=192"},
                    {"zipf", "tokens=500,hidden=128,ffn=64,shared_ffn=128,routing=1"},
                    {"planted", "tokens=700,hidden=128,ffn=64,shared_ffn=128,routing=2"},
                    {"same_experts", "tokens=300,hidden=128,ffn=64,shared_ffn=128,routing=3"}}),
};

}  // namespace aisp::ch15
