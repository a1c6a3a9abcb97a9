"""The model of `make model` beside the daemon, step by step: what requests at random come by too rarely."""

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import DEVICE
from raw import Raw, RpcError

MODEL = Path(__file__).resolve().parents[1] / "model"
sys.path.insert(0, str(MODEL))

from comparer import check_reply  # noqa: E402
from graphs import Graphs  # noqa: E402
from model import Client, Tensor, Untold  # noqa: E402


def play(raw, world, client, method, *params):
    """A request of both. The code of the error that both gave, or None."""
    prediction = world.predict(client, method, params)
    error = result = None
    try:
        result = raw.call(method, *params)
    except RpcError as refused:
        error = {"code": refused.code, "message": str(refused)}
    prediction.happen()
    check_reply(method, params, prediction, error, result)
    return prediction.code


def test_ids_that_are_used_again_in_a_capture_are_not_told():
    Tensor.device = DEVICE
    world, client = Graphs(np.random.default_rng(1)), Client("a client")

    def ask(method, *params):
        prediction = world.predict(client, method, list(params))
        prediction.happen()
        return prediction.code

    assert ask("tensor_new", 1, "float32", [4]) is ask("tensor_new", 2, "float32", [4]) is None
    assert ask("graph_begin", 9) is ask("forward", "grow", [1], {}, []) is None
    assert ask("forward", "grow", [1], {}, []) is None  # the same one may come again
    assert ask("free", "tensor", [1]) is ask("tensor_view", 1, 2, 0, [4]) is None
    with pytest.raises(Untold):
        ask("forward", "grow", [1], {}, [])


def test_what_failed_in_a_capture_was_written(start_daemon):
    daemon = start_daemon("--kernels", str(MODEL / "kernels"))
    Tensor.device = DEVICE
    world, client = Graphs(np.random.default_rng(1)), Client("a client")
    with Raw(daemon.socket) as raw:

        def ask(method, *params):
            return play(raw, world, client, method, *params)

        minus = struct.pack("4f", *[-1] * 4)
        assert ask("graph_begin", 9) is None
        for id in (1, 2):
            assert ask("tensor_new", id, "float32", [4]) is None
            assert ask("tensor_write", id, 0, minus) is None
        assert ask("forward", "refuse", [1], {}, [3]) == "invalid_argument"
        assert ask("forward", "grow", [2], {}, []) is None  # too late to be recorded
        assert ask("tensor_write", 1, 0, minus) == "invalid_argument"
        assert ask("tensor_write", 2, 0, minus) is None
        assert ask("graph_end", 9) == "invalid_argument"
