# SPDX-License-Identifier: Apache-2.0
"""Documents name only what exists: pairs, files, headings, commands and their flags; pictures need nothing from outside."""
import os
import re
import unittest
import unittest.mock
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from constants import CONSTANTS
from figures import EVIDENCE, TIMELINE_FIGURE, without_source
from tree import FENCE, INLINE, SOURCE, TemporaryTree, blank, run

AISP = os.environ.get("AISP", "")

LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]:\s*(\S+)", re.M)
SHELLS = ("bash", "sh", "console")
TARGET = re.compile(r"\b(ch\d\d):([a-z][a-z0-9_]*)\b(?!\*)")
COMMENT = re.compile(r"(^|\s)#.*$", re.M)
# Up to what ends a command: a pipe, a list, a redirection.
COMMAND = re.compile(r"(?:^|[\s(])(?:\S*/)?aisp[ \t]+([^\s|;&>][^\n|;&>]*)")
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
PICTURE = re.compile(r"\]\(([^()\s:]+\.svg)\)<!-- picture:\s+([^>]*?)\s+-->")
# A file or folder of the tree; patterns and placeholders are none. A name in a folder of src or a class, with its last part.
PATH = re.compile(r"(?:src|include|scripts|cmake|selftest|tests)/[a-z0-9_./-]+")
QUALIFIED = re.compile(r"(?:(?:aisp|base|cli|evidence|machine|measure|pair|peak|profile|report|run|suite|verify|[A-Z]\w*)::)+(\w+)")
NOTHING_MEASURED = re.compile(r"^<!-- measured: begin -->\n<!-- measured: end -->$", re.M)


def pages(root):
    chapters = sorted((root / "chapters").glob("ch??/README.md"))
    return sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md")) + sorted((root / ".github").rglob("*.md")) + chapters


def readmes(root):
    """Returns the READMEs of the tree and of the chapters."""
    return [page for page in pages(root) if page.name == "README.md" and (page.parent == root or page.parent.parent.name == "chapters")]


def pairs(root):
    """Pairs by chapter folder."""
    found = {}
    for path in sorted((root / "chapters").glob("ch??/*")):
        if path.suffix in (".cu", ".cpp"):
            found.setdefault(path.parent, set()).add(path.stem)
    return found


def prose(text):
    return INLINE.sub("", FENCE.sub("", text))


def pictures(root):
    """Pictures of the tree, without what builds and runs leave there."""
    return sorted(path for top in root.iterdir() if top.is_dir() and top.name[0] != "." and top.name not in ("build", "artifacts")
                  for path in top.rglob("*.svg"))


def marked_pictures(root):
    """Returns the comment after its link for each picture that the README of the tree or of a chapter shows."""
    return {page.parent / name: what for page in [root / "README.md", *sorted((root / "chapters").glob("*/README.md"))] if page.exists()
            for name, what in PICTURE.findall(page.read_text())}


def pictures_without_source(root):
    """Pictures that nothing draws from evidence and nobody says are drawn by hand: those of a chapter are marked in its README, and a
    timeline lies beside the folder of its traces."""
    marked = marked_pictures(root)
    return [str(picture.relative_to(root)) for picture in pictures(root)
            if picture not in marked and not list(picture.with_suffix("").glob("*.trace.json"))]


def figures_without_source(root):
    """PAGE:LINE: FIGURE of each figure in a README's prose and in its tables, and in a picture drawn by hand, that says neither what
    recorded it nor why nothing did."""
    found = []
    by_hand = [picture for picture, what in marked_pictures(root).items() if what.startswith("drawn by hand") and picture.exists()]
    evidence = [root / page for page in EVIDENCE if (root / page).exists()]
    for page in readmes(root) + evidence + by_hand:
        name, text = str(page.relative_to(root)), page.read_text()
        found += [f"{name}:{line}: {words}" for line, words in without_source(text, name)]
    return found


