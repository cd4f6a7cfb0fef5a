# SPDX-License-Identifier: Apache-2.0
"""The host's part of a pair as its source says it: the tokens of its file, and of the headers that it includes those declarations
that it can reach by name. Comments and layout are no tokens; functions of the GPU alone count by their instructions instead
(device_code.py). Nor does what a pair says of its variants, nor what it reports beside their times, nor which sizes it takes beside
the full ones, nor what only refuses arguments: none of it changes what runs."""
import functools
import re
from pathlib import Path

TOKEN = re.compile(r"""
    (?P<skip> //(?:[^\n\\]|\\.|\\\n)*  |  /\*.*?\*/  |  \s+  |  \\\n )
  | (?P<directive> ^[ \t]*\#(?:[^\n\\]|\\\n|\\.)* )
  | (?P<text> (?:u8|[uUL])?R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"  |  (?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"  |  (?:u8|[uUL])?'(?:[^'\\\n]|\\.)+' )
  | (?P<number> \.?\d(?:[eEpP][+-]|'?[\w.])* )
  | (?P<word> [A-Za-z_]\w* )
  | (?P<sign> <<= | \.\.\. | ->\*? | \+\+ | -- | << | && | \|\| | :: | [-+*/%&|^=!<]= | . )
""", re.X | re.S | re.M)
OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
INCLUDE = re.compile(r"""^[ \t]*\#[ \t]*include[ \t]*(?:"([^"]+)"|<(aisp/(?:libraries/[^>]+|graph\.hpp))>)""", re.M)
# Files that a pair names in its text and its strings, to have them compiled or linked at run time.
NAMED = re.compile(r"[\w/]+\.(?:cuh|hpp|cu)\b")
ANY_INCLUDE = re.compile(r"""^[ \t]*\#[ \t]*include[ \t]*["<]([^">]+)[">]""", re.M)
GPU_ONLY = {"__device__", "__global__", "__constant__"}
# Fields of a pair, its variants and its outputs that do not count: words, which of them is what, what is checked or reported
# besides the measurement, and the cases of a sweep, whose recorded points name their sizes.
SAID = {"teaches", "lesson", "gains_over", "edges", "same_bits_as", "best_of", "groups", "kernels", "sweep", "timeline"}
# Fields of a size that limit its values.
LIMITS = {"multiple", "least", "most"}
ROLES = {"optimized", "controls", "libraries"}
# Statements that throw where nothing can be computed from what is given, and do nothing else.
REFUSAL = "refuse_unless"
TYPES = {"struct", "class", "union", "enum"}
# Their parentheses are not those of a function's parameters.
ATTRIBUTES = {"alignas", "__launch_bounds__", "decltype", "noexcept", "requires", "__attribute__", "explicit", "__align__"}


class Token(str):
    """A token of a file's text with its first and last line, and the first of a comment directly above it, else its own."""
    first = last = comment = 0


def tokens(text):
    found, line, comment = [], 1, 0
    for match in TOKEN.finditer(text):
        kind, token = match.lastgroup, match.group()
        begin = line
        line += token.count("\n")
        if kind == "mark":
            kind = "text"
        if kind == "skip":
            if token[0] != "/":
                comment = 0 if line - begin > 1 else comment
            elif not comment and not text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip():
                comment = begin
            continue
        if kind == "directive":
            token = " ".join(re.sub(r"//.*|/\*.*?\*/|\\\n", " ", token, flags=re.S if "/*" in token else 0).split())
            # A header's contents count, not its place.
            if re.match(r"# ?(include|pragma once)\b", token):
                comment = 0
                continue
        found.append(Token(token))
        found[-1].first, found[-1].last, found[-1].comment, comment = begin, line, comment or begin, 0
    return found


def without_words(code):
    """The tokens without a pair's sentence, its lesson, its variants' roles, what is only checked, the cases of its sweep, and its
    metrics, unless one of them is what it is judged by."""
    kept, at, judged_by_time = [], 0, "judged_by" not in code
    while at < len(code):
        field = field_at(code, at)
        if judged_by_time and code[at:at + 3] == ["void", "metrics", "("]:
            at = after_body(code, at)
        elif field in ROLES:
            at += 3
        elif field in SAID:
            at = after_initializer(code, at)
        else:
            kept.append(code[at])
            at += 1
    return [token for token, following in zip(kept, kept[1:] + [""]) if (token, following) != (",", "}")]


