# SPDX-License-Identifier: Apache-2.0
"""Flags, exit statuses, and what goes to which stream."""
import json
import os
import re
import subprocess
import time
import unittest

from harness import AISP, FIXTURES, QUICK, EndToEnd

ESCAPE = "\x1b["


class Usage(EndToEnd):
    def test_unknown_target_names_the_nearest(self):
        self.usage_error("run", "--targets", "ch90:godo", words=("ch90:good",))
        self.usage_error("run", "--targets", "segfualt", words=("segfault",))
        self.usage_error("list-targets", "--chapter", "ch42", words=("ch90",))

    def test_bad_words(self):
        self.usage_error(words=("--help",))
        self.usage_error("lsit-targets", words=("list-targets",))
        self.usage_error("sing", words=("--help",))
        self.usage_error("rnu", words=("did you mean 'run'?",))
        self.usage_error("bench", "list-targets", words=("unknown command 'bench'",))
        self.usage_error("rnu", "list-targets", words=("unknown command 'rnu'; did you mean 'run'?",))
        self.usage_error("completion", "bash", "completion", words=("unexpected argument 'completion'",))
        self.usage_error("run", "--iteratons", "3", words=("--iterations",))
        for command in ("completion", "explain"):
            finished = self.call(command, "bash", "zsh")
            self.assert_code(finished, 2)
            self.assert_one_error_line(finished, "unexpected argument 'zsh'", f"aisp {command} --help")
            self.assertNotIn("--targets", finished.err)
        self.usage_error("__child", "x", words=("__child",))
        self.usage_error("__nonsense", "3")

    def test_bad_values(self):
        for arguments, word in ((("--iterations", "many"), "many"), (("--iterations", "0"), "'0'"), (("--scale", "7"), "'7'"),
                                (("--mode", "evnets"), "did you mean events?"), (("--suite-timeout", "soon"), "soon"),
                                (("--jobs", "-3"), "-3"), (("--seed", "x"), "'x'"), (("--color", "pink"), "pink"),
                                (("--profile", "some"), "none, minimal or full"), (("--run-id", "a/b"), "a/b"),
                                (("--percentiles", "200"), "200"), (("--targets", ","), "names nothing"),
                                (("--resume", "nowhere"), "nowhere"), (("--config", "missing.toml"), "missing.toml"),
                                (("--config", "a.toml", "--config", "b.toml"), "given twice, with a.toml and b.toml")):
            with self.subTest(arguments):
                self.usage_error("run", "-t", "ch90:good", *arguments, words=(word,))

    def test_a_setting_takes_one_word_and_leaves_the_pairs_behind_it(self):
        for words in (("--seed", "3", "ch90:good"), ("--jobs=1", "ch90:good", "ch90:equal"), ("--gpus", "0", "--jobs", "1", "ch90:good"),
                      ("--size", "rows=64", "ch89:sized"), ("--percentiles", "10,20", "ch90:good")):
            with self.subTest(" ".join(words)):
                pairs = [word for word in words if ":" in word]
                finished = self.call("run", "--list", "--json", "-", *words)
                self.assert_code(finished, 0)
                self.assertCountEqual([pair["target"] for pair in json.loads(finished.out)], pairs)

    def test_glob_without_match_selects_nothing(self):
        finished = self.call("run", "--targets", "ch90:*zzz*")
        self.assert_code(finished, 5)
        self.assert_one_error_line(finished, "zzz")

    def test_absent_gpu(self):
        finished = self.call("run", "--targets", "ch90:good", "--gpus", "99", env={"CUDA_VISIBLE_DEVICES": "-1"})
        self.assert_code(finished, 4)
        self.assert_one_error_line(finished, "--gpus")

    def test_help_and_version(self):
        for arguments in (("--help",), ("run", "--help"), ("list-targets", "--help"), ("doctor", "--help"), ("--version",)):
            finished = self.call(*arguments)
            self.assert_code(finished, 0)
            self.assertTrue(finished.out)
            self.assertEqual(finished.err, "")
        self.assertRegex(self.call("--version").out, r"^aisp \d+\.\d+")
        self.assertNotIn("__child", self.call("--help").out)

    def test_help_takes_milliseconds(self):
        for arguments in (("--help",), ("list-targets", "--json")):
            best = min(self.seconds(*arguments) for _ in range(5))
            self.assertLess(best, 0.25, "no CUDA call and no probe may be behind this")

    def seconds(self, *arguments):
        began = time.monotonic()
        self.call(*arguments, program=AISP if arguments == ("--help",) else FIXTURES)
        return time.monotonic() - began


