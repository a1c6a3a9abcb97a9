"""Plans for clients that run them in their own process, and the page that tells them what is served.

What such a client computes is in tests/ops/test_in_process.py.
"""

import ctypes
import fcntl
import mmap
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from exported import COPY, LAUNCH, MATMUL, Page, Runner, ask, desc, export

from conftest import DEVICE, PROGRAM
from operators import MARK, PICK, double_by
from raw import Raw, eventually, pack_request, read_fds

X = ["float32", [6, 5]]
on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="the images of the CPU are run here")


def put(folder, name, text):
    new = folder / ".new"
    new.write_text(text)
    new.rename(folder / f"{name}.cu")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir()
    put(folder, "double_it", double_by(2))
    put(folder, "pick", PICK)
    put(folder, "mark", MARK)
    return folder


@pytest.fixture
def own(start_daemon, folder):
    """A daemon of our own, with the operators of `folder`."""
    return start_daemon("--kernels", str(folder))


@pytest.fixture
def raw(own):
    with Raw(own.socket) as raw:
        raw.call("reload")
        yield raw


def fetch(raw, op="double_it", inputs=(X,), **options):
    """The answer alone."""
    result, _, fd = export(raw, op, "forward", list(inputs), **options)
    os.close(fd)
    return result


def plans_held(daemon):
    """How many exported plans the daemon has not sent yet."""
    return sum("opd-plan" in link for link in read_fds(daemon.pid))


# --- plans


def test_what_an_export_is(raw):
    result, plan, fd = export(raw, "double_it", "forward", [X])
    assert result == {"version": 1, "slot": 1, "layout": 2}
    assert [(o.kind, o.index, desc(o), o.name, o.view_of) for o in plan.operands] == [
        ("output", 0, X, "y", None), ("input", 0, X, "x", None)]  # fmt: skip
    (step,) = plan.steps
    assert step.kind == LAUNCH and step.args == bytes(16) + (30).to_bytes(8, "little")
    assert sorted(step.slots) == [(0, 1), (8, 0)]
    assert plan.kernels[0].name == "double_it" and plan.on_cpu == (DEVICE == "cpu")
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == seals
    _, other, second = export(raw, "double_it", "forward", [["float32", [3]]])
    assert other.kernels[0].id == plan.kernels[0].id and other.kernels[0].payload == plan.kernels[0].payload
    _, other, third = export(raw, "double_it", "forward", [["float64", [3]]])
    assert other.kernels[0].id != plan.kernels[0].id
    for fd in (fd, second, third):
        os.close(fd)


def test_options(client, daemon):
    with Raw(daemon.socket) as raw:
        sizes = [[256, 64], [384, 192], [384], [256, 128], [256, 128]]  # no GPU makes that by one kernel
        lltm = [["float32", s] for s in sizes]

        def kinds(direction, **options):
            _, plan, fd = export(raw, "lltm", direction, lltm, **options)
            os.close(fd)
            return [(o.kind, o.index) for o in plan.operands], [s.kind for s in plan.steps], plan

        saved = len(raw.call("plan", "lltm", lltm, {})["saved"])
        without, launches, _ = kinds("forward")
        assert not [k for k in without if k[0] == "saved"] and MATMUL not in launches
        operands, _, _ = kinds("forward", keep=True)
        assert len([k for k in operands if k[0] == "saved"]) == saved > 0
        _, products, plan = kinds("forward", blas=True)
        assert products.count(MATMUL) == len(plan.matmuls) > 0
        every, _, _ = kinds("backward")
        assert [k for k in every if k[0] == "grad_input"] == [("grad_input", i) for i in range(5)]
        one, _, _ = kinds("backward", wanted=[False, True, False, False, False])
        assert [k for k in one if k[0] == "grad_input"] == [("grad_input", 1)]
        assert ("grad_output", 0) in one
        absent, _, _ = kinds("backward", grad_absent=[True, False])
        assert ("grad_output", 0) not in absent and ("grad_output", 1) in absent
        device, _, _ = kinds("forward", device=client.info["default_device"], version=1, wanted=[True] * 5)
        assert device == without  # forward asks nobody for gradients


