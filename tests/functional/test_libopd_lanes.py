"""libopd's lanes: replays and forwards that come again go by shared memory, and nobody notices but by the time that they
take."""

import ctypes
import os
import signal
import struct
from ctypes import c_int64, c_size_t, c_uint64

import pytest
from libopd import Client as LibraryClient
from libopd import Tensor
from operators import double_by, put_kernels
from raw import Raw, eventually, find_roles
from raw_lane import late
from test_lanes import served  # noqa: F401
from upgrades import upgrade

pytestmark = pytest.mark.unsanitized("Python cannot load a sanitizer's library")


class Library(LibraryClient):
    def do(self, name, *args):
        f = getattr(self.lib, name)
        f.restype = ctypes.c_bool
        self.done(f(self.client, *args, ctypes.byref(self.error)))

    def replay(self, graph):
        self.do("opd_replay", ctypes.c_int64(graph), ctypes.c_double(0))


def test_libopd(served):
    client = Library(served.socket)
    with Raw(served.socket) as other:
        client.make(1, 1, 2, 3)
        client.do("opd_graph_begin", ctypes.c_int64(5), None)
        client.forward("double_it", [1], [2])
        client.do("opd_graph_end", ctypes.c_int64(5))
        for round, factor in enumerate((2, 3, 4)):
            for n in range(200):
                client.replay(5)
            assert client.read(2, 3) == [factor, 2 * factor, 3 * factor]
            requests = other.call("status")["requests"]
            assert requests["replay"] == 202 * round + 200
            assert requests["lane_open"] == round + 1
            put_kernels(served.kernels, double_it=double_by(factor + 1))
            other.call("reload")
            client.replay(5)
            client.do("opd_replay", ctypes.c_int64(5), ctypes.c_double(10))
            for pid in find_roles(served.pid, "executor"):
                os.kill(pid, signal.SIGKILL)
    client.close()


def test_a_lane_that_has_ended_is_opened_again(served):
    """Also for what has never gone by it."""
    client = Library(served.socket)
    with Raw(served.socket) as other:
        client.make(1, 1, 2, 3)
        for graph in (5, 6):
            client.do("opd_graph_begin", c_int64(graph), None)
            client.forward("double_it", [1], [10 + graph])
            client.do("opd_graph_end", c_int64(graph))
            for _ in range(200):
                client.replay(graph)
            assert other.call("status")["requests"]["lane_open"] == graph - 4
            for pid in find_roles(served.pid, "executor"):
                os.kill(pid, signal.SIGKILL)
            other.call("sync")
    client.close()


@pytest.fixture
def library(served):
    """With calls on 1, [1, 2, 3], that come again."""
    client = Library(served.socket)
    client.make(1, 1, 2, 3)
    yield client
    client.close()


def double(client, n=1, id=2):
    """What is made of 1 each time, and freed."""
    for _ in range(n):
        client.forward("double_it", [1], [id])
        made = client.read(id, 3)
        client.free(id)
    return made


def counts(served):
    with Raw(served.socket) as other:
        requests = other.call("status")["requests"]
        return [requests.get(name, 0) for name in ("call", "lane_call", "free")]


def goes_by_lane(served, once):
    """Sooner or later, some in a row: on a machine that is busy a wait may end by a reply, and some after it."""

    def try_some():
        before = counts(served)
        for _ in range(5):
            once()
        return counts(served) == [before[0] + 5, *before[1:]]

    return eventually(try_some)


def test_libopd_calls(served, library):
    """A loop that frees what it has made makes the same tensor each time, without a request."""
    assert goes_by_lane(served, lambda: double(library))
    with Raw(served.socket) as other:
        for factor in (3, 4):
            put_kernels(served.kernels, double_it=double_by(factor))
            other.call("reload")
            assert double(library) == [factor, 2 * factor, 3 * factor]
            assert goes_by_lane(served, lambda: double(library))
            for pid in find_roles(served.pid, "executor"):
                os.kill(pid, signal.SIGKILL)
            try:
                double(library)
            except OSError:
                pass
            upgrade(served)
            assert double(library) == [factor, 2 * factor, 3 * factor]
            assert goes_by_lane(served, lambda: double(library))
            assert double(library) == [factor, 2 * factor, 3 * factor]