class Lists(EndToEnd):
    def test_json(self):
        targets = json.loads(self.call("list-targets", "--json").out)
        good = next(target for target in targets if target["target"] == "ch90:good")
        self.assertEqual({key: good[key] for key in good if key != "source"},
                         {"target": "ch90:good", "chapter": "ch90", "name": "good", "built": True, "teaches": good["teaches"], "device": "host", "gpus": 0,
                          "min_sm": 0, "max_sm": 0, "bound": "host", "baseline": "slow", "lesson": "doubled", "optimized": ["doubled", "added"],
                          "gains_over": {"doubled": "slow", "added": "doubled"}, "controls": [], "libraries": ["library"], "changes_precision": [],
                          "not_run": [], "sizes": [], "sweep": [], "source_digests": good["source_digests"]})
        self.assertRegex(good["source_digests"][0], "^[0-9a-f]{64}$")
        self.assertTrue(good["source"].endswith("ch90/good.cpp"))
        gpu = next(target for target in targets if target["name"] == "many_gpus")
        self.assertEqual((gpu["device"], gpu["gpus"], gpu["min_sm"]), ("gpu", 64, 80))
        absent = next(target for target in targets if target["name"] == "absent_architecture")
        self.assertEqual((absent["min_sm"], absent["max_sm"]), (99, 99))

    def test_what_nobody_has_run(self):
        self.assertRegex(self.call("list-targets", "-t", "ch88:untried").out, r"^ch88:untried +once is faster than many times \(not run: elsewhere\)$")
        self.assertEqual(json.loads(self.call("list-targets", "-t", "ch88:untried", "--json").out)[0]["not_run"], ["elsewhere"])
        self.assertIn("elsewhere (not run: nobody has had a GPU for it)", self.call("explain", "ch88:untried").out)

    def test_chapter(self):
        lines = self.call("list-targets", "--chapter", "ch95").out.splitlines()
        self.assertTrue(lines and all(line.startswith("ch95:") for line in lines), lines)

    def test_run_list_writes_json_to_a_file(self):
        finished = self.call("run", "-t", "ch90:good", "--list", "--json", "out/list.json")
        self.assert_code(finished, 0)
        self.assertTrue(finished.out.startswith("ch90:good "), finished.out)
        self.assertEqual([target["target"] for target in json.loads((self.work / "out/list.json").read_text())], ["ch90:good"])

    def test_run_list_checks_sizes_and_settings(self):
        for flags, word in ((("--size", "rows=7"), "rows"), (("--size", "nonsense=1"), "nonsense"), (("--config", "absent.toml"), "absent.toml")):
            finished = self.call("run", "-t", "ch89:sized", "--list", *flags)
            self.assert_code(finished, 2)
            self.assert_one_error_line(finished, word)

    def test_run_list_and_dry_run_run_nothing(self):
        self.assertEqual([line.split()[0] for line in self.run_pairs("ch90:good", flags=("--list",)).out.splitlines()], ["ch90:good"])
        dry = self.run_pairs("ch90:good", "ch95:absent_cpus", flags=("--dry-run",))
        self.assert_code(dry, 0)
        self.assertIn("on the host", dry.out)
        self.assertIn("skipped", dry.out)
        self.assertFalse(self.artifacts.exists())


