# SPDX-License-Identifier: Apache-2.0
"""The machine code of pairs in the built executable, for sm_90a: each kernel has the instructions that its pair is about, and none uses
local memory but those that are about it. Needs cuobjdump and nvdisasm, of the toolkit, on PATH or where ./setup.sh --test installs them;
in CI, and where it has installed them, the tests fail instead of skipping themselves."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("AISP_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
INSTALLED = SOURCE / ".cuda.sass"  # by scripts/setup/cuda.sh
# cuobjdump looks for nvdisasm on PATH.
PATH = ":".join(filter(None, [os.environ.get("PATH"), os.path.dirname(os.environ.get("AISP_NVCC", "")), "/usr/local/cuda/bin",
                              f"{INSTALLED}/bin"]))
TOOLS = {tool: shutil.which(tool, path=PATH) for tool in ("cuobjdump", "nvdisasm")}
AISP = os.environ.get("AISP", "")
MUST_RUN = os.environ.get("CI") == "true" or (INSTALLED / "wheels.txt").exists()

# Pairs whose lesson is an instruction. Pair: kernels, by a part of their mangled names, the instructions that they must have, and
# those that they must not.
KERNELS = {
    # Chapters 1 and 2.
    "batched_gemm": [("fused_tiles_kernel", "HMMA.1688.F32.TF32 LDGSTS LDS", "FFMA")],
    "cublas": [("fma_kernel", "DFMA LDG.E.128 LDS.128 STS.128", "DMMA"), ("mma_f64 ring_kernel", "DMMA LDGSTS", "DFMA")],
    # Chapters 6 and 7.
    "atomics": [("atomic_per_thread_kernel", "REDG.E.ADD.F64", "SHFL"), ("warp_aggregated_kernel", "REDG.E.ADD.F64 SHFL", "BAR"),
                ("last_block_kernel", "ATOMG.E.ADD", "REDG")],
    "bank_conflicts": [("tiled_kernel", "LDS STS BAR", "LDS.64 LDS.128 STS.64 STS.128"), ("warp_scan_kernel", "SHFL.UP", "LDS STS BAR")],
    "grid_stride": [("thread_per_pair_kernel", "FRND F2I", "LDG.E.128"), ("angle_table_kernel", "LDG.E.64", "FRND F2I"),
                    ("grid_stride_vec16_kernel", "LDG.E.128 STG.E.128", "")],
    "index_arithmetic": [("generic_kernel ILi6Ejj", "MUFU.RCP", ""), ("generic_kernel ILi6Emm", "MUFU.RCP", ""),
                         ("generic_kernel ILi6Ej Divisor", "IMAD.HI.U32", "MUFU"), ("grid_coordinates", "", "MUFU IMAD.HI.U32")],
    "occupancy_api": [("narrow_kernel", "LDG", "LDG.E.128"), ("wide_kernel", "LDG.E.128", "")],
    "warp_ballot": [("word_per_thread_kernel", "LDG", "VOTE LDG.E.128"), ("13ballot_kernel", "VOTE", ""),
                    ("ballot_vec4_kernel", "VOTE LDG.E.128", "")],
    "warp_reduce": [("shared_tree_kernel", "LDS BAR", "SHFL"), ("shuffle_block_kernel", "SHFL BAR", ""), ("warp_per_row_kernel", "SHFL", "BAR STS"),
                    ("warp_per_row_shared_kernel", "LDS STS", "BAR SHFL")],
    "async_prefetch": [("register_ahead_kernel", "LDG.E STS", "LDGSTS UBLKCP"), ("cp_async_ring_kernel", "LDGSTS.E.BYPASS.128", "LDG UBLKCP"),
                       ("bulk_ring_kernel", "UBLKCP.S.G", "LDG LDGSTS")],
    "constant_memory": [("13global_kernel", "LDG.E.CONSTANT", ""), ("symbol_kernel", "FFMA", "LDG.E.CONSTANT LDS.128"),
                        ("argument_kernel", "FFMA", "LDG.E.CONSTANT LDS.128"), ("13shared_kernel", "LDS.128", "LDG.E.CONSTANT")],
    "copy_scalar": [("10add_kernelILi2E", "LDG.E.U16 STG.E.U16", "LDG.E.128"), ("10add_kernelILi16E", "LDG.E.128 STG.E.128", "LDG.E.U16"),
                    ("eight_scalars_kernel", "LDG.E.U16 STG.E.U16", "LDG.E.128")],
    "texture": [("gathers_kernel", "LDG", "TEX"), ("texture_fetch_kernel", "TEX.LL", "LDG"), ("texture_filter_kernel", "TEX.LL", "LDG FRND")],
    "tma_bulk_tensor_2d": [("row_vectors_kernel", "LDG.E.128 STS.128", "UTMALDG"), ("tma_tile_kernel", "UTMALDG.2D STG.E", "LDG"),
                           ("tma_tile_ring_kernel Lb1E", "UTMALDG.2D UTMASTG.2D", "LDG STG")],
    "alignment": [("funnel_shift_kernel", "LDG.E.128 SHFL SHF STG.E.128", "LDG.E.U16"), ("aligned_stores_kernel", "LDG.E.U16 STG.E.128", "")],
    # Chapter 8. Behind the order of launch_bounds stand its promises: the most threads, and the fewest blocks.
    "launch_bounds": [("bounded_kernelILi12ELi1024E", "LDL STL", ""), ("bounded_kernelILi14ELi1024E", "LDL STL", ""),
                      ("bounded_kernelILi16ELi1024E", "LDL STL", ""), ("bounded_kernelILi16ELi256ELi2E", "LDL STL", ""),
                      ("bounded_kernelILi16ELi128ELi4E", "LDL STL", ""), ("bounded_kernelILi12ELi256E", "MUFU.RSQ", "LDL STL")],
    "local_arrays": [("insertion_sort_kernel", "LDL STL", ""), ("table_kernel", "FMNMX LDL STL", ""), ("network_kernel", "FMNMX", "LDL STL"),
                     ("columns_kernel", "FMNMX LDG.E.128 STG.E.128", "LDL STL")],
    "loop_unrolling": [("rows_kernelILi0E", "LDL STL", ""), ("rows_kernelILi7E", "FFMA", "LDL STL")],
    "occupancy_tuning": [("decode_kernel", "LDS.128 STG.E.128", "")],
    "special_functions": [("density_kernelILi8E", "MUFU.EX2 LEA", ""), ("density_kernelILi32E", "LEA", "MUFU")],
    "thresholdtma": [("vector_kernel", "LDG.E.128 STG.E.128", ""), ("ring_kernel", "UBLKCP.S.G UBLKCP.G.S", "LDG")],
    "work_per_thread": [("fir_kernelILi4ELi1E", "LDS", "LDS.128"), ("fir_kernelILi4ELi4E", "LDS.128 STG.E.128", ""),
                        ("fir_kernelILi8ELi4E", "LDS.128 STG.E.128", "")],
    # Chapter 9.
    "compute_bound": [("body_per_thread_kernel ReciprocalRoot", "MUFU.RSQ LDG.E.128", "CALL MUFU.RCP"),
                      ("tiled_kernel ReciprocalRoot", "MUFU.RSQ LDS.128", "CALL MUFU.RCP"),
                      ("four_bodies_kernel", "MUFU.RSQ LDS.128", "CALL MUFU.RCP")],
    "dropout_recompute": [("forward_kernel NoMask", "IMAD.WIDE.U32 LDG.E.128 STG.E.128", "STG.E.U8 STG.E.64"),
                          ("backward_kernel NoMask", "IMAD.WIDE.U32 LDG.E.128 STG.E.128", "LDG.E.U8"),
                          ("backward_kernel BitMask", "LDG.E.U8 LDG.E.128 STG.E.128", "LDG.E.64")],
    "fused_cross_entropy": [("fused_kernelILb0E", "LDG.E.128 STG.E.128 MUFU.EX2", "STG.E.EF"), ("fused_kernelILb1E", "LDG.E.128 STG.E.EF.128", "STG.E.128"),
                            ("log_softmax_kernel", "LDG.E.128 STG.E.128", ""), ("on_chip_kernel", "LDGSTS LDS.128 STG.E.128", "")],
    "fused_l2norm": [("lengths_kernel", "LDS BAR", "SHFL"), ("lanes_per_row_kernelILi4ELi16ELi1ELi1ELb1E", "LDG.E.128 SHFL STG.E.128", "LDS BAR"),
                     ("lanes_per_row_kernelILi4ELi16ELi1ELi4ELb1E", "LDG.E.128 SHFL STG.E.128", "LDS BAR")],
    "micro_tiling_matmul": [("register_tile_kernel Li8ELi8E", "LDS.128 STG.E.128", "LDGSTS"), ("async_copy_kernel", "LDGSTS LDS.128 STG.E.128", "")],
    "online_softmax": [("pass_kernel", "LDG.E.128 STG.E.128 MUFU.EX2", ""), ("registers_kernel", "LDG.E.128 STG.E.128 MUFU.EX2", "")],
    "residual_rmsnorm": [("norm_kernel", "LDG.E.128 STG.E.128 SHFL", ""), ("add_and_norm", "LDG.E.128 STG.E.128 SHFL", "")],
    "temporal_blocking": [("tile_kernel", "LDS.128 STS.128 SHFL BAR", ""), ("stream_kernel", "LDG.E.128 STG.E.128 SHFL", "LDS BAR")],
    "cutlass_gemm": [("11wmma_kernel", "HMMA", "LDSM LDGSTS"), ("async_stages_kernel", "HMMA LDGSTS", "LDSM"),
                     ("multistage_kernelILi1E", "HMMA LDSM LDGSTS", "HGMMA"), ("multistage_kernelILi4E", "HMMA LDSM LDGSTS", "HGMMA")],
    "implicit_gemm_conv": [("implicit_mma_kernel", "HMMA LDSM LDGSTS", "HGMMA"), ("implicit_wgmma_kernel", "HGMMA LDGSTS", "HMMA UTMALDG"),
                           ("gemm_kernel Windows", "HGMMA UTMALDG.4D UTMALDG.2D.MULTICAST", "LDGSTS")],
    "fused_mlp": [("fused_mma_kernel", "HMMA LDSM F2FP.RELU LDG.E.128", "HGMMA"), ("fused_wgmma_kernel", "HGMMA F2FP.RELU LDG.E.128", "HMMA LDSM"),
                  ("fused_wgmma_tma_kernel", "HGMMA F2FP.RELU LDSM STSM UTMALDG UTMASTG", "HMMA")],
    "spmm": [("14scatter_kernel", "REDG.E.ADD.F32", ""), ("fused_atomics_kernel", "REDG.E.ADD.F32 LDG.E.128", ""),
             ("tile_per_row_kernel", "LDG.E.128 STG.E.128", "REDG"), ("pieces_kernel", "LDG.E.128 STG.E.128", "REDG")],
    "tall_skinny_gram": [("gram_kernelILi64E UnitsE0", "FFMA LDS.128 LDGSTS", "HMMA"), ("gram_kernelILi64E UnitsE1", "HMMA LDS.64 LDGSTS", "FFMA LDS.128"),
                         ("gram_kernelILi64E UnitsE2", "HMMA FFMA LDS.64 LDGSTS", "LDS.128")],
    "gemm_bias_gelu_epilogue": [("bias_gelu_kernel", "LDG.E.128 STG.E.128 MUFU.TANH", ""),
                                ("gemm_kernel BiasENS", "HGMMA UTMALDG.3D.MULTICAST UTMASTG STSM USETMAXREG MUFU.TANH", "HMMA"),
                                ("gemm_kernel Identity", "HGMMA UTMALDG.3D.MULTICAST UTMASTG STSM USETMAXREG", "MUFU.TANH")],
    "swiglu_dual_gemm": [("swiglu_kernel", "LDG.E.128 STG.E.128 MUFU.EX2", ""), ("interleave_kernel", "LDG.E.128 STG.E.128", ""),
                         ("gemm_kernel SwiGlu", "HGMMA UTMALDG.3D.MULTICAST UTMASTG STSM USETMAXREG MUFU.EX2", "HMMA"),
                         ("gemm_kernel Identity", "HGMMA UTMALDG.3D.MULTICAST UTMASTG STSM USETMAXREG", "MUFU.EX2")],
    "gemm_backward_epilogue": [("column_pass_kernelILb1E", "LDG.E.128 STG.E.128 MUFU.TANH", ""),
                               ("column_pass_kernelILb0E", "LDG.E.128", "STG.E.128 MUFU.TANH"), ("add_partials_kernel", "LDG.E.128 SHFL", "REDG"),
                               ("gemm_kernel SlopeAndColumnSums",
                                "HGMMA UTMALDG.2D UTMALDG.2D.MULTICAST UTMASTG LDSM STSM USETMAXREG MUFU.TANH SHFL", "LDG REDG ATOMG")],
    # Chapter 10.
    "cluster": [("cluster_dsmem_kernel", "UBLKCP.S.G STAS", "")],
    "cluster_multicast": [("multicast_kernel", "HGMMA UTMALDG.3D.MULTICAST USETMAXREG", ""),
                          ("persistent_kernel", "HGMMA UTMALDG USETMAXREG", "UTMALDG.3D.MULTICAST")],
    "cooperative_persistent": [("grid_sync_kernel", "HMMA", "")],
    "double_buffered_pipeline": [("tma_kernel", "HGMMA UTMALDG", "LDGSTS")],
    "fp8_matmul": [("multicast_kernel e4m3", "QGMMA UTMALDG", "HGMMA"), ("multicast_kernel AlongKI13__nv_bfloat16", "HGMMA", "QGMMA"),
                   ("pingpong_kernel e4m3", "QGMMA UTMALDG.2D.MULTICAST UTMASTG USETMAXREG", "HGMMA")],
    "gemv": [("warp_per_row_kernel", "LDG.E.U16", "LDG.E.128"), ("vec16_kernel", "LDG.E.128", "LDG.E.U16"),
             ("bulk_ring_kernel", "UBLKCP.S.G LDS.128", "")],
    "lookup": [("four_codes_kernel ConstantTable", "LDC.U16", "LDS"), ("four_codes_kernel SharedTable", "LDS.U16", "LDC.U16"),
               ("sixteen_codes_kernel", "LDS STG.E.128", "LDC.U16")],
    "matmul": [("register_tile_kernelILi4ELi4", "LDS.128 STG.E.128", ""), ("register_tile_kernelILi8ELi8", "LDS.128 STG.E.128", "")],
    "persistent_matmul": [("persistent_kernel", "HGMMA UTMALDG UTMASTG USETMAXREG", "UTMALDG.3D.MULTICAST"),
                          ("pingpong_kernel", "HGMMA UTMALDG.3D.MULTICAST UTMASTG USETMAXREG", "")],
    "shared_vector_loads": [("nearest_kernelILi1ELi17ELb0", "LDS.64", "LDS.128"), ("nearest_kernelILi1ELi16ELb0", "LDS.128", ""),
                            ("nearest_kernelILi4ELi16ELb0", "LDS.128", ""), ("nearest_kernelILi1ELi16ELb1", "LDS", "LDS.128")],
    "split_k_dsmem": [("tile_kernel", "HGMMA UTMALDG", ""), ("tile_kernel SumInCluster", "STAS", "UBLKRED"),
                      ("tile_kernel AddInL2", "UBLKRED", "")],
    "stencil": [("z_march_kernelILi4ELi1", "LDS BAR", "LDS.64"), ("z_march_kernelILi4ELi2", "LDS.64 BAR STG.E.64", "")],
    "stream_k_matmul": [("stream_kernel", "HGMMA UTMALDG UTMASTG", ""), ("hybrid_kernel", "HGMMA UTMALDG.3D.MULTICAST UTMASTG", ""),
                        ("square_kernel", "HGMMA UTMALDG UTMASTG", "")],
    "tensor_core_matmul": [("cuda_core_kernel", "FFMA", "HMMA"), ("wmma_kernel", "HMMA", "HGMMA"),
                           ("mma_sync ring_kernel", "HMMA LDSM LDGSTS", "HGMMA")],
    "tma_2d_pipeline": [("cp_async_kernel", "HGMMA LDGSTS", "UTMALDG"), ("tma_kernel", "HGMMA UTMALDG", "LDGSTS")],
    "tma_bulk_gather": [("bulk_page_kernel", "UBLKCP.S.G UBLKCP.G.S", ""), ("bulk_ring_kernel", "UBLKCP.S.G UBLKCP.G.S", "")],
    "tma_store_epilogue": [("persistent_kernel SectorStore", "HGMMA", "STSM UTMASTG"), ("persistent_kernel CoalescedStore", "STSM", "UTMASTG"),
                           ("persistent_kernel TmaStore", "STSM UTMASTG", "")],
    "warp_spec_pingpong": [("cooperative_kernel", "HGMMA UTMALDG USETMAXREG MUFU.TANH", ""), ("pingpong_kernel", "HGMMA UTMALDG USETMAXREG MUFU.TANH", "")],
    "warp_specialized_attention": [("wgmma_kernel", "HGMMA UTMALDG USETMAXREG", "HMMA"), ("mma_sync attention_kernel", "HMMA LDSM", "HGMMA")],
    "warp_specialized_pipeline": [("producer_kernel", "QGMMA UTMALDG", ""), ("barrier_kernel", "QGMMA UTMALDG", "USETMAXREG")],
    "wgmma_matmul": [("mma_sync_kernel", "HMMA LDSM LDGSTS", "HGMMA"), ("wgmma_kernel", "HGMMA LDGSTS", "HMMA LDSM")],
    # Chapter 18.
    "flash_attention_backward": [("mma_backward backward_kernel", "HMMA LDSM LDGSTS REDG.E.ADD.F32", "HGMMA"),
                                 ("attention backward_kernel FirstKeysFirstELb1E", "HGMMA UTMALDG UBLKRED USETMAXREG", "HMMA REDG.E.ADD.F32")],
    "flash_attention_forward": [("flash_tiles_kernel", "HMMA LDSM LDGSTS MUFU.EX2", "HGMMA"),
                                ("attention forward_kernel", "HGMMA UTMALDG USETMAXREG MUFU.EX2", "HMMA")],
    "gqa_packing": [("dot_kernel", "FFMA", "HMMA"), ("13decode_kernel", "HMMA LDG.E.EF.128", "")],
    "linear_attention": [("one_pass_kernel", "HMMA LDSM LDGSTS", "HGMMA"), ("wgmma_kernel", "HGMMA UTMALDG UTMASTG USETMAXREG", "HMMA"),
                         ("recurrent_kernel", "FFMA", "HMMA HGMMA")],
    # Chapter 19.
    "fp4_weight_quantization": [("mma_kernel 5Table", "HMMA LDGSTS LDSM STS", "HGMMA"),
                                ("mma_kernel 6Shifts", "HMMA LDGSTS LDSM LOP3 HMUL2.BF16_V2", "HGMMA STS"),
                                ("gemm_kernel 5Codes", "HGMMA UTMALDG LOP3 HMUL2.BF16_V2 USETMAXREG", "HMMA LDG"),
                                ("gemm_kernel 10Unexpanded", "HGMMA UTMALDG USETMAXREG", "HMMA HMUL2")],
    "fp6_gemv": [("dense_kernel 10Arithmetic", "FFMA", "HMUL2"), ("dense_kernel 6Placed", "LOP3 HMUL2 HFMA2", "PRMT I2F"),
                 ("13planes_kernel", "LOP3 HMUL2 HFMA2", "PRMT I2F")],
    "fp8_block_scaling": [("barrier_kernel", "QGMMA UTMALDG", "USETMAXREG"), ("gemm_kernel BlockScaled", "QGMMA UTMALDG USETMAXREG FFMA", "HGMMA")],
    "fp8_decode_gemm": [("gemm_kernel 8Promoted", "QGMMA UTMALDG FADD", "HGMMA"), ("gemm_kernel 13InTensorCores", "HGMMA UTMALDG", "QGMMA")],
    "int8_outliers": [("gemm_kernel 7OnePart", "IGMMA UTMALDG", "HGMMA"), ("gemm_kernel TwoParts", "IGMMA HGMMA UTMALDG", "")],
    "sparse_2to4_gemm": [("gemm_kernel 6SparseI", "HGMMA.SP UTMALDG UTMASTG USETMAXREG", ""),
                         ("gemm_kernel 5DenseI", "HGMMA UTMALDG UTMASTG USETMAXREG", "HGMMA.SP")],
    "stochastic_rounding": [("adam_kernel RoundingE0", "F2FP.BF16.F32.PACK_AB", ""), ("adam_kernel RoundingE1", "", "F2FP.BF16.F32.PACK_AB")],
    "w4a8_gemm": [("gemm_kernel 8LookedUpELb0E", "QGMMA PRMT LOP3", "F2FP.SATFINITE HGMMA"),
                  ("gemm_kernel 9Converted", "QGMMA F2FP.SATFINITE.E4M3.F16", "HGMMA"), ("gemm_kernel BlockScaled", "QGMMA UTMALDG", "PRMT HGMMA")],
}
FUNCTION = re.compile(r"\s*Function : (\S+)")
INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)")


def instructions_of(listing):
    """Returns the set of each kernel's instructions, by its mangled name."""
    kernels = {}
    for line in listing.splitlines():
        if found := FUNCTION.match(line):
            kernels[found[1]] = current = set()
        elif found := INSTRUCTION.match(line):
            current.add(found[1])
    return kernels


