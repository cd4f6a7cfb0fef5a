# SPDX-License-Identifier: Apache-2.0
"""The functions of a pair's files that each of its variants consists of, for reports to show: those that its declaration names, and
those that these name, whatever an overload or a template makes of the names."""
import re
from dataclasses import dataclass

from source_code import (CLOSE, OPEN, after_angles, after_group, after_template_heads, declarations, field_at, function_names, head_of,
                         is_word, members_of, names_of)

LABELS = {"public", "private", "protected"}
NAME_OF_VARIANT = re.compile(r'"([a-z]\w*)"')


@dataclass(eq=False)
class Item:
    """A function with a body, or an alias: a variable, a constant or another name for a type, which stands for what it mentions."""
    keys: set        # the names that lead to it
    mentions: set    # the names in it
    name: str = ""   # a function's
    first: int = 0   # its lines, with the comment above it
    last: int = 0
    is_kernel: bool = False


def names_in(code, qualifiers):
    """The names in tokens, with the namespace or class before them: `launch` of `launch()`, `wide::launch` of `a::wide::launch()`;
    with the qualifiers also as names of their own."""
    return {f"{code[at - 2]}::{token}" if at > 1 and code[at - 1] == "::" and is_word(code[at - 2]) else token
            for at, token in enumerate(code) if is_word(token) and (qualifiers or code[at + 1:at + 2] != ["::"])}


def calls(code):
    """The names in each `call<...>`. A method comes without the rest of its class; arguments of a template bring theirs."""
    return {name for at in range(len(code) - 1) if code[at] == "call" and code[at + 1] == "<"
            for name in names_in(code[at + 1:after_angles(code, at + 1)], False)}


def calls_by_name(code):
    """Names that stand for methods in a file: `NAME = call<...>` and `Variant NAME(...) { return {... call<...> ...}; }`."""
    found = {}
    for at in range(1, len(code) - 3):
        if code[at + 1:at + 4] == ["=", "call", "<"] and code[at - 1] != ".":
            found.setdefault(code[at], calls(code[at + 2:after_angles(code, at + 3)]))
        elif code[at - 1] == "Variant" and code[at + 1] == "(":
            body = after_group(code, at + 1)
            if code[body:body + 1] == ["{"]:
                found.setdefault(code[at], calls(code[body:after_group(code, body)]))
    return found


def names_of_call(code, parenthesis, by_name):
    """The names in `declare<arguments>("VARIANT", ...)`: those in its arguments and in what these, and `declare`, stand for."""
    begin = parenthesis
    if code[begin - 1] == ">":
        depth = 0
        while begin > 0 and (depth or begin == parenthesis):
            begin -= 1
            depth += (code[begin] == ">") - (code[begin] == "<")
    arguments = names_in(code[begin:parenthesis], False)
    found = calls(code[begin:after_group(code, parenthesis)]).union(*(by_name.get(name, ()) for name in arguments | {code[begin - 1]}))
    return (found | arguments) - {"call"} if found else set()


def entry_points(code):
    """By variant the names that lead to what it does, as far as a file declares variants: `.name = "VARIANT"` before a `call<...>`, or
    "VARIANT" as an argument of a function that returns such a declaration. A constant may stand for the text."""
    texts = {code[at - 2]: text for at, text in enumerate(code)
             if at > 2 and code[at - 1] == "=" and code[at - 3] != "." and NAME_OF_VARIANT.fullmatch(text)}
    by_name, found, opened = calls_by_name(code), {}, []
    for at, token in enumerate(code):
        if token in OPEN:
            opened.append(at)
        elif token in CLOSE:
            opened = opened[:-1]
        elif (name := NAME_OF_VARIANT.fullmatch(texts.get(token, token))) and opened and not found.get(name[1]):
            if at > 2 and field_at(code, at - 3) == "name":
                found[name[1]] = calls(code[at:after_group(code, opened[-1])])
            elif code[opened[-1]] == "(":
                found[name[1]] = names_of_call(code, opened[-1], by_name)
    return {name: names for name, names in found.items() if names}


def items_of(code, scopes=(), of_class=()):
    """The functions and aliases of a namespace, or of a class, whose name is `of_class`, in their order."""
    opened, found = list(scopes), []
    for declaration in declarations(code):
        while declaration[0] in LABELS and len(declaration) > 2:
            declaration = declaration[2:]
        head = head_of(declaration)
        outside = head[after_template_heads(head):]
        if declaration[-1] == "{":
            opened.append(declaration[-2])
        elif declaration == ["}"]:
            opened = opened[:-1]
        elif braces := members_of(declaration):
            names = names_of(declaration)
            found += items_of(declaration[braces[0] + 1:braces[1]], (*opened, *names), names)
        elif len(head) < len(declaration) and "operator" not in head and (names := function_names(outside)):
            name, *classes = names
            if name in {*of_class, *classes}:  # a constructor
                continue
            found.append(Item({name, *of_class, *(f"{scope}::{name}" for scope in (*opened, *classes))},
                              names_in([token for token in declaration if token is not name], True),
                              name, declaration[0].comment, declaration[-1].last, "__global__" in head))
        elif names := names_of(declaration):
            found.append(Item(names, (names_in(declaration, True) | set(filter(is_word, declaration))) - names))
    return found


def initialized_members(code):
    """The members that constructors initialise with what stands in braces, as aliases of that."""
    for at in range(1, len(code) - 1):
        if code[at].endswith("_") and code[at + 1] == "{" and code[at - 1] in {",", ":"}:
            value = code[at + 1:after_group(code, at + 1)]
            yield Item({code[at]}, names_in(value, True) | set(filter(is_word, value)))


def reached(items, names):
    """The items that the names lead to, and those that their mentions lead to."""
    by_key, found, waiting, known = {}, set(), list(names), set(names)
    for item in items:
        for key in item.keys:
            by_key.setdefault(key, []).append(item)
    while waiting:
        for item in by_key.get(waiting.pop(), ()):
            if item not in found:
                found.add(item)
                waiting += item.mentions - known
                known |= item.mentions
    return found


def functions(files, tokens_of):
    """By file its functions with bodies as lines, `kernel GAP LINES NAME` or `function GAP LINES NAME`: the gap is counted from the last
    line of the one before. The first file, the pair's own, has its variants too, `variant NAME BITS`, with a bit for each function of
    all files."""
    items = {file: items_of(tokens_of(file)) for file in files}
    aliases = [item for file in files for item in [*items[file], *initialized_members(tokens_of(file))] if not item.name]
    own = {file: [item for item in items[file] if item.name] for file in files}
    everything = [item for file in files for item in own[file]]
    lines = {file: [f"{'kernel' if item.is_kernel else 'function'} {item.first - before} {item.last - item.first + 1} {item.name}"
                    for before, item in zip([0, *(item.last for item in items)], items)] for file, items in own.items()}
    variants = {}
    for file in files:
        variants = entry_points(tokens_of(file)) | variants
    for variant, names in variants.items():
        shown = reached(everything, names)
        # For an engine that is a member, or a table of kernels, the kernels that it launches are enough.
        if not any(item.is_kernel for item in shown):
            shown |= {item for item in reached(everything + aliases, names) if item.is_kernel}
        lines[files[0]].append(f"variant {variant} {''.join('01'[item in shown] for item in everything)}")
    return lines
