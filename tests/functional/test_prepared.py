"""Prepared calls: what forward and vjp check each time is checked once, and every rule of those holds."""

import struct

import pytest
from operators import SPIN, double_by, put_kernels
from raw import Raw
from upgrades import SCALE

DESC = ["float32", [4]]
DESC3 = ["float32", [1, 1, 3, 3]]


def floats(*values):
    return struct.pack(f"{len(values)}f", *values)


def read(raw, id):
    data = raw.call("tensor_read", id, 0)
    return list(struct.unpack(f"{len(data) // 4}f", data))


@pytest.fixture
def daemon(start_daemon, tmp_path):
    """With operators to edit, in `daemon.kernels`."""
    folder = tmp_path / "kernels"
    put_kernels(folder, scale=SCALE.replace("FACTOR", "1.0f"), spin=SPIN, double_it=double_by(2))
    daemon = start_daemon("--kernels", str(folder))
    daemon.kernels = folder
    return daemon


@pytest.fixture
def raw(daemon):
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [4], floats(1, 2, 3, 4))
        yield raw


def edit(raw, daemon, **sources):
    put_kernels(daemon.kernels, **sources)
    told = raw.call("reload")
    assert {t["op"]: t["state"] for t in told} == dict.fromkeys(sources, "serving"), told


def test_what_it_tells(raw):
    told = raw.call("prepare", 7, "forward", "scale", [DESC], {"by": 3.0}, {"saved": True})
    assert told == {
        "version": 1, "device": told["device"], "outputs": [DESC], "saved": [DESC], "views": [None],
        "gradients": [True],
    }  # fmt: skip
    assert raw.call("call", 7, [1, 2, 3]) == {"version": 1}
    assert read(raw, 2) == [3, 6, 9, 12] and read(raw, 3) == [1, 2, 3, 4]
    assert raw.call("tensor_info", 2)["shape"] == [4]


def test_a_result_that_is_there_is_written(raw):
    raw.call("prepare", 1, "forward", "scale", [DESC], {})
    raw.call("call", 1, [1, 2])
    raw.call("call", 1, [2, 3])
    raw.call("call", 1, [3, 2])
    assert read(raw, 2) == [8, 16, 24, 32] and read(raw, 3) == [4, 8, 12, 16]
    assert "memory of x" in str(raw.fail("call", 1, [2, 2]))
    raw.make(9, "float32", [5])
    assert "float32 [5], expected float32 [4]" in str(raw.fail("call", 1, [1, 9]))


def test_results_can_be_held_to_be_new(raw):
    raw.call("prepare", 1, "forward", "scale", [DESC], {}, {"new": True})
    raw.call("call", 1, [1, 2])
    assert "id 2 is in use" in str(raw.fail("call", 1, [1, 2]))
    assert read(raw, 2) == [2, 4, 6, 8]


def test_vjp_takes_the_gradients_that_come(raw):
    raw.call("prepare", 1, "forward", "scale", [DESC], {}, {"saved": True})
    raw.call("prepare", 2, "vjp", "scale", [DESC], {})
    raw.call("call", 1, [1, 2, 3])
    raw.make(4, "float32", [4], floats(1, 1, 1, 2))
    assert raw.call("call", 2, [None, None, 3, 4, 5]) == {"version": 1}
    assert read(raw, 5) == [2, 2, 2, 4]
    raw.call("call", 2, [1, 2, 3, None, 6])  # no gradient came: zeros
    assert read(raw, 6) == [0, 0, 0, 0]
    raw.call("call", 2, [1, 2, 3, 4, None])  # none is wanted
    raw.call("call", 2, [1, 2, 3, 4, 6])  # into one that is there
    assert read(raw, 6) == [2, 2, 2, 4]
    assert "backward reads noted" in str(raw.fail("call", 2, [1, 2, None, 4, 7]))
    raw.make(8, "float32", [3])
    assert "grad_y is float32 [3]" in str(raw.fail("call", 2, [1, 2, 3, 8, 7]))


def test_a_context_is_one_as_any(raw):
    raw.call("prepare", 1, "forward", "scale", [DESC], {"by": 5}, {"context": True})
    raw.call("call", 1, [1, 2, 30])
    raw.make(3, "float32", [4], floats(1, 2, 3, 4))
    raw.call("backward", 30, [3], [4])
    assert read(raw, 4) == [5, 10, 15, 20]
    assert "context 30 is in use" in str(raw.fail("call", 1, [1, 5, 30]))
    assert raw.fail("tensor_info", 5).code == "not_found"
    raw.call("free", "context", [30])