def has(instructions, wanted):
    return any(instruction == wanted or instruction.startswith(wanted + ".") for instruction in instructions)


def missing():
    """Returns what the tests need and do not find; nothing if all is there."""
    absent = [tool for tool, path in TOOLS.items() if path is None]
    return f"needs {' and '.join(absent)}" if absent else "" if os.access(AISP, os.X_OK) else "needs the executable, in AISP"


class Sass(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if why := missing():
            raise AssertionError(why) if MUST_RUN else unittest.SkipTest(why)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        listed = cls.cuobjdump("-lelf", os.path.abspath(AISP))
        if "sm_90a" not in listed.stdout:
            raise unittest.SkipTest("built without sm_90a")
        cubins = {pair: f"{pair}.sm_90a.cubin" for pair in KERNELS}
        cls.cuobjdump("-xelf", ",".join(cubins.values()), os.path.abspath(AISP))
        cls.kernels = {pair: instructions_of(cls.cuobjdump("-sass", cubin).stdout) for pair, cubin in cubins.items()}

    @classmethod
    def cuobjdump(cls, *arguments):
        result = subprocess.run([TOOLS["cuobjdump"], *arguments], cwd=cls.folder, env=os.environ | {"PATH": PATH}, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"cuobjdump {' '.join(arguments)}: {result.stderr}")
        return result

    def test_kernels_have_the_instructions_that_their_pairs_are_about(self):
        for pair, rows in KERNELS.items():
            for parts, needed, forbidden in rows:
                chosen = {name: code for name, code in self.kernels[pair].items() if all(part in name for part in parts.split())}
                with self.subTest(pair=pair, kernel=parts):
                    self.assertTrue(chosen, f"no such kernel among {sorted(self.kernels[pair])}")
                    for name, code in chosen.items():
                        self.assertEqual([one for one in needed.split() if not has(code, one)], [], f"missing in {name}")
                        self.assertEqual([one for one in forbidden.split() if has(code, one)], [], f"found in {name}")

    def test_no_other_kernel_uses_local_memory(self):
        for pair, kernels in self.kernels.items():
            about_it = [parts.split() for parts, needed, _ in KERNELS[pair] if "LDL" in needed.split()]
            for name, code in kernels.items():
                if any(all(part in name for part in parts) for parts in about_it):
                    continue
                with self.subTest(pair=pair, kernel=name):
                    self.assertFalse(has(code, "LDL") or has(code, "STL"), "registers were spilled, or an array lies in local memory")


if __name__ == "__main__":
    unittest.main()
