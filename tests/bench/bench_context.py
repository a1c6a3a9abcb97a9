"""What an idle context takes of a GPU, as the driver has it and with lower limits: bench_context.py [--device 0]

Each in a process of its own, by NVIDIA's libnvidia-ml: of that process where it is known by its number, and of the
whole card, before and after. server/executor/cuda_context.h has what comes of it.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import time

STACK, PRINTF, HEAP = 0, 1, 2  # CUlimit
WAYS = {
    "as the driver has it": {},
    "a stack of 256 bytes": {STACK: 256},
    "a stack of 512 bytes": {STACK: 512},
    "printf's buffer 64 KiB, a heap of 64 KiB": {PRINTF: 64 << 10, HEAP: 64 << 10},
    "all three": {STACK: 256, PRINTF: 64 << 10, HEAP: 64 << 10},
}


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint * 2)]


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def must(result, what):
    if result:
        sys.exit(f"{what}: {result}")


class Card:
    def __init__(self, index):
        self.cuda, self.nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
        self.device, self.handle, uuid = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(16)
        must(self.cuda.cuInit(0), "cuInit")
        must(self.cuda.cuDeviceGet(ctypes.byref(self.device), index), "cuDeviceGet")
        must(self.cuda.cuDeviceGetUuid(uuid, self.device), "cuDeviceGetUuid")
        digits = uuid.raw.hex()
        name = "GPU-" + "-".join(digits[a:b] for a, b in [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)])
        must(self.nvml.nvmlInit_v2(), "nvmlInit")
        must(self.nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(self.handle)), "nvmlDeviceGetHandleByUUID")

    def used(self):
        memory = Memory()
        ask = getattr(self.nvml, "nvmlDeviceGetMemoryInfo", None)
        return memory.used if ask and ask(self.handle, ctypes.byref(memory)) == 0 else 0

    def own(self):
        n, all_of_them = ctypes.c_uint(1024), (Process * 1024)()
        must(self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.handle, ctypes.byref(n), all_of_them), "processes")
        return next((p.used for p in all_of_them[: n.value] if p.pid == os.getpid()), 0)


def measure(card, way):
    before, context, stream, began = card.used(), ctypes.c_void_p(), ctypes.c_void_p(), time.monotonic()
    must(card.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), card.device), "cuDevicePrimaryCtxRetain")
    must(card.cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    for limit, value in WAYS[way].items():
        must(card.cuda.cuCtxSetLimit(limit, ctypes.c_size_t(value)), "cuCtxSetLimit")
    must(card.cuda.cuStreamCreate(ctypes.byref(stream), 1), "cuStreamCreate")
    took = time.monotonic() - began
    print(f"| {way} | {card.own() >> 20} | {(card.used() - before) / (1 << 20):.0f} | {took * 1e3:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--way", help="one, in this process")
    args = parser.parse_args()
    if args.way:
        measure(Card(args.device), args.way)
        return
    print("| context | MiB of its process | MiB of the card | ms to make it |\n|---|---|---|---|", flush=True)
    for way in WAYS:
        subprocess.run([sys.executable, __file__, "--device", str(args.device), "--way", way])


if __name__ == "__main__":
    main()
