"""The daemon's operators as a client last heard of them."""

from __future__ import annotations

import os
from typing import Any, Callable, Optional

from ._link import Link
from ._spec import Spec, suggest
from .errors import NotFound


class Catalog:
    """`specs` by name, among them derivatives ("silu.backward") that have been asked for. Each of
    `followers` is called with new ones before they are in use."""

    def __init__(self, link: Link) -> None:
        self.specs: dict[str, Spec] = {}
        self.followers: list[Callable[[dict[str, Spec]], None]] = []
        self._link = link

    def find(self, name: str) -> Optional[Spec]:
        """Asks the daemon for one that is unknown."""
        if name not in self.specs:
            self.refresh(name)
        return self.specs.get(name)

    def names(self) -> list[str]:
        """The names of the operators that the daemon lists now."""
        self.refresh()
        return sorted(name for name in self.specs if "." not in name)

    def refresh(self, name: str = "") -> None:
        """`name`: of one that is wanted, which may be a derivative."""
        specs = self.read(self._link.call("op_list"))
        for derived in {name, *self.specs}:
            if "." in derived and derived.partition(".")[0] in specs:
                self._add_derived(derived, specs)
        self.take_up(specs)

    def read(self, infos: list[dict[str, Any]]) -> dict[str, Spec]:
        """What `op_list` says."""
        specs = {}
        for info in infos:
            known = self.specs.get(info["name"])
            specs[info["name"]] = known if known and known.info == info else Spec(info)
        return specs

    def take_up(self, specs: dict[str, Spec]) -> None:
        """They are those of the daemon now."""
        for follow in self.followers:
            follow(specs)
        self.specs = specs  # last: whom they concern knows of them, also after an interrupt

    def _add_derived(self, name: str, specs: dict[str, Spec]) -> None:
        try:
            specs[name] = Spec(self._link.call("op_info", name))
        except NotFound:
            pass  # an edit made something else of it

    def update(self) -> None:
        """After the served versions may have changed."""
        if self.specs:
            self.refresh()

    def ask_versions(self, name: str) -> list[dict[str, Any]]:
        """What `op_info` says of an operator's versions, newest first."""
        return list(self._link.call("op_info", name)["versions"])

    def tell_missing(self, name: str) -> str:
        """That there is no such operator, and why if its file has failed."""
        events = [] if name.startswith("_") else self._link.ask("events", 0)["events"]
        return self.explain_missing(name, events)

    def explain_missing(self, name: str, events: list[dict[str, Any]]) -> str:
        """As tell_missing(), of what has happened."""
        failure = self._find_failure(name, events)
        names = sorted(n for n in self.specs if "." not in n)
        why = f": {failure}" if failure else suggest(name, names)
        return f"the daemon has no operator {name!r}" + (
            why
            or f"; it has {', '.join(names)}; `opctl kernels add DIR` or opd.connect(kernels=DIR) adds those of a folder"
        )

    def _find_failure(self, name: str, events: list[dict[str, Any]]) -> str:
        """What was wrong with NAME.cu when the daemon last read it; empty: nothing."""
        for event in reversed(events):
            file = event.get("file") or ""
            if os.path.basename(file) == f"{name}.cu":
                failed = event["kind"] == "failed"
                log = event.get("log") or ""
                return f"{file} failed: {event['message']}\n{log}".rstrip() if failed else ""
        return ""
