"""The shapes that an operator gives, from its rules alone: `rules` of op_list, as protocol/README.md
describes them. No request is made."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

from ._protocol import ACCUMULATORS, DTYPES
from .errors import count
from ._trees import LAZY, OF_DIMENSION, OF_TRUTH, WORDS, Arithmetic, Misfit, Tree, parse

Shape = tuple[Any, ...]
Desc = tuple[Any, ...]  # dtype and shape; strides, where it is not contiguous


class Results(NamedTuple):
    outputs: tuple[Desc, ...]
    saved: tuple[Desc, ...]


def make_key(info: dict[str, Any]) -> str:
    """The same for operators that give the same shapes, whatever they require and launch."""
    reduced = [t.get("reduced", "") for t in info["outputs"]]
    kept: list[Any] = [info.get("broadcasts"), reduced]
    needed = set(re.findall(r"[^\W\d]\w*", " ".join(reduced)))
    for rule in reversed(info.get("rules", [])):
        if rule.get("let") in needed or "shape" in rule:
            kept.append(rule)
            words = " ".join(rule.get("dims") or [rule.get("value", "")])
            needed.update(re.findall(r"[^\W\d]\w*", words))
    return repr(kept)


class Rules:
    """An operator's rules, read once. Raises ValueError where this client does not understand them."""

    def __init__(self, info: dict[str, Any]) -> None:
        self._info = info
        self._attrs = {a["name"]: a for a in info["attrs"]}
        self._inputs = {t["name"]: t for t in info["inputs"]}
        self._outputs = {t["name"]: t for t in info["outputs"]}
        self._rules = [self._read(rule) for rule in info["rules"]]
        self._reduced = {n: parse(t["reduced"]) for n, t in self._outputs.items() if t.get("reduced")}

    def infer(
        self,
        inputs: Sequence[Optional[Desc]],
        attrs: Sequence[Any],
        on_cpu: Callable[[], bool],
        arithmetic: Arithmetic,
    ) -> Results:
        """inputs and attrs: in the schema's order, None: absent. on_cpu: will the daemon's device
        cpu run it? Raises Misfit."""
        env = self._apply(inputs, attrs, on_cpu, arithmetic)
        saved = tuple(env.tensors[name] for name in self._info["saved"])
        return Results(tuple(env.tensors[name] for name in self._outputs), saved)

    def holds(
        self,
        condition: Tree,
        inputs: Sequence[Optional[Desc]],
        attrs: Sequence[Any],
        on_cpu: Callable[[], bool],
        arithmetic: Arithmetic,
    ) -> bool:
        """Is that so of what infer() takes? Raises Misfit."""
        env = self._apply(inputs, attrs, on_cpu, arithmetic)
        return bool(arithmetic.to_truth(env.evaluate(condition)))

    def _apply(
        self,
        inputs: Sequence[Optional[Desc]],
        attrs: Sequence[Any],
        on_cpu: Callable[[], bool],
        arithmetic: Arithmetic,
    ) -> _Env:
        env = _Env(self._info, on_cpu, arithmetic)
        for attr, value in zip(self._attrs.values(), attrs):
            env.attrs[attr["name"]] = _read_attr(attr, value)
        for info, desc in zip(self._inputs.values(), inputs):
            env.add_input(info, desc)
        for apply, *parts in self._rules:
            apply(env, *parts)
        if self._info["broadcasts"]:
            self._broadcast(env)
        return env

    def _read(self, rule: dict[str, Any]) -> tuple[Any, ...]:
        if "let" in rule:
            return self._let, rule["let"], parse(rule["value"])
        if "require" in rule:
            return self._require, parse(rule["require"]), self._read_message(rule["message"])
        name = rule["shape"]
        dims = [dim if dim.startswith("...") else parse(dim) for dim in rule["dims"]]
        if name in self._inputs:
            return self._take, name, dims
        return self._make, name, rule.get("type"), dims

    def _read_message(self, message: list[str]) -> list[Any]:
        """Texts, names of attributes and tensors, and trees."""
        return [part if i % 2 == 0 else parse(part) for i, part in enumerate(message)]

    def _let(self, env: _Env, name: str, value: Tree) -> None:
        env.values[name] = env.evaluate(value)

    def _require(self, env: _Env, value: Tree, message: list[Any]) -> None:
        def tell() -> str:
            return "".join(p if isinstance(p, str) else env.show(p) for p in message)

        env.require(value, tell)

    def _take(self, env: _Env, name: str, dims: list[Any]) -> None:
        """An input's shape: checks it, and takes from it what its dimensions name."""
        desc = env.tensors[name]
        if desc is None:
            return
        rest, shape = len(desc[1]) - len(dims), list(desc[1])
        packs = any(isinstance(dim, str) for dim in dims)
        if rest < -packs or (rest > 0 and not packs):
            least = "at least " if packs else ""
            raise Misfit(f"{name} has rank {len(shape)}, expected {least}{len(dims) - packs}")
        at = 0
        for dim in dims:
            if isinstance(dim, str):
                env.take_pack(name, dim, tuple(shape[at : at + rest + 1]))
                at += rest + 1
                continue
            env.take_size(name, at, dim, shape[at])
            at += 1

    def _make(self, env: _Env, name: str, type: Optional[str], dims: list[Any]) -> None:
        shape: list[Any] = []
        for dim in dims:
            if isinstance(dim, str):
                shape += env.packs[dim]
                continue
            shape.append(env.make_size(name, len(shape), dim))
        dtype = env.find_dtype(self._outputs[name] if type is None else {"type": type})
        env.tensors[name] = (dtype, tuple(shape))

    def _broadcast(self, env: _Env) -> None:
        shapes = [desc[1] for desc in map(env.tensors.get, self._inputs) if desc]
        common = [1] * max(map(len, shapes), default=0)
        for name in self._inputs:
            desc = env.tensors[name]
            shape = desc[1] if desc else ()
            start = len(common) - len(shape)
            for d, size in enumerate(shape, start):
                common[d] = env.join(name, d - start, common[d], size)
        for name, info in self._inputs.items():
            if info["in_place"] and env.tensors[name]:
                env.check_same(name, tuple(common))
        for name, info in self._outputs.items():
            env.tensors[name] = (env.find_dtype(info), env.reduce(common, self._reduced.get(name)))


