# SPDX-License-Identifier: Apache-2.0
"""Command lines that say nothing, or two things at once, are refused before anything is measured."""
import subprocess
import unittest

from harness import FIXTURES, EndToEnd


class Refusals(EndToEnd):
    def test_an_empty_word_is_no_value(self):
        """As "$UNSET" is one: not the default, not zero, not nothing at all."""
        for command, *options in (("run", "--resume", "--gpus", "--size", "--percentiles", "--config", "--json", "--threshold", "--targets",
                                   "--artifacts-dir", "--iterations", "--expectations-dir"),
                                  ("verify", "--gpus", "--json"), ("analyze", "--threshold", "--junit", "--json", "--output-csv", "--artifacts-dir"),
                                  ("compare", "--json", "--threshold"), ("estimate", "--tokens-per-second", "--gpus", "--config", "--model"),
                                  ("peak", "--gpu"), ("list-targets", "--chapter"), ("report", "--html"), ("roofline", "--svg", "--hardware"),
                                  ("clean", "--artifacts-dir"), ("doctor", "--artifacts-dir")):
            for option in options:
                with self.subTest(command=command, option=option):
                    self.usage_error(command, option, "", words=(f"empty word behind '{option}'",))
                    self.usage_error(command, f"{option}=", words=(f"empty word behind '{option}='",))
        self.usage_error("compare", "", "b", words=("empty word behind 'compare'",))
        self.usage_error("", words=("empty word behind 'aisp'",))

    def test_numbers_are_told_in_words_of_ours(self):
        for arguments in (("analyze", "--threshold", "five"), ("compare", "a", "b", "--threshold", "five"), ("peak", "--gpu", "five"),
                          ("peak", "--gpu", "1.5"), ("estimate", "--batch", "five"), ("estimate", "--layers", " 5"), ("run", "--gate", "--threshold", "0x5")):
            with self.subTest(arguments):
                self.usage_error(*arguments, words=(f"{arguments[-2]} '{arguments[-1]}' must be a",))
        self.usage_error("run", "--list=x", words=("--list 'x' must be true or false",))
        self.usage_error("report", "a", "--html", "--public=x", words=("--public 'x' must be true or false",))

    def test_what_contradicts_itself_is_refused(self):
        for arguments in (("run", "--resume", "latest", "--run-id", "y"), ("run", "--dry-run", "--json", "-"), ("run", "--dry-run", "--list"),
                          ("run", "--threshold", "3"), ("run", "--gate", "--update-expectations"), ("analyze", "--history", "--update-expectations"),
                          ("analyze", "--history", "--junit", "x"), ("analyze", "--update-expectations", "--json", "-"),
                          ("analyze", "--update-expectations", "--strict"), ("analyze", "--all"), ("report", "--check")):
            with self.subTest(arguments):
                options = [word for word in arguments if word.startswith("--")]
                self.usage_error(*arguments, words=(options[-1],))
        for first, second, place in (("--json", "--output-csv", "-"), ("--junit", "--json", "out.xml")):
            self.usage_error("analyze", first, place, second, place, words=(first, second, "both write to"))

    def test_gpus_that_no_machine_has_are_refused_by_list_too(self):
        for gpus in ("-1", "0-7", "zz", ","):
            with self.subTest(gpus):
                self.usage_error("run", "-t", "ch90:good", "--list", f"--gpus={gpus}", words=("--gpus", "as in 0,2 or GPU-1b2c"))

    def test_commands_of_aisps_own(self):
        for command in ("__child", "__peak"):
            for text in ("", "{", "[]", "{}"):
                with self.subTest(command, text=text):
                    done = subprocess.run([FIXTURES, command, "1"], input=text, capture_output=True, text=True, timeout=60, check=False)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertRegex(done.stderr, r"^aisp: error: (?!internal).*\n$")

    def test_a_folder_that_is_made_for_a_file_is_told(self):
        finished = self.call("run", "-t", "ch90:good", "--list", "--json", "no/such/x.json")
        self.assert_code(finished, 0)
        self.assertEqual(finished.err, "aisp: made the folder no/such\n")
        coloured = self.call("run", "-t", "ch90:good", "--list", "--json", "a\x1b[31mb\nc/x.json")
        self.assertEqual(coloured.err, "aisp: made the folder a [31mb c\n", "a name paints nothing and begins no line")
        self.assertEqual(self.call("run", "-t", "ch90:good", "--list", "--json", "no/such/y.json").err, "")

    def test_of_options_given_twice_the_last_counts(self):
        finished = self.call("run", "-t", "ch90:good", "--list", "--color", "pink", "--color", "never", "--json", "a.json", "--json", "b.json")
        self.assert_code(finished, 0)
        self.assertEqual(sorted(path.name for path in self.work.glob("*.json")), ["b.json"])
        self.assert_code(self.call("compare", "a", "b", "c"), 2)

    def test_a_place_that_cannot_be_looked_at_is_told_by_its_name(self):
        (self.work / "circle").symlink_to("circle")
        for arguments in (("run", "-t", "ch90:good", "--artifacts-dir", "circle"), ("compare", "circle", "circle")):
            finished = self.call(*arguments)
            self.assertIn(finished.code, (2, 4))
            self.assert_one_error_line(finished, "circle")
            self.assertNotIn("internal", finished.err)

    def test_a_present_folder_that_is_gone_is_told(self):
        for words in ("run -t ch90:good", "new sums --host"):
            with self.subTest(words):
                done = subprocess.run(["sh", "-c", f'mkdir gone && cd gone && rmdir ../gone && exec "$0" {words}', FIXTURES], cwd=self.work,
                                      env=self.environment(), capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertEqual(done.stderr.splitlines()[-1], "aisp: error: the present folder cannot be told (No such file or directory); "
                                                               "change into one that exists")

    def test_names_of_the_self_test(self):
        self.usage_error("selftest", "zeroes", words=("'zeroes'; near it: zeros",))
        self.usage_error("selftest", "%%", words=("'%%'; docs/method.md lists the families",))

    def test_names_of_runs(self):
        for name, words in (("-x", "beginning with"), ("--", "beginning with"), ("latest", "newest"), ("a" * 300, "300 letters long, 200 at most"),
                            (".x", "beginning with"), ("a b", "names one folder")):
            with self.subTest(name):
                self.usage_error("run", "-t", "ch90:good", f"--run-id={name}", words=(words,))


if __name__ == "__main__":
    unittest.main()
