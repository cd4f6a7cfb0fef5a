// SPDX-License-Identifier: Apache-2.0
// cuDNN's graphs, opened at run time: nothing of it is linked, and no header of it is needed. A variant that uses them says
// `.needs = {.libraries = {Library::cudnn}}`.
#pragma once
#include <aisp/front_end.hpp>
#include <aisp/libraries/cudnn_backend.hpp>
#include <aisp/libraries/fastest.hpp>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace aisp::cudnn::inline AISP_FRONT_END {

using Sizes = std::array<std::int64_t, 4>;

// A graph of operations on four-dimensional tensors. Tensors are numbered in the order of their declaration; run() takes the
// addresses of those that are in memory, in that order.
class Graph {
 public:
  static constexpr int none = -1;  // no tensor

  Graph() { check(function<int(Handle*)>("cudnnCreate")(&handle_), "cudnnCreate"); }
  ~Graph() {
    cudaFree(workspace_);
    function<int(Handle)>("cudnnDestroy")(handle_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  int tensor(DataType type, const Sizes& sizes, const Sizes& strides) { return add_tensor(type, sizes, strides, Where::device); }
  // One number in host memory, read when the graph is run.
  int value(DataType type = DataType::f32) { return add_tensor(type, {1, 1, 1, 1}, {1, 1, 1, 1}, Where::host); }
  // Adds a tensor between two operations, not in memory.
  int between(DataType type, const Sizes& sizes) {
    return between(type, sizes, {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1});
  }
  int between(DataType type, const Sizes& sizes, const Sizes& strides) {
    return add_tensor(type, sizes, strides, Where::nowhere);
  }

  // Tensors that say for each of the first dimension how much of a product there is.
  struct Extents {
    int rows = none, columns = none, depth = none;
  };
  void matmul(int a, int b, int c, const Extents& extents) {
    how_.emplace_back(Kind::matmul).set(Attribute::matmul_math, Type::data_type, DataType::f32).finalize();
    add(Kind::matmul_operation, Attribute::matmul_how,
        {{Attribute::matmul_a, a},
         {Attribute::matmul_b, b},
         {Attribute::matmul_c, c},
         {Attribute::matmul_rows, extents.rows},
         {Attribute::matmul_columns, extents.columns},
         {Attribute::matmul_depth, extents.depth}});
  }
  void matmul(int a, int b, int c) { matmul(a, b, c, {}); }
  // y = x with the sizes, strides and type of y's tensor.
  void reshape(int x, int y) {
    operations_.emplace_back(Kind::reshape_operation)
        .set(Attribute::reshape_x, tensors_[static_cast<std::size_t>(x)])
        .set(Attribute::reshape_y, tensors_[static_cast<std::size_t>(y)])
        .finalize();
  }
  // y = x correlated with w over the last two dimensions, fp32: filters are not flipped, and `zeros` lines of zeros surround x.
  void convolution(int x, int w, int y, std::int64_t zeros) {
    constexpr std::array<std::int64_t, 2> ones{1, 1};
    constexpr int correlation = 1;  // cudnnConvolutionMode_t
    const std::array<std::int64_t, 2> around{zeros, zeros};
    how_.emplace_back(Kind::convolution)
        .set(Attribute::convolution_math, Type::data_type, DataType::f32)
        .set(Attribute::convolution_mode, Type::convolution_mode, correlation)
        .set(Attribute::convolution_dimensions, Type::int64, std::int64_t{2})
        .set(Attribute::convolution_dilations, Type::int64, ones.data(), ones.size())
        .set(Attribute::convolution_strides, Type::int64, ones.data(), ones.size())
        .set(Attribute::convolution_zeros_before, Type::int64, around.data(), around.size())
        .set(Attribute::convolution_zeros_behind, Type::int64, around.data(), around.size())
        .finalize();
    operations_.emplace_back(Kind::convolution_operation)
        .set(Attribute::convolution_how, how_.back())
        .set(Attribute::convolution_x, tensors_[static_cast<std::size_t>(x)])
        .set(Attribute::convolution_w, tensors_[static_cast<std::size_t>(w)])
        .set(Attribute::convolution_y, tensors_[static_cast<std::size_t>(y)])
        .set(Attribute::convolution_alpha, Type::f32, 1.0f)
        .set(Attribute::convolution_beta, Type::f32, 0.0f)
        .finalize();
  }
  void reduce(Reduction reduction, int from, int to) {
    how_.emplace_back(Kind::reduction)
        .set(Attribute::reduction_operator, Type::reduction_operator, reduction)
        .set(Attribute::reduction_math, Type::data_type, DataType::f32)
        .finalize();
    add(Kind::reduction_operation, Attribute::reduction_how, {{Attribute::reduction_x, from}, {Attribute::reduction_y, to}});
  }
  // y = mode(x), mode(x, b), or of select: t ? x : b.
  void pointwise(Pointwise mode, int x, int y, int b = none, int t = none) {
    const bool compares = mode == Pointwise::greater_equal || mode == Pointwise::greater || mode == Pointwise::less ||
                          mode == Pointwise::logical_and;
    begin_pointwise(mode, compares ? DataType::boolean : DataType::f32).finalize();
    add_pointwise(x, y, b, t);
  }
  // y = mode(x, b) of integers.
  void pointwise_i32(Pointwise mode, int x, int y, int b) {
    begin_pointwise(mode, DataType::i32).finalize();
    add_pointwise(x, y, b, none);
  }
  // y = the index of each element of x along `axis`.
  void index(int x, int y, std::int64_t axis, DataType math = DataType::f32) {
    begin_pointwise(Pointwise::index, math).set(Attribute::pointwise_axis, Type::int64, axis).finalize();
    add_pointwise(x, y, none, none);
  }

  // y = x / sqrt(mean of x^2 + epsilon) * scale, over all dimensions but the first; `epsilon` is a value().
  void rms_norm(int x, int scale, int epsilon, int y) {
    constexpr int root_mean_square = 4, inference = 0;  // cudnnBackendNormMode_t, cudnnBackendNormFwdPhase_t
    operations_.emplace_back(Kind::norm_operation)
        .set(Attribute::norm_mode, Type::norm_mode, root_mean_square)
        .set(Attribute::norm_phase, Type::norm_phase, inference)
        .set(Attribute::norm_x, tensors_[static_cast<std::size_t>(x)])
        .set(Attribute::norm_scale, tensors_[static_cast<std::size_t>(scale)])
        .set(Attribute::norm_epsilon, tensors_[static_cast<std::size_t>(epsilon)])
        .set(Attribute::norm_y, tensors_[static_cast<std::size_t>(y)])
        .finalize();
  }

  // K and V in pages, [page][head][row][column]: tables of page numbers, [sequence][1][entry][1], and how many rows of queries
  // and of keys each sequence has, [sequence][1][1][1].
  struct Paging {
    int k_table, v_table, query_lengths, key_lengths;
  };
  // y = the contents of the pages, [sequence][head][row][column], or the same with strides that transpose the last two.
  void load_pages(int container, int lengths, int table, int y) {
    operations_.emplace_back(Kind::load_pages_operation)
        .set(Attribute::load_pages_container, tensors_[static_cast<std::size_t>(container)])
        .set(Attribute::load_pages_lengths, tensors_[static_cast<std::size_t>(lengths)])
        .set(Attribute::load_pages_table, tensors_[static_cast<std::size_t>(table)])
        .set(Attribute::load_pages_y, tensors_[static_cast<std::size_t>(y)])
        .finalize();
  }
  // O = softmax(scale Q K^T) V over the last two dimensions (rows, columns of a head).
  void attention(int q, int k, int v, int o, int scale, const std::optional<Paging>& paging = {}) {
    constexpr std::size_t first_version = 91301, first_with_pages = 91500;  // 9.13.1 and 9.15
    if (function<std::size_t()>("cudnnGetVersion")() < (paging ? first_with_pages : first_version))
      throw Unsupported{paging ? "attention over pages as one operation needs cuDNN 9.15 or later; install a newer one"
                               : "attention as one operation needs cuDNN 9.13.1 or later; install a newer one"};
    Descriptor& operation = operations_.emplace_back(Kind::attention_operation);
    const auto set = [&](Attribute name, int tensor) { operation.set(name, tensors_[static_cast<std::size_t>(tensor)]); };
    set(Attribute::attention_q, q), set(Attribute::attention_k, k), set(Attribute::attention_v, v);
    set(Attribute::attention_o, o), set(Attribute::attention_scale, scale);
    if (paging) {
      set(Attribute::attention_k_table, paging->k_table), set(Attribute::attention_v_table, paging->v_table);
      set(Attribute::attention_query_lengths, paging->query_lengths), set(Attribute::attention_key_lengths, paging->key_lengths);
    }
    operation.finalize();
  }

  // Leaves out engines that round fp32 operands, such as those that use tensor cores (TF32).
  void keep_precision() { keeps_precision_ = true; }

  // Raises the limit of a gigabyte, for graphs that need more workspace.
  void allow_workspace(std::int64_t bytes) { most_workspace_bytes_ = bytes; }

  // Takes the first engine of the library's heuristic (mode A) that accepts the graph. Call it after the last operation.
  void plan() {
    make_plans({heuristic_a}, 1);
    keep(0);
  }
  // Takes, instead of plan(), the fastest of all engines and settings that the library's heuristics name, fallbacks included,
  // with these pointers; the outputs are overwritten. Building them takes seconds, so a graph over fewer than worth_timing
  // `elements`, which only tests ask for, is planned as by plan().
  static constexpr std::size_t worth_timing = std::size_t{16} << 20;
  void plan_fastest(cudaStream_t stream, const std::vector<const void*>& pointers, std::size_t elements = worth_timing) {
    if (elements < worth_timing) return plan();
    make_plans({heuristic_a, heuristic_b, heuristic_fallback}, all);
    bind(pointers);
    const auto best = fastest(stream, plans_.size(), [&](std::size_t i) { execute(stream, i); });
    if (!best) throw Unsupported{"cuDNN runs none of its engines for this graph"};
    keep(*best);
  }

  void run(cudaStream_t stream, const std::vector<const void*>& pointers) {
    if (pack_.empty() || pointers_ != pointers) bind(pointers);
    execute(stream, 0);
  }

 private:
  enum class Where : std::uint8_t { device, host, nowhere };

  Descriptor& begin_pointwise(Pointwise mode, DataType math) {
    return how_.emplace_back(Kind::pointwise)
        .set(Attribute::pointwise_mode, Type::pointwise_mode, mode)
        .set(Attribute::pointwise_math, Type::data_type, math);
  }
  void add_pointwise(int x, int y, int b, int t) {
    add(Kind::pointwise_operation, Attribute::pointwise_how,
        {{Attribute::pointwise_x, x}, {Attribute::pointwise_b, b}, {Attribute::pointwise_t, t}, {Attribute::pointwise_y, y}});
  }
  // Adds an operation that the last of how_ describes.
  void add(Kind kind, Attribute how, std::initializer_list<std::pair<Attribute, int>> operands) {
    Descriptor& operation = operations_.emplace_back(kind);
    operation.set(how, how_.back());
    for (const auto& [name, operand] : operands)
      if (operand != none) operation.set(name, tensors_[static_cast<std::size_t>(operand)]);
    operation.finalize();
  }

  int add_tensor(DataType type, const Sizes& sizes, const Sizes& strides, Where where) {
    const auto id = static_cast<std::int64_t>(tensors_.size()) + 1;
    if (where != Where::nowhere) ids_.push_back(id);
    tensors_.emplace_back(Kind::tensor)
        .set(Attribute::tensor_data_type, Type::data_type, type)
        .set(Attribute::tensor_sizes, Type::int64, sizes.data(), sizes.size())
        .set(Attribute::tensor_strides, Type::int64, strides.data(), strides.size())
        .set(Attribute::tensor_id, Type::int64, id)
        .set(Attribute::tensor_alignment, Type::int64, std::int64_t{16})
        .set(Attribute::tensor_is_virtual, Type::boolean, where == Where::nowhere)
        .set(Attribute::tensor_is_value, Type::boolean, where == Where::host)
        .finalize();
    return static_cast<int>(tensors_.size()) - 1;
  }

  // Makes the first `most` plans that the library can build, in the order in which its heuristics name them.
  void make_plans(std::initializer_list<int> modes, std::size_t most) {
    std::vector<RawDescriptor> operations;
    for (const Descriptor& operation : operations_) operations.push_back(operation.raw());
    Descriptor graph{Kind::operation_graph};
    graph.set(Attribute::graph_operations, Type::descriptor, operations.data(), operations.size());
    graph.set(Attribute::graph_handle, Type::handle, handle_).finalize();
    std::string why_not = "its heuristic names none";
    for (const int mode : modes)
      for (const Descriptor& configuration : configurations(graph, mode, why_not))
        if (plans_.size() < most) accept(configuration, why_not);
    if (plans_.empty()) throw Unsupported{"cuDNN has no engine for this graph: " + why_not};
    std::int64_t most_bytes = 0;
    for (const Descriptor& plan : plans_) most_bytes = std::max(most_bytes, workspace_of(plan));
    if (most_bytes > 0) aisp::check(cudaMalloc(&workspace_, static_cast<std::size_t>(most_bytes)));
  }
  static std::vector<Descriptor> configurations(const Descriptor& graph, int mode, std::string& why_not) {
    std::vector<Descriptor> found;
    Descriptor heuristic{Kind::heuristic};
    try {
      heuristic.set(Attribute::heuristic_graph, graph).set(Attribute::heuristic_mode, Type::heuristic_mode, mode).finalize();
      RawDescriptor* const nowhere = nullptr;
      const std::int64_t count = heuristic.get(Attribute::heuristic_results, Type::descriptor, nowhere, 0);
      std::vector<RawDescriptor> raw;
      for (std::int64_t i = 0; i < count; ++i) raw.push_back(found.emplace_back(Kind::engine_configuration).raw());
      if (count > 0) heuristic.get(Attribute::heuristic_results, Type::descriptor, raw.data(), count);
    } catch (const std::exception& refusal) {
      why_not = refusal.what();
      found.clear();  // this heuristic knows nothing of such graphs
    }
    return found;
  }
  static std::int64_t workspace_of(const Descriptor& plan) {
    std::int64_t bytes = 0;
    plan.get(Attribute::plan_workspace_bytes, Type::int64, &bytes, 1);
    return bytes;
  }
  static bool rounds_operands(const Descriptor& configuration) {
    constexpr int tensor_core = 0, rounded_inputs = 1;  // cudnnBackendNumericalNote_t
    const Descriptor engine{Kind::engine};
    RawDescriptor raw = engine.raw();
    configuration.get(Attribute::configuration_engine, Type::descriptor, &raw, 1);
    std::array<int, 32> notes{};
    const std::int64_t count = engine.get(Attribute::engine_notes, Type::numerical_note, notes.data(), notes.size());
    return std::any_of(notes.begin(), notes.begin() + std::min<std::int64_t>(count, notes.size()),
                       [](int note) { return note == tensor_core || note == rounded_inputs; });
  }
  void accept(const Descriptor& configuration, std::string& why_not) {
    Descriptor plan{Kind::plan};
    try {
      if (keeps_precision_ && rounds_operands(configuration)) throw Unsupported{"its engines round the operands"};
      plan.set(Attribute::plan_handle, Type::handle, handle_).set(Attribute::plan_configuration, configuration).finalize();
      if (workspace_of(plan) > most_workspace_bytes_) throw Unsupported{"its engine wants more workspace than is allowed"};
    } catch (const std::exception& refusal) {
      why_not = refusal.what();
      return;  // the next engine may accept what this one does not
    }
    plans_.push_back(std::move(plan));
  }
  void keep(std::size_t chosen) {
    Descriptor plan = std::move(plans_[chosen]);
    plans_.clear();
    plans_.push_back(std::move(plan));
  }

  void execute(cudaStream_t stream, std::size_t plan) {
    check(set_stream_(handle_, stream), "cudnnSetStream");
    check(execute_(handle_, plans_[plan].raw(), pack_[0].raw()), "cudnnBackendExecute");
  }
  void bind(const std::vector<const void*>& pointers) {
    pointers_ = pointers;
    pack_.clear();
    pack_.emplace_back(Kind::variant_pack)
        .set(Attribute::pack_pointers, Type::pointer, pointers_.data(), pointers_.size())
        .set(Attribute::pack_ids, Type::int64, ids_.data(), ids_.size())
        .set(Attribute::pack_workspace, Type::pointer, workspace_)
        .finalize();
  }

  // cudnnBackendHeurMode_t
  static constexpr int heuristic_b = 1, heuristic_fallback = 2, heuristic_a = 3;
  static constexpr std::size_t all = static_cast<std::size_t>(-1);

  Handle handle_ = nullptr;
  void* workspace_ = nullptr;
  bool keeps_precision_ = false;
  // An engine that writes out whole intermediate tensors is never the best, and need not fit.
  std::int64_t most_workspace_bytes_ = std::int64_t{1} << 30;
  std::vector<Descriptor> tensors_, how_, operations_, plans_, pack_;  // of plans_ one is kept; pack_: one, when it exists
  std::vector<std::int64_t> ids_;                                      // of the tensors
  std::vector<const void*> pointers_;
  int (*set_stream_)(Handle, cudaStream_t) = function<int(Handle, cudaStream_t)>("cudnnSetStream");
  int (*execute_)(Handle, RawDescriptor,
                  RawDescriptor) = function<int(Handle, RawDescriptor, RawDescriptor)>("cudnnBackendExecute");
};

// clang-format 14 cannot settle on the comment of an inline namespace.
// clang-format off
}  // namespace aisp::cudnn::inline AISP_FRONT_END
// clang-format on
