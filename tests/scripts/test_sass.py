# SPDX-License-Identifier: Apache-2.0
"""The machine code of chapter 10 in the built executable: each kernel has the instructions that its pair is about, and none uses local
memory. Needs cuobjdump and nvdisasm, of the toolkit or of the wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm, on PATH."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

TOOL = shutil.which("cuobjdump") or shutil.which("cuobjdump", path="/usr/local/cuda/bin")
AISP = os.environ.get("AISP", "")

# Pair: kernels, told by what their mangled names contain, the instructions that they must have, and those that they must not.
KERNELS = {
    "cluster": [("cluster_dsmem_kernel", "UBLKCP.S.G STAS", "")],
    "cluster_multicast": [("multicast_gemm multicast_kernel", "HGMMA UTMALDG.3D.MULTICAST USETMAXREG", ""),
                          ("persistent_kernel", "HGMMA UTMALDG USETMAXREG", "UTMALDG.3D.MULTICAST")],
    "cooperative_persistent": [("grid_sync_kernel", "HMMA", "")],
    "double_buffered_pipeline": [("self_loading_gemm tile_kernel", "HGMMA UTMALDG", "LDGSTS")],
    "fp8_matmul": [("multicast_kernel e4m3", "QGMMA UTMALDG", "HGMMA"), ("multicast_kernel AlongKI13__nv_bfloat16", "HGMMA", "QGMMA"),
                   ("pingpong_kernel e4m3", "QGMMA UTMALDG.2D.MULTICAST UTMASTG USETMAXREG", "HGMMA")],
    "persistent_matmul": [("persistent_kernel", "HGMMA UTMALDG UTMASTG USETMAXREG", "UTMALDG.3D.MULTICAST"),
                          ("pingpong_kernel", "HGMMA UTMALDG.3D.MULTICAST UTMASTG USETMAXREG", "")],
    "split_k_dsmem": [("split_k_gemm tile_kernel", "HGMMA UTMALDG", ""), ("tile_kernel SumInCluster", "STAS", "UBLKRED"),
                      ("tile_kernel AddInL2", "UBLKRED", "")],
    "stream_k_matmul": [("stream_kernel", "HGMMA UTMALDG UTMASTG", ""), ("hybrid_kernel", "HGMMA UTMALDG.3D.MULTICAST UTMASTG", ""),
                        ("square_kernel", "HGMMA UTMALDG UTMASTG", "")],
    "tensor_core_matmul": [("cuda_core_kernel", "FFMA", "HMMA"), ("wmma_kernel", "HMMA", "HGMMA"),
                           ("mma_sync ring_kernel", "HMMA LDSM LDGSTS", "HGMMA")],
    "tma_2d_pipeline": [("wgmma_cp_async ring_kernel", "HGMMA LDGSTS", "UTMALDG"), ("tile_kernel", "HGMMA UTMALDG", "LDGSTS")],
    "tma_bulk_gather": [("bulk_page_kernel", "UBLKCP.S.G UBLKCP.G.S", ""), ("bulk_ring_kernel", "UBLKCP.S.G UBLKCP.G.S", "")],
    "tma_store_epilogue": [("persistent_kernel DirectStore", "HGMMA", "STSM UTMASTG"), ("persistent_kernel CoalescedStore", "STSM", "UTMASTG"),
                           ("persistent_kernel TmaStore", "STSM UTMASTG", "")],
    "warp_spec_pingpong": [("gelu_kernel", "HGMMA UTMALDG USETMAXREG MUFU.TANH", "")],
    "warp_specialized_attention": [("wgmma_kernel", "HGMMA UTMALDG USETMAXREG", "HMMA"), ("mma_sync attention_kernel", "HMMA LDSM", "HGMMA")],
    "warp_specialized_pipeline": [("producer_kernel", "QGMMA UTMALDG", ""), ("barrier_kernel", "QGMMA UTMALDG", "USETMAXREG")],
    "wgmma_matmul": [("mma_sync ring_kernel", "HMMA LDSM LDGSTS", "HGMMA"), ("wgmma_cp_async ring_kernel", "HGMMA LDGSTS", "HMMA LDSM")],
}
FUNCTION = re.compile(r"\s*Function : (\S+)")
INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)")


def instructions_of(listing):
    """Of each kernel, by its mangled name, the set of its instructions."""
    kernels = {}
    for line in listing.splitlines():
        if found := FUNCTION.match(line):
            kernels[found[1]] = current = set()
        elif found := INSTRUCTION.match(line):
            current.add(found[1])
    return kernels


def has(instructions, wanted):
    return any(instruction == wanted or instruction.startswith(wanted + ".") for instruction in instructions)


@unittest.skipUnless(TOOL, "needs cuobjdump")
@unittest.skipUnless(os.access(AISP, os.X_OK), "needs the executable, in AISP")
class Sass(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        listed = cls.cuobjdump("-lelf", os.path.abspath(AISP))
        if "sm_90a" not in listed.stdout:
            raise unittest.SkipTest("built without sm_90a")
        cls.kernels = {pair: cls.kernels_of(pair) for pair in KERNELS}

    @classmethod
    def cuobjdump(cls, *arguments):
        # nvdisasm lies beside cuobjdump, which looks for it on PATH.
        environment = os.environ | {"PATH": f"{os.path.dirname(TOOL)}:{os.environ.get('PATH', '')}"}
        result = subprocess.run([TOOL, *arguments], cwd=cls.folder, env=environment, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"cuobjdump {' '.join(arguments)}: {result.stderr}")
        return result

    @classmethod
    def kernels_of(cls, pair):
        cubin = f"{pair}.sm_90a.cubin"
        cls.cuobjdump("-xelf", cubin, os.path.abspath(AISP))
        return instructions_of(cls.cuobjdump("-sass", cubin).stdout)

    def test_kernels_have_the_instructions_that_their_pairs_are_about(self):
        for pair, rows in KERNELS.items():
            for parts, needed, forbidden in rows:
                chosen = {name: code for name, code in self.kernels[pair].items() if all(part in name for part in parts.split())}
                with self.subTest(pair=pair, kernel=parts):
                    self.assertTrue(chosen, f"no such kernel among {sorted(self.kernels[pair])}")
                    for name, code in chosen.items():
                        self.assertEqual([one for one in needed.split() if not has(code, one)], [], f"missing in {name}")
                        self.assertEqual([one for one in forbidden.split() if has(code, one)], [], f"found in {name}")

    def test_no_kernel_uses_local_memory(self):
        for pair, kernels in self.kernels.items():
            for name, code in kernels.items():
                with self.subTest(pair=pair, kernel=name):
                    self.assertFalse(has(code, "LDL") or has(code, "STL"), "registers were spilled, or an array lies in local memory")


if __name__ == "__main__":
    unittest.main()
