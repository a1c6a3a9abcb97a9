"""libopd by ctypes."""

import ctypes
import os
import struct
from ctypes import POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p

import msgpack
from conftest import ROOT

LIBRARY = os.environ.get("OPD_LIB", str(ROOT / "build" / "libopd.so"))


class Tensor(Structure):
    _fields_ = [
        ("id", c_int64), ("dtype", c_char * 16), ("rank", c_int), ("shape", c_int64 * 16), ("bytes", c_uint64),
        ("device", c_char * 32), ("name", c_char * 256), ("strided", c_bool), ("strides", c_int64 * 16),
    ]  # fmt: skip


class Error(Structure):
    _fields_ = [
        ("code", c_int), ("local", c_bool), ("misfit", c_bool), ("name", c_char * 32), ("message", c_char * 1024),
        ("op", c_char * 128), ("log", c_void_p),
    ]  # fmt: skip


class Attr(Structure):
    _fields_ = [("name", c_char_p), ("kind", c_int), ("count", c_size_t), ("real", c_double)]


class Forward(Structure):
    _fields_ = [
        ("op", c_char_p), ("inputs", POINTER(c_int64)), ("input_count", c_size_t), ("attrs", POINTER(Attr)),
        ("attr_count", c_size_t), ("outputs", POINTER(c_int64)), ("output_count", c_size_t),
        ("tensors", POINTER(Tensor)), ("context", c_int64), ("deadline", c_double), ("device", c_char_p),
        ("input_lengths", POINTER(c_int64)), ("output_lengths", POINTER(c_int64)),
        ("input_length_count", c_size_t), ("output_length_count", c_size_t),
    ]  # fmt: skip


class Backward(Structure):
    _fields_ = [
        ("context", c_int64), ("grads", POINTER(c_int64)), ("grad_count", c_size_t), ("inputs", POINTER(c_int64)),
        ("input_count", c_size_t), ("tensors", POINTER(Tensor)), ("deadline", c_double),
        ("grad_lengths", POINTER(c_int64)), ("input_lengths", POINTER(c_int64)),
        ("grad_length_count", c_size_t), ("input_length_count", c_size_t),
    ]  # fmt: skip


class Client:
    """libopd's, for one thread."""

    def __init__(self, socket):
        self.lib = ctypes.CDLL(LIBRARY)
        self.lib.opd_connect.restype = c_void_p
        self.lib.opd_float.restype = Attr
        self.lib.opd_tensor_new.restype = self.lib.opd_forward.restype = self.lib.opd_tensor_write.restype = c_bool
        self.lib.opd_tensor_free.restype = c_bool
        self.error = Error()
        self.client = c_void_p(self.lib.opd_connect(socket.encode(), ctypes.byref(self.error)))
        assert self.client, self.error.message

    def close(self):
        self.lib.opd_error_clear(ctypes.byref(self.error))
        self.lib.opd_close(self.client)

    def done(self, good):
        if not good:
            raise OSError(self.error.message.decode())

    def make(self, id, *values):
        t = Tensor(id=id, dtype=b"float32", rank=1)
        t.shape[0] = len(values)
        self.done(self.lib.opd_tensor_new(self.client, ctypes.byref(t), ctypes.byref(self.error)))
        data = struct.pack(f"{len(values)}f", *values)
        write = self.lib.opd_tensor_write
        self.done(write(self.client, c_int64(id), c_uint64(0), data, c_size_t(len(data)), ctypes.byref(self.error)))

    def view(self, id, source, offset, shape, strides):
        t = Tensor(id=id, rank=len(shape), strided=True)
        t.shape[: len(shape)], t.strides[: len(shape)] = shape, strides
        view = self.lib.opd_tensor_view
        view.restype = c_bool
        self.done(view(self.client, c_int64(source), c_int64(offset), ctypes.byref(t), ctypes.byref(self.error)))
        return t

    def read(self, id, n):
        data = ctypes.create_string_buffer(4 * n)
        read = self.lib.opd_tensor_read
        read.restype = c_bool
        self.done(read(self.client, c_int64(id), c_uint64(0), data, c_size_t(4 * n), ctypes.byref(self.error)))
        return list(struct.unpack(f"{n}f", data.raw))

    def free(self, *ids):
        free = self.lib.opd_tensor_free
        self.done(free(self.client, (c_int64 * len(ids))(*ids), c_size_t(len(ids)), ctypes.byref(self.error)))

    def call(self, method, params):
        packed = msgpack.packb(params)
        text = ctypes.create_string_buffer(packed)
        buffer = (c_size_t * 3)(len(packed), ctypes.addressof(text), len(packed))  # msgpack_sbuffer
        call = self.lib.opd_call
        call.restype = c_bool
        self.done(call(self.client, method.encode(), buffer, None, ctypes.byref(self.error)))

    def forward(self, op, inputs, outputs, context=0, lengths=None, **attrs):
        """What it says of its outputs. lengths: of the lists in both, -1 for a single tensor."""
        tensors = (Tensor * len(outputs))()
        names = [name.encode() for name in attrs]
        made = [self.lib.opd_float(*of) for of in zip(names, map(c_double, attrs.values()))]
        p = Forward(
            op.encode(), (c_int64 * len(inputs))(*inputs), len(inputs), (Attr * len(made))(*made), len(made),
            (c_int64 * len(outputs))(*outputs), len(outputs), tensors, context, 0, None,
        )  # fmt: skip
        if lengths is not None:
            p.input_lengths, p.output_lengths = [(c_int64 * len(each))(*each) for each in lengths]
            p.input_length_count, p.output_length_count = map(len, lengths)
        self.done(self.lib.opd_forward(self.client, ctypes.byref(p), ctypes.byref(self.error)))
        return [(t.id, t.dtype, list(t.shape[: t.rank]), t.bytes, t.name) for t in tensors]

    def backward(self, context, grads, inputs, lengths):
        tensors = (Tensor * len(inputs))()
        p = Backward(
            context, (c_int64 * len(grads))(*grads), len(grads), (c_int64 * len(inputs))(*inputs), len(inputs), tensors, 0,
            *[(c_int64 * len(each))(*each) for each in lengths], *map(len, lengths),
        )  # fmt: skip
        self.done(self.lib.opd_backward(self.client, ctypes.byref(p), ctypes.byref(self.error)))
        return [(t.id, list(t.shape[: t.rank])) for t in tensors]
