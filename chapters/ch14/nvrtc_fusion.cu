// SPDX-License-Identifier: Apache-2.0
// An elementwise expression that is known at run time only: gelu(x * scale + bias) * gate + residual, given as a graph. One
// kernel an operation reads and writes memory for each. One kernel that interprets the graph goes through memory once, and pays
// for it with a dispatch a step. Written as CUDA C++ and compiled for this expression, steps cost their arithmetic alone.
#include <cuda_bf16.h>
#include <aisp/libraries/nvrtc.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <string>
#include <vector>

#include "elementwise.cuh"
#include "expression.hpp"
#include "fusion_code.hpp"

namespace aisp::ch14 {
namespace {

using bf16 = __nv_bfloat16;
constexpr unsigned threads = fusion_threads;
constexpr int block_operations = 5, most_operations = 64, most_graphs = 20;

template <Op op>
__device__ __forceinline__ float apply(float a, float b) {
  if constexpr (op == Op::add) return a + b;
  else if constexpr (op == Op::multiply) return a * b;
  else if constexpr (op == Op::maximum) return fmaxf(a, b);
  else if constexpr (op == Op::relu) return relu(a);
  else if constexpr (op == Op::sigmoid) return sigmoid(a);
  else return gelu(a);
}
template <Op op>
__device__ __forceinline__ void apply(float (&a)[packet], const float (&b)[packet]) {
#pragma unroll
  for (int k = 0; k < packet; ++k) a[k] = apply<op>(a[k], b[k]);
}

// One operation of two tensors, or of a tensor and a row for all columns: `second_packets` is how long the second operand is.
template <Op op>
__global__ __launch_bounds__(threads) void eager_kernel(const uint4* __restrict__ a, const uint4* __restrict__ b,
                                                        uint4* __restrict__ out, unsigned second_packets, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  float value[packet], second[packet] = {};
  unpack(a[i], value);
  if constexpr (is_binary(op)) unpack(b[second_packets == packets ? i : i % second_packets], second);
  apply<op>(value, second);
  out[i] = pack(value);
}

struct Operands {
  const uint4* tensors[tensor_names.size()];
  const uint4* columns[column_names.size()];
};

enum class From : unsigned char { nowhere, newest, tensor, column, slot };
struct Step {
  Op op;
  From from_a, from_b;
  unsigned char a, b, keep;  // keep: 1 + the slot that the result is needed in later
};
struct Program {
  unsigned count;
  Step steps[most_operations];
};

// Values that are needed again later are in shared memory, 32 bytes of each thread a slot.
__global__ __launch_bounds__(threads) void interpreted_kernel(const __grid_constant__ Program program,
                                                              const __grid_constant__ Operands operands, uint4* __restrict__ out,
                                                              unsigned row_packets, unsigned packets) {
  extern __shared__ float4 slots[];
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  const unsigned column = i % row_packets;
  float newest[packet] = {}, second[packet] = {};
  const auto half = [&](unsigned slot, unsigned which) -> float4& { return slots[(2 * slot + which) * threads + threadIdx.x]; };
  const auto fetch = [&](float(&to)[packet], From from, unsigned which) {
    if (from == From::tensor) unpack(operands.tensors[which][i], to);
    else if (from == From::column) unpack(operands.columns[which][column], to);
    else if (from == From::slot) {
      const float4 low = half(which, 0), high = half(which, 1);
      to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
      to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
    }
  };
  for (unsigned s = 0; s < program.count; ++s) {
    const Step step = program.steps[s];
    if (step.from_b == From::newest) {
#pragma unroll
      for (int k = 0; k < packet; ++k) second[k] = newest[k];
    } else fetch(second, step.from_b, step.b);
    fetch(newest, step.from_a, step.a);
    switch (step.op) {
      case Op::add: apply<Op::add>(newest, second); break;
      case Op::multiply: apply<Op::multiply>(newest, second); break;
      case Op::maximum: apply<Op::maximum>(newest, second); break;
      case Op::relu: apply<Op::relu>(newest, second); break;
      case Op::sigmoid: apply<Op::sigmoid>(newest, second); break;
      default: apply<Op::gelu>(newest, second);
    }
    if (step.keep != 0) {
      half(step.keep - 1u, 0) = make_float4(newest[0], newest[1], newest[2], newest[3]);
      half(step.keep - 1u, 1) = make_float4(newest[4], newest[5], newest[6], newest[7]);
    }
  }
  out[i] = pack(newest);
}

using Fused = void(const uint4*, const uint4*, const uint4*, const uint4*, const uint4*, uint4*, unsigned);

__global__ __launch_bounds__(threads) void hand_fused_kernel(const uint4* __restrict__ x, const uint4* __restrict__ gate,
                                                             const uint4* __restrict__ residual, const uint4* __restrict__ scale,
                                                             const uint4* __restrict__ bias, uint4* __restrict__ out,
                                                             unsigned row_packets, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  const unsigned column = i % row_packets;
  float value[packet], factor[packet], offset[packet], gates[packet], added[packet];
  unpack(x[i], value);
  unpack(gate[i], gates);
  unpack(residual[i], added);
  unpack(scale[column], factor);
  unpack(bias[column], offset);
#pragma unroll
  for (int k = 0; k < packet; ++k) value[k] = gelu(value[k] * factor[k] + offset[k]) * gates[k] + added[k];
  out[i] = pack(value);
}

struct Graph {
  Expression nodes;
  Slots slots;
  Program program;
  unsigned kept_slots;  // of the program
  std::string code;
  Output<bf16> out;
  CompiledKernel<Fused> fused{};
};

// Every operation's result is the newest value of the step behind it; it takes a slot where later ones read it.
Program program_of(const Expression& nodes, const Slots& slots) {
  Program program{};
  std::vector<int> step_of(nodes.size(), -1);
  const auto operand = [&](int of, From& from, unsigned char& which) {
    const Node& node = nodes[static_cast<std::size_t>(of)];
    const int made_by = step_of[static_cast<std::size_t>(of)];
    if (is_leaf(node.op)) {
      from = node.op == Op::tensor ? From::tensor : From::column, which = static_cast<unsigned char>(node.a);
    } else if (made_by + 1 != static_cast<int>(program.count)) {
      from = From::slot, which = static_cast<unsigned char>(slots.of[static_cast<std::size_t>(of)]);
      program.steps[made_by].keep = static_cast<unsigned char>(which + 1);
    } else from = From::newest, which = 0;
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (is_leaf(nodes[i].op)) continue;
    Step step{.op = nodes[i].op, .from_a = From::nowhere, .from_b = From::nowhere, .a = 0, .b = 0, .keep = 0};
    operand(nodes[i].a, step.from_a, step.a);
    if (is_binary(nodes[i].op)) operand(nodes[i].b, step.from_b, step.b);
    step_of[i] = static_cast<int>(program.count);
    program.steps[program.count++] = step;
  }
  return program;
}

unsigned kept_slots_of(const Program& program) {
  unsigned count = 0;
  for (unsigned s = 0; s < program.count; ++s) count = std::max<unsigned>(count, program.steps[s].keep);
  return count;
}

class NvrtcFusion final : public Workload {
 public:
  explicit NvrtcFusion(Setup& setup)
      : rows_{setup.size("rows")},
        columns_{setup.size("columns")},
        operations_{static_cast<int>(setup.size("operations"))},
        random_graphs_{setup.size("random_graphs")},
        x_{setup.input<bf16>(rows_ * columns_, normal(0, 2), {.name = "x"})},
        gate_{setup.input<bf16>(rows_ * columns_, uniform(-1, 1), {.name = "gate"})},
        residual_{setup.input<bf16>(rows_ * columns_, normal(0, 1), {.name = "residual"})},
        scale_{setup.input<bf16>(columns_, uniform(0.5f, 1.5f), {.name = "scale"})},
        bias_{setup.input<bf16>(columns_, normal(0, 0.5f), {.name = "bias"})},
        graphs_{graphs(setup)},
        intermediates_{setup.scratch<bf16>(most_slots() * rows_ * columns_, {.name = "intermediate results"})},
        nvrtc_{setup} {}

