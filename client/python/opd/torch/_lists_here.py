"""Operators of lists in torch's own process (_inproc.py). All that their kernels return is one list: the tensors of
the first result, then those of the next.

Of a backward the arguments are, for each output, its gradients, for each input and output that it reads, those, and
the gradients that are wanted, by inputs. A list of gradients that did not come is empty."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ._direct import MISS
from ._inproc import PLAIN, Kernels, n_modes
from ._interface import flatten, nest
from ._loader import BACKWARD, KEEP, Loader, may_run
from ._schema import spell_input
from ._stamps import SERIALS
from ._transport import find_device

_grad_enabled = torch.is_grad_enabled
_requires_grad = operator.attrgetter("requires_grad")
_LISTS = (list, tuple)
_TENSORS = {kind for kind, is_tensor in PLAIN.items() if is_tensor}


class ListLoader(Loader):
    def _describe(self, values: Sequence[Any]) -> tuple[Any, Any, torch.device]:
        tensors = values[: self._n_inputs]
        lengths = [len(v) if isinstance(v, _LISTS) else -1 for v in tensors]
        descs = nest(self._operator.describe(values), lengths)
        flat = flatten(tensors, lengths)
        return descs, values[self._n_inputs :], find_device(self._operator.name, flat)


class ListKernels(Kernels):
    make_loader = ListLoader

    def spell_results(self, returns: str) -> str:
        return "Tensor[]"

    def _make_gradient(self) -> None:
        inputs, outputs = self.operator.spec.inputs, self.operator.spec.outputs
        self.keep = self._make(".keep", KEEP, f"{self._arguments} -> (Tensor[], int)", self._layout, "")
        given = [*outputs, *(inputs[i] for i in self.reads), *(outputs[o] for o in self.read_outputs)]
        types = ["Tensor[]" if t.get("list") else "Tensor" for t in given]
        layout = "".join(spell_input({**t, "optional": False}) for t in given)
        arguments = [f"{t} t{i}" for i, t in enumerate(types)] + ["int wanted", "int serial"]
        self.back = self._make("__back", BACKWARD, f"({', '.join(arguments)}) -> Tensor[]", layout + "ii", "")

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call as users make it, of plain tensors that want no gradient; of others MISS. What traces a call, of
        constants too, is to see the operator, not what ran it here."""
        if n_modes():
            return MISS
        with_grad = _grad_enabled()
        for value in (*args, *kwargs.values()):
            ones = value if type(value) in _LISTS else (value,)
            kinds = set(map(type, ones))  # one by one, tensors would take as long as what is done with them
            if not kinds <= PLAIN.keys():
                return MISS
            if with_grad and kinds & _TENSORS and (kinds - _TENSORS or any(map(_requires_grad, ones))):
                return MISS
        if forward_ad._current_level >= 0 or len(args) > self._n_positional:
            return MISS
        try:
            made = self.here(*args, **(self._number(kwargs) if kwargs and self._words else kwargs))
        except RuntimeError as e:
            self.explain(e)
            return MISS
        self._tell_autograd(args, kwargs)
        return self._return(made)

    def _return(self, made: list[torch.Tensor]) -> Any:
        are_lists = [bool(o.get("list")) for o in self.operator.spec.outputs]
        if not are_lists:
            return None
        n = (len(made) - are_lists.count(False)) // max(1, are_lists.count(True))
        results = nest(made, [n if is_list else -1 for is_list in are_lists])
        return results[0] if len(results) == 1 else tuple(results)

    def _tell_autograd(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for i in self.operator.mutated:
            value: Any = args[i] if i < len(args) else kwargs.get(self._names[i])
            if value is not None:
                torch.autograd.graph.increment_version(value)

    def _take(self, made: Any, keep: bool) -> tuple[list[Any], int]:
        return (list(made[0]), made[1]) if keep else (list(made), 0)

    def backward(self, tensors: Sequence[Any], wanted: Sequence[bool], stamp: int) -> Any:
        """The wanted gradients, one after the other, or MISS; arguments as __back has them."""
        if stamp < SERIALS or not may_run():
            return MISS
        mask = sum(1 << i for i, want in enumerate(wanted) if want)
        made = self._try(self.back, *tensors, mask, stamp)
        if made is MISS:
            return MISS
        # Nothing is given back that was given, nor anything twice.
        seen = {id(t) for value in tensors for t in (value if isinstance(value, _LISTS) else (value,))}
        gradients = []
        for one in made:
            gradients.append(one.clone() if id(one) in seen else one)
            seen.add(id(one))
        return gradients
