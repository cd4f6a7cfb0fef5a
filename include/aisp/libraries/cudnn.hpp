// SPDX-License-Identifier: Apache-2.0
// cuDNN's graphs, opened at run time: nothing of it is linked, and no header of it is needed. A variant that uses them says
// `.needs = {.libraries = {Library::cudnn}}`. Types, names and numbers are those of the backend API (NVIDIA cuDNN backend API
// reference, version 9), as far as they are used.
#pragma once
#include <aisp/check.hpp>
#include <aisp/library.hpp>

#include <array>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace aisp::cudnn {

enum class DataType : int { f32 = 0, f16 = 2, bf16 = 9 };                                 // cudnnDataType_t
enum class Pointwise : int { multiply = 1, divide = 6, subtract = 9, exponential = 13 };  // cudnnPointwiseMode_t
enum class Reduction : int { sum = 0, maximum = 3 };                                      // cudnnReduceTensorOp_t

// cudnnBackendDescriptorType_t
enum class Kind : int {
  pointwise = 0,
  engine_configuration = 3,
  heuristic = 4,
  plan = 5,
  pointwise_operation = 13,
  operation_graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  matmul_operation = 19,
  reduction = 21,
  reduction_operation = 22
};

// cudnnBackendAttributeType_t
enum class Type : int {
  handle = 0,
  data_type = 1,
  boolean = 2,
  int64 = 3,
  pointer = 6,
  heuristic_mode = 8,
  pointwise_mode = 14,
  descriptor = 15,
  reduction_operator = 18
};

// cudnnBackendAttributeName_t
enum class Attribute : int {
  pointwise_mode = 0,
  pointwise_precision = 1,
  heuristic_mode = 200,
  heuristic_graph = 201,
  heuristic_results = 202,
  plan_handle = 400,
  plan_configuration = 401,
  plan_workspace_bytes = 402,
  pointwise_of = 750,
  pointwise_x = 751,
  pointwise_b = 752,
  pointwise_y = 753,
  graph_handle = 800,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_data_type = 901,
  tensor_sizes = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_is_virtual = 907,
  tensor_is_value = 908,
  pack_ids = 1000,
  pack_pointers = 1001,
  pack_workspace = 1003,
  matmul_precision = 1500,
  matmul_a = 1520,
  matmul_b = 1521,
  matmul_c = 1522,
  matmul_of = 1523,
  reduction_operator = 1600,
  reduction_precision = 1601,
  reduction_x = 1610,
  reduction_y = 1611,
  reduction_of = 1612
};

using Handle = void*;
using RawDescriptor = void*;

template <class F>
F* function(const char* name) {
  return SharedLibrary::open(Library::cudnn).function<F>(name);
}

inline void check(int status, const char* what) {
  if (status == 0) return;
  constexpr int not_supported = 3000, internal_error = 4000;
  std::array<char, 256> detail{};
  function<void(char*, std::size_t)>("cudnnGetLastErrorString")(detail.data(), detail.size());
  const std::string message = std::string{"cuDNN status "} + std::to_string(status) + " from " + what + ": " + detail.data();
  if (status >= not_supported && status < internal_error) throw Unsupported{message};
  throw std::runtime_error{message};
}

// cudnnBackendDescriptor_t, destroyed with this object.
class Descriptor {
 public:
  explicit Descriptor(Kind kind) {
    check(function<int(Kind, RawDescriptor*)>("cudnnBackendCreateDescriptor")(kind, &raw_), "cudnnBackendCreateDescriptor");
  }
  ~Descriptor() {
    if (raw_ != nullptr) function<int(RawDescriptor)>("cudnnBackendDestroyDescriptor")(raw_);
  }
  Descriptor(Descriptor&& other) noexcept : raw_{other.raw_} { other.raw_ = nullptr; }
  Descriptor& operator=(Descriptor&&) = delete;

  RawDescriptor raw() const { return raw_; }

  template <class Value>
  Descriptor& set(Attribute name, Type type, const Value* values, std::size_t count) {
    check(function<int(RawDescriptor, Attribute, Type, std::int64_t, const void*)>("cudnnBackendSetAttribute")(
              raw_, name, type, static_cast<std::int64_t>(count), values),
          ("setting attribute " + std::to_string(static_cast<int>(name))).c_str());
    return *this;
  }
  template <class Value>
  Descriptor& set(Attribute name, Type type, const Value& value) {
    return set(name, type, &value, 1);
  }
  Descriptor& set(Attribute name, const Descriptor& value) { return set(name, Type::descriptor, value.raw_); }
  Descriptor& finalize() {
    check(function<int(RawDescriptor)>("cudnnBackendFinalize")(raw_), "cudnnBackendFinalize");
    return *this;
  }
  // Writes up to `count` values and returns how many there are.
  template <class Value>
  std::int64_t get(Attribute name, Type type, Value* values, std::int64_t count) const {
    std::int64_t found = 0;
    check(function<int(RawDescriptor, Attribute, Type, std::int64_t, std::int64_t*, void*)>("cudnnBackendGetAttribute")(
              raw_, name, type, count, &found, values),
          ("reading attribute " + std::to_string(static_cast<int>(name))).c_str());
    return found;
  }

