"""Expressions of operators' rules as they come over the wire: postfix words into trees, and what the words do
with numbers. No code is run that came: words are looked up in the table of this module.

Sizes need not be numbers: what is done with them is an Arithmetic's, and opd.torch has one for
sizes that a compiler leaves open.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, Optional

Tree = tuple[Any, ...]  # a word, then the trees of what it takes


class Misfit(Exception):
    """A request that the rules refuse; the text says why."""


class Arithmetic:
    """What words do with numbers, as the daemon does it; what is true is 1."""

    def check(self, holds: Any, tell: Callable[[], str]) -> None:
        if not holds:
            raise Misfit(tell())

    def join(self, a: Any, b: Any) -> Any:
        """One size of two that broadcast; None: they do not."""
        return b if a == 1 else a if b in (1, a) else None

    def to_number(self, value: Any) -> Any:
        """What a comparison has given, or a number as it is."""
        if isinstance(value, (bool, int)):
            self.check(-(2**63) <= value < 2**63, lambda: "overflow")
        return value

    def to_truth(self, value: Any) -> Any:
        return value != 0

    def negate(self, value: Any) -> Any:
        return not value

    def both(self, a: Any, b: Callable[[], Any]) -> Any:
        return b() if a else False

    def either(self, a: Any, b: Callable[[], Any]) -> Any:
        return True if a else b()

    def choose(self, test: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return yes() if test else no()

    def to_float(self, a: Any) -> Any:
        return float(a)

    def floor(self, a: Any) -> Any:
        self.check(-(2.0**63) <= a < 2.0**63, lambda: "a float beyond int64")
        return math.floor(a)

    def divide(self, a: Any, b: Any) -> Any:
        self.check(b != 0, lambda: "division by zero")
        return a / b

    def quotient(self, a: Any, b: Any) -> Any:
        self.check(b != 0, lambda: "division by zero")
        down = abs(a) // abs(b)
        return down if (a < 0) == (b < 0) else -down

    def round_up(self, a: Any, b: Any) -> Any:
        self.check(b != 0, lambda: "division by zero")
        return -(-a // b)

    def remainder(self, a: Any, b: Any) -> Any:
        return a - self.quotient(a, b) * b

    def common_divisor(self, a: Any, b: Any) -> Any:
        self.check(a != -(2**63) and b != -(2**63), lambda: "overflow")
        a, b = abs(a), abs(b)
        while b != 0:
            a, b = b, a % b
        return a

    def least(self, a: Any, b: Any) -> Any:
        return b if b < a else a

    def most(self, a: Any, b: Any) -> Any:
        return b if b > a else a

    def power(self, a: Any, b: Any) -> Any:
        odd = b % 2 == 1
        try:
            return math.pow(a, b)
        except OverflowError:
            return -math.inf if a < 0 and odd else math.inf
        except ValueError:
            self.check(a == 0, lambda: "a power that is no number")
            return math.copysign(math.inf, a) if odd else math.inf

    def fits_int32(self, a: Any) -> Any:
        return -(2**31) <= a < 2**31

    def power_of_two(self, a: Any) -> Any:
        power = 1
        while power < a:
            power *= 2
        return power


# How many values a word takes, and the function or method of Arithmetic that makes one of them.
WORDS: dict[str, tuple[int, Any]] = {
    "+": (2, operator.add),
    "-": (2, operator.sub),
    "*": (2, operator.mul),
    "/": (2, "divide"),
    "//": (2, "quotient"),
    "%": (2, "remainder"),
    "cdiv()": (2, "round_up"),
    "gcd()": (2, "common_divisor"),
    "min()": (2, "least"),
    "max()": (2, "most"),
    "pow()": (2, "power"),
    "==": (2, operator.eq),
    "!=": (2, operator.ne),
    "<": (2, operator.lt),
    "<=": (2, operator.le),
    ">": (2, operator.gt),
    ">=": (2, operator.ge),
    "&&": (2, "both"),
    "||": (2, "either"),
    "?:": (3, "choose"),
    "!": (1, "negate"),
    "neg()": (1, operator.neg),
    "bool()": (1, "to_truth"),
    "float()": (1, "to_float"),
    "floor()": (1, "floor"),
    "pow2()": (1, "power_of_two"),
    "fits32()": (1, "fits_int32"),
}
LAZY = ("&&", "||", "?:")  # these take their first value alone, and functions for the rest
OF_DIMENSION = ("size()", "stride()")  # of the tensor that they name
OF_TRUTH = (*LAZY, "!")
_NUMBER = re.compile(r"\d+|[\d.]+(?:e[+-]?\d+)?|inf")
_NAME = re.compile(r"([^\W\d]\w*)(?:\[(\d)\])?")
_QUERY = re.compile(r"(present|numel|rank|size|stride|is|sizeof)\((\w+)(?:,(\w+))?\)")


def parse(text: str) -> Tree:
    """Postfix words as a tree. Raises ValueError if they are none that this client knows."""
    stack: list[Tree] = []
    for word in text.split(" "):
        takes, node = _parse_word(word)
        if takes > len(stack):
            raise ValueError(f"'{word}' lacks a value in '{text}'")
        stack[len(stack) - takes :] = [(*node, *stack[len(stack) - takes :])]
    if len(stack) != 1:
        raise ValueError(f"{len(stack)} values in '{text}'")
    return stack[0]


def _parse_word(word: str) -> tuple[int, Tree]:
    if word in WORDS:
        return WORDS[word][0], (word,)
    if _NUMBER.fullmatch(word):
        return 0, ("number", int(word) if word.isdigit() else float(word))
    name = _NAME.fullmatch(word)
    if name:
        return 0, ("name", name[1], None if name[2] is None else int(name[2]))
    query = _QUERY.fullmatch(word)
    if query:
        return int(query[1] in ("size", "stride")), (f"{query[1]}()", (query[2], query[3]))
    raise ValueError(f"'{word}' is no word that this client knows")
