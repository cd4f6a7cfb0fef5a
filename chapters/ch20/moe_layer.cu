// SPDX-License-Identifier: Apache-2.0
// A layer of a mixture of experts, from the gate to the output: 8192 tokens, each to 8 of 128 experts. Its two grouped products
// are most of it. Around them a layer of one kernel for each step sorts, asks the host for the experts' counts, copies each token
// eight times, writes what an activation reads back at once, and adds results up by atomics. Step by step that goes: routing that
// stays on the device, results that are gathered, tokens gathered by the product's loads, the activation in its epilogue.
#include <aisp/dispatch.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "gemm/gathered.hpp"
#include "moe/combine.cuh"
#include "moe/routing.hpp"
#include "moe_layer.cuh"
#include "moe_reference.cuh"

namespace aisp::ch20 {
namespace {

using namespace layer;
using Rows = gemm::Operand<bf16>;
constexpr gemm::Shape shape{.tile_m = 128, .tile_n = 256, .stages = 4};
using Tile = gemm::Config<Rows, Rows, gemm::InTensorCores, shape>;
using Grouped = gemm::GroupedGemm<Tile>;
using Listed = gemm::Gemm<Tile, gemm::GroupedRows, gemm::Identity, gemm::RowsStore<>>;  // its tiles are listed by the host
using GatheringTile = gemm::Config<Rows, Rows, gemm::GatheredInTensorCores, shape>;
using Gathering = gemm::GatheredGroupedGemm<GatheringTile>;
using GatheringSwiGlu = gemm::GatheredGroupedGemm<GatheringTile, gemm::SwiGlu>;
using Codes = gemm::Operand<e4m3>;
using Fp8Tile = gemm::Config<Codes, Codes, gemm::BlockScaled, shape>;
using Fp8Up = gemm::GroupedGemm<Fp8Tile, gemm::Chain<gemm::SwiGlu, QuantizeRows>, gemm::RowsStore<e4m3>>;
using Fp8Down = gemm::GroupedGemm<Fp8Tile>;

constexpr int band = 8;

class MoeLayer final : public Workload {
 public:
  explicit MoeLayer(Setup& setup)
      : tokens_{setup.size("tokens")},
        hidden_{setup.size("hidden")},
        ffn_{setup.size("ffn")},
        experts_{setup.size("experts")},
        top_k_{setup.size("top_k")},
        slots_{tokens_ * top_k_},
        bias_kind_{static_cast<Bias>(setup.size("routing"))},
        x_{setup.input<bf16>(tokens_ * hidden_, token_values(), {.name = "tokens"})},
        gate_{setup.input<bf16>(experts_ * hidden_, normal(0, 0.03f).on_grid(1.0f / 64), {.name = "gate", .constant = true})},
        bias_{setup.input<float>(experts_,
                                 [this](std::span<float> to, std::uint64_t seed) { fill_bias(to, bias_kind_, top_k_, seed); },
                                 {.name = "gate's bias", .constant = true})},
        up_{setup.input<bf16>(experts_ * 2 * ffn_ * hidden_, normal(0, deviation(hidden_)),
                              {.name = "gate and up weights", .constant = true})},
        down_{
            setup.input<bf16>(experts_ * hidden_ * ffn_, normal(0, deviation(ffn_)), {.name = "down weights", .constant = true})},
        numbers_{setup.input<int>(slots_, sequence(), {.name = "slots' numbers", .constant = true})},
        out_{setup.output<bf16>(tokens_ * hidden_, {.name = "out"})},
        logits_{setup.scratch<float>(tokens_ * experts_)},
        probabilities_{setup.scratch<float>(logits_.size())},
        weights_{setup.scratch<float>(slots_)},
        index_{setup.scratch<int>(Index::size(slots_, experts_))},
        rows_{setup.scratch<bf16>(slots_ * hidden_)},
        h_{setup.scratch<bf16>(slots_ * 2 * ffn_)},
        active_{setup.scratch<bf16>(slots_ * ffn_)},
        sums_{setup.scratch<float>(tokens_ * hidden_)},
        up_codes_{setup.scratch<e4m3>(up_.size())},
        down_codes_{setup.scratch<e4m3>(down_.size())},
        up_scales_{setup.scratch<float>(up_.size() / (block * block))},
        down_scales_{setup.scratch<float>(down_.size() / (block * block))},
        row_scales_{setup.scratch<float>((hidden_ + ffn_) / block * stride())},
        workspace_{setup.scratch<std::byte>(Grouped::workspace_bytes(slots_, experts_))},
        host_offsets_{setup.scratch<int>(experts_ + 1, {.memory = Memory::pinned})},
        host_tiles_{setup.scratch<gemm::RowTile>(most_row_tiles(), {.memory = Memory::pinned})},
        host_count_{setup.scratch<int>(1, {.memory = Memory::pinned})},
        tiles_{setup.scratch<gemm::RowTile>(most_row_tiles())},
        count_{setup.scratch<int>(1)},
        cub_bytes_{cub_sort(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::byte>(cub_bytes_)},
        fp64_{setup.scratch<double>(reference::workspace({tokens_, hidden_, ffn_, experts_, top_k_}))},
        fp64_out_{setup.scratch<double>(tokens_ * hidden_)},
        gate_product_{setup, {.m = tokens_, .n = experts_, .k = hidden_, .result = CUDA_R_32F, .b_is_transposed = true}},
        host_up_{up_problem(rows_, h_), host_listed()},
        host_down_{down_problem(), host_listed()},
        grouped_up_{up_problem(rows_, h_), index().offsets(), workspace_},
        grouped_down_{down_problem(), index().offsets(), workspace_},
        gathering_{up_problem(x_, h_), index().token_of_row(), index().offsets(), workspace_},
        fused_{up_problem(x_, active_), index().token_of_row(), index().offsets(), workspace_},
        fp8_up_{{codes(rows_), up_codes_, codes(active_), slots_, 2 * ffn_, hidden_, experts_, row_scales_, up_scales_, stride()},
                index().offsets(),
                workspace_},
        fp8_down_{{codes(active_), down_codes_, rows_, slots_, hidden_, ffn_, experts_, active_scales(), down_scales_, stride()},
                  index().offsets(),
                  workspace_} {
    if (top_k_ > experts_ / 2) throw Unsupported{"a token takes at most half of the experts"};
  }

  Cost cost() const override { return cost_of(sizeof(bf16), Math::bf16); }
  Cost variant_cost(std::string_view variant) const override {
    return variant == "fused_fp8" ? cost_of(sizeof(e4m3), Math::fp8) : cost();
  }
  void compute_reference(Launch& launch) override {
    quantize(launch);
    const reference::Bf16Rows up{up_, int_of(hidden_)}, down{down_, int_of(ffn_)};
    const reference::E4m3Rows up_codes{up_codes_, up_scales_, int_of(hidden_)},
        down_codes{down_codes_, down_scales_, int_of(ffn_)};
    reference::require_near(launch, up, up_codes, experts_ * 2 * ffn_, index().done());
    reference::require_near(launch, down, down_codes, experts_ * hidden_, index().done());
    std::vector<double> bias(experts_);
    for (std::size_t e = 0; e < experts_; ++e) bias[e] = bias_.host(e);
    reference::Layer layer{{tokens_, hidden_, ffn_, experts_, top_k_}, x_, fp64_, fp64_out_, index().sorted()};
    layer.choose(launch, {gate_, int_of(hidden_)}, bias);
    layer.compute(launch, up, down, false, expected_);
    layer.compute(launch, up_codes, down_codes, true, expected_of_codes_);
  }
  double expected(std::size_t i) const override { return expected_[i]; }
  double expected_quantized(std::string_view, int, std::size_t i) const override { return expected_of_codes_[i]; }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("token rate", static_cast<double>(tokens_), "tokens/s");
  }

