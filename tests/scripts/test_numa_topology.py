# SPDX-License-Identifier: Apache-2.0
"""numa-topology.sh: what it shows of a made-up machine, and where its commands really run."""
import os
import unittest

from machine import Machine

SCRIPT = "numa-topology.sh"
GPUS = ("0000:18:00.0", "0000:9a:00.0")


class Topology(Machine):
    def setUp(self):
        super().setUp()
        self.cpu = min(os.sched_getaffinity(0))
        for node, cpus in enumerate((str(self.cpu), "4000-4007")):
            folder = f"sys/devices/system/node/node{node}"
            self.write(f"{folder}/cpulist", cpus)
            self.write(f"{folder}/meminfo", f"Node {node} MemTotal:       {(node + 1) * 1048576} kB")
            self.write(f"{folder}/distance", "10 21" if node == 0 else "21 10")
            self.device(GPUS[node], "0x10de", "0x030200", node, cpus)
            self.write(f"proc/driver/nvidia/gpus/{GPUS[node]}/information",
                       f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 5\nGPU UUID: \t GPU-{node}\nDevice Minor: \t {node}")
        self.device("0000:9b:00.0", "0x15b3", "0x020700", 1, "4000-4007")
        self.write("sys/bus/pci/devices/0000:9b:00.0/net/ib0/mtu", "4092")
        self.write("sys/bus/pci/devices/0000:9b:00.0/infiniband/mlx5_0/fw", "1")
        self.device("0000:02:00.0", "0x10de", "0x040300", 0, "0")  # a GPU's sound function
        self.write("proc/self/status", f"Name:\tbash\nCpus_allowed_list:\t{self.cpu}")

    def device(self, address, vendor, kind, node, cpus):
        for name, value in (("vendor", vendor), ("class", kind), ("numa_node", str(node)), ("local_cpulist", cpus)):
            self.write(f"sys/bus/pci/devices/{address}/{name}", value)

    def near(self, *arguments, **environment):
        return self.run_script(SCRIPT, *arguments, env=self.environment(**environment))

    def test_shows_nodes_gpus_and_network_cards(self):
        result = self.near()
        self.assert_status(result, 0)
        lines = [line.split() for line in result.stdout.splitlines()]
        self.assertEqual(lines[0], ["node", "0", "CPUs", str(self.cpu), "memory", "1.0", "GiB", "distances", "10", "21"])
        self.assertEqual(lines[1], ["node", "1", "CPUs", "4000-4007", "memory", "2.0", "GiB", "distances", "21", "10"])
        self.assertEqual(lines[2], ["GPU", "0", GPUS[0], "node", "0", "CPUs", str(self.cpu), "NVIDIA", "H200"])
        self.assertEqual(lines[3], ["GPU", "1", GPUS[1], "node", "1", "CPUs", "4000-4007", "NVIDIA", "H200"])
        self.assertEqual(lines[4], ["NIC", "0000:9b:00.0", "node", "1", "CPUs", "4000-4007", "mlx5_0", "ib0"])
        self.assertEqual(len(lines), 5, "the sound function is no GPU")

    def test_gpus_that_a_container_does_not_have_are_not_counted(self):
        (self.root / f"proc/driver/nvidia/gpus/{GPUS[0]}/information").unlink()
        (self.root / f"proc/driver/nvidia/gpus/{GPUS[0]}").rmdir()
        result = self.near()
        self.assertNotIn(GPUS[0], result.stdout)
        self.assertIn(f"GPU 0      {GPUS[1]}", result.stdout)

    def test_real_machine_is_shown_without_fault(self):
        environment = self.environment()
        del environment["AISP_SYSTEM_ROOT"]
        result = self.run_script(SCRIPT, env=environment)
        self.assert_status(result, 0)
        self.assertEqual(result.stderr, "")

    def test_command_runs_on_the_cpus_near_the_gpu(self):
        self.tool("numactl", "#!/bin/sh\nexit 1\n")  # as where memory policies are forbidden
        for name in ("0", GPUS[0], "GPU-0"):
            result = self.near("--gpu", name, "--", "sh", "-c", "taskset -cp $$; echo visible $CUDA_VISIBLE_DEVICES; exit 7")
            self.assert_status(result, 7)
            self.assertIn(f"affinity list: {self.cpu}\n", result.stdout)
            self.assertIn("visible GPU-0", result.stdout)
            self.assertIn("is on node 0", result.stderr)

    def test_numactl_is_used_where_it_works(self):
        self.tool("numactl", '#!/bin/sh\n[ "$3" = true ] || echo "numactl $@"\n')
        result = self.near("--gpu", "0", "aisp", "run", CUDA_VISIBLE_DEVICES="3")
        self.assertEqual(result.stdout, f"numactl --physcpubind={self.cpu} --preferred=0 aisp run\n")

    def test_diagnose_runs_the_command_free_and_bound(self):
        self.tool("numactl", "#!/bin/sh\nexit 1\n")
        for node in range(2):
            self.write(f"sys/devices/system/node/node{node}/numastat", "numa_hit 9\nlocal_node 100\nother_node 10")
        # The free run gets pages of the other node, the bound one, which has one CPU, of its own.
        pages = ('if [ "$(taskset -cp $$ | sed "s/.*: //")" = %d ]; then echo local_node 150; else echo other_node 40; fi >%s' %
                 (self.cpu, self.root / "sys/devices/system/node/node1/numastat"))
        result = self.near("--diagnose", "--gpu", "0", "--", "sh", "-c", pages)
        self.assert_status(result, 0)
        lines = [line for line in result.stderr.splitlines() if "pages" in line]
        self.assertRegex(lines[0], r"free: \d+\.\d\d s, pages: ")
        self.assertRegex(lines[1], r"bound to node 0: \d+\.\d\d s, pages: ")
        if len(os.sched_getaffinity(0)) > 1:
            self.assertIn("pages: -100 of the node that asked, 30 of another", lines[0])
            self.assertIn("pages: 150 of the node that asked, -40 of another", lines[1])
        failed = self.near("--diagnose", "--gpu", "0", "--", "sh", "-c", "exit 6")
        self.assert_status(failed, 6)
        self.assertNotIn("bound", failed.stderr)
        self.assert_status(self.near("--check", "--diagnose", "--gpu", "0", "true"), 2)

    def test_check_prints_the_command_and_runs_nothing(self):
        self.tool("numactl", "#!/bin/sh\nexit 1\n")
        result = self.near("--check", "--gpu", "0", "touch", "a file")
        self.assert_status(result, 0)
        self.assertEqual(result.stdout, f"env CUDA_VISIBLE_DEVICES=GPU-0 taskset -c {self.cpu} touch a\\ file \n")
        self.assertFalse((self.work / "a file").exists())

    def test_refusals_are_one_line(self):
        self.assert_refused(self.near("--gpu", "1", "true"), 4, "none of the CPUs near GPU 1 (4000-4007)")
        self.assert_refused(self.near("--gpu", "2", "true"), 4, "no GPU '2'")
        self.assert_refused(self.near("--gpu", "0"), 2, "needs a command")
        self.assert_refused(self.near("true"), 2, "needs --gpu")
        self.assert_refused(self.near("--bogus"), 2, "'--bogus'")

    def test_node_that_firmware_does_not_tell(self):
        self.write(f"sys/bus/pci/devices/{GPUS[0]}/numa_node", "-1")
        self.assertIn(f"{GPUS[0]}  node unknown", self.near().stdout)
        self.tool("numactl", '#!/bin/sh\n[ "$2" = true ] || echo "$@"\n')
        result = self.near("--gpu", "0", "aisp")
        self.assertEqual(result.stdout, f"--physcpubind={self.cpu} aisp\n", "no node to prefer")


if __name__ == "__main__":
    unittest.main()