def missing_places(root):
    """PAGE: NAME of each path below a folder of the tree, and each qualified C++ name, that a page names and that is not there."""
    words = re.compile(r'//.*|"(?:[^"\\\n]|\\.)*"')
    code = "\n".join(words.sub("", path.read_text()) for top in ("src", "include") for path in sorted((root / top).rglob("*.?*")))
    found = []
    for page in pages(root):
        for span in INLINE.findall(FENCE.sub("", page.read_text())):
            path, name = PATH.fullmatch(span), QUALIFIED.fullmatch(span)
            if path and not (root / span).exists() or name and not re.search(rf"\b{name.group(1)}\b", code):
                found.append(f"{page.relative_to(root)}: {span}")
    return found


def untold_messages(root):
    """Messages in quotes, first cells of the tables of docs/troubleshooting.md, that the program does not print."""
    literals = re.compile(r'"\s*\n\s*(?:base::\w+\(.*\) \+ )?"')
    program = "\n".join(literals.sub("", path.read_text()) for path in sorted((root / "src").rglob("*.?pp")))
    cells = re.findall(r"^\| (.*?) \|", (root / "docs/troubleshooting.md").read_text(), re.M)
    return [quote for cell in cells for quote in re.findall(r'"([^"]+)"', cell) if quote not in program]


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def broken_links(root):
    """PAGE: TARGET of each relative link to a file or a heading that is not there."""
    found = []
    for page in pages(root):
        text = page.read_text()
        for inside, reference in LINK.findall(prose(text)):
            link = inside or reference
            # A chapter's roofline is drawn from the same records as its table, so both come together.
            if re.match(r"[a-z]+:", link) or link == "roofline.svg" and NOTHING_MEASURED.search(text):
                continue
            name, _, heading = link.partition("#")
            path = page.parent / name if name else page
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M) if heading and path.is_file() else []
            if not path.exists() or heading and heading not in map(anchor, headings):
                found.append(f"{page.relative_to(root)}: {link}")
    return found


def untold_pairs(root):
    """Pairs that their chapter's README, where there is one, does not link to with their name."""
    found = []
    for folder, names in pairs(root).items():
        page = folder / "README.md"
        text = page.read_text() if page.exists() else None
        for name in sorted(names):
            if text is not None and not re.search(rf"\[{name}\]\({name}\.(cu|cpp)\)", text):
                found.append(f"{folder.name}:{name}")
    return found


def unknown_targets(root):
    """Targets that a README names and no file defines."""
    known = {f"{folder.name}:{name}" for folder, names in pairs(root).items() for name in names}
    return [f"{page.relative_to(root)}: {match.group()}" for page in readmes(root)
            for match in TARGET.finditer(page.read_text()) if match.group() not in known]


def commands(text):
    """The words behind 'aisp' of each command line in a shell's block or between backquotes."""
    blocks = [COMMENT.sub("", body.replace("\\\n", " ")) for language, body in FENCE.findall(text) if language in SHELLS]
    spans = [span for span in INLINE.findall(FENCE.sub("", text)) if re.match(r"(\S*/)?aisp ", span)]
    return [match.group(1) for part in blocks + spans for match in COMMAND.finditer(part)]


def flags_of(help_text):
    return set(FLAG.findall("\n".join(re.findall(r"^ {1,4}(-\S+)", help_text, re.M))))


def unknown_words(command, help_of):
    """Returns a command's name if help_of() knows no such command, else the flags that its help does not list."""
    words = command.split()
    name = words[0] if words and not words[0].startswith("-") else ""
    if not words or name.isupper():  # a placeholder, as in `aisp COMMAND --help`
        return []
    help_text = help_of(name)
    if help_text is None:
        return [name]
    return [flag for flag in FLAG.findall(command) if flag not in flags_of(help_text)]


def installs_by_name(root):
    """PAGE: COMMAND of each command that would take aisp from a package index, where the name is anybody's."""
    command = re.compile(r"pip3? install [^`\n]*?(?<![\w./-])aisp[\w-]*(?![\w.-]*\.whl)")
    places = pages(root) + sorted((root / "python").rglob("*.md")) + sorted((root / "python").rglob("*.py"))
    return [f"{page.relative_to(root)}: {match}" for page in places for match in command.findall(page.read_text())]