  Cost cost() const override {
    Cost cost;
    for (const Graph& graph : graphs_) {
      const auto elements = static_cast<double>(graph.out.size());
      cost.flops += elements * operations_in(graph.nodes);
      cost.bytes += static_cast<double>(graph.out.bytes()) * (tensors_in(graph.nodes) + 1);
      for (const Node& node : graph.nodes)
        if (node.op == Op::gelu || node.op == Op::sigmoid) cost.special_functions += 2 * elements;
    }
    return cost;
  }
  double expected_output(int output, std::size_t i) const override {
    return evaluate(graphs_[static_cast<std::size_t>(output)].nodes, [&](Op leaf, int which) -> double {
      if (leaf == Op::column) return (which == 0 ? scale_ : bias_).host(i % columns_);
      return (which == 0 ? x_ : which == 1 ? gate_ : residual_).host(i);
    });
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "fused") return;
    double compile_ms = 0;
    for (const Graph& graph : graphs_) compile_ms += graph.fused.compile_ms;
    metrics.report(compile_time, compile_ms, "ms", Metrics::Better::lower);
  }

  void eager(Launch& launch) {
    for (const Graph& graph : graphs_)
      for (std::size_t i = 0; i < graph.nodes.size(); ++i)
        if (!is_leaf(graph.nodes[i].op)) run_alone(launch, graph, i);
  }
  void interpreted(Launch& launch) {
    for (const Graph& graph : graphs_)
      launch(interpreted_kernel, {blocks(), threads, graph.kept_slots * 2 * sizeof(float4) * threads}, graph.program, operands(),
             packets(graph.out), row_packets(), packets_in_all());
  }
  void compile(Launch&) {
    for (Graph& graph : graphs_)
      graph.fused = nvrtc_->kernel<Fused>({.name = "fused.cu", .text = graph.code, .kernel = "fused_kernel"});
  }
  void fused(Launch& launch) {
    for (const Graph& graph : graphs_)
      launch(graph.fused.entry, {blocks(), threads}, packets(x_), packets(gate_), packets(residual_), packets(scale_),
             packets(bias_), packets(graph.out), packets_in_all());
  }
  void hand_fused(Launch& launch) {
    if (random_graphs_ > 0 || operations_ != block_operations)
      throw Unsupported{"it is written by hand for the five operations of the full size alone"};
    launch(hand_fused_kernel, {blocks(), threads}, packets(x_), packets(gate_), packets(residual_), packets(scale_),
           packets(bias_), packets(graphs_.front().out), row_packets(), packets_in_all());
  }