 private:
  RawDescriptor raw_ = nullptr;
};

using Sizes = std::array<std::int64_t, 4>;

// A graph of operations on four-dimensional tensors with fp32 arithmetic. Tensors are numbered in the order of their declaration;
// run() takes the addresses of those that are not virtual, in that order.
class Graph {
 public:
  Graph() { check(function<int(Handle*)>("cudnnCreate")(&handle_), "cudnnCreate"); }
  ~Graph() {
    cudaFree(workspace_);
    function<int(Handle)>("cudnnDestroy")(handle_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  int tensor(DataType type, const Sizes& sizes, const Sizes& strides) {
    ids_.push_back(next_id());
    return add_tensor(type, sizes, strides, false, false);
  }
  // One fp32 in host memory, read when the graph is run.
  int value() {
    ids_.push_back(next_id());
    return add_tensor(DataType::f32, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
  }
  // An intermediate result that is never stored. Dense.
  int virtual_tensor(DataType type, const Sizes& sizes) {
    return add_tensor(type, sizes, {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1}, true, false);
  }

  void matmul(int a, int b, int c) {
    const Descriptor& what = keep(Kind::matmul).set(Attribute::matmul_precision, Type::data_type, DataType::f32).finalize();
    operation(Kind::matmul_operation, {{Attribute::matmul_a, a}, {Attribute::matmul_b, b}, {Attribute::matmul_c, c}},
              Attribute::matmul_of, what);
  }
  void pointwise(Pointwise mode, int x, int b, int y) {
    operation(Kind::pointwise_operation, {{Attribute::pointwise_x, x}, {Attribute::pointwise_b, b}, {Attribute::pointwise_y, y}},
              Attribute::pointwise_of, pointwise_mode(mode));
  }
  void pointwise(Pointwise mode, int x, int y) {
    operation(Kind::pointwise_operation, {{Attribute::pointwise_x, x}, {Attribute::pointwise_y, y}}, Attribute::pointwise_of,
              pointwise_mode(mode));
  }
  void reduction(Reduction how, int x, int y) {
    const Descriptor& what = keep(Kind::reduction)
                                 .set(Attribute::reduction_operator, Type::reduction_operator, how)
                                 .set(Attribute::reduction_precision, Type::data_type, DataType::f32)
                                 .finalize();
    operation(Kind::reduction_operation, {{Attribute::reduction_x, x}, {Attribute::reduction_y, y}}, Attribute::reduction_of,
              what);
  }

  // After the last operation: takes the first engine of the library's heuristic (mode A) that accepts the graph.
  void plan() {
    std::vector<RawDescriptor> operations;
    for (const std::size_t i : operations_) operations.push_back(kept_[i].raw());
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
  std::int64_t next_id() const { return static_cast<std::int64_t>(tensors_.size()) + 1; }
  Descriptor& keep(Kind kind) { return kept_.emplace_back(kind); }
  const Descriptor& pointwise_mode(Pointwise mode) {
    return keep(Kind::pointwise)
        .set(Attribute::pointwise_mode, Type::pointwise_mode, mode)
        .set(Attribute::pointwise_precision, Type::data_type, DataType::f32)
        .finalize();
  }

  int add_tensor(DataType type, const Sizes& sizes, const Sizes& strides, bool is_virtual, bool is_value) {
    const std::int64_t id = next_id();
    tensors_.emplace_back(Kind::tensor)
        .set(Attribute::tensor_data_type, Type::data_type, type)
        .set(Attribute::tensor_sizes, Type::int64, sizes.data(), sizes.size())
        .set(Attribute::tensor_strides, Type::int64, strides.data(), strides.size())
        .set(Attribute::tensor_id, Type::int64, id)
        .set(Attribute::tensor_alignment, Type::int64, std::int64_t{16})
        .set(Attribute::tensor_is_virtual, Type::boolean, is_virtual)
        .set(Attribute::tensor_is_value, Type::boolean, is_value)
        .finalize();
    return static_cast<int>(tensors_.size()) - 1;
  }

  struct Operand {
    Attribute name;
    int tensor;
  };
  void operation(Kind kind, std::initializer_list<Operand> operands, Attribute of, const Descriptor& what) {
    const RawDescriptor raw = what.raw();  // the reference does not outlive the next line
    Descriptor& result = keep(kind);
    for (const Operand& operand : operands) result.set(operand.name, tensors_[static_cast<std::size_t>(operand.tensor)]);
    result.set(of, Type::descriptor, raw).finalize();
    operations_.push_back(kept_.size() - 1);
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
  std::vector<Descriptor> tensors_, kept_, plan_, pack_;  // plan_ and pack_: one each, when they exist
  std::vector<std::size_t> operations_;                   // indices in kept_
  std::vector<std::int64_t> ids_;                         // of tensors with addresses
  std::vector<const void*> pointers_;
  int (*set_stream_)(Handle, cudaStream_t) = function<int(Handle, cudaStream_t)>("cudnnSetStream");
  int (*execute_)(Handle, RawDescriptor,
                  RawDescriptor) = function<int(Handle, RawDescriptor, RawDescriptor)>("cudnnBackendExecute");
};

}  // namespace aisp::cudnn
