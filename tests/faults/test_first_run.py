"""--first-run checked, the default: an edited operator's first call of each signature runs in a checked build, so that
what nobody would notice is told once, right after the edit; the calls after that run what they would have run."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import eventually
from planted import Planted

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "functional"))
from raw_lane import CallLane

DEVICE = os.environ.get("OPD_TEST_DEVICE", "cpu")
pytestmark = pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="on the CPU every run tells: test_guards.py")

GOOD, BAD = "y[i] = x[i] * {factor};", "y[i] = x[i + 1] * {factor};"
MESSAGE = "out-of-bounds read of 'x': element 1024 of 1024 ({})"
BACKWARD = """\
//! backward grad_x
//!   kernel  back threads N
"""
BACK = """
__global__ void back(const scalar_t *grad_y, scalar_t *grad_x, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N) grad_x[i] = grad_y[i + 1]; // back
}
"""


class Editor:
    """A daemon with one operator, `scale`, that can be edited."""

    def __init__(self, start_daemon, folder, *options):
        self.path, self.factor = folder / "scale.cu", 1
        self.put(GOOD)
        self.daemon = start_daemon("--kernels", str(folder), *options)
        self.client = self.daemon.connect()

    def put(self, body, change=lambda text: text):
        """The text has not been there before."""
        self.factor += 1
        planted = Planted("float16 float32", {"scale": ("", body.format(factor=f"(scalar_t){self.factor}"))})
        new = self.path.with_name(".new")
        new.write_text(change(planted.source("scale")))
        new.rename(self.path)
        self.line = planted.line("scale")

    def edit(self, body, **keywords):
        self.put(body, **keywords)
        self.client.reload()

    def fault(self, call):
        with pytest.raises(opd.KernelFault) as error:
            call()
        return str(error.value)


@pytest.fixture
def start(start_daemon, tmp_path):
    editors = []

    def start(*options):
        editors.append(Editor(start_daemon, tmp_path, *options))
        return editors[-1]

    yield start
    for editor in editors:
        editor.client.close()


@pytest.fixture
def editor(start):
    return start()


def ones(client, dtype="float32"):
    return client.tensor(np.ones(1024, dtype)), client.tensor(np.ones(1024, dtype))  # with a neighbour


def test_it_is_told_once(editor):
    """Of each signature, in the words of debug=True; the device goes on, and results are what they would have been."""
    client, scale = editor.client, editor.client.ops.scale
    used, _ = ones(client), scale(ones(client)[0]).numpy()  # a plan that the edit takes over, a prepared call
    restarts = client.status()["devices"][0]["restarts"]
    for _ in range(2):
        editor.edit(BAD)
        for dtype in ("float32", "float16"):
            x = used[0] if dtype == "float32" else ones(client, dtype)[0]
            message = editor.fault(lambda: scale(x))
            assert MESSAGE.format(dtype) in message and message.endswith(editor.line), message
            for _ in range(3):
                np.testing.assert_array_equal(scale(x).numpy()[:1023], np.full(1023, editor.factor, dtype))
            assert editor.fault(lambda: scale(x, debug=True)) == message
    assert client.status()["devices"][0]["restarts"] == restarts


def test_what_is_good_is_served(editor):
    x, _ = ones(editor.client)
    for _ in range(3):
        editor.edit(GOOD)
        for _ in range(3):
            np.testing.assert_array_equal(editor.client.ops.scale(x).numpy(), np.full(1024, editor.factor, "float32"))


def test_without_it(start):
    editor = start("--first-run", "plain")
    x, _ = ones(editor.client)
    editor.edit(BAD)
    assert editor.client.ops.scale(x).numpy()[0] == editor.factor


def test_other_numbers(editor):
    """What an attribute's number does not decide is no other signature, whichever number the first call has."""
    x, _ = ones(editor.client)
    body = "y[i] = x[i + by] * {factor};"
    editor.edit(body)
    editor.client.ops.scale(x, by=0).numpy()
    editor.edit(body)
    assert "element 1024 of 1024" in editor.fault(lambda: editor.client.ops.scale(x, by=1023).numpy())
    assert editor.client.ops.scale(x, by=2).numpy()[0] == editor.factor


def test_backwards(editor):
    def change(text):
        return text.replace("//!   block   64\n", "//!   block   64\n" + BACKWARD) + BACK

    client = editor.client
    x, gradient = ones(client)
    editor.edit(GOOD, change=change)
    for attempt in range(2):
        _, context = client.ops.scale.forward(x)
        if attempt == 0:
            assert "read of 'grad_y': element 1024 of 1024" in editor.fault(lambda: context.backward(gradient))
            _, context = client.ops.scale.forward(x)
        assert context.backward(gradient)[0].numpy()[0] == 1


def test_in_a_batch(editor):
    """The first of the calls is told of; the others are served."""
    client = editor.client
    x, _ = ones(client)
    editor.edit(BAD)
    with pytest.raises(opd.KernelFault, match="element 1024 of 1024"):
        with client.batch():
            results = [client.ops.scale(x) for _ in range(4)]
    assert results[3].numpy()[0] == editor.factor


def test_graphs(editor):
    """A run that is recorded is replayed in its own build; a replay after an edit is no first run."""
    client = editor.client
    x, _ = ones(client)
    editor.edit("y[i] = by ? x[i + by] * {factor} : x[i];")
    with client.capture() as graph:
        y = client.ops.scale(x, by=0)
    graph.replay()
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    editor.edit(BAD)
    graph.replay()
    assert y.numpy()[0] == editor.factor
    assert "element 1024 of 1024" in editor.fault(lambda: client.ops.scale(x))


def test_lanes(editor):
    """A call goes past the daemon when its first run is over; where it went by a lane before, an edit ends that."""
    editor.edit(BAD)
    with CallLane(editor.daemon.socket) as lane:
        lane.make(1, "float32", [1024], np.ones(1024, "float32").tobytes())
        lane.make(2, "float32", [1024])
        lane.call("prepare", 5, "forward", "scale", [["float32", [1024]], None], {})
        for _ in range(2):
            ids = [1, None, 2]
            assert lane.call("lane_call", 5, ids) == {}
            assert MESSAGE.format("float32") in str(lane.fail("call", 5, ids))
            assert lane.call("call", 5, ids)
            # Who watches the folder may come after reload(), and ends it once more.
            assert eventually(lambda: (to := lane.call("lane_call", 5, ids).get("lane")) and lane.run(to) is None)
            editor.edit(BAD)
