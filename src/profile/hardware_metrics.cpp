// SPDX-License-Identifier: Apache-2.0
#include "profile/tools.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace aisp::profile {
namespace {

using evidence::Counters;

constexpr std::string_view stall_begin = "smsp__warps_issue_stalled_";
constexpr std::string_view stall_end = ".sum";

// Instructions of threads, as the hardware counts them and as the counters of operations do: these see no launches of graphs.
constexpr const char* all_instructions = "smsp__thread_inst_executed_pred_on.sum";
constexpr const char* seen_instructions = "sm__sass_thread_inst_executed_pred_on.sum";
// Both are read in passes of their own, between which an execution may differ a little.
constexpr double noticeable_percent = 1;

struct Field {
  const char* metric;
  std::optional<double> Counters::*field;
  double factor;
};

// If two metrics are for one field, the first that the chip has counts.
constexpr std::array fields{
    Field{"gpu__time_duration.sum", &Counters::duration_us, 1e-3},
    Field{"sm__throughput.avg.pct_of_peak_sustained_elapsed", &Counters::sm_throughput_percent, 1},
    Field{"gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", &Counters::memory_throughput_percent, 1},
    Field{"dram__bytes_read.sum", &Counters::dram_read_bytes, 1},
    Field{"dram__bytes_write.sum", &Counters::dram_write_bytes, 1},
    Field{"lts__t_sector_hit_rate.pct", &Counters::l2_hit_percent, 1},
    Field{"sm__warps_active.avg.pct_of_peak_sustained_active", &Counters::occupancy_percent, 1},
    Field{"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", &Counters::tensor_pipe_percent, 1},
    Field{"sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active", &Counters::tensor_pipe_percent, 1},
    Field{"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", &Counters::bank_conflicts, 1},
    Field{"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio", &Counters::sectors_per_load, 1},
    Field{"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio", &Counters::sectors_per_store, 1},
};

// Scalar operations are instructions of threads, a fused multiply-add two operations; half-precision instructions work on
// two values each. A tensor path counts operations itself.
struct Operations {
  const char* metric;
  const char* type;
  double each;
};
constexpr std::array operations{
    Operations{"sm__sass_thread_inst_executed_op_dadd_pred_on.sum", "fp64", 1},
    Operations{"sm__sass_thread_inst_executed_op_dmul_pred_on.sum", "fp64", 1},
    Operations{"sm__sass_thread_inst_executed_op_dfma_pred_on.sum", "fp64", 2},
    Operations{"sm__sass_thread_inst_executed_op_fadd_pred_on.sum", "fp32", 1},
    Operations{"sm__sass_thread_inst_executed_op_fmul_pred_on.sum", "fp32", 1},
    Operations{"sm__sass_thread_inst_executed_op_ffma_pred_on.sum", "fp32", 2},
    Operations{"sm__sass_thread_inst_executed_op_hadd_pred_on.sum", "fp16", 2},
    Operations{"sm__sass_thread_inst_executed_op_hmul_pred_on.sum", "fp16", 2},
    Operations{"sm__sass_thread_inst_executed_op_hfma_pred_on.sum", "fp16", 4},
    Operations{"sm__ops_path_tensor_src_fp64.sum", "tensor fp64", 1},
    Operations{"sm__ops_path_tensor_src_tf32_dst_fp32.sum", "tensor tf32", 1},
    Operations{"sm__ops_path_tensor_src_bf16_dst_fp32.sum", "tensor bf16", 1},
    Operations{"sm__ops_path_tensor_src_fp16.sum", "tensor fp16", 1},
    Operations{"sm__ops_path_tensor_src_fp16_dst_fp16.sum", "tensor fp16", 1},
    Operations{"sm__ops_path_tensor_src_fp16_dst_fp32.sum", "tensor fp16", 1},
    Operations{"sm__ops_path_tensor_src_fp8.sum", "tensor fp8", 1},
    Operations{"sm__ops_path_tensor_src_fp4_fp6_fp8_dst_fp16.sum", "tensor fp8", 1},
    Operations{"sm__ops_path_tensor_src_fp4_fp6_fp8_dst_fp32.sum", "tensor fp8", 1},
    Operations{"sm__ops_path_tensor_src_int8.sum", "tensor int8", 1},
};

constexpr std::array stall_reasons{
    "barrier",         "branch_resolving",   "dispatch_stall", "drain",        "gmma", "imc_miss",       "lg_throttle",
    "long_scoreboard", "math_pipe_throttle", "membar",         "mio_throttle", "misc", "no_instruction", "not_selected",
    "selected",        "short_scoreboard",   "sleeping",       "tex_throttle", "wait",
};

std::string stall_metric(std::string_view reason) {
  return std::string{stall_begin} + std::string{reason} + std::string{stall_end};
}

// Each counter sums over cycles the warps that are in one state, and a warp is in exactly one, so that all of them are the time
// of the warps.
std::vector<evidence::Stall> parts_of_warp_time(const std::map<std::string, double>& values) {
  std::vector<evidence::Stall> states;
  double all = 0;
  for (const char* reason : stall_reasons) {
    const auto found = values.find(stall_metric(reason));
    if (found == values.end() || !(found->second > 0)) continue;
    states.push_back({reason, found->second});
    all += found->second;
  }
  for (evidence::Stall& state : states) state.percent *= 100 / all;
  std::ranges::stable_sort(states, [](const auto& a, const auto& b) { return a.percent > b.percent; });
  return states;
}

std::optional<double> uncounted_percent(const std::map<std::string, double>& values) {
  const auto all = values.find(all_instructions), seen = values.find(seen_instructions);
  if (all == values.end() || seen == values.end() || !(all->second > 0)) return std::nullopt;
  const double percent = 100 * (1 - seen->second / all->second);
  return percent > noticeable_percent ? std::optional{percent} : std::nullopt;
}

// Hits and look-ups are counted in different executions: of a variant that hardly uses L2 they may not belong together.
void settle_hits(std::optional<double>& hit_percent) {
  constexpr double most_percent = 102;
  if (!hit_percent) return;
  if (*hit_percent > most_percent) hit_percent.reset();
  else *hit_percent = std::min(*hit_percent, 100.0);
}

bool is_deep(const Field& field) {
  return field.field == &Counters::dram_read_bytes || field.field == &Counters::dram_write_bytes ||
         field.field == &Counters::duration_us;
}

}  // namespace

