"""Checks that kernels make on the device: `//! check`."""

import numpy as np
import pytest

from operators import MARK, PICK
from raw import Raw, RpcError, find_roles


@pytest.fixture
def raw(start_daemon, tmp_path):
    (tmp_path / "pick.cu").write_text(PICK)
    (tmp_path / "mark.cu").write_text(MARK)
    daemon = start_daemon("--kernels", str(tmp_path))
    with Raw(daemon.socket) as raw:
        raw.daemon = daemon
        raw.make(1, "float32", [5, 3], TABLE.tobytes())
        yield raw


TABLE = np.arange(15, dtype=np.float32).reshape(5, 3)


def put(raw, id, *rows):
    raw.make(id, "int64", [len(rows)], np.array(rows, np.int64).tobytes())


def read(raw, id, dtype=np.float32):
    return np.frombuffer(raw.call("tensor_read", id, 0), dtype)


def test_what_holds_is_not_noticed(raw):
    put(raw, 2, 4, 0, 4)
    raw.call("forward", "pick", [1, 2], {}, [3], {"context": 1})
    np.testing.assert_array_equal(read(raw, 3).reshape(3, 3), TABLE[[4, 0, 4]])
    raw.make(4, "float32", [3, 3], np.ones((3, 3), np.float32).tobytes())
    raw.call("backward", 1, [4], [5, None])
    np.testing.assert_array_equal(read(raw, 5).reshape(5, 3)[:, 0], [1, 0, 0, 0, 2])
    raw.make(6, "int64", [0])
    raw.call("forward", "pick", [1, 6], {}, [7])


def test_failure_is_an_error_with_the_smallest_index(raw):
    rows = [1] * 5000
    rows[4321] = rows[123] = rows[4999] = 5
    put(raw, 2, *rows)
    for _ in range(5):
        error = raw.fail("forward", "pick", [1, 2], {}, [3], {"context": 1})
        assert str(error) == "pick: row 123 of rows is not below 5 of float32 [5, 3]: 123"
        assert error.code == "invalid_argument" and error.op == "pick"
        assert raw.fail("tensor_info", 3).code == "not_found"
        assert raw.fail("free", "context", [1]).code == "not_found"
    # The first check of the file is told, whatever its index.
    rows[4998] = -7
    put(raw, 4, *rows)
    error = raw.fail("forward", "pick", [1, 4], {"bias": 2}, [3])
    assert str(error) == "pick: row 4998 of rows is negative (bias 2)"
    status = raw.call("status")
    assert status["devices"][0]["restarts"] == 0


@pytest.mark.parametrize("value", [5, -1, 2**56 - 1, -(2**57) + 5, 2**62, -(2**62)])
def test_index_may_be_any_number(raw, value):
    put(raw, 2, 1, 2)
    raw.call("forward", "pick", [1, 2], {}, [3])
    put(raw, 4, value, 1)
    raw.make(5, "float32", [2, 3])
    error = raw.fail("vjp", "pick", [1, 4], [], [], [5], {}, [6, None])
    shown = max(min(value, 2**57 - 1), 1 - 2**57)
    assert str(error).startswith(f"pick: row {shown} of rows is not below 5")
    assert raw.fail("tensor_info", 6).code == "not_found"


def test_backward_fails_alone(raw):
    put(raw, 2, 1, 2)
    raw.call("forward", "pick", [1, 2], {}, [3], {"saved": []})
    raw.make(4, "float32", [2, 3])
    assert "row 8 of rows" in str(
        raw.fail("vjp", "pick", [1, 2], [], [], [4], {"bias": 7}, [5, None])
    )
    grads = raw.call("vjp", "pick", [1, 2], [], [], [4], {}, [5, None])
    assert grads[0]["shape"] == [5, 3]


def test_many_in_flight_each_with_its_own(raw):
    n = 600
    for k in range(n):
        put(raw, 10 + k, *([0] * (k % 50) + [9 if k % 3 == 0 else 4]))
    sent = [raw.request("forward", "pick", [1, 10 + k], {}, [1000 + k]) for k in range(n)]
    after = [raw.request("forward", "pick", [1000 + k, 10], {"bias": -9}, [2000 + k])
             for k in range(n)]  # fmt: skip
    for k, msgid in enumerate(sent):
        if k % 3 == 0:
            with pytest.raises(RpcError, match=f"row {k % 50} of rows is not below 5"):
                raw.wait(msgid)
        else:
            assert raw.wait(msgid)["outputs"][0]["shape"] == [k % 50 + 1, 3]
    for k, msgid in enumerate(after):
        if k % 3 == 0:
            with pytest.raises(RpcError):
                raw.wait(msgid)
        else:
            raw.wait(msgid)


def test_in_place_stays_written(raw):
    put(raw, 2, 1, -1, 2)
    assert "x[1] is not positive" in str(raw.fail("forward", "mark", [2], {}, []))
    assert list(read(raw, 2, np.int64)) == [7, -1, 7]


def test_device_goes_on(raw):
    before = find_roles(raw.daemon.pid, "executor")
    put(raw, 2, 77)
    raw.fail("forward", "pick", [1, 2], {}, [3])
    assert find_roles(raw.daemon.pid, "executor") == before


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('check   below : "', 'check   below "', "expected ':' and the message"),
        ("check   below :", "check   N :", "'N' is defined twice"),
        ("check   below :", "check   table :", "'table' is defined twice"),
        ("check   above :", "check   below :", "'below' is defined twice"),
        ('"row {index} of rows is negative (bias {bias})"', "7", "expected the message in quotes"),
        ("(bias {bias})", "(bias {nobias})", "'nobias' is not defined"),
        ("opd::report_t *report", "opd::report_t *rapport", "no tensor"),
        ("shape   y [M, C]\n", "shape   y [M, C]\n//! let report = 1\n", "'report' is defined twice"),
        ("//\n//! forward", "//! let K = 2 * below\n//\n//! forward", "expected a number"),
    ],
)
def test_mistakes_are_told_at_load(raw, old, new, message):
    result = raw.call("check", "pick.cu", "", PICK.replace(old, new), {"targets": ["cpu"]})
    assert not result["ok"]
    assert message in result["errors"][0]["message"], result["errors"]


def test_check_without_a_report_is_told(raw):
    text = MARK.replace("opd::report_t *report, ", "").replace(
        "opd::check(report, positive, x[i] > 0, i)", "x[i]"
    )
    result = raw.call("check", "mark.cu", "", text, {"targets": ["cpu"]})
    assert "no kernel has the parameter" in result["errors"][0]["message"]


def test_kernels_with_checks_compile_for_gpus(raw):
    targets = ["cpu", "sm_90"]
    result = raw.call("check", "pick.cu", "", PICK, {"targets": targets})
    if any("NVRTC" in e["message"] for e in result["errors"]):
        pytest.skip("no NVRTC here")
    assert result["ok"], result["errors"]
    assert {k["target"] for k in result["kernels"]} == set(targets)
