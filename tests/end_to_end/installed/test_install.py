# SPDX-License-Identifier: Apache-2.0
"""cmake --install: what lands where, and that it runs there and wherever it is moved to."""
import pathlib
import re
import subprocess
import unittest

from harness import AISP, EndToEnd

BUILD = pathlib.Path(AISP).parent
PAIR = "ch03:false_sharing"


def links(page):
    """Those of a document to files beside it, in the text or below it; code in fences and spans has none."""
    text = re.sub(r"(?<!`)`[^`\n]+`(?!`)", "", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S))
    found = re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: *(\S+)", text, re.M)
    return [link.partition("#")[0] for link in map("".join, found) if not re.match(r"#|[a-z]+:", link)]


class Install(EndToEnd):
    def setUp(self):
        super().setUp()
        self.prefix = self.work / "prefix"
        done = subprocess.run(["cmake", "--install", BUILD, "--prefix", self.prefix], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)

    def installed(self, *arguments, **keywords):
        finished = self.call(*arguments, program=str(self.prefix / "bin/aisp"), **keywords)
        self.assertNotIn("error", finished.err)
        return finished

    def assert_works(self):
        """In a folder without expectations of its own."""
        self.assert_code(self.installed("list-targets"), 0)
        self.assertIn("recorded", self.installed("explain", PAIR).out)
        analyzed = self.installed("analyze", "once")
        self.assertIn(analyzed.code, (0, 3, 5), analyzed.err)
        self.assertIn(PAIR, analyzed.out)
        # Its hardware is in the installed expectations; that of another machine is no red one.
        self.assertNotIn("no expectation of this hardware", analyzed.err)

    def test_an_installed_tree_finds_its_expectations_also_when_it_is_moved(self):
        flags = ("--run-id", "once")
        self.assert_code(self.run_pairs(PAIR, program=str(self.prefix / "bin/aisp"), flags=flags), 0)
        self.assert_works()
        self.prefix = self.prefix.rename(self.work / "moved")
        self.assert_works()
        (self.prefix / "share/aisp/expectations").rename(self.work / "gone")
        self.assertIn("nothing recorded", self.installed("explain", PAIR).out)

    def test_what_is_recorded_here_comes_before_what_was_installed_and_is_written_here(self):
        program = str(self.prefix / "bin/aisp")
        before = sorted((path, path.stat().st_mtime_ns) for path in self.prefix.rglob("*"))
        self.assert_code(self.run_pairs(PAIR, program=program, flags=("--run-id", "once", "--update-expectations")), 0)
        self.assertTrue((self.work / "expectations/host/ch03.json").exists())
        self.assertEqual(before, sorted((path, path.stat().st_mtime_ns) for path in self.prefix.rglob("*")))
        self.assertIn("nothing recorded", self.installed("explain", "ch01:coalescing").out)

    def test_scripts_run_where_they_were_installed(self):
        scripts = self.prefix / "share/aisp/scripts"
        for script in scripts.glob("*.sh"):
            done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
        (self.work / "expectations").mkdir()
        night = subprocess.run([scripts / "nightly.sh", "--dry-run"], cwd=self.work, capture_output=True, text=True, timeout=60)
        self.assertEqual(night.returncode, 0, night.stderr)
        program = re.search(r"(\S+/aisp) verify", night.stdout, re.M)[1]
        self.assertEqual(pathlib.Path(program).resolve(), (self.prefix / "bin/aisp").resolve())

    def test_links_of_installed_documents_lead_to_installed_files(self):
        root = self.prefix / "share/aisp"
        pages = list(root.rglob("*.md"))
        self.assertIn(root / "README.md", pages)
        self.assertGreater(sum(len(links(page)) for page in pages), 300)
        self.assertEqual([f"{page.relative_to(root)}: {link}" for page in pages for link in links(page) if not (page.parent / link).exists()], [])

    def test_nothing_points_back_to_where_it_was_built(self):
        dynamic = subprocess.run(["readelf", "-d", self.prefix / "bin/aisp"], capture_output=True, text=True, check=True).stdout
        self.assertNotIn("PATH", dynamic)
        text = "\n".join(path.read_text(errors="ignore") for path in (self.prefix / "share").rglob("*") if path.is_file() and path.suffix != ".json")
        self.assertNotIn(str(BUILD), text)

    def test_man_page_and_completions(self):
        for file, word in (("man/man1/aisp.1", ".TH"), ("bash-completion/completions/aisp", "complete"),
                           ("zsh/site-functions/_aisp", "#compdef"), ("fish/vendor_completions.d/aisp.fish", "complete")):
            self.assertIn(word, (self.prefix / "share" / file).read_text())


if __name__ == "__main__":
    unittest.main()