@pytest.mark.parametrize(
    ("direction", "op", "inputs", "attrs", "options", "words"),
    [
        ("sideways", "scale", [DESC], {}, {}, "direction 'sideways', expected forward or vjp"),
        ("forward", "scael", [DESC], {}, {}, "did you mean 'scale'?"),
        ("forward", "scale", [["float64", [4]]], {}, {}, "x is float64"),
        ("forward", "scale", [DESC, DESC], {}, {}, "scale takes 1 tensor, 2 came"),
        ("forward", "scale", [7], {}, {}, "x is described by an integer"),
        ("forward", "scale", [DESC], {"bye": 1}, {}, "no attribute 'bye'"),
        ("forward", "scale", [DESC], {}, {"version": 9}, "version 9 is not kept"),
        ("forward", "scale", [DESC], {}, {"device": "abacus"}, "no such device"),
        ("forward", "scale", [DESC], {}, {"deadline": -1}, "seconds above 0"),
        ("forward", "scale", [DESC], {}, {"context": 7}, "context is an integer, expected true or false"),
        ("forward", "scale", [DESC], {}, {"context": True, "saved": True}, "without saved"),
        ("vjp", "spin", [DESC], {"rounds": 1}, {}, "spin has no backward"),
    ],
)
def test_what_does_not_fit_is_refused(raw, direction, op, inputs, attrs, options, words):
    assert words in str(raw.fail("prepare", 1, direction, op, inputs, attrs, options))
    assert raw.fail("call", 1, [1, 2]).code == "not_found"


def test_calls_that_do_not_fit_change_nothing(raw):
    raw.call("prepare", 1, "forward", "scale", [DESC], {})
    raw.make(5, "float32", [5])
    for ids, words, misfit in [
        ([1], "1 id came, expected 2", False),
        ([1, 2, 3], "3 ids came, expected 2", False),
        ([5, 2], "x is float32 [5], expected float32 [4] as what was prepared", True),
        ([None, 2], "x is nil, expected a tensor's id", True),
        ([99, 2], "this connection has no tensor 99", False),
        ([1, None], "id 0 for a result is nil", False),
        ([1, -2], "id -2, expected an integer from 1", False),
    ]:
        error = raw.fail("call", 1, ids)
        assert words in str(error) and error.op == "scale" and error.misfit is misfit
    raw.call("prepare", 2, "forward", "depthwise_conv2d", [DESC3, DESC3, None], {})
    raw.make(6, *DESC3)
    raw.make(7, "float32", [1])
    error = raw.fail("call", 2, [6, 6, 7, 8])
    assert "bias came, and was prepared as nil" in str(error) and error.misfit
    assert raw.fail("tensor_info", 2).code == "not_found"
    assert "prepared call 1 is in use" in str(raw.fail("prepare", 1, "forward", "scale", [DESC], {}))
    raw.call("call", 1, [1, 2])


def test_it_is_given_up(raw):
    raw.call("prepare", 1, "forward", "scale", [DESC], {})
    raw.call("free", "prepared", [1])
    error = raw.fail("call", 1, [1, 2])
    assert error.code == "not_found" and error.misfit
    assert "no prepared call 1" in str(raw.fail("free", "prepared", [1]))
    raw.call("free", "prepared", [1, 2], {"drop": True})
    with Raw(raw.sock.getpeername()) as other:
        other.call("prepare", 1, "forward", "scale", [DESC], {})
        assert raw.fail("call", 1, [1, 2]).code == "not_found"  # they count for their connection


def test_their_number_and_bytes_are_bounded(raw):
    n = 4096
    for id in range(1, n + 1):
        raw.notify("prepare", id, "forward", "scale", [DESC], {})
    assert raw.fail("prepare", n + 1, "forward", "scale", [DESC], {}).code == "out_of_memory"
    raw.call("free", "prepared", [2])
    raw.call("prepare", n + 1, "forward", "scale", [DESC], {})
    raw.call("free", "prepared", [1, *range(3, n + 2)])
    pad = {"pad": "x" * 500_000}  # what an option is called that nobody knows does not matter
    for id in range(1, 9):
        raw.call("prepare", id, "forward", "scale", [DESC], {}, pad)
    assert raw.fail("prepare", 9, "forward", "scale", [DESC], {}, pad).code == "out_of_memory"
    raw.call("free", "prepared", [4])
    raw.call("prepare", 9, "forward", "scale", [DESC], {}, pad)


def test_it_follows_edits(raw, daemon):
    raw.call("prepare", 1, "forward", "double_it", [DESC], {})
    raw.call("prepare", 2, "forward", "double_it", [DESC], {}, {"version": 1})
    assert raw.call("call", 1, [1, 2]) == {"version": 1}
    edit(raw, daemon, double_it=double_by(3))
    assert raw.call("call", 1, [1, 2]) == {"version": 2} and read(raw, 2) == [3, 6, 9, 12]
    assert raw.call("call", 2, [1, 2]) == {"version": 1} and read(raw, 2) == [2, 4, 6, 8]
    raw.call("rollback", "double_it")
    assert raw.call("call", 1, [1, 2]) == {"version": 1} and read(raw, 2) == [2, 4, 6, 8]
    # One that is not served is told of once.
    put_kernels(daemon.kernels, double_it=double_by("oops"))
    raw.call("reload")
    (warning,) = raw.call("call", 1, [1, 2])["warnings"]
    assert "oops" in warning
    assert raw.call("call", 1, [1, 2]) == {"version": 1}


