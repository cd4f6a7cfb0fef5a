# SPDX-License-Identifier: Apache-2.0
"""Drives the real executables: AISP (all chapters) and AISP_FIXTURES (the pairs of tests/pairs)."""
import fcntl
import json
import os
import pathlib
import pty
import shutil
import socket
import struct
import subprocess
import tempfile
import termios
import threading
import unittest

SOURCE = pathlib.Path(os.environ.get("AISP_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
AISP = os.environ.get("AISP", str(SOURCE / "build/dev/aisp"))
FIXTURES = os.environ.get("AISP_FIXTURES", str(SOURCE / "build/dev/tests/aisp_fixtures"))

# Quick and the same on every machine: few rounds, a short budget.
QUICK = ["--iterations", "5", "--warmup", "1", "--budget", "0.2s"]

END_OF_TERMINAL = b"\0end of what the terminal was sent\0"


def results_log(folder):
    """results.jsonl without its header: one object a pair. Of a run that goes on, the last line may be there in part."""
    file = folder / "results.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines[1:] if line.endswith("\n")]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Finished:
    def __init__(self, code, out, err, artifacts):
        self.code = code
        self.out = out
        self.err = err
        self.artifacts = artifacts

    @property
    def folder(self):
        folders = [path for path in self.artifacts.iterdir() if path.is_dir()]
        assert len(folders) == 1, f"one run folder expected, found {folders}\n{self.err}"
        return folders[0]

    def lines(self):
        return results_log(self.folder)

    def pair(self, target):
        found = [pair for pair in self.lines() if pair.get("target") == target]
        assert found, f"{target} is not in results.jsonl:\n{self.out}\n{self.err}"
        return found[-1]


class EndToEnd(unittest.TestCase):
    """Each test works in an empty folder of its own."""

    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="aisp-e2e-"))
        self.artifacts = self.work / "artifacts"

    def tearDown(self):
        for path in self.work.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(self.work, ignore_errors=True)

    def environment(self, extra=None):
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "AISP_COLOR", "COLUMNS")}
        environment["AISP_LOCK_DIRECTORY"] = str(self.work / "locks")
        environment["XDG_CACHE_HOME"] = str(self.work / "cache")
        # Each test has an empty cache: on a GPU every run would first measure for seconds.
        environment["AISP_PEAK"] = "off"
        environment["TERM"] = "xterm"
        environment.update(extra or {})
        return environment

    def start(self, *arguments, program=FIXTURES, env=None, **keywords):
        keywords.setdefault("stdout", subprocess.PIPE)
        keywords.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen([program, *arguments], cwd=self.work, env=self.environment(env), stdin=subprocess.DEVNULL,
                                text=True, errors="replace", **keywords)

    def call(self, *arguments, timeout=120, **keywords):
        process = self.start(*arguments, **keywords)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.fail(f"aisp {' '.join(arguments)} did not end\n{out}\n{err}")
        return Finished(process.returncode, out or "", err or "", self.artifacts)

    def pages(self, *flags):
        """Runs scripts/pages in the working folder."""
        return self.call("--root", ".", "--aisp", FIXTURES, *flags, program=str(SOURCE / "scripts/pages"))

    def on_terminal(self, *arguments, width=120, code=0, timeout=60, **keywords):
        """Returns the output on a terminal of that width, with line ends as in a file."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        seen = bytearray()

        def read_to_the_mark():
            while not seen.endswith(END_OF_TERMINAL):
                seen.extend(os.read(master, 65536))

        reader = threading.Thread(target=read_to_the_mark, daemon=True)
        reader.start()
        process = self.start(*arguments, stdout=slave, stderr=slave, **keywords)
        ended = process.wait(timeout)
        # A terminal whose last writer closes it may lose what nobody has read: it stays open until the mark has come through.
        os.write(slave, END_OF_TERMINAL)
        reader.join(timeout)
        self.assertFalse(reader.is_alive(), bytes(seen))
        os.close(slave)
        os.close(master)
        seen = bytes(seen.removesuffix(END_OF_TERMINAL))
        self.assertEqual(ended, code, seen)
        return seen.decode(errors="replace").replace("\r\n", "\n")

    def run_pairs(self, *targets, flags=(), **keywords):
        selection = [word for target in targets for word in ("--targets", target)]
        return self.call("run", *selection, *QUICK, *flags, **keywords)

    def assert_code(self, finished, code):
        self.assertEqual(finished.code, code, f"\n{finished.out}\n{finished.err}")

    def assert_one_error_line(self, finished, *words):
        lines = [line for line in finished.err.splitlines() if line.startswith("aisp: error:")]
        self.assertEqual(len(lines), 1, finished.err)
        for word in words:
            self.assertIn(word, lines[0])

    def usage_error(self, *arguments, words=()):
        finished = self.call(*arguments)
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, *words)
        self.assertEqual(finished.out, "")
        self.assertFalse(self.artifacts.exists(), "a usage error must not leave a run folder")


def problems(pair):
    return " | ".join(problem["message"] + " " + problem.get("advice", "") for problem in pair.get("errors", []))


def everything_said(pair):
    """Reason, problems, warnings and the reasons of variants, for a look whether the truth was told."""
    reasons = [variant.get("reason", "") for variant in pair.get("variants", [])]
    return " | ".join([pair.get("reason", ""), problems(pair), *pair.get("warnings", []), *reasons])


def variant(pair, name):
    return next(variant for variant in pair["variants"] if variant["name"] == name)
