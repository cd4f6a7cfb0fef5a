# SPDX-License-Identifier: Apache-2.0
"""Names the wheel after the glibc that the program in it asks for: any Python 3 will do, no other machine will."""
import pathlib
import platform
import re

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelTag(BuildHookInterface):
    def initialize(self, version, build_data):
        installed = pathlib.Path(self.root, "installed")
        asked = [int(minor) for file in (installed / "bin/aisp", *(installed / "lib").rglob("*.so"))
                 for minor in re.findall(rb"\0GLIBC_2\.(\d+)", file.read_bytes())]
        glibc = max(asked)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{glibc}_{platform.machine()}"