  void step_by_step(Launch& launch) {
    gate_product_.run_tuned(launch, x_, gate_, logits_);
    for_experts([&]<int each>() {
      launch(softmax_kernel<each>, per_warp(), gate(), probabilities_);
      launch(top_k_kernel<each>, per_warp(), gate(), probabilities_);
    });
    launch(renormalize_kernel, {blocks_for(tokens_), threads}, gate());
    cub_sort(cub_space_, cub_bytes_, launch.stream);
    launch(offsets_kernel, {blocks_for(slots_), threads}, index().sorted(), index().offsets(), slots_, experts_);
    launch(gather_kernel, per_slot(), packets(x_.get()), index().slot_of_row(), packets(rows_.get()), top_k_, hidden_ / packet);
    list_tiles_on_host(launch);
    host_up_.run(launch.stream);
    activate(launch);
    host_down_.run(launch.stream);
    scatter(launch);
  }
  void device_routing(Launch& launch) {
    route(launch);
    gather(launch);
    grouped_up_.run(launch.stream);
    activate(launch);
    grouped_down_.run(launch.stream);
    scatter(launch);
  }
  void gather_combine(Launch& launch) {
    route(launch);
    gather(launch);
    grouped_up_.run(launch.stream);
    activate(launch);
    grouped_down_.run(launch.stream);
    combine(launch);
  }
  void gathered_loads(Launch& launch) {
    route(launch);
    gathering_.run(launch.stream);
    activate(launch);
    grouped_down_.run(launch.stream);
    combine(launch);
  }
  void swiglu_epilogue(Launch& launch) {
    route(launch);
    fused_.run(launch.stream);
    grouped_down_.run(launch.stream);
    combine(launch);
  }
  void fused_fp8(Launch& launch) {
    route(launch);
    launch(quantize_tokens_kernel, {static_cast<unsigned>(tokens_), threads}, packets(x_.get()), index().row_of_slot(),
           reinterpret_cast<uint2*>(rows_.get()), row_scales_, stride(), top_k_, hidden_ / packet);
    fp8_up_.run(launch.stream, {{}, {active_scales(), stride()}});
    fp8_down_.run(launch.stream);
    combine(launch);
  }
  void products_alone(Launch& launch) {
    grouped_up_.run(launch.stream);
    grouped_down_.run(launch.stream);
  }