BAD = [
    (["nothing", "forward", [X], {}], "not_found", "nothing"),
    (["double_it", "sideways", [X], {}], "invalid_argument", "'sideways', expected 'forward' or 'backward'"),
    (["double_it", "backward", [X], {}], "invalid_argument", "double_it: it has no backward"),
    (["double_it", "forward", [], {}], "invalid_argument", "x is missing"),
    (["double_it", "forward", [X, X], {}], "invalid_argument", "takes 1 tensor, 2 came"),
    (["double_it", "forward", [["float16", [3]]], {}], "invalid_argument", "float32, float64"),
    (["double_it", "forward", [["float7", [3]]], {}], "invalid_argument", "no such dtype"),
    (["double_it", "forward", [["float32", [1 << 50]]], {}], "invalid_argument", "2^48"),
    (["double_it", "forward", [["float32", [-1]]], {}], "invalid_argument", "-1"),
    (["double_it", "forward", [["float32", [1] * 17]], {}], "invalid_argument", "16"),
    (["double_it", "forward", ["float32"], {}], "invalid_argument", "expected [dtype, shape] or nil"),
    (["double_it", "forward", [X], {"by": 1}], "invalid_argument", "by"),
    (["double_it", "forward", [X], {}, {"device": "cuda:99"}], "not_found", "cuda:99"),
    (["double_it", "forward", [X], {}, {"version": 7}], "not_found", "7"),
    (["double_it", "forward", [X], {}, {"keep": 1}], "invalid_argument", "keep is an integer, expected true or false"),
    (["double_it", "forward", [X], {}, {"blas": "x"}], "invalid_argument", "blas is a string"),
    (["pick", "backward", [X, ["int64", [2]]], {}, {"wanted": [True]}], "invalid_argument", "an array of 2"),
    (["pick", "backward", [X, ["int64", [2]]], {}, {"grad_absent": [0]}], "invalid_argument", "an array of 1"),
    (["double_it", 3, [X], {}], "invalid_argument", "plan_export"),
]  # fmt: skip


@pytest.mark.parametrize("params, code, words", BAD, ids=range(len(BAD)))
def test_bad_requests(daemon, raw, params, code, words):
    error = raw.fail("plan_export", *params)
    assert error.code == code and words in str(error)
    assert raw.call("status")["clients"][0]["in_process"] == []


def test_a_kernel_that_does_not_compile(folder, raw):
    put(folder, "narrow", double_by("one<sizeof(scalar_t)>()").replace("double_it", "narrow").replace(
        "extern", 'template <int SIZE> __device__ int one() { static_assert(SIZE == 4, "narrow"); return 1; }\nextern'))
    raw.call("reload")
    error = raw.fail("plan_export", "narrow", "forward", [["float64", [3]]], {})
    assert error.code == "compile_error" and "narrow" in error.log and error.op == "narrow"
    assert fetch(raw, "narrow")["version"] == 1


def test_too_many_launches(start_daemon, folder):
    daemon = start_daemon("--kernels", str(folder), "--max-launches", "1")
    with Raw(daemon.socket) as raw:
        fetch(raw)
        assert "--max-launches" in str(raw.fail("plan_export", "pick", "forward", [X, ["int64", [2]]], {}))


def test_a_client_that_reads_nothing(own, raw):
    """Its exports wait in the daemon, bounded, and go with it."""
    fetch(raw)
    with Raw(own.socket) as silent:
        silent.sock.setblocking(False)

        def ask_for_more():
            try:
                for i in range(5000):
                    silent.sock.send(pack_request(i, "plan_export", ["double_it", "forward", [X], {}]))
            except BlockingIOError:
                raw.call("status")
                return plans_held(own) > 1

        assert eventually(ask_for_more)
        assert plans_held(own) < 200
    assert eventually(lambda: plans_held(own) == 0)


def test_notifications_leave_nothing(own, raw):
    fetch(raw)
    os.close(ask(raw, "version_page")[1])
    for _ in range(5):
        raw.notify("plan_export", "double_it", "forward", [X], {})
        raw.notify("version_page")
    raw.call("sync")
    assert eventually(lambda: plans_held(own) == 0)
    assert sum("opd-versions" in link for link in read_fds(own.pid)) == 2