def test_what_libopd_leaves_to_requests_is_not_armed(served, library):
    """After a wait that a reply has ended."""
    assert goes_by_lane(served, lambda: double(library))
    with late(served.pid):
        double(library)
    before = counts(served)
    double(library, 50)
    assert counts(served)[1] == before[1]
    assert goes_by_lane(served, lambda: double(library))


def test_libopd_gives_ids_again(served, library):
    library.lib.opd_new_id.restype = c_int64
    seen = set()
    while library.lib.opd_new_id(library.client) < 100:  # others than the test's own
        continue
    for n in range(400):
        made = [library.lib.opd_new_id(library.client) for _ in range(2)]
        assert len(set(made)) == 2
        for id in made:
            library.forward("double_it", [1], [id])
        library.forward("add_to", [made[0], made[1]], [])
        assert library.read(made[0], 3) == [4, 8, 12]
        library.free(*made)
        seen.update(made)
    assert len(seen) < 20
    before = counts(served)
    t = library.lib.opd_new_id(library.client)
    library.make(t, 7, 8, 9)  # something else of that id
    assert library.read(t, 3) == [7, 8, 9]
    assert counts(served)[2] == before[2] + 1


def test_what_libopd_keeps_is_freed(served, library):
    double(library, 60)
    for use in (library.read, library.forward):
        with pytest.raises(OSError, match="2"):
            library.read(2, 3) if use == library.read else library.forward("double_it", [2], [3])
        double(library, 60)
    with pytest.raises(OSError, match="2"):
        library.free(2)
    double(library, 60)
    library.call("sync", [])
    with Raw(served.socket) as other:
        used = other.call("status")["devices"][0]["memory_used"]
        other.make(1, "float32", [3])
        assert double(library, 60, 5) == double(library, 60, 6) == [2, 4, 6]
        library.call("sync", [])
        other.call("free", "tensor", [1])
        assert other.call("status")["devices"][0]["memory_used"] == used


def test_what_others_of_libopd_hold_is_not_written(served, library):
    """A view of a result, and what a context keeps of it, stay as they are."""
    double(library, 60)
    library.forward("double_it", [1], [2])
    library.view(3, 2, 0, [3], [1])
    library.free(2)
    library.make(9, 5, 5, 5)
    library.forward("add_to", [1, 9], [])
    assert double(library, 60) == [12, 14, 16]
    assert library.read(3, 3) == [2, 4, 6]
    library.do("opd_graph_begin", c_int64(5), None)
    library.forward("double_it", [1], [2])
    library.do("opd_graph_end", c_int64(5))
    library.free(2)
    double(library, 60)
    for _ in range(60):
        library.replay(5)
        assert double(library) == [12, 14, 16]


SEEN = """\
//! op      seen({0} x) -> {0} y
//! dtypes  float32
//! {1}
"""


def test_what_has_become_a_view_is_not_written(served, library):
    """An operator that was prepared when it made a copy."""

    def put(source):
        put_kernels(served.kernels, seen=source)
        with Raw(served.socket) as other:
            other.call("reload")

    put(SEEN.format("Tensor", "formula y = x"))
    library.make(8, 0, 0, 0)
    library.make(9, 5, 5, 5)
    for _ in range(3):
        library.forward("add_to", [1, 8], [])
        library.forward("seen", [1], [3])
        library.free(3)
    put(SEEN.format("Tensor(a)", "shape x [N]\n//! shape y [N]\n//! view y x"))
    assert goes_by_lane(served, lambda: double(library))
    library.forward("double_it", [1], [2])
    library.forward("seen", [2], [3])
    library.free(2)
    library.forward("add_to", [1, 9], [])
    assert double(library, 60) == [12, 14, 16]
    assert library.read(3, 3) == [2, 4, 6]


def test_a_fault_of_libopd(served, library):
    def put(flag):
        data = struct.pack("i", flag)
        library.do("opd_tensor_write", c_int64(4), c_uint64(0), data, c_size_t(4))

    library.call("tensor_new", [4, "int32", [1], None])
    library.do("opd_tensor_info", c_int64(4), ctypes.byref(Tensor()))

    def once():
        library.forward("faulty", [1, 4], [2])
        assert library.read(2, 3) == [1, 2, 3]
        library.free(2)

    for flag in (0, 1, 0):
        put(0)
        assert goes_by_lane(served, once)
        if flag:
            put(1)
            with pytest.raises(OSError, match="faulty"):
                library.forward("faulty", [1, 4], [2])
            with pytest.raises(OSError, match="2"):
                library.read(2, 3)
