# SPDX-License-Identifier: Apache-2.0
"""A made-up machine for the scripts: a tree below AISP_SYSTEM_ROOT, and a nvidia-smi that remembers."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("AISP_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
NOBODY = 65534

NVIDIA_SMI = """#!/usr/bin/env -S python3 -IS
import json, sys
FILE = %(state)r
state = json.load(open(FILE))
arguments = sys.argv[1:]
gpus = state["gpus"]
if "-i" in arguments:
    at = arguments.index("-i")
    wanted = arguments[at + 1]
    del arguments[at:at + 2]
    gpus = [gpu for gpu in gpus if wanted in (gpu["index"], gpu["uuid"])]
    if not gpus:
        sys.exit("No devices were found")
command = arguments[0] if arguments else ""
if command.startswith("--query-gpu="):
    for gpu in gpus:
        print(", ".join(gpu.get(name, "[N/A]") for name in command.split("=")[1].split(",")))
    sys.exit(0)
if command.startswith("--query-compute-apps="):
    for gpu in gpus:
        for pid in gpu.get("pids", []):
            print(pid)
    sys.exit(0)
state["log"].append(" ".join([gpus[0]["index"], *arguments]))
refusal = state["refusals"].get(command)
gpu = gpus[0]
if refusal:
    print(refusal)
else:
    value = arguments[1] if len(arguments) > 1 else ""
    names = {"-pm": "persistence_mode", "-c": "compute_mode", "-pl": "power.limit", "-lgc": "lock", "-rgc": "lock"}
    words = {"-pm": {"0": "Disabled", "1": "Enabled"}, "-c": {"0": "Default", "2": "Prohibited", "3": "Exclusive_Process"}}
    if command == "-ac":
        gpu["clocks.applications.memory"], gpu["clocks.applications.graphics"] = value.split(",")
    elif command == "-mig":
        gpu["mig.mode.pending"] = "Enabled" if value == "1" else "Disabled"
    elif command in names:
        gpu[names[command]] = words.get(command, {}).get(value, value + ".00" if command == "-pl" else value)
json.dump(state, open(FILE, "w"))
sys.exit(state["status"] if refusal else 0)
"""


def gpu(index, **fields):
    return {"index": str(index), "uuid": f"GPU-0000000{index}-aaaa", "persistence_mode": "Disabled", "power.limit": "700.00",
            "power.min_limit": "200.00", "power.max_limit": "700.00", "compute_mode": "Default", "mig.mode.current": "Disabled",
            "mig.mode.pending": "Disabled", "pci.bus_id": f"00000000:{index + 1}8:00.0", **fields}


class Machine(unittest.TestCase):
    """Each test has a copy of the scripts, which an unprivileged user may read, and an empty machine."""

    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="aisp-scripts-"))
        self.addCleanup(shutil.rmtree, self.work, ignore_errors=True)
        self.work.chmod(0o755)
        self.root = self.work / "root"
        self.bin = self.work / "bin"
        for folder in (self.root, self.bin):
            folder.mkdir()
        shutil.copytree(SOURCE / "scripts", self.work / "scripts", copy_function=shutil.copyfile)
        for path in self.work.rglob("*"):
            path.chmod(0o755)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        return path

    def read(self, name):
        return (self.root / name).read_text().strip()

    def tool(self, name, text):
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def snapshot(self):
        """All files but the record: what a reader of the machine sees."""
        return {str(path.relative_to(self.root)): path.read_text() for path in sorted(self.root.rglob("*"))
                if path.is_file() and not path.is_symlink() and "run/aisp" not in str(path)}

    def environment(self, **extra):
        return {"PATH": f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin", "AISP_SYSTEM_ROOT": str(self.root), "LC_ALL": "C", **extra}

    def run_script(self, name, *arguments, user=None, env=None, before=(), **keywords):
        identity = {"user": user, "group": user, "extra_groups": []} if user is not None and os.geteuid() == 0 else {}
        keywords.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run([*before, str(self.work / "scripts" / name), *arguments], cwd=self.work, env=env or self.environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False, **identity, **keywords)

    def as_root(self):
        """Returns the words before a command that make it root; of a user namespace where the test is not."""
        if os.geteuid() == 0:
            return []
        probe = subprocess.run(["unshare", "-r", "true"], stderr=subprocess.PIPE, text=True, check=False)
        if probe.returncode != 0:
            self.skipTest(f"not root, and no user namespace here: {probe.stderr.strip()}")
        return ["unshare", "-r"]

    def assert_status(self, result, status):
        self.assertEqual(result.returncode, status, f"\n{result.stdout}\n{result.stderr}")

    def assert_refused(self, result, status, *words):
        """One line says why."""
        self.assert_status(result, status)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def line(self, result, name):
        """The one line of a setting: status and text."""
        found = [line for line in result.stdout.splitlines() if line[10:].startswith(name + " ")]
        self.assertEqual(len(found), 1, f"{name} in\n{result.stdout}\n{result.stderr}")
        return found[0].split(maxsplit=1)

    def gpus(self, *gpus, refusals=None, status=0):
        self.state = self.work / "smi.json"
        self.state.write_text(json.dumps({"gpus": list(gpus), "log": [], "refusals": refusals or {}, "status": status}))
        self.tool("nvidia-smi", NVIDIA_SMI % {"state": str(self.state)})

    def smi_state(self):
        return json.loads(self.state.read_text())

    def smi_log(self):
        return self.smi_state()["log"]
