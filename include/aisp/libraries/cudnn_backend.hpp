// SPDX-License-Identifier: Apache-2.0
// Descriptors of cuDNN's backend API. Types, names and numbers are those of NVIDIA's cuDNN backend API reference, version 9, as
// far as they are used.
#pragma once
#include <aisp/check.hpp>
#include <aisp/library.hpp>

#include <array>
#include <stdexcept>
#include <string>

namespace aisp::cudnn {

enum class DataType : int { f32 = 0, f16 = 2, i32 = 4, bf16 = 9, boolean = 11 };  // cudnnDataType_t
// cudnnBackendDescriptorType_t
enum class Kind : int {
  pointwise = 0,
  convolution = 1,
  engine = 2,
  engine_configuration = 3,
  heuristic = 4,
  plan = 5,
  convolution_operation = 10,
  pointwise_operation = 13,
  operation_graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  matmul_operation = 19,
  reduction = 21,
  reduction_operation = 22,
  norm_operation = 29,
  reshape_operation = 31,
  load_pages_operation = 35,
  attention_operation = 41
};

// cudnnBackendAttributeType_t
enum class Type : int {
  handle = 0,
  data_type = 1,
  boolean = 2,
  int64 = 3,
  f32 = 4,
  pointer = 6,
  convolution_mode = 7,
  heuristic_mode = 8,
  numerical_note = 11,
  pointwise_mode = 14,
  descriptor = 15,
  reduction_operator = 18,
  norm_mode = 27,
  norm_phase = 28
};

// cudnnBackendAttributeName_t
enum class Attribute : int {
  pointwise_mode = 0,
  pointwise_math = 1,
  pointwise_axis = 9,
  convolution_math = 100,
  convolution_mode = 101,
  convolution_dilations = 102,
  convolution_strides = 103,
  convolution_zeros_behind = 104,
  convolution_zeros_before = 105,
  convolution_dimensions = 106,
  heuristic_mode = 200,
  heuristic_graph = 201,
  heuristic_results = 202,
  configuration_engine = 300,
  plan_handle = 400,
  plan_configuration = 401,
  plan_workspace_bytes = 402,
  convolution_alpha = 700,
  convolution_beta = 701,
  convolution_how = 702,
  convolution_w = 703,
  convolution_x = 704,
  convolution_y = 705,
  pointwise_how = 750,
  pointwise_x = 751,
  pointwise_b = 752,
  pointwise_y = 753,
  pointwise_t = 758,
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
  engine_notes = 1303,
  matmul_math = 1500,
  matmul_a = 1520,
  matmul_b = 1521,
  matmul_c = 1522,
  matmul_how = 1523,
  matmul_rows = 1525,
  matmul_columns = 1526,
  matmul_depth = 1527,
  reduction_operator = 1600,
  reduction_math = 1601,
  reduction_x = 1610,
  reduction_y = 1611,
  reduction_how = 1612,
  load_pages_container = 1950,
  load_pages_y = 1951,
  load_pages_lengths = 1952,
  load_pages_table = 1953,
  norm_mode = 2000,
  norm_phase = 2001,
  norm_x = 2002,
  norm_scale = 2005,
  norm_epsilon = 2007,
  norm_y = 2013,
  reshape_x = 2200,
  reshape_y = 2201,
  attention_q = 2800,
  attention_k = 2801,
  attention_v = 2802,
  attention_o = 2803,
  attention_scale = 2805,
  attention_k_table = 2807,
  attention_v_table = 2808,
  attention_query_lengths = 2809,
  attention_key_lengths = 2810
};

enum class Pointwise : int {
  add = 0,
  multiply = 1,
  divide = 6,
  subtract = 9,
  exp = 13,
  log = 15,
  identity = 21,
  greater = 302,
  greater_equal = 303,
  less = 304,
  logical_and = 400,
  index = 501,
  select = 601
};
enum class Reduction : int { add = 0, max = 3 };

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

}  // namespace aisp::cudnn