std::vector<std::string> metric_names(MetricSet set) {
  std::vector<std::string> names;
  for (const Field& field : fields)
    if (set == MetricSet::full || is_deep(field)) names.emplace_back(field.metric);
  for (const Operations& operation : operations) names.emplace_back(operation.metric);
  names.emplace_back(all_instructions);
  names.emplace_back(seen_instructions);
  if (set == MetricSet::full)
    for (const char* reason : stall_reasons) names.push_back(stall_metric(reason));
  return names;
}

Counters counters_from(const std::map<std::string, double>& values) {
  Counters counters;
  for (const Field& field : fields) {
    const auto found = values.find(field.metric);
    if (found != values.end() && !(counters.*field.field)) counters.*field.field = found->second * field.factor;
  }
  settle_hits(counters.l2_hit_percent);
  for (const Operations& operation : operations)
    if (const auto found = values.find(operation.metric); found != values.end()) {
      counters.flops_counted = true;
      if (found->second > 0) counters.flops[operation.type] += found->second * operation.each;
    }
  counters.uncounted_instructions_percent = uncounted_percent(values);
  // A part of the operations would pass for all of them. The tensor cores count their own, in graphs too.
  if (counters.uncounted_instructions_percent)
    std::erase_if(counters.flops, [](const auto& type) { return !type.first.starts_with("tensor"); });
  counters.stalls = parts_of_warp_time(values);
  return counters;
}

}  // namespace aisp::profile
