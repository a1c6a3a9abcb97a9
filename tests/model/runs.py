"""The requests that run operators: forward, backward, vjp, plan."""

import numpy as np

from model import Any, NUMPY, Near, Refused, Tensor, Untold, World, Text
from numpy_operators import OPERATORS


class Context:
    def __init__(self, op, attrs, inputs, outputs, saved):
        self.op, self.attrs, self.inputs, self.outputs, self.saved = op, attrs, inputs, outputs, saved
        read = [name.split() for name in op.backward_reads]
        self.read = [{"input": inputs, "output": outputs}[kind][int(i)] for kind, i in read]
        self.versions = None  # of what it reads, once forward has happened

    def note_versions(self):
        self.versions = [t and t.storage.version for t in self.read]


class Runs(World):
    """The World, with operators. Of `turn` several versions are kept; which of `served` runs is told by
    the reply, where an edit may come between."""

    def __init__(self, rng):
        super().__init__(rng)
        self.turns = {}  # version: Turn
        self.served = []
        self.failed_edit = None  # a word of its error, while it stands

    def operator(self, name, version):
        if name == "turn":
            version = self.served[-1] if version is None else version
            if version not in self.turns:
                raise Refused("not_found", f"version {version}")
            return self.turns[version]
        if name not in OPERATORS or version not in (None, 1):
            raise Refused("not_found", f"{name} version {version}")
        return OPERATORS[name]

    def attributes(self, op, attrs):
        for name, value in attrs.items():
            if name not in op.attrs or type(value) is not type(op.attrs[name]):
                raise Refused("invalid_argument", f"attribute {name}={value!r}")
        return {**op.attrs, **attrs}

    def inputs(self, p, c, op, ids):
        if not op.inputs - op.optional <= len(ids) <= op.inputs:
            raise Refused("invalid_argument", "number of inputs")
        tensors = [None if id is None else self.tensor(p, c, id) for id in ids]
        tensors += [None] * (op.inputs - len(ids))
        if any(t is None for t in tensors[: op.inputs - op.optional]):
            raise Refused("invalid_argument", "a required input is absent")
        if tensors[0].dtype == "bfloat16" and not op.view:
            raise Untold  # NumPy has none
        if not {t.dtype for t in tensors if t} <= {tensors[0].dtype} & set(op.dtypes):
            raise Refused("invalid_argument", "dtypes")
        if any(t.is_suspect() for t in tensors if t):
            raise Refused("invalid_argument", "suspect")
        if any(t.storage.near for t in tensors if t):
            raise Untold
        self.forbid_aliases(op, tensors)
        return tensors

    def forbid_aliases(self, op, tensors):
        """What is changed in place, and what else lies there."""
        for i in op.in_place:
            for k, other in enumerate(tensors):
                if k < i and k in op.in_place and tensors[i].overlaps(other):
                    raise Refused("invalid_argument", "in place, and overlapping")
                if k != i and other and other.storage.owner is tensors[i].storage.owner and (
                        other.storage is not tensors[i].storage):  # fmt: skip
                    raise Untold  # of one import

    def results(self, p, c, ids, into, descs, others, optional=False):
        """Tensors to be made or (with `into`) written, each as desc: [(id, tensor or None)]."""
        if len(ids) != len(descs) or len(into) > len(descs):
            raise Refused("invalid_argument", "number of results")
        into = [*into, *[None] * (len(ids) - len(into))]
        found, taken = [], set(c.tensors)
        for id, there in zip(ids, into):
            if there is not None:
                tensor = self.tensor(p, c, there)
                if id is not None:
                    raise Refused("invalid_argument", "id and into")
                found.append((there, tensor))
            elif id is None and optional:
                found.append((None, None))
            else:
                taken.add(self.new_id(taken, id))
                found.append((id, None))
        beside = [t for t in others if t is not None]
        for (_, tensor), desc in zip(found, descs):
            if tensor is None or desc is None:
                continue
            if (tensor.dtype, tensor.shape) != desc:
                raise Refused("invalid_argument", "into another shape")
            if any(tensor.overlaps(other) for other in beside):
                raise Refused("invalid_argument", "into what is read")
            if any(tensor.storage.owner is o.storage.owner and tensor.storage is not o.storage for o in beside):
                raise Untold
            beside.append(tensor)
        return found

    def make(self, p, c, found, dtype, array, near=None):
        """Writes a result, and returns its info."""
        id, tensor = found
        if tensor is not None:
            if near:
                raise Untold
            info = {**tensor.info(id), "suspect": Text() if tensor.is_suspect() else None}
            self.overwrite(p, tensor, np.ascontiguousarray(array, NUMPY[dtype]).reshape(-1).view(np.uint8))
            return info
        tensor = Tensor.new(dtype, array.shape, None if near else array)
        if near:
            tensor.storage.near = Near(tensor, array, near)
        self.put(p, c, id, tensor)
        return tensor.info(id)

    def do_forward(self, p, c, name, ids, attrs, outs, options={}):
        op = self.operator(name, options.get("version"))
        tensors = self.inputs(p, c, op, ids)
        attrs = self.attributes(op, attrs)
        context, saved_ids = options.get("context"), options.get("saved")
        if (context is not None or saved_ids is not None) and op.backward_reads is None:
            raise Refused("invalid_argument", "no backward") if context is not None else Untold
        if context is not None:
            self.new_id(c.contexts, context)
            if saved_ids is not None:
                raise Refused("invalid_argument", "context and saved")
        arrays = [t and t.array() for t in tensors]
        op.check(attrs, *arrays)
        outputs, saved, changed = op.run(attrs, *arrays)
        dtype = tensors[0].dtype
        given = saved_ids or []
        if saved_ids is not None and len(given) != len(saved):
            raise Refused("invalid_argument", "number of saved")
        descs = [(dtype, a.shape) for a in (*outputs, *(saved if given else ()))]
        if len(outs) != len(outputs):
            raise Refused("invalid_argument", "number of results")
        found = self.results(p, c, [*outs, *given], options.get("into", []), descs, tensors)
        if op.view and found[0][1] is not None:
            raise Refused("invalid_argument", "a view into")
        p.code = op.code(attrs, *arrays)
        p.late = p.code is not None
        if p.code in ("kernel_fault", "deadline_exceeded"):
            self.fail(p, [*(tensors[i] for i in op.in_place), *(t for _, t in found if t)])
            return
        for i, array in changed.items():
            self.overwrite(p, tensors[i], np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        if p.code:
            return self.keep_written(p, arrays[0], outputs[0], found[0][1])
        if op.view:
            view = Tensor(tensors[0].storage, tensors[0].offset, dtype, outputs[0].shape)
            self.put(p, c, outs[0], view)
            infos = [view.info(outs[0])]
        else:
            infos = [self.make(p, c, f, dtype, a, op.near) for f, a in zip(found, [*outputs, *saved])]
        p.result = {"outputs": infos[: len(outputs)], "context": context, "version": op.version}
        if saved_ids is not None:
            p.result["saved"] = infos[len(outputs) :]
        if name == "turn" and self.failed_edit not in (None, *c.told):
            p.result["warnings"] = [Text(self.failed_edit)]
            p.effects.append(lambda failed=self.failed_edit: c.told.add(failed))
        if context is not None:
            def keep():
                made = [there or c.tensors[id] for id, there in found[: len(outputs)]]
                kept = c.contexts[context] = Context(op, attrs, tensors, made, saved)
                kept.note_versions()

            p.effects.append(keep)

    def do_prepare(self, p, c, id, direction, name, descs, attrs, options={}):
        self.new_id(c.prepareds, id)
        if direction not in ("forward", "vjp"):
            raise Refused("invalid_argument", f"direction {direction}")
        op = self.operator(name, options.get("version"))
        if (options.get("context") or direction == "vjp") and op.backward_reads is None:
            raise Refused("invalid_argument", "no backward")
        self.do_plan(p, c, name, descs, attrs, options)
        kept = {key: p.result[key] for key in ("version", "outputs")}
        p.result = {**kept, "device": Tensor.device, "saved": Any(), "views": Any(), "gradients": Any()}
        p.effects.append(lambda: c.prepareds.__setitem__(id, (direction, name, descs, attrs, options)))

    def do_call(self, p, c, id, ids):
        """As the forward or vjp that was prepared: a result's id that is in use takes it."""
        if id not in c.prepareds:
            raise Refused("not_found", f"prepared call {id}")
        direction, name, descs, attrs, options = c.prepareds[id]
        op = self.operator(name, options.get("version"))
        saved, context = op.saved if options.get("saved") else 0, bool(options.get("context"))
        wanted = [op.outputs, saved, context] if direction == "forward" else [op.outputs, op.saved, op.outputs, len(descs)]
        if len(ids) != len(descs) + sum(wanted):
            raise Refused("invalid_argument", "number of ids")
        for given, (dtype, shape) in zip(ids, descs):
            tensor = self.tensor(p, c, given)
            if (tensor.dtype, tensor.shape) != (dtype, tuple(shape)):
                raise Refused("invalid_argument", "not what was prepared")
        rest = ids[len(descs) :]
        if direction == "vjp":
            return self.call_vjp(p, c, op, name, attrs, ids[: len(descs)], rest)
        outs, kept = rest[: op.outputs], rest[op.outputs : op.outputs + saved]
        if any(i in c.tensors for i in kept):
            raise Untold
        there = [out if out in c.tensors else None for out in outs]
        outs = [None if out in c.tensors else out for out in outs]
        run = {key: options[key] for key in ("version",) if key in options}
        if any(there):
            run["into"] = there
        if options.get("saved"):
            run["saved"] = kept
        if context:
            run["context"] = ids[-1]
        self.do_forward(p, c, name, ids[: len(descs)], attrs, outs, run)
        if p.result is not None:
            p.result = {key: p.result[key] for key in ("version", "warnings") if key in p.result}

    def call_vjp(self, p, c, op, name, attrs, inputs, rest):
        outputs, saved = rest[: op.outputs], rest[op.outputs : op.outputs + op.saved]
        grads, outs = rest[len(outputs + saved) : -len(inputs)], rest[-len(inputs) :]
        into = [out if out in c.tensors else None for out in outs]
        outs = [None if out in c.tensors else out for out in outs] + [None] * (op.inputs - len(outs))
        self.do_vjp(p, c, name, inputs, outputs, saved, grads, attrs, outs, {"into": into})
        p.result = {"version": op.version}

    def keep_written(self, p, x, y, into):
        """What `refuse` had not refused stands in the tensor that was to take its result."""
        if into is None:
            return
        if into.is_suspect() or into.storage.near:
            raise Untold
        self.overwrite(p, into, np.where(x >= 0, y, into.array()).reshape(-1).view(np.uint8))

    def fail(self, p, tensors):
        """The kernel ends badly: all that it was changing is suspect."""
        for tensor in tensors:
            p.writes.add(tensor.storage.owner)

        def effect():
            for tensor in tensors:
                tensor.storage.suspect[tensor.part()] = True
                tensor.storage.version += 1

        p.effects.append(effect)

    def gradients(self, p, c, op, attrs, inputs, outputs, saved, grads, outs, options, beside):
        """The common part of backward and vjp: arrays of what is read, tensors of gradients, ids."""
        descs = [o if isinstance(o, np.ndarray) else None for o in outputs]
        if len(grads) > op.outputs:
            raise Refused("invalid_argument", "number of gradients")
        grads = [None if id is None else self.sound(p, c, id) for id in grads]
        grads += [None] * (op.outputs - len(grads))
        for tensor, desc in zip(grads, descs):
            if tensor and (NUMPY[tensor.dtype], tensor.shape) != (desc.dtype, desc.shape):
                raise Refused("invalid_argument", "a gradient of another shape")
        arrays = [g.array() if g else np.zeros_like(d) for g, d in zip(grads, descs)]
        wanted = [None if a is None else (str(a.dtype), a.shape) for a in inputs]
        found = self.results(p, c, outs, options.get("into", []), wanted, [*beside, *grads], optional=True)
        made = op.grads(attrs, inputs, outputs, saved, arrays)
        p.result = []
        for (id, tensor), array in zip(found, made):
            absent = inputs[len(p.result)] is None
            if absent and tensor is not None:
                raise Untold
            skip = id is None or absent
            p.result.append(None if skip else self.make(p, c, (id, tensor), str(array.dtype), array))

    def do_backward(self, p, c, context, grads, outs, options={}):
        if context not in c.contexts:
            raise Refused("not_found", f"context {context}")
        kept = c.contexts[context]
        for tensor, version in zip(kept.read, kept.versions):
            if tensor is None:
                continue
            p.reads.add(tensor.storage.owner)
            if tensor.storage.version != version or tensor.is_suspect():
                raise Refused("invalid_argument", "written after forward")
        arrays = [[t and t.array() for t in ts] for ts in (kept.inputs, kept.outputs)]
        if any(t.storage.near for t in kept.outputs):
            raise Untold
        self.gradients(p, c, kept.op, kept.attrs, *arrays, kept.saved, grads, outs, options,
                       [t for t in kept.read if t])  # fmt: skip

    def do_vjp(self, p, c, name, ids, outputs, saved, grads, attrs, outs, options={}):
        op = self.operator(name, options.get("version"))
        attrs = self.attributes(op, attrs)
        inputs = self.inputs(p, c, op, ids)
        tensors = [[self.sound(p, c, id) for id in ids] for ids in (outputs, saved)]
        if len(outputs) != op.outputs or len(saved) != op.saved:
            raise Untold
        arrays = [[t and t.array() for t in ts] for ts in (inputs, *tensors)]
        op.check(attrs, *arrays[0])
        shape = np.broadcast_shapes(*(a.shape for a in arrays[0] if a is not None))
        for t in (*tensors[0], *tensors[1]):
            if (t.dtype, t.shape) != (inputs[0].dtype, shape):
                raise Untold
        self.gradients(p, c, op, attrs, *arrays, grads, outs, options, [*inputs, *tensors[0], *tensors[1]])

    def do_plan_export(self, p, c, name, direction, descs, attrs):
        """What its memfd holds is compared in tests/ops/test_in_process.py."""
        self.operator(name, None)
        if direction != "forward":
            raise Refused("invalid_argument", "direction")
        self.do_plan(p, c, name, descs, attrs)
        p.result = {"version": p.result["version"], "layout": 2}

    def do_plan(self, p, c, name, descs, attrs, options={}):
        op = self.operator(name, options.get("version"))
        attrs = self.attributes(op, attrs)
        arrays = [np.zeros(self.shape(dtype, shape), NUMPY[dtype]) for dtype, shape in descs]
        if not op.inputs - op.optional <= len(arrays) <= op.inputs:
            raise Refused("invalid_argument", "number of inputs")
        if descs[0][0] == "bfloat16" and not op.view:
            raise Untold
        if not {d for d, _ in descs} <= {descs[0][0]} & set(op.dtypes):
            raise Refused("invalid_argument", "dtypes")
        arrays += [None] * (op.inputs - len(arrays))
        op.check(attrs, *arrays)
        outputs, saved, _ = op.run(attrs, *arrays)
        p.result = {
            "version": op.version, "outputs": [[descs[0][0], list(a.shape)] for a in outputs],
            "saved": [[descs[0][0], list(a.shape)] for a in saved if op.saved],
            "views": [0 if op.view else None for _ in outputs],
        }  # fmt: skip
