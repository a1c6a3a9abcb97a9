"""Operators that clients of this process load: where the text of one is, in a file or as a literal in
the program that calls, and which are there now, for opd.torch."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, Optional, Union

from ._conn import Connection

_PACKAGE = __name__.partition(".")[0]
_STRING = "<string>"


class Source(NamedTuple):
    """`text` for the daemon, which counts its lines as the file `name` in `folder` has them."""

    text: str
    name: str
    folder: str  # of what it includes; "": nothing


class Loaded(NamedTuple):
    conn: weakref.ref[Connection]  # whose it is
    op: str
    source: Source


_loaded: list[Loaded] = []  # the last one last
followers: list[Callable[[], None]] = []  # called when they have changed


def note_loaded(conn: Connection, op: str, source: Optional[Source]) -> None:
    """None: it was unloaded."""
    _drop(lambda each: each.op == op and each.conn() is conn)
    if source is not None:
        _loaded.append(Loaded(weakref.ref(conn), op, source))
    for follow in followers:
        follow()


def forget_loaded(conn: Connection) -> None:
    """All of it: the connection is closed."""
    if any(each.conn() is conn for each in _loaded):
        _drop(lambda each: each.conn() is conn)
        for follow in followers:
            follow()


def get_loaded() -> dict[str, Loaded]:
    """By name; of several connections' the last that was loaded."""
    _drop(lambda each: (conn := each.conn()) is None or conn.closed)
    return {each.op: each for each in _loaded}


def _drop(is_gone: Callable[[Loaded], bool]) -> None:
    _loaded[:] = [each for each in _loaded if not is_gone(each)]


def find_source(
    source: Union[str, os.PathLike[str]], name: Optional[str], line: Optional[int]
) -> Source:
    """Of what Client.load() is given."""
    if isinstance(source, os.PathLike) or _is_path(source):
        return _read_file(os.path.abspath(source), name)
    if not isinstance(source, str):
        raise TypeError(f"load() takes the text of an operator or a path, not {type(source).__name__}")
    if not source.strip():
        raise ValueError("load() takes the text of an operator or a path; this is empty")
    if name is None and line is None:
        name, line = _find_literal(source)
    line = 1 if line is None else line
    return Source(source if line == 1 else f"#line {line}\n{source}", name or _STRING, "")


def _is_path(source: Any) -> bool:
    """No operator is without a line of its header."""
    return isinstance(source, str) and bool(source.strip()) and "//!" not in source and "\n" not in source


def _read_file(path: str, name: Optional[str]) -> Source:
    folder, file = os.path.split(path)
    try:
        with open(path, encoding="utf-8", newline="") as text:
            return Source(text.read(), name or file, folder)
    except UnicodeDecodeError as e:
        raise ValueError(f"{path}: byte {e.start} is no UTF-8 text, which an operator's file is") from None


def _find_literal(source: str) -> tuple[str, int]:
    """The name of the file whose code calls into this package, and the line of its literal that is
    `source`, as it is or with blanks taken off; where there is none, no file's name."""
    frame = _find_caller()
    if frame is None:
        return _STRING, 1
    file = frame.f_code.co_filename
    lines = linecache.getlines(file, frame.f_globals)
    text = source.strip()
    first = text.partition("\n")[0].strip()
    if text.count("\n") > len(lines) or not any(first in line for line in lines):
        return _STRING, 1
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return _STRING, 1
    found = [line for node in ast.walk(tree) if (line := _find_line(node, source, lines)) is not None]
    if not found:
        return _STRING, 1
    name = os.path.basename(file).translate(str.maketrans('"\\\n', "'//"))
    return name, min(found, key=lambda line: abs(line - frame.f_lineno))


def _find_caller() -> Optional[FrameType]:
    frame: Optional[FrameType] = sys._getframe(1)
    while frame and str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return frame


def _find_line(node: ast.AST, source: str, lines: list[str]) -> Optional[int]:
    """In the file, of the first line of `source`; None: that is not this literal."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or node.end_lineno is None:
        return None
    ours, blank = _strip(source)
    theirs, skipped = _strip(node.value)
    if ours != theirs:
        return None
    # In the file its lines are as many, or one more, where it begins with a backslash.
    span = node.end_lineno - node.lineno - node.value.count("\n")
    begins = lines[node.lineno - 1].encode()[node.col_offset :].decode().rstrip("\r\n")
    if span not in (0, 1) or (span == 1 and not begins.endswith("\\")):
        return None
    line = node.lineno + span + skipped - blank
    return line if line >= 1 else None


def _strip(text: str) -> tuple[list[str], int]:
    """Its lines without blanks around them, and without empty ones around those; how many of these
    come first."""
    lines = [line.strip() for line in text.split("\n")]
    first = next((i for i, line in enumerate(lines) if line), 0)
    last = len(lines) - next((i for i, line in enumerate(reversed(lines)) if line), 0)
    return lines[first:last], first