 private:
  using Eager = void (*)(const uint4*, const uint4*, uint4*, unsigned, unsigned);
  static const uint4* packets(const bf16* from) { return reinterpret_cast<const uint4*>(from); }
  static uint4* packets(const Output<bf16>& out) { return reinterpret_cast<uint4*>(out.get()); }
  std::size_t row_packets() const { return columns_ / packet; }
  std::size_t packets_in_all() const { return rows_ * row_packets(); }
  unsigned blocks() const { return static_cast<unsigned>((packets_in_all() + threads - 1) / threads); }
  Operands operands() const { return {{packets(x_), packets(gate_), packets(residual_)}, {packets(scale_), packets(bias_)}}; }
  std::size_t most_slots() const {
    int most = 1;
    for (const Graph& graph : graphs_) most = std::max(most, graph.slots.count);
    return static_cast<std::size_t>(most);
  }

  std::vector<Graph> graphs(Setup& setup) const {
    std::vector<Graph> all;
    const auto add = [&](Expression nodes) {
      const Slots slots = slots_of(nodes);
      const Program program = program_of(nodes, slots);
      const std::string code = fusion_code(nodes, row_packets());
      all.push_back({std::move(nodes), slots, program, kept_slots_of(program), code, setup.output<bf16>(rows_ * columns_)});
    };
    if (random_graphs_ == 0) add(chain(operations_));
    for (std::size_t seed = 1; seed <= random_graphs_; ++seed) add(random_expression(static_cast<std::uint32_t>(seed)));
    return all;
  }