def test_an_edit_that_it_does_not_fit_any_more(raw, daemon):
    raw.call("prepare", 1, "forward", "double_it", [DESC], {})
    raw.call("call", 1, [1, 2])
    edit(raw, daemon, double_it=double_by(2).replace("float32 float64", "float64"))
    error = raw.fail("call", 1, [1, 2])
    assert "no longer fits, prepare it again: double_it: x is float32" in str(error) and error.misfit
    edit(raw, daemon, double_it=double_by(4))
    assert raw.call("call", 1, [1, 2]) == {"version": 3} and read(raw, 2) == [4, 8, 12, 16]
    (daemon.kernels / "double_it.cu").unlink()
    raw.call("reload")
    assert raw.fail("call", 1, [1, 2]).code == "not_found"


def test_results_that_an_edit_has_changed_are_told(raw, daemon):
    raw.call("prepare", 1, "forward", "double_it", [DESC], {})
    longer = double_by(2).replace("shape   y [...S]", "shape   y [2, ...S]")
    edit(raw, daemon, double_it=longer)
    for id in (2, 3):
        told = {"version": 2, "outputs": [["float32", [2, 4]]], "saved": [], "views": [None]}
        assert raw.call("call", 1, [1, id]) == told
        assert raw.call("tensor_info", id)["shape"] == [2, 4]


def test_an_attribute_that_was_not_given_follows_its_default(raw, daemon):
    raw.call("prepare", 1, "forward", "scale", [DESC], {})
    edit(raw, daemon, scale=SCALE.replace("FACTOR", "1.0f").replace("by=2.0", "by=10.0"))
    raw.call("call", 1, [1, 2])
    assert read(raw, 2) == [10, 20, 30, 40]


def test_faults_and_deadlines_blame_it(raw):
    raw.make(5, "float32", [4])
    raw.call("prepare", 1, "forward", "spin", [DESC], {"rounds": 10**12}, {"deadline": 0.2})
    error = raw.fail("call", 1, [5, 6])
    assert error.code == "deadline_exceeded" and "spin version 1 forward, kernel spin" in str(error)
    assert raw.fail("tensor_info", 6).code == "not_found"
    raw.call("prepare", 2, "forward", "scale", [DESC], {}, {"debug": True})
    raw.call("call", 2, [1, 6])


def test_all_of_a_long_line_of_them_runs_in_order(raw):
    raw.call("prepare", 1, "forward", "double_it", [DESC], {})
    n = 500
    for i in range(n):
        raw.request("call", 1, [1 + i % 2, 2 - i % 2] if i else [1, 2])
        if i % 20 == 19:
            raw.request("tensor_write", 1 + (i + 1) % 2, 0, floats(1, 0, 0, 0))
    raw.call("sync")
    errors = [error for error, _ in raw.replies.values() if error]
    assert not errors
    assert read(raw, 1 + n % 2)[0] == 1 and read(raw, 2 - n % 2)[0] == 2**19


def test_it_lives_on_after_an_upgrade(raw, daemon):
    raw.call("prepare", 1, "forward", "scale", [DESC], {"by": 3})
    raw.call("prepare", 2, "vjp", "scale", [DESC], {"by": 3})
    raw.call("call", 1, [1, 2])
    raw.call("upgrade")
    raw.call("call", 1, [2, 3])
    assert read(raw, 3) == [9, 18, 27, 36]
    raw.make(4, "float32", [4], floats(1, 1, 1, 1))
    raw.call("call", 2, [None, None, 1, 4, 5])
    assert read(raw, 5) == [3, 3, 3, 3]
    edit(raw, daemon, scale=SCALE.replace("FACTOR", "2.0f"))
    assert raw.call("call", 1, [1, 6]) == {"version": 2} and read(raw, 6) == [6, 12, 18, 24]


def test_runs_are_counted_and_traced(raw):
    raw.call("prepare", 1, "forward", "scale", [DESC], {})
    raw.call("call", 1, [1, 2])
    raw.call("trace")
    id = raw.request("call", 1, [1, 2])
    messages = [raw.receive(), raw.receive()]
    (trace,) = [m[2][0] for m in messages if m[0] == 2]
    assert [m[1] for m in messages if m[0] == 1] == [id]
    assert trace["op"] == "scale" and trace["direction"] == "forward"
    runs = {r["op"]: r for r in raw.call("status")["runs"]}
    assert runs["scale"]["forward"] == 2