@on_cpu
def test_a_client_that_goes_while_it_waits(slow_cxx, start_daemon, folder, tmp_path):
    daemon = start_daemon("--kernels", str(folder), "--cache", str(tmp_path / "cache"))
    with Raw(daemon.socket) as raw:
        gone = Raw(daemon.socket)
        gone.request("plan_export", "double_it", "forward", [X], {})
        assert eventually(slow_cxx.begun.exists)
        gone.close()
        slow_cxx.go.touch()
        assert eventually(lambda: raw.call("status")["connections"] == 1)
        assert fetch(raw)["version"] == 1
        assert eventually(lambda: plans_held(daemon) == 0)


@on_cpu
def test_what_a_kernel_reports(raw, tmp_path):
    with Runner(tmp_path) as runner:
        rows = np.array([1, 2, 9, -1], np.int64)
        given = {("input", 0): np.zeros((6, 5), np.float32).tobytes(), ("input", 1): rows.tobytes()}
        _, plan, fd = export(raw, "pick", "forward", [X, ["int64", [4]]])
        assert plan.report >= 0 and desc(plan.operands[plan.report]) == ["int64", []]
        with pytest.raises(RuntimeError, match=r"^row 3 of rows is negative \(bias 0\)$"):
            runner.run(plan, fd, lambda o: given[o.kind, o.index])
        os.close(fd)
        _, plan, fd = export(raw, "mark", "forward", [["int64", [3]]])
        made = runner.run(plan, fd, lambda o: np.array([1, 2, 3], np.int64).tobytes())
        assert made["input", 0] == np.array([7, 7, 7], np.int64).tobytes()  # in place
        with pytest.raises(RuntimeError, match=r"^x\[1\] is not positive$"):
            runner.run(plan, fd, lambda o: np.array([1, 0, 3], np.int64).tobytes())
        os.close(fd)


# --- what is served


@pytest.fixture
def page(raw):
    page = Page(raw)
    yield page
    page.close()


def test_the_page(own, raw, page):
    assert page.boot == page.told["boot"] and page.lives()
    with pytest.raises(PermissionError):
        mmap.mmap(page.fd, 0)
    with pytest.raises(OSError):
        os.ftruncate(page.fd, 0)
    slots = {op: fetch(raw, op, inputs)["slot"] for op, inputs in
             [("double_it", [X]), ("pick", [X, ["int64", [2]]]), ("mark", [["int64", [3]]])]}  # fmt: skip
    assert sorted(slots.values()) == [1, 2, 3]
    assert all(page.version(slot) == (1, 0) for slot in slots.values())
    assert page.version(4) == (0, 0)
    with Raw(own.socket) as other:  # the same for everybody
        again = Page(other)
        assert again.boot == page.boot and fetch(other, "pick", [X, ["int64", [2]]])["slot"] == slots["pick"]
        again.close()


def test_edits_are_there_before_the_answer(folder, raw, page):
    slot = fetch(raw)["slot"]
    for n in range(3, 23):
        put(folder, "double_it", double_by(n))
        raw.send(pack_request(raw.msgid + 1, "reload", []))
        raw.msgid += 1
        told = raw.wait(raw.msgid)
        assert page.version(slot) == (n - 1, 0)
        assert [(t["op"], t["version"], t["state"]) for t in told] == [("double_it", n - 1, "serving")]
    assert fetch(raw)["version"] == 21


def test_what_was_exported_is_ready_after_an_edit(folder, raw):
    fetch(raw)
    put(folder, "double_it", double_by(5))
    raw.call("reload")
    compiled = raw.call("status")["compilers"]
    assert fetch(raw)["version"] == 2
    after = raw.call("status")["compilers"]
    assert [after[k] for k in ("compiled", "cache_hits")] == [compiled[k] for k in ("compiled", "cache_hits")]


def test_an_edit_that_fails(folder, raw, page):
    slot = fetch(raw)["slot"]
    put(folder, "double_it", double_by("broken"))
    raw.call("reload")
    version, failure = page.version(slot)
    assert version == 1 and failure > 0
    (warning,) = fetch(raw)["warnings"]
    assert "double_it" in warning and "broken" in warning
    assert "warnings" not in fetch(raw)
    put(folder, "double_it", double_by("broken_too"))
    raw.call("reload")
    assert page.version(slot)[0] == 1 and page.version(slot)[1] not in (0, failure)
    put(folder, "double_it", double_by(4))
    raw.call("reload")
    assert page.version(slot) == (4, 0)


