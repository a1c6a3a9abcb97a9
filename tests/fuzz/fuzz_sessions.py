"""Valid sessions with the daemon, as lists of (method, parameters, descriptor): every request of
protocol.def is in one of them, and each succeeds when it is sent as it stands.

A descriptor is None or the name of one of DESCRIPTORS. Numbers of tensors and the like are small, so
that a number changed at random is likely to be another's.
"""

import fcntl
import os
import socket
import struct

SIZE = 1 << 16  # of shared memory
BYTES = struct.pack("256f", *(i / 16 - 8 for i in range(256)))

EDITED = """\
//! op      edited(Tensor x, *, float by=2.0) -> Tensor y
//! dtypes  float32
//! shape   x [...S]
//! shape   y [...S]
//! example x=[5]
//
//! forward
//!   kernel  edited
//!   bind    n = numel(x)

extern "C" __global__ void edited(const float *x, float *y, float by, long long n)
{
    CUDA_KERNEL_LOOP(i, n)
        y[i] = x[i] * by + %d;
}
"""
LOADED = """\
//! op      loaded(Tensor x, *, float by=2.0) -> Tensor y
//! dtypes  float32
//! formula y = by * x * x
//! example x=[5]
"""


def _memfd(size, seals):
    fd = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def _end_of_pair():
    kept, given = socket.socketpair()
    kept.close()
    return given.detach()


def _end_of_pipe(which):
    ends = os.pipe()
    os.close(ends[1 - which])
    return ends[which]


DESCRIPTORS = {
    "good": lambda: _memfd(SIZE, fcntl.F_SEAL_SHRINK),
    "large": lambda: _memfd(1 << 24, fcntl.F_SEAL_SHRINK),
    "sealed against all": lambda: _memfd(
        SIZE, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL),
    "unsealed": lambda: _memfd(SIZE, 0),
    "small": lambda: _memfd(100, fcntl.F_SEAL_SHRINK),
    "empty": lambda: _memfd(0, fcntl.F_SEAL_SHRINK),
    "socket": _end_of_pair,
    "pipe": lambda: _end_of_pipe(0),
    "full pipe": lambda: _end_of_pipe(1),
    "folder": lambda: os.open("/", os.O_RDONLY | os.O_DIRECTORY),
    "device": lambda: os.open("/dev/zero", os.O_RDWR),
    "path": lambda: os.open("/", os.O_PATH),
    "bell": lambda: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC),
    "terminal": lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY),
}  # fmt: skip


def _new(id, shape=(16, 16), name=None, dtype="float32"):
    return ("tensor_new", [id, dtype, list(shape), name, "cpu"], None)


def _write(id):
    return ("tensor_write", [id, 0, BYTES], None)


