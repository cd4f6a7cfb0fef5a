// SPDX-License-Identifier: Apache-2.0
// A mixture of experts over two GPUs. The usual exchange sends a row for each expert that a token has on the other GPU, eight
// experts to a token, and asks the host how many rows there are. Kernels that store into the other GPU's memory need no host and
// no message; a token then goes there once and is expanded by the product that reads it; and its results are added up before
// they return, so that it comes back once. The products are the same in all variants.
#include <cuda_bf16.h>
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "expert_exchange.cuh"
#include "expert_half.hpp"
#include "moe/reference.cuh"
#include "two_gpus.hpp"

namespace aisp::ch20 {
namespace {

using exchange::Extents, exchange::Half, exchange::threads, exchange::top_k;
using shared::bf16, shared::on_both;

uint4* packets_of(bf16* data) { return reinterpret_cast<uint4*>(data); }

class ExpertParallelMoe final : public Workload {
 public:
  explicit ExpertParallelMoe(Setup& setup)
      : gpus_{setup},
        of_{setup.size("tokens"), setup.size("hidden"), setup.size("experts"), setup.size("ffn")},
        halves_{on_both([&](int gpu) {
          return Half{setup, of_, static_cast<moe::Routing>(setup.size("routing")), gpu};
        })},
        host_offsets_{setup.scratch<int>(2 * (of_.experts + 1), {.name = "offsets on the host", .memory = Memory::pinned})},
        exact_{setup.scratch<double>(of_.tokens * of_.hidden, {.name = "float64 results"})},
        exact_activated_{setup.scratch<double>(of_.tokens * of_.ffn, {.name = "float64 activations"})},
        index_{setup.scratch<int>(moe::reference::index_words(of_.tokens, of_.experts), {.name = "rows of the reference"})},
        nccl_{setup, gpus_.ordinals(), 2} {
    if (of_.experts % 2 != 0 || of_.experts < top_k || of_.experts > moe::most_experts)
      throw Unsupported{"experts are split over two GPUs: an even number from 8 to 512"};
  }

  // The cost of one GPU. A token crosses the link once on each way, unless all its experts are here.
  Cost cost() const override {
    const double elements = static_cast<double>(of_.tokens * of_.hidden);
    return {.flops = 6 * elements * static_cast<double>(top_k * of_.ffn),
            .math = Math::bf16,
            .bytes = static_cast<double>(halves_[0].weights.bytes()) + 4 * elements,
            .peer_bytes = 4 * elements * (1 - 1.0 / (1 << top_k))};
  }
  Cost variant_cost(std::string_view variant) const override {
    Cost cost = this->cost();
    if (variant == "products_alone") cost.peer_bytes = 0;
    return cost;
  }