  void run_alone(Launch& launch, const Graph& graph, std::size_t which) {
    constexpr std::array<Eager, 6> kernels{eager_kernel<Op::add>,  eager_kernel<Op::multiply>, eager_kernel<Op::maximum>,
                                           eager_kernel<Op::relu>, eager_kernel<Op::sigmoid>,  eager_kernel<Op::gelu>};
    const Node& node = graph.nodes[which];
    const auto slot = [&](std::size_t of) {
      return reinterpret_cast<uint4*>(intermediates_.get()) + static_cast<std::size_t>(graph.slots.of[of]) * packets_in_all();
    };
    const auto operand = [&](int of) -> const uint4* {
      const Node& from = graph.nodes[static_cast<std::size_t>(of)];
      const auto index = static_cast<std::size_t>(from.a);
      if (from.op == Op::tensor) return operands().tensors[index];
      return from.op == Op::column ? operands().columns[index] : slot(static_cast<std::size_t>(of));
    };
    const bool row_for_all = is_binary(node.op) && graph.nodes[static_cast<std::size_t>(node.b)].op == Op::column;
    launch(kernels[static_cast<std::size_t>(node.op) - static_cast<std::size_t>(Op::add)], {blocks(), threads}, operand(node.a),
           is_binary(node.op) ? operand(node.b) : nullptr, which + 1 == graph.nodes.size() ? packets(graph.out) : slot(which),
           row_for_all ? row_packets() : packets_in_all(), packets_in_all());
  }

  std::size_t rows_, columns_;
  int operations_;
  std::size_t random_graphs_;
  Input<bf16> x_, gate_, residual_, scale_, bias_;
  std::vector<Graph> graphs_;
  Scratch<bf16> intermediates_;
  Opened<Nvrtc> nvrtc_;
};

// Sums and products in fp32, and one rounding to bf16, which is 1.6e-3.
constexpr Tolerance rounded_once = within(3e-3);

}  // namespace

extern constinit const Pair nvrtc_fusion{
    .teaches = "a kernel written and compiled for an expression at run time goes through memory once, and costs no dispatch",
    .lesson = "fused",
    .make = make<NvrtcFusion>,
    .baseline = {.name = "eager", .run = call<&NvrtcFusion::eager>},
    .optimized = variants({{.name = "interpreted", .run = call<&NvrtcFusion::interpreted>, .tolerance = rounded_once},
                           {.name = "fused",
                            .run = call<&NvrtcFusion::fused>,
                            .prepare = call<&NvrtcFusion::compile>,
                            .needs = {.libraries = {Library::nvrtc}},
                            .tolerance = rounded_once,
                            .kernels = {.local_bytes = 0}}}),
    .controls = variants({{.name = "hand_fused", .run = call<&NvrtcFusion::hand_fused>, .tolerance = rounded_once}}),
    .bound = Bound::memory,
    // The baseline rounds every intermediate result to bf16: 1.2e-3 each, which 64 independent ones make 1e-2; what is multiplied
    // later grows with its error.
    .tolerance = within(2e-2),
    .sizes = sizes({{.name = "rows", .full = 16384},
                    {.name = "columns", .full = 8192, .multiple = packet},
                    {.name = "operations", .full = block_operations, .most = most_operations, .scales = false},
                    // Instead of the chain; each has an output of its own.
                    {.name = "random_graphs", .full = 0, .most = most_graphs, .scales = false}}),
    .sweep = cases({{"operations_2", "operations=2"},
                    {"operations_4", "operations=4"},
                    {"operations_8", "operations=8"},
                    {"operations_16", "operations=16"},
                    {"operations_32", "operations=32"}}),
    .edges = cases({{"one_packet", "rows=1,columns=8"},
                    {"odd_columns", "rows=37,columns=1000"},
                    {"one_operation", "rows=37,columns=1000,operations=1"},
                    {"many_operations", "rows=37,columns=1000,operations=64"},
                    {"random_graphs", "rows=37,columns=1000,random_graphs=20"}}),
};

}  // namespace aisp::ch14
