// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/launch.hpp>
#include <aisp/list.hpp>
#include <aisp/setup.hpp>

#include <cstddef>
#include <string_view>
#include <utility>

namespace aisp {

enum class Math : std::uint8_t { fp64, fp64_tensor, fp32, tf32, fp16, bf16, fp8, int8 };

// FLOPs of a further type of math.
struct MoreMath {
  double flops = 0;
  Math math = Math::fp32;
};

// The least a workload must do: every input read once, every output written once, the arithmetic of its definition. The floor is
// the longest of the times that the machine's ceilings give for each of these. Types of math that run on the tensor cores share
// them, so that their times add up.
struct Cost {
  double flops = 0;
  Math math = Math::fp32;
  List<MoreMath> more_math{};
  double bytes = 0;              // device memory, read plus written, per GPU
  double l2_bytes = 0;           // traffic between the SMs and L2, if it is more than `bytes`
  double shared_wavefronts = 0;  // shared memory: each serves a warp's access to all banks at most once
  double issue_slots = 0;        // warp instructions
  double special_functions = 0;  // per thread: exponentials, reciprocals, roots and sines of the special-function unit
  double host_to_device = 0;     // bytes over PCIe
  double device_to_host = 0;
  double peer_bytes = 0;         // between GPUs, per direction and GPU
  double host_bytes = 0;         // host memory, read plus written
  double dependent_kernels = 0;  // kernels (or graph nodes) that must follow one another
  double seconds = 0;            // a floor of another kind, computed by the pair; the header comment says which
  List<Cost> phases{};           // set by in_turn()
};

// The cost of steps that cannot overlap, because each needs the complete result of the one before: their floors add up.
inline Cost in_turn(List<Cost> phases) {
  Cost cost;
  cost.phases = std::move(phases);
  return cost;
}

// Receives a variant's own figures after each sample, outside the timed window.
class Metrics {
 public:
  enum class Better : std::uint8_t { lower, higher };
  virtual void report(const char* name, double value, const char* unit, Better better) = 0;
  // Reports `count` items in the sample; the metric is the rate per second, with `unit` as "images/s".
  virtual void report_rate(const char* name, double count, const char* unit) = 0;

 protected:
  ~Metrics() = default;
};

class Workload {
 public:
  Workload() = default;
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;
  virtual ~Workload() = default;

  virtual Cost cost() const = 0;
  // Returns the cost of a variant that must do less or other work than the baseline (half the bytes, another math unit).
  virtual Cost variant_cost(std::string_view /*variant*/) const { return cost(); }

  // Returns the float64 reference of element `index` of the only output (or inout). Called from several threads.
  virtual double expected(std::size_t index) const;
  // The same for workloads with several outputs: `output` counts outputs and inouts in the order of their declaration.
  virtual double expected_output(int output, std::size_t index) const;
  // For variants that change precision: the reference on the operands as that variant quantizes them.
  virtual double expected_quantized(std::string_view variant, int output, std::size_t index) const;
  // Called before expected(), after the runs that are compared with it: for references computed in bulk, on the CPU or with plain
  // FP64 kernels.
  virtual void compute_reference(Launch& /*launch*/) {}

  // Returns the number of elements of `output` that are defined after a run (compacted or filtered results); the rest must stay
  // untouched. Called after the device is idle. Default: all of them (any value beyond the size of the output).
  virtual std::size_t output_length(int output) const;

  // Checks the workload's own conditions after a run of `variant` and compute_reference(): throws std::runtime_error that says
  // what is wrong.
  virtual void validate(std::string_view /*variant*/) {}
  // Reports what a run left in its outputs and workspace. Called after executions of `variant`; the inputs may be others by then.
  virtual void metrics(std::string_view /*variant*/, Metrics& /*metrics*/) {}
};

}  // namespace aisp