  void tune(Launch& launch) {
    gate_product_.tune(launch, x_, gate_, logits_);
    check(cudaMemsetAsync(index().done(), 0, sizeof(unsigned), launch.stream));
  }
  void tune_and_quantize(Launch& launch) {
    tune(launch);
    quantize(launch);
  }
  void route_before(Launch& launch) {
    tune(launch);
    device_routing(launch);
  }

 private:
  static float deviation(std::size_t k) { return 1 / std::sqrt(static_cast<float>(k)); }
  static int int_of(std::size_t count) { return static_cast<int>(count); }
  // On a grid, so that the gate's sums are exact in fp32 and all variants choose the same experts, equal logits included. Eight
  // channels are outliers, and the first token is zero: all of its logits are the bias.
  Pattern token_values() const {
    const Axis channels{1, hidden_}, rows{hidden_, tokens_};
    const Pattern values = normal(0, 1).on_grid(1.0f / 16).times(8, drawn(channels, 8));
    return tokens_ > 1 ? values.set(0, at(rows, 0)) : values;
  }

  // The least that the layer reads of its weights is what a token chooses; where all experts are alike, as many as are expected.
  double experts_in_use() const {
    const double share = static_cast<double>(top_k_) / static_cast<double>(experts_);
    const double unused = bias_kind_ == Bias::none ? std::pow(1 - share, static_cast<double>(tokens_)) : 1 - share;
    return static_cast<double>(experts_) * (1 - unused);
  }
  Cost cost_of(std::size_t element_bytes, Math math) const {
    const double of_expert = 3.0 * static_cast<double>(ffn_ * hidden_);
    const double of_gate = 2.0 * static_cast<double>(tokens_ * hidden_) * static_cast<double>(experts_);
    const double of_products = 2.0 * static_cast<double>(slots_) * of_expert;
    return {.flops = of_products,
            .math = math,
            .more_math = {{of_gate, Math::bf16}},
            .bytes = static_cast<double>(x_.bytes() + gate_.bytes() + out_.bytes()) +
                     experts_in_use() * of_expert * static_cast<double>(element_bytes)};
  }

  std::size_t stride() const { return (slots_ + 3) / 4 * 4; }
  std::size_t most_row_tiles() const { return slots_ / Tile::tile_m + std::min(experts_, slots_); }
  Grid per_warp() const { return {static_cast<unsigned>((tokens_ + gate_warps - 1) / gate_warps), threads}; }
  Grid per_slot() const { return {static_cast<unsigned>(slots_), threads}; }
  static const uint4* packets(const bf16* data) { return reinterpret_cast<const uint4*>(data); }
  static uint4* packets(bf16* data) { return reinterpret_cast<uint4*>(data); }
  static e4m3* codes(bf16* data) { return reinterpret_cast<e4m3*>(data); }

  Index index() const { return {index_, slots_, experts_}; }
  float* active_scales() const { return row_scales_ + hidden_ / block * stride(); }

  gemm::Problem<bf16, bf16, bf16> up_problem(const bf16* rows, bf16* to) const {
    return {.a = rows, .b = up_, .c = to, .m = slots_, .n = 2 * ffn_, .k = hidden_, .groups = experts_};
  }
  gemm::Problem<bf16, bf16, bf16> down_problem() const {
    return {.a = active_, .b = down_, .c = rows_, .m = slots_, .n = hidden_, .k = ffn_, .groups = experts_};
  }
  gemm::GroupedRows host_listed() const { return {.tiles = tiles_, .count = count_, .groups = int_of(experts_)}; }

