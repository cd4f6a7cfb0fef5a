# SPDX-License-Identifier: Apache-2.0
"""What aisp.bench makes of arrays, and with which memory it calls back; libraries of GPUs are made up here."""
import ctypes
import sys
import types
import unittest
from unittest import mock

import numpy
from aisp import arrays
from aisp.results import Error


class OnGpu:
    def __init__(self, shape=(2, 3), typestr="<f4", strides=None, address=4096):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "typestr": typestr, "strides": strides, "version": 3}


class Tensor:
    __module__ = "torch"

    def __init__(self, dtype="torch.bfloat16", device="cuda", index=1):
        self.dtype, self.shape = dtype, (4, 5)
        self.device = types.SimpleNamespace(type=device, index=index)

    def data_ptr(self):
        return 8192

    def is_contiguous(self):
        return True


class Describe(unittest.TestCase):
    def test_arrays_of_numpy(self):
        array = numpy.zeros((3, 4), dtype=numpy.int16)
        found = arrays.describe(array, "x")
        self.assertEqual((found.library, found.type, found.count, found.bytes, found.on_gpu, found.contiguous), ("numpy", "i16", 12, 24, False, True))
        self.assertEqual(found.address, array.ctypes.data)
        for other in (array.T, array[:, ::2], numpy.broadcast_to(array[0], (5, 4))):
            self.assertFalse(arrays.describe(other, "x").contiguous)
        for other in (array[1:2], array[:, :1][:1], numpy.zeros((1, 1, 7)), numpy.float32(3)):
            self.assertTrue(arrays.describe(other, "x").contiguous)

    def test_complex_numbers_are_two_values_each(self):
        found = arrays.describe(numpy.zeros(5, dtype=numpy.complex64), "x")
        self.assertEqual((found.type, found.count, found.bytes), ("f32", 10, 40))

    def test_the_cuda_array_interface(self):
        found = arrays.describe(OnGpu(), "x")
        self.assertEqual((found.library, found.type, found.shape, found.on_gpu, found.gpu, found.address), ("", "f32", (2, 3), True, 0, 4096))
        self.assertFalse(arrays.describe(OnGpu(strides=(4, 8)), "x").contiguous)
        self.assertTrue(arrays.describe(OnGpu(strides=(12, 4)), "x").contiguous)

    def test_tensors_of_torch(self):
        found = arrays.describe(Tensor(), "x")
        self.assertEqual((found.library, found.type, found.bytes, found.on_gpu, found.gpu), ("torch", "bf16", 40, True, 1))
        self.assertEqual(str(found), "bfloat16 [4, 5] on the GPU")
        self.assertFalse(arrays.describe(Tensor(device="cpu"), "x").on_gpu)

    def test_what_is_none_is_said(self):
        for given, words in (([1, 2], "x is a list; it must be an array of numpy, torch"), (numpy.zeros(0), "x has no elements"),
                             (numpy.zeros(3, dtype="U4"), "x is of the type <U4"), (numpy.zeros(3, dtype=">f4"), "of the type >f4"),
                             (Tensor("torch.quint8"), "x is of the type quint8"), (Tensor(device="meta"), "on the device")):
            with self.subTest(words), self.assertRaisesRegex(Error, words):
                arrays.describe(given, "x")


class View(unittest.TestCase):
    def test_over_memory_of_the_host(self):
        memory = (ctypes.c_float * 6)(*range(6))
        array = arrays.view(arrays.describe(numpy.zeros((2, 3), dtype=numpy.float32), "x"), ctypes.addressof(memory))
        self.assertEqual(array.tolist(), [[0, 1, 2], [3, 4, 5]])
        array[1, 2] = 7
        self.assertEqual(memory[5], 7)

    def test_over_memory_of_a_gpu(self):
        plain = arrays.view(arrays.describe(OnGpu(), "x"), 12288).__cuda_array_interface__
        self.assertEqual((plain["data"], plain["shape"], plain["typestr"]), ((12288, False), (2, 3), "<f4"))
        torch = mock.MagicMock()
        with mock.patch.dict(sys.modules, torch=torch):
            arrays.view(arrays.describe(Tensor(), "x"), 12288)
        (memory,), keywords = torch.as_tensor.call_args
        self.assertEqual(keywords, {"device": "cuda:1"})
        self.assertEqual((memory.__cuda_array_interface__["shape"], memory.__cuda_array_interface__["typestr"]), ((40,), "|u1"))
        torch.as_tensor.return_value.view.assert_called_once_with("torch.bfloat16")


class Float64(unittest.TestCase):
    def test_values_lie_one_behind_the_other(self):
        for array, expected in ((numpy.arange(6, dtype=numpy.int8).reshape(2, 3).T, [0, 3, 1, 4, 2, 5]), (numpy.array([1 + 2j]), [1, 2]), (2.5, [2.5])):
            address, count, keeper = arrays.as_float64(array, "y")
            self.assertEqual(list((ctypes.c_double * count).from_address(address)), expected)
            del keeper


class CurrentStream(unittest.TestCase):
    def test_is_entered_once_and_left(self):
        torch = mock.MagicMock()
        with mock.patch.dict(sys.modules, torch=torch):
            stream = arrays.Stream(1)
            stream.enter(77)
            stream.enter(77)
            torch.cuda.ExternalStream.assert_called_once_with(77, device=1)
            self.assertEqual(arrays.current_stream(), 77)
            stream.leave()
            stream.leave()
        self.assertEqual([call.args[0] for call in torch.cuda.set_stream.call_args_list],
                         [torch.cuda.ExternalStream.return_value, torch.cuda.current_stream.return_value])
        self.assertEqual(torch.cuda.empty_cache.call_count, 1)
        self.assertEqual(arrays.current_stream(), 0)


if __name__ == "__main__":
    unittest.main()
