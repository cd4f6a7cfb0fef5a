# SPDX-License-Identifier: Apache-2.0
"""system-tuning.sh on a made-up machine of two NUMA nodes, and on its real paths in a throw-away namespace."""
import fcntl
import os
import pathlib
import subprocess
import unittest

from machine import NOBODY, Machine

SCRIPT = "system-tuning.sh"
MEMLOCK = "etc/security/limits.d/90-aisp-memlock.conf"
GPU, NIC = "0000:18:00.0", "0000:9a:00.0"


class Tuning(Machine):
    def setUp(self):
        super().setUp()
        for cpu, governor in enumerate(("powersave", "schedutil", "powersave", "performance")):
            self.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", governor)
            self.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_available_governors", "performance powersave schedutil ")
            for state, latency in enumerate((0, 2, 170)):
                self.write(f"sys/devices/system/cpu/cpu{cpu}/cpuidle/state{state}/latency", str(latency))
                self.write(f"sys/devices/system/cpu/cpu{cpu}/cpuidle/state{state}/disable", "0")
        self.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
        self.write("sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise [madvise] never")
        self.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0")
        self.write("sys/devices/system/node/node0/cpulist", "0-1")
        self.write("sys/devices/system/node/node1/cpulist", "2-3")
        self.device(GPU, "0x10de", "0x030200", "0-1", {"40": "0-3", "41": "1"})
        self.device(NIC, "0x15b3", "0x020000", "2-3", {"50": "0"})
        for name, value in (("kernel/numa_balancing", "1"), ("vm/zone_reclaim_mode", "0"), ("vm/swappiness", "60")):
            self.write(f"proc/sys/{name}", value)
        (self.root / MEMLOCK).parent.mkdir(parents=True)

    def device(self, address, vendor, kind, cpus, interrupts):
        folder = f"sys/bus/pci/devices/{address}"
        for name, value in (("vendor", vendor), ("class", kind), ("local_cpulist", cpus)):
            self.write(f"{folder}/{name}", value)
        for number, now in interrupts.items():
            self.write(f"{folder}/msi_irqs/{number}", "msix")
            self.write(f"proc/irq/{number}/smp_affinity_list", now)

    def tune(self, *arguments, **keywords):
        return self.run_script(SCRIPT, *arguments, **keywords)


class Check(Tuning):
    def test_says_what_would_change_and_changes_nothing(self):
        before = self.snapshot()
        for arguments in ((), ("--check",)):
            result = self.tune(*arguments)
            self.assert_status(result, 3)
            self.assertEqual(self.snapshot(), before)
            self.assertFalse((self.root / "run").exists())
        self.assertEqual(self.line(result, "governor"), ["would", "governor                            powersave or schedutil -> performance (3 of 4)"])
        for name, text in (("transparent huge pages", "never -> madvise"), ("reserved 2 MiB pages", "0 -> 64"), ("vm.swappiness", "60 -> 10"),
                           ("kernel.numa_balancing", "1 -> 0"), (f"interrupts of {GPU}", "0-3 -> 0-1"), (f"interrupts of {NIC}", "0 -> 2-3"),
                           ("memlock", "unlimited for new logins")):
            status, line = self.line(result, name)
            self.assertEqual(status, "would")
            self.assertIn(text, line)
        self.assertEqual(self.line(result, "vm.zone_reclaim_mode")[0], "ok")
        self.assertEqual(self.line(result, "huge page defragmentation")[0], "ok")
        self.assertIn("--apply", result.stderr)

    def test_what_a_machine_lacks_is_absent_and_no_failure(self):
        self.root = self.work / "empty"
        self.root.mkdir()
        result = self.tune()
        self.assert_status(result, 0)
        for name in ("governor", "transparent huge pages", "reserved 2 MiB pages", "memlock", "vm.swappiness"):
            self.assertEqual(self.line(result, name)[0], "absent")

    def test_governor_that_the_cpu_does_not_offer(self):
        self.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_available_governors", "powersave userspace")
        status, line = self.line(self.tune(), "governor")
        self.assertEqual(status, "absent")
        self.assertIn("powersave userspace", line)

    def test_irqbalance_is_mentioned(self):
        self.write("proc/77/comm", "irqbalance")
        self.assertIn("irqbalance runs", self.tune().stderr)

    def test_wrong_usage_is_one_line_and_status_2(self):
        for arguments, words in ((["--bogus"], "'--bogus'"), (["--only", "irq,nothing"], "'nothing'"), (["--only", ","], "needs a part"),
                                 (["--huge-pages", "many"], "'many'"), (["--huge-pages"], "needs a value"), (["--idle-latency", "-1"], "'-1'")):
            with self.subTest(arguments):
                result = self.tune(*arguments)
                self.assert_refused(result, 2, words)
                self.assertEqual(result.stdout, "")

    def test_help_tells_options_and_exit_statuses(self):
        result = self.tune("--help")
        self.assert_status(result, 0)
        for words in ("--check", "--apply", "--reset", "Exit status: 0", "3 --check", "AISP_SYSTEM_ROOT"):
            self.assertIn(words, result.stdout)


