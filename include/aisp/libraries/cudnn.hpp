// SPDX-License-Identifier: Apache-2.0
// cuDNN's graphs, opened at run time: nothing of it is linked, and no header of it is needed. A variant that uses them says
// `.needs = {.libraries = {Library::cudnn}}`.
#pragma once
#include <aisp/libraries/cudnn_backend.hpp>

#include <initializer_list>
#include <utility>
#include <vector>

namespace aisp::cudnn {

using Sizes = std::array<std::int64_t, 4>;

// A graph of operations on four-dimensional tensors. Tensors are numbered in the order of their declaration; run() takes the
// addresses of those that are in memory, in that order.
class Graph {
 public:
  Graph() { check(function<int(Handle*)>("cudnnCreate")(&handle_), "cudnnCreate"); }
  ~Graph() {
    cudaFree(workspace_);
    function<int(Handle)>("cudnnDestroy")(handle_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  int tensor(DataType type, const Sizes& sizes, const Sizes& strides) { return add_tensor(type, sizes, strides, Where::device); }
  // One fp32 in host memory, read when the graph is run.
  int value() { return add_tensor(DataType::f32, {1, 1, 1, 1}, {1, 1, 1, 1}, Where::host); }
  // Between two operations, nowhere in memory.
  int between(DataType type, const Sizes& sizes) {
    return add_tensor(type, sizes, {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1}, Where::nowhere);
  }

  void matmul(int a, int b, int c) {
    how_.emplace_back(Kind::matmul).set(Attribute::matmul_math, Type::data_type, DataType::f32).finalize();
    add(Kind::matmul_operation, Attribute::matmul_how,
        {{Attribute::matmul_a, a}, {Attribute::matmul_b, b}, {Attribute::matmul_c, c}});
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
    const DataType math = mode == Pointwise::greater_equal ? DataType::boolean : DataType::f32;
    begin_pointwise(mode, math).finalize();
    add_pointwise(x, y, b, t);
  }
  // y: where along `axis` each element of x stands.
  void index(int x, int y, std::int64_t axis) {
    begin_pointwise(Pointwise::index, DataType::f32).set(Attribute::pointwise_axis, Type::int64, axis).finalize();
    add_pointwise(x, y, none, none);
  }

  // O = softmax(scale Q K^T) V over the last two dimensions (rows, columns of a head).
  void attention(int q, int k, int v, int o, int scale) {
    constexpr std::size_t first_version = 91301;  // 9.13.1
    if (function<std::size_t()>("cudnnGetVersion")() < first_version)
      throw Unsupported{"attention as one operation needs cuDNN 9.13.1 or later; install a newer one"};
    operations_.emplace_back(Kind::attention_operation)
        .set(Attribute::attention_q, tensors_[static_cast<std::size_t>(q)])
        .set(Attribute::attention_k, tensors_[static_cast<std::size_t>(k)])
        .set(Attribute::attention_v, tensors_[static_cast<std::size_t>(v)])
        .set(Attribute::attention_o, tensors_[static_cast<std::size_t>(o)])
        .set(Attribute::attention_scale, tensors_[static_cast<std::size_t>(scale)])
        .finalize();
  }

  // After the last operation: takes the first engine of the library's heuristic (mode A) that accepts the graph.
  void plan() {
    std::vector<RawDescriptor> operations;
    for (const Descriptor& operation : operations_) operations.push_back(operation.raw());
    Descriptor graph{Kind::operation_graph};
    graph.set(Attribute::graph_operations, Type::descriptor, operations.data(), operations.size());
    graph.set(Attribute::graph_handle, Type::handle, handle_).finalize();
    constexpr int mode_a = 3;
    Descriptor heuristic{Kind::heuristic};
    heuristic.set(Attribute::heuristic_graph, graph).set(Attribute::heuristic_mode, Type::heuristic_mode, mode_a).finalize();
    std::vector<Descriptor> candidates;
    for (int i = 0; i < 8; ++i) candidates.emplace_back(Kind::engine_configuration);
    std::vector<RawDescriptor> raw;
    for (const Descriptor& candidate : candidates) raw.push_back(candidate.raw());
    const std::int64_t found = heuristic.get(Attribute::heuristic_results, Type::descriptor, raw.data(), 8);
    std::string why = "its heuristic names none";
    for (std::int64_t i = 0; i < found && i < 8 && plan_.empty(); ++i) accept(candidates[static_cast<std::size_t>(i)], why);
    if (plan_.empty()) throw Unsupported{"cuDNN has no engine for this graph: " + why};
    std::int64_t bytes = 0;
    plan_[0].get(Attribute::plan_workspace_bytes, Type::int64, &bytes, 1);
    if (bytes > 0) aisp::check(cudaMalloc(&workspace_, static_cast<std::size_t>(bytes)));
  }

  void run(cudaStream_t stream, std::initializer_list<const void*> pointers) {
    if (pack_.empty() || pointers_ != std::vector<const void*>{pointers}) bind(pointers);
    check(set_stream_(handle_, stream), "cudnnSetStream");
    check(execute_(handle_, plan_[0].raw(), pack_[0].raw()), "cudnnBackendExecute");
  }

 private:
  static constexpr int none = -1;
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
  // An operation as the last of how_ describes it.
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

  void accept(const Descriptor& configuration, std::string& why_not) {
    Descriptor plan{Kind::plan};
    try {
      plan.set(Attribute::plan_handle, Type::handle, handle_).set(Attribute::plan_configuration, configuration).finalize();
    } catch (const std::exception& refusal) {
      why_not = refusal.what();
      return;  // the next engine may accept what this one does not
    }
    plan_.push_back(std::move(plan));
  }

  void bind(std::initializer_list<const void*> pointers) {
    pointers_ = pointers;
    pack_.clear();
    pack_.emplace_back(Kind::variant_pack)
        .set(Attribute::pack_pointers, Type::pointer, pointers_.data(), pointers_.size())
        .set(Attribute::pack_ids, Type::int64, ids_.data(), ids_.size())
        .set(Attribute::pack_workspace, Type::pointer, workspace_)
        .finalize();
  }

  Handle handle_ = nullptr;
  void* workspace_ = nullptr;
  std::vector<Descriptor> tensors_, how_, operations_, plan_, pack_;  // plan_ and pack_: one each, when they exist
  std::vector<std::int64_t> ids_;                                     // of the tensors
  std::vector<const void*> pointers_;
  int (*set_stream_)(Handle, cudaStream_t) = function<int(Handle, cudaStream_t)>("cudnnSetStream");
  int (*execute_)(Handle, RawDescriptor,
                  RawDescriptor) = function<int(Handle, RawDescriptor, RawDescriptor)>("cudnnBackendExecute");
};

}  // namespace aisp::cudnn