class Streams(EndToEnd):
    def test_json_on_stdout_is_alone_there(self):
        finished = self.run_pairs("ch90:good", "ch92:throw_in_run", flags=("--json", "-"))
        self.assert_code(finished, 1)
        suite = json.loads(finished.out)
        self.assertEqual([pair["target"] for pair in suite["pairs"]], ["ch90:good", "ch92:throw_in_run"])

    def test_json_to_a_file(self):
        self.run_pairs("ch90:good", flags=("--json", "out/suite.json"))
        self.assertEqual(len(json.loads((self.work / "out/suite.json").read_text())["pairs"]), 1)

    def test_one_line_a_pair_and_no_escapes_without_a_terminal(self):
        finished = self.run_pairs("ch90:good", "ch90:equal")
        self.assertEqual(len([line for line in finished.out.splitlines() if re.match(r"\S*\s*ch90:", line)]) >= 2, True, finished.out)
        self.assertNotIn(ESCAPE, finished.out + finished.err)
        self.assertNotIn("\r", finished.out + finished.err)

    def test_targets_without_a_flag(self):
        for command in (("run", "--list"), ("verify",), ("list-targets",), ("run", "--dry-run")):
            with self.subTest(command):
                together = self.call(*command, "ch90:good", "-t", "ch90:equal,ch90:tokens")
                self.assert_code(together, 0)
                for name in ("good", "equal", "tokens"):
                    self.assertIn(f"ch90:{name}", together.out)
                self.assertNotIn("ch91", together.out)
        self.assert_code(self.call("run", "ch90:good", *QUICK, "--run-id", "last"), 0)
        self.assert_one_error_line(self.call("run", "ch90:god"), "unknown target 'ch90:god'; did you mean ch90:good")
        self.assert_one_error_line(self.call("run", "ch90:good", "--lst"), "did you mean '--list'?")
        self.assert_one_error_line(self.call("run", ","), "names nothing")

    def test_pairs_that_were_skipped_are_listed_once_by_reason(self):
        finished = self.run_pairs("ch90:good", "ch95", env={"CUDA_VISIBLE_DEVICES": ""})
        self.assertNotIn("ch95:gpu_only  ", finished.out)
        self.assertRegex(finished.out, r"\n\d+ pairs skipped \(.*ch95.*\): no CUDA device")
        self.assertRegex(finished.out, r"\nch90  1 of 1 passed; .*\nch95  \d of \d+ passed")

    def test_the_first_line_says_how_many_pairs_run_where_and_how_long(self):
        finished = self.run_pairs("ch90:good")
        self.assertRegex(finished.err.splitlines()[0], r"^aisp: 1 pair on .*\d CPUs?\)?, about \d[\d.]* (ms|s)$")
        self.assertEqual(self.run_pairs("ch90:good", flags=("--json", "-")).err, "")

    def test_quiet_prints_the_summary_only(self):
        finished = self.run_pairs("ch90:good", flags=("--quiet",))
        self.assertNotIn("ch90:good ", finished.out.splitlines()[0])
        self.assertEqual(finished.err, "")

    def test_colour(self):
        self.assertIn(ESCAPE, self.run_pairs("ch90:good", flags=("--color", "always", "--run-id", "a")).out)
        self.assertNotIn(ESCAPE, self.run_pairs("ch90:good", flags=("--color", "never", "--run-id", "b")).out)

    def test_terminal_shows_progress_and_colour_unless_no_color(self):
        arguments = ("run", "-t", "ch90:good", "--iterations", "5", "--warmup", "1", "--budget", "0.2s")
        seen = self.on_terminal(*arguments)
        self.assertIn("[0/1] ch90:good", seen)
        self.assertRegex(seen, r"\((round \d+ of \d+|interval [0-9.]+ % \(until 1 %\)), 0\.\d of 0\.2 s\)")
        self.assertIn("\x1b[3", seen)
        self.assertNotIn("\x1b[3", self.on_terminal(*arguments, "--run-id", "plain", env={"NO_COLOR": "1"}))

    def test_a_dumb_terminal_gets_no_escapes(self):
        seen = self.on_terminal("run", "-t", "ch90:good", "--iterations", "5", "--warmup", "1", "--budget", "0.2s", env={"TERM": "dumb"})
        self.assertNotIn("\x1b", seen)
        self.assertNotIn("[0/1]", seen)
        self.assertIn("1 passed", seen)

    def test_texts_of_files_stay_texts(self):
        """A run folder of somebody else sets no title, adds no line that a CI service obeys, and names nothing that is no name."""
        evil = "x\x1b]0;title\x07\n::error::pwned\n\u009b2J"
        self.assert_code(self.run_pairs("ch90:good", flags=("--run-id", "a", "--update-expectations")), 0)
        log, manifest = self.artifacts / "a/results.jsonl", self.artifacts / "a/manifest.json"
        header, line = log.read_text().splitlines()
        pair, machine = json.loads(line), json.loads(manifest.read_text())

        def write(name, changed_pair, changed_machine):
            folder = self.artifacts / name
            folder.mkdir()
            (folder / "results.jsonl").write_text(f"{header}\n{json.dumps({**pair, **changed_pair})}\n")
            (folder / "manifest.json").write_text(json.dumps({**machine, **changed_machine}))
            (folder / "effective_configuration.json").write_bytes((self.artifacts / "a/effective_configuration.json").read_bytes())

        error = {"stage": "verify", "variant": "", "check": "reference", "message": evil, "advice": evil}
        write("b", {"status": "failed", "reason": evil, "best": "", "errors": [error], "warnings": [evil]},
              {"cpu": evil, "hostname": evil, "environment": {evil: evil}})
        for arguments in (("analyze", "b"), ("compare", "a", "b"), ("compare", "b"), ("roofline", "b"), ("analyze", "--history"),
                          ("run", "--resume", "b"), ("clean", "--dry-run")):
            with self.subTest(arguments):
                finished = self.call(*arguments)
                self.assertNotEqual(finished.out + finished.err, "")
                self.assertNotRegex(finished.out + finished.err, "[\x00-\x09\x0b-\x1f\x7f-\x9f]")
                self.assertNotRegex(finished.out + finished.err, r"(?m)^\s*::")
        variants = [{**variant, "name": evil} for variant in pair["variants"]]
        write("c", {"variants": variants, "best": evil}, {})
        write("d", {}, {"targets": ["::error::pwned"]})
        for name, words in (("c", "no name of a variant"), ("d", "no target")):
            finished = self.call("analyze", name)
            self.assert_code(finished, 2)
            self.assert_one_error_line(finished, words)
            self.assertNotRegex(finished.err, r"(?m)^::")

    def test_full_standard_output_is_one_error_line(self):
        with open("/dev/full", "w") as full:
            finished = self.run_pairs("ch90:good", stdout=full)
        self.assert_code(finished, 1)
        self.assert_one_error_line(finished, "standard output")
        self.assertEqual(finished.pair("ch90:good")["status"], "passed")

    def test_reader_that_goes_away(self):
        process = subprocess.run(f"{FIXTURES} list-targets --json | head -c 10", shell=True, capture_output=True, cwd=self.work)
        self.assertNotIn(b"terminate", process.stderr)