X = ["float32", [16, 16]]
SESSIONS = {
    "questions": [
        ("hello", ["fuzz", {}], None),
        ("status", [], None),
        ("op_list", [], None),
        ("op_info", ["gelu"], None),
        ("metrics", [], None),
        ("events", [0, {"follow": True}], None),
        ("trace", [{"follow": True}], None),
        ("plan", ["gelu", [X], {"approximate": "tanh"}, {"version": 1, "device": "cpu"}], None),
        ("plan", ["weigh", [["float64", [7]], None], {"by": [2.0, 3.0], "offset": 1.5}], None),
        ("plan_export", ["gelu", "forward", [X], {}, {"keep": True, "blas": True, "version": 1}], None),
        ("plan_export", ["gelu", "backward", [X], {}, {"wanted": [True], "grad_absent": [False]}], None),
        ("version_page", [], None),
        ("op_code", ["gelu", "sass", {"target": "cpu", "dtype": "float32"}], None),
        ("check", ["edited.cu", "", EDITED % 7, {"targets": ["cpu"], "dtypes": ["float32"]}], None),
        ("sync", [], None),
    ],
    "tensors": [
        _new(1), _write(1),
        ("tensor_view", [2, 1, 16, [4, 4]], None),
        ("tensor_info", [2], None),
        ("tensor_read", [2, 0], None),
        ("tensor_read", [1, 64, 128], None),
        _new(3, name="one"), _new(4, (0, 3)), _new(5, (), dtype="int64"),
        ("tensor_copy", [3, 1], None),
        ("tensor_attach", [6, "one"], None),
        ("tensor_list", [], None),
        ("tensor_accept", [[1, 3]], None),
        ("free", ["tensor", [3, 4]], None),
        ("free", ["tensor", [1, 2, 99], {"drop": True}], None),
        ("free", ["context", [7], {"drop": True}], None),
        ("sync", [], None),
    ],
    "shared memory": [
        ("shm_open", [1, SIZE], "good"),
        ("shm_open", [2, 4096], "large"),
        _new(1),
        ("tensor_write", [1, 0, [1, 0, 1024]], None),
        ("tensor_read", [1, 0, 1024, [2, 2048]], None),
        ("tensor_read", [1, 512, 4, [1, SIZE - 4]], None),
        ("done_word", [1, SIZE - 8], None),
        ("prepare", [1, "forward", "gelu", [X], {}], None),
        ("call", [1, [1, 5]], None),
        ("done_word", [2, 8], None),
        ("call", [1, [1, 6]], None),
        ("free", ["shm", [1]], None),
        ("free", ["shm", [2]], None),
    ],
    "lanes": [
        ("shm_open", [1, SIZE], "good"),
        ("lane_open", [1, 64, "cpu"], "bell"),
        _new(1), _new(2),
        ("graph_begin", [1], None),
        ("forward", ["gelu", [1], {}, [3]], None),
        ("graph_end", [1], None),
        ("replay", [1], None),
        ("prepare", [1, "forward", "gelu", [X], {}], None),
        ("lane_call", [1, [1, 2]], None),
        ("call", [1, [1, 2]], None),
        ("lane_wait", [7], None),
        ("replay", [1], None),
        ("free", ["shm", [1]], None),
        ("replay", [1], None),
        ("free", ["graph", [1]], None),
    ],
    "operators": [
        _new(1), _write(1),
        ("forward", ["gelu", [1], {}, [2], {"context": 1, "deadline": 5.0}], None),
        ("backward", [1, [1], [3], {"deadline": 5.0}], None),
        ("forward", ["gelu", [2], {"approximate": "tanh"}, [4], {"debug": True, "version": 1}], None),
        ("forward", ["nudge", [1], {"by": 0.5}, []], None),
        ("forward", ["sgd_steps", [[1, 4], [2, 2], None], {"lr": 0.5}, [], {"deadline": 5.0}], None),
        ("forward", ["ramp", [], {"n": 100}, [5], {"device": "cpu"}], None),
        _new(6, (40,)), _new(7, (40,)),
        ("forward", ["weigh", [6, None], {"by": 3.0}, [8, None], {"context": 2, "into": [None, 7]}],
         None),
        ("backward", [2, [6, None], [None, None], {"into": [None, None]}], None),
        ("forward", ["flatten", [1], {}, [10]], None),
        ("tensor_read", [10, 0], None),
        ("free", ["context", [2]], None),
        ("free", ["tensor", [2, 3], {"drop": True}], None),
        ("free", ["context", [1]], None),
    ],
    "gradients without a context": [
        _new(1, (2, 10)), _new(2, (2, 10)),
        ("forward", ["scaled", [1], {"gain": 2.0}, [3], {"saved": [4]}], None),
        ("vjp", ["scaled", [1], [3], [4], [2], {"gain": 2.0}, [5], {"version": 1}], None),
        ("vjp", ["scaled", [None], [None], [4], [2], {}, [None],
                 {"inputs": [["float32", [2, 10]]], "into": [5], "device": "cpu"}], None),
        _new(6, (2, 10)), _new(7, (2, 10)),
        ("forward", ["scaled", [1], {}, [None], {"into": [6], "saved_into": [7]}], None),
        ("tensor_read", [6, 0], None),
    ],
    "prepared calls": [
        _new(1, (2, 10)), _new(2, (2, 10)),
        ("prepare", [1, "forward", "scaled", [["float32", [2, 10]]], {"gain": 2.0}, {"saved": True}], None),
        ("prepare", [2, "vjp", "scaled", [["float32", [2, 10]]], {"gain": 2.0}, {"version": 1, "debug": True}], None),
        ("prepare", [3, "forward", "scaled", [["float32", [2, 10]]], {},
                     {"context": True, "new": True, "device": "cpu", "deadline": 5.0}], None),
        ("prepare", [4, "forward", "weigh", [["float32", [40]], None], {"by": 3.0}], None),
        ("prepare", [5, "forward", "sgd_steps", [[["float32", [2, 10]]], [["float32", [2, 10]]], None], {"lr": 0.5}], None),
        ("call", [5, [[1], [2], None]], None),
        ("call", [1, [1, 3, 4]], None),
        ("call", [1, [1, 3, 4]], None),
        ("call", [2, [None, None, 4, 2, 5]], None),
        ("call", [2, [1, 3, 4, None, 5]], None),
        ("call", [3, [1, 6, 7]], None),
        ("backward", [7, [2], [8]], None),
        ("upgrade", [{}], None),
        ("call", [1, [1, 9, 10]], None),
        ("free", ["prepared", [1, 2]], None),
        ("free", ["prepared", [3, 4, 99], {"drop": True}], None),
    ],
    "graphs": [
        _new(1, (2, 10)), _new(2, (2, 10)),
        ("prepare", [1, "forward", "scaled", [["float32", [2, 10]]], {"gain": 2.0}], None),
        ("graph_begin", [1, {"name": "steps"}], None),
        ("forward", ["scaled", [1], {"gain": 2.0}, [3], {"context": 1}], None),
        ("backward", [1, [2], [4], {"debug": True}], None),
        ("call", [1, [4, 5]], None),
        _new(6, (2, 10)),
        ("tensor_copy", [6, 5], None),
        ("free", ["context", [1]], None),
        ("graph_end", [1], None),
        ("replay", [1, {"deadline": 5.0}], None),
        ("replay", [1, {"debug": True}], None),
        ("graph_attach", [2, "steps"], None),
        ("upgrade", [{}], None),
        ("replay", [2], None),
        ("free", ["graph", [1]], None),
        ("free", ["graph", [2, 99], {"drop": True}], None),
    ],
    "memory": [
        _new(1), _write(1),
        ("tensor_export", [1, 1], None),
        ("tensor_export", [1, 2], None),
        ("import_open", [1, "cpu", "memfd", b"", SIZE], "good"),
        ("import_tensor", [2, 1, 1024, "float32", [16, 16]], None),
        ("tensor_copy", [2, 1], None),
        ("forward", ["gelu", [2], {}, [None], {"into": [1]}], None),
        ("tensor_read", [2, 0, 64], None),
        ("free", ["export", [1, 2]], None),
        ("free", ["import", [1]], None),
        ("free", ["tensor", [2]], None),
    ],
    "versions": [
        ("reload", [], None),
        ("kernels_add", ["/usr"], None),
        _new(1, (5,)),
        ("forward", ["edited", [1], {"by": 3.0}, [2]], None),
        ("pin", ["edited", 1], None),
        ("forward", ["edited", [1], {}, [3]], None),
        ("pin", ["edited", None], None),
        ("rollback", ["edited"], None),
        ("pin", ["edited", None], None),
        ("events", [3], None),
    ],
    "loaded": [
        ("load", [LOADED, {"name": "a.py", "folder": "", "shared": False}], None),
        _new(1, (5,)),
        ("forward", ["loaded", [1], {}, [2], {"context": 1}], None),
        ("load", ["#line 7\n" + LOADED + "// more\n", {"shared": True}], None),
        ("forward", ["loaded", [1], {"by": 3.0}, [3]], None),
        ("op_info", ["loaded"], None),
        ("unload", ["loaded"], None),
        ("backward", [1, [1], [4], {}], None),
        ("load", [LOADED, {}], None),
    ],
    "device": [
        _new(1), _write(1),
        ("device_restart", ["cpu"], None),
        ("device_speed", ["cpu"], None),
        ("tensor_read", [1, 0], None),
    ],
    "upgrade": [
        _new(1), _write(1),
        ("forward", ["gelu", [1], {}, [2], {"context": 1}], None),
        ("shm_open", [1, SIZE], "good"),
        ("import_open", [1, "cpu", "memfd", b"", SIZE], "good"),
        ("import_tensor", [3, 1, 0, "float32", [16, 16]], None),
        ("tensor_export", [1, 1], None),
        ("upgrade", [{}], None),
        ("tensor_read", [1, 0, 1024, [1, 0]], None),
        ("backward", [1, [1], [4]], None),
        ("tensor_copy", [3, 1], None),
        ("free", ["export", [1]], None),
    ],
    "names from before free": [
        _new(1), _new(2), _write(1),
        ("forward", ["gelu", [1], {}, [3], {"context": 1}], None),
        ("context_free", [[1]], None),
        ("shm_open", [1, SIZE], "good"),
        ("shm_close", [1], None),
        ("import_open", [1, "cpu", "memfd", b"", SIZE], "good"),
        ("import_close", [[1]], None),
        ("tensor_export", [1, 1], None),
        ("export_free", [[1]], None),
        ("tensor_free", [[2]], None),
        ("drop", [[1, 3, 99], [7]], None),
    ],
}  # fmt: skip

# These are refused or fail, as they should.
FAILING = {
    "faults": [
        _new(1, (64,)),
        ("forward", ["fault", [1], {"kind": "null"}, [2]], None),
        ("tensor_read", [1, 0], None),
        ("tensor_accept", [[1]], None),
        ("forward", ["fault", [1], {"kind": "hang"}, [3], {"deadline": 0.1}], None),
        ("forward", ["outside", [1], {}, [4]], None),
        ("forward", ["broken", [1], {}, [5]], None),
        ("forward", ["fault", [1], {}, [6], {"context": 1}], None),
    ],
    "descriptors": [
        ("shm_open", [i, SIZE], kind) for i, kind in enumerate(DESCRIPTORS, 1)
    ] + [
        ("import_open", [i, "cpu", "memfd", b"", SIZE], kind) for i, kind in enumerate(DESCRIPTORS, 1)
    ],
    "a GPU that is not there": [
        ("import_open", [1, "cuda:0", "cuda_ipc", bytes(64), SIZE], None),
        ("tensor_new", [1, "float32", [4], None, "cuda:0"], None),
        ("device_restart", ["cuda:0"], None),
        ("op_code", ["gelu", "ptx", {"target": "sm_1"}], None),
    ],
}  # fmt: skip
