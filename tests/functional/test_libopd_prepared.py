"""libopd prepares the forwards that come again, and nobody notices but by the time that they take."""

import pytest
from conftest import ROOT
from libopd import Client
from operators import double_by, put_kernels
from raw import Raw
from upgrades import SCALE

pytestmark = pytest.mark.unsanitized("Python cannot load a sanitizer's library")


@pytest.fixture
def daemon(start_daemon, tmp_path):
    strided = (ROOT / "tests" / "torch" / "kernels" / "read_strided.cu").read_text()
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "kernels", scale=SCALE.replace("FACTOR", "1.0f"),
                                                   double_it=double_by(2), read_strided=strided))  # fmt: skip
    daemon.kernels = tmp_path / "kernels"
    return daemon


@pytest.fixture
def client(daemon):
    client = Client(daemon.socket)
    yield client
    client.close()


def count(daemon):
    with Raw(daemon.socket) as raw:
        requests = raw.call("status")["requests"]
    return [requests.get(name, 0) for name in ("forward", "prepare", "call")]


def test_from_the_second_on(daemon, client):
    client.make(1, 1, 2, 3)
    for i in range(5):
        told = client.forward("scale", [1], [10 + i], by=2.0)
        assert told == [(10 + i, b"float32", [3], 12, b"")]
        assert client.read(10 + i, 3) == [2, 4, 6]
    assert count(daemon) == [1, 1, 4]
    client.forward("scale", [14], [20], by=2.0)  # of a result it is known what it is
    assert client.read(20, 3) == [4, 8, 12]
    assert count(daemon) == [1, 1, 5]
    client.forward("scale", [1], [21], by=3.0)  # is another
    client.forward("scale", [1], [22], 7, by=2.0)  # so is one with a context
    assert count(daemon) == [3, 1, 5]
    assert client.read(21, 3) == [3, 6, 9] and client.read(22, 3) == [2, 4, 6]


def test_strided_views(daemon, client):
    client.make(1, 1, 2, 3, 4, 5, 6)
    for source, shape, strides, expected in ((2, [2, 3], [1, 2], [1, 9, 25, 4, 16, 36]), (3, [2, 3], [0, 1], [1, 4, 9] * 2),
                                             (4, [2, 3], [3, 1], [1, 4, 9, 16, 25, 36])):  # fmt: skip
        told = client.view(source, 1, 0, shape, strides)
        assert told.strided == (source != 4) and (source == 4 or list(told.strides[:2]) == strides)
        for i in range(3):
            made = [100 * source + 2 * i, 100 * source + 2 * i + 1]
            client.forward("read_strided", [source], made)
            assert client.read(made[0], 6) == expected
    assert count(daemon) == [3, 3, 6]
    with pytest.raises(OSError, match="do not lie in a tensor of 6"):
        client.view(9, 1, 0, [2, 3], [4, 1])


def test_errors_are_those_of_forward(client):
    client.make(1, 1, 2, 3)
    messages = []
    for _ in range(3):
        with pytest.raises(OSError) as raised:
            client.forward("scale", [1], [2], bye=1.0)
        messages.append(str(raised.value))
    assert len(set(messages)) == 1 and "no attribute 'bye'" in messages[0]
    for _ in range(3):
        client.forward("scale", [1], [2])
        with pytest.raises(OSError, match="id 2 is in use"):
            client.forward("scale", [1], [2])
        client.free(2)
        with pytest.raises(OSError, match="this connection has no tensor 2 "):
            client.forward("scale", [2], [3])


def test_a_tensor_that_is_another_now(client):
    client.make(1, 1, 2, 3)
    for id in (2, 3):
        client.forward("scale", [1], [id])
    client.free(1)
    client.make(1, 1, 2, 3, 4)
    assert client.forward("scale", [1], [4])[0][2] == [4]
    client.forward("scale", [1], [5])
    client.call("free", ["tensor", [1]])  # by hand, so that it does not notice
    client.call("tensor_new", [1, "float32", [2]])
    assert client.forward("scale", [1], [6])[0][2] == [2]


def test_edits_are_followed(daemon, client):
    client.make(1, 1, 2)
    with Raw(daemon.socket) as raw:
        for factor, id in [(2, 10), (3, 20), (4, 30)]:
            put_kernels(daemon.kernels, double_it=double_by(factor))
            raw.call("reload")
            for i in range(3):
                client.forward("double_it", [1], [id + i])
                assert client.read(id + i, 2) == [factor, 2 * factor]
        assert count(daemon)[0] == 1
        longer = double_by(2).replace("shape   y [...S]", "shape   y [2, ...S]")
        put_kernels(daemon.kernels, double_it=longer)
        raw.call("reload")
        assert client.forward("double_it", [1], [40])[0][2] == [2, 2]
        # What does not fit any more is as if it had never been prepared.
        put_kernels(daemon.kernels, double_it=double_by(2).replace("float32 float64", "float64"))
        raw.call("reload")
        with pytest.raises(OSError, match="^double_it: x is float32"):
            client.forward("double_it", [1], [50])
        put_kernels(daemon.kernels, double_it=double_by(5))
        raw.call("reload")
        client.forward("double_it", [1], [60])
        assert client.read(60, 2) == [5, 10]


def test_results_that_there_is_no_room_to_know(daemon, client):
    for n in range(1, 257):
        client.make(n, *range(n))
    twice = double_by(2).replace("shape   y [...S]", "shape   y [2, ...S]")
    put_kernels(daemon.kernels, double_it=twice)
    with Raw(daemon.socket) as raw:
        raw.call("reload")
    for i in range(5):
        assert client.forward("double_it", [7], [1000 + i])[0][2] == [2, 7]
    assert count(daemon) == [5, 1, 0]
    with Raw(daemon.socket) as raw:
        assert raw.call("status")["requests"]["free"] == 1  # the daemon does not keep it either


def test_more_of_them_than_are_kept(daemon, client):
    for n in range(1, 301):
        client.make(n, *range(n))
    for _ in range(3):
        for n in range(1, 301):
            assert client.forward("scale", [n], [1000 + n])[0][2] == [n]
        client.free(*range(1001, 1301))
    with Raw(daemon.socket) as raw:
        requests = raw.call("status")["requests"]
    assert requests["call"] >= 100
