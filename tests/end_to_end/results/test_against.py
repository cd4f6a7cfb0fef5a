# SPDX-License-Identifier: Apache-2.0
"""`run --gate --against`: two executables measure each pair in turns, and only a loss that both see is red."""
import contextlib
import json
import os
import signal
import time
import unittest

from harness import FIXTURES, EndToEnd, results_log

SLOWED = {"AISP_FIXTURE_SLOWED": "1"}


class Against(EndToEnd):
    def other(self, text):
        """An executable beside the real one; as a script it can be what the test needs."""
        script = self.work / "other-aisp"
        script.write_text("#!/bin/sh\n" + text)
        script.chmod(0o755)
        return script

    def fast(self):
        """The executable as it was before the commit that made ch90:slowed slow."""
        return self.other(f'unset AISP_FIXTURE_SLOWED\necho "$1" >> {self.work}/calls\nexec "{FIXTURES}" "$@"\n')

    def gate(self, other, *targets, flags=(), **keywords):
        return self.run_pairs(*targets, flags=("--gate", "--against", str(other), "--run-id", "beside", *flags), **keywords)

    def processes(self, folder):
        places = (folder, folder / "confirmation_side_by_side")
        return [[pair["target"] for pair in results_log(place)] for place in places]

    def test_the_same_executable_is_quiet(self):
        # Half of what there is may be lost on a busy machine before this test calls it a change.
        finished = self.gate(FIXTURES, "ch90:slowed", flags=("--threshold", "50"))
        self.assert_code(finished, 0)
        self.assertIn("1 pair compared with the other executable in turns: none is slower by 50 % or more", finished.out)
        self.assertEqual(self.processes(finished.folder), [["ch90:slowed"]] * 2)
        self.assertEqual(self.processes(finished.folder / "against"), [["ch90:slowed"]] * 2)
        self.assertTrue((finished.folder / "against/ch90_slowed/output.log").exists())
        comparison = json.loads((finished.folder / "against/comparison.json").read_text())
        self.assertEqual({metric["target"] for metric in comparison["metrics"]}, {"ch90:slowed"})

    def test_a_slower_commit_is_red(self):
        finished = self.gate(self.fast(), "ch90:slowed", env=SLOWED)
        self.assert_code(finished, 3)
        self.assertIn("slower: ch90:slowed", finished.out)
        self.assertRegex(finished.out, r"ch90:slowed +doubled +time .*worse")
        self.assertIn("measuring both again", finished.err)
        comparison = json.loads((finished.folder / "against/comparison.json").read_text())
        self.assertIn(("doubled", "time"), {(metric["variant"], metric["metric"]) for metric in comparison["metrics"] if metric["is_regression"]})
        # Each of four processes of the pair asks for one that times its baseline alone.
        self.assertEqual((self.work / "calls").read_text().split(), ["__handshake"] + ["__child"] * 8)
        reruns = list(finished.folder.glob("confirmation_2*"))
        self.assertEqual(len(reruns), 1)
        self.assertEqual(self.processes(reruns[0] / "against"), [["ch90:slowed"]] * 2)
        # Both sides are runs like any other; one process each is not enough to judge what the host decides.
        compared = self.call("compare", "artifacts/beside/against", "artifacts/beside")
        self.assert_code(compared, 0)
        self.assertRegex(compared.out, r"worse: the host decides")

    def test_a_faster_commit_is_good(self):
        other = self.other(f'export AISP_FIXTURE_SLOWED=1\nexec "{FIXTURES}" "$@"\n')
        finished = self.gate(other, "ch90:slowed", flags=("--threshold", "50"))
        self.assert_code(finished, 0)
        self.assertRegex(finished.out, r"ch90:slowed +doubled +time .*better")

    def test_pairs_of_one_side_are_named(self):
        answer = json.dumps({"protocol": 1, "schema_version": 1, "version": "0", "commit": "", "targets": ["ch90:equal", "ch90:gone"]})
        other = self.other(f"""if [ "$1" = __handshake ]; then echo '{answer}'; else exec "{FIXTURES}" "$@"; fi\n""")
        finished = self.gate(other, "ch90:equal", "ch90:go*", flags=("--threshold", "90"))
        self.assertIn(finished.code, (0, 1), finished.err)
        self.assertRegex(finished.out, r"Only in .*against: ch90:gone\n")
        self.assertRegex(finished.out, r"Only in .*: .*ch90:good")
        self.assertEqual(self.processes(finished.folder / "against"), [["ch90:equal"]] * 2)

    def test_nothing_in_common_is_no_green_gate(self):
        answer = json.dumps({"protocol": 1, "schema_version": 1, "version": "0", "commit": "", "targets": []})
        finished = self.gate(self.other(f"echo '{answer}'\n"), "ch90:good")
        self.assert_code(finished, 5)
        self.assertIn("no pair was measured with both executables", finished.err)

    def test_a_pair_that_broke_is_1(self):
        finished = self.gate(self.other(f'exec "{FIXTURES}" "$@"\n'), "ch90:good", "ch92:throw_in_run")
        self.assert_code(finished, 1)

    def test_one_that_does_not_answer_can_be_interrupted(self):
        other = self.other("trap '' INT TERM\necho $$ > pid\nexec sleep 99\n")
        process = self.start("run", "-t", "ch90:good", "--gate", "--against", str(other))
        deadline = time.monotonic() + 60
        while not (self.work / "pid").exists() or not (self.work / "pid").read_text():
            self.assertLess(time.monotonic(), deadline, "the other was not asked")
            time.sleep(0.01)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertLess(time.monotonic() - began, 15)
        self.assertIn("interrupted", err)
        with self.assertRaises(ProcessLookupError):
            os.kill(int((self.work / "pid").read_text()), 0)

    def test_one_that_does_not_end_its_answer_fills_no_disk(self):
        scratch = self.work / "scratch"
        scratch.mkdir()
        process = self.start("run", "-t", "ch90:good", "--gate", "--against", "/usr/bin/yes", env={"TMPDIR": str(scratch)})
        while process.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                if sum(file.stat().st_size for file in scratch.glob("*/*")) > 2 << 20:
                    process.kill()
                    self.fail("there are more than 2 MiB of its answer")
            time.sleep(0.01)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 2, err)
        self.assertIn("--against /usr/bin/yes: its answer is not that of an aisp", err)

    def test_what_cannot_be_compared_with_is_refused_before_anything_is_measured(self):
        for text, word in (("exit 2\n", "does not know what is asked"), ("echo hello\n", "not that of an aisp"),
                           ('echo \'{"protocol":99,"schema_version":1,"version":"","commit":"","targets":[]}\'\n', "version 99 of the protocol")):
            with self.subTest(word):
                finished = self.gate(self.other(text), "ch90:good")
                self.assert_code(finished, 2)
                self.assert_one_error_line(finished, "--against", "other-aisp", word)
                self.assertFalse(self.artifacts.exists())
        for flags, word in ((("--against", str(self.work / "nowhere")), "nowhere"), (("--against", FIXTURES, "--in-process"), "--in-process")):
            with self.subTest(word):
                finished = self.run_pairs("ch90:good", flags=("--gate", *flags))
                self.assert_code(finished, 2)
                self.assert_one_error_line(finished, word)
        self.assert_code(self.run_pairs("ch90:good", flags=("--against", FIXTURES)), 2)


if __name__ == "__main__":
    unittest.main()
