# SPDX-License-Identifier: Apache-2.0
"""Several processes that a launcher started: they are one run with one report and one exit status, whatever happens to one of them.
The variables are torchrun's; test_launchers.py has real launchers."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

from harness import AISP, FIXTURES, QUICK, EndToEnd, Finished, everything_said, free_port
from schemas import mistakes

HOST = socket.gethostname()


def children_of(process):
    try:
        return pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split() or [
            child for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        return []


class Launched(EndToEnd):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.started = []

    def tearDown(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        super().tearDown()

    def begin(self, index, count, *arguments, program=FIXTURES, before=(), **variables):
        """Starts one process of a world; `before`: a command that starts it."""
        environment = {"RANK": str(index), "WORLD_SIZE": str(count), "LOCAL_RANK": str(index), "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(self.port), **variables}
        command = [*before, program, *arguments]
        process = self.start(*command[1:], program=command[0], env=environment)
        self.started.append(process)
        return process

    def end(self, processes, longest_s=240):
        ended = []
        for process in processes:
            out, err = process.communicate(timeout=longest_s)
            ended.append(Finished(process.returncode, out, err, self.artifacts))
        return ended

    def launch(self, count, *targets, command="run", flags=()):
        """Starts processes that are alike and waits for their ends."""
        quick = QUICK if command == "run" else []
        words = [command, *targets, *quick, *flags]
        return self.end([self.begin(index, count, *words) for index in range(count)])

    def assert_codes(self, ended, code):
        for one in ended:
            self.assert_code(one, code)

    def assert_silent(self, others):
        """Only process 0 speaks."""
        for other in others:
            self.assertEqual((other.out, other.err), ("", ""))

    def wait_until(self, condition, longest_s=60):
        end = time.monotonic() + longest_s
        while not condition():
            self.assertLess(time.monotonic(), end, "it did not come about")
            time.sleep(0.02)


class OneRun(Launched):
    def test_one_folder_one_report_one_status(self):
        words = ("run", "ch90:equal", "ch94:two_ranks", "ch94:rank_unsupported", *QUICK)
        first = self.begin(0, 2, *words)

        def rattle():
            try:
                with socket.create_connection(("127.0.0.1", self.port)) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 9)
                return True
            except OSError:
                return False

        self.wait_until(rattle)
        ended = self.end([first, self.begin(1, 2, *words)])
        self.assert_codes(ended, 0)
        self.assert_silent(ended[1:])
        self.assertIn("one run of 2 processes on 1 machine, started by torchrun", ended[0].err)
        for target in ("ch90:equal", "ch94:two_ranks"):
            self.assertEqual(ended[0].pair(target)["status"], "passed", everything_said(ended[0].pair(target)))
        ranks = ended[0].pair("ch94:two_ranks")
        self.assertEqual(ranks["sizes"], {"ranks": 2})
        self.assertTrue((ended[0].folder / (ranks["log"] + ".rank_1")).exists())
        self.assertIn("needs 3 processes, and the launcher started 2", ended[0].pair("ch94:rank_unsupported")["reason"])
        manifest = json.loads((ended[0].folder / "manifest.json").read_text())
        self.assertEqual(mistakes(manifest, "manifest"), [])
        self.assertEqual(manifest["processes"], [HOST, HOST])

    def test_eight_processes_verify(self):
        ended = self.launch(8, "ch94:eight_ranks", "ch94:some_ranks", command="verify")
        self.assert_codes(ended, 0)
        self.assert_silent(ended[1:])
        self.assertEqual(ended[0].pair("ch94:eight_ranks")["sizes"], {"ranks": 8})
        self.assertEqual(ended[0].pair("ch94:some_ranks")["sizes"], {"ranks": 4})

    def test_what_goes_wrong_in_a_rank_costs_its_pair_alone(self):
        bad = {"rank_killed": ("crashed", "rank 1: killed from outside"), "rank_crashed": ("crashed", "SIGABRT"),
               "rank_stopped": ("timeout", "stopped by a signal"), "rank_missing": ("timeout", "rank 1: setup took longer than its limit"),
               "rank_thrown": ("failed", "the link is down"), "rank_lying": ("failed", "rank 1: "), "ranks_apart": ("failed", "went apart"),
               "rank_unsupported": ("skipped", "this rank lacks a fast link"), "rank_slow": ("passed", ""), "rank_late": ("passed", "")}
        targets = [f"ch94:{name}" for name in bad]
        ended = self.launch(3, *targets, "ch94:two_ranks", "ch90:equal", flags=("--timeout-multiplier", "0.1"))
        self.assert_codes(ended, 1)
        self.assert_silent(ended[1:])
        for name, (status, words) in {**bad, "two_ranks": ("passed", "")}.items():
            with self.subTest(pair=name):
                pair = ended[0].pair(f"ch94:{name}")
                self.assertEqual(pair["status"], status, everything_said(pair))
                self.assertIn(words, everything_said(pair))

    def test_machines_with_clocks_of_their_own(self):
        apart = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", "86400")
        if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("unshare --time is not allowed here")
        words = ("run", "ch94:two_ranks", *QUICK)
        ended = self.end([self.begin(0, 2, *words), self.begin(1, 2, *words, before=apart)])
        self.assert_codes(ended, 0)
        self.assertIn("2 processes on 2 machines", ended[0].err)
        pair = ended[0].pair("ch94:two_ranks")
        self.assertEqual(pair["sizes"], {"machines": 2, "ranks": 2})
        times = [metric for each in pair["variants"] for metric in each["metrics"] if metric["name"] == "rank_skew"]
        self.assertLess(min(min(metric["raw"]) for metric in times), 1e4, "microseconds, with clocks that are a day apart")

    def test_each_by_itself(self):
        finished = self.end([self.begin(1, 2, "run", "ch90:equal", *QUICK, "--rendezvous", "none")])[0]
        self.assert_code(finished, 0)
        self.assertEqual(finished.pair("ch90:equal")["status"], "passed")

    def test_the_list_comes_once_and_beside_the_store_of_torchrun(self):
        words = ("run", "ch94:two_ranks", "--list")
        with socket.socket() as store:
            store.bind(("127.0.0.1", self.port))
            store.listen()
            ended = self.end([self.begin(index, 2, *words, TORCHELASTIC_RUN_ID=f"{os.getpid()}") for index in range(2)])
        self.assert_codes(ended, 0)
        self.assertIn("ch94:two_ranks", ended[0].out)
        self.assert_silent(ended[1:])

    def test_interrupted(self):
        words = ("run", "ch94:rank_hung", "ch90:equal", *QUICK)
        processes = [self.begin(index, 2, *words) for index in range(2)]
        self.wait_until(lambda: all(children_of(process) for process in processes) and self.artifacts.exists())
        for process in processes:
            process.send_signal(signal.SIGINT)
        self.assert_codes(self.end(processes, longest_s=60), 130)


class ProcessGone(Launched):
    """A process other than the first dies, or does not go on: pairs that need it say so, all others go on."""
    words = ("run", "ch94:rank_hung", "ch94:two_ranks", "ch90:equal", *QUICK)

    def lose_the_second(self, how, *flags):
        first, second = (self.begin(index, 2, *self.words, *flags) for index in range(2))
        self.wait_until(lambda: children_of(second) and self.artifacts.exists())
        second.send_signal(how)
        ended = self.end([first])[0]
        self.assert_code(ended, 1)
        self.assertEqual(ended.pair("ch90:equal")["status"], "passed")
        self.assertEqual(ended.pair("ch94:rank_hung")["status"], "crashed")
        self.assertEqual(ended.pair("ch94:two_ranks")["reason"], f"rank 1: process 1 on {HOST} is gone")
        return second, ended, ended.pair("ch94:rank_hung")["reason"]

    def test_killed(self):
        _, ended, reason = self.lose_the_second(signal.SIGKILL, "--timeout-multiplier", "0.1")
        self.assertEqual(reason, f"rank 1: process 1 on {HOST} is gone")
        self.hide_the_host(ended.folder)

    def hide_the_host(self, folder):
        """A public report names no host of the run's processes."""
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**manifest, "processes": [HOST, "seventh-node"]}))
        results = (folder / "results.jsonl").read_text()
        (folder / "results.jsonl").write_text(results.replace(f"process 1 on {HOST}", "process 1 on seventh-node"))
        for flags, shown in (((), True), (("--public",), False)):
            self.assert_code(self.call("report", folder.name, "--html", "page.html", *flags), 0)
            self.assertEqual("seventh-node" in (self.work / "page.html").read_text(), shown)

    def test_stopped(self):
        second, _, reason = self.lose_the_second(signal.SIGSTOP, "--timeout-multiplier", "0.1")
        self.assertIn(f"process 1 on {HOST} did not answer for 5 s", reason)
        second.send_signal(signal.SIGCONT)
        other = self.end([second])[0]
        self.assert_code(other, 4)
        self.assert_one_error_line(other, "process 0", "is gone", "process 1")

    def test_the_first_is_killed(self):
        processes = [self.begin(index, 2, *self.words) for index in range(2)]
        self.wait_until(lambda: all(children_of(process) for process in processes) and self.artifacts.exists())
        processes[0].kill()
        other = self.end(processes)[1]
        self.assert_code(other, 4)
        self.assert_one_error_line(other, f"process 0 at 127.0.0.1:{self.port} of this run is gone")


