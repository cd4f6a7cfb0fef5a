// SPDX-License-Identifier: Apache-2.0
// The code panes of reports, over all pairs that are shipped.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "places.hpp"
#include "report/html/code_parts.hpp"
#include "tree_sources.hpp"

namespace aisp::report {
namespace {

nlohmann::json listed_pairs() {
  const std::string command = aisp_path() + " list-targets --json";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe{popen(command.c_str(), "r"), pclose};
  std::string text;
  std::array<char, 4096> part{};
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), pipe.get())) text.append(part.data(), count);
  return nlohmann::json::parse(text);
}

// Variants that launch no kernel of their own: they copy, call libraries, or compile their kernels at run time.
const std::set<std::string> without_kernels{
    "ch01:batched_gemm",
    "ch01:double_buffering",
    "ch01:handle_reuse",
    "ch01:larger_batch",
    "ch01:packed_transfers column_copies",
    "ch01:packed_transfers packed",
    "ch01:packed_transfers pack_then_copy",
    "ch01:pinned_memory",
    "ch02:cublas cublas_dgemm",
    "ch02:memory_transfer",
    "ch02:memory_transfer_multigpu",
    "ch02:topology_aware_upload",
    "ch03:pinned_registration",
    "ch04:dataparallel nccl_allreduce",
    "ch04:gradient_compression nccl_fp32",
    "ch04:gradient_fusion call_per_tensor",
    "ch04:gradient_fusion captured_calls",
    "ch04:gradient_fusion flat_buckets",
    "ch04:gradient_fusion flat_in_one_call",
    "ch04:gradient_fusion grouped",
    "ch04:no_overlap backward_then_reduce",
    "ch04:no_overlap bucketed_overlap",
    "ch04:no_overlap collectives_alone",
    "ch04:no_overlap fitted_gemms",
    "ch04:no_overlap gemms_alone",
    "ch04:no_overlap limited_ctas",
    "ch04:no_overlap reduced_in_one_call",
    "ch04:pipeline_parallelism",
    "ch04:tensor_parallelism chunked_nccl",
    "ch04:tensor_parallelism column_row",
    "ch04:tensor_parallelism gather_each_layer",
    "ch04:tensor_parallelism tokens_split",
    "ch05:dataloader bf16_ring",
    "ch05:dataloader data_resident",
    "ch05:gpudirect_storage",
    "ch09:cutlass_gemm cutlass_sm90",
    "ch09:cutlass_gemm cutlass_sm100",
    "ch09:fused_mlp layer_by_layer",
    "ch09:gemm_backward_epilogue gemm_alone",
    "ch09:gemm_bias_gelu_epilogue cublaslt_epilogue",
    "ch09:gemm_bias_gelu_epilogue gemm_alone",
    "ch09:qkv_horizontal_fusion",
    "ch09:swiglu_dual_gemm gemm_alone",
    "ch11:batched_memcpy copy_each",
    "ch11:batched_memcpy four_streams",
    "ch11:batched_memcpy graph_of_copies",
    "ch11:batched_memcpy memcpy_batch",
    "ch11:batched_memcpy one_copy",
    "ch11:green_contexts products_alone",
    "ch14:lto_callbacks linked_call",
    "ch14:lto_callbacks lto_linked",
    "ch14:nvrtc_fusion fused",
    "ch14:shape_specialization specialized",
    "ch14:shape_specialization width_argument",
    "ch15:kv_handoff copy_alone",
    "ch15:kv_handoff nccl_alone",
    "ch17:lora_multi_adapter base_alone",
    "ch18:attention_sinks cudnn_reading",
    "ch19:fp8_decode_gemm cublas_bf16",
    "ch19:sparse_2to4_gemm cublaslt_dense",
    "ch20:prefill_block products_alone",
    "ch20:vector_search gemm_alone",
};

TEST(ShippedCode, EveryPaneShowsWhatItsVariantDoesWithItsKernels) {
  for (const auto& pair : listed_pairs()) {
    const std::string target = pair.at("target");
    const std::vector<SourceText> files = sample::files_of(pair.at("source").get<std::string>());
    const auto has_kernel = [&](const std::string& variant) {
      const std::vector<CodePart> parts = parts_of_variant(files, variant);
      EXPECT_FALSE(parts.empty()) << target << " " << variant;
      return std::ranges::any_of(parts, &CodePart::is_kernel);
    };
    std::vector<std::string> own{pair.at("baseline")};
    for (const char* kind : {"optimized", "controls"}) own.insert(own.end(), pair.at(kind).begin(), pair.at(kind).end());
    for (const std::string& variant : own)
      EXPECT_TRUE(has_kernel(variant) || pair.at("device") != "gpu" || without_kernels.contains(target) ||
                  without_kernels.contains(target + " " + variant))
          << target << " " << variant;
    for (const std::string variant : pair.at("libraries")) has_kernel(variant);
  }
}

}  // namespace
}  // namespace aisp::report
