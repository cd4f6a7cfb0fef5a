# SPDX-License-Identifier: Apache-2.0
"""The listings of docs/python.md, its notebook, and what `aisp new --python` writes, where they are said to work: under pytest and in a
notebook."""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import unittest

from harness import AISP, SOURCE, EndToEnd, results_log

BUILD = os.environ.get("AISP_BUILD", str(pathlib.Path(AISP).parent))
LISTING, SIZES = re.findall(r"```python\n(.*?)```", (SOURCE / "docs/python.md").read_text(), re.DOTALL)[:2]


@unittest.skipIf("AISP_SANITIZED" in os.environ, "Python is not built for the sanitizers")
class Page(EndToEnd):
    def needs(self, *modules):
        for module in modules:
            if importlib.util.find_spec(module) is None:
                self.skipTest(f"{sys.executable} has no {module}: apt-get install python3-{module}")

    def python(self, *arguments, code=0):
        settings = {"PYTHONPATH": str(SOURCE / "python/src"), "AISP_BUILD": BUILD, "HOME": str(self.work), "IPYTHONDIR": str(self.work / "ipython")}
        done = subprocess.run([sys.executable, *arguments], cwd=self.work, env=self.environment(settings), capture_output=True, text=True, timeout=180)
        self.assertEqual(done.returncode, code, f"\n{done.stdout}\n{done.stderr}")
        return done

    def results(self):
        return [result for folder in self.artifacts.iterdir() for result in results_log(folder)]

    def test_pytest(self):
        self.needs("pytest")
        (self.work / "test_listing.py").write_text("def test_listing():\n" + textwrap.indent(LISTING, "    "))
        self.assert_code(self.call("new", "sums_of_rows", "--python", program=AISP), 0)
        done = self.python("-m", "pytest", "-p", "no:cacheprovider", "test_listing.py", "sums_of_rows.py")
        self.assertRegex(done.stdout, "2 passed")
        self.assertEqual(sorted((result["target"], result["status"]) for result in self.results()),
                         [("python:row_sums", "passed"), ("python:sums_of_rows", "passed")])

    def test_pytest_shows_what_failed(self):
        self.needs("pytest")
        wrong = LISTING.replace("lambda values: values.sum(axis=1)}", "lambda values: values.sum(axis=1) + 1}")
        self.assertNotEqual(wrong, LISTING)
        (self.work / "test_wrong.py").write_text("def test_wrong():\n" + textwrap.indent(wrong, "    "))
        done = self.python("-m", "pytest", "-p", "no:cacheprovider", "test_wrong.py", code=1)
        self.assertRegex(done.stdout, r"(?m)^E +aisp\.\S*Failed: python:row_sums failed: all_at_once: .*relative L2 error")

    def test_a_notebook(self):
        self.needs("nbclient", "nbformat", "ipykernel")
        imports, rest = LISTING.split("\n\n", 1)
        cells = [imports, rest, "print(result)", "aisp.load('latest').variants.variant.tolist()" if importlib.util.find_spec("pandas") else "['row_by_row']"]
        (self.work / "execute.py").write_text(f"""
import nbclient, nbformat
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in {cells!r}])
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
for cell in notebook.cells:
    for output in cell.outputs:
        print(output.get("text", output.get("data", {{}}).get("text/plain")))
""")
        done = self.python("execute.py")
        self.assertRegex(done.stdout, r"python:row_sums +all_at_once +[0-9.]+x")
        self.assertIn("'row_by_row'", done.stdout)
        self.assertEqual([result["status"] for result in self.results()], ["passed"])
        # Cells have no file: the digest is of their text.
        self.assertRegex(self.results()[0]["source_digest"], "^[0-9a-f]{64}$")


    def test_several_sizes(self):
        self.needs("numpy")
        (self.work / "sizes.py").write_text(SIZES)
        done = self.python("sizes.py")
        self.assertRegex(done.stdout, r"(?m)^16384 +all_at_once +[0-9.]+ +[0-9.]+ +[0-9.]+")
        self.assertIn("<svg", (self.work / "row_sums.svg").read_text())
        self.assertEqual([result["status"] for result in self.results()], ["passed"] * 3)

    def test_the_notebook_of_the_documents(self):
        self.needs("nbclient", "nbformat", "ipykernel", "pandas")
        notebook = SOURCE / "docs/python-sizes.ipynb"
        cells = ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
        self.assertEqual("\n\n".join(cells[:2]), SIZES.partition("print(")[0].strip(), "the notebook is the example")
        (self.work / "execute.py").write_text(f"""
import nbclient, nbformat
notebook = nbformat.read({str(notebook)!r}, 4)
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
for cell in notebook.cells:
    for output in cell.get("outputs", []):
        print(output.get("text", output.get("data", {{}}).get("text/html", output.get("data", {{}}).get("text/plain"))))
""")
        done = self.python("execute.py")
        self.assertIn("<table>", done.stdout)
        self.assertEqual(done.stdout.count("<svg"), 2)
        self.assertRegex(done.stdout, r"Speedup\([0-9.]+x \[")
        self.assertIn("n_16384", done.stdout)


if __name__ == "__main__":
    unittest.main()
