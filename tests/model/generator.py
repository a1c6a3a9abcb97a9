"""Draws requests, most of them valid: method and parameters, of what a client has and of what there is.
Whether one is valid, and what comes of it, is the model's to say."""

import numpy as np

from model import NUMPY, Tensor
from numpy_operators import OPERATORS
from raw import DTYPES

SHAPES = [[], [1], [7], [64], [64], [64], [0], [3, 5], [4, 64], [2, 3, 4], [1, 5], [0, 3], [1000], [33, 31]]
LARGE = [[65_537], [300_000], [1 << 20]]
NAMES = ["a", "weights", "ünïcödé", "x" * 200]
FAULTS = {
    "cpu": ["write", "read", "null", "divide", "illegal", "hang"],
    "cuda": ["write", "null", "misaligned", "trap", "hang"],
}
KEPT = 40  # tensors of a client; contexts, exports and the rest fewer


class Generator:
    def __init__(self, world, rng, numbers):
        """`rng`: random.Random; `numbers`: NumPy's."""
        self.world, self.rng, self.numbers = world, rng, numbers
        self.slow = False  # what is drawn is to be in flight for a while
        self.weights = {
            self.tensor_new: 8, self.tensor_write: 12, self.tensor_read: 12, self.tensor_view: 6,
            self.tensor_copy: 4, self.tensor_free: 4, self.drop: 3, self.attach: 4, self.info: 4,
            self.shm_open: 1, self.shm_close: 0.5, self.tensor_export: 2, self.export_free: 1.5,
            self.import_open: 1, self.import_tensor: 3, self.import_close: 0.7, self.sync: 1,
            self.forward: 30, self.fault: 0.6, self.backward: 10, self.vjp: 4, self.context_free: 1, self.plan: 2,
            self.plan_export: 1, self.prepare: 6, self.call: 25,
            self.graph_begin: 2, self.graph_end: 8, self.graph_attach: 0.5, self.graph_free: 1, self.replay: 12,
        }  # fmt: skip
        if Tensor.device != "cpu":  # whose memory a client cannot look into
            for kind in (self.tensor_export, self.export_free, self.import_open):
                del self.weights[kind]

    def draw(self, client):
        """(method, parameters)"""
        self.c = client
        crowded = len(client.tensors) > KEPT or len(client.contexts) > 10
        if crowded and self.rng.random() < 0.5:
            ids = self.rng.sample(sorted(client.tensors), min(15, len(client.tensors)))
            return "free", ["tensor", ids, {"drop": True}]
        if self.slow and self.rng.random() < 0.8 and (drawn := self.forward("grow")) is not None:
            return drawn
        for _ in range(100):
            (kind,) = self.rng.choices([*self.weights], [*self.weights.values()])
            if (drawn := kind()) is not None:
                return drawn
        return "sync", []

    # --- what there is to choose from

    def id(self, wanted=lambda t: True):
        """Of a tensor of the client, or None."""
        found = [id for id, t in self.c.tensors.items() if wanted(t)]
        return self.rng.choice(found) if found else None

    def new(self):
        return self.c.new_id()

    def shape(self):
        return self.rng.choice(LARGE if self.rng.random() < 0.04 else SHAPES)

    def values(self, dtype, count):
        """Numbers that operators take without loss; for no floats any bits."""
        kind = NUMPY[dtype]
        if dtype == "bool":
            return self.numbers.integers(0, 2, count).astype(kind)
        if kind.kind == "f":
            low = 0 if self.rng.random() < 0.5 else -16
            return (self.numbers.integers(low, 17, count) / 4).astype(kind)
        return np.frombuffer(self.numbers.bytes(count * kind.itemsize), kind)

    def range_of(self, tensor):
        """(offset, size) in bytes; whole elements of what is no integer."""
        step = DTYPES[tensor.dtype] if NUMPY[tensor.dtype].kind == "f" else 1
        if self.rng.random() < 0.6 or not tensor.size:
            return 0, tensor.size
        begin = self.rng.randrange(0, tensor.size // step + 1)
        size = self.rng.randrange(0, tensor.size // step - begin + 1)
        return begin * step, size * step

    # --- tensors

    def tensor_new(self):
        name = self.rng.choice(NAMES) if self.rng.random() < 0.15 else None
        dtype = self.rng.choice(["float32", "float32", "float64", *DTYPES])
        return "tensor_new", [self.new(), dtype, self.shape(), name]

    def tensor_write(self):
        if (id := self.id()) is None:
            return None
        tensor = self.c.tensors[id]
        offset, size = self.range_of(tensor)
        if self.rng.random() < 0.25 and NUMPY[tensor.dtype].kind != "f" and tensor.dtype != "bool":
            if shm := self.shm_range(size):
                return "tensor_write", [id, offset, [*shm, size]]
        return "tensor_write", [id, offset, self.values(tensor.dtype, size // DTYPES[tensor.dtype] + 1).tobytes()[:size]]

    def shm_range(self, size):
        """[id, offset] of shared memory with so much room, or None."""
        rooms = [id for id, shared in self.c.shms.items() if len(shared.bits) >= size]
        if not rooms:
            return None
        id = self.rng.choice(rooms)
        return [id, self.rng.randrange(0, len(self.c.shms[id].bits) - size + 1)]

    def tensor_read(self):
        if (id := self.id()) is None:
            return None
        tensor = self.c.tensors[id]
        if tensor.storage.near:
            return "tensor_read", [id, 0]
        offset, size = self.range_of(tensor)
        shm = self.shm_range(size) if self.rng.random() < 0.25 else None
        whole = offset == 0 and size == tensor.size and not shm
        return "tensor_read", [id, 0] if whole else [id, offset, size, shm]

    def tensor_view(self):
        if (id := self.id()) is None:
            return None
        count = self.c.tensors[id].count
        shape = self.shape() if self.rng.random() < 0.5 else [self.rng.randrange(0, count + 1)]
        room = count - int(np.prod(shape, dtype=np.int64))
        return None if room < 0 else ("tensor_view", [self.new(), id, self.rng.randrange(0, room + 1), shape])

    def like(self, tensor):
        """The id of another tensor of its dtype and shape, if there is one."""
        return self.id(lambda t: t is not tensor and (t.dtype, t.shape) == (tensor.dtype, tensor.shape))

    def tensor_copy(self):
        if (id := self.id()) is None or (other := self.like(self.c.tensors[id])) is None:
            return None
        return "tensor_copy", [id, other]

    def tensor_free(self):
        if not self.c.tensors:
            return None
        return "free", ["tensor", self.rng.sample(sorted(self.c.tensors), self.rng.randint(0, min(3, len(self.c.tensors))))]

    def drop(self):
        kind = self.rng.choice(["tensor", "context", "shm", "export", "import", "prepared", "graph"])
        held = self.c.held(kind)
        some = [id for id in held if self.rng.random() < 0.1]
        return "free", [kind, [*some, self.c.last_id + 100], {"drop": True}]

    def attach(self):
        return "tensor_attach", [self.new(), self.rng.choice([*self.world.names, *NAMES[:1]])]

    def info(self):
        id = self.id()
        return None if id is None else ("tensor_info", [id])

    def sync(self):
        return "sync", []

    # --- memory of both sides

    def shm_open(self):
        return None if len(self.c.shms) >= 3 else ("shm_open", [self.new(), self.rng.choice([4096, 70_000, 1 << 20])])

    def shm_close(self):
        return ("free", ["shm", [self.rng.choice([*self.c.shms])]]) if self.c.shms else None

    def tensor_export(self):
        if len(self.c.exports) >= 4 or (id := self.id(lambda t: not t.storage.near)) is None:
            return None
        return "tensor_export", [id, self.new()]

    def export_free(self):
        return ("free", ["export", [self.rng.choice([*self.c.exports])]]) if self.c.exports else None

    def import_open(self):
        if len(self.c.imports) >= 2:
            return None
        return "import_open", [self.new(), "cpu", "memfd", b"", self.rng.choice([4096, 65_536, 300_001])]

    def import_tensor(self):
        if not self.c.imports:
            return None
        id, dtype = self.rng.choice([*self.c.imports]), self.rng.choice(["int32", "uint8", "int64"])
        shape = self.rng.choice(SHAPES)
        size = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype]
        room = len(self.c.imports[id].bits) - size
        if room < 0:
            return None
        return "import_tensor", [self.new(), id, self.rng.randrange(0, room // 8 + 1) * 8, dtype, shape]

    def import_close(self):
        return ("free", ["import", [self.rng.choice([*self.c.imports])]]) if self.c.imports else None

    # --- operators

    def operands(self, op, name):
        """Ids of its inputs, or None."""
        first = self.id(lambda t: t.dtype in op.dtypes and (name != "fault" or t.shape == (64,)))
        if first is None:
            return None
        ids, tensor = [first], self.c.tensors[first]
        for _ in range(op.inputs - op.optional - 1):
            other = self.like(tensor)
            if name in ("add", "mul") and self.rng.random() < 0.4:
                other = self.id(lambda t: t.dtype == tensor.dtype and t.count * tensor.count < 1 << 16)
            if other is None:
                return None
            ids.append(other)
        if op.optional and self.rng.random() < 0.6:
            ids.append(self.like(tensor))
        return ids

    def forward(self, name=None, attrs=None):
        name = name or self.rng.choice([*(n for n in OPERATORS if n != "fault"), "turn"])
        op = self.world.operator(name, None)
        if (ids := self.operands(op, name)) is None:
            return None
        attrs = attrs or {}
        if name == "grow" and (self.slow or self.rng.random() < 0.7):
            rounds = 30_000_000 if self.slow else self.rng.choice([0, 1000, 100_000])
            attrs = {"by": self.rng.randint(-5, 5), "rounds": rounds}
        if name == "mix" and self.rng.random() < 0.7:
            attrs = {"k": self.rng.randint(-3, 3)}
        outs, options = [self.new() for _ in range(op.outputs)], {}
        chance = self.rng.random()
        if op.backward_reads is not None and chance < 0.5:
            options["context"] = self.new()
        elif op.saved and chance < 0.8:
            options["saved"] = [self.new() for _ in range(op.saved)]
        if name == "turn" and self.rng.random() < 0.3:
            options["version"] = self.rng.choice([*self.world.turns])
        if outs and self.rng.random() < 0.2 and (there := self.like(self.c.tensors[ids[0]])) is not None:
            outs[0], options["into"] = None, [there]
        return "forward", [name, ids, attrs, outs, *([options] if options or self.rng.random() < 0.1 else [])]

    def prepare(self):
        if len(self.c.prepareds) > 20:
            return "free", ["prepared", [self.rng.choice([*self.c.prepareds])]]
        if self.rng.random() < 0.3:
            if (drawn := self.vjp()) is None or None in drawn[1][1]:
                return None
            name, ids, _, _, _, attrs, _ = drawn[1]
            return "prepare", [self.new(), "vjp", name, self.descs(ids), attrs]
        if (drawn := self.forward()) is None or None in drawn[1][1]:
            return None
        name, ids, attrs, _, *options = drawn[1]
        options = options[0] if options else {}
        flags = {key: True for key in ("context", "saved") if key in options}
        flags |= {key: options[key] for key in ("version",) if key in options}
        return "prepare", [self.new(), "forward", name, self.descs(ids), attrs, flags]

    def descs(self, ids):
        return [[t.dtype, list(t.shape)] for t in (self.c.tensors[id] for id in ids)]

    def call(self):
        if not self.c.prepareds:
            return None
        id = self.rng.choice([*self.c.prepareds])
        direction, name, descs, _, options = self.c.prepareds[id]
        op = self.world.operator(name, None)
        ids = [self.id(lambda t, d=d: [t.dtype, list(t.shape)] == d) for d in descs]
        if None in ids:
            return None
        if direction == "vjp":
            like = [self.like(self.c.tensors[ids[0]]) or ids[0] for _ in range(op.outputs + op.saved)]
            grads = self.gradients_of([self.c.tensors[ids[0]]] * op.outputs)
            outs = [None if self.rng.random() < 0.2 else self.new() for _ in ids]
            if self.rng.random() < 0.3:
                outs[0] = self.like(self.c.tensors[ids[0]])
            return "call", [id, [*ids, *like, *grads, *outs]]
        outs = [self.new() for _ in range(op.outputs)]
        if outs and self.rng.random() < 0.3 and (there := self.like(self.c.tensors[ids[0]])) is not None:
            outs[0] = there
        outs += [self.new() for _ in range(op.saved if options.get("saved") else 0)]
        outs += [self.new()] if options.get("context") else []
        return "call", [id, [*ids, *outs]]

    def graph_begin(self):
        if len(self.c.graphs) > 4:
            return self.graph_free()
        named = self.rng.random() < 0.3
        return "graph_begin", [self.new(), *([{"name": self.rng.choice(NAMES)}] if named else [])]

    def graph_end(self):
        ids = [id for id, graph in self.c.graphs.items() if graph is self.c.recording]
        return ("graph_end", ids) if ids else None

    def graph_attach(self):
        return "graph_attach", [self.new(), self.rng.choice([*self.world.graphs, *NAMES[:1]])]

    def graph_free(self):
        return ("free", ["graph", [self.rng.choice([*self.c.graphs])]]) if self.c.graphs else None

    def replay(self):
        if not self.c.graphs or self.c.recording and self.rng.random() < 0.95:
            return None
        options = [{"debug": True}] if self.rng.random() < 0.1 else []
        return "replay", [self.rng.choice([*self.c.graphs]), *options]

    def fault(self):
        kind = self.rng.choice(FAULTS[Tensor.device.partition(":")[0]])
        drawn = self.forward("fault", {"kind": kind})
        if drawn and kind == "hang":
            drawn[1][4:] = [{"deadline": 0.3}]
        return drawn

    def gradients_of(self, tensors):
        """Ids of gradients that fit, some absent."""
        fit = [self.id(lambda t, o=o: t.dtype == o.dtype and t.shape == o.shape) for o in tensors]
        return [None if self.rng.random() < 0.15 else id for id in fit]

    def backward(self):
        if not self.c.contexts:
            return None
        id = self.rng.choice([*self.c.contexts])
        kept = self.c.contexts[id]
        outs = [None if self.rng.random() < 0.2 else self.new() for _ in range(kept.op.inputs)]
        params = [id, self.gradients_of(kept.outputs), outs]
        if kept.inputs[0] is not None and outs[0] and self.rng.random() < 0.2:
            there = self.like(kept.inputs[0])
            if there is not None:
                outs[0] = None
                params.append({"into": [there]})
        return "backward", params

    def vjp(self):
        name = self.rng.choice(["relu", "add", "mul", "mix", "square", "square.tangent"])
        op = OPERATORS[name]
        if (ids := self.operands(op, name)) is None:
            return None
        if name in ("add", "mul") and self.c.tensors[ids[1]].shape != self.c.tensors[ids[0]].shape:
            return None
        like = [ids[0]] * (op.outputs + op.saved)
        like = [self.like(self.c.tensors[ids[0]]) or ids[0] for _ in like]
        outs = [None if self.rng.random() < 0.2 else self.new() for _ in range(op.inputs)]
        grads = self.gradients_of([self.c.tensors[ids[0]]] * op.outputs)
        attrs = {"k": 2} if name == "mix" else {}
        return "vjp", [name, ids, like[: op.outputs], like[op.outputs :], grads, attrs, outs]

    def context_free(self):
        return ("free", ["context", [self.rng.choice([*self.c.contexts])]]) if self.c.contexts else None

    def plan(self):
        name = self.rng.choice([*OPERATORS, "turn"])
        op = self.world.operator(name, None)
        shape = [64] if name == "fault" else self.rng.choice(SHAPES)
        return "plan", [name, [[self.rng.choice(op.dtypes), shape]] * op.inputs, {}]

    def plan_export(self):
        name = self.rng.choice([*OPERATORS])
        op = self.world.operator(name, None)
        shape = [64] if name == "fault" else self.rng.choice(SHAPES)
        return "plan_export", [name, "forward", [[self.rng.choice(op.dtypes), shape]] * op.inputs, {}]

    # --- mistakes

    def spoil(self, method, params):
        """One parameter, or one element of one, becomes something else of its type."""
        params = list(params)
        places = [i for i, v in enumerate(params) if isinstance(v, (int, str, list)) and v != []]
        if not places or method == "sync" or params[-1:] == [{"drop": True}] or (method == "import_open" and places == [0]):
            return params
        i = self.rng.choice(places)
        if method in ("shm_open", "import_open"):
            i = 0
        if isinstance(params[i], list):
            inner = [k for k, v in enumerate(params[i]) if isinstance(v, int)]
            if inner:
                k = self.rng.choice(inner)
                params[i] = [*params[i][:k], self.wrong(params[i][k]), *params[i][k + 1 :]]
        else:
            params[i] = self.wrong(params[i])
        return params

    def wrong(self, value):
        if isinstance(value, str):
            return self.rng.choice(["float31", "nowhere", "gelu "])
        return self.rng.choice([value + 1, value - 1, self.c.last_id + 50, 1, 2, 63])
