"""The daemon's operators as functions, made from op_list: there is no code for any one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Optional, Union

from ._catalog import Catalog
from ._reply import Reply
from ._dtypes import check_dtype
from ._link import Kind, Link
from ._memory import Memory
from ._prepared import Handle, Prepared, call_quick, find_quick, write_ids
from ._spec import Call, Spec, check_deadline, check_debug
from ._wire import pack
from .errors import InvalidArgument, NotFound, OpdError, count
from .tensor import Tensor, check_own, to_ids

if TYPE_CHECKING:
    from ._shipped import Ops as Shipped
else:
    Shipped = object  # a type checker knows their operators, and no others: opd.stubs


class Context:
    """What forward() keeps for backward(): in the daemon, until it is dropped or free()d."""

    def __init__(
        self, memory: Memory, id: int, made: Union[Reply, Sequence[Any]], spec: Spec, inputs: list[Any]
    ) -> None:
        self._link = memory.link
        self._memory = memory
        self._id = id
        self._made = made  # the outputs' kinds, or the reply that tells of them
        self._spec = spec
        self._present = [value is not None for value in inputs]
        self._n = next((len(value) for value in inputs if isinstance(value, list)), 0)  # of each list

    def backward(
        self,
        *grads: Any,
        wanted: Optional[Iterable[str]] = None,
        deadline: Optional[float] = None,
        debug: bool = False,
    ) -> tuple[Any, ...]:
        """Gradients of the inputs, always a tuple with one entry for each tensor input of
        the operator: a Tensor, of a list of tensors a list.

        grads: one for each output, of its shape and dtype; None: zero; of a list as many, or
        None. wanted: names of inputs (None: all). The entry of an input that is absent, not differentiable or not
        wanted is None. May be called several times.

        Raises InvalidArgument if a tensor that backward reads was written since, TypeError
        for wrong names or numbers.
        """
        spec, link = self._spec, self._link
        name = f"{spec.name} backward"
        if not self._id:
            raise NotFound(f"{name}: this context was freed", op=spec.name)
        if len(grads) != len(spec.outputs):
            raise TypeError(f"{name}() takes {count(len(spec.outputs), 'gradient')}, not {len(grads)}")
        seconds = check_deadline(name, deadline)
        wires = [self._make_wires(i) if c else None for i, c in zip(spec.inputs, self._choose(wanted))]
        given = [self._to_grads(grad, i) for i, grad in enumerate(grads)]
        grad_ids = [_map(Tensor._live_id, grad) for grad in given]
        options: dict[str, Any] = {} if seconds is None else {"deadline": seconds}
        if check_debug(name, debug):
            options["debug"] = True
        params = (self._id, grad_ids, [_map(_read_wire, wire) for wire in wires], options)
        made = [_make_tensors(link, wire, (i,)) for i, wire in enumerate(wires)]
        reply = link.send("backward", params, seconds or spec.deadline)
        for tensors in made:
            _set_reply(tensors, reply)
        result = link.settle(reply)
        if result is None:
            return tuple(made)
        return tuple(map(take_gradient, made, result))

    def free(self) -> None:
        """Frees what the daemon keeps for this context, now."""
        id, self._id = self._id, 0
        if id:
            self._link.request("free", ("context", [id]))

    def __del__(self) -> None:
        if getattr(self, "_id", 0):
            self._link.conn.discard("context", self._id)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an opd.Context is in the daemon, and is neither pickled nor copied")

    def __repr__(self) -> str:
        return f"<opd.Context of {self._spec.name}{'' if self._id else ', freed'}>"

    def _choose(self, wanted: Optional[Iterable[str]]) -> list[bool]:
        able = {i["name"] for i in self._spec.inputs if i["differentiable"]}
        names = able if wanted is None else {wanted} if isinstance(wanted, str) else set(wanted)
        if names - able:
            raise TypeError(
                f"{self._spec.name} backward() has no gradient of "
                f"{', '.join(sorted(names - able))}; it has {', '.join(sorted(able)) or 'none'}"
            )
        return [p and i["name"] in names for p, i in zip(self._present, self._spec.inputs)]

    def _make_wires(self, input: dict[str, Any]) -> Any:
        return [self._link.new_wire() for _ in range(self._n)] if input.get("list") else self._link.new_wire()

    def _to_grads(self, grad: Any, i: int) -> Any:
        if grad is None or not self._spec.outputs[i].get("list"):
            return self._to_grad(grad, i)
        if not isinstance(grad, (list, tuple)) or len(grad) != self._n or any(g is None for g in grad):
            name = self._spec.outputs[i]["name"]
            raise TypeError(f"{self._spec.name} backward() takes a list of {self._n} gradients for {name}, or None")
        return [self._to_grad(g, i, k) for k, g in enumerate(grad)]

    def _to_grad(self, grad: Any, i: int, k: Optional[int] = None) -> Optional[Tensor]:
        if grad is None or isinstance(grad, Tensor):
            return check_own(self._link, grad)
        if isinstance(self._made, Reply):
            find = self._link.find_kind
            outputs = self._link.conn.wait(self._made)["outputs"]
            self._made = [_map(lambda o: find(o["dtype"], o["shape"], o["device"]), o) for o in outputs]
        kind: Any = self._made[i]
        kind = kind if k is None else kind[k]
        return self._memory.upload(grad, kind.dtype, None, kind.device)


class Ops(Shipped):
    """Every operator of the daemon is an attribute: `client.ops.gelu(x, approximate="tanh")`.
    `"gelu" in client.ops` tells whether there is one, iteration gives the names.

    Each is a function with signature and docstring. It returns a Tensor, a tuple of them if
    the operator has several outputs, None if it has none. Arrays, numbers, lists and torch
    tensors are sent as temporary tensors; Python's own numbers and lists take the dtype of the
    other tensors. All take `deadline=seconds`, `version=number` and `debug=True`, which runs the call
    alone and waits for each kernel, to be sure which one fails. `op.forward(...)` returns the
    same and a Context for backward. Where the operator takes a list of tensors (`Tensor[]`), so does
    the function; a list that it makes is a list of Tensors. `op.schema` is the operator in PyTorch's words, `op.version`
    the version that is served as far as this client knows (calls and reload() tell it),
    `op.versions` a list of those that the daemon has, newest first, asked for at each use.

    Raises TypeError if arguments do not fit the signature, InvalidArgument if the daemon
    refuses them, and the other errors of opd.errors.
    """

    def __init__(self, link: Link, catalog: Catalog, memory: Memory) -> None:
        self._link = link
        self._catalog = catalog
        self._memory = memory
        self._functions: dict[str, Any] = {}
        # By whether a context is kept, and by name.
        self._prepared: dict[bool, dict[str, Prepared]] = {False: {}, True: {}}
        catalog.followers.append(self._follow)
        link.find_method = self._find_method
        link.list_methods = lambda: [name for name in self if self._find_method(name)]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") or not self._catalog.find(name):
                raise AttributeError(self._catalog.tell_missing(name))
            return self._functions[name]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        return self._catalog.names()

    def _ipython_key_completions_(self) -> list[str]:
        return dir(self)

    def __iter__(self) -> Iterator[str]:
        return iter(dir(self))

    def __len__(self) -> int:
        return len(dir(self))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._catalog.find(name) is not None

    def __repr__(self) -> str:
        return f"<opd.Ops of {self._link.conn.path}>"

    def _find_method(self, name: str) -> Optional[Any]:
        """The operator, if its first argument is a tensor."""
        spec = self._catalog.find(name)
        return self._functions[name] if spec and spec.is_method else None

    def _follow(self, specs: dict[str, Spec]) -> None:
        """Functions that the user holds are brought up to date, not replaced."""
        known = self._catalog.specs
        for name in known.keys() - specs.keys():
            self.__dict__.pop(name, None)
            self._forget(name)
        for name, spec in specs.items():
            if known.get(name) is spec:
                continue
            if name in self._functions:
                self._forget(name)
            else:
                for keep in (False, True):
                    self._prepared[keep][name] = Prepared(self._link, keep, self._catalog.refresh)
                self._functions[name] = _make_function(self, name)
            for function in (self._functions[name], self._functions[name].forward):
                _describe(function, spec)
            if not name.startswith("_"):
                self.__dict__[name] = self._functions[name]  # __getattr__ is not asked then

    def _forget(self, name: str) -> None:
        """What was prepared."""
        for keep in (False, True):
            self._prepared[keep][name].forget()

    def _run(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], keep: bool) -> Any:
        """One call; if the operator turns out to have changed since we asked, a second one."""
        spec = self._catalog.specs.get(name)
        try:
            if spec is None:
                raise NotFound(f"the daemon has no operator {name!r} any more", op=name)
            return self._run_once(spec, args, kwargs, keep)
        except (TypeError, InvalidArgument, NotFound):
            self._catalog.refresh()
            now = self._catalog.specs.get(name)
            if now is None or (spec and now.info == spec.info):
                raise
        return self._run_once(now, args, kwargs, keep)

    def _run_once(
        self, spec: Spec, args: Sequence[Any], kwargs: dict[str, Any], keep: bool
    ) -> Any:
        call = spec.bind(args, kwargs)
        inputs = self._to_tensors(spec, call)
        prepared = self._prepared[keep][spec.name]
        handle = prepared.find(spec, call, inputs, args, kwargs)
        if handle is not None:
            try:
                return self._run_prepared(handle, spec, inputs, keep)
            except OpdError as e:
                if not e._misfit:
                    raise
                prepared.forget()
        return self._run_plain(spec, call, inputs, keep)

    def _run_again(
        self,
        name: str,
        spec: Optional[Spec],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        error: OpdError,
    ) -> Any:
        """After an error of a prepared call. spec: of the operator then; None: it has changed since."""
        if error._misfit:
            self._prepared[False][name].forget()
            return self._run(name, args, kwargs, keep=False)
        self._catalog.refresh()
        now = self._catalog.specs.get(name)
        if now is None or (spec and now.info == spec.info):
            raise error
        return self._run_once(now, args, kwargs, keep=False)

    def _run_prepared(
        self, handle: Handle, spec: Spec, inputs: list[Any], keep: bool
    ) -> Any:
        ids = b"".join([write_ids(t) for t in inputs])
        run = handle.run_lists if spec.lists else handle.run
        if not keep:
            return run(ids)
        id = self._link.new_id()
        context = Context(self._memory, id, handle.kinds, spec, inputs)
        return run(ids, pack(id)), context

    def _run_plain(self, spec: Spec, call: Call, inputs: list[Any], keep: bool) -> Any:
        link = self._link
        input_ids = [
            to_ids(t, f"{spec.name}: {input['name']}") if isinstance(t, list) else _map(Tensor._live_id, t)
            for input, t in zip(spec.inputs, inputs)
        ]
        n = next((len(t) for t in inputs if isinstance(t, list)), 0)
        wires = [
            [link.new_wire() for _ in range(n)] if o.get("list") else link.new_wire()
            for o in spec.outputs
        ]
        context_id = link.new_id() if keep else None
        given = {
            "context": context_id,
            "deadline": call.deadline,
            "device": call.device,
            "version": call.version,
            "debug": call.debug or None,
        }
        options = {key: value for key, value in given.items() if value is not None}
        output_ids = [_map(_read_wire, wire) for wire in wires]
        params = (spec.name, input_ids, call.attrs, output_ids, options)
        # Made before the request goes: wherever that fails or is interrupted, dropping them cleans up.
        outputs = tuple(_make_tensors(link, wire, ("outputs", i)) for i, wire in enumerate(wires))
        context = context_id and Context(self._memory, context_id, [], spec, inputs)
        reply = link.send("forward", params, call.deadline or spec.deadline)
        for made in outputs:
            _set_reply(made, reply)
        if context:
            context._made = reply
        result = link.settle(reply)
        if result is not None and result["version"] != (call.version or spec.version):
            self._catalog.refresh()
        value = outputs[0] if len(outputs) == 1 else outputs or None
        return (value, context) if keep else value

    def _to_tensors(self, spec: Spec, call: Call) -> list[Any]:
        if not spec.lists:
            pairs = list(zip(spec.inputs, call.tensors))
            return [self._to_tensor(input, value, pairs) for input, value in pairs]
        if all(self._is_own(*pair) for pair in zip(spec.inputs, call.tensors)):
            return call.tensors
        pairs = []  # each tensor of a list as one by itself
        for input, value in zip(spec.inputs, call.tensors):
            is_list = input.get("list") and value is not None
            pairs += [(input, v) for v in value] if is_list else [(input, value)]
        made = iter([self._to_tensor(input, value, pairs) for input, value in pairs])
        return [
            [next(made) for _ in value] if input.get("list") and value is not None else next(made)
            for input, value in zip(spec.inputs, call.tensors)
        ]

    def _is_own(self, input: dict[str, Any], value: Any) -> bool:
        """Nothing but tensors of this client, or absent?"""
        link = self._link
        tensors = () if value is None else value if input.get("list") else (value,)
        try:
            return not [t for t in tensors if t._link is not link]
        except AttributeError:
            return False

    def _to_tensor(self, input: dict[str, Any], value: Any, pairs: list[Any]) -> Optional[Tensor]:
        if value is not None and not isinstance(value, Tensor):
            dtype = None
            if isinstance(value, (int, float, list, tuple)):
                dtype = _dtype_beside(input["type"], pairs)
            device = self._choose_device([v for _, v in pairs])
            value = self._memory.upload(value, dtype, None, device)
        return check_own(self._link, value)

    def _choose_device(self, values: list[Any]) -> Optional[str]:
        """Where temporary tensors go: to the others, if there is a choice."""
        ours = [value for value in values if isinstance(value, Tensor)]
        if len(self._link.info["devices"]) < 2 or len(ours) in (0, len(values)):
            return None
        return ours[0].device


class Versions(Sequence[dict[str, Any]]):
    """What `op_info` says of an operator's versions, newest first; each use asks the daemon."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self._name = name

    def __getitem__(self, index: Any) -> Any:
        return self._ask()[index]

    def __len__(self) -> int:
        return len(self._ask())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._ask())

    def __repr__(self) -> str:
        return repr(self._ask())

    def _ask(self) -> list[dict[str, Any]]:
        return self._catalog.ask_versions(self._name)


