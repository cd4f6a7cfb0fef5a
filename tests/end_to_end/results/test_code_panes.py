# SPDX-License-Identifier: Apache-2.0
"""The panes of code in HTML reports, over all pairs that are shipped."""
import json
import sys
import unittest

from harness import AISP, SOURCE, EndToEnd

sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "cmake/code"))
from source_code import Sources  # noqa: E402
from variant_code import functions  # noqa: E402

# Variants, or all of a pair, that launch no kernel of their own: they copy, call libraries, or compile their kernels at run time.
WITHOUT_KERNELS = set("""
ch01:batched_gemm
ch01:double_buffering
ch01:handle_reuse
ch01:larger_batch
ch01:packed_transfers column_copies
ch01:packed_transfers packed
ch01:packed_transfers pack_then_copy
ch01:pinned_memory
ch02:cublas cublas_dgemm
ch02:memory_transfer
ch02:memory_transfer_multigpu
ch02:topology_aware_upload
ch03:pinned_registration
ch04:dataparallel nccl_allreduce
ch04:gradient_compression nccl_fp32
ch04:gradient_fusion call_per_tensor
ch04:gradient_fusion captured_calls
ch04:gradient_fusion flat_buckets
ch04:gradient_fusion flat_in_one_call
ch04:gradient_fusion grouped
ch04:no_overlap backward_then_reduce
ch04:no_overlap bucketed_overlap
ch04:no_overlap collectives_alone
ch04:no_overlap fitted_gemms
ch04:no_overlap gemms_alone
ch04:no_overlap limited_ctas
ch04:no_overlap reduced_in_one_call
ch04:pipeline_parallelism
ch04:tensor_parallelism chunked_nccl
ch04:tensor_parallelism column_row
ch04:tensor_parallelism gather_each_layer
ch04:tensor_parallelism tokens_split
ch05:dataloader bf16_ring
ch05:dataloader data_resident
ch05:gpudirect_storage
ch09:cutlass_gemm cutlass_sm90
ch09:cutlass_gemm cutlass_sm100
ch09:fused_mlp layer_by_layer
ch09:gemm_backward_epilogue gemm_alone
ch09:gemm_bias_gelu_epilogue cublaslt_epilogue
ch09:gemm_bias_gelu_epilogue gemm_alone
ch09:qkv_horizontal_fusion
ch09:swiglu_dual_gemm gemm_alone
ch11:batched_memcpy copy_each
ch11:batched_memcpy four_streams
ch11:batched_memcpy graph_of_copies
ch11:batched_memcpy memcpy_batch
ch11:batched_memcpy one_copy
ch11:green_contexts products_alone
ch14:lto_callbacks linked_call
ch14:lto_callbacks lto_linked
ch14:nvrtc_fusion fused
ch14:shape_specialization specialized
ch14:shape_specialization width_argument
ch15:kv_handoff copy_alone
ch15:kv_handoff nccl_alone
ch17:lora_multi_adapter base_alone
ch18:attention_sinks cudnn_reading
ch19:fp8_decode_gemm cublas_bf16
ch19:sparse_2to4_gemm cublaslt_dense
ch20:prefill_block products_alone
ch20:vector_search gemm_alone
""".strip().splitlines())


class Panes(EndToEnd):
    def test_every_variant_has_one_with_what_it_launches(self):
        sources = Sources(SOURCE, SOURCE / "include", SOURCE / "chapters/shared")
        for pair in json.loads(self.call("list-targets", "--json", program=AISP).out):
            found = functions(sources.shown(SOURCE / pair["source"]), sources.tokens_of)
            lines = [line.split() for of_file in found.values() for line in of_file]
            kernels = [words[0] == "kernel" for words in lines if words[0] != "variant"]
            shown = {words[1]: [kernel for kernel, bit in zip(kernels, words[2]) if bit == "1"] for words in lines if words[0] == "variant"}
            own = [pair["baseline"], *pair["optimized"], *pair["controls"]]
            for variant in own + pair["libraries"]:
                self.assertTrue(shown.get(variant), f"{pair['target']} {variant}")
            if pair["device"] == "gpu" and pair["target"] not in WITHOUT_KERNELS:
                without = {f"{pair['target']} {variant}" for variant in own if not any(shown[variant])}
                self.assertEqual(without - WITHOUT_KERNELS, set())


if __name__ == "__main__":
    unittest.main()