class Documents(unittest.TestCase):
    def test_nobody_is_told_to_install_a_name_that_is_not_ours(self):
        self.assertEqual(installs_by_name(SOURCE), [])

    def test_every_relative_link_leads_somewhere(self):
        self.assertEqual(broken_links(SOURCE), [])

    def test_figures_in_prose_have_a_source(self):
        self.assertEqual(figures_without_source(SOURCE), [],
                         "scripts/pages fills HARDWARE TARGET VARIANT QUANTITY; one <!-- not recorded: why --> may stand before a table")

    def test_figures_of_timelines_stand_in_their_pictures(self):
        quoted = [(" ".join(figure.split()), name) for page in EVIDENCE for figure, name in TIMELINE_FIGURE.findall((SOURCE / page).read_text())]
        self.assertGreater(len(quoted), 6)
        for figure, name in quoted:
            self.assertRegex((SOURCE / f"docs/timelines/{name}.svg").read_text().replace("µs", "us"), rf"(?<![\d.]){re.escape(figure)}", name)

    def test_constants_are_still_there(self):
        for page, constants in CONSTANTS.items():
            words = " ".join((SOURCE / page).read_text().split())
            self.assertEqual([constant for constant in constants if constant not in words], [], page)

    def test_every_picture_says_where_it_is_from(self):
        self.assertGreater(len(pictures(SOURCE)), 6)
        self.assertEqual(pictures_without_source(SOURCE), [], "a picture of a chapter has <!-- picture: ... --> behind its link")

    def test_files_and_functions_exist(self):
        self.assertEqual(missing_places(SOURCE), [])

    def test_troubleshooting_quotes_what_the_program_says(self):
        self.assertGreater((SOURCE / "docs/troubleshooting.md").read_text().count('| "'), 15)
        self.assertEqual(untold_messages(SOURCE), [])

    def test_chapters_tell_of_all_their_pairs(self):
        self.assertTrue([page for page in readmes(SOURCE) if page.parent != SOURCE], "no chapter has a README")
        self.assertEqual(untold_pairs(SOURCE), [])

    def test_targets_exist(self):
        self.assertEqual(unknown_targets(SOURCE), [])

    def test_chapters_have_a_place_for_their_table(self):
        for page in readmes(SOURCE):
            if page.parent == SOURCE:
                continue
            marks = [line for line in page.read_text().splitlines() if line.startswith("<!-- measured")]
            self.assertEqual(marks, ["<!-- measured: begin -->", "<!-- measured: end -->"], page)

    def test_pictures_stand_alone(self):
        for picture in pictures(SOURCE):
            with self.subTest(picture.name):
                root = ElementTree.parse(picture).getroot()
                self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
                text = picture.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
                self.assertNotRegex(text, r"https?:|@import|<script|<image", "it loads something")
                self.assertRegex(text, r"prefers-color-scheme:\s*dark")

    @unittest.skipUnless(AISP and Path(AISP).exists(), "no executable: set AISP")
    def test_commands_and_flags_exist(self):
        helps = {}

        def help_of(name):
            if name not in helps:
                result = run(AISP, *([name] if name else []), "--help")
                helps[name] = result.stdout if result.returncode == 0 else None
            return helps[name]

        checked = 0
        for page in pages(SOURCE):
            for command in commands(page.read_text()):
                checked += 1
                self.assertEqual(unknown_words(command, help_of), [], f"{page.relative_to(SOURCE)}: aisp {command}")
        self.assertGreater(checked, 20)


