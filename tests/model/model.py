"""What the daemon must hold and answer, by NumPy. It reads a request's parameters as the daemon does,
but knows nothing of processes, devices or order: each request happens at once and whole.

`World.predict()` says what a request must be answered with, and does nothing; `Prediction.happen()`
does what the request does. A request that a killed process had begun `breaks()` instead: what it
was writing is suspect from then on.
"""

import mmap
import os
import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "functional")]

from opd._protocol import REQUESTS  # noqa: E402
from raw import DTYPES, make_memfd  # noqa: E402

NUMPY = {name: np.dtype("uint16" if name == "bfloat16" else name) for name in DTYPES}
MAX_RANK = 16


class Refused(Exception):
    """The request must fail with this code, and change nothing."""

    def __init__(self, code, why):
        super().__init__(f"{code}: {why}")
        self.code = code


class Untold(Exception):
    """The model cannot say what comes of this request: it is not made."""


class Text:
    """Words, in a result, among them this one."""

    def __init__(self, word=""):
        self.word = word

    def __repr__(self):
        return f"<text with {self.word!r}>"


class Any:
    """Anything, in a result."""

    def __repr__(self):
        return "<anything>"


class Near:
    """The bytes of a result that is right within bounds; the storage takes them as they come."""

    def __init__(self, tensor, values, bound):
        self.tensor, self.values, self.bound = tensor, values, bound

    def adopt(self, data):
        """What is wrong with them, or None."""
        came = np.frombuffer(data, NUMPY[self.tensor.dtype]).astype(np.float64)
        off = np.abs(came - self.values.ravel()) - self.bound * (1 + np.abs(self.values.ravel()))
        if came.size and not off.max() <= 0:
            i = int(off.argmax())
            return f"element {i} is {came[i]}, expected about {self.values.ravel()[i]}"
        self.tensor.storage.bits[:] = np.frombuffer(data, np.uint8)
        self.tensor.storage.near = None
        return None


class Storage:
    """Memory that tensors share; a part of a client's own, if it is imported."""

    def __init__(self, bits, owner=None, real=None):
        self.bits = bits
        self.real = real  # of a client's own: what it really holds
        self.suspect = np.zeros(len(bits), bool)
        self.version = 0
        self.near = None
        self.owner = owner or self  # what is locked for it


class Tensor:
    device = "cpu"  # of all

    def __init__(self, storage, offset, dtype, shape):
        self.storage, self.offset, self.dtype, self.shape = storage, offset, dtype, tuple(shape)
        self.count = int(np.prod(self.shape, dtype=np.int64))
        self.size = self.count * DTYPES[dtype]
        self.name = None

    @classmethod
    def new(cls, dtype, shape, array=None):
        size = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype]
        bits = np.zeros(size, np.uint8)
        if array is not None:
            bits[:] = np.ascontiguousarray(array, NUMPY[dtype]).reshape(-1).view(np.uint8)
        return cls(Storage(bits), 0, dtype, shape)

    def part(self, offset=0, size=None):
        size = self.size - offset if size is None else size
        return slice(self.offset + offset, self.offset + offset + size)

    def array(self):
        """A copy of its elements."""
        return np.frombuffer(self.storage.bits[self.part()].tobytes(), NUMPY[self.dtype]).reshape(self.shape)

    def is_suspect(self):
        return bool(self.storage.suspect[self.part()].any())

    def overlaps(self, other):
        a, b = self.part(), other.part()
        same = self.storage is other.storage
        return same and self.size and other.size and a.start < b.stop and b.start < a.stop

    def info(self, id):
        return {
            "id": id, "dtype": self.dtype, "shape": list(self.shape), "device": self.device, "name": self.name,
            "bytes": self.size, "suspect": Text() if self.is_suspect() else None,
        }  # fmt: skip


class Shared:
    """Memory of a client: what it really holds, and what it must hold."""

    def __init__(self, size, rng):
        self.fd = make_memfd(size)
        self.real = np.frombuffer(mmap.mmap(self.fd, size), np.uint8)
        self.bits = rng.integers(0, 100, size, np.uint8)
        self.real[:] = self.bits

    def __del__(self):
        os.close(self.fd)


class Export:
    def __init__(self, tensor):
        self.storage, self.part = tensor.storage, tensor.part()
        self.real = None  # the daemon's memory, mapped here, once the descriptor has come


class Client:
    """What one connection has."""

    def __init__(self, name):
        self.name = name
        self.tensors, self.contexts, self.shms, self.exports, self.imports = {}, {}, {}, {}, {}
        self.prepareds, self.graphs = {}, {}
        self.recording = None  # the graph
        self.told = set()  # the failed edits of which it has been warned
        self.last_id = 0

    def held(self, kind):
        """By id."""
        return getattr(self, kind + "s")

    def new_id(self):
        self.last_id += 1
        return self.last_id