def test_rollback_pin_and_withdrawal(folder, raw, page):
    slot = fetch(raw)["slot"]
    text = (folder / "double_it.cu").read_text()
    put(folder, "double_it", double_by(3))
    raw.call("reload")
    assert raw.call("rollback", "double_it") == {"version": 1} and page.version(slot) == (1, 0)
    assert fetch(raw)["version"] == 1 and fetch(raw, version=2)["version"] == 2
    assert raw.call("pin", "double_it", 2)["version"] == 2 and page.version(slot) == (2, 0)
    put(folder, "double_it", double_by(7))
    raw.call("reload")
    assert page.version(slot) == (2, 0)
    raw.call("pin", "double_it", None)
    assert page.version(slot) == (3, 0)
    (folder / "double_it.cu").unlink()
    raw.call("reload")
    assert page.version(slot) == (0, 0)
    assert raw.fail("plan_export", "double_it", "forward", [X], {}).code == "not_found"
    put(folder, "double_it", text)
    raw.call("reload")
    assert page.version(slot) == (4, 0) and fetch(raw)["slot"] == slot


def test_upgrades(own, folder, raw, page):
    slot, boot = fetch(raw)["slot"], page.boot
    raw.call("hello", "trainer", {})
    for n in range(2):
        raw.call("upgrade", {})
        assert page.lives() and page.boot == boot and page.version(slot) == (n + 1, 0)
        again = Page(raw)
        assert again.boot == boot and again.version(slot) == page.version(slot)
        again.close()
        assert raw.call("status")["clients"][0]["in_process"] == ["double_it"]
        put(folder, "double_it", double_by(10 + n))
        raw.call("reload")
        assert page.version(slot) == (n + 2, 0) == page.version(slot)
        assert fetch(raw) == {"version": n + 2, "slot": slot, "layout": 2}
    assert fetch(raw, "pick", [X, ["int64", [2]]])["slot"] == slot + 1  # none is given twice


def test_upgrade_before_there_is_a_page(own, raw):
    raw.call("upgrade", {})
    page = Page(raw)
    assert page.version(fetch(raw)["slot"]) == (1, 0)
    page.close()


def test_stop(own, raw, page):
    slot = fetch(raw)["slot"]
    raw.call("stop")
    assert not page.lives() and page.version(slot) == (1, 0)  # what is loaded may go on
    own.process.wait()
    assert not page.lives()


def test_kill(own, raw, page):
    fetch(raw)
    assert page.lives()
    own.process.kill()
    own.process.wait()
    assert not page.lives()
    own.process.stdout.close()
    own.clear()


def test_another_daemon(start_daemon, folder, own, raw, page):
    with Raw(start_daemon("--kernels", str(folder)).socket) as other:
        another = Page(other)
        assert another.boot != page.boot and another.lives() and page.lives()
        another.close()


# --- who runs what


def metric(raw, op):
    (line,) = [line for line in raw.call("metrics").splitlines() if f'in_process_clients{{op="{op}"}}' in line]
    return int(line.split()[-1])


def test_who_runs_operators_in_process(own, raw):
    opctl = Path(PROGRAM).parent / "opctl"
    with Raw(own.socket) as trainer:
        trainer.call("hello", "train.py", {})
        fetch(trainer)
        fetch(trainer, "pick", [X, ["int64", [2]]])
        fetch(trainer)
        (client,) = [c for c in raw.call("status")["clients"] if c["client"] == "train.py"]
        assert sorted(client["in_process"]) == ["double_it", "pick"] and client["pid"] == os.getpid()
        assert metric(raw, "double_it") == metric(raw, "pick") == 1
        status = subprocess.run([opctl, "--socket", own.socket, "status"], capture_output=True, text=True, check=True)
        assert "RUNS IN PROCESS" in status.stdout and "double_it pick" in status.stdout
        top = subprocess.run([opctl, "--socket", own.socket, "top", "--no-follow"], capture_output=True, text=True,
                             check=True)  # fmt: skip
        assert f"in process: double_it pick by train.py, pid {os.getpid()}\n" in top.stdout
    assert eventually(lambda: metric(raw, "double_it") == 0)
    assert all(c["in_process"] == [] for c in raw.call("status")["clients"])


