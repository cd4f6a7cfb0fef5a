# SPDX-License-Identifier: Apache-2.0
"""reset-gpu.sh: what it refuses, that it asks, and what it does to a made-up machine."""
import os
import pty
import subprocess
import threading
import unittest

from machine import NOBODY, Machine, gpu

SCRIPT = "reset-gpu.sh"
LOGGING_TOOL = '#!/bin/sh\necho "%s $@" >>"%s"\n'


class Reset(Machine):
    def setUp(self):
        super().setUp()
        self.gpus(gpu(0), gpu(1, persistence_mode="Enabled"))
        self.log = self.work / "tools.log"
        self.log.touch()
        self.log.chmod(0o666)
        self.tool("modprobe", LOGGING_TOOL % ("modprobe", self.log))
        self.tool("systemctl", LOGGING_TOOL % ("systemctl", self.log) + '[ "$1" != is-active ] || [ "$3" = nvidia-persistenced ]\n')
        self.write("proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia_drm 1 0 - Live 0x0\nnvidia 1 2 - Live 0x0\next4 1 0 - Live 0x0")
        for index in (0, 1):
            self.write(f"proc/driver/nvidia/gpus/0000:{index + 1}8:00.0/information", f"Model: \t H200\nDevice Minor: \t {1 - index}")

    def holder(self, *devices, command="sleep 60"):
        """A process that the made-up machine says has device files open."""
        process = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE)
        threading.Thread(target=process.wait, daemon=True).start()
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        self.claim(process.pid, *devices)
        return process

    def claim(self, pid, *devices):
        folder = self.root / f"proc/{pid}/fd"
        folder.mkdir(parents=True)
        for number, device in enumerate(devices):
            (folder / str(number)).symlink_to(device)
        (self.root / f"proc/{pid}/cmdline").write_bytes(b"python3\0train.py\0")

    def reset(self, *arguments, **keywords):
        return self.run_script(SCRIPT, *arguments, before=keywords.pop("before", self.as_root()), **keywords)

    def done(self):
        """Returns what was really done: the log of nvidia-smi and of the tools that change something."""
        return [line for line in self.log.read_text().splitlines() if "is-active" not in line], self.smi_log()

    def assert_nothing_done(self):
        self.assertEqual(self.done(), ([], []))


class Refusals(Reset):
    def test_dry_run_says_what_it_would_do_and_needs_no_root(self):
        process = self.holder("/dev/nvidia0", "/dev/nvidiactl")
        result = self.run_script(SCRIPT, "--dry-run", user=NOBODY)
        self.assert_status(result, 0)
        for words in (f"end process {process.pid}: python3 train.py", "persistence mode off on GPU 0 1", "modules nvidia_uvm nvidia_drm nvidia\n",
                      "reset GPU 0 1", "services nvidia-persistenced\n"):
            self.assertIn(words, result.stdout)
        self.assertIsNone(process.poll())
        self.assert_nothing_done()

    def test_not_root(self):
        if os.geteuid() == 0:
            result = self.run_script(SCRIPT, "--yes", user=NOBODY)
        else:
            result = self.run_script(SCRIPT, "--yes")
        self.assert_refused(result, 4, "needs root")
        self.assert_nothing_done()

    def test_no_terminal_and_no_yes(self):
        self.assert_refused(self.reset(), 4, "no terminal to ask on", "nothing was done")
        self.assert_nothing_done()

    def test_answers_other_than_yes(self):
        for answer in ("no", "", "y", "YES please"):
            ours, theirs = pty.openpty()
            os.write(ours, (answer + "\n").encode())
            result = self.reset(stdin=theirs)
            os.close(ours)
            os.close(theirs)
            self.assert_status(result, 1)
            self.assertIn("nothing was done", result.stderr)
            self.assert_nothing_done()

    def test_container_keeps_off_the_hosts_modules(self):
        self.write(".dockerenv", "")
        self.assert_refused(self.reset("--yes"), 4, "this is a container")
        self.assert_nothing_done()

    def test_process_that_started_the_script_is_not_ended(self):
        self.claim(os.getpid(), "/dev/nvidia0")
        self.assert_refused(self.reset("--yes"), 4, f"process {os.getpid()}", "started this script")
        self.assert_nothing_done()

    def test_wrong_usage(self):
        for arguments, words in ((["--gpus", "all"], "'all'"), (["--gpus"], "needs a value"), (["--grace", "long"], "'long'"), (["--force"], "'--force'")):
            with self.subTest(arguments):
                self.assert_refused(self.reset(*arguments), 2, words)
        self.assert_refused(self.reset("--gpus", "5", "--yes"), 4, "no GPU 5")
        self.assert_nothing_done()


class Acts(Reset):
    def test_yes_on_a_terminal_does_all_steps_in_order(self):
        process = self.holder("/dev/nvidia1")
        bystander = subprocess.Popen(["sleep", "60"])
        self.addCleanup(bystander.wait)
        self.addCleanup(bystander.kill)
        self.claim(bystander.pid, "/dev/null", "/tmp/nvidia0")
        ours, theirs = pty.openpty()
        os.write(ours, b"yes\n")
        result = self.reset(stdin=theirs)
        os.close(ours)
        os.close(theirs)
        self.assert_status(result, 0)
        self.assertEqual(process.wait(), -15)
        self.assertIsNone(bystander.poll())
        tools, smi = self.done()
        self.assertEqual(tools, ["systemctl stop nvidia-persistenced", "modprobe -r nvidia_uvm", "modprobe -r nvidia_drm", "modprobe -r nvidia",
                                 "modprobe nvidia", "modprobe nvidia_drm", "modprobe nvidia_uvm", "systemctl start nvidia-persistenced"])
        self.assertEqual(smi, ["1 -pm 0", "0 --gpu-reset", "1 --gpu-reset", "1 -pm 1"])

    def test_one_gpu_leaves_the_others_and_their_processes(self):
        # GPU 0 has the device file with minor number 1.
        mine, other = self.holder("/dev/nvidia1", "/dev/nvidiactl"), self.holder("/dev/nvidia0", "/dev/nvidiactl")
        self.assert_status(self.reset("--yes", "--gpus", "0"), 0)
        self.assertEqual(mine.wait(), -15)
        self.assertIsNone(other.poll())
        tools, smi = self.done()
        self.assertFalse([line for line in tools if line.startswith("modprobe")])
        self.assertEqual(smi, ["0 --gpu-reset"])

    def test_process_that_ignores_the_request_is_killed(self):
        process = self.holder("/dev/nvidia0", command="trap '' TERM; echo ready; while :; do sleep 0.1; done")
        process.stdout.readline()
        self.assert_status(self.reset("--yes", "--grace", "1"), 0)
        self.assertEqual(process.wait(), -9)

    def test_step_that_fails_is_named_and_the_rest_is_done(self):
        self.gpus(gpu(0), gpu(1), refusals={"--gpu-reset": "GPU is in use"}, status=19)
        result = self.reset("--yes", "--no-modules")
        self.assert_status(result, 1)
        self.assertIn("FAILED  reset GPU 1: GPU is in use", result.stdout)
        self.assertEqual(self.done()[0][-1], "systemctl start nvidia-persistenced")


if __name__ == "__main__":
    unittest.main()
