# SPDX-License-Identifier: Apache-2.0
"""The pairs of a tree as their files declare them."""
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cmake/code"))
from source_code import after_group, after_initializer, field_at, tokens


@dataclass
class Pair:
    chapter: str
    name: str
    path: Path
    lesson: str = ""
    baseline: str = ""
    steps: list = field(default_factory=list)    # names of the optimized variants, in their order
    over: dict = field(default_factory=dict)     # of a step: the variant that .gains_over names
    best_of: dict = field(default_factory=dict)  # of a variant: those of .best_of, among which it calls itself the fastest
    cases: list = field(default_factory=list)    # of the sweep

    @property
    def target(self):
        return f"{self.chapter}:{self.name}"

    def before(self, step):
        place = self.steps.index(step)
        return self.steps[place - 1] if place else self.baseline

    def gains_over(self, step):
        return self.over.get(step) or self.before(step)


def words_of(code):
    """The string literals of tokens, without the quotes."""
    return [token[1:-1] for token in code if token.startswith('"')]


def with_constants(code):
    """The tokens with the names of texts replaced by the texts."""
    texts = {code[at]: code[at + 2] for at in range(1, len(code) - 2)
             if code[at].isidentifier() and code[at - 1] != "." and code[at + 1] in ("=", "{") and code[at + 2].startswith('"')}
    return [token if before == "." else texts.get(token, token) for before, token in zip([""] + code, code)]


def outside(code):
    """The tokens that stand in no brackets."""
    at, found = 0, []
    while at < len(code):
        if code[at] in "([{":
            at = after_group(code, at)
        else:
            found.append(code[at])
            at += 1
    return found


def end_of_field(code, at):
    """The place after the `.name = value` that begins at `at`: commas of template arguments end no value."""
    end = after_initializer(code, at)
    while end < len(code) and (plain := outside(code[at:end])).count("<") > plain.count(">"):
        end = after_initializer(code, end - 3)
    return end


def fields_of(code):
    """(name, tokens of its value) of each `.name = value` of an aggregate, without those inside of its values."""
    at, found = 0, []
    while at < len(code):
        name = field_at(code, at)
        if name:
            end = end_of_field(code, at)
            found.append((name, code[at + 3:end]))
            at = end
        else:
            at += 1
    return found


def elements_of(code):
    """The tokens of each element of `variants({{...}, helper<a, b>("name")})`: commas of template arguments end none."""
    at = code.index("{") + 1 if "{" in code else len(code)
    begin, found = at, []
    while at < len(code) and code[at] != "}":
        if code[at] == "," and words_of(code[begin:at]):
            found.append(code[begin:at])
            begin = at = at + 1
        else:
            at = after_group(code, at) if code[at] in "([{" else at + 1
    return found + [code[begin:at]]


def name_of(element):
    """Returns a variant's name: the value of its `.name`, or the first text among the arguments of the function that makes it."""
    named = dict(fields_of(element[1:-1])).get("name") if element[:1] == ["{"] else None
    return next(iter(words_of(named if named else element)), "")


def sets_of(variants):
    sets = {name_of(variant): [word for key, value in fields_of(variant[1:-1]) if key == "best_of" for word in words_of(value)]
            for variant in variants if variant[:1] == ["{"]}
    return {name: members for name, members in sets.items() if members}


def read_pair(path):
    pair = Pair(path.parent.name, path.stem, path)
    code = with_constants(tokens(path.read_text()))
    head = next((at for at in range(len(code) - 3) if code[at:at + 2] == ["const", "Pair"] and code[at + 3] == "{"), None)
    if head is None:
        return None
    body = code[head + 4:after_group(code, head + 3) - 1]
    for name, value in fields_of(body):
        if name in ("baseline", "optimized", "controls", "libraries"):
            pair.best_of.update(sets_of([value] if name == "baseline" else elements_of(value)))
        if name == "lesson":
            pair.lesson = "".join(words_of(value))
        elif name == "baseline":
            pair.baseline = name_of(value)
        elif name == "optimized":
            for element in elements_of(value):
                step = name_of(element)
                if not step:
                    raise ValueError(f"{path}: the name of a step is no text that stands in the file")
                pair.steps.append(step)
                for key, over in fields_of(element[1:-1] if element[:1] == ["{"] else element):
                    if key == "gains_over":
                        pair.over[step] = "".join(words_of(over))
        elif name == "sweep":
            pair.cases = words_of(value)[::2] or ["named elsewhere"]
    return pair


def pairs_of_sources(root):
    files = sorted(path for path in (root / "chapters").glob("ch??/*") if path.suffix in (".cu", ".cpp"))
    return [pair for pair in map(read_pair, files) if pair]