  Gate gate() const { return {logits_, bias_, index().experts_of(), weights_, int_of(tokens_), int_of(top_k_)}; }
  template <class Work>
  void for_experts(const Work& work) const {
    dispatch<1, 2, 4, 8>("experts of a lane", experts_ / 32, work);
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_sort(void* space, std::size_t bytes, cudaStream_t stream) const {
    check(cub::DeviceRadixSort::SortPairs(space, bytes, index().experts_of(), index().sorted(), numbers_.get(),
                                          index().slot_of_row(), int_of(slots_), 0, std::bit_width(experts_ - 1), stream));
    return bytes;
  }
  void list_tiles_on_host(Launch& launch) {
    check(cudaMemcpyAsync(host_offsets_, index().offsets(), host_offsets_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    *host_count_ = list_row_tiles(host_offsets_, experts_, Tile::tile_m, band, host_tiles_);
    check(cudaMemcpyAsync(tiles_, host_tiles_, static_cast<std::size_t>(*host_count_) * sizeof(gemm::RowTile),
                          cudaMemcpyHostToDevice, launch.stream));
    check(cudaMemcpyAsync(count_, host_count_, sizeof(int), cudaMemcpyHostToDevice, launch.stream));
  }
  void route(Launch& launch) {
    const moe::Slots at{index().experts_of(), int_of(slots_),    int_of(experts_), index().ranks(),
                        index().starts(),     index().offsets(), index().done()};
    const Grid per_tile{static_cast<unsigned>(index().tiles()), moe::tile_slots};
    gate_product_.run_tuned(launch, x_, gate_, logits_);
    for_experts([&]<int each>() { launch(gate_kernel<each>, per_warp(), gate()); });
    launch(moe::rank_slots_kernel, per_tile, at);
    launch(place_kernel, per_tile, at, top_k_, index().slot_of_row(), index().token_of_row(), index().row_of_slot());
  }
  void gather(Launch& launch) {
    launch(gather_kernel, per_slot(), packets(x_.get()), index().slot_of_row(), packets(rows_.get()), top_k_, hidden_ / packet);
  }
  void activate(Launch& launch) {
    const std::size_t all = active_.size() / packet;
    launch(swiglu_kernel, {blocks_for(all), threads}, packets(h_.get()), packets(active_.get()), all);
  }
  void scatter(Launch& launch) {
    check(cudaMemsetAsync(sums_, 0, sums_.bytes(), launch.stream));
    launch(scatter_kernel, per_slot(), reinterpret_cast<const uint2*>(rows_.get()), index().slot_of_row(), weights_, sums_,
           top_k_, hidden_ / 4);
    const std::size_t all = out_.size() / packet;
    launch(narrow_kernel, {blocks_for(all), threads}, reinterpret_cast<const float4*>(sums_.get()), packets(out_.get()), all);
  }
  void combine(Launch& launch) {
    dispatch<1, 2, 4, 6, 8>("top_k", top_k_, [&]<int top_k>() {
      launch(moe::gather_reduce_kernel<top_k>, {static_cast<unsigned>(tokens_), threads}, packets(rows_.get()),
             index().row_of_slot(), weights_, packets(out_.get()), hidden_ / packet);
    });
  }
  void quantize(Launch& launch) {
    const auto blocks = [](std::size_t k, std::size_t n) {
      return dim3{static_cast<unsigned>(k / block), static_cast<unsigned>(n / block)};
    };
    launch(quantize_weights_kernel, {blocks(hidden_, experts_ * 2 * ffn_), threads}, packets(up_.get()),
           reinterpret_cast<uint2*>(up_codes_.get()), up_scales_, hidden_ / packet);
    launch(quantize_weights_kernel, {blocks(ffn_, experts_ * hidden_), threads}, packets(down_.get()),
           reinterpret_cast<uint2*>(down_codes_.get()), down_scales_, ffn_ / packet);
  }

  std::size_t tokens_, hidden_, ffn_, experts_, top_k_, slots_;
  Bias bias_kind_;
  Input<bf16> x_, gate_;
  Input<float> bias_;
  Input<bf16> up_, down_;  // [expert][2 ffn][hidden], eight rows of gates and eight of ups in turn; [expert][hidden][ffn]
  Input<int> numbers_;
  Output<bf16> out_;
  Scratch<float> logits_, probabilities_, weights_;
  Scratch<int> index_;
  Scratch<bf16> rows_, h_, active_;
  Scratch<float> sums_;
  Scratch<e4m3> up_codes_, down_codes_;
  Scratch<float> up_scales_, down_scales_, row_scales_;
  Scratch<std::byte> workspace_;
  Scratch<int> host_offsets_;
  Scratch<gemm::RowTile> host_tiles_;
  Scratch<int> host_count_;
  Scratch<gemm::RowTile> tiles_;
  Scratch<int> count_;
  std::size_t cub_bytes_;
  Scratch<std::byte> cub_space_;
  Scratch<double> fp64_, fp64_out_;
  LibraryMatmul gate_product_;
  Listed host_up_, host_down_;
  Grouped grouped_up_, grouped_down_;
  Gathering gathering_;
  GatheringSwiGlu fused_;
  Fp8Up fp8_up_;
  Fp8Down fp8_down_;
  std::vector<double> expected_, expected_of_codes_;
};

constexpr KernelLimits no_spills{.local_bytes = 0};
template <Method run>
constexpr Variant step(std::string_view name) {
  return {.name = name, .run = run, .prepare = call<&MoeLayer::tune>, .kernels = no_spills};
}

}  // namespace

extern constinit const Pair moe_layer{
    .teaches =
        "a correct MoE layer spends nearly half of its time around its products; results and tokens that are gathered and an "
        "activation in the epilogue save most of that",
    .lesson = "swiglu_epilogue",
    .make = make<MoeLayer>,
    .baseline = {.name = "step_by_step",
                 .run = call<&MoeLayer::step_by_step>,
                 .prepare = call<&MoeLayer::tune>,
                 .deterministic = false},
    .optimized = variants({{.name = "device_routing",
                            .run = call<&MoeLayer::device_routing>,
                            .prepare = call<&MoeLayer::tune>,
                            .deterministic = false,
                            .kernels = no_spills},
                           step<call<&MoeLayer::gather_combine>>("gather_combine"),
                           step<call<&MoeLayer::gathered_loads>>("gathered_loads"),
                           step<call<&MoeLayer::swiglu_epilogue>>("swiglu_epilogue"),
                           {.name = "fused_fp8",
                            .run = call<&MoeLayer::fused_fp8>,
                            .prepare = call<&MoeLayer::tune_and_quantize>,
                            .changes_precision = true,
                            // Sums of 14 bits leave an activation 2^-11 off at most, so that one in 200 rounds to the next value
                            // of e4m3: 6e-3 of the norm, and of a single token several times that where it is a large one.
                            .tolerance = within(3e-2, 0.5),
                            .kernels = no_spills}}),
    .controls = variants({{.name = "products_alone",
                           .run = call<&MoeLayer::products_alone>,
                           .prepare = call<&MoeLayer::route_before>,
                           .outputs = no_outputs,
                           .kernels = no_spills}}),
    .bound = Bound::compute,
    // Roundings to bf16 of gate and up, of their product, of an expert's result and of the output make 3.7e-3.
    .tolerance = within(6e-3, 6e-2),
    .needs = {.min_sm = 90, .max_sm = 90, .libraries = {Library::cublaslt}},
    .start = Start::immediate,
    .sizes = sizes({{.name = "tokens", .full = 8192, .most = 16384},
                    {.name = "hidden", .full = 2048, .multiple = 128, .most = 8192, .scales = false},
                    {.name = "ffn", .full = 768, .multiple = 128, .most = 8192, .scales = false},
                    {.name = "experts", .full = 128, .multiple = 32, .most = 256, .scales = false},
                    {.name = "top_k", .full = 8, .most = 8, .scales = false},
                    {.name = "routing", .full = 0, .least = 0, .most = 2, .scales = false}}),
    .sweep = cases({{"tokens_16", "tokens=16"},
                    {"tokens_256", "tokens=256"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_8192", "tokens=8192"},
                    {"zipf", "routing=1"}}),
    .edges = cases({{"one_token", "tokens=1,hidden=256,ffn=128,experts=32"},
                    {"zipf", "tokens=700,hidden=256,ffn=256,routing=1"},
                    {"one_row_below_a_tile", "tokens=127,hidden=256,ffn=128,experts=64,routing=2"},
                    {"a_tile", "tokens=128,hidden=128,ffn=128,experts=32,routing=2"},
                    {"one_row_beyond", "tokens=129,hidden=256,ffn=384,experts=32,routing=2"},
                    {"top_1", "tokens=300,hidden=256,ffn=128,experts=32,top_k=1"}}),
};

}  // namespace aisp::ch20
