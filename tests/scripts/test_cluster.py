# SPDX-License-Identifier: Apache-2.0
"""The batch scripts for Slurm, the indexed Job and the Apptainer definition, as far as a machine without a cluster can try them."""
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import unittest

import yaml
from machine import SOURCE

FIXTURES = os.environ.get("AISP_FIXTURES", str(SOURCE / "build/dev/tests/aisp_fixtures"))
FOLDER = SOURCE / "scripts/cluster"
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))
CONTAINERS = SOURCE / "scripts/containers"
PAIRS = ["ch90:equal", "ch90:good", "ch90:shaped", "ch90:tokens"]
FLAGS = ["--targets", ",".join(PAIRS), "--iterations", "5", "--warmup", "1", "--budget", "0.2s"]

# Starts the tasks one after the other, as srun does side by side, and ends with the worst status.
SRUN = """#!/bin/bash
shift
worst=0
for ((task = 0; task < SLURM_NTASKS; task++)); do
  SLURM_PROCID=$task "$@" || { status=$?; ((status > worst)) && worst=$status; }
done
exit "$worst"
"""


def directives(script):
    """--name to value of the #SBATCH lines, which must come before the first command."""
    found = {}
    for line in script.read_text().splitlines():
        if line.startswith("#SBATCH "):
            name, _, value = line.removeprefix("#SBATCH ").partition("=")
            found[name] = value
        elif line and not line.startswith("#"):
            return found
    return found