def without_limits(code):
    """The tokens without the limits of sizes, in a pair and in headers that declare sizes for several."""
    kept, at, end_of_sizes = [], 0, 0
    while at < len(code):
        if code[at:at + 3] == ["sizes", "(", "{"]:
            end_of_sizes = after_group(code, at + 1)
        if at < end_of_sizes and field_at(code, at) in LIMITS:
            at = after_initializer(code, at)
            if code[at:at + 1] == ["}"] and kept[-1] == ",":
                kept.pop()
        else:
            kept.append(code[at])
            at += 1
    return kept


def without_refusals(code):
    """The tokens without statements that only refuse arguments: a run that ends is the same without them."""
    kept, at = [], 0
    while at < len(code):
        end = after_group(code, at + 1) if code[at:at + 2] == [REFUSAL, "("] else at
        if end > at and code[end:end + 1] == [";"]:
            at = end + 1
        else:
            kept.append(code[at])
            at += 1
    return kept


def field_at(code, at):
    """The name in `.name =` that begins at `at`; "" where nothing of the kind does."""
    return code[at + 1] if code[at] == "." and code[at + 2:at + 3] == ["="] else ""


def after_initializer(code, at):
    """The place behind the `.name = value` that begins at `at` and a comma behind that."""
    at += 3
    while at < len(code) and code[at] not in {",", "}"}:
        at = after_group(code, at) if code[at] in OPEN else at + 1
    return at + (code[at:at + 1] == [","])


def after_body(code, at):
    """The place behind the body of the function, or behind the semicolon of the declaration, that begins at `at`."""
    while at < len(code) and code[at] not in {"{", ";"}:
        at = after_group(code, at) if code[at] in OPEN else at + 1
    return at + 1 if code[at:at + 1] == [";"] else after_group(code, at)


def is_word(token):
    return token[0].isalpha() or token[0] == "_"


def after_group(code, at):
    """The place behind the bracket that closes the one at `at`."""
    depth = 0
    while at < len(code):
        depth += (code[at] in OPEN) - (code[at] in CLOSE)
        at += 1
        if depth == 0:
            break
    return at


def after_angles(code, at):
    """The place behind the `>` that closes the `<` at `at`."""
    depth = 0
    while at < len(code):
        if code[at] in OPEN:
            at = after_group(code, at)
            continue
        depth += (code[at] == "<") - (code[at] == ">")
        at += 1
        if depth == 0:
            break
    return at


def after_template_heads(code):
    at = 0
    while at < len(code) and code[at] == "template" and code[at + 1:at + 2] == ["<"]:
        at = after_angles(code, at + 1)
    return at


def declarations(code):
    """Splits the tokens of a namespace or a class into declarations; of a namespace inside, the head and the last brace are two."""
    begin = at = 0
    while at < len(code):
        token = code[at]
        if token.startswith("#"):
            if at == begin:
                yield [token]
                begin = at + 1
            at += 1
        elif token == ";" or token == "}" and at == begin:
            yield code[begin:at + 1]
            begin = at = at + 1
        elif token == "{" and "namespace" in code[begin:begin + 2]:
            yield code[begin:at + 1]
            begin = at = at + 1
        elif token in OPEN:
            at = after_group(code, at)
            # A body ends a declaration unless more of it follows: a declarator, a second initializer, a body behind initializers.
            if token == "{" and (at >= len(code) or code[at] not in {";", ",", "{", ")", "(", "="}):
                yield code[begin:at]
                begin = at
        else:
            at += 1
    if begin < len(code):
        yield code[begin:]


def head_of(declaration):
    """Returns the part before the first brace outside of parentheses."""
    at = 0
    while at < len(declaration) and declaration[at] != "{":
        at = after_group(declaration, at) if declaration[at] in OPEN else at + 1
    return declaration[:at]


def names_of(declaration):
    """The names that a declaration of a namespace introduces; nothing when that is not plain, or it acts without being named."""
    code = declaration[after_template_heads(declaration):]
    head = head_of(code)
    if not head or "operator" in head or head[0].startswith("#"):
        return set()
    if head[0] in {"using", "concept"}:
        return {code[1]} if len(code) > 2 and is_word(code[1]) and code[2] == "=" else set()
    for place, token in enumerate(head):
        if token in TYPES:
            return type_names(head[place + 1:])
        if token == "(":
            break
    return set(function_names(head)) or variable_names(code)


def type_names(rest):
    at = 0
    while at < len(rest):
        if rest[at] in ATTRIBUTES and rest[at + 1:at + 2] == ["("] or rest[at] == "[":
            at = after_group(rest, at + (rest[at] != "["))
        elif rest[at] in TYPES:
            at += 1
        else:
            return {rest[at]} if is_word(rest[at]) else set()
    return set()


