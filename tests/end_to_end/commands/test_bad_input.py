# SPDX-License-Identifier: Apache-2.0
"""Files that are cut, empty, binary or hostile: one clear line that names the file, exit 2 or 4, and nothing is overwritten."""
import unittest

from harness import QUICK, EndToEnd

HOSTILE = {"empty": b"", "binary": bytes(range(256)) * 8, "deep": b"[" * 200000, "deep objects": b'{"a":' * 20000, "huge number": b'{"seed":1e99999}',
           "wrong type": b"[1, 2, 3]", "cut": b'{"seed": 4', "duplicate": b'{"seed": 1, "seed": 2}', "escape": b'{"\\u001b[2J\\n": 1, "\\u001b[2J\\n": 2}'}


class BadInput(EndToEnd):
    def setUp(self):
        super().setUp()
        self.assert_code(self.call("run", "-t", "ch90:good", *QUICK, "--run-id", "first", "--update-expectations"), 0)
        self.folder = self.artifacts / "first"

    def refuse(self, file, content, *command):
        before = {path: path.read_bytes() for path in self.work.rglob("*") if path.is_file()}
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        before[file] = content
        finished = self.call(*command)
        self.assertIn(finished.code, (2, 4), f"{command}\n{finished.out}\n{finished.err}")
        self.assert_one_error_line(finished, file.name)
        error = next(line for line in finished.err.splitlines() if line.startswith("aisp: error:"))
        self.assertLess(len(error), 1100)
        self.assertTrue(error.isprintable(), error)
        after = {path: path.read_bytes() for path in self.work.rglob("*") if path.is_file() and path.name != ".lock"}
        self.assertEqual({path for path in after if after[path] != before.get(path)}, set(), "nothing may be written or changed")

    def test_files_of_a_run(self):
        good = {name: (self.folder / name).read_bytes() for name in ("results.jsonl", "manifest.json")}
        for name in good:
            for kind, content in HOSTILE.items():
                commands = [("analyze", "first"), ("compare", "first"), ("roofline", "first", "--svg", "x.svg")]
                if name != "results.jsonl" or kind != "empty":  # an empty log is a run that measured nothing yet
                    commands.append(("run", "--resume", "first"))
                for command in commands:
                    with self.subTest(file=name, kind=kind, command=command):
                        self.refuse(self.folder / name, content, *command)
                (self.folder / name).write_bytes(good[name])

    def test_names_that_would_leave_the_folder(self):
        header, line = (self.folder / "results.jsonl").read_bytes().splitlines()[:2]
        for before, after in ((b'"chapter":"ch90"', b'"chapter":"../../../outside"'), (b'"name":"good"', b'"name":"/etc/x"')):
            text = header + b"\n" + line.replace(before, after, 1) + b"\n"
            for command in (("analyze", "first"), ("compare", "first"), ("roofline", "first"), ("run", "--resume", "first")):
                with self.subTest(after=after, command=command):
                    self.assertIn(after, text)
                    self.refuse(self.folder / "results.jsonl", text, *command)

    def test_what_a_resumed_run_was_told(self):
        for content in (*HOSTILE.values(), b'{"iterations": {"origin": "flag", "value": ' + b"[" * 100000 + b"]" * 100000 + b"}}"):
            with self.subTest(content=content[:40]):
                self.refuse(self.folder / "effective_configuration.json", content, "run", "--resume", "first")

    def test_expectations(self):
        file = self.work / "expectations/host/ch90.json"
        for kind, content in HOSTILE.items():
            for command in (("analyze", "first"), ("roofline", "--expectations-dir", "expectations")):
                with self.subTest(kind=kind, command=command):
                    self.refuse(file, content, *command)

    def test_configuration(self):
        for text in (b"\0\1\2", b"seed = 1\nseed = 2\n", b"iterations = " + b"9" * 5000, b"[walk]\n", b"gpus = " + b"[" * 90000, b"mode = \"even", b"= 3\n",
                     b"seed\x1b = 3\n", b"a" * 90000 + b" = 1\n", b"run-id = ../../x\n", "seed = 1\n".encode("utf-16")):
            with self.subTest(text=text[:40]):
                self.refuse(self.work / "mine.toml", text, "run", "-t", "ch90:good", "--config", "mine.toml")
        (self.work / "mine.toml").write_text("# first\n\nseed = 1\nseed = 2\n")
        finished = self.call("run", "-t", "ch90:good", "--config", "mine.toml")
        self.assert_one_error_line(finished, "mine.toml:4", "seed")

    def test_model_configurations(self):
        for kind, content in HOSTILE.items():
            with self.subTest(kind):
                self.refuse(self.work / "config.json", content, "estimate", "--config", "config.json", "--gpu", "h200")


if __name__ == "__main__":
    unittest.main()