# --- on a GPU, with nothing but the driver


class Driver:
    """CUDA's driver in this process, in the device's primary context."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check("cuInit", 0)
        self.check("cuDeviceGet", ctypes.byref(self.device), 0)
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.check("cuCtxSetCurrent", context)

    def check(self, name, *args):
        assert getattr(self.cuda, name)(*args) == 0, name

    def close(self):
        self.check("cuDevicePrimaryCtxRelease_v2", self.device)

    def allocate(self, size, data=None):
        address = ctypes.c_uint64()
        self.check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        if data:
            self.check("cuMemcpyHtoD_v2", address, data, ctypes.c_size_t(size))
        return address.value

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.check("cuCtxSynchronize")
        self.check("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw

    def load(self, kernel):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check("cuModuleLoadData", ctypes.byref(module), kernel.payload)
        self.check("cuModuleGetFunction", ctypes.byref(function), module, kernel.symbol.encode())
        return function

    def launch(self, function, step, addresses):
        args = bytearray(step.args)
        for offset, operand in step.slots:
            args[offset : offset + 8] = addresses[operand].to_bytes(8, "little")
        args, size = (ctypes.c_char * len(args)).from_buffer(args), ctypes.c_size_t(len(args))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(args), 2, ctypes.addressof(size), 0)
        if step.shared > 48 << 10:
            self.check("cuFuncSetAttribute", function, 8, step.shared)
        self.check("cuLaunchKernel", function, *step.grid, *step.block, step.shared, None, None, extra)

    def run(self, plan, given):
        """Bytes of each operand; `given` by kind and index."""
        functions = [self.load(kernel) for kernel in plan.kernels]
        at = [self.allocate(o.size, given.get((o.kind, o.index))) for o in plan.operands]
        for step in plan.steps:
            if step.kind in (LAUNCH, COPY):
                self.launch(functions[step.kernel], step, at)
            else:
                size = ctypes.c_size_t(plan.operands[step.operand].size)
                self.check("cuMemsetD8_v2", ctypes.c_uint64(at[step.operand]), ctypes.c_ubyte(0), size)
        made = {(o.kind, o.index): self.read(a, o.size) for o, a in zip(plan.operands, at, strict=True)}
        for address in at:
            self.check("cuMemFree_v2", ctypes.c_uint64(address))
        return made


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("op, inputs, attrs", [
    ("gelu", [["float32", [33, 65]]], {}),
    ("gelu", [["float16", [7]]], {"approximate": "tanh"}),
    ("depthwise_conv2d", [["float32", [2, 3, 9, 9]], ["float32", [3, 1, 3, 3]], None], {"padding": [1, 1]}),
    ("upsample_bilinear2d", [["bfloat16", [1, 2, 5, 7]]], {"size": [9, 4]}),
])  # fmt: skip
def test_cubins_in_this_process(daemon, op, inputs, attrs):
    rng, driver = np.random.default_rng(3), Driver()
    with Raw(daemon.socket) as raw:
        given = {}
        for i, (dtype, shape) in enumerate(filter(None, inputs)):
            count = int(np.prod(shape))
            data = rng.integers(0, 200, count * 4, np.uint8).tobytes()[: count * (4 if dtype == "float32" else 2)]
            if dtype == "float32":
                data = rng.standard_normal(count).astype(np.float32).tobytes()
            given["input", i] = data
            raw.make(i + 1, dtype, shape, data)
        ids = [i + 1 if desc else None for i, desc in enumerate(inputs)]
        raw.call("forward", op, ids, attrs, [100])
        _, plan, fd = export(raw, op, "forward", inputs, attrs)
        os.close(fd)
        assert not plan.on_cpu and plan.target.startswith("sm_")
        assert driver.run(plan, given)["output", 0] == raw.call("tensor_read", 100, 0)
    driver.close()
