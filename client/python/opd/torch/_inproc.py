"""Operators in torch's own process: kernels in C that torch's dispatcher calls (client/torch/).

Of `gelu` these are, in the namespace `opd`, beside those of _register.py:

    gelu.here   the operator itself
    gelu.keep   its outputs, its saved tensors, and the serial of the plan that ran
    gelu__back  of gradients, what backward reads, which gradients are wanted and that serial: a
                gradient of each input, None where it is not wanted

They run plans that are loaded, which a call finds by its dtypes, shapes, attributes and device, and
by the version that the daemon serves now. A call that finds none raises RuntimeError; it is then
made in the daemon, and its plan is loaded for those that come after.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Callable, Optional

import torch
from torch.autograd import forward_ad

from .._spec import Spec
from ..errors import InvalidArgument, make_error
from ._direct import MISS, get_direct, return_miss
from ._function import make_function
from ._library import DEFAULT_ISOLATED, Library, get_library
from ._loader import BACKWARD, FORWARD, KEEP, Loader, may_run
from ._options import DEFAULT, get_options, local
from ._schema import number_words, spell_attr, spell_input
from ._session import get_session
from ._stamps import SERIALS

_ERROR = re.compile(r"opd:([a-z_ ]+): (.*?)(?:\nException raised from|\Z)", re.DOTALL)

# What a call meets at these is not for here, but for the operator as all of torch knows it.
_OTHER_KEYS = (
    "Batched",
    "Python",
    "Meta",
    "Tracer",
    "Functionalize",
    "AutocastCPU",
    "AutocastCUDA",
    "FuncTorchDynamicLayerFrontMode",
)

# Classes of arguments, and whether they are tensors. Others may want to be asked themselves.
PLAIN: dict[type, bool] = {
    torch.Tensor: True,
    torch.nn.Parameter: True,
    **dict.fromkeys((type(None), int, float, bool, str, tuple, list), False),
}

_grad_enabled = torch.is_grad_enabled
_is_autocast: Any = torch._C._is_any_autocast_enabled
n_modes: Any = torch._C._len_torch_dispatch_stack
_in_transform: Any = torch._C._are_functorch_transforms_active
_is_tracing: Any = torch._C._is_tracing
_is_initialized: Any = torch.cuda.is_initialized  # it has no types
_without: Any = torch._C._ExcludeDispatchKeyGuard
_autocast_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_autocast_keys = _autocast_keys | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

_GONE = object()


class Elsewhere(RuntimeError):
    """The same, from where only an error can say it."""


def _leave(*_: Any, **__: Any) -> Any:
    raise Elsewhere


_told: set[str] = set()
_lock = threading.RLock()
# A child must not find a registration half done: torch's own lock would be held in it for ever.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class Kernels:
    """Of one registered operator."""

    make_loader: type[Loader] = Loader

    def __init__(self, operator: Any, spec: Spec, library: Library) -> None:
        self.operator = operator
        self._library, self._direct = library, get_direct(library)
        self.loader = self.make_loader(operator, library, len(spec.inputs))
        self.n_inputs, self.n_outputs = len(spec.inputs), len(spec.outputs)
        self._n_saved = len(spec.info["saved"])
        self.reads = [i for i, t in enumerate(spec.inputs) if t["used_backward"]]
        self.read_outputs = [i for i, t in enumerate(spec.outputs) if t["used_backward"]]
        self._required = [i for i, t in enumerate(spec.inputs) if not t["optional"]]
        lists = enumerate((a["list"] for a in spec.attrs.values()), self.n_inputs)
        self._lists = [(i, n) for i, n in lists if n]
        self.unread = [i for i in range(self.n_inputs) if i not in self.reads]
        self._all_differentiable = all(operator.differentiable)
        schema = operator.overload._schema
        self._names = [a.name for a in schema.arguments]
        self._n_positional = sum(not a.kwarg_only for a in schema.arguments)
        arguments, _, returns = str(schema).replace("SymInt", "int").rpartition(" -> ")
        # A word of a few is its number here, which is sooner handed over than text.
        self._words = {n: a["words"] for n, a in spec.attrs.items() if a.get("words")}
        for name, words in self._words.items():
            arguments = number_words(arguments, name, words)
        self._word_at = [(self._names.index(name), words) for name, words in self._words.items()]
        self._arguments = arguments[arguments.index("(") :]
        # Behind one with a default, torch takes an argument without one by its name alone.
        optional = [a.has_default_value() for a in schema.arguments]
        self._by_name = optional != sorted(optional)
        if not self._by_name:
            self._arguments = self._arguments.replace("*, ", "")
        self._layout = "".join(map(spell_input, spec.inputs)) + "".join(
            map(spell_attr, spec.attrs.values())
        )
        self._has_backward = bool(spec.info["has_backward"]) and not operator.mutated
        made = "t" * self.n_outputs
        self.here = self._make(
            ".here", FORWARD, f"{self._arguments} -> {self.spell_results(returns)}", self._layout, made
        )
        # Calls of plain tensors that want no gradient; of others MISS.
        self._apply: Any = MISS
        if self._has_backward:
            self._make_gradient()
        # A call as users make it, of plain tensors; of others MISS.
        self.quick = return_miss
        if not operator.mutated and not spec.lists:
            packet: Any = getattr(torch.ops.opd, operator.public)
            apply = self._apply if self._all_differentiable else MISS
            kernel = self.loader.numbers[FORWARD], self._layout, made, packet.here, self._words
            self.quick = self._direct.make(*kernel, MISS, apply, self._n_positional)

    def spell_results(self, returns: str) -> str:
        return returns

    def _make_gradient(self) -> None:
        results = ["Tensor"] * (self.n_outputs + self._n_saved) + ["int"]
        schema = f"{self._arguments} -> ({', '.join(results)})"
        made = "t" * (self.n_outputs + self._n_saved) + "i"
        self.keep = self._make(".keep", KEEP, schema, self._layout, made)
        n = self.n_outputs + len(self.reads) + len(self.read_outputs) + self._n_saved
        arguments = [f"Tensor t{i}" for i in range(n)] + ["int wanted", "int serial"]
        schema = f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * self.n_inputs)})"
        layout = ["t"] * n
        for k, i in enumerate(self.reads):
            layout[self.n_outputs + k] = "v" if i in self.operator.strided else "t"
        self.back = self._make(
            "__back", BACKWARD, schema, "".join(layout) + "ii", "t" * self.n_inputs
        )
        self._apply = make_function(self)

    def speed_up(self, function: Any, backward: Any) -> None:
        """An autograd.Function, by what does the same without Python."""
        n, able = self.n_outputs, enumerate(self.operator.differentiable)
        self._direct.make_forward(
            *(function, self.keep, self.loader.numbers[BACKWARD], (self.n_inputs, n, self._n_saved)),
            sum(1 << i for i, is_able in able if is_able),
            bytes(self.reads),
            bytes([*self.read_outputs, *range(n, n + self._n_saved)]),
            bytes(self.unread),
            *(local, DEFAULT, backward),
        )

    def _make(
        self, what: str, kind: int, schema: str, layout: str, results: str
    ) -> Any:
        name = f"{self.operator.public}{what}"
        number = self.loader.numbers[kind] = self._library.register(
            f"opd::{name}",
            name + schema,
            kind,
            self.operator.name,
            layout,
            (self.n_inputs, self.n_outputs, self._n_saved),
            sum(1 << i for i in self.operator.mutated),
            bytes(
                [i in self.reads for i in range(self.n_inputs)]
                + [i in self.read_outputs for i in range(self.n_outputs)]
            ),
        )
        library: Any = self.operator.library
        for key in _OTHER_KEYS:
            library.impl(name, _leave, key)
        for key in ("Autograd", "ADInplaceOrView"):
            library.impl(name, torch.library.fallthrough_kernel, key)
        packet, _, overload = name.partition(".")
        found: Any = getattr(getattr(torch.ops.opd, packet), overload or "default")
        if "*t" in layout or "*v" in layout:
            return found._op
        return self._direct.make(number, layout, results, found, {}, found._op)

    # --- calls

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call as users make it, or MISS."""
        wants = False
        for value in (*args, *kwargs.values()) if kwargs else args:
            is_tensor = PLAIN.get(type(value))
            if is_tensor:
                if value.requires_grad:
                    wants = True
            elif is_tensor is None:
                return MISS
        if forward_ad._current_level >= 0 or len(args) > self._n_positional:
            return MISS
        if self.loader.not_on_cpu and args and getattr(args[0], "is_cpu", True):
            return MISS
        try:
            if kwargs and self._words:
                kwargs = self._number(kwargs)
            if wants and _grad_enabled():
                return self._differentiate(args, kwargs)
            made = self.here(*args, **kwargs)
        except RuntimeError as e:
            self.explain(e)
            return MISS
        if self.operator.mutated:
            self._tell_autograd(args, kwargs)
        return made

    def _number(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        numbered = dict(kwargs)
        for name, words in self._words.items():
            word = kwargs.get(name)
            if word is not None:
                if word not in words:
                    raise Elsewhere  # where it is told
                numbered[name] = words.index(word)
        return numbered

    def _number_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """The same of all arguments in order."""
        numbered = list(values)
        for i, words in self._word_at:
            if values[i] is not None:
                if values[i] not in words:
                    raise Elsewhere
                numbered[i] = words.index(values[i])
        return numbered

    def _differentiate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._has_backward or n_modes() or _in_transform() or _is_autocast() or _is_tracing():
            return MISS
        if kwargs and len(args) < self.n_inputs:
            args, kwargs = self._place(args, kwargs)
        if self._all_differentiable:
            return self._apply(kwargs, *args)
        for value, able in zip(args, self.operator.differentiable):
            if able and value is not None and value.requires_grad:
                return self._apply(kwargs, *args)
        return MISS

    def _place(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All tensors by position: autograd sees those alone."""
        names = self._names[len(args) : self.n_inputs]
        if kwargs.keys().isdisjoint(names):
            return args, kwargs
        rest, placed = dict(kwargs), list(args)
        for i, name in enumerate(names, len(args)):
            if name not in rest and i in self._required:
                raise Elsewhere  # torch tells
            placed.append(rest.pop(name, None))
        return tuple(placed), rest

    def pick(self, args: tuple[Any, ...], made: tuple[Any, ...]) -> Sequence[Any]:
        """What backward reads."""
        n, args = self.n_outputs, self._pad(args)
        return (
            *[args[i] for i in self.reads],
            *[made[i] for i in self.read_outputs],
            *made[n:-1],
        )

    def find_unread(self, args: tuple[Any, ...]) -> list[Any]:
        args = self._pad(args)
        return [args[i] for i in self.unread]

    def _pad(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args + (None,) * (self.n_inputs - len(args))

    def keep_elsewhere(
        self, error: RuntimeError, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What `keep` would have made, where it has raised."""
        if _ERROR.match(str(error)) is None and not isinstance(error, Elsewhere):
            raise error  # arguments that do not fit
        self.explain(error)
        made, stamp = self.operator._run(self.bind(args, kwargs), True)
        return (*made, stamp)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments, as torch hands them to a kernel: one number stands for a list of it."""
        values = list(self.operator._bind(args, kwargs))
        for i, n in self._lists:
            if isinstance(values[i], (int, float)):
                values[i] = [values[i]] * n
        for i, words in self._word_at:
            if isinstance(values[i], int):
                values[i] = words[values[i]]
        return tuple(values)

    def _tell_autograd(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What has changed, as torch's own operators in place do."""
        for i in self.operator.mutated:
            value = args[i] if i < len(args) else kwargs.get(self._names[i])
            if value is not None and not value.is_inference():
                torch.autograd.graph.increment_version(value)

    def explain(self, error: RuntimeError) -> Any:
        """MISS, where the call can be made elsewhere; _GONE, where that daemon has ended, and no other
        was found; else raises what went wrong."""
        match = _ERROR.match(str(error))
        if match is None or match[1] == "not loaded":
            return MISS
        if match[1] == "gone":
            return MISS if get_session().look_for_daemon() else _GONE
        note = (
            "opd ran this in torch's own process; of its operators, the last to run were "
            f"{self._library.tell_last()}. Run the program again with OPD_ISOLATED=1, or these calls in `with "
            "opd.torch.options(isolated=True, debug=True)`: the daemon runs them then, the call that fails raises the "
            "error itself, with tensor, element and line, and the process goes on"
        )
        faulted = match[1] in ("kernel_fault", "internal")
        try:
            if faulted and _is_initialized():
                torch.cuda.synchronize()  # torch's own error, where the device has failed
        except RuntimeError as e:
            _add_note(e, note)
            raise e from None
        raised = make_error(match[1], match[2], self.operator.name)
        if faulted:
            _add_note(raised, note)
        raise raised from None

    # --- what _register.py calls, with all arguments in order

    def forward(self, values: Sequence[Any], keep: bool) -> Any:
        """Outputs, then with `keep` saved tensors; and a stamp. MISS: it is to be made in the daemon,
        and load_forward() after it."""
        if not may_run():
            return MISS
        asked = get_options()
        first_here = asked.isolated is False or (asked.isolated is None and DEFAULT_ISOLATED is False)
        made = self._try_forward(values, keep)
        if made is MISS and first_here and self.loader.load_forward(values, keep, asked.version):
            made = self._try_forward(values, keep)
        return made

    def _try_forward(self, values: Sequence[Any], keep: bool) -> Any:
        kernel = self.keep if keep else self.here
        made = MISS
        with _without(_autocast_keys), suppress(Elsewhere):
            numbered = self._number_all(values) if self._words else values
            n = self._n_positional if self._by_name else len(numbered)
            made = self._try(kernel, *numbered[:n], **dict(zip(self._names[n:], numbered[n:])))
        if made is MISS:
            return MISS
        return self._take(made, keep)

    def _take(self, made: Any, keep: bool) -> tuple[list[Any], int]:
        if keep:
            return list(made[:-1]), made[-1]
        return ([made] if self.n_outputs == 1 else list(made or ())), 0

    def _try(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except RuntimeError as e:
            if self.explain(e) is MISS:
                return MISS
        with self._library.alone():
            try:
                return kernel(*args, **kwargs)
            except RuntimeError as e:
                self.explain(e)
                return MISS

    def backward(self, tensors: Sequence[Any], wanted: Sequence[bool], stamp: int) -> Any:
        """The wanted gradients, or MISS. tensors: gradients of outputs, then what backward reads."""
        if stamp < SERIALS or not may_run():
            return MISS
        mask = sum(1 << i for i, want in enumerate(wanted) if want)
        with _without(_autocast_keys):
            made = self._try(self.back, *tensors, mask, stamp)
        if made is MISS:
            return MISS
        # What torch has as an operator of its own gives nothing back that it was given, nor one twice.
        gradients: list[Any] = []
        for made in (made,) if self.n_inputs == 1 else made:
            if made is not None:
                is_other = all(made is not t for t in (*tensors, *gradients))
                gradients.append(made if is_other else made.clone())
        return gradients

    def mask(self, needs: tuple[bool, ...]) -> int:
        """The gradients to make, of ctx.needs_input_grad."""
        pairs = enumerate(zip(needs[1:], self.operator.differentiable))
        return sum(1 << i for i, (need, able) in pairs if need and able)


def make_kernels(operator: Any, spec: Spec) -> None:
    """Sets operator.kernels. They stay None where the operator runs in the daemon."""
    library = get_library() if spec.inputs and may_run() else None
    if library is None:
        return
    with _lock:
        if operator.kernels is not None:
            return  # another thread has made them meanwhile: torch takes a name once
        try:
            operator.kernels = operator.make_kernels(operator, spec, library)
        except OSError as e:
            if str(e) not in _told:
                _told.add(str(e))
                warnings.warn(f"opd.torch: {e}", stacklevel=2)


def go_first(operator: Any, called: Any) -> None:
    """torch.ops.opd.gelu is as soon here as opd.torch.ops.gelu is. Its calls go this way before there
    are kernels, too: torch.jit.trace makes two, and compares from which line."""
    before = called._op

    def call(*args: Any, **kwargs: Any) -> Any:
        kernels, made = operator.kernels, MISS
        twin = None if operator.last is None else operator.last.find(args, kwargs)
        if kernels is not None and not operator.outdated and twin is None:
            try:
                made = kernels.quick(*args, **kwargs)
            except RuntimeError as e:
                kernels.explain(e)
            made = kernels.call(args, kwargs) if made is MISS else made
        return before(*args, **kwargs) if made is MISS else made

    called._op = call


def check_capture(name: str, tensors: Sequence[Any]) -> None:
    """Of a call that was a MISS: what a CUDA graph is to hold must be loaded before."""
    on_cuda = may_run() and any(t is not None and t.is_cuda for t in tensors)
    if on_cuda and torch.cuda.is_current_stream_capturing():
        raise InvalidArgument(
            f"{name}: a CUDA graph is being captured, and a call with these dtypes, shapes and "
            "attributes is not loaded in this process yet; make it once before the capture",
            op=name,
        )


def _add_note(error: BaseException, note: str) -> None:
    add: Optional[Callable[[str], None]] = getattr(error, "add_note", None)  # Python 3.11
    if add:
        add(note)


def synchronize() -> None:
    """Waits for CUDA, and raises what a kernel in this process found wrong with a call that has
    returned."""
    library = get_library()
    if _is_initialized():
        torch.cuda.synchronize()
    error = library.synchronize() if library else ""
    if error:
        code, _, text = error.partition(": ")
        raise make_error(code, text, None)
