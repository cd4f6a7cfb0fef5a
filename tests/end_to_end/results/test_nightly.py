# SPDX-License-Identifier: Apache-2.0
"""The nightly job as a whole, on host pairs: what must turn it red does, noise does not, and the workflow says what aisp understands."""
import csv
import json
import re
import shlex
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import yaml
from harness import AISP, FIXTURES, QUICK, SOURCE, EndToEnd

SCRIPT = SOURCE / "scripts/nightly.sh"
WORKFLOW = SOURCE / ".github/workflows/nightly.yml"
# Wide enough for the host times of a loaded machine; what is planted is far beyond it.
LOOSE = ("--threshold", "60")
ROOM = 0.3


class Nightly(EndToEnd):
    def night(self, *flags, targets=("ch90:good",), aisp=FIXTURES, env=None, run_id="night", run_flags=QUICK):
        selection = [word for target in targets for word in ("--targets", target)]
        return self.call("--aisp", aisp, *selection, *LOOSE, "--run-id", run_id, *flags, "--", *run_flags, program=str(SCRIPT), env=env)

    def record(self, *targets):
        self.assert_code(self.call("run", *[word for target in targets for word in ("-t", target)], *QUICK, "--run-id", "recorded",
                                   "--update-expectations"), 0)

    def expect_times(self, factor):
        """Another past, in which everything was `factor` times as fast, three times over. And steady: a sample that another program
        stopped while this was recorded would make the interval so wide that nothing is outside of it."""
        path = self.work / "expectations/host/ch90.json"
        document = json.loads(path.read_text())
        for pair in document["pairs"].values():
            for variant in pair["runs"][0]["variants"].values():
                variant["speedup"] *= factor
                variant["speedup_low"], variant["speedup_high"] = 0.9 * variant["speedup"], 1.1 * variant["speedup"]
            pair["runs"] *= 3
        path.write_text(json.dumps(document))

    def reports(self, run_id="night"):
        return self.artifacts / run_id / "nightly"

    def findings(self):
        return {row["target"]: row for row in json.loads((self.reports() / "analysis.json").read_text())["rows"] if row["best"]}

    def test_a_quiet_night_is_green_and_keeps_its_evidence(self):
        self.record("ch90:good")
        self.expect_times(ROOM)
        summary = self.work / "summary.md"
        finished = self.night("--hardware", "host", env={"GITHUB_STEP_SUMMARY": str(summary)})
        self.assert_code(finished, 0)
        self.assertIn("verify 0, run 0, analyze 0; exit 0", finished.err)
        with open(self.reports() / "proof_of_benefit.csv", newline="") as file:
            self.assertEqual({row["target"] for row in csv.DictReader(file)}, {"ch90:good"})
        self.assertEqual(ElementTree.parse(self.reports() / "junit.xml").getroot().get("failures"), "0")
        self.assertTrue(json.loads((self.reports() / "github-action-benchmark.json").read_text()))
        self.assertIn("ch90:good", (self.artifacts / "night/results.jsonl").read_text())
        self.assertIn("good", summary.read_text())
        self.assertTrue((self.artifacts / "verify_night/results.jsonl").exists())

    def test_a_planted_regression_is_red(self):
        self.record("ch90:good")
        self.expect_times(50)
        finished = self.night(env={"GITHUB_ACTIONS": "true"})
        self.assert_code(finished, 3)
        self.assertIn("measuring again", finished.err)
        self.assertIn("verify 0, run 3, analyze 3; exit 3", finished.err)
        self.assertRegex(finished.out, r"(?m)^::error title=ch90%3Agood [a-z]+ on host%3A regressed")
        self.assertEqual(self.findings()["ch90:good"]["finding"], "regressed")
        self.assertGreater(int(ElementTree.parse(self.reports() / "junit.xml").getroot().get("failures")), 0)

    def test_planted_noise_is_not_red(self):
        self.record("ch90:slow_once")
        self.expect_times(ROOM)
        bytes_left = self.work / "processes_until_noise"
        bytes_left.write_text("xx")  # verify takes one, the measurement the other; the confirming one finds none
        finished = self.night(targets=("ch90:slow_once",), env={"AISP_FIXTURE_SLOW_ONCE": str(bytes_left), "GITHUB_ACTIONS": "true"})
        self.assertIn("measuring again", finished.err, "the noise was not noticed, so this shows nothing")
        self.assert_code(finished, 0)
        self.assertNotIn("::error", finished.out)
        self.assertIn(self.findings()["ch90:slow_once"]["finding"], ("ok", "slower", "improved"))

    def test_a_broken_pair_is_1_and_the_others_are_measured(self):
        self.record("ch90:good")
        self.expect_times(50)
        finished = self.night(targets=("ch90:good", "ch94:wrong_result"))
        self.assert_code(finished, 1)
        self.assertIn("verify 1, run 1, analyze 1; exit 1", finished.err)
        self.assertEqual(self.findings()["ch90:good"]["finding"], "regressed", "seen all the same")

    def test_a_runner_without_its_gpu_is_4(self):
        self.record("ch90:good")
        (self.work / "expectations/h999").mkdir()
        finished = self.night("--hardware", "h999")
        self.assert_code(finished, 4)
        self.assertIn("nothing was measured on h999", finished.err)
        self.assert_code(self.night("--hardware", "h998", run_id="other"), 2)

    def test_wrong_use_measures_nothing(self):
        (self.work / "expectations").mkdir()
        for flags, code, words in ((("--nonsense",), 2, "--nonsense"), (("--targets",), 2, "needs a value"), (("--run-id", "../x"), 2, "--run-id"),
                                   (("--aisp", "/nowhere"), 4, "/nowhere"), (("--expectations-dir", "nowhere"), 2, "nowhere"),
                                   (("--aisp", FIXTURES, "--targets", "ch42"), 2, "ch42")):
            with self.subTest(flags):
                finished = self.call("--aisp", FIXTURES, *flags, program=str(SCRIPT))
                self.assert_code(finished, code)
                self.assertIn(words, finished.err)
        self.assertEqual(list(self.artifacts.glob("*/results.jsonl")), [])

    def test_a_step_that_is_killed_is_no_success(self):
        (self.work / "expectations").mkdir()
        for body, code in (("kill -9 $$", 1), ("exit 77", 1), ("exit 130", 130), ("exit 4", 4)):
            with self.subTest(body):
                fake = self.work / "fake"
                fake.write_text(f"#!/bin/sh\n{body}\n")
                fake.chmod(0o755)
                self.assert_code(self.call("--aisp", str(fake), program=str(SCRIPT)), code)

    def test_dry_run_prints_commands_that_aisp_understands(self):
        finished = self.call("--aisp", AISP, "--targets", "ch03", "--strict", "--dry-run", program=str(SCRIPT), env={"GITHUB_ACTIONS": "true"})
        self.assert_code(finished, 0)
        self.assertFalse(self.artifacts.exists())
        commands = [shlex.split(line) for line in finished.out.splitlines()]
        self.assertEqual([words[1] for words in commands], ["verify", "run", "analyze"])
        for words in commands:
            known = self.call(words[1], "--help", program=words[0]).out
            flags = [word for word in words if word.startswith("--")]
            self.assertGreater(len(flags), 1)
            for flag in flags:
                self.assertRegex(known, rf"(?m)[ ,]{re.escape(flag)}\b", f"aisp {words[1]} has no {flag}")

    def test_checks_of_the_tree_come_first(self):
        finished = self.call("--aisp", AISP, "--checks", "--dry-run", program=str(SCRIPT))
        self.assert_code(finished, 0)
        checks, wgmma, peak, selftest, *rest = map(shlex.split, finished.out.splitlines())
        self.assertEqual(checks, [str(SOURCE / "setup.sh"), "--nightly"])
        self.assertEqual(wgmma, [str(SOURCE / "scripts/check-wgmma"), str(SOURCE / "build/ci")])
        built = str(SOURCE / "build/ci/aisp")
        self.assertEqual((peak[0], peak[2:]), ("env", [built, "peak", "--quick"]))
        self.assertFalse(Path(peak[1].removeprefix("XDG_CACHE_HOME=")).exists(), "as at a machine's first start")
        self.assertEqual(selftest, [built, "selftest"])
        self.assertEqual(len(rest), 3)


