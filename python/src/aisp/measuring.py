# SPDX-License-Identifier: Apache-2.0
"""aisp.bench: measures functions against one another as the command aisp measures its pairs, in this process."""
import dataclasses
import hashlib
import inspect
import itertools
import math
import numbers
import pathlib
import re
import sys
import typing

from aisp import arrays, library
from aisp.results import Error, Failed, Result


@dataclasses.dataclass(frozen=True)
class Variant:
    """A function with what else aisp must know of it; a function alone is Variant(function)."""

    run: typing.Callable
    prepare: typing.Optional[typing.Callable] = None  # once before it and after constants change, outside of what is timed
    changes_precision: bool = False  # computes with fewer bits than the baseline
    quantized: typing.Optional[typing.Callable] = None  # reference on the operands as this variant rounds them
    tolerance: object = None  # instead of the pair's
    computes_output: bool = True  # False: a control that leaves work out, and is not compared


def sum_of(terms):
    """The tolerance of outputs that are each a sum of so many terms.

    It is relative to the outputs' norm. A single sum of terms of both signs can come out near zero by chance, and then no rounding
    error is small beside it: give such a function terms of one sign, or more than one sum to make.
    """
    return {"reduction": int(terms)}


def bench(name, *, inputs, baseline, optimized, reference, sizes=None, outputs=None, constants=None, updates=(), controls=None, libraries=None,
          lesson=None, tolerance=None, cost=None, teaches=None, group="python", bound=None, cache="cold", start="released", unordered=(),
          quiet=False, **settings):
    """Measures `baseline` and the functions of `optimized` in random alternation, checks every result, writes a run like `aisp run`.

    inputs(seed)    new inputs: an array, a list or a dict of arrays of numpy, torch, cupy or numba; where they are, the work is done
    sizes           {"n": [4096, 65536]}: one run with a result at each of them, or at each combination of several; inputs and constants
                    get them by name, as inputs(seed, n), and tolerance and cost may be functions of them
    constants(seed) the same for what stays from run to run (weights), behind the inputs among the arguments
    outputs         empty arrays, or a function of the inputs that makes them: functions then write them, as last arguments, and
                    return nothing. Without it functions return their results
    reference       function of the same arguments (without outputs) that computes the outputs in float64; "baseline": the baseline,
                    called with float64 inputs
    optimized       a function, or {"name": function} in the order of their steps; `lesson` names the one whose speedup counts, the last
                    unless given. A function may be a Variant. controls, libraries: likewise
    updates         names of inputs that the work changes in place; they are compared too
    tolerance       None: what the types allow; a relative error; "exact"; aisp.sum_of(terms)
    cost            {"bytes", "flops", "math", ...} at least; bytes are those of all inputs and outputs unless given
    quiet           prints nothing; the result has it all
    settings        those of `aisp run`: iterations=50, budget=10, seed=1, profile="minimal", run_id="mine", artifacts_dir=...

    Returns a Result. Raises aisp.Failed where a variant was wrong, aisp.Error where nothing could be measured.
    """
    words = {"name": name, "group": group, "teaches": teaches or "", "lesson": lesson or "", "bound": bound or "", "cache": cache, "start": start}
    for what, word in words.items():
        if not isinstance(word, str):
            raise Error(f"the {what} is {word!r}; it must be a string")
    variants = _variants(baseline, optimized, controls, libraries)
    subjects = [_Subject(name, at, inputs, constants, outputs, updates, unordered, reference, variants) for at in _points(name, sizes)]
    declared = [subject.declare(group=group, teaches=teaches, lesson=lesson, tolerance=_tolerance(subject.at_sizes(tolerance)),
                                cost=_cost(subject.at_sizes(cost) or {}), bound=bound, cache=cache, start=start) for subject in subjects]
    declaration = {"points": declared, "gpu": subjects[0].gpu_name, "command_line": ["python", *map(_utf8, sys.argv)],
                   "settings": {key.replace("_", "-"): _setting(value) for key, value in settings.items()}}
    subject = _Points(subjects)
    caller = library.Caller(subject)
    try:
        answer = library.measure(declaration, caller)
    finally:
        subject.leave()
    if caller.raised is not None and not isinstance(caller.raised, Exception):
        raise caller.raised  # an interrupt
    if "error" in answer:
        raise Error(f"{name}: {answer['error']}", answer["status"]) from caller.raised
    result = Result(answer)
    if not quiet:
        for line in answer["notes"]:
            print(f"aisp: {line}", file=sys.stderr)
        print(f"{result.text}Reports: {result.folder}")
    if answer["status"] != 0:
        raise Failed(result) from caller.raised
    return result