def _make_tensors(link: Link, wire: Any, path: tuple[Any, ...]) -> Any:
    """What a reply is to tell of at `path`: a tensor, or those of a list; None: nothing."""
    if isinstance(wire, list):
        return [Tensor(link, w, None, (*path, k)) for k, w in enumerate(wire)]
    return None if wire is None else Tensor(link, wire, None, path)


def take_gradient(made: Any, info: Any) -> Any:
    """What was made for an input, as the reply tells of it; None: it has none."""
    of_nothing = isinstance(made, list) and not made
    return None if info is None and not of_nothing else made


def _set_reply(made: Any, reply: Reply) -> None:
    for tensor in made if isinstance(made, list) else (made,):
        if tensor is not None:
            tensor._reply = reply


def _map(function: Any, value: Any) -> Any:
    """Of each in a list, or of the one that is there."""
    if isinstance(value, list):
        return [function(v) for v in value]
    return None if value is None else function(value)


def _read_wire(wire: bytes) -> int:
    return int.from_bytes(wire[1:], "big")


def _dtype_beside(type: str, pairs: list[Any]) -> Optional[str]:
    """The dtype of the first tensor or array that must have the same."""
    for input, value in pairs:
        if input["type"] == type and hasattr(value, "dtype"):
            return check_dtype(value.dtype)
    return None


def _make_function(ops: Ops, name: str) -> FunctionType:
    quick = ops._prepared[False][name].quick

    def operator(*args: Any, **kwargs: Any) -> Any:
        try:
            made = call_quick(quick, args, kwargs)
        except (InvalidArgument, NotFound) as e:
            handle = find_quick(quick, args, kwargs)
            return ops._run_again(name, handle.spec if handle else None, args, kwargs, e)
        return ops._run(name, args, kwargs, keep=False) if made is NotImplemented else made

    def forward(*args: Any, **kwargs: Any) -> Any:
        return ops._run(name, args, kwargs, keep=True)

    forward.__name__ = "forward"
    forward.__qualname__ = f"{name}.forward"
    operator.__name__ = operator.__qualname__ = name
    setattr(operator, "forward", forward)
    setattr(operator, "versions", Versions(ops._catalog, name))
    assert isinstance(operator, FunctionType)
    return operator


def _describe(function: Any, spec: Spec) -> None:
    function.__doc__ = spec.make_doc()
    function.__signature__ = spec.signature
    function.schema = spec.schema
    function.version = spec.version
