# SPDX-License-Identifier: Apache-2.0
"""libaisp, and the executable that belongs to it: beside this file, and in the folder bin beside the lib that all of this is in; or both
in the folder of a build that AISP_BUILD names. The interface is that of src/foreign/calls.hpp."""
import ctypes
import functools
import json
import os
import pathlib

_PLACED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_MAKE_INPUTS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p))
_WORK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_RESULTS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_TROUBLE = ctypes.CFUNCTYPE(ctypes.c_void_p)


class _Calls(ctypes.Structure):
    _fields_ = [("placed", _PLACED), ("make_inputs", _MAKE_INPUTS), ("prepare", _WORK), ("run", _WORK), ("results", _RESULTS),
                ("reference", _RESULTS), ("trouble", _TROUBLE)]


def _place():
    build = os.environ.get("AISP_BUILD")
    if build:
        return pathlib.Path(build) / "libaisp.so", pathlib.Path(build) / "aisp"
    library = pathlib.Path(__file__).with_name("libaisp.so")
    prefix = next((folder.parent for folder in library.parents if folder.name in ("lib", "lib64")), library.parent)
    return library, prefix / "bin/aisp"


@functools.lru_cache(maxsize=None)
def _load(library):
    loaded = ctypes.CDLL(str(library))
    loaded.aisp_bench.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Calls), ctypes.POINTER(ctypes.c_void_p)]
    loaded.aisp_bench.restype = ctypes.c_int
    loaded.aisp_release.argtypes = [ctypes.c_void_p]
    loaded.aisp_release.restype = None
    return loaded


class Caller:
    """Turns the methods of a subject into the functions that libaisp calls. What one of them raises is kept, told in one line, and ends
    the measuring."""

    def __init__(self, subject):
        self.raised = None
        self._text = ctypes.create_string_buffer(b"")
        self.calls = _Calls(_PLACED(self._guarded(subject.placed)), _MAKE_INPUTS(self._guarded(subject.make_inputs)),
                            _WORK(self._guarded(subject.prepare)), _WORK(self._guarded(subject.run)),
                            _RESULTS(self._guarded(subject.results)), _RESULTS(self._guarded(subject.reference)),
                            _TROUBLE(lambda: ctypes.addressof(self._text)))

    def _guarded(self, method):
        def call(*arguments):
            try:
                method(*arguments)
            except BaseException as error:  # anything else would be lost on the way through C
                self.raised = error
                line = " ".join(f"{type(error).__name__}: {error}".split())
                self._text = ctypes.create_string_buffer(line.encode("utf-8", "replace")[:1000])
                return 1
            return 0
        return call


def measure(declaration, caller):
    """The answer of libaisp to a declaration."""
    library, program = _place()
    for path in (library, program):
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing; reinstall aisp-bench, or name the folder of a build in AISP_BUILD")
    loaded = _load(library)
    answer = ctypes.c_void_p()
    text = json.dumps({**declaration, "program": str(program.resolve())}).encode()
    loaded.aisp_bench(text, ctypes.byref(caller.calls), ctypes.byref(answer))
    try:
        return json.loads(ctypes.string_at(answer))
    finally:
        loaded.aisp_release(answer)