def _points(name, sizes):
    """Each combination of the sizes, the last changing fastest."""
    sizes = sizes or {}
    if not isinstance(sizes, dict):
        raise Error(f'{name}: sizes is {sizes!r}; it is a dict of lists, as {{"n": [4096, 65536]}}')
    lists = {}
    for size, values in sizes.items():
        values = [values] if isinstance(values, int) else list(values)
        if not re.fullmatch("[a-z][a-z0-9_]*", str(size)):
            raise Error(f"{name}: the size {size!r} must be lower case, digits and underscores")
        if not values or len(set(values)) != len(values) or any(isinstance(value, bool) or not isinstance(value, int) or value < 1 for value in values):
            raise Error(f"{name}: the size {size} is {values!r}; it is a list of whole numbers from 1, each once")
        lists[str(size)] = values
    points = [dict(zip(lists, values)) for values in itertools.product(*lists.values())]
    if len(points) > _MOST_POINTS:
        raise Error(f"{name}: sizes has {len(points)} points; {_MOST_POINTS} is the most")
    several = sorted(size for size, values in lists.items() if len(values) > 1)
    return [_Sizes("_".join(f"{size}_{at[size]}" for size in several), at) for at in points]


_MOST_POINTS = 256  # as of `aisp run --size`


class _Sizes(typing.NamedTuple):
    case: str  # what tells the point from others; empty where there is one
    values: dict


