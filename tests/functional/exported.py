"""Exported plans and the page of versions as server/base/exported.h and version_page.h lay them
down, read by hand: what a client would do that is not written in C."""

import array
import mmap
import os
import socket
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import msgpack
from conftest import PROGRAM
from raw import DTYPES, HungUp, RpcError, pack_request

KINDS = ["input", "output", "saved", "scratch", "grad_output", "grad_input"]
NAMES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
LAUNCH, ZERO, MATMUL, COPY = range(4)
OPERAND, STEP, SLOT, KERNEL = "=IIiIIIQ32q", "=IIII3I3IIIIIQ", "=II", "=QQQII"
MATMUL_HEAD, MATRIX = "=IIIIqqq", "=IIQQq"
MATMUL_SIZE = struct.calcsize(MATMUL_HEAD) + 3 * struct.calcsize(MATRIX)
SIZES = [struct.calcsize(OPERAND), struct.calcsize(STEP), struct.calcsize(SLOT), MATMUL_SIZE,
         struct.calcsize(KERNEL), 1, 1, 1, 1]  # fmt: skip


def ask(raw, method, *params):
    """A request whose reply brings a descriptor, which is the caller's: (result, fd or None). Nothing
    else may be under way."""
    raw.msgid += 1
    raw.send(pack_request(raw.msgid, method, params))
    unpacker, fds = msgpack.Unpacker(max_buffer_size=1 << 28), []
    while True:
        data, ancillary, flags, _ = raw.sock.recvmsg(1 << 18, socket.CMSG_SPACE(64))
        assert not flags & socket.MSG_CTRUNC
        for _, _, payload in ancillary:
            fds += array.array("i", payload[: len(payload) // 4 * 4])
        if not data:
            raise HungUp
        unpacker.feed(data)
        for kind, id, error, result in unpacker:
            assert (kind, id) == (1, raw.msgid) and len(fds) <= 1
            if error is not None:
                assert not fds and result is None
                raise RpcError(error)
            return result, fds[0] if fds else None


def export(raw, op, direction, inputs, attrs=None, **options):
    """(result, the plan, its descriptor)"""
    result, fd = ask(raw, "plan_export", op, direction, inputs, attrs or {}, options)
    return result, read_plan(os.pread(fd, os.fstat(fd).st_size, 0)), fd


def read_plan(data):
    magic, layout, device, direction, version, op, target, report, _, size = struct.unpack_from("=8sIIIIIIiIQ", data)
    assert magic == b"opdplan\0" and layout == 2 and size == len(data)
    at = struct.calcsize("=8sIIIIIIiIQ")
    places = [struct.unpack_from("=QQ", data, at + 16 * i) for i in range(len(SIZES))]
    parts = [data[offset : offset + n * size] for (offset, n), size in zip(places, SIZES, strict=True)]
    assert all(offset % 64 == 0 for offset, _ in places)
    assert all(len(part) == n * size for part, (_, n), size in zip(parts, places, SIZES, strict=True))
    operands, steps, slots, matmuls, kernels, args, texts, checks, payloads = parts

    def text(offset):
        return texts[offset : texts.index(b"\0", offset)].decode()

    slots = list(struct.iter_unpack(SLOT, slots))
    return SimpleNamespace(
        on_cpu=device == 1, direction=["forward", "backward"][direction], version=version, op=text(op),
        target=text(target), report=report, checks=checks,
        operands=[read_operand(o, text) for o in struct.iter_unpack(OPERAND, operands)],
        steps=[read_step(s, slots, args) for s in struct.iter_unpack(STEP, steps)],
        matmuls=[matmuls[i : i + MATMUL_SIZE] for i in range(0, len(matmuls), MATMUL_SIZE)],
        kernels=[SimpleNamespace(id=k[0], payload=payloads[k[1] : k[1] + k[2]], symbol=text(k[3]), name=text(k[4]))
                 for k in struct.iter_unpack(KERNEL, kernels)],
    )  # fmt: skip


def read_operand(fields, text):
    kind, index, view_of, dtype, rank, name, size, *lengths = fields
    shape, strides = lengths[:16], lengths[16:]
    operand = SimpleNamespace(kind=KINDS[kind], index=index, view_of=None if view_of < 0 else view_of,
                              dtype=NAMES[dtype - 1], shape=shape[:rank], strides=strides[:rank],
                              name=text(name), size=size)  # fmt: skip
    spans = [(n - 1) * step for n, step in zip(operand.shape, operand.strides)]
    assert size == (0 if 0 in operand.shape else (1 + sum(spans)) * DTYPES[operand.dtype])
    return operand


def read_step(fields, slots, args):
    kind, operand, matmul, kernel, *numbers = fields
    grid, block, (shared, args_size, n_slots, first, start) = numbers[:3], numbers[3:6], numbers[6:]
    return SimpleNamespace(kind=kind, operand=operand, matmul=matmul, kernel=kernel, grid=grid, block=block,
                           shared=shared, args=args[start : start + args_size],
                           slots=slots[first : first + n_slots])  # fmt: skip


def desc(operand):
    return [operand.dtype, operand.shape]


class Page:
    """The page of versions, mapped."""

    def __init__(self, raw):
        self.told, fd = ask(raw, "version_page")
        assert os.fstat(fd).st_size == self.told["size"]
        self.fd = fd
        self.map = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        magic, layout, self.n_slots = struct.unpack_from("=8sII", self.map)
        assert magic == b"opdpage\0" and layout == self.told["layout"] == 1

    @property
    def boot(self):
        return "%016x%016x" % struct.unpack_from("=QQ", self.map, 16)

    def lives(self):
        ended, owner = struct.unpack_from("=I", self.map, 32)[0], struct.unpack_from("=I", self.map, 64)[0]
        return not ended and not owner & 0x40000000

    def version(self, slot):
        """(the version that serves, what changes with an edit that fails)"""
        assert 0 < slot < self.n_slots
        return struct.unpack_from("=II", self.map, 128 + 8 * slot)

    def close(self):
        self.map.close()
        os.close(self.fd)


class Runner:
    """tests/exported_run.c, for as many plans as one likes."""

    def __init__(self, folder):
        program = Path(PROGRAM).parent / "tests" / "exported_run"
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.given, self.made = folder / "given", folder / "made"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.stdin.close()
        assert self.process.wait() == 0
        self.process.stdout.close()

    def run(self, plan, fd, give):
        """{(kind, index): bytes} of all that is no scratch; give(operand): bytes of what is given."""
        backward = plan.direction == "backward"
        kinds = ("input", "grad_output", *(("output", "saved") if backward else ()))
        self.given.write_bytes(b"".join(give(o) for o in plan.operands if o.kind in kinds))
        self.process.stdin.write(f"/proc/{os.getpid()}/fd/{fd} {self.given} {self.made}\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        if not said.startswith("ok "):
            raise RuntimeError(said.strip())
        data, at, made = self.made.read_bytes(), 0, {}
        bases = {o.index for o in plan.operands if o.kind == ("grad_output" if backward else "input")}
        for o in plan.operands:
            # A view of what no step reads is the caller's business alone.
            if o.kind != "scratch" and (o.view_of is None or o.view_of in bases):
                made[o.kind, o.index] = data[at : at + o.size]
                at += o.size
        assert at == len(data)
        return made
