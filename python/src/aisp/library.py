# SPDX-License-Identifier: Apache-2.0
"""libaisp, and the executable that belongs to it: beside this file, and in the folder bin beside the lib that all of this is in; or both
in the folder of a build that AISP_BUILD names. The interface is that of src/foreign/calls.hpp."""
import contextlib
import ctypes
import functools
import json
import os
import pathlib
import signal
import threading

from aisp.results import Error

_PLACED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_MAKE_INPUTS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p))
_WORK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_RESULTS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_COPIED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint8))
_OVERWRITTEN = ctypes.CFUNCTYPE(ctypes.c_int)
_TROUBLE = ctypes.CFUNCTYPE(ctypes.c_void_p)


class _Calls(ctypes.Structure):
    _fields_ = [("placed", _PLACED), ("make_inputs", _MAKE_INPUTS), ("prepare", _WORK), ("run", _WORK), ("results", _RESULTS),
                ("copied", _COPIED), ("overwritten", _OVERWRITTEN), ("reference", _RESULTS), ("trouble", _TROUBLE)]


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
        self._inside = self._interrupted = False
        self._text = ctypes.create_string_buffer(b"")
        self.calls = _Calls(_PLACED(self._guarded(subject.placed)), _MAKE_INPUTS(self._guarded(subject.make_inputs)),
                            _WORK(self._guarded(subject.prepare)), _WORK(self._guarded(subject.run)),
                            _RESULTS(self._guarded(subject.results)), _COPIED(self._guarded(subject.copied)),
                            _OVERWRITTEN(self._guarded(subject.overwritten)),
                            _RESULTS(self._guarded(subject.reference)),
                            _TROUBLE(lambda: ctypes.addressof(self._text)))

    def _guarded(self, method):
        def call(*arguments):
            try:
                self._inside = True
                if self._interrupted:
                    raise KeyboardInterrupt
                method(*arguments)
                self._inside = False
            except BaseException as error:  # anything else would be lost on the way through C
                self._inside = False
                self.raised = error
                line = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
                self._text = ctypes.create_string_buffer(" ".join(line.split()).encode("utf-8", "replace")[:1000])
                return 1
            return 0
        return call

    @contextlib.contextmanager
    def interruptible(self):
        """Ctrl-C raises KeyboardInterrupt in functions of the caller, and out of here where it comes between them: raised on the way
        through C it would be lost. Where the caller handles it in another way, or in another thread, nothing changes."""
        def interrupt(number, frame):
            self._interrupted = True
            if self._inside:
                self._inside = False
                raise KeyboardInterrupt

        ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ours:
            signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            if ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._interrupted:
            raise KeyboardInterrupt


def measure(declaration, caller):
    """The answer of libaisp to a declaration."""
    library, program = _place()
    for path in (library, program):
        if not path.is_file():
            raise Error(f"{path} is missing; reinstall aisp-bench, or name the folder of a build in AISP_BUILD", 4)
    loaded = _load(library)
    answer = ctypes.c_void_p()
    text = json.dumps({**declaration, "program": str(program.resolve())}).encode()
    try:
        with caller.interruptible():
            loaded.aisp_bench(text, ctypes.byref(caller.calls), ctypes.byref(answer))
        return json.loads(ctypes.string_at(answer))
    finally:
        loaded.aisp_release(answer)