class Workflow(EndToEnd):
    def setUp(self):
        super().setUp()
        self.document = yaml.safe_load(WORKFLOW.read_text())
        self.job = self.document["jobs"]["nightly"]

    def test_it_runs_at_night_and_by_hand_on_a_gpu_runner(self):
        triggers = self.document[True]  # YAML 1.1 reads the key "on" as true
        self.assertRegex(triggers["schedule"][0]["cron"], r"^\d+ \d+ \* \* \*$")
        self.assertIn("workflow_dispatch", triggers)
        self.assertLessEqual({"self-hosted", "gpu"}, set(self.job["runs-on"]))
        self.assertFalse(self.document["concurrency"]["cancel-in-progress"])

    def test_artifacts_are_kept_after_a_red_night_too(self):
        upload = next(step for step in self.job["steps"] if step.get("uses", "").startswith("actions/upload-artifact"))
        self.assertEqual(upload["if"], "always()")
        for step in self.job["steps"]:
            self.assertNotIn("continue-on-error", step)

    def test_every_command_is_one_that_exists(self):
        commands = [line for step in self.job["steps"] for line in step.get("run", "").splitlines()]
        self.assertTrue(any(line.startswith("scripts/nightly.sh") for line in commands))
        presets = {preset["name"] for preset in json.loads((SOURCE / "CMakePresets.json").read_text())["configurePresets"]}
        usage = self.call("--help", program=str(SCRIPT)).out
        for line in commands:
            with self.subTest(line):
                self.assertNotIn("|", line)
                self.assertNotRegex(line, r"\$\{\{ *inputs", "an input inside a command line is code")
                words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "1", line))
                if words[0] == "cmake":
                    self.assertIn(words[-1], presets)
                    continue
                self.assertTrue((SOURCE / words[0]).is_file(), words[0])
                for flag in (word for word in words if word.startswith("--")):
                    self.assertIn(f"  {flag} ", usage)

    def test_what_is_uploaded_is_what_the_script_writes(self):
        measure = next(step for step in self.job["steps"] if "nightly.sh" in step.get("run", ""))
        run_id = re.search(r'--run-id "([^"]*)"', measure["run"]).group(1)
        upload = next(step for step in self.job["steps"] if step.get("uses", "").startswith("actions/upload-artifact"))
        self.assertEqual(upload["with"]["path"].split("\n")[:2], [f"artifacts/{run_id}/", f"artifacts/verify_{run_id}/"])


if __name__ == "__main__":
    unittest.main()