  void compute_reference(Launch& launch) override {
    const auto narrow = [](std::size_t extent) { return static_cast<int>(extent); };
    const moe::ExpertWeights &first = halves_[0].weights, &second = halves_[1].weights;
    const moe::reference::Experts experts{{first.gate_up, second.gate_up},
                                          {first.down, second.down},
                                          narrow(of_.experts),
                                          narrow(of_.of_gpu()),
                                          narrow(of_.hidden),
                                          narrow(of_.ffn)};
    for (const std::size_t gpu : {0, 1}) {
      const Half& own = halves_[gpu];
      check(cudaMemsetAsync(exact_, 0, exact_.bytes(), launch.stream));
      moe::reference::add_choices(
          launch.stream, experts, own.tokens, of_.tokens, [&](std::size_t slot) { return own.experts_of.host(slot); }, own.shares,
          top_k, exact_activated_, index_, exact_);
      expected_[gpu].resize(exact_.size());
      check(cudaMemcpyAsync(expected_[gpu].data(), exact_, exact_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
    }
  }
  double expected_output(int output, std::size_t i) const override { return expected_[static_cast<std::size_t>(output)][i]; }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (!variant.ends_with("_alone")) metrics.report_rate("token_rate", 2 * static_cast<double>(of_.tokens), "tokens/s");
  }

  void clear(Launch& launch) {
    for (const std::size_t gpu : {0, 1}) {
      const SelectedGpu selected{gpus_.ordinal(static_cast<int>(gpu))};
      check(cudaMemsetAsync(halves_[gpu].done, 0, halves_[gpu].done.bytes(), launch.streams[gpu]));
    }
  }
  void clear_and_plan(Launch& launch) {
    clear(launch);
    publish(launch);
    plan(launch, {.is_by_token = true, .rows_return = false});
  }

  void nccl_all_to_all(Launch& launch) {
    publish(launch);
    plan(launch, {});
    gpus_.meet(launch.streams);
    std::array<Counts, 2> counts{};
    for (const std::size_t gpu : {0, 1})
      check(cudaMemcpyAsync(host_offsets_ + gpu * (of_.experts + 1), halves_[gpu].offsets, halves_[gpu].offsets.bytes(),
                            cudaMemcpyDeviceToHost, launch.streams[gpu]));
    for (const std::size_t gpu : {0, 1}) {
      check(cudaStreamSynchronize(launch.streams[gpu]));
      const int* const offsets = host_offsets_ + gpu * (of_.experts + 1);
      counts[gpu] = {static_cast<std::size_t>(offsets[of_.of_gpu()]),
                     static_cast<std::size_t>(offsets[of_.experts] - offsets[of_.of_gpu()])};
    }
    const auto after_own = [&](std::size_t gpu, const Scratch<bf16>& rows) { return rows + counts[gpu].own * of_.hidden; };
    // Rows of the other GPU are numbered from its own ones' end.
    const auto from_there = [&](std::size_t gpu, const Scratch<bf16>& rows) { return rows - counts[1 - gpu].own * of_.hidden; };
    permute(launch, [&](std::size_t gpu) { return from_there(gpu, halves_[gpu].sent); });
    message(launch, [&](std::size_t from) {
      return Message{halves_[from].sent, after_own(1 - from, halves_[1 - from].arrived), counts[1 - from].others * of_.hidden};
    });
    launch.mark("dispatched");
    multiply(launch);
    message(launch, [&](std::size_t from) {
      return Message{after_own(from, halves_[from].results), halves_[1 - from].returned, counts[from].others * of_.hidden};
    });
    combine(launch, [&](std::size_t gpu) { return from_there(gpu, halves_[gpu].returned); });
  }

  // Rows are stored where the other GPU's products read them, and results are loaded from where they lie.
  void one_sided(Launch& launch) {
    publish(launch);
    plan(launch, {});
    gpus_.meet(launch.streams);
    permute(launch, [&](std::size_t gpu) { return halves_[1 - gpu].arrived.get(); });
    gpus_.meet(launch.streams);
    launch.mark("dispatched");
    multiply(launch);
    gpus_.meet(launch.streams);
    combine(launch, [&](std::size_t gpu) { return halves_[1 - gpu].results.get(); });
  }
  void dedup_dispatch(Launch& launch) {
    publish(launch);
    dispatch(launch);
    plan(launch, {.is_by_token = true});
    launch.mark("dispatched");
    multiply(launch);
    gpus_.meet(launch.streams);
    combine(launch, [&](std::size_t gpu) { return halves_[1 - gpu].results.get(); });
  }
  void reduced_combine(Launch& launch) {
    publish(launch);
    dispatch(launch);
    plan(launch, {.is_by_token = true, .rows_return = false});
    launch.mark("dispatched");
    multiply(launch);
    for (const int gpu : {0, 1}) reduce_others(launch, gpu, half(1 - gpu).sums);
    gpus_.meet(launch.streams);
    reduce_own(launch);
  }
  void nccl_dedup(Launch& launch) {
    keep(launch);
    publish(launch);
    message(launch, [&](std::size_t from) {
      const Half& there = halves_[1 - from];
      return Message{halves_[from].tokens, there.arrived + there.tokens.size(), there.tokens.size()};
    });
    plan(launch, {.is_by_token = true});
    launch.mark("dispatched");
    multiply(launch);
    gpus_.meet(launch.streams);
    combine(launch, [&](std::size_t gpu) { return halves_[1 - gpu].results.get(); });
  }
  void products_alone(Launch& launch) { multiply(launch); }

 private:
  struct Counts {
    std::size_t own, others;  // rows of a GPU's experts, by whose tokens they are
  };
  struct Message {
    const bf16* from;
    bf16* to;
    std::size_t elements;
  };
  struct Plan {
    bool is_by_token = false;  // products read tokens; else rows
    bool rows_return = true;   // the other GPU gets to know the rows of its slots
  };

  const Half& half(int gpu) const { return halves_[static_cast<std::size_t>(gpu)]; }
  template <class... Parameters, class... Arguments>
  void run(Launch& launch, int gpu, void (*kernel)(Parameters...), std::size_t blocks, unsigned block_threads,
           Arguments&&... arguments) const {
    gpus_.launch(gpu, launch.streams[static_cast<std::size_t>(gpu)], kernel, {static_cast<unsigned>(blocks), block_threads},
                 std::forward<Arguments>(arguments)...);
  }
  static std::size_t blocks_for(std::size_t elements) { return (elements + threads - 1) / threads; }

  void publish(Launch& launch) const {
    for (const int gpu : {0, 1}) {
      const Half &here = half(gpu), &there = half(1 - gpu);
      run(launch, gpu, exchange::publish_kernel, blocks_for(of_.slots()), threads, here.experts_of.get(), here.shares.get(),
          of_.slots(), here.split, here.groups.get(), there.groups.get(), there.others_shares.get());
    }
  }
  // Numbers the rows of each GPU's experts, once both have told whose slots are whose.
  void plan(Launch& launch, const Plan& how) const {
    gpus_.meet(launch.streams);
    for (const int gpu : {0, 1}) {
      const Half &here = half(gpu), &there = half(1 - gpu);
      run(launch, gpu, moe::rank_slots_kernel, static_cast<std::size_t>(moe::tiles_of(here.all_slots())), moe::tile_slots,
          here.ranking());
      run(launch, gpu, exchange::place_kernel, blocks_for(2 * of_.slots()), threads, here.ranking(), of_.slots(), how.is_by_token,
          here.rows.get(), how.rows_return ? there.rows.get() : here.others_rows.get(), here.read_of_row.get());
    }
  }
  template <class Others>
  void permute(Launch& launch, Others others) const {
    for (const int gpu : {0, 1})
      run(launch, gpu, exchange::permute_kernel, of_.tokens, threads, half(gpu).token_packets(), half(gpu).experts_of.get(),
          half(gpu).rows.get(), half(gpu).split, packets_of(half(gpu).arrived), packets_of(others(static_cast<std::size_t>(gpu))),
          of_.packets());
  }
  void dispatch(Launch& launch) const {
    for (const int gpu : {0, 1})
      run(launch, gpu, exchange::dispatch_kernel, of_.tokens, threads, half(gpu).token_packets(), half(gpu).experts_of.get(),
          half(gpu).split, packets_of(half(gpu).arrived), packets_of(half(1 - gpu).arrived + half(gpu).tokens.size()),
          of_.packets());
  }
  void keep(Launch& launch) const {
    for (const std::size_t gpu : {0, 1})
      check(cudaMemcpyAsync(halves_[gpu].arrived, halves_[gpu].tokens, halves_[gpu].tokens.bytes(), cudaMemcpyDeviceToDevice,
                            launch.streams[gpu]));
  }
  template <class MessageFrom>
  void message(Launch& launch, MessageFrom message_from) const {
    nccl_->together([&] {
      for (const int from : {0, 1}) {
        const Message sent = message_from(static_cast<std::size_t>(from));
        nccl_->send(from, sent.from, sent.elements, nccl::Type::bf16, 1 - from, launch.streams[static_cast<std::size_t>(from)]);
        nccl_->receive(1 - from, sent.to, sent.elements, nccl::Type::bf16, from,
                       launch.streams[static_cast<std::size_t>(1 - from)]);
      }
    });
  }
  void multiply(Launch& launch) const {
    for (const std::size_t gpu : {0, 1}) {
      const SelectedGpu selected{gpus_.ordinal(static_cast<int>(gpu))};
      halves_[gpu].up.run(launch.streams[gpu]);
      halves_[gpu].down.run(launch.streams[gpu]);
    }
    launch.mark("multiplied");
  }
  template <class Others>
  void combine(Launch& launch, Others others) const {
    for (const int gpu : {0, 1}) {
      const Half& here = half(gpu);
      const exchange::Results results{packets_of(here.results), packets_of(others(static_cast<std::size_t>(gpu)))};
      run(launch, gpu, exchange::combine_kernel, of_.tokens, threads, results, here.experts_of.get(), here.rows.get(),
          here.shares.get(), here.split, packets_of(here.out), of_.packets());
    }
  }
  // The rows that the other GPU's tokens have here.
  void reduce_others(Launch& launch, int gpu, bf16* sums) const {
    const Half& here = half(gpu);
    run(launch, gpu, exchange::reduce_kernel, of_.tokens, threads, packets_of(here.results), here.groups + of_.slots(),
        here.others_rows.get(), here.others_shares.get(), nullptr, packets_of(sums), of_.packets());
  }
  // The rows of the own tokens, with the sums that have come.
  void reduce_own(Launch& launch) const {
    for (const int gpu : {0, 1}) {
      const Half& here = half(gpu);
      run(launch, gpu, exchange::reduce_kernel, of_.tokens, threads, packets_of(here.results), here.groups.get(), here.rows.get(),
          here.shares.get(), packets_of(here.sums), packets_of(here.out), of_.packets());
    }
  }

  shared::Gpus gpus_;
  Extents of_;
  std::array<Half, 2> halves_;
  Scratch<int> host_offsets_;
  Scratch<double> exact_, exact_activated_;
  Scratch<int> index_;
  Opened<Nccl> nccl_;
  std::array<std::vector<double>, 2> expected_;
};

constexpr Needs by_nccl{.libraries = {Library::nccl}};
constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair expert_parallel_moe{
    .teaches = "experts on another GPU need a token once, not once for each of them, stored straight to where it is read",
    .lesson = "dedup_dispatch",
    .make = make<ExpertParallelMoe>,
    .baseline = {.name = "nccl_all_to_all",
                 .run = call<&ExpertParallelMoe::nccl_all_to_all>,
                 .prepare = call<&ExpertParallelMoe::clear>,
                 .needs = by_nccl},
    .optimized = variants({{.name = "one_sided",
                            .run = call<&ExpertParallelMoe::one_sided>,
                            .prepare = call<&ExpertParallelMoe::clear>,
                            .same_bits_as = "nccl_all_to_all",
                            .kernels = no_spills},
                           {.name = "dedup_dispatch",
                            .run = call<&ExpertParallelMoe::dedup_dispatch>,
                            .prepare = call<&ExpertParallelMoe::clear>,
                            .same_bits_as = "nccl_all_to_all",
                            .kernels = no_spills},
                           {.name = "reduced_combine",
                            .run = call<&ExpertParallelMoe::reduced_combine>,
                            .prepare = call<&ExpertParallelMoe::clear>,
                            .kernels = no_spills}}),
    // Tokens once, by messages; the products alone.
    .controls = variants({{.name = "nccl_dedup",
                           .run = call<&ExpertParallelMoe::nccl_dedup>,
                           .prepare = call<&ExpertParallelMoe::clear>,
                           .needs = by_nccl,
                           .same_bits_as = "nccl_all_to_all"},
                          {.name = "products_alone",
                           .run = call<&ExpertParallelMoe::products_alone>,
                           .prepare = call<&ExpertParallelMoe::clear_and_plan>,
                           .outputs = no_outputs}}),
    .bound = Bound::transfer,
    // Activations, results of the experts, sums that return and the output are rounded to bf16.
    .tolerance = within(5e-3),
    .needs = {.min_sm = 90, .max_sm = 90, .gpus = 2, .peer_access = true},
    .start = Start::immediate,  // the baseline waits for its counts on the host
    .timeline = true,
    .sizes = sizes({{.name = "tokens", .full = 8192, .most = 16384},
                    {.name = "hidden", .full = 2048, .multiple = 64, .most = 8192, .scales = false},
                    {.name = "experts", .full = 128, .multiple = 2, .most = moe::most_experts, .scales = false},
                    {.name = "ffn", .full = 768, .multiple = 64, .most = 8192, .scales = false},
                    {.name = "routing", .full = 0, .least = 0, .most = 3, .scales = false}}),
    .sweep = cases({{"tokens_16", "tokens=16"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_4096", "tokens=4096"},
                    {"tokens_8192", "tokens=8192"},
                    {"zipf", "routing=1"}}),
    .edges = cases({{"one_token", "tokens=1,hidden=128,experts=8,ffn=64"},
                    {"tail", "tokens=333,hidden=192,experts=64,ffn=128"},
                    {"zipf", "tokens=500,hidden=128,ffn=64,routing=1"},
                    {"planted", "tokens=700,hidden=128,experts=64,ffn=64,routing=2"},
                    {"same_experts", "tokens=300,hidden=128,experts=32,ffn=64,routing=3"}}),
};

}  // namespace aisp::ch20
