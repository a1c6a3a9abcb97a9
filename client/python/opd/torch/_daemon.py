"""The process's connection to the daemon, and what is known of that daemon: its operators, its devices, what
it has loaded.

One connection for all threads, under one lock: a call is at most a few messages and a copy, and
a device runs one request after the other anyway. A forked child starts without one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Optional

import torch

from .._calls import CallConnection
from .._catalog import Catalog
from .._link import Link, connect_link
from .._load import Source, get_loaded
from .._spec import Spec
from .._warn import warn_reload
from ..client import Client
from ..errors import NotFound, OpdError, Unavailable
from ._library import find_library
from ._options import get_options
from ._stamps import Stamps
from ._transport import Transport

_TIMEOUT = 60.0  # seconds of silence of the daemon

# Called with all operators when they have been asked for again.
on_refresh: list[Callable[[dict[str, Spec]], None]] = []


class Daemon:
    """The one at a socket, over a connection of our own."""

    def __init__(self, socket: Optional[str]) -> None:
        self.lock = threading.RLock()
        self._socket = socket
        self._link: Optional[Link] = None
        self._transports: dict[torch.device, tuple[str, Transport]] = {}
        self._apart: Optional[Transport] = None  # for tensors on the CPU, each in memory of its own
        self._ids = 0
        self._paged: Optional[Link] = None  # whose page of versions is in use
        self._loaded: dict[str, Source] = {}  # by this connection

    @property
    def link(self) -> Link:
        """Connected when first needed, and again after the connection was lost."""
        with self.lock:
            if self._link is None or self._link.conn.closed:
                self._connect(start=True)
            assert self._link is not None
            return self._link

    def _connect(self, start: bool) -> None:
        link = connect_link(self._socket, start, _TIMEOUT)
        self._forget()
        self._catalog = Catalog(link)
        self._stamps = Stamps(link.conn, self._catalog)
        self._link = link
        self._loaded = {}
        self._take_loaded()

    def follow_loaded(self) -> None:
        """What clients of this process have loaded is here, too, from now on."""
        with self.lock:
            if self._link is not None and not self._link.conn.closed:
                self._take_loaded()

    def _drop_loaded(self) -> None:
        """Of clients that were dropped without a word."""
        if self._loaded:
            self.follow_loaded()

    def _take_loaded(self) -> None:
        assert self._link is not None
        wanted = {op: each.source for op, each in get_loaded().items()}
        changed = [op for op in {**self._loaded, **wanted} if self._loaded.get(op) != wanted.get(op)]
        for op in changed:
            try:
                if op in wanted:
                    source = wanted[op]
                    options = {"name": source.name, "folder": source.folder}
                    self._link.ask("load", source.text, options)
                    self._loaded[op] = source
                else:
                    del self._loaded[op]
                    self._link.ask("unload", op)
            except OpdError as e:
                warn_reload(f"opd.torch.ops.{op} is not what a client has loaded: {e}")
        if changed:
            self._forget_plans()
            self._catalog.refresh()
            # Another operator may have the versions' numbers now.
            self._stamps = Stamps(self._link.conn, self._catalog)
            for follow in on_refresh:
                follow(self._catalog.specs)

    @property
    def client(self) -> Client:
        """Over the same connection, for all else that a daemon can be asked."""
        return Client(self.link)

    @property
    def catalog(self) -> Catalog:
        self.link
        return self._catalog

    @property
    def conn(self) -> CallConnection:
        return self.link.conn

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    def find(self, name: str) -> Spec:
        """An operator as last heard of; asks the daemon for one that is unknown."""
        spec = self.find_if_any(name)
        if spec is None:
            raise NotFound(self.tell_missing(name), op=name)
        return spec

    def find_if_any(self, name: str) -> Optional[Spec]:
        self._drop_loaded()
        return self.catalog.find(name)

    def tell_missing(self, name: str) -> str:
        """Why find() finds nothing."""
        return self.catalog.tell_missing(name)

    def names(self) -> list[str]:
        self._drop_loaded()
        return self.catalog.names()

    def refresh(self, name: str) -> None:
        """Forgets what was known of an operator, and asks again."""
        self._forget_plans(name)
        self.catalog.refresh()
        for follow in on_refresh:
            follow(self.catalog.specs)

    def find_version(self, name: str, stamp: int) -> int:
        """The version of that stamp; on a later connection, what has the same text."""
        with self.lock:
            self.link
            return self._stamps.find_version(name, stamp)

    def is_cpu(self, device: torch.device) -> bool:
        """Are its tensors computed by the daemon's device cpu?"""
        with self.lock:
            return self._device_name(device) == "cpu"

    def may_run_here(self, device: torch.device) -> bool:
        """False, once it is known that the daemon computes its tensors elsewhere."""
        with self.lock:
            found = self._transports.get(device)
            return device.type != "cpu" or found is None or found[0] == "cpu"

    def unshare(self, device: torch.device) -> None:
        """After a call whose like run in this process from now on: CUDA memory that the daemon had
        open would stay taken when torch frees it."""
        with self.lock, suppress(OpdError):
            if device.type == "cuda" and device in self._transports:
                self._transports[device][1].release()

    def look_for_daemon(self) -> bool:
        """The one whose operators are loaded has ended, or seems to. True: there is one; none is
        started."""
        with self.lock:
            with suppress(OpdError):
                if self._link is not None and not self._link.conn.closed:
                    self._paged = None
                    self._take_page(self._link)
                    return True
            with suppress(OpdError):
                self._connect(start=False)
                self._take_page(self.link)
                return True
        return False

    def _take_page(self, link: Link) -> None:
        """The daemon's page of versions, once for each connection."""
        library = find_library()
        if self._paged is link or library is None:
            return
        reply = link.conn.send("version_page", ())
        link.conn.wait(reply)
        file = reply.take_file()
        if file is not None:
            with file:
                library.set_page(file.fileno())
        self._paged = link

    def release(self) -> None:
        """Gives up all memory that is kept for later calls, here and in the daemon."""
        with self.lock:
            if self._link is None or self._link.conn.closed:
                self._forget()  # no daemon is started for this
            for _, transport in self._transports.values():
                transport.release()
            if self._apart is not None:
                self._apart.release()

    def close(self) -> None:
        with self.lock:
            if self._link is not None:
                self._link.close()
            self._link = None
            self._forget()

    def _forget(self) -> None:
        self._forget_plans()
        self._transports.clear()
        self._apart = None
        self._ids = 0

    def _forget_plans(self, name: Optional[str] = None) -> None:
        """What was worked out for calls of an operator, or of all, is out of date."""

    def _transport(self, device: torch.device) -> Transport:
        """What is to be debugged finds each tensor in memory of its own, with guards around it."""
        name = self._device_name(device)
        if device.type != "cpu" or name != "cpu" or not get_options().debug:
            return self._transports[device][1]
        if self._apart is None:
            from ._host import StagedTransport

            self._apart = StagedTransport(self, name)
        return self._apart

    def _device_name(self, device: torch.device) -> str:
        """The daemon's name of the device that serves tensors on `device`."""
        self.link
        found = self._transports.get(device)
        if found is None:
            found = self._transports[device] = self._choose(device)
        return found[0]

    def _choose(self, device: torch.device) -> tuple[str, Transport]:
        devices = self.link.call("status")["devices"]  # hello's may not have been ready
        if device.type == "cuda":
            from ._cuda import CudaTransport, find_card

            name = find_card(device.index, devices)
            return name, CudaTransport(self, name, device)
        if device.type not in ("cpu", "meta"):
            raise Unavailable(f"opd computes tensors on cpu and cuda, not on {device}; move it")
        from ._host import DirectTransport, StagedTransport

        names = [d["name"] for d in devices]
        if "cpu" in names:
            return "cpu", DirectTransport(self, "cpu")
        return names[0], StagedTransport(self, names[0])