class Configuration(EndToEnd):
    def effective(self, finished):
        return json.loads((finished.folder / "effective_configuration.json").read_text())

    def test_layers(self):
        (self.work / "aisp.toml").write_text("[run]\nwarmup = 2\nseed = 7\nno-alternate = true\npercentiles = [99.9, 99.99]\n")
        finished = self.call("run", "-t", "ch90:good", "--seed", "8", "--budget", "0.2s", "--iterations", "5")
        self.assert_code(finished, 0)
        effective = self.effective(finished)
        self.assertEqual(effective["warmup"], {"value": 2, "origin": "aisp.toml"})
        self.assertEqual(effective["no-alternate"], {"value": True, "origin": "aisp.toml"})
        self.assertEqual(effective["percentiles"], {"value": [99.9, 99.99], "origin": "aisp.toml"})
        self.assertEqual(effective["seed"], {"value": 8, "origin": "flag"})
        self.assertEqual(effective["scale"]["origin"], "default")

    def test_named_file_instead_of_the_standing_one(self):
        (self.work / "aisp.toml").write_text("seed = 7\n")
        (self.work / "mine.toml").write_text("warmup = 3\n")
        finished = self.call("run", "-t", "ch90:good", "--config", "mine.toml", "--budget", "0.2s")
        effective = self.effective(finished)
        self.assertEqual(effective["warmup"], {"value": 3, "origin": "mine.toml"})
        self.assertEqual(effective["seed"]["origin"], "drawn")
        self.assertNotIn("aisp.toml", finished.err)

    def test_the_console_tells_what_the_standing_file_sets(self):
        (self.work / "aisp.toml").write_text("scale = 0.5\nseed = 7\nmode = \"timer\"\n")
        for arguments in (("run", "--seed", "8"), ("verify",)):
            finished = self.call(*arguments, "-t", "ch90:good", "-q", *(("--iterations", "5", "--budget", "0.2s") if "run" in arguments else ()))
            self.assert_code(finished, 0)
            told = {"run": "aisp: aisp.toml sets mode timer, scale 0.5\n", "verify": "aisp: aisp.toml sets mode timer, seed 7, scale 0.5\n"}
            self.assertIn(told[arguments[0]], finished.err)

    def test_mistakes_name_the_file(self):
        for text, word in (("iteratons = 5\n", "iterations"), ("iterations = many\n", "many"), ("[walk]\nseed = 1\n", "walk")):
            with self.subTest(text):
                (self.work / "aisp.toml").write_text(text)
                finished = self.call("run", "-t", "ch90:good")
                self.assert_code(finished, 2)
                self.assert_one_error_line(finished, "aisp.toml", word)