class Checker(TemporaryTree):
    def test_installs_by_name(self):
        self.write("docs/a.md", "`pip install aisp-bench`\n`pip install -U \"aisp-bench[pandas]\"`\n`pip install ./aisp_bench-0.1.0-py3.whl`\n"
                   "`pip install numpy` and aisp\n")
        self.assertEqual(installs_by_name(self.root), ["docs/a.md: pip install aisp-bench", 'docs/a.md: pip install -U "aisp-bench'])

    def test_links(self):
        self.write("docs/method.md", "# How it is\n## The floor\n")
        self.write("README.md", "[a](docs/method.md) [b](docs/method.md#the-floor) [c](https://example.org/x) `[d](none)`\n[e]: docs\n")
        self.assertEqual(broken_links(self.root), [])
        self.write("README.md", "![a](gone.svg) [b](docs/method.md#the-roof)\n[e]: docs/gone.md\n")
        self.assertEqual(broken_links(self.root), ["README.md: gone.svg", "README.md: docs/method.md#the-roof", "README.md: docs/gone.md"])

    def test_figures(self):
        self.write("README.md", "It takes 4 us, is 3.5x as fast, moves 2\nTB/s (`5 ms`), 95 % interval, sm_90, 2x 3, 7 things\n\n"
                   "```\n1 ms\n```\n4 us<!-- h200 ch07:box wide time -->, 4 us<!-- not recorded: a constant --> and 5 us<!-- h200 ch07:box wide -->\n"
                   "6 us<!-- h200\nch07:box wide time -->, 7 us<!-- not recorded: a constant\nof the 8 ms -->, 9 us<!-- h200\nch07:box -->\n")
        self.assertEqual(figures_without_source(self.root), ["README.md:1: 4 us", "README.md:1: 3.5x", "README.md:1: 2 TB/s", "README.md:7: 5 us",
                                                             "README.md:10: 9 us"])

    def test_figures_named_at_the_end_of_their_paragraph(self):
        self.write("README.md", "It takes 4 us.\n\nIt takes 4 us, 5\nus and 6 us. <!-- not recorded: 4 us, 5 us: a\nconstant -->\n"
                   "- has 4 us\n- has 7 us <!-- not recorded: 7 us: a constant -->\n\n8 us <!-- not recorded: 8 us --> and 9 us\n")
        self.assertEqual(figures_without_source(self.root), ["README.md:1: 4 us", "README.md:4: 6 us", "README.md:6: 4 us", "README.md:9: 8 us",
                                                             "README.md:9: 9 us"])

    def test_figures_of_other_units_and_in_words(self):
        self.write("README.md", "64 KiB, 48 KiB, 128 bytes, 12 bytes, two microseconds, four times as fast, called four times, read twice,\n"
                   "Twice as many, 3 times, 1.2 GHz; 2 GB/s<!-- h200 ch07:box wide bandwidth -->, 2 us<!-- host own:box wide time/64 -->\n"
                   "3.40M tokens/s, 812 draft tokens of a\nlayer/s, 7 rows\n5k rows/s<!-- host own:box a metric:rows -->\n")
        self.assertEqual([line.split(": ")[1] for line in figures_without_source(self.root)],
                         ["48 KiB", "12 bytes", "two microseconds", "four times as", "Twice as", "3 times", "1.2 GHz",
                          "3.40M tokens/s", "812 draft tokens of a layer/s"])

    def test_figures_in_tables(self):
        rows = "| what | time |\n| --- | --- |\n| a | 4 us |\n| b | 5 us<!-- not recorded: a constant --> |\n"
        self.write("README.md", f"{rows}\n<!-- not recorded: once,\non a GPU -->\n{rows}\n<!-- not recorded: -->\n\n{rows}\n"
                   f"<!-- measured: begin -->\n{rows}<!-- measured: end -->\n")
        self.assertEqual(figures_without_source(self.root), ["README.md:3: 4 us", "README.md:17: 4 us"])

    def test_gains_in_tables_of_steps_are_generated(self):
        self.write("README.md", "| step | gain over the step before | why |\n| --- | --- | --- |\n| `a` | H100 1.42x, over `b` | in 4 us |\n")
        self.assertEqual(figures_without_source(self.root), ["README.md:3: 4 us"])

    def test_changes_of_metrics(self):
        self.write("README.md", "`page_faults` falls from 33000\nto 64. `a` rose from 16 to 24<!-- not recorded: once -->, `b` goes from 3\n"
                   "to 4 ms<!-- not recorded: once -->. Set `c` to 1 or 8; `c`: 1 to 64; `d` grows from 5<!-- h200 ch07:box wide metric:d -->\n"
                   "to 6<!-- h200 ch07:box tall metric:d -->, from 7 to 8\n")
        self.assertEqual(figures_without_source(self.root), ["README.md:1: 33000 to 64"])

    def test_constants_are_told_by_the_words_around_them(self):
        self.write("README.md", "Wait 3\ns at most. It took 3 s, and 13 s at\nmost, and 3 s at most.\n")
        with unittest.mock.patch.dict(CONSTANTS, {"README.md": {"3 s at most": "a limit"}}):
            self.assertEqual(figures_without_source(self.root), ["README.md:2: 3 s", "README.md:2: 13 s"])

    def test_figures_in_pictures_drawn_by_hand(self):
        self.write("chapters/ch07/README.md", "![a](a.svg)<!-- picture: drawn by hand: why not -->\n![b](b.svg)<!-- picture: speedups h200 -->\n")
        for name in "ab":
            self.write(f"chapters/ch07/{name}.svg", "<style>a{1 s}</style>\n<text>3 ms<!-- host ch07:box wide time --></text>\n<text>4 ms</text>\n")
        self.assertEqual(figures_without_source(self.root), ["chapters/ch07/a.svg:3: 4 ms"])

    def test_pictures(self):
        self.write("chapters/ch07/README.md", "![a](a.svg)<!-- picture:\nspeedups h200 -->\n![b](b.svg)\n")
        for path in ("chapters/ch07/a.svg", "chapters/ch07/b.svg", "docs/x.svg", "docs/timelines/y.svg", "docs/timelines/y/t.trace.json",
                     "build/z.svg"):
            self.write(path, "")
        self.assertEqual(pictures_without_source(self.root), ["chapters/ch07/b.svg", "docs/x.svg"])

    def test_places(self):
        self.write("src/run/child.cpp", "void Child::live();")
        self.write("docs/a.md", "`src/run/child.cpp`, `src/run`, `src/walk`, `tests/NAME.cpp`, `run::live`, `Child::die`, `std::live`\n```\n`src/x`\n```\n")
        self.assertEqual(missing_places(self.root), ["docs/a.md: src/walk", "docs/a.md: Child::die"])

    def test_messages(self):
        self.write("src/run/child.cpp", 'throw Error{"the cat sat on "\n            "the mat"};')
        self.write("docs/troubleshooting.md", '| "the cat sat on the mat" | why |\n| "the dog" or "the mat" | "no quote" |\n')
        self.assertEqual(untold_messages(self.root), ["the dog"])

    def test_roofline_comes_with_the_table(self):
        self.write("chapters/ch07/README.md", "[r](roofline.svg)\n<!-- measured: begin -->\n<!-- measured: end -->\n")
        self.assertEqual(broken_links(self.root), [])
        self.write("chapters/ch07/README.md", "[r](roofline.svg)\n<!-- measured: begin -->\n| box |\n<!-- measured: end -->\n")
        self.assertEqual(broken_links(self.root), ["chapters/ch07/README.md: roofline.svg"])

    def test_pairs_and_targets(self):
        self.write("chapters/ch07/box.cu", "")
        self.write("chapters/ch07/box_wide.cpp", "")
        self.write("chapters/ch08/other.cu", "")
        self.write("chapters/ch07/README.md", "[box_wide](box_wide.cpp), ch07:box, ch07:box* and ch07:bax\n")
        self.assertEqual(untold_pairs(self.root), ["ch07:box"])
        self.assertEqual(unknown_targets(self.root), ["chapters/ch07/README.md: ch07:bax"])

    def test_commands(self):
        text = ("```bash\nx --y build/aisp run --targets a \\\n  --seed 3  # aisp --not this\naisp verify | grep --z aisp\n```\n"
                "```cpp\naisp run --none\n```\n`aisp list [--json]`, `aisp`, `see aisp run --far`\n")
        self.assertEqual([command.split() for command in commands(text)],
                         [["run", "--targets", "a", "--seed", "3"], ["verify"], ["list", "[--json]"]])

    def test_flags(self):
        helps = {"run": "Options:\n  -t,--targets TARGET   names, as --bogus does not\n  --seed N  x\n", "": "  --version  v\n"}
        self.assertEqual(unknown_words("run -t a --seed 3", helps.get), [])
        self.assertEqual(unknown_words("run [--bogus] --targets a", helps.get), ["--bogus"])
        self.assertEqual(unknown_words("--version", helps.get), [])
        self.assertEqual(unknown_words("sing --seed", helps.get), ["sing"])
        self.assertEqual(unknown_words("COMMAND --help", helps.get), [])


if __name__ == "__main__":
    unittest.main()