class ApplyAndReset(Tuning):
    def test_apply_twice_and_reset_restore_what_was_there(self):
        before = self.snapshot()
        result = self.tune("--apply")
        self.assert_status(result, 0)
        self.assertEqual([self.read(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor") for cpu in range(4)], ["performance"] * 4)
        self.assertEqual(self.read("sys/kernel/mm/transparent_hugepage/enabled"), "madvise")
        self.assertEqual(self.read("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"), "64")
        self.assertEqual([self.read(f"proc/irq/{irq}/smp_affinity_list") for irq in (40, 41, 50)], ["0-1", "1", "2-3"])
        self.assertEqual([self.read(f"proc/sys/{name}") for name in ("kernel/numa_balancing", "vm/swappiness")], ["0", "10"])
        self.assertIn("root -  memlock  unlimited", self.read(MEMLOCK))
        after, record = self.snapshot(), self.read("run/aisp/system-tuning.before")
        self.assertEqual(self.tune().returncode, 0, "nothing is left to change")

        again = self.tune("--apply")
        self.assert_status(again, 0)
        self.assertNotIn("changed", again.stdout)
        self.assertEqual(self.snapshot(), after)
        self.assertEqual(self.read("run/aisp/system-tuning.before"), record)

        reset = self.tune("--reset")
        self.assert_status(reset, 0)
        expected = dict(before)
        expected["sys/kernel/mm/transparent_hugepage/enabled"] = "never\n"  # what was in brackets; a kernel adds the rest
        self.assertEqual(self.snapshot(), expected)
        self.assertFalse((self.root / "run/aisp/system-tuning.before").exists())
        self.assertIn("nothing to restore", self.tune("--reset").stdout)

    def test_first_state_counts_whatever_happens_between(self):
        self.tune("--apply")
        self.write("proc/sys/vm/swappiness", "33")
        self.tune("--apply", "--only", "sysctl")
        self.assertEqual(self.read("proc/sys/vm/swappiness"), "10")
        self.tune("--reset")
        self.assertEqual(self.read("proc/sys/vm/swappiness"), "60")

    def test_only_the_parts_asked_for(self):
        before = self.snapshot()
        self.assert_status(self.tune("--apply", "--only", "sysctl"), 0)
        changed = {name for name, text in self.snapshot().items() if before.get(name) != text}
        self.assertEqual(changed, {"proc/sys/kernel/numa_balancing", "proc/sys/vm/swappiness"})

    def test_larger_reservation_is_left(self):
        file = self.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512")
        result = self.tune("--apply", "--only", "hugepages")
        self.assertEqual(self.line(result, "reserved 2 MiB pages")[0], "ok")
        self.assertEqual(file.read_text(), "512\n")

    def test_idle_states_only_when_asked_and_only_slow_ones(self):
        disabled = lambda: [self.read(f"sys/devices/system/cpu/cpu3/cpuidle/state{state}/disable") for state in range(3)]
        self.tune("--apply", "--only", "idle")
        self.assertEqual(disabled(), ["0", "0", "0"])
        self.assert_status(self.tune("--apply", "--only", "idle", "--idle-latency", "10"), 0)
        self.assertEqual(disabled(), ["0", "0", "1"])
        self.tune("--reset")
        self.assertEqual(disabled(), ["0", "0", "0"])

    def test_limits_file_of_somebody_else_is_left(self):
        self.write(MEMLOCK, "* - memlock 1024")
        for argument in ("--check", "--apply", "--reset"):
            result = self.tune(argument, "--only", "memlock")
            self.assert_status(result, 1)
            self.assertEqual(self.line(result, "memlock")[0], "cannot")
            self.assertEqual(self.read(MEMLOCK), "* - memlock 1024")


class Refusals(Tuning):
    def unprivileged(self, *arguments):
        for path in [self.root, *self.root.rglob("*")]:
            path.chmod(0o555)
        self.addCleanup(lambda: [path.chmod(0o755) for path in [self.root, *self.root.rglob("*")]])
        return self.tune(*arguments, user=NOBODY)

    def test_without_root_each_setting_says_so(self):
        before = self.snapshot()
        result = self.unprivileged("--apply")
        self.assert_status(result, 1)
        self.assertEqual(self.snapshot(), before)
        for name in ("governor", "transparent huge pages", "reserved 2 MiB pages", f"interrupts of {GPU}", "memlock", "vm.swappiness"):
            status, line = self.line(result, name)
            self.assertEqual(status, "cannot")
            self.assertIn("needs root (sudo)", line)
        self.assertEqual(self.line(result, "vm.zone_reclaim_mode")[0], "ok")

    def test_reset_without_root_keeps_the_record(self):
        self.tune("--apply")
        result = self.unprivileged("--reset")
        self.assert_status(result, 1)
        self.assertIn("needs root", self.line(result, "vm.swappiness")[1])
        self.assertEqual(self.read("proc/sys/vm/swappiness"), "10")
        self.assertIn("vm.swappiness\t60", self.read("run/aisp/system-tuning.before"))

    def test_what_cannot_be_recorded_is_not_changed(self):
        self.write("run", "no folder")
        before = self.snapshot()
        result = self.tune("--apply", "--only", "sysctl")
        self.assert_status(result, 1)
        self.assertIn("cannot be recorded", self.line(result, "vm.swappiness")[1])
        self.assertEqual(self.snapshot(), before)

    def test_kernel_that_refuses_or_ignores_a_value(self):
        governor = self.root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
        governor.unlink()
        governor.symlink_to("/proc/self/oom_score_adj")  # takes numbers only
        pages = self.root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        pages.unlink()
        pages.symlink_to("/proc/self/coredump_filter")  # of another process by the time it is read again
        result = self.tune("--apply")
        self.assert_status(result, 1)
        self.assertIn("the kernel refuses: Invalid argument", self.line(result, "governor")[1])
        self.assertIn("the kernel made it 000", self.line(result, "reserved 2 MiB pages")[1])
        self.assertEqual(self.line(result, "vm.swappiness")[0], "changed", "the others are done all the same")

    def test_record_that_was_tampered_with_writes_nowhere_else(self):
        self.tune("--apply", "--only", "sysctl")
        victim = self.write("etc/shadow", "precious")
        record = self.root / "run/aisp/system-tuning.before"
        for path in ("/etc/shadow", "/sys/../etc/shadow", "shadow"):
            record.write_text(f"vm.swappiness\t60\t{path}\n")
            result = self.tune("--reset")
            self.assert_status(result, 1)
            self.assertIn("no file of the kernel", result.stdout)
            self.assertEqual(victim.read_text(), "precious\n")

    def test_device_that_is_gone_has_nothing_to_restore(self):
        self.tune("--apply", "--only", "irq")
        (self.root / "proc/irq/50/smp_affinity_list").unlink()
        self.assert_status(self.tune("--reset"), 0)
        self.assertFalse((self.root / "proc/irq/50/smp_affinity_list").exists())

    def test_one_change_at_a_time(self):
        self.tune("--apply", "--only", "sysctl")
        folder = os.open(self.root / "run/aisp", os.O_RDONLY)
        self.addCleanup(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_EX)
        self.assert_refused(self.tune("--reset"), 1, "another tuning script")


ON_REAL_PATHS = """
prepare() {
  mount --bind "$tree/sys" /sys && mount --bind "$tree/proc/sys" /proc/sys && mount --bind "$tree/proc/irq" /proc/irq &&
    mount -t tmpfs none /run && [[ -e /sys/made_up && -e /proc/sys/made_up && -e /proc/irq/made_up ]]
}
prepare || exit 99
"$script" --apply --only "$parts" || exit 1
cp -r "$tree" "$tree.applied"
"$script" --apply --only "$parts" | grep -q changed && exit 2
"$script" --reset || exit 3
"""


class Namespace(Tuning):
    def test_real_paths_in_a_throw_away_namespace(self):
        for folder in ("sys", "proc/sys", "proc/irq"):
            self.write(f"{folder}/made_up", "")
        before = self.snapshot()
        real = pathlib.Path("/proc/sys/vm/swappiness").read_text()
        environment = self.environment(tree=str(self.root), script=str(self.work / "scripts" / SCRIPT), parts="governor,thp,hugepages,irq,sysctl")
        del environment["AISP_SYSTEM_ROOT"]
        try:
            result = subprocess.run(["unshare", "-Urm", "bash", "-c", ON_REAL_PATHS], env=environment, capture_output=True, text=True, timeout=60,
                                    check=False)
        except FileNotFoundError:
            self.skipTest("no unshare here")
        if result.returncode == 99 or "unshare:" in result.stderr:
            self.skipTest(f"no throw-away namespace here: {result.stderr.strip()}")
        self.assert_status(result, 0)
        applied = self.work / "root.applied"
        self.assertEqual((applied / "proc/sys/vm/swappiness").read_text(), "10\n")
        self.assertEqual((applied / "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor").read_text(), "performance\n")
        self.assertEqual((applied / "proc/irq/50/smp_affinity_list").read_text(), "2-3\n")
        before["sys/kernel/mm/transparent_hugepage/enabled"] = "never\n"
        self.assertEqual(self.snapshot(), before)
        self.assertEqual(pathlib.Path("/proc/sys/vm/swappiness").read_text(), real)


if __name__ == "__main__":
    unittest.main()