class NoRun(Launched):
    """Processes that do not make a run: one clear line of the first, and one status."""
    words = ("run", "ch90:equal", *QUICK, "--rendezvous-timeout", "60s")

    def refused(self, processes, code, *words):
        ended = self.end(processes)
        self.assert_codes(ended, code)
        self.assert_one_error_line(ended[0], *words)
        self.assert_silent(ended[1:])
        self.assertFalse(self.artifacts.exists(), "a run folder is left behind")

    def test_the_port_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", self.port))
            taken.listen()
            finished = self.end([self.begin(0, 2, *self.words)])[0]
        self.assert_code(finished, 4)
        self.assert_one_error_line(finished, f"process 0 cannot listen at 127.0.0.1:{self.port}: Address already in use", "--rendezvous HOST:PORT")

    def test_no_process_0(self):
        finished = self.end([self.begin(1, 2, "run", "ch90:equal", "--rendezvous-timeout", "1s")])[0]
        self.assert_code(finished, 4)
        self.assert_one_error_line(finished, f"process 1 on {HOST} cannot reach 127.0.0.1:{self.port}: Connection refused")

    def test_too_few_come(self):
        words = ("run", "ch90:equal", "--rendezvous-timeout", "3s")
        self.refused([self.begin(index, 4, *words) for index in (0, 2)], 4, "2 of 4 processes did not come", "within 3.0 s: 1, 3;")

    def test_too_many_come(self):
        ended = self.end([self.begin(index, 2, *self.words) for index in range(3)])
        self.assert_codes(ended[:2], 0)
        self.assert_code(ended[2], 4)
        self.assert_one_error_line(ended[2], "RANK is 2 and WORLD_SIZE is 2, which is too small")

    def test_one_number_twice(self):
        self.refused([self.begin(index, 3, *self.words) for index in (0, 1, 1)], 4, "two processes have number 1", HOST)

    def test_another_count(self):
        self.refused([self.begin(0, 2, *self.words), self.begin(1, 3, *self.words)], 4, "process 1 on", "counts 3 processes, process 0 2")

    def test_other_arguments(self):
        other = self.begin(1, 2, *self.words, "--seed", "3")
        self.refused([self.begin(0, 2, *self.words), other], 2, f"process 1 on {HOST} was started as 'aisp run", "--seed 3", "the same arguments")

    def test_another_build(self):
        other = self.begin(1, 2, *self.words, program=os.environ.get("AISP_PART", AISP))
        self.refused([self.begin(0, 2, *self.words), other], 4, f"process 1 on {HOST} is another build of aisp")

    def test_another_secret(self):
        words = ("run", "ch90:equal", "--rendezvous-timeout", "5s")
        first, second = self.begin(0, 2, *words, AISP_RENDEZVOUS_SECRET="one"), self.begin(1, 2, *words, AISP_RENDEZVOUS_SECRET="other")
        ended = self.end([first, second])
        self.assert_codes(ended, 4)
        self.assert_one_error_line(ended[0], "1 of 2 processes did not come", "1 of another job turned away")
        self.assertIn(f"torchrun counts 2 processes; waiting for the others at 127.0.0.1:{self.port}", ended[0].err)
        self.assert_one_error_line(ended[1], "turned away process 1")

    def test_bad_input(self):
        for variables, words in (({"RANK": "first"}, "RANK 'first' must be a whole number"), ({"MASTER_PORT": "x"}, "MASTER_PORT 'x'")):
            finished = self.end([self.begin(0, 2, *self.words, **variables)])[0]
            self.assert_code(finished, 2)
            self.assert_one_error_line(finished, words, "--rendezvous none")
        for flags, words in ((("--rendezvous", "here"), "must be HOST:PORT or none"), (("--rendezvous-timeout", "soon"), "must be a time")):
            finished = self.end([self.begin(0, 2, "run", "ch90:equal", *flags)])[0]
            self.assert_code(finished, 2)
            self.assert_one_error_line(finished, flags[0], words)