def function_names(head):
    """A function's name and, of a class's method defined outside of the class, the class's."""
    at = 0
    while at < len(head) and head[at] != "=":
        if head[at] == "(" and at > 0:
            if head[at - 1] not in ATTRIBUTES:
                names = [head[at - 1]] if is_word(head[at - 1]) else []
                return names + ([head[at - 3]] if at >= 3 and head[at - 2] == "::" else [])
            at = after_group(head, at)
        else:
            at = after_group(head, at) if head[at] == "[" else at + 1
    return []


def variable_names(code):
    names, at = set(), 0
    while at < len(code):
        follows = code[at + 1] if at + 1 < len(code) else ";"
        if is_word(code[at]) and follows in {"=", "{", "[", ";", ","}:
            names.add(code[at])
        if code[at] == "=":  # to the next declarator
            while at < len(code) and code[at] not in {",", ";"}:
                at = after_group(code, at) if code[at] in OPEN else at + 1
            continue
        at = after_group(code, at) if code[at] in OPEN else at + 1
    return names


def members_of(declaration):
    """The places of the braces around the members of a class; none where it declares something else."""
    head = head_of(declaration)
    word = next((token for token in head[after_template_heads(head):] if token in TYPES or token == "("), "(")
    is_class = word in {"struct", "class", "union"} and len(head) < len(declaration)
    return (len(head), after_group(declaration, len(head)) - 1) if is_class else None


def host_part(declaration):
    """A declaration without what only the GPU runs, or nothing when that is all."""
    outside = head_of(declaration)[after_template_heads(declaration):]
    if not outside or "static_assert" in outside[:1] or declaration[-1] == "{":
        return []
    if GPU_ONLY & set(outside) and "__host__" not in outside:
        return []
    if not (braces := members_of(declaration)):
        return declaration
    begin, end = braces
    members = [token for member in declarations(declaration[begin + 1:end]) for token in host_part(member)]
    return declaration[:begin + 1] + members + declaration[end:]


class Sources:
    """`api`: the folder with aisp/pair.hpp; `shared`: that with headers of several chapters."""

    def __init__(self, root, api, shared):
        self.root, self.api, self.shared = (Path(folder).resolve() for folder in (root, api, shared))
        self.tokens_of = functools.cache(lambda path: tokens(path.read_text()))

    def headers(self, source):
        """The project's own headers that count, each once, sorted."""
        found, open_files = set(), [Path(source).resolve()]
        while open_files:
            file = open_files.pop()
            for own, api in INCLUDE.findall(file.read_text()):
                places = [self.api / api] if api else [file.parent / own, self.shared / own]
                header = next((place.resolve() for place in places if place.is_file()), None)
                if header and header not in found:
                    found.add(header)
                    open_files.append(header)
        return sorted(found)

    def named(self, source):
        """Files that are compiled at run time: those that strings of the pair and of its headers name, and what these include."""
        source = Path(source).resolve()
        chapters, found = source.parent.parent, set()
        waiting = [(source, name) for file in [source, *self.headers(source)] for token in self.tokens_of(file) if '"' in token
                   for name in NAMED.findall(token)]
        while waiting:
            includer, name = waiting.pop()
            places = [includer.parent / name, includer.parent.parent / name, chapters / name, self.shared / name, self.api / name]
            file = next((place.resolve() for place in places if place.is_file()), None)
            if file and file != source and file not in found:
                found.add(file)
                waiting += [(file, included) for included in ANY_INCLUDE.findall(file.read_text())]
        return sorted(found)

    def shown(self, source):
        """Returns the files that a reader is shown: the pair's file and the chapters' headers, not the API's."""
        return [Path(source).resolve()] + [file for file in sorted({*self.headers(source), *self.named(source)})
                                           if self.api not in file.parents]

    def host_code(self, source):
        """Text that is equal for equal code: the file's tokens, then what it reaches in headers, wherever that stands."""
        own = without_refusals(without_words(without_limits(self.tokens_of(Path(source).resolve()))))
        known = {token for token in own if is_word(token)}
        waiting = [(names_of(part), part) for header in self.headers(source)
                   for part in map(host_part, declarations(without_refusals(without_limits(self.tokens_of(header)))))
                   if part not in ([], [";"], ["}"])]
        reached = []
        while True:
            new = [part for names, part in waiting if not names or names & known]
            if not new:
                break
            waiting = [(names, part) for names, part in waiting if names and not names & known]
            known.update(token for part in new for token in part if is_word(token))
            reached += new
        # No object file holds what is compiled at run time: all of its text counts.
        later = [" ".join(self.tokens_of(file)) for file in self.named(source)]
        return "\n".join([" ".join(own), *sorted(" ".join(part) for part in reached), *sorted(later)])