class Prediction:
    """`code` of the error that must come, or `result`."""

    def __init__(self):
        self.code = self.result = None
        self.why = ""  # that code
        self.reads, self.writes = set(), set()  # what it depends on and what it changes, for locks
        self.effects = []
        self.begun = []  # (storage, slice) that are suspect if it is interrupted
        self.late = False  # the device finds it out: what is sent meanwhile sees it happen, or not
        self.shared = None  # the client's memory that goes with the message
        self.shm_range = None  # of a client's memory that is unknown if it is interrupted
        self.failures = []  # effects if it is interrupted

    def happen(self):
        for effect in self.effects:
            effect()

    def breaks(self):
        for storage, part in self.begun:
            storage.suspect[part] = True
            storage.version += 1
            if storage.real is not None:
                storage.bits[part] = storage.real[part]
        for effect in self.failures:
            effect()
        if self.shm_range:
            shared, part = self.shm_range
            shared.bits[part] = shared.real[part]


class World:
    """All clients, all names. The requests that run operators are in runs.py."""

    def __init__(self, rng):
        self.rng = rng
        self.clients = []
        self.names = {}

    def predict(self, client, method, params):
        p = Prediction()
        try:
            for letter, value in zip(REQUESTS[method][0].replace("|", ""), params):
                if letter == "h" and value <= 0:
                    raise Refused("invalid_argument", f"id {value}")
            getattr(self, f"do_{method}")(p, client, *params)
        except Refused as refused:
            p.code, p.result, p.effects, p.begun = refused.code, None, [], []
            p.why = str(refused)
        return p

    def leave(self, client):
        """It hangs up: what has no name goes with it."""
        self.clients.remove(client)

    # --- what requests are checked against

    def tensor(self, p, c, id):
        if id <= 0:
            raise Refused("invalid_argument", f"id {id}")
        if id not in c.tensors:
            raise Refused("not_found", f"tensor {id}")
        tensor = c.tensors[id]
        p.reads.add(tensor.storage.owner)
        return tensor

    def sound(self, p, c, id):
        """A tensor that is read."""
        tensor = self.tensor(p, c, id)
        if tensor.is_suspect():
            raise Refused("invalid_argument", "suspect")
        if tensor.storage.near:
            raise Untold
        return tensor

    def new_id(self, taken, id):
        if not isinstance(id, int) or id <= 0 or id in taken:
            raise Refused("invalid_argument", f"id {id} in use")
        return id

    def shape(self, dtype, shape):
        if dtype not in DTYPES:
            raise Refused("invalid_argument", f"dtype {dtype}")
        if len(shape) > MAX_RANK or any(n < 0 for n in shape):
            raise Refused("invalid_argument", f"shape {shape}")
        if np.prod(shape, dtype=np.float64) > 1 << 40:
            raise Refused("out_of_memory", f"shape {shape}")
        return tuple(shape)

    def overwrite(self, p, tensor, data, offset=0):
        """`data`, uint8, takes the place of a tensor's bytes."""
        if not len(data):
            return
        storage, part = tensor.storage, tensor.part(offset, len(data))
        if storage.near:
            raise Untold
        p.writes.add(storage.owner)
        p.begun.append((storage, part))

        def effect():
            storage.bits[part] = data
            storage.suspect[part] = False
            storage.version += 1

        p.effects.append(effect)

    def put(self, p, c, id, tensor):
        p.effects.append(lambda: c.tensors.__setitem__(id, tensor))

    def shared_range(self, c, id, offset, size):
        if id not in c.shms:
            raise Refused("not_found", f"shared memory {id}")
        shared = c.shms[id]
        if offset < 0 or offset + size > len(shared.bits):
            raise Refused("invalid_argument", "out of shared memory")
        return shared, slice(offset, offset + size)

    # --- tensors

    def do_tensor_new(self, p, c, id, dtype, shape, name=None, device=None):
        self.new_id(c.tensors, id)
        if name is not None:
            p.writes.add(("name", name))
            if name in self.names:
                raise Refused("invalid_argument", f"name {name} in use")
        if device not in (None, Tensor.device):
            raise Refused("not_found", f"device {device}")
        tensor = Tensor.new(dtype, self.shape(dtype, shape))
        tensor.name = name
        p.result = tensor.info(id)
        self.put(p, c, id, tensor)
        if name is not None:
            p.effects.append(lambda: self.names.__setitem__(name, tensor))

    def do_tensor_write(self, p, c, id, offset, data):
        tensor = self.tensor(p, c, id)
        size = len(data) if isinstance(data, bytes) else data[2]
        if offset < 0 or size < 0 or offset + size > tensor.size:
            raise Refused("invalid_argument", "out of the tensor")
        if isinstance(data, bytes):
            bits = np.frombuffer(data, np.uint8)
        else:
            shared, part = self.shared_range(c, *data)
            bits = shared.bits[part].copy()
        self.overwrite(p, tensor, bits, offset)

    def do_tensor_read(self, p, c, id, offset, size=None, shm=None):
        tensor = self.tensor(p, c, id)
        size = max(tensor.size - offset, 0) if size is None else size
        if offset < 0 or size < 0 or offset + size > tensor.size:
            raise Refused("invalid_argument", "out of the tensor")
        part = tensor.part(offset, size)
        if tensor.storage.suspect[part].any():
            raise Refused("invalid_argument", "suspect")
        if tensor.storage.near:
            if shm is None and size == len(tensor.storage.bits):
                p.result = tensor.storage.near
                return
            raise Untold
        bits = tensor.storage.bits[part].copy()
        if shm is None:
            p.result = bits.tobytes()
            return
        shared, where = p.shm_range = self.shared_range(c, *shm, size)
        p.effects.append(lambda: shared.bits.__setitem__(where, bits))

    def do_tensor_copy(self, p, c, id, source):
        to, source = self.tensor(p, c, id), self.tensor(p, c, source)
        if to.dtype != source.dtype or to.count != source.count or to.overlaps(source):
            raise Refused("invalid_argument", "they differ, or overlap")
        if source.is_suspect():
            raise Refused("invalid_argument", "suspect")
        if source.storage.near or to.storage.owner is source.storage.owner is not to.storage:
            raise Untold  # two tensors of one import may overlap, and nobody knows
        self.overwrite(p, to, source.storage.bits[source.part()].copy())

    def do_tensor_view(self, p, c, new, id, offset, shape):
        tensor = self.tensor(p, c, id)
        self.new_id(c.tensors, new)
        shape = self.shape(tensor.dtype, shape)
        count = int(np.prod(shape, dtype=np.int64))
        if offset < 0 or offset + count > tensor.count:
            raise Refused("invalid_argument", "out of the tensor")
        view = Tensor(tensor.storage, tensor.offset + offset * DTYPES[tensor.dtype], tensor.dtype, shape)
        p.result = view.info(new)
        self.put(p, c, new, view)

    def do_free(self, p, c, kind, ids, options={}):
        if kind not in ("tensor", "context", "shm", "export", "import", "prepared", "graph"):
            raise Refused("invalid_argument", kind)
        held, drop = c.held(kind), options.get("drop", False)
        for id in ids:
            if id not in held and not drop:
                raise Refused("not_found", f"{kind} {id}")
        if kind == "tensor" and not drop:
            for tensor in [self.tensor(p, c, id) for id in ids]:
                p.writes.add(tensor.storage.owner)  # others see that its name goes
                if tensor.name is not None:
                    p.writes.add(("name", tensor.name))

        def effect():
            for id in ids:
                freed = held.pop(id, None)
                if kind == "tensor" and freed is not None and freed.name is not None and not drop:
                    del self.names[freed.name]
                    freed.name = None

        p.effects.append(effect)

    def do_tensor_attach(self, p, c, id, name):
        p.reads.add(("name", name))
        if name not in self.names:
            raise Refused("not_found", name)
        self.new_id(c.tensors, id)
        tensor = self.names[name]
        p.reads.add(tensor.storage.owner)
        p.result = tensor.info(id)
        self.put(p, c, id, tensor)

    def do_tensor_info(self, p, c, id):
        p.result = self.tensor(p, c, id).info(id)

    def do_tensor_accept(self, p, c, ids):
        tensors = [self.tensor(p, c, id) for id in ids]
        for tensor in tensors:
            p.writes.add(tensor.storage.owner)
            if tensor.is_suspect():
                raise Untold  # what it holds then must be read: Checker.accept()

    def do_sync(self, p, c):
        pass

    # --- memory of both sides

    def do_shm_open(self, p, c, id, size):
        shared = Shared(size, self.rng)
        p.shared = shared
        self.new_id(c.shms, id)
        p.effects.append(lambda: c.shms.__setitem__(id, shared))

    def do_tensor_export(self, p, c, id, export):
        tensor = self.tensor(p, c, id)
        self.new_id(c.exports, export)
        imported = tensor.storage.owner is not tensor.storage and len(tensor.storage.bits)
        if imported or tensor.is_suspect():
            raise Refused("invalid_argument", "imported, or suspect")
        p.export = Export(tensor)
        p.result = {"device": Tensor.device, "size": tensor.size, "chunk": Any(), "chunk_size": Any(), "offset": Any()}
        p.effects.append(lambda: c.exports.__setitem__(export, p.export))

    def do_import_open(self, p, c, id, device, kind, handle, size):
        shared = Shared(size, self.rng)
        p.shared = shared
        if device != "cpu":
            raise Refused("not_found", f"device {device}")
        self.new_id(c.imports, id)
        p.effects.append(lambda: c.imports.__setitem__(id, shared))

    def do_import_tensor(self, p, c, id, imported, offset, dtype, shape):
        if imported not in c.imports:
            raise Refused("not_found", f"import {imported}")
        self.new_id(c.tensors, id)
        shape, shared = self.shape(dtype, shape), c.imports[imported]
        size = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype]
        if offset < 0 or offset + size > len(shared.bits) or offset % DTYPES[dtype]:
            raise Refused("invalid_argument", "out of the import, or between its elements")
        p.reads.add(shared)
        part = slice(offset, offset + size)
        tensor = Tensor(Storage(shared.bits[part], shared, shared.real[part]), 0, dtype, shape)
        p.result = tensor.info(id)
        self.put(p, c, id, tensor)
