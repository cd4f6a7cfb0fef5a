# SPDX-License-Identifier: Apache-2.0
"""Real launchers: mpirun of Open MPI, and Slurm with daemons of the test's own. Each starts several processes that are one run."""
import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import time

from harness import FIXTURES, QUICK, SOURCE, EndToEnd, Finished, free_port, results_log

# Daemons are in folders that only root's PATH has.
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
BAD_AND_GOOD = ("run", "ch94:rank_lying", "ch94:two_ranks", "ch90:equal", *QUICK)
STATUSES = {"ch94:rank_lying": "failed", "ch94:two_ranks": "passed", "ch90:equal": "passed"}


class Launchers(EndToEnd):
    def need(self, **packages):
        """Commands and their packages. setup.sh --test installs them, so there a missing one is a failure."""
        missing = [package.replace("_", "-") for package, command in packages.items() if not shutil.which(command, path=PATH)]
        if missing and "AISP_TEST_PACKAGES" in os.environ:
            self.fail(f"not installed: {' '.join(missing)}")
        if missing:
            self.skipTest(f"apt-get install {' '.join(missing)}")

    def launcher(self, *command, timeout=120, **variables):
        done = subprocess.run(command, cwd=self.work, env=self.environment({"PATH": PATH, **variables}), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=timeout, check=False)
        return Finished(done.returncode, done.stdout, done.stderr, self.artifacts)

    def assert_one_run(self, finished, launcher, processes):
        self.assert_code(finished, 1)
        self.assertIn(f"one run of {processes} processes on 1 machine, started by {launcher}", finished.err)
        self.assertEqual({pair["target"]: pair["status"] for pair in finished.lines()}, STATUSES)
        self.assertEqual(finished.out.count("Reports: "), 1, finished.out)


class OpenMpi(Launchers):
    def test_one_run(self):
        self.need(openmpi_bin="mpirun")
        finished = self.launcher("mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "plm", "isolated", "-n", "3", FIXTURES, *BAD_AND_GOOD)
        self.assert_one_run(finished, "Open MPI", 3)


class Slurm(Launchers):
    """A cluster of one node, whose daemons run as this user, in the foreground and without control groups."""
    configuration = """ClusterName=aisp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""

    def setUp(self):
        super().setUp()
        self.need(slurmctld="slurmctld", slurmd="slurmd", slurm_client="srun", munge="munged")
        self.daemons = []
        self.addCleanup(self.end_daemons)  # for a cluster that does not come up
        self.cluster = self.work / "slurm"
        for folder in ("state", "spool"):
            (self.cluster / folder).mkdir(parents=True)
        self.cluster.chmod(0o755)
        self.work.chmod(0o755)
        key = self.cluster / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        self.variables = {"SLURM_CONF": str(self.cluster / "slurm.conf"), "AISP": FIXTURES}
        pathlib.Path(self.variables["SLURM_CONF"]).write_text(self.configuration.format(
            host=socket.gethostname().split(".")[0], control_port=free_port(), node_port=free_port(), user=getpass.getuser(), folder=self.cluster))
        files = {"socket": "munge.socket", "key-file": "key", "pid-file": "munged.pid", "seed-file": "seed", "log-file": "munged.log"}
        self.begin_daemon("munged", "--foreground", "--force", *(f"--{name}={self.cluster / file}" for name, file in files.items()))
        self.wait_until(lambda: (self.cluster / "munge.socket").exists())
        self.begin_daemon("slurmctld", "-D")
        self.begin_daemon("slurmd", "-D")
        self.wait_until(self.is_idle)

    def tearDown(self):
        self.end_daemons()
        super().tearDown()

    def begin_daemon(self, *command):
        with open(self.cluster / f"{command[0]}.out", "w", encoding="utf-8") as log:
            self.daemons.append(subprocess.Popen([shutil.which(command[0], path=PATH), *command[1:]], env=self.environment(self.variables),
                                                 stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def is_idle(self):
        return "idle" in self.launcher("sinfo", "-h", "-o", "%T", **self.variables).out

    def end_daemons(self):
        # The daemon of a step lives on until it has told the others of the step's end.
        if len(self.daemons) == 3 and all(daemon.poll() is None for daemon in self.daemons):
            self.wait_until(self.is_idle)
        while self.daemons:
            daemon = self.daemons.pop()
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def wait_until(self, condition, longest_s=60):
        end = time.monotonic() + longest_s
        while not condition():
            said = "\n".join(file.read_text() for file in self.cluster.glob("*.out"))
            self.assertTrue(time.monotonic() < end and all(daemon.poll() is None for daemon in self.daemons), said)
            time.sleep(0.1)

    def slurm(self, *command):
        finished = self.launcher(*command, **self.variables)
        for log in self.work.glob("aisp_*.out"):
            finished.err += log.read_text()
            log.unlink()
        return finished

    def script(self, name, *arguments, flags=()):
        """Runs a script of scripts/cluster on this node, which has no GPU."""
        return self.slurm("sbatch", "--wait", "--nodes=1", "--gres=none", *flags, str(SOURCE / "scripts/cluster" / name), *arguments)

    def test_a_step_of_several_tasks_is_one_run(self):
        self.assert_one_run(self.slurm("srun", "-n", "3", FIXTURES, *BAD_AND_GOOD), "Slurm", 3)

    def test_the_scripts(self):
        step = self.script("ranks.sbatch", *BAD_AND_GOOD[1:], flags=("--ntasks-per-node=3",))
        self.assert_code(step, 1)
        self.assertIn("one run of 3 processes on 1 machine, started by Slurm", step.err)
        shutil.rmtree(self.artifacts)
        selection = ("ch90:equal", "ch90:good", *QUICK)
        shards = self.script("nodes.sbatch", *selection, flags=("--ntasks-per-node=2",))
        self.assert_code(shards, 0)
        self.assertNotIn("one run of", shards.err, "tasks with shards of their own are runs of their own")
        merged = max(self.artifacts.iterdir(), key=lambda folder: folder.stat().st_mtime)
        self.assertEqual(sorted(pair["target"] for pair in results_log(merged)), ["ch90:equal", "ch90:good"])

    def test_a_task_of_an_array_is_a_shard(self):
        command = f"{FIXTURES} run ch90:equal ch90:good {' '.join(QUICK)} --run-id shard_$SLURM_ARRAY_TASK_ID"
        self.assert_code(self.slurm("sbatch", "--wait", "--array=1-2", "--output=aisp_%a.out", f"--wrap={command}"), 0)
        self.assert_code(self.call("merge", "shard_1", "shard_2", "--run-id", "all"), 0)
