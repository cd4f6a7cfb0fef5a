# SPDX-License-Identifier: Apache-2.0
"""Runs in shards, and what `aisp merge` makes of them or refuses."""
import json
import shutil
import sys
import unittest

from harness import QUICK, SOURCE, EndToEnd, results_log
from schemas import mistakes

PAIRS = ("ch90:good", "ch90:equal", "ch90:shaped", "ch90:tokens")
SELECTION = ("-t", ",".join(PAIRS))


class Shards(EndToEnd):
    def shard(self, number, *flags, command="run", selection=SELECTION, **keywords):
        name = "part_" + number.replace("/", "_of_")
        quick = QUICK if command == "run" else ()
        return self.call(command, *selection, *quick, "--seed", "7", "--shard", number, "--run-id", name, *flags, **keywords)

    def measure(self, count=2, **keywords):
        """The names of all shards' runs."""
        for index in range(1, count + 1):
            self.assert_code(self.shard(f"{index}/{count}", **keywords), 0)
        return [f"part_{index}_of_{count}" for index in range(1, count + 1)]

    def manifest(self, run):
        return json.loads((self.artifacts / run / "manifest.json").read_text())

    def edit(self, run, name, change):
        file = self.artifacts / run / name
        text = file.read_text()
        self.assertNotEqual(text, change(text))
        file.write_text(change(text))

    def on_another_host(self, run):
        manifest = self.manifest(run)
        manifest.update(hostname="other", cpu="Another CPU")
        (self.artifacts / run / "manifest.json").write_text(json.dumps(manifest))

    def refused(self, *runs, words):
        finished = self.call("merge", *runs, "--run-id", "all")
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "cannot merge", *words)
        self.assertFalse((self.artifacts / "all").exists())


