# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries, by address: what one is, and one of the same kind over given memory. No library is imported that the
caller has not imported."""
import ctypes
import dataclasses
import functools
import gc
import math
import sys
import weakref

from aisp.results import Error

# How numpy and the CUDA array interface write a type, behind the byte order; and torch. Complex numbers are two floats each.
TYPESTRINGS = {"f8": "f64", "f4": "f32", "f2": "f16", "c16": "f64", "c8": "f32", "b1": "u8",
               **{f"{sign}{size}": f"{sign}{8 * size}" for sign in "iu" for size in (1, 2, 4, 8)}}
TORCH_TYPES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
               "complex128": "f64", "complex64": "f32", "bool": "u8",
               **{f"{word}int{bits}": f"{letter}{bits}" for word, letter in (("", "i"), ("u", "u")) for bits in (8, 16, 32, 64)}}
BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1}


@dataclasses.dataclass(frozen=True)
class Description:
    """What aisp must know of an array."""

    library: str  # numpy, torch, cupy, numba, or "" for what only has the CUDA array interface
    address: int
    type: str  # as aisp calls it
    dtype: object  # as the library calls it
    shape: tuple
    lanes: int  # 2 for complex numbers
    on_gpu: bool
    gpu: int
    contiguous: bool

    @property
    def count(self):
        return math.prod(self.shape) * self.lanes

    @property
    def element_bytes(self):
        return BYTES[self.type] if self.type in BYTES else int(self.type[1:]) // 8

    @property
    def bytes(self):
        return self.count * self.element_bytes

    def __str__(self):
        return f"{str(self.dtype).replace('torch.', '')} {list(self.shape)} on the {'GPU' if self.on_gpu else 'host'}"

    def alike(self, other):
        return (self.type, self.lanes, self.shape, self.on_gpu) == (other.type, other.lanes, other.shape, other.on_gpu)


def _library_of(array):
    return (type(array).__module__ or "").partition(".")[0]


def describe(array, what):
    """Of an array of numpy, torch, cupy, numba, or of any other with the CUDA array interface."""
    library = _library_of(array)
    if library == "torch":
        return _describe_torch(array, what)
    if hasattr(array, "__cuda_array_interface__"):
        found = array.__cuda_array_interface__
        gpu = getattr(getattr(array, "device", None), "id", 0)
        return _described(library if library in ("cupy", "numba") else "", found, True, gpu, what)
    if _is_masked(array):
        raise Error(f"{what} is a masked array, of which only the data would be compared; give .filled(), or data and mask as two arrays")
    if hasattr(array, "__array_interface__"):
        return _described("numpy", array.__array_interface__, False, -1, what)
    raise Error(f"{what} is a {type(array).__name__}; it must be an array of numpy, torch, cupy or numba, or have the CUDA array "
                    "interface")


def _is_masked(array):
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(array, masked.MaskedArray)


def of_number(made):
    """A number of numpy as an array, which has a place in memory."""
    numpy = sys.modules.get("numpy")
    return numpy.asarray(made) if numpy is not None and isinstance(made, numpy.generic) else made


def snapshot(array):
    """The contents of an array as they are now, for same_contents(); None where its library does not tell."""
    library = _library_of(array)
    if library == "torch":
        return array.clone()
    if library == "cupy":
        return array.copy()
    return array.tobytes() if hasattr(array, "tobytes") else None


def same_contents(snapshots, arrays):
    """Whether arrays hold what they held when the snapshots were taken."""
    def same(before, array):
        if before is None or getattr(before, "shape", None) != (None if isinstance(before, bytes) else array.shape):
            return False
        if isinstance(before, bytes):
            return before == array.tobytes()
        return sys.modules["torch"].equal(before, array) if _library_of(array) == "torch" else bool((before == array).all())

    return len(snapshots) == len(arrays) and all(same(before, array) for before, array in zip(snapshots, arrays))


def _describe_torch(tensor, what):
    name = str(tensor.dtype).replace("torch.", "")
    if name not in TORCH_TYPES:
        raise Error(f"{what} is of the type {name}, which aisp does not know")
    if tensor.device.type not in ("cuda", "cpu"):
        raise Error(f"{what} is on the device {tensor.device}; it must be on cuda or cpu")
    on_gpu = tensor.device.type == "cuda"
    return _checked(Description("torch", tensor.data_ptr(), TORCH_TYPES[name], tensor.dtype, tuple(tensor.shape),
                                2 if name.startswith("complex") else 1, on_gpu, (tensor.device.index or 0) if on_gpu else -1,
                                tensor.is_contiguous()), what)


def _described(library, interface, on_gpu, gpu, what):
    text, shape = interface["typestr"], tuple(interface["shape"])
    if text[1:] not in TYPESTRINGS or text[0] == ">":
        raise Error(f"{what} is of the type {text}, which aisp does not know")
    size, expected, strides = int(text[2:]), [], interface.get("strides")
    for extent in reversed(shape):
        expected.insert(0, size if not expected else expected[0] * following)
        following = extent
    contiguous = strides is None or all(extent == 1 or stride == want for extent, stride, want in zip(shape, strides, expected))
    return _checked(Description(library, interface["data"][0], TYPESTRINGS[text[1:]], text, shape, 2 if text[1] == "c" else 1, on_gpu, gpu,
                                contiguous), what)


def _checked(described, what):
    if described.count == 0:
        raise Error(f"{what} has no elements")
    return described


class _Memory:
    """Bytes on a GPU, for all who read the CUDA array interface."""

    def __init__(self, address, shape, typestr):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "typestr": typestr, "strides": None, "version": 3,
                                         "stream": None}


def view(like, address):
    """An array of the library, type and shape of `like`, over the memory at the address."""
    if like.library == "torch":
        torch = sys.modules["torch"]
        if like.on_gpu:
            flat = torch.as_tensor(_Memory(address, (like.bytes,), "|u1"), device=f"cuda:{like.gpu}")
        else:
            flat = torch.frombuffer(_host(address, like.bytes), dtype=torch.uint8)
        return flat.view(like.dtype).view(like.shape)
    if like.library == "numpy":
        numpy = sys.modules["numpy"]
        return numpy.frombuffer(_host(address, like.bytes), dtype=like.dtype).reshape(like.shape)
    memory = _Memory(address, like.shape, like.dtype)
    if like.library == "cupy":
        return sys.modules["cupy"].asarray(memory)
    if like.library == "numba":
        return sys.modules["numba"].cuda.as_cuda_array(memory)
    return memory


def _host(address, size):
    return (ctypes.c_uint8 * size).from_address(address)


def as_float64(array, what):
    """(address of float64 values on the host, their number, what keeps them alive); complex numbers are two values each."""
    library = _library_of(array)
    if library == "torch":
        torch = sys.modules["torch"]
        values = array.detach()
        values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
        values = values.to(torch.float64).cpu().contiguous()
        return values.data_ptr(), values.numel(), values
    if library == "cupy":
        array = sys.modules["cupy"].asnumpy(array)
    elif hasattr(array, "copy_to_host"):
        array = array.copy_to_host()
    try:
        import numpy
    except ImportError as error:
        raise Error(f"{what} is no tensor of torch, so numpy is needed to read it, and it is not installed", 4) from error
    values = numpy.asarray(array)
    if values.dtype.kind == "c":
        values = numpy.ascontiguousarray(values, dtype=numpy.complex128).view(numpy.float64)
    values = numpy.ascontiguousarray(values, dtype=numpy.float64)
    return values.ctypes.data, values.size, values


def widened(array):
    """The same numbers in float64, or complex128; integers and booleans as they are; always new memory."""
    if _library_of(array) == "torch":
        torch = sys.modules["torch"]
        kind = torch.complex128 if array.is_complex() else torch.float64 if array.is_floating_point() else array.dtype
        return array.detach().to(kind, copy=True)
    if not hasattr(array, "astype"):
        raise Error(f'reference="baseline" cannot widen a {type(array).__name__}; give a function')
    return array.astype({"f": "f8", "c": "c16"}.get(array.dtype.kind, array.dtype))


class Owner:
    """What the memory of a returned array belongs to. It tells when no array of it is left here."""

    def __init__(self, array):
        numpy = sys.modules.get("numpy")
        self.may_be_overwritten, self._held, self._uses = False, None, None
        self._lives = _watched(array)
        if _library_of(array) == "torch":
            self._uses = _uses_of_storages()
            self._held = array.untyped_storage()
            # What torch did not allocate itself, as a numpy array's memory, has a size that it cannot change.
            self.may_be_overwritten = self._uses is not None and self._held.resizable()
        elif numpy is not None and isinstance(array, numpy.ndarray):
            root = array
            while isinstance(root.base, numpy.ndarray):
                root = root.base
            self.may_be_overwritten = root.base is None and root.flags.owndata and root.flags.writeable
            self._held, self._uses = root if root.base is None else root.base, (sys.getrefcount, _references_to_one())

    def is_kept(self, owners):
        """Whether anything but these owners refers to the memory."""
        if self._is_alone(owners):
            return False
        gc.collect()  # what refers to itself in a circle
        return not self._is_alone(owners)

    def _is_alone(self, owners):
        if self._uses is None:
            return self._lives() is None
        count, alone = self._uses
        return count(self._held) <= alone + sum(other is not self and other._holds_the_same(self) for other in owners)

    def _holds_the_same(self, other):
        if _library_of(self._held) == "torch" and _library_of(other._held) == "torch":
            return self._held.data_ptr() == other._held.data_ptr()
        return self._held is other._held


def _watched(array):
    """Says of an array whether it, or the one that it is a view of, is still there once nobody here refers to it."""
    while getattr(array, "base", None) is not None:
        array = array.base
    try:
        return weakref.ref(array)
    except TypeError:
        return lambda: None


class _Holder:
    def __init__(self, held):
        self._held = held

    def count(self, of):
        return of(self._held)


@functools.lru_cache(maxsize=None)
def _references_to_one():
    """What sys.getrefcount says of an object that one attribute refers to, which differs between versions of Python."""
    return _Holder(object()).count(sys.getrefcount)


@functools.lru_cache(maxsize=None)
def _uses_of_storages():
    """How torch counts who uses a storage, and how many that are for one that is held once; None for a version that does not tell."""
    torch = sys.modules["torch"]
    uses = getattr(torch._C, "_storage_Use_Count", None)
    if uses is None:
        return None
    return lambda storage: uses(storage._cdata), uses(torch.empty(1).untyped_storage()._cdata)


_present = [0]


def current_stream():
    """Address of the stream on which a measured function queues its work, for libraries that must be told: cuda.external_stream() of
    numba takes it. PyTorch, Triton and CuPy find it by themselves."""
    return _present[0]


class Stream:
    """Makes a stream of aisp's the current one of the libraries that the caller has imported, until it is left."""

    def __init__(self, gpu):
        self.address = 0
        self._gpu = gpu
        self._leave = []

    def enter(self, address):
        if address == self.address:
            return
        self.leave()
        self.address = _present[0] = address
        torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
        if torch is not None and torch.cuda.is_available():
            before = torch.cuda.current_stream()
            torch.cuda.set_stream(torch.cuda.ExternalStream(address, device=self._gpu))
            self._leave.append(lambda: torch.cuda.set_stream(before))
        if cupy is not None:
            stream = cupy.cuda.ExternalStream(address)
            stream.__enter__()
            self._leave.append(lambda: stream.__exit__(None, None, None))

    def leave(self):
        while self._leave:
            self._leave.pop()()
        if self.address and "torch" in sys.modules:
            # What its allocator keeps for this stream nobody else can use.
            sys.modules["torch"].cuda.empty_cache()
        self.address = _present[0] = 0
