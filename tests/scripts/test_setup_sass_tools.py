# SPDX-License-Identifier: Apache-2.0
"""How setup.sh --test gets cuobjdump and nvdisasm: with a python3 that makes up the wheels, or refuses."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("AISP_SOURCE", pathlib.Path(__file__).resolve().parents[2]))

PYTHON = """#!/bin/bash
# -c ...: which modules there are. -m venv DIR: an environment whose python is this file. -m pip install ... --target DIR WHEEL...: the
# wheels, whose programs are no programs yet.
set -e
echo "$*" >>%(log)s
if [[ $2 == venv ]]; then
  mkdir -p "$3/bin"
  cp "$0" "$3/bin/python"
elif [[ $2 == pip ]]; then
  if [[ -e %(refuse)s ]]; then
    echo "ERROR: no network" >&2
    exit 1
  fi
  while [[ $1 != --target ]]; do shift; done
  mkdir -p "$2/nvidia/cu13/bin"
  touch "$2/nvidia/cu13/bin/cuobjdump" "$2/nvidia/cu13/bin/nvdisasm"
fi
"""
SCRIPT = """set -euo pipefail
root=$PWD
. {source}/scripts/setup/common.sh
. {source}/scripts/setup/packages.sh
. {source}/scripts/setup/cuda.sh
dry_run={dry_run}
cuda_home=$PWD/toolkit
find_or_install_sass_tools
echo went on
"""


class SassTools(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.log = self.root / "python.log"
        self.refuse = self.root / "refuse"
        self.program("bin/python3", PYTHON % {"log": self.log, "refuse": self.refuse})

    def program(self, name, text="#!/bin/sh\n"):
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def install(self, dry_run=0):
        environment = {**os.environ, "PATH": f"{self.root / 'bin'}:/usr/bin:/bin"}
        result = subprocess.run(["bash", "-c", SCRIPT.format(source=SOURCE, dry_run=dry_run)], cwd=self.root, env=environment, capture_output=True,
                                text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("went on", result.stdout)
        return result

    def test_programs_come_from_the_wheels_once(self):
        self.install()
        for tool in ("cuobjdump", "nvdisasm"):
            self.assertTrue(os.access(self.root / ".cuda.sass/bin" / tool, os.X_OK), tool)
        self.assertFalse((self.root / ".cuda.sass.partial").exists())
        self.assertRegex(self.log.read_text().splitlines()[-1], r"--no-deps .*nvidia-cuda-cuobjdump==[\d.]+ nvidia-cuda-nvdisasm==[\d.]+$")
        self.log.unlink()
        self.assertEqual(self.install().stdout, "went on\n")
        self.assertFalse(self.log.exists(), "the second time nothing is left to do")

    def test_the_toolkits_own_are_respected(self):
        (self.root / "toolkit").mkdir()
        self.program("toolkit/bin/cuobjdump")
        self.program("bin/nvdisasm")
        self.assertEqual(self.install().stdout, "went on\n")
        self.assertFalse(self.log.exists())
        (self.root / "bin/nvdisasm").unlink()
        self.install()
        self.assertTrue(self.log.exists(), "one without the other is of no use")

    def test_failed_download_is_one_line_and_does_not_end_the_setup(self):
        self.refuse.touch()
        self.assertRegex(self.install().stderr, r"^warning: no cuobjdump nvdisasm .*; run ./setup.sh --test again\n$")
        self.assertFalse((self.root / ".cuda.sass").exists())
        self.assertFalse((self.root / ".cuda.sass.partial").exists())

    def test_dry_run_changes_nothing(self):
        self.assertIn("pip install", self.install(dry_run=1).stdout)
        self.assertFalse((self.root / ".cuda.sass").exists())
        self.assertFalse((self.root / ".cuda.sass.partial").exists())


if __name__ == "__main__":
    unittest.main()
