"""opd in IPython and Jupyter, after `%load_ext opd`: %%opd serves the operator in its cell, %opd_time times one."""

from __future__ import annotations

import argparse
import base64
import html
import io
import os
import re
import shlex
from statistics import median
from typing import Any, NamedTuple, NoReturn, Optional

from IPython.core.error import UsageError

from ._protocol import DTYPES
from .client import Client, connect
from .errors import CompileError, OpdError, count

_FIRST = 2  # the line of the cell on which the operator begins
_RUNS = 20
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}")


class Magics:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        shell.register_magic_function(self.serve, "cell", "opd")
        shell.register_magic_function(self.time, "line", "opd_time")

    def serve(self, line: str, cell: str) -> None:
        """Serves the operator in this cell: %%opd [--shared] [--client NAME] [--target sm_90]

        --shared  everybody sees it, not only this client
        --client  the variable with the opd.Client, else `client`, which is made where there is none
        --target  tells what its kernels take there, else on the GPUs that the daemon has
        """
        parser = _Parser(prog="%%opd", add_help=False)
        parser.add_argument("--shared", action="store_true")
        parser.add_argument("--client", default="client")
        parser.add_argument("--target")
        chosen = parser.parse_args(shlex.split(line))
        client = self._find_client(chosen.client)
        try:
            operator = client.load(cell, chosen.shared, name="cell", line=_FIRST)
            gpus = [d["name"] for d in client.status()["devices"] if d["name"] != "cpu"]
            checked: dict[str, Any] = {"kernels": [], "errors": []}
            if chosen.target or gpus:
                options = {"targets": chosen.target.split(",")} if chosen.target else {}
                text = f"#line {_FIRST}\n{cell}"
                checked = client._link.ask("check", "cell", "", text, options)
                for failed in checked["errors"]:
                    if failed["log"]:
                        raise CompileError(failed["message"], log=failed["log"])
        except OpdError as e:
            lines = mark(e, cell)
            setattr(e, "_render_traceback_", lambda: lines)
            raise
        served = f"{operator.__name__} version {operator.version}"
        kernels = [kernel for kernel in checked["kernels"] if "registers" in kernel]
        why = [failed["message"] for failed in checked["errors"]]  # no compiler, and no fault of the cell
        self._display(_show_served(served, operator.schema, kernels, *why[:1]))

    def time(self, line: str) -> None:
        """Runs an operator's examples, and shows the time and the bytes per second of each beside what the
        device copies: %opd_time NAME [--client NAME]"""
        parser = _Parser(prog="%opd_time", add_help=False)
        parser.add_argument("name")
        parser.add_argument("--client", default="client")
        chosen = parser.parse_args(shlex.split(line))
        client = self._find_client(chosen.client)
        if chosen.name not in client.ops:
            raise UsageError(f"%opd_time: {client._catalog.tell_missing(chosen.name)}")
        if client._catalog.specs[chosen.name].lists:
            raise UsageError(f"%opd_time: {chosen.name} takes lists of tensors, which are not timed here")
        device = client.info["default_device"]
        times = sorted(measure(client, chosen.name), key=lambda time: time.bytes)
        if not times:
            raise UsageError(f"%opd_time: {chosen.name} has no `example` line")
        copy = client.copy_speed(device)
        picture = _plot(chosen.name, times, copy)
        if picture is not None:
            self._display({"image/png": base64.b64encode(picture).decode(), "text/plain": "a plot"})
        print(write_table(f"{chosen.name} on {device}, which copies {copy / 1e9:.1f} GB/s", times, copy))

    def _display(self, data: dict[str, str]) -> None:
        self._shell.display_pub.publish(data)

    def _find_client(self, name: str) -> Client:
        client = self._shell.user_ns.get(name)
        if client is None or (isinstance(client, Client) and client._conn.closed):
            client = self._shell.user_ns[name] = connect()
        if not isinstance(client, Client):
            raise UsageError(f"{name} is no opd.Client; name the variable with --client NAME")
        return client


def mark(error: OpdError, cell: str) -> list[str]:
    """The error's lines, with those of the cell that they are about, and carets."""
    message, log = str(error.args[0]), error.log or ""
    source = cell.split("\n")
    found = re.findall(r"^cell:(\d+):(?:(\d+):)? (.*)", log, re.M) or re.findall(
        r"^cell:(\d+):(?:(\d+):)? (.*)", message
    )
    if not found:
        return [f"{_RED}{type(error).__name__}{_PLAIN}: {error}"]
    caret = re.search(r"^( *)\^", log, re.M)
    lines = []
    for number, column, what in found:
        text = source[int(number) - _FIRST] if 0 <= int(number) - _FIRST < len(source) else ""
        at = int(column) - 1 if column else len(caret[1]) if caret else 0
        lines.append(f"{_RED}{type(error).__name__}{_PLAIN}: cell, line {number}: {what}")
        lines.append(f"{number:>5} | {text}")
        blank = re.sub(r"\S", " ", text[:at])  # tabs stay
        lines.append(f"      | {blank}{_RED}^{_PLAIN}")
    return lines


