# SPDX-License-Identifier: Apache-2.0
"""libaisp_cutlass.so as a user meets it who has none, or one of another build."""
import json
import os
import subprocess

from harness import AISP, EndToEnd

OTHER = """struct { int interface; const char* version; void* calls[3]; } table = {7, "4.2.0", {0}};
extern "C" const void* aisp_cutlass_table() { return &table; }
"""


class CutlassLibrary(EndToEnd):
    def finding(self, **environment):
        report = json.loads(self.call("doctor", "--json", program=AISP, env=environment).out)
        (found,) = [finding for finding in report["findings"] if finding["name"] == "library CUTLASS"]
        return found

    def test_one_of_another_interface_is_refused_in_one_line(self):
        (self.work / "other.cpp").write_text(OTHER)
        subprocess.run([os.environ.get("AISP_CXX", "c++"), "-shared", "-fPIC", "-o", self.work / "libaisp_cutlass.so", self.work / "other.cpp"], check=True)
        found = self.finding(AISP_LIBRARY_PATH=str(self.work))
        self.assertEqual(found["level"], "warning")
        self.assertEqual(found["what"], f"{self.work}/libaisp_cutlass.so has interface 7 and this executable needs 1")
        self.assertIn("./setup.sh --cutlass", found["advice"])

    def test_where_there_is_none_the_command_that_builds_it_is_named(self):
        found = self.finding(AISP_WITHOUT_LIBRARIES="CUTLASS")
        self.assertEqual((found["level"], found["what"].split(";")[0]), ("info", "libaisp_cutlass.so not found"))
        self.assertIn("./setup.sh --cutlass", found["advice"])

    def test_nothing_of_it_is_in_the_executable(self):
        names = subprocess.run(["nm", "-C", AISP], capture_output=True, text=True, check=True).stdout
        self.assertNotRegex(names, r"\b(cutlass|cute)::")