def _utf8(word):
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _is_amount(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 <= value < math.inf


def _cost(given):
    amounts = {"bytes", "flops", "host_bytes", "host_to_device", "device_to_host", "dependent_kernels", "seconds"}
    for what, amount in given.items():
        if what not in amounts | {"math"}:
            raise Error(f"there is no cost {what!r}; they are math, {', '.join(sorted(amounts))}")
        if not (isinstance(amount, str) if what == "math" else _is_amount(amount)):
            raise Error(f"the cost {what!r} is {amount!r}; it must be {'a string' if what == 'math' else 'a number from 0 on'}")
    return {what: amount if what == "math" else float(amount) for what, amount in given.items()}


def _setting(value):
    if "\0" in str(value):
        raise Error(f"the setting {value!r} holds a NUL character")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tolerance(given):
    if given is None:
        return {}
    if isinstance(given, str) and given == "exact":
        return {"exact": True}
    if isinstance(given, dict) and set(given) == {"reduction"}:
        return given
    if _is_amount(given):
        return {"within": [float(given), 0.0]}
    if isinstance(given, (tuple, list)) and len(given) == 2 and all(map(_is_amount, given)):
        return {"within": [float(given[0]), float(given[1])]}
    raise Error(f'tolerance is {given!r}; it is None, a relative error, "exact" or aisp.sum_of(terms)')


def _named(given, role):
    if given is None:
        return []
    if not isinstance(given, dict):
        function = given.run if isinstance(given, Variant) else given
        own = getattr(function, "__name__", "")
        given = {own if re.fullmatch("[a-z][a-z0-9_]*", own) else role: given}
    named = []
    for name, variant in given.items():
        variant = variant if isinstance(variant, Variant) else Variant(variant)
        if not callable(variant.run):
            raise Error(f"{role} {name!r} is a {type(variant.run).__name__}; it must be a function or an aisp.Variant")
        named.append((str(name), role, variant))
    return named


def _variants(baseline, optimized, controls, libraries):
    first = _named(baseline, "baseline")
    steps = _named(optimized, "optimized")
    if len(first) != 1 or not steps:
        raise Error("aisp.bench needs one baseline and at least one optimized function")
    return first + steps + _named(controls, "control") + _named(libraries, "library")


def _listed(made, what):
    """[(name, array)] of what a user's function gave: an array, a list or tuple, or a dict of them."""
    if isinstance(made, dict):
        return [(str(name), arrays.of_number(array)) for name, array in made.items()]
    if isinstance(made, (list, tuple)):
        return [(f"{what} {number}", arrays.of_number(array)) for number, array in enumerate(made)]
    return [(what, arrays.of_number(made))]


class _Points:
    """What libaisp calls: the subject of the point that it measures at the moment."""

    def __init__(self, subjects):
        self._subjects, self._now = subjects, subjects[0]

    def placed(self, number, buffers):
        self.leave()
        self._now = self._subjects[number]
        self._now.placed(buffers)

    def leave(self):
        self._now.leave()

    def __getattr__(self, name):
        return lambda *arguments: getattr(self._now, name)(*arguments)


class _Subject:
    """The pair at one choice of its sizes."""

    def __init__(self, name, sizes, inputs, constants, outputs, updates, unordered, reference, variants):
        if reference == "baseline":
            reference = self._widened_baseline
        if not callable(inputs) or not callable(reference):
            raise Error(f"{name}: inputs and reference are functions: inputs(seed) makes new ones, reference(*inputs) computes the outputs in "
                        'float64, or "baseline" stands for the baseline')
        self._name, self._sizes, self._reference, self._variants = name, sizes, reference, variants
        self._given_outputs = outputs
        self._factories = [lambda seed: inputs(seed, **sizes.values), lambda seed: constants(seed, **sizes.values) if constants else []]
        self._made = [[], []]  # the last inputs and constants
        self._ready = set()  # variants that ran before: what compiles at the first call has done so
        self._returned, self._listed, self._owners, self._references = None, [], [], {}
        self._model(outputs, set(updates), set(unordered))

    def _model(self, outputs, updates, unordered):
        """What buffers are needed, by a first look at everything."""
        groups = [_listed(factory(0), what) for factory, what in zip(self._factories, ("input", "constant"))]
        given = [array for group in groups for _, array in group]
        self._inputs = [(name, arrays.describe(array, f"{self._name}: {name}"), number == 1)
                        for number, group in enumerate(groups) for name, array in group]
        if not any(not constant for *_, constant in self._inputs):
            raise Error(f"{self._name}: inputs(seed) gave nothing")
        self._demand_other_inputs([array for _, array in groups[0]])
        unknown = (updates | unordered) - {name for name, *_ in self._inputs} - ({"output"} | {f"output {k}" for k in range(32)})
        unknown |= updates - {name for name, _, constant in self._inputs if not constant}
        if unknown:
            raise Error(f"{self._name}: there is no input {sorted(unknown)[0]!r}; they are {', '.join(name for name, *_ in self._inputs)}")
        self._updates, self._unordered = updates, unordered
        self.returns_results = outputs is None and not updates
        if outputs is None and not updates:
            outputs = self._variants[0][2].run(*given)
            if outputs is None:
                raise Error(f"{self._name}: {self._variants[0][0]} returned nothing; return the results, or give outputs= for functions that "
                            "write them, or updates= for inputs that they change")
        made = outputs(*given) if callable(outputs) else outputs
        self._outputs = [(name, arrays.describe(array, f"{self._name}: {name}")) for name, array in (_listed(made, "output") if made is not None else [])]
        places = {described.on_gpu for _, described, *_ in [*self._inputs, *self._outputs]}
        gpus = {described.gpu for _, described, *_ in [*self._inputs, *self._outputs]}
        if len(places) > 1 or len(gpus) > 1:
            raise Error(f"{self._name}: all inputs and outputs must lie in one place, the host or one GPU")
        self.on_gpu, self.gpu = places.pop(), gpus.pop()
        self.gpu_name = str(self.gpu) if self.on_gpu else ""
        self._stream = arrays.Stream(self.gpu)

    def at_sizes(self, given):
        """A value, or what a function of the sizes says it is here."""
        return given(**self._sizes.values) if callable(given) else given

    def _demand_other_inputs(self, first):
        """Few bits of inputs are equal by chance, but not sixteen times."""
        before = [arrays.snapshot(array) for array in first]
        for seed in range(1, 17):
            if not before or not arrays.same_contents(before, [array for _, array in _listed(self._factories[0](seed), "input")]):
                return
        raise Error(f"{self._name}: inputs(seed) gives the same for every seed; draw them from the seed, or nobody could tell a result from one "
                    "that was kept")

    def declare(self, *, group, teaches, lesson, tolerance, cost, bound, cache, start):
        steps = [name for name, role, _ in self._variants if role == "optimized"]
        lesson = lesson or steps[-1]
        moved = sum(described.bytes * (2 if name in self._updates else 1) for name, described, *_ in [*self._inputs, *self._outputs])
        buffers = [self._buffer(name, described, "inout" if name in self._updates else "input", constant)
                   for name, described, constant in self._inputs]
        buffers += [self._buffer(name, described, "output", False) for name, described in self._outputs]
        files, digest = _code([variant.run for *_, variant in self._variants])
        roles = {role: [self._variant(name, variant) for name, its, variant in self._variants if its == role]
                 for role in ("baseline", "optimized", "control", "library")}
        return {"group": group, "name": self._name, "file": files, "digest": digest, "lesson": lesson,
                "teaches": teaches or f"what {lesson} gains over {self._variants[0][0]}",
                "device": "gpu" if self.on_gpu else "host", "sizes": self._sizes.values, "case": self._sizes.case,
                "bound": bound or ("memory" if self.on_gpu else "host"), "cache": cache, "start": start,
                "tolerance": tolerance, "cost": {"bytes" if self.on_gpu else "host_bytes": moved, "math": "fp32", **cost},
                "buffers": buffers, "returns_results": self.returns_results,
                "baseline": roles["baseline"][0], "optimized": roles["optimized"], "controls": roles["control"],
                "libraries": roles["library"]}

    def _buffer(self, name, described, role, constant):
        return {"name": name, "role": role, "type": described.type, "element_bytes": described.element_bytes, "count": described.count,
                "constant": constant, "unordered": name in self._unordered}

    @staticmethod
    def _variant(name, variant):
        declared = {"name": name, "changes_precision": variant.changes_precision, "computes_output": variant.computes_output}
        if variant.tolerance is not None:
            declared["tolerance"] = _tolerance(variant.tolerance)
        return declared

    # What libaisp calls, in the order of src/foreign/calls.hpp.

    def placed(self, buffers):
        wanted = [*(described for _, described, _ in self._inputs), *(described for _, described in self._outputs)]
        self._places = [(buffers[number], described.bytes) for number, described in enumerate(wanted)]
        passed = self._inputs if self.returns_results else wanted
        self._arguments = [arrays.view(described, buffers[number]) for number, described in enumerate(wanted[:len(passed)])]

    def make_inputs(self, constant, seed, contents):
        listed = _listed(self._factories[constant](seed), "constant" if constant else "input")
        wanted = [(name, described) for name, described, its in self._inputs if its == bool(constant)]
        if [name for name, _ in listed] != [name for name, _ in wanted]:
            raise Error(f"{'constants' if constant else 'inputs'}(seed) gave {', '.join(name for name, _ in listed)}, before it gave "
                             f"{', '.join(name for name, _ in wanted)}")
        for number, ((name, array), (_, before)) in enumerate(zip(listed, wanted)):
            contents[number] = _matching(array, before, f"{name} of a new seed").address
        self._made[constant] = [array for _, array in listed]

    def prepare(self, number, stream):
        self._enter(stream)
        name, _, variant = self._variants[number]
        if variant.prepare is not None:
            variant.prepare(*self._arguments[:len(self._inputs)])
        if name not in self._ready:
            self._ready.add(name)
            variant.run(*self._arguments)

    def run(self, number, stream):
        if stream is not None and stream != self._stream.address:
            self._enter(stream)
        self._returned = self._variants[number][2].run(*self._arguments)

    def results(self, number, contents):
        name, _, variant = self._variants[number]
        if not variant.computes_output:
            return
        listed = self._listed = _listed(self._returned, "output") if self._returned is not None else []
        if len(listed) != len(self._outputs):
            raise Error(f"{name} returned {len(listed)} arrays, the baseline {len(self._outputs)}")
        for index, ((_, array), (output, before)) in enumerate(zip(listed, self._outputs)):
            found = _matching(array, before, f"{output} of {name}")
            for place, size in self._places[:len(self._inputs)]:
                if found.address < place + size and place < found.address + found.bytes:
                    raise Error(f"{output} of {name} lies in an input; compute into memory of its own, or name the input in updates=")
            contents[index] = found.address
        self._returner = name

    def copied(self, ours):
        self._owners = [arrays.Owner(array) for _, array in self._listed]
        self._returned, self._listed = None, []
        for index, owner in enumerate(self._owners):
            if owner.is_kept(self._owners):
                raise Error(f"{self._returner} returned memory that it keeps, as a result that it handed out before, a part of a table or a "
                            "buffer of its own. aisp writes nothing of yours, and so could not tell a new result from an old one: return a "
                            "new array (.copy()), or write into outputs=")
            ours[index] = owner.may_be_overwritten

    def overwritten(self):
        self._owners = []  # memory that the next run takes again

    def reference(self, number, contents):
        variant = self._variants[max(number, 0)][2]
        compute = variant.quantized if number >= 0 and variant.quantized is not None else self._reference
        made = compute(*self._made[0], *self._made[1])
        listed = _listed(made, "output")
        wanted = [(name, described) for name, described, _ in self._inputs if name in self._updates] + self._outputs
        if len(listed) != len(wanted):
            raise Error(f"the reference computed {len(listed)} arrays, but there are {len(wanted)} to compare: "
                             f"{', '.join(name for name, _ in wanted)}")
        kept = self._references[number] = []
        for index, ((_, array), (name, described)) in enumerate(zip(listed, wanted)):
            address, count, keeper = arrays.as_float64(array, f"the reference of {name}")
            if count != described.count:
                raise Error(f"the reference of {name} has {count} elements, {name} has {described.count}")
            kept.append(keeper)
            contents[index] = address

    def _widened_baseline(self, *given):
        """The outputs of the baseline where it has twice the digits: its own errors of rounding are not those of the others."""
        wide = [arrays.widened(array) for array in given]
        run, names = self._variants[0][2].run, [name for name, *_ in self._inputs]
        outputs = self._given_outputs
        if self.returns_results:
            return run(*wide)
        made = outputs(*wide) if callable(outputs) else outputs
        out = [arrays.widened(array) for _, array in _listed(made, "output")] if made is not None else []
        run(*wide, *out)
        return [array for name, array in zip(names, wide) if name in self._updates] + out

    def _enter(self, stream):
        if stream is not None:
            self._stream.enter(stream)

    def leave(self):
        self._returned, self._listed, self._owners, self._arguments = None, [], [], []
        self._made, self._references = [[], []], {}
        self._stream.leave()


def _matching(array, before, what):
    found = arrays.describe(array, what)
    if not found.alike(before):
        raise Error(f"{what} is {found}; it was {before}")
    if not found.contiguous:
        raise Error(f"{what} is strided; make it contiguous")
    return found


def _code(functions):
    """The file of the first function, and what identifies the code of all: the text of their files, or their own where there is none."""
    texts, first = [], ""
    for function in functions:
        while not inspect.isroutine(function) and any(hasattr(function, inner) for inner in ("__wrapped__", "fn", "func")):
            function = next(getattr(function, inner) for inner in ("__wrapped__", "fn", "func") if hasattr(function, inner))
        try:
            path = pathlib.Path(inspect.getsourcefile(function) or "")
            text = path.read_text(encoding="utf-8") if path.is_file() else inspect.getsource(function)
        except (TypeError, OSError):
            path, text = pathlib.Path(), f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(type(function)))}"
        first = first or path.name
        if text not in texts:
            texts.append(text)
    return first or "notebook", hashlib.sha256("\0".join(texts).encode()).hexdigest()


def main(measure):
    """Ends a script as the command aisp ends: calls `measure`, says what is wrong in one line, exits with the status."""
    try:
        measure()
    except Error as error:
        print(f"aisp: error: {error}", file=sys.stderr)
        sys.exit(error.status)