class Cut(Shards):
    def test_shards_hold_each_pair_once(self):
        parts = [[pair["target"] for pair in results_log(self.artifacts / run)] for run in self.measure(3)]
        self.assertEqual(sorted(sum(parts, [])), sorted(PAIRS))
        self.assertTrue(all(parts))

    def test_the_task_of_an_array_is_the_default_and_is_told(self):
        tasks = [{"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "5"} for task in (5, 6)]
        pods = [{"JOB_COMPLETION_INDEX": index, "JOB_COMPLETIONS": "2"} for index in "01"]
        for environments in (tasks, pods):
            lists = []
            for index, environment in enumerate(environments, 1):
                own = self.call("run", *SELECTION, "--list", env=environment)
                self.assertRegex(own.err, rf"aisp: shard {index}/2 \({next(iter(environment))}\): \d of 4 pairs, about [\d.]+ s of 24 s\n")
                self.assertEqual(own.out, self.call("run", *SELECTION, "--list", "--shard", f"{index}/2").out)
                lists.append(own.out)
            self.assertNotEqual(*lists)
        whole = self.call("run", *SELECTION, "--list", "--shard", "1/1", env=tasks[0])
        self.assertEqual(whole.out, self.call("run", *SELECTION, "--list").out)

    def test_an_index_without_a_count_runs_everything_and_says_so(self):
        finished = self.call("run", *SELECTION, "--list", env={"JOB_COMPLETION_INDEX": "1"})
        self.assertIn("JOB_COMPLETIONS is not, so all pairs are run here", finished.err)
        self.assertEqual(finished.out, self.call("run", *SELECTION, "--list").out)

    def test_what_is_no_shard(self):
        for number in ("0/2", "3/2", "1/0", "2", "1/2/3", "a/b", "-1/2", "1/99999999999"):
            self.usage_error("run", *SELECTION, "--shard", number, words=("--shard", "must be i/n", number))
        self.usage_error("run", *SELECTION, "--shard", "1/5", words=("4 pairs are selected", "5 shards"))

    def test_a_continued_shard_stays_what_it_was(self):
        self.assert_code(self.shard("1/2"), 0)
        before = results_log(self.artifacts / "part_1_of_2")
        finished = self.call("run", "--resume", "part_1_of_2", env={"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "3"})
        self.assert_code(finished, 0)
        self.assertIn(f"resumed: {len(before)} of {len(before)} pairs were done already", finished.err)
        self.assertEqual(len(results_log(self.artifacts / "part_1_of_2")), len(before))
        finished = self.call("run", "--resume", "part_1_of_2", "--shard", "2/2")
        self.assert_code(finished, 4)
        self.assert_one_error_line(finished, "cannot continue", "shard 1/2")


class Merge(Shards):
    def merge(self, *runs, code=0):
        finished = self.call("merge", *runs, "--run-id", "all")
        self.assert_code(finished, code)
        return finished

    def test_one_run_that_everything_reads(self):
        runs = self.measure()
        self.on_another_host(runs[1])
        expected = {pair["target"]: pair for run in runs for pair in results_log(self.artifacts / run)}
        self.merge(*reversed(runs))
        merged = {pair["target"]: pair for pair in results_log(self.artifacts / "all")}
        self.assertEqual(sorted(merged), sorted(PAIRS))
        manifest = self.manifest("all")
        self.assertEqual(mistakes(manifest, "manifest"), [])
        self.assertEqual([machine["shard"]["index"] for machine in manifest["machines"]], [1, 2])
        self.assertEqual((manifest["cpu"], manifest["seed"], manifest["targets"]), ("", 7, sorted(PAIRS)))
        cpus = {machine["machine"]: machine["cpu"] for machine in manifest["machines"]}
        for target, pair in merged.items():
            self.assertEqual(mistakes(pair, "result"), [])
            own = self.manifest(next(run for run in runs if target in self.manifest(run)["targets"]))
            self.assertEqual(cpus[pair.pop("machine")], own["cpu"])
            self.assertEqual(pair, expected[target])
            self.assertTrue((self.artifacts / "all" / pair["log"]).is_file())
        suite = json.loads((self.artifacts / "all/benchmark_test_results.json").read_text())
        self.assertEqual(mistakes(suite, "suite"), [])
        self.assertEqual([pair["target"] for pair in suite["pairs"]], sorted(PAIRS))
        self.assertIn("other: ", (self.artifacts / "all/benchmark_test_results.md").read_text())
        self.assertIn("Another CPU", (self.artifacts / "all/benchmark_test_results.md").read_text())
        self.read_by_all(runs)

    def read_by_all(self, runs):
        self.assert_code(self.call("analyze", "all", "--update-expectations"), 0)
        recorded = json.loads((self.work / "expectations/host/ch90.json").read_text())
        self.assertEqual({machine["cpu"] for machine in recorded["machines"].values()}, {self.manifest(run)["cpu"] for run in runs})
        analysis = self.call("analyze", "all", "--json", "-")
        self.assert_code(analysis, 0)
        self.assertEqual({row["target"] for row in json.loads(analysis.out)["rows"]}, set(PAIRS))
        self.assertEqual(len({row["machine"] for row in json.loads(analysis.out)["rows"]}), 2)
        compared = self.call("compare", "all", "all")
        self.assert_code(compared, 0)
        self.assertNotIn("only in", compared.out)
        self.assert_code(self.call("report", "all", "--html", "page.html"), 0)
        page = (self.work / "page.html").read_text()
        self.assertIn("Machine other", page)
        self.assert_code(self.call("report", "all", "--html", "public.html", "--public"), 0)
        page = (self.work / "public.html").read_text()
        self.assertIn("Machine machine 2", page)
        self.assertNotIn("Machine other", page)
        finished = self.call("run", "--resume", "all")
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "cannot continue", "aisp merge made it")
        self.assert_code(self.call("merge", *runs, "--run-id", "all"), 2)

    def test_aisp_load(self):
        try:
            import pandas  # noqa: F401
        except ImportError:
            self.skipTest("pandas is not installed")
        runs = self.measure()
        self.on_another_host(runs[1])
        self.merge(*runs)
        sys.path.insert(0, str(SOURCE / "python/src"))
        from aisp import runs as reader
        pairs = reader.load(self.artifacts / "all").pairs
        self.assertEqual(set(pairs["cpu"]), {self.manifest(run)["cpu"] for run in runs})

    def test_machines_of_one_name_stay_apart(self):
        self.merge(*self.measure())
        host = self.manifest("all")["hostname"]
        self.assertEqual({pair["machine"] for pair in results_log(self.artifacts / "all")}, {f"{host} (1/2)", f"{host} (2/2)"})

    def test_verified_shards(self):
        self.merge(*self.measure(command="verify"))
        header = json.loads((self.artifacts / "all/results.jsonl").read_text().splitlines()[0])
        self.assertEqual((header["command"], header["run_id"]), ("verify", "all"))

    def test_a_pair_that_failed_decides_the_status(self):
        selection = ("-t", "ch90:good,ch94:wrong_result")
        for number in ("1/2", "2/2"):
            self.shard(number, selection=selection)
        self.merge("part_1_of_2", "part_2_of_2", code=1)
        (self.work / "expectations").mkdir()
        self.assert_code(self.call("analyze", "all"), 1)

    def test_a_shard_that_ended_early(self):
        runs = self.measure()
        lost = results_log(self.artifacts / runs[1])[-1]["target"]
        self.edit(runs[1], "results.jsonl", lambda text: "".join(text.splitlines(keepends=True)[:-1]))
        finished = self.merge(*runs, code=1)
        self.assert_one_error_line(finished, "1 pair without a result", lost)
        (self.work / "expectations").mkdir()
        analysis = self.call("analyze", "all", "--only", "missing")
        self.assertIn(lost, analysis.out)

    def test_a_merge_that_was_killed_can_be_repeated(self):
        runs = self.measure()
        result = results_log(self.artifacts / runs[0])[0]
        # Takes a moment to copy.
        (self.artifacts / runs[0] / result["target"].replace(":", "_") / "profiles").mkdir(exist_ok=True)
        with open(self.artifacts / runs[0] / result["target"].replace(":", "_") / "profiles/trace", "wb") as trace:
            trace.write(bytes(1 << 28))
        process = self.start("merge", *runs, "--run-id", "all")
        while process.poll() is None and not list(self.artifacts.glob("all/*/*")):
            pass
        process.kill()
        process.communicate()
        self.assertFalse((self.artifacts / "all/results.jsonl").exists(), "killed before it was done")
        self.assert_code(self.call("analyze", "all"), 2)
        self.merge(*runs)
        self.assertEqual(list(self.artifacts.glob("all/.scratch*")), [])
        self.assertEqual(len(results_log(self.artifacts / "all")), len(PAIRS))
        finished = self.call("merge", *runs, "--run-id", "all")
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "artifacts/all exists already")

    def test_a_missing_shard_is_named(self):
        runs = self.measure(3)
        self.refused(runs[0], runs[2], words=("2/3 is missing",))
        self.refused(runs[1], words=("1/3, 3/3 are missing",))

    def test_a_shard_given_twice(self):
        runs = self.measure()
        shutil.copytree(self.artifacts / runs[0], self.artifacts / "again")
        self.refused(*runs, "again", words=("artifacts/part_1_of_2", "artifacts/again", "both shard 1/2"))
        self.refused(runs[0], *runs, words=("both shard 1/2",))

    def test_shards_that_do_not_fit(self):
        runs = self.measure()
        self.assert_code(self.shard("1/3"), 0)
        self.assert_code(self.call("run", "-t", "ch90:good", *QUICK, "--run-id", "whole"), 0)
        both = tuple(f"artifacts/{run}" for run in runs)
        self.refused("part_1_of_3", runs[1], words=("shards 1/3 and 2/2",))
        self.refused("whole", runs[1], words=("artifacts/whole", "no shard"))
        good = (self.artifacts / runs[1] / "manifest.json").read_text()
        manifest = json.loads(good)
        scale = [dict(setting, value="0.5") if setting["name"] == "scale" else setting for setting in manifest["configuration"]]
        for change, words in (({"commit": "0" * 40}, ("other builds", "0" * 40)), ({"dirty": not manifest["dirty"]}, ("other builds", "+changes")),
                              ({"compilers": "cc"}, ("other builds", "cc")), ({"configuration": scale}, ("scale", "0.5")),
                              ({"shard": {**manifest["shard"], "cut": "0" * 16}}, ("cut differently",))):
            with self.subTest(change=list(change)):
                (self.artifacts / runs[1] / "manifest.json").write_text(json.dumps({**manifest, **change}))
                self.refused(*runs, words=(*both, *words))
        (self.artifacts / runs[1] / "manifest.json").write_text(json.dumps({**manifest, "shard": {**manifest["shard"], "index": 9}}))
        self.refused(*runs, words=("there is no shard 9/2",))
        (self.artifacts / runs[1] / "manifest.json").write_text(good)
        self.edit(runs[1], "results.jsonl", lambda text: text.replace('"command":"run"', '"command":"verify"', 1))
        self.refused(*runs, words=("aisp run and of aisp verify",))

    def test_bad_input(self):
        runs = self.measure()
        for arguments, words in ((("merge",), ("RUN",)), (("merge", *runs), ("--run-id",)), (("merge", *runs, "--run-id", "a/b"), ("a/b",)),
                                 (("merge", "nothing", "--run-id", "all"), ("no run 'nothing'",))):
            finished = self.call(*arguments)
            self.assert_code(finished, 2)
            self.assert_one_error_line(finished, *words)
        (self.artifacts / runs[0] / "link").symlink_to("/etc/passwd")
        self.refused(*runs, words=("a link",))
        (self.artifacts / runs[0] / "link").unlink()
        self.merge(*runs)
        self.refused_again(*runs)

    def refused_again(self, *runs):
        finished = self.call("merge", "all", *runs, "--run-id", "more")
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "a merged run itself")


if __name__ == "__main__":
    unittest.main()