def _read_attr(attr: dict[str, Any], value: Any) -> Any:
    """A number, a list of them, or None; a word is its place in `words`."""
    if value is None:
        if not attr["optional"]:
            raise Misfit(f"{attr['name']} is None, expected a value")
        return None
    if attr["type"] == "str":
        if value not in attr["words"]:
            words = ", ".join(attr["words"])
            raise Misfit(f'{attr["name"]} is "{value}", expected one of {words}')
        return attr["words"].index(value)
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if attr["type"] == "float":
        values = [float(v) if isinstance(v, int) else v for v in values]
    if not attr["list"]:
        return values[0]
    if len(values) not in (1, attr["list"]):
        raise Misfit(f"{attr['name']} has {count(len(values), 'value')}, expected {attr['list']}")
    return values * attr["list"] if len(values) == 1 else values


class _Env:
    """What is known while the rules of a request are applied."""

    def __init__(
        self, info: dict[str, Any], on_cpu: Callable[[], bool], arithmetic: Arithmetic
    ) -> None:
        self.info = info
        self.on_cpu = on_cpu
        self.arithmetic = arithmetic
        self.attrs: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        self.values: dict[str, Any] = {}  # dimensions and lets
        self.packs: dict[str, Shape] = {}
        self.types: dict[str, str] = {}
        self._first: dict[str, str] = {}  # the input that decided
        for tensor in [{"type": "scalar_t", "dtypes": info["dtypes"]}, *info["inputs"]]:
            if tensor["type"] and tensor["dtypes"]:
                self.types.setdefault(tensor["type"], tensor["dtypes"][0])

    def add_input(self, info: dict[str, Any], desc: Optional[Desc]) -> None:
        name, type = info["name"], info["type"]
        if desc is None and not info["optional"]:
            raise Misfit(f"{name} is missing, expected a tensor")
        self.tensors[name] = desc
        if desc is None:
            return
        if desc[0] not in info["dtypes"]:
            raise Misfit(f"{name} is {desc[0]}, expected one of {', '.join(info['dtypes'])}")
        first = self._first.setdefault(type, name)
        if type and first != name and self.types[type] != desc[0]:
            raise Misfit(f"{name} is {desc[0]}, {first} is {self.types[type]}; expected the same dtype")
        if type:
            self.types[type] = desc[0]

    def find_dtype(self, tensor: dict[str, Any]) -> str:
        type: str = tensor["type"]
        return self.find_type(type) if type else tensor["dtypes"][0]

    def find_type(self, type: str) -> str:
        """Of a type variable, acc_t, or a dtype, which is itself."""
        if type == "acc_t":
            return ACCUMULATORS[self.types["scalar_t"]]
        return self.types.get(type, type)

    # --- sizes

    def take_size(self, name: str, at: int, dim: Tree, size: Any) -> None:
        if dim[0] == "name" and dim[2] is None and not self.knows(dim[1]):
            self.values[dim[1]] = size
            return
        want = self.evaluate(dim)
        self.arithmetic.check(
            size == want, lambda: f"{name} has {size} in dimension {at}, expected {want}"
        )

    def take_pack(self, name: str, pack: str, sizes: Shape) -> None:
        want = self.packs.setdefault(pack, sizes)
        if len(want) != len(sizes):
            raise Misfit(f"{name} has {_show(sizes)} in its dimensions {pack}, expected {_show(want)}")
        for a, b in zip(sizes, want):
            self.arithmetic.check(
                a == b,
                lambda: f"{name} has {_show(sizes)} in its dimensions {pack}, expected {_show(want)}",
            )

    def make_size(self, name: str, at: int, dim: Tree) -> Any:
        size = self.evaluate(dim)
        self.arithmetic.check(
            size >= 0, lambda: f"{name} would have {size} in dimension {at}, expected 0 or more"
        )
        return size

    def join(self, name: str, at: int, common: Any, size: Any) -> Any:
        """One size of two that broadcast."""
        size = self.arithmetic.join(common, size)
        if size is None:
            raise Misfit(f"{name}: its size in dimension {at} does not broadcast with those before it")
        return size

    def reduce(self, common: Sequence[Any], tree: Optional[Tree]) -> Shape:
        """The last dimensions of 1, as many as that is; -1: a scalar."""
        n = 0 if tree is None else int(self.evaluate(tree))
        n = min(n, len(common))
        return () if n < 0 else (*common[: len(common) - n], *[1] * n)

    def check_same(self, name: str, common: Shape) -> None:
        shape = self.tensors[name][1]
        text = f"{name} is {_show(shape)}, expected the shape of all inputs together: {_show(common)}"
        if len(shape) != len(common):
            raise Misfit(text)
        for a, b in zip(shape, common):
            self.arithmetic.check(a == b, lambda: text)

    # --- expressions

    def knows(self, name: str) -> bool:
        return name in self.values or name in self.attrs or name in ("cpu", "cuda")

    def evaluate(self, tree: Tree) -> Any:
        return self.arithmetic.to_number(self._evaluate(tree))

    def require(self, tree: Tree, tell: Callable[[], str]) -> None:
        """Each side of an && by itself: a compiler learns more from them."""
        while tree[0] == "&&":
            self.require(tree[1], tell)
            tree = tree[2]
        value = self._evaluate(tree)
        self.arithmetic.check(self.arithmetic.to_truth(value), tell)

    def _evaluate(self, tree: Tree) -> Any:
        # Down the left side in a loop: a + b + c + ... is as deep as it is long.
        waiting = []
        while tree[0] in WORDS or tree[0] in OF_DIMENSION:
            waiting.append(tree)
            tree = tree[2] if tree[0] in OF_DIMENSION else tree[1]
        value = self._load(tree)
        for node in reversed(waiting):
            value = self._apply(node, value)
        return value

    def _apply(self, node: Tree, value: Any) -> Any:
        word, arithmetic = node[0], self.arithmetic
        if word in OF_DIMENSION:
            sizes = self._find_shape(node[1][0]) if word == "size()" else self._find_strides(node[1][0])
            if not -len(sizes) <= value < len(sizes):
                raise Misfit("a dimension beyond the rank")
            return sizes[int(value)]
        make = WORDS[word][1]
        make = getattr(arithmetic, make) if isinstance(make, str) else make
        if word in LAZY:
            return make(
                arithmetic.to_truth(value),
                *(lambda tree=tree: self._evaluate(tree) for tree in node[2:]),
            )
        values = [value, *(self._evaluate(tree) for tree in node[2:])]
        return make(*values) if word in OF_TRUTH else make(*map(arithmetic.to_number, values))

    def _load(self, leaf: Tree) -> Any:
        if leaf[0] == "number":
            return leaf[1]
        if leaf[0] == "name":
            return self._load_name(leaf[1], leaf[2])
        (name, dtype), what = leaf[1], leaf[0]
        if what == "present()":
            return int((self.attrs if name in self.attrs else self.tensors).get(name) is not None)
        if what == "is()":
            return int(self.find_type(name) == dtype)
        if what == "sizeof()":
            return DTYPES[self.find_type(name)]
        shape = self._find_shape(name)
        return len(shape) if what == "rank()" else math.prod(shape)

    def _load_name(self, name: str, element: Optional[int]) -> Any:
        if name in self.values:
            return self.values[name]
        if name in ("cpu", "cuda"):
            return int(self.on_cpu() == (name == "cpu"))
        if name not in self.attrs:
            raise Misfit(f"'{name}' is nothing that this client knows")
        value = self.attrs[name]
        if value is None:
            raise Misfit("an attribute that is None")
        value = value if element is None else value[element]
        return int(value) if isinstance(value, bool) else value

    def _find_shape(self, name: str) -> Shape:
        desc = self.tensors[name]
        if desc is None:
            raise Misfit("a tensor that is None")
        return tuple(desc[1])

    def _find_strides(self, name: str) -> Shape:
        shape, desc = self._find_shape(name), self.tensors[name]
        if len(desc) > 2 and desc[2] is not None:
            return tuple(desc[2])
        strides: list[Any] = [1] * len(shape)
        for i in range(len(shape) - 1, 0, -1):
            strides[i - 1] = strides[i] * self.arithmetic.most(shape[i], 1)
        return tuple(strides)

    # --- messages

    def show(self, tree: Tree) -> str:
        """A value of a message: an attribute or a tensor as it is, else a number."""
        if tree[0] == "name" and tree[1] in self.attrs and tree[2] is None:
            value = self.attrs[tree[1]]
            words = next(a["words"] for a in self.info["attrs"] if a["name"] == tree[1])
            return words[value] if words and value is not None else _show(value)
        if tree[0] == "name" and tree[1] in self.tensors:
            desc = self.tensors[tree[1]]
            return _show(desc and f"{desc[0]} {_show(desc[1])}")
        try:
            return _show(self.evaluate(tree))
        except Misfit:
            return "?"


def _show(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_show, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(int(value)) if isinstance(value, bool) else str(value)