class Slurm(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="aisp-cluster-"))
        self.addCleanup(shutil.rmtree, self.work)

    def start(self, script, arguments, **variables):
        environment = {**os.environ, "AISP": FIXTURES, "AISP_PEAK": "off", "XDG_CACHE_HOME": str(self.work / "cache"),
                       "AISP_LOCK_DIRECTORY": str(self.work / "locks"), "PATH": f"{self.work}:{os.environ['PATH']}", **variables}
        return subprocess.run(["bash", str(FOLDER / script), *arguments], cwd=self.work, env=environment, capture_output=True, text=True, timeout=120,
                              check=False)

    def task(self, index, arguments=FLAGS):
        return self.start("array.sbatch", arguments, SLURM_ARRAY_JOB_ID="77", SLURM_ARRAY_TASK_ID=str(index), SLURM_ARRAY_TASK_COUNT="1")

    def targets(self, run):
        suite = json.loads((self.work / "artifacts" / run / "benchmark_test_results.json").read_text())
        return [pair["target"] for pair in suite["pairs"]]

    def test_directives_stand_before_the_first_command(self):
        self.assertEqual([script.name for script in SCRIPTS], ["array.sbatch", "nodes.sbatch", "ranks.sbatch"])
        for script in SCRIPTS:
            with self.subTest(script.name):
                found = directives(script)
                self.assertEqual(script.read_text().count("\n#SBATCH "), len(found))
                self.assertTrue(all(re.fullmatch(r"--[a-z-]+", name) for name in found), found)
                self.assertIn("--exclusive", found)
                self.assertTrue(os.access(script, os.X_OK))

    def test_bash_reads_them(self):
        for script in SCRIPTS:
            self.assertEqual(subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False).stderr, "")

    @unittest.skipUnless(shutil.which("shellcheck"), "shellcheck is not installed")
    def test_shellcheck(self):
        result = subprocess.run(["shellcheck", *map(str, SCRIPTS)], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_slurm_accepts_them(self):
        if not shutil.which("scontrol") or subprocess.run(["scontrol", "ping"], capture_output=True, check=False).returncode != 0:
            self.skipTest("there is no cluster of Slurm's here")
        for script in SCRIPTS:
            result = subprocess.run(["sbatch", "--test-only", str(script)], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_tasks_of_the_array_are_shards_that_can_be_merged(self):
        first, last = map(int, directives(FOLDER / "array.sbatch")["--array"].split("-"))
        for index in range(first, last + 1):
            done = self.task(index)
            self.assertEqual(done.returncode, 0, done.stderr)
        runs = [f"77_{index}" for index in range(first, last + 1)]
        self.assertEqual(sorted(sum(map(self.targets, runs), [])), PAIRS)
        merged = subprocess.run([FIXTURES, "merge", *runs, "--run-id", "all"], cwd=self.work, capture_output=True, text=True, check=False)
        self.assertEqual(merged.returncode, 0, merged.stderr)
        self.assertEqual(self.targets("all"), PAIRS)

    def test_a_task_that_is_started_again_continues(self):
        self.task(1)
        again = self.task(1)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("were done already", again.stderr)

    def nodes(self, arguments, count):
        stand_in = self.work / "srun"
        stand_in.write_text(SRUN)
        stand_in.chmod(0o755)
        return self.start("nodes.sbatch", arguments, SLURM_JOB_ID="88", SLURM_NTASKS=str(count))

    def test_the_nodes_of_a_job_are_merged_at_its_end(self):
        done = self.nodes(FLAGS, 3)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.targets("88"), PAIRS)

    def test_a_wrong_pair_on_one_node_ends_no_other_and_fails_the_job(self):
        flags = ["ch94:wrong_result", *FLAGS]
        self.assertEqual(self.nodes(flags, 2).returncode, 1)
        self.assertEqual(self.targets("88"), [*PAIRS, "ch94:wrong_result"])


class IndexedJob(unittest.TestCase):
    def setUp(self):
        self.text = (CONTAINERS / "kubernetes-indexed-job.yaml").read_text()
        self.claim, self.job = yaml.safe_load_all(self.text)
        self.container = self.job["spec"]["template"]["spec"]["containers"][0]

    def test_every_index_is_a_shard(self):
        spec = self.job["spec"]
        self.assertEqual((spec["completionMode"], spec["backoffLimitPerIndex"]), ("Indexed", 0))
        self.assertNotIn("backoffLimit", spec, "one wrong pair would end all shards")
        variables = {variable["name"]: variable for variable in self.container["env"]}
        self.assertEqual(variables["JOB_COMPLETIONS"]["value"], str(spec["completions"]))
        self.assertIn("job-completion-index", variables["JOB_COMPLETION_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"])
        self.assertEqual(self.claim["spec"]["accessModes"], ["ReadWriteMany"])
        parts = []
        for index in range(spec["completions"]):
            words = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in self.container["args"]]
            environment = {**os.environ, "JOB_COMPLETION_INDEX": str(index), "JOB_COMPLETIONS": variables["JOB_COMPLETIONS"]["value"]}
            with tempfile.TemporaryDirectory() as work:
                done = subprocess.run([FIXTURES, *words, "--targets", ",".join(PAIRS), "--dry-run"], cwd=work, env=environment, capture_output=True,
                                      text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            parts += re.findall(r"ch90:\w+", done.stdout)
        self.assertEqual(sorted(parts), PAIRS)

    def test_the_command_that_merges_names_all_shards(self):
        command = shlex.split(re.search(r"^#   aisp (merge.*?)\s+\(", self.text, re.MULTILINE)[1])
        self.assertEqual(command[1:-2], [f"shard_{index}" for index in range(self.job["spec"]["completions"])])


class RanksJob(unittest.TestCase):
    def test_all_pods_are_one_run(self):
        _, service, job = yaml.safe_load_all((CONTAINERS / "kubernetes-ranks-job.yaml").read_text())
        spec, name = job["spec"], job["metadata"]["name"]
        pod = spec["template"]["spec"]
        container = pod["containers"][0]
        variables = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        self.assertEqual((spec["completionMode"], spec["backoffLimit"], spec["parallelism"]), ("Indexed", 0, spec["completions"]))
        self.assertEqual(variables["WORLD_SIZE"], str(spec["completions"]))
        self.assertEqual(service["spec"]["selector"], {"job-name": name})
        self.assertEqual((service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]), ("None", True))
        self.assertEqual(variables["MASTER_ADDR"], f"{name}-0.{pod['subdomain']}")
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        with socket.socket() as probe, tempfile.TemporaryDirectory() as work:
            probe.bind(("127.0.0.1", 0))
            here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
            probe.close()
            pods = [subprocess.Popen([FIXTURES, *container["args"], "--targets", "ch94:two_ranks", "--dry-run"], cwd=work, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     env={**os.environ, **variables, **here, "JOB_COMPLETION_INDEX": str(index)}) for index in range(spec["completions"])]
            said = [process.communicate(timeout=120) for process in pods]
        self.assertEqual([process.returncode for process in pods], [0] * len(pods), said)
        self.assertIn("ch94:two_ranks", said[0][0])
        self.assertIn("one run of 2 processes on 1 machine, started by Kubernetes", said[0][1])
        self.assertEqual(said[1], ("", ""))


class Apptainer(unittest.TestCase):
    def test_the_definition(self):
        lines = [line for line in (CONTAINERS / "aisp.def").read_text().splitlines() if not line.startswith("#")]
        header = dict(line.split(": ", 1) for line in lines[:2])
        self.assertEqual(sorted(header), ["Bootstrap", "From"], "the header comes first")
        self.assertEqual([line for line in lines if line.startswith("%")], ["%environment", "%runscript", "%test"])
        for section in "\n".join(lines).split("%")[1:]:
            script = section.split("\n", 1)[1]
            self.assertEqual(subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False).stderr, "")


if __name__ == "__main__":
    unittest.main()
