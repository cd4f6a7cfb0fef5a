# SPDX-License-Identifier: Apache-2.0
"""gpu-setup.sh with a nvidia-smi that remembers what it was told."""
import unittest

from machine import NOBODY, Machine, gpu

SCRIPT = "gpu-setup.sh"
CLOCKS = {"clocks.applications.memory": "3201", "clocks.applications.graphics": "1980"}


class GpuSetup(Machine):
    def setUp(self):
        super().setUp()
        self.gpus(gpu(0), gpu(1, persistence_mode="Enabled", **{"power.limit": "600.00"}))
        self.privileges = self.as_root()

    def set_up(self, *arguments, **keywords):
        return self.run_script(SCRIPT, *arguments, before=self.privileges, **keywords)

    def test_check_prints_the_commands_and_runs_none(self):
        result = self.set_up("--power-limit", "500", "--lock-clocks", "1500", "--compute-mode", "exclusive")
        self.assert_status(result, 3)
        for line in ("Disabled -> Enabled: nvidia-smi -i 0 -pm 1", "700.00 -> 500: nvidia-smi -i 0 -pl 500",
                     "600.00 -> 500: nvidia-smi -i 1 -pl 500", "nvidia-smi -i 1 -lgc 1500,1500", "nvidia-smi -i 0 -c 3"):
            self.assertIn(line, result.stdout)
        self.assertEqual(self.line(result, "GPU 1 persistence mode")[0], "ok")
        self.assertEqual(self.smi_log(), [])

    def test_only_persistence_is_touched_unless_asked(self):
        self.assert_status(self.set_up("--apply"), 0)
        self.assertEqual(self.smi_log(), ["0 -pm 1"])
        self.assert_status(self.set_up(), 0)

    def test_apply_twice_and_reset_restore_what_was_there(self):
        self.gpus(gpu(0, **CLOCKS), gpu(1, persistence_mode="Enabled", compute_mode="Prohibited", **{"power.limit": "600.00"}, **CLOCKS))
        before = self.smi_state()["gpus"]
        wanted = ("--power-limit", "500", "--compute-mode", "exclusive", "--app-clocks", "3201,1500", "--lock-clocks", "1200,1500", "--mig", "on")
        result = self.set_up("--apply", *wanted)
        self.assert_status(result, 0)
        self.assertIn("takes effect after scripts/reset-gpu.sh", self.line(result, "GPU 0 MIG")[1])
        after = self.smi_state()
        self.assertEqual([g["power.limit"] for g in after["gpus"]], ["500.00", "500.00"])
        self.assertEqual([g["lock"] for g in after["gpus"]], ["1200,1500", "1200,1500"])
        self.assert_status(self.set_up("--apply", *wanted), 0)
        self.assertEqual(self.smi_log(), after["log"], "the second time nothing is left to do")
        self.assert_status(self.set_up("--reset"), 0)
        reset = self.smi_state()["gpus"]
        self.assertEqual([g.pop("lock") for g in reset], ["", ""])
        self.assertEqual(reset, before)
        self.assertIn("nothing to restore", self.set_up("--reset").stdout)

    def test_reset_finds_gpus_whose_indices_have_changed(self):
        self.set_up("--apply", "--gpus", "0")
        self.gpus(gpu(0, uuid="GPU-ffff"), gpu(1, uuid="GPU-00000000-aaaa", persistence_mode="Enabled"))
        self.assert_status(self.set_up("--reset"), 0)
        self.assertEqual(self.smi_log(), ["1 -pm 0"])

    def test_gpu_that_is_gone_stays_recorded(self):
        self.set_up("--apply", "--gpus", "0")
        self.gpus(gpu(5))
        result = self.set_up("--reset")
        self.assert_status(result, 1)
        self.assertIn("GPU GPU-00000000-aaaa is not there", result.stdout)
        self.assertIn("GPU-00000000-aaaa", self.read("run/aisp/gpu-setup.before"))

    def test_other_lock_replaces_the_first_and_reset_unlocks(self):
        for clock in ("1500", "1200"):
            self.assert_status(self.set_up("--apply", "--gpus", "1", "--lock-clocks", clock), 0)
        self.assertEqual(self.smi_log(), ["1 -lgc 1500,1500", "1 -lgc 1200,1200"])
        self.set_up("--reset")
        self.assertEqual(self.smi_log()[-1], "1 -rgc")

    def test_what_cannot_be_is_said_before_it_is_tried(self):
        self.gpus(gpu(0, persistence_mode="Enabled", pids=[4711]))
        result = self.set_up("--apply", "--power-limit", "900", "--mig", "on", "--app-clocks", "1,2")
        self.assert_status(result, 1)
        self.assertIn("this GPU takes 200 to 700 W", self.line(result, "GPU 0 power limit")[1])
        self.assertIn("pid 4711", self.line(result, "GPU 0 MIG")[1])
        self.assertIn("does not offer it", self.line(result, "GPU 0 application clocks")[1])
        self.assertEqual(self.smi_log(), [])

    def test_persistence_that_is_not_offered_is_no_failure(self):
        self.gpus(gpu(0, persistence_mode="[N/A]"))
        result = self.set_up("--apply")
        self.assert_status(result, 0)
        self.assertEqual(self.line(result, "GPU 0 persistence mode")[0], "absent")

    def test_refusal_of_the_driver_is_told_whatever_its_status(self):
        for status in (0, 4):
            self.gpus(gpu(0, persistence_mode="Enabled"), refusals={"-lgc": "Setting locked GPU clocks is not supported"}, status=status)
            result = self.set_up("--apply", "--lock-clocks", "1500")
            self.assert_status(result, 1)
            self.assertIn("nvidia-smi -lgc 1500,1500: Setting locked GPU clocks is not supported", result.stdout)
            self.assertEqual(self.set_up("--lock-clocks", "1500").returncode, 3, "still not locked")

    def test_setting_that_did_not_take_is_told(self):
        self.gpus(gpu(0), refusals={"-pm": "All done."}, status=0)
        self.assertIn("it is Disabled afterwards", self.set_up("--apply").stdout)

    def test_without_root_each_setting_says_so(self):
        for path in [self.root, *self.root.rglob("*")]:
            path.chmod(0o555)
        self.addCleanup(self.root.chmod, 0o755)
        result = self.run_script(SCRIPT, "--apply", "--power-limit", "500", user=NOBODY)
        self.assert_status(result, 1)
        for name in ("GPU 0 persistence mode", "GPU 0 power limit", "GPU 1 power limit"):
            status, line = self.line(result, name)
            self.assertEqual(status, "cannot")
            self.assertIn("needs root", line)
        self.assertEqual(self.smi_log(), [])

    def test_wrong_usage_and_unfit_machine(self):
        for arguments, words in ((["--power-limit", "all"], "'all'"), (["--lock-clocks", "1500,1200"], "smaller"), (["--mig", "maybe"], "'maybe'"),
                                 (["--compute-mode", "fast"], "'fast'"), (["--gpus", "7"], "no GPU '7'"), (["--app-clocks", "1"], "'1'"),
                                 (["--bogus"], "'--bogus'"), (["--mig"], "needs a value")):
            with self.subTest(arguments):
                self.assert_refused(self.set_up(*arguments), 2, words)
        self.gpus()
        self.assert_refused(self.set_up(), 4, "no GPU")
        (self.bin / "nvidia-smi").unlink()
        if not any((self.bin.__class__(folder) / "nvidia-smi").exists() for folder in ("/usr/bin", "/bin", "/usr/sbin", "/sbin")):
            self.assert_refused(self.set_up(), 4, "no nvidia-smi")


if __name__ == "__main__":
    unittest.main()
