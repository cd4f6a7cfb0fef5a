# SPDX-License-Identifier: Apache-2.0
"""How setup.sh gets CUTLASS's headers: with a python3 that makes up the wheel, or refuses."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("AISP_SOURCE", pathlib.Path(__file__).resolve().parents[2]))

PYTHON = """#!/bin/bash
# -c ...: which modules there are. -m venv DIR: an environment whose python is this file. -m pip install ... --target DIR WHEEL: the wheel.
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
  mkdir -p "$2/cutlass_library/source/include/cutlass" "$2/nvidia_cutlass-4.dist-info/licenses"
  echo "#define CUTLASS_MAJOR 4" >"$2/cutlass_library/source/include/cutlass/version.h"
  echo BSD >"$2/nvidia_cutlass-4.dist-info/licenses/LICENSE.txt"
fi
"""
SCRIPT = """set -euo pipefail
root=$PWD
. {source}/scripts/setup/common.sh
. {source}/scripts/setup/packages.sh
. {source}/scripts/setup/cutlass.sh
dry_run={dry_run}
find_or_get_cutlass
echo went on
"""


class Cutlass(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.log = self.root / "python.log"
        self.refuse = self.root / "refuse"
        python = self.root / "bin/python3"
        python.parent.mkdir()
        python.write_text(PYTHON % {"log": self.log, "refuse": self.refuse})
        python.chmod(0o755)

    def get(self, dry_run=0, **environment):
        environment = {**os.environ, "CUTLASS_HOME": "", "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", **environment}
        result = subprocess.run(["bash", "-c", SCRIPT.format(source=SOURCE, dry_run=dry_run)], cwd=self.root, env=environment, capture_output=True,
                                text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("went on", result.stdout)
        return result

    def test_headers_and_license_come_from_the_wheel_once(self):
        self.get()
        self.assertIn("MAJOR", (self.root / ".cutlass/include/cutlass/version.h").read_text())
        self.assertTrue((self.root / ".cutlass/LICENSE.txt").is_file())
        self.assertFalse((self.root / ".cutlass.partial").exists())
        install = self.log.read_text().splitlines()[-1]
        self.assertIn("--no-deps", install)
        self.assertRegex(install, r"nvidia-cutlass==[\d.]+$")
        self.log.unlink()
        self.assertEqual(self.get().stdout, "went on\n")
        self.assertFalse(self.log.exists(), "the second time nothing is left to do")

    def test_another_release_replaces_what_is_there(self):
        self.get()
        (self.root / ".cutlass/wheel.txt").write_text("nvidia-cutlass==3.0\n")
        (self.root / ".cutlass/include/cutlass/old.h").write_text("")
        self.get()
        self.assertFalse((self.root / ".cutlass/include/cutlass/old.h").exists())

    def test_failed_download_is_one_line_and_does_not_end_the_setup(self):
        self.refuse.touch()
        result = self.get()
        self.assertRegex(result.stderr, r"^warning: no CUTLASS .*variants are skipped; run ./setup.sh --cutlass, or set CUTLASS_HOME\n$")
        self.assertFalse((self.root / ".cutlass").exists())
        self.assertFalse((self.root / ".cutlass.partial").exists())
        self.assertIn("no network", (self.root / "build/logs/cutlass-wheel.log").read_text())
        self.refuse.unlink()
        self.get()
        self.assertTrue((self.root / ".cutlass/include/cutlass/version.h").exists())

    def test_own_copy_is_respected(self):
        self.assertEqual(self.get(CUTLASS_HOME="/opt/cutlass").stdout, "went on\n")
        self.assertFalse(self.log.exists())

    def test_dry_run_changes_nothing(self):
        result = self.get(dry_run=1)
        self.assertIn("pip install", result.stdout)
        self.assertFalse((self.root / ".cutlass").exists())
        self.assertFalse((self.root / ".cutlass.partial").exists())


if __name__ == "__main__":
    unittest.main()
