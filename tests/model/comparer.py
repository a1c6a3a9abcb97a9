"""Holds what came against what must come: replies, and from time to time everything that there is."""

import mmap
import os

import numpy as np

from model import Any, Near, Text
from conftest import eventually


class Wrong(AssertionError):
    """The daemon, or the model."""


def differs(path, came, must):
    """In words, or None."""
    if isinstance(must, Any):
        return None
    if isinstance(must, Text):
        return None if isinstance(came, str) and came and must.word in came else f"{path} is {came!r}, expected {must}"
    if isinstance(must, Near):
        wrong = must.adopt(came)
        return wrong and f"{path}: {wrong}"
    if isinstance(must, dict) and isinstance(came, dict):
        if came.keys() != must.keys():
            return f"{path} has {sorted(came)}, expected {sorted(must)}"
        pairs = [(f"{path}.{k}", came[k], must[k]) for k in must]
    elif isinstance(must, list) and isinstance(came, list):
        if len(came) != len(must):
            return f"{path} has {len(came)} elements, expected {len(must)}: {came!r:.200}"
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(came, must))]
    elif isinstance(must, bytes) and isinstance(came, bytes):
        return differ_bytes(path, came, must)
    else:
        same = type(came) is type(must) and came == must
        return None if same else f"{path} is {came!r:.200}, expected {must!r:.200}"
    return next((d for pair in pairs if (d := differs(*pair))), None)


def differ_bytes(path, came, must):
    if came == must:
        return None
    if len(came) != len(must):
        return f"{path} has {len(came)} bytes, expected {len(must)}"
    a, b = np.frombuffer(came, np.uint8), np.frombuffer(must, np.uint8)
    places = np.flatnonzero(a != b)
    i = int(places[0])
    return (f"{path}: {len(places)} of {len(a)} bytes differ, from byte {i}: "
            f"{came[i : i + 16].hex()}, expected {must[i : i + 16].hex()}")  # fmt: skip


def check_reply(method, params, prediction, error, result):
    """Of a request that nothing disturbed."""
    if error is not None:
        if error["code"] != prediction.code:
            raise Wrong(f"error {error['code']}: {error['message']!r:.300}, expected "
                        + (prediction.code or f"{prediction.result!r:.200}"))  # fmt: skip
        return
    if prediction.code:
        raise Wrong(f"it was answered with {result!r:.200}, expected {prediction.why}")
    if wrong := differs("the result", result, prediction.result):
        raise Wrong(wrong)


def map_export(export, result, fd):
    """The daemon's memory, in place."""
    if fd is None:
        return
    try:
        whole = mmap.mmap(fd, result["chunk_size"])
        begin = result["offset"]
        export.real = np.frombuffer(whole, np.uint8)[begin : begin + result["size"]]
    finally:
        os.close(fd)


def take_fd(fds, name):
    """The first memfd of that name among those that came."""
    fd = next((fd for fd in fds if name in os.readlink(f"/proc/self/fd/{fd}")), None)
    if fd is None:
        raise Wrong(f"no {name} came beside the reply")
    fds.remove(fd)
    return fd


def take_plan(result, fds):
    """An exported plan, which comes beside its reply."""
    if result.pop("slot", 0) < 1:
        raise Wrong(f"no slot in {result!r}")
    fd = take_fd(fds, "opd-plan")
    try:
        if os.pread(fd, 12, 0) != b"opdplan\0\2\0\0\0":
            raise Wrong("what came beside the reply is no plan")
    finally:
        os.close(fd)


class Auditor:
    """Reads everything, when nothing is in flight."""

    def __init__(self, world, connections):
        self.world, self.connections = world, connections

    def audit(self):
        for client in self.world.clients:
            raw = self.connections[client]
            for id, tensor in client.tensors.items():
                self.check_tensor(raw, id, tensor)
            self.check_list(client, raw)
            self.check_memory(client)

    def check_tensor(self, raw, id, tensor):
        if tensor.is_suspect():
            error, _ = raw.ask("tensor_read", id, 0)
            if tensor.size and (error is None or error["code"] != "invalid_argument"):
                raise Wrong(f"tensor {id} is suspect, and was read")
            return
        error, came = raw.ask("tensor_read", id, 0)
        if error:
            raise Wrong(f"tensor {id} cannot be read: {error['message']}")
        near = tensor.storage.near
        if near and tensor.size != len(tensor.storage.bits):
            return
        must = near or tensor.storage.bits[tensor.part()].tobytes()
        if wrong := differs(f"tensor {id}, {tensor.dtype} {list(tensor.shape)},", came, must):
            raise Wrong(wrong)

    def check_list(self, client, raw):
        error, came = raw.ask("tensor_list")
        if error:
            raise Wrong(error["message"])
        unnamed = [t.info(id) for id, t in client.tensors.items() if t.name is None]
        must = [*unnamed, *(t.info(0) for t in self.world.names.values())]
        counts = {}
        for other in self.world.clients:
            for tensor in other.tensors.values():
                if tensor.name is not None:
                    counts[tensor.name] = counts.get(tensor.name, 0) + 1

        def order(row):
            return (row["id"], row["name"] or "")

        came = [{k: v for k, v in row.items() if k not in ("ids", "owner")} for row in came]
        if wrong := differs("tensor_list", sorted(came, key=order), sorted(must, key=order)):
            raise Wrong(wrong)

        def wrong_ids():  # those of a client that has left go in a later turn
            ids = {row["name"]: row["ids"] for row in raw.ask("tensor_list")[1] if row["name"] is not None}
            return differs("ids of tensor_list", ids, {n: counts.get(n, 0) for n in self.world.names})

        if not eventually(lambda: not wrong_ids()):
            raise Wrong(wrong_ids())

    def check_memory(self, client):
        for what, kind in ((client.shms, "shared memory"), (client.imports, "import")):
            for id, shared in what.items():
                if not np.array_equal(shared.real, shared.bits):
                    raise Wrong(f"{kind} {id} of {client.name} holds something else")
        for id, export in client.exports.items():
            storage, part = export.storage, export.part
            known = ~storage.suspect[part]
            if export.real is not None and not storage.near:
                if not np.array_equal(export.real[known], storage.bits[part][known]):
                    raise Wrong(f"export {id} of {client.name} holds something else")

    def learn(self, client, raw):
        """After a request that may have been begun or not: what of the memory it was to write is suspect
        must be, and the rest must be as it was."""
        for id, tensor in client.tensors.items():
            error, info = raw.ask("tensor_info", id)
            if error or (info["suspect"] is not None) != tensor.is_suspect():
                raise Wrong(f"tensor {id} is {'' if error is None and info['suspect'] else 'not '}suspect: {error}")