class Doctor(EndToEnd):
    def test_table_and_json(self):
        table = self.call("doctor")
        self.assertIn(table.code, (0, 4))
        self.assertRegex(table.out, r"(?m)^(ok|info|warning|problem)\s")
        report = json.loads(self.call("doctor", "--json").out)
        self.assertTrue(report["findings"])
        for finding in report["findings"]:
            self.assertIn(finding["level"], ("ok", "info", "warning", "problem"))
            if finding["level"] in ("warning", "problem"):
                self.assertTrue(finding["advice"], finding)


    def test_topology(self):
        finished = self.call("doctor", "--topology")
        self.assert_code(finished, 0)
        self.assertEqual(finished.err, "")
        self.assertLessEqual(max(map(len, finished.out.splitlines())), 100)
        gpus = json.loads(self.call("doctor", "--json").out)["machine"]["gpus"]
        for gpu in gpus:
            self.assertIn(f"GPU {gpu['ordinal']}  {gpu['name']}\n", finished.out)
        if not gpus:
            self.assertEqual(len(re.findall(r"no CUDA device: \w", finished.out)), 1)

    def test_topology_without_a_gpu_says_why(self):
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        finished = self.call("doctor", "--topology", env=hidden)
        self.assert_code(finished, 0)
        self.assertIn("no CUDA device: ", finished.out)
        topology = json.loads(self.call("doctor", "--topology", "--json", env=hidden).out)
        self.assertEqual(topology["gpus"], [])
        self.assertTrue(next(unknown["why"] for unknown in topology["unknown"] if unknown["what"] == "GPUs"))


class Clean(EndToEnd):
    def test_removes_runs_and_nothing_else(self):
        for name in ("first", "second"):
            self.run_pairs("ch90:good", flags=("--run-id", name))
        (self.artifacts / "notes").mkdir()
        (self.artifacts / "notes" / "keep.txt").write_text("mine")
        elsewhere = self.work / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "results.jsonl").write_text("")
        (self.artifacts / "link").symlink_to(elsewhere)
        (self.artifacts / "first" / "out").symlink_to(elsewhere)
        dry = self.call("clean", "--dry-run")
        self.assert_code(dry, 0)
        self.assertIn("would remove", dry.out)
        self.assertTrue((self.artifacts / "first").exists())
        self.assert_code(self.call("clean"), 0)
        self.assertEqual(sorted(path.name for path in self.artifacts.iterdir()), ["link", "notes"])
        self.assertTrue((elsewhere / "results.jsonl").exists())

    def test_what_one_folder_refuses_does_not_keep_the_others(self):
        for name in ("a", "b", "c"):
            self.run_pairs("ch90:good", flags=("--run-id", name))
        (self.artifacts / "b/.lock").unlink()
        (self.artifacts / "b/.lock").mkdir()
        finished = self.call("clean")
        self.assert_code(finished, 4)
        self.assertEqual([path.name for path in self.artifacts.iterdir()], ["b"])
        self.assert_one_error_line(finished, "artifacts/b is not removed")
        self.assertNotIn("removed artifacts/b", finished.out)
        self.assertIn("removed 2 folders", finished.out)

    def test_of_the_cache_only_what_aisp_put_there(self):
        cache = self.work / "cache/aisp"
        for file in ("peak/host-0123456789abcdef.json", "peak/levels-gpu-0123456789abcdef.json",
                     "peak/links-gpu-0123456789abcdef.json", f"kernels/{'a' * 64}.code", f"kernels/.{'b' * 64}.code.part-x1Y2z3"):
            (cache / file).parent.mkdir(parents=True, exist_ok=True)
            (cache / file).write_text("x")
        elsewhere = self.work / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / f"{'a' * 64}.code").write_text("mine")
        theirs = (".git/config", "src/main.cpp", "peak/notes.json", "README.md", "peak/.hidden/x")
        for file in theirs:
            (cache / file).parent.mkdir(parents=True, exist_ok=True)
            (cache / file).write_text("mine")
        dry = self.call("clean", "--dry-run")
        self.assertIn(f"would remove {cache} (5 B)", dry.out)
        self.assertEqual(sum(path.is_file() for path in cache.rglob("*")), 10)
        finished = self.call("clean")
        self.assert_code(finished, 0)
        self.assertIn(f"kept what is not of aisp's making in {cache}: .git, README.md, peak/.hidden, peak/notes.json, src\n", finished.out)
        self.assertEqual(sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()), sorted(theirs))
        again = self.call("clean")
        self.assertIn("nothing to remove", again.out)
        (cache / "kernels").symlink_to(elsewhere)
        self.call("clean")
        self.assertTrue((elsewhere / f"{'a' * 64}.code").exists(), "a link was followed")

    def test_nothing_there(self):
        finished = self.call("clean")
        self.assert_code(finished, 0)
        self.assertIn("nothing to remove", finished.out)

    def test_leaves_a_running_run_alone(self):
        process = self.start("run", "-t", "ch91:hang_in_verify", "--run-id", "busy")
        try:
            deadline = time.monotonic() + 20
            while not (self.artifacts / "busy" / "manifest.json").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            finished = self.call("clean")
            self.assertIn("in use", finished.out)
            self.assertTrue((self.artifacts / "busy").exists())
        finally:
            process.terminate()
            process.communicate(timeout=30)


if __name__ == "__main__":
    unittest.main()