_COLUMNS = ("kernel", "dtype", "target", "registers", "spill_stores", "spill_loads", "shared")


def _show_served(
    served: str,
    schema: str,
    kernels: list[dict[str, Any]],
    why: str = "no registers or spills to tell of on the CPU; --target sm_90 tells those of a GPU",
) -> dict[str, str]:
    text = f"serving {served}: {schema}"
    page = f"serving <b>{html.escape(served)}</b>: <code>{html.escape(schema)}</code>"
    if kernels:
        rows = [[str(kernel[key]) for key in _COLUMNS] for kernel in kernels]
        most = max(kernel["registers"] for kernel in kernels)
        spilled = sum(kernel["spill_stores"] + kernel["spill_loads"] for kernel in kernels)
        summary = f"{count(most, 'register')} at most, {count(spilled, 'byte')} spilled"
        table = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
        )
        head = "".join(f"<th>{key.replace('_', ' ')}</th>" for key in _COLUMNS)
        text += f"\n{summary}"
        page += f"<details><summary>{summary}</summary><table><tr>{head}</tr>{table}</table></details>"
    else:
        text += f"\n{why}"
        page += f"<details><summary>kernels</summary>{html.escape(why)}</details>"
    return {"text/plain": text, "text/html": page}


class Time(NamedTuple):
    shapes: str
    bytes: int  # that it reads and writes
    seconds: float  # on the device


def measure(client: Client, name: str) -> list[Time]:
    """Each of the operator's examples, run some times."""
    spec, operator = client._catalog.specs[name], client.ops[name]
    times = []
    for example in spec.info["examples"]:
        inputs = [
            given and _make_input(client, info["dtypes"], given, data)
            for info, given, data in zip(spec.inputs, example["inputs"], example["data"])
        ]
        given = [x for x in inputs if x is not None]
        names = [info["name"] for info, x in zip(spec.inputs, inputs) if x is not None]
        made = operator(*inputs, **example["attrs"])  # compiles
        outputs = made if isinstance(made, tuple) else () if made is None else (made,)
        in_place = [x for info, x in zip(spec.inputs, inputs) if info["in_place"] and x is not None]
        n_bytes = sum(tensor.nbytes for tensor in [*given, *in_place, *outputs])
        with client.trace() as runs:
            for _ in range(_RUNS):
                operator(*inputs, **example["attrs"])
            ours = [r for r in runs.read() if r["op"] == name and r["pid"] == os.getpid()]
        if ours:
            shapes = ", ".join(f"{n} {list(x.shape)}" for n, x in zip(names, given))
            times.append(Time(shapes, n_bytes, median(run["seconds"] for run in ours)))
    return times


def _make_input(client: Client, dtypes: list[str], given: dict[str, Any], data: Any) -> Any:
    import numpy as np

    rng = np.random.default_rng(0)
    dtype, shape = given["dtype"], given["shape"]
    floating = "float" in dtype
    if floating and "float32" in dtypes:
        dtype = "float32"
    assert dtype in DTYPES
    data = data or {}
    if data.get("values") is not None:
        values = np.array(data["values"]).reshape(shape)
    elif data.get("low") is not None:
        draw = rng.uniform if floating else rng.integers
        values = draw(data["low"], data["high"] + (not floating), shape)
    else:
        values = rng.standard_normal(shape) if floating else rng.integers(0, 2, shape)
    return client.tensor(values.astype("float32" if floating else "int64"), dtype)


def write_table(title: str, times: list[Time], copy: float) -> str:
    """As text."""
    width = min(max(len("sizes"), *(len(time.shapes) for time in times)), 60)
    lines = [title, f"{'sizes':{width}}  {'bytes':>9}  {'time':>10}  {'GB/s':>7}  of copy"]
    for shapes, n_bytes, seconds in times:
        speed = n_bytes / max(seconds, 1e-9)
        shown = shapes if len(shapes) <= width else shapes[: width - 1] + "…"
        lines.append(
            f"{shown:{width}}  {n_bytes:>9,}  {seconds * 1e6:>7.1f} µs  {speed / 1e9:>7.2f}  {speed / copy:>7.0%}"
        )
    return "\n".join(lines)


def _plot(name: str, times: list[Time], copy: float) -> Optional[bytes]:
    """PNG; None: there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    sizes = [time.bytes for time in times]
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.loglog(sizes, [time.seconds * 1e6 for time in times], "o-", color="C0")
    left.set(title=f"{name}: time", xlabel="bytes read and written", ylabel="µs")
    right.semilogx(sizes, [time.bytes / max(time.seconds, 1e-9) / 1e9 for time in times], "o-", color="C0")
    right.axhline(copy / 1e9, color="gray", linestyle="--", label="what the device copies")
    right.set(title=f"{name}: bytes per second", xlabel="bytes read and written", ylabel="GB/s", ylim=(0, None))
    right.legend(loc="best", frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.margins(x=0.15)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=80)
    return picture.getvalue()
