# SPDX-License-Identifier: Apache-2.0
"""scripts/check-wgmma finds registers that are written while wgmma reads its A from them, in made-up machine code."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("AISP_SOURCE", pathlib.Path(__file__).resolve().parents[2]))

# A loop with two sets of A's registers in turns, R32 and R48. {0} stands between a product and the wait that leaves it pending, {1}
# after that wait, {2} after the last one.
LOOP = """
\t\tFunction : in_turns
        /*0000*/                   LDS.128 R32, [R4] ;
        /*0010*/                   {gmma}.64x16x16.F32.BF16 R24, R32, gdesc[UR12], R24, gsb0 ;
        /*0020*/                   {0} ;
        /*0030*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0040*/                   {1} ;
        /*0050*/                   {gmma}.64x16x16.F32.BF16 R24, R48, gdesc[UR12], R24, gsb0 ;
        /*0060*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0070*/                   LDS.128 R32, [R4] ;
        /*0080*/              @!P0 BRA 0x10 ;
        /*0090*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*00a0*/                   {2} ;
        /*00b0*/                   EXIT ;
"""
NOTHING = "NOP"


class Wgmma(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        (self.work / "scripts").mkdir()
        self.script = shutil.copy(SOURCE / "scripts/check-wgmma", self.work / "scripts")
        self.object = self.work / "pairs/made.cu.o"
        self.object.parent.mkdir()

    def check(self, *paths):
        tools = {"PATH": f"{self.work}/bin:/usr/bin:/bin", "AISP_NVCC": ""}
        return subprocess.run([self.script, *paths], env=os.environ | tools, capture_output=True, text=True, timeout=60, check=False)

    def check_code(self, text):
        """The check of an object whose machine code is `text`, with a cuobjdump that prints the file."""
        self.object.write_text(text)
        tool = self.work / "bin/cuobjdump"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text('#!/bin/sh\n[ "$1" = -sass ] && exec cat "$2"\n')
        tool.chmod(0o755)
        return self.check(self.object)

    def loop(self, after_product=NOTHING, after_wait=NOTHING, at_end=NOTHING, gmma="HGMMA"):
        return self.check_code(LOOP.format(after_product, after_wait, at_end, gmma=gmma))

    def finds(self, result, *words):
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for word in words:
            self.assertIn(word, result.stdout)

    def finds_nothing(self, result):
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertIn("1 kernel with A in registers, 0 of them wrong", result.stdout)

    def test_a_register_that_is_free_may_be_written(self):
        self.finds_nothing(self.loop("STS [R4], R32", "LDS.128 R48, [R4]", "LDS.128 R32, [R4]"))

    def test_a_register_that_is_being_read_may_not(self):
        self.finds(self.loop("LDS R33, [R4]"), str(self.object), "in_turns", "LDS at 0x20 writes R33, which the product at 0x10 may still read")

    def test_the_other_set_is_being_read_until_the_wait(self):
        self.finds(self.loop("MOV R51, R4"), "MOV at 0x20 writes R51", "the product at 0x50")  # by way of the loop

    def test_a_wait_leaves_the_last_group_pending(self):
        self.finds(self.loop(NOTHING, "@P1 IMAD.MOV.U32 R35, RZ, RZ, R4"), "IMAD.MOV.U32 at 0x40 writes R35")

    def test_wide_results_reach_further_registers(self):
        for written in ("LDS.128 R28, [R4]", "IMAD.WIDE.U32 R30, R4, R5, R6"):
            self.finds_nothing(self.loop(NOTHING, written))
        for written in ("LDS.128 R30, [R4]", "IMAD.WIDE.U32 R31, R4, R5, R6", "SHFL.IDX PT, R34, R3, RZ, 0x1f"):
            self.finds(self.loop(NOTHING, written), written.split()[0])

    def test_products_of_one_byte_count_too(self):
        self.finds(self.loop("LDS R33, [R4]", gmma="QGMMA"), "LDS at 0x20 writes R33")

    def test_products_of_shared_memory_alone_need_nothing(self):
        result = self.check_code(LOOP.format("LDS R33, [R4]", NOTHING, NOTHING, gmma="HGMMA").replace("R32, gdesc", "gdesc").replace("R48, ", ""))
        self.assertEqual((result.returncode, result.stdout), (0, "0 kernels with A in registers, 0 of them wrong\n"))

    def test_a_folder_is_all_its_objects(self):
        self.loop("LDS R33, [R4]")
        self.finds(self.check(self.object.parent), str(self.object))
        empty = self.check(self.work / "bin")
        self.assertEqual(empty.returncode, 4)
        self.assertIn("build it first", empty.stderr)

    def test_a_file_that_is_no_object(self):
        self.loop()
        (self.work / "bin/cuobjdump").write_text("#!/bin/sh\necho 'cuobjdump fatal   : Unknown file' >&2\nexit 255\n")
        result = self.check(self.object)
        self.assertEqual(result.returncode, 4)
        self.assertIn("made.cu.o: cuobjdump cannot read it: cuobjdump fatal   : Unknown file", result.stderr)

    def test_a_call_without_objects(self):
        result = self.check()
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, r"\Acheck-wgmma: [^\n]+; see check-wgmma --help\n\Z")

    @unittest.skipIf(shutil.which("cuobjdump", path="/usr/bin:/bin:/usr/local/cuda/bin"), "this machine has cuobjdump")
    def test_without_cuobjdump_it_says_that_nothing_is_checked(self):
        self.object.write_text("")
        result = self.check(self.object)
        self.assertEqual(result.returncode, 0)
        self.assertIn("nothing is checked", result.stderr)


if __name__ == "__main__":
    unittest.main()
