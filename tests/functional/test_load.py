"""Operators that a client brings along: whose they are, how long they stay, and what is wrong with them."""

import os
import re
import subprocess
import textwrap

import numpy as np
import opd
import pytest
from conftest import DEVICE, PATIENCE, ROOT, can_compile, eventually

from operators import double_by, put_kernels
from raw import Raw
from test_opctl import run as opctl

ADD = """\
//! op      {name}(Tensor x) -> Tensor y
//! dtypes  float32
//! formula y = x + {what}
//! example x=[3]
"""


def add(what=1, name="load_add"):
    return ADD.format(what=what, name=name)


@pytest.fixture
def other(daemon):
    with daemon.connect() as other:
        yield other


def run(client, name="load_add"):
    return client.ops[name](np.zeros(1, "float32")).numpy().item()


def test_it_is_the_clients_own(client, other):
    assert "load_add" not in client.ops
    made = client.load(add(2))
    assert made is client.ops.load_add and made.version == 1 and "load_add" in client.ops
    assert run(client) == 2 and made.schema == "load_add(Tensor x) -> Tensor y"
    assert "load_add" not in other.ops
    with pytest.raises(opd.NotFound, match="there is no operator 'load_add'"):
        other.plan("load_add", [("float32", (1,))])
    assert other.load(add(3)).version == 1
    assert (run(client), run(other)) == (2, 3)
    mine = [c["loaded"] for c in client.status()["clients"] if c["loaded"]]
    assert mine == [["load_add"], ["load_add"]]
    client.unload("load_add")
    assert "load_add" not in client.ops and run(other) == 3
    with pytest.raises(opd.NotFound, match="there is no operator 'load_add'"):
        client.unload("load_add")
    with pytest.raises(opd.NotFound, match="this connection has loaded no operator 'gelu'"):
        client.unload("gelu")


def test_opctl_tells_whose_they_are(daemon, client, other):
    client.load(add(2))
    client.load(add(2, "load_more"))
    other.load(add(3), shared=True)

    def told():
        done = opctl("--socket", daemon.socket, "ops")
        assert done.returncode == 0
        rows = done.stdout.partition("LOADED BY")[2].splitlines()[1:]
        return sorted(row.partition(f" {os.getpid()} ")[2].strip() for row in rows)

    assert told() == ["load_add", "load_add load_more"]
    client.unload("load_add"), client.unload("load_more"), other.unload("load_add")
    assert told() == []


def test_an_edit_is_the_next_version(client):
    made = client.load(add(1))
    x = np.ones(2, "float32")
    y, ctx = made.forward(x)
    assert y.numpy().tolist() == [2, 2]
    assert client.load(add(2)) is made
    assert made.version == 2 and made(x).numpy().tolist() == [3, 3]
    assert made(x, version=1).numpy().tolist() == [2, 2]
    assert client.load(add(2)).version == 2  # nothing new
    with pytest.raises(opd.InvalidArgument, match="'z' is not defined here"):
        client.load(add("z"))
    assert made(x).numpy().tolist() == [3, 3]
    assert client.rollback("load_add") == 1 and made(x).numpy().tolist() == [2, 2]
    assert client.load(add(2)).version == 3
    assert [v["version"] for v in made.versions] == [3, 2, 1]
    assert client.pin("load_add", 1) == 1
    client.load(add(4))
    assert made(x).numpy().tolist() == [2, 2] and client.pin("load_add", None) == 4
    assert ctx.backward(x)[0].numpy().tolist() == [1, 1]
    client.unload("load_add")
    assert ctx.backward(x)[0].numpy().tolist() == [1, 1]  # it keeps what it needs
    assert client.load(add(1)).version == 1


def test_prepared_calls_and_graphs(client):
    gelu, x = client.ops.gelu, client.tensor(np.zeros(1, "float32"))
    by_file = gelu(x).numpy().item()
    client.load(add(7, "gelu"))
    assert [gelu(x).numpy().item() for _ in range(3)] == [7, 7, 7]
    with client.capture() as graph:
        y = gelu(x)
    client.load(add(8, "gelu"))
    graph.replay()
    assert y.numpy().item() == 8
    client.unload("gelu")
    assert [gelu(x).numpy().item() for _ in range(3)] == [by_file] * 3
    with pytest.warns(opd.ReloadWarning, match="there is no operator 'gelu' any more"):
        graph.replay()
    assert y.numpy().item() == 8


def test_shared(client, other):
    theirs = other.ops.gelu
    x = other.tensor(np.zeros(1, "float32"))
    by_file = theirs(x).numpy().item()
    client.load(add(5, "gelu"), shared=True)
    assert theirs(x).numpy().item() == 5 and theirs(x).numpy().item() == 5
    with Raw(other.socket) as raw:
        (info,) = [i for i in raw.call("op_list") if i["name"] == "gelu"]
        assert (info["loaded"], info["file"]) == ("shared", "<string>")
        assert [os.path.basename(f) for f in raw.call("op_info", "gelu")["shadowed"]] == ["gelu.cu"]
    with pytest.raises(opd.InvalidArgument, match="operator gelu is shared by connection [0-9]+ already"):
        other.load(add(6, "gelu"), shared=True)
    other.load(add(6, "gelu"))
    assert theirs(x).numpy().item() == 6 and run(client, "gelu") == 5
    other.unload("gelu")
    client.load(add(4, "gelu"))  # no more for others
    assert theirs(x).numpy().item() == by_file and run(client, "gelu") == 4
    client.load(add(5, "gelu"), shared=True)
    assert theirs(x).numpy().item() == 5
    client.close()
    assert eventually(lambda: theirs(x).numpy().item() == by_file)


def test_lines_are_the_callers(client, tmp_path):
    here = os.path.basename(__file__)
    with pytest.raises(opd.InvalidArgument) as caught:
        client.load("""
            //! op      wrong(Tensor x) -> Tensor y
            //! dtypes  float32
            //! formula y = x + z
        """)
    line = next(i for i, text in enumerate(open(__file__), 1) if "y = x + z" in text)
    shown = f"{' ' * 12}//! formula y = x + z\n{' ' * 32}^"
    assert f"{here}:{line}:33: 'z' is not defined here" in str(caught.value)
    assert str(caught.value).rstrip().endswith(shown)
    source = textwrap.dedent("""\
        //! op      wrong(Tensor x) -> Tensor y
        //! dtypes  float32
        //! forward
        //!   kernel wrong
        __global__ void wrong(const float *x, float *y)
        {
            y[0] = missing;
        }
        """)
    with pytest.raises(opd.InvalidArgument, match=rf"^{here}:[0-9]+: no 'shape' line for 'x'"):
        client.load(source)
    line = next(i for i, text in enumerate(open(__file__), 1) if "y[0] = missing;" in text)
    whole = source.replace("//! forward", "//! shape x [n]\n//! shape y [1]\n//! example x=[1]\n//! forward")
    with pytest.raises(opd.CompileError, match=r"^<string>:10:12: error: .*missing"):
        client.load(whole)
    with pytest.raises(opd.CompileError) as caught:
        client.load(whole, name="cell 3", line=101)
    assert str(caught.value).startswith("cell 3:110:12: error: ")
    shown = r"y\[0\] = missing;\n( +\|)? +\^"
    assert re.search(shown, caught.value.log) and ("110 |" in caught.value.log or DEVICE != "cpu")
    assert "wrong" not in client.ops


def test_a_file_anywhere(client, other, tmp_path):
    (tmp_path / "by.h").write_text("constexpr double by = 4;\n")
    path = tmp_path / "any.cu"
    path.write_text('#include "by.h"\n' + double_by("by"))
    assert client.load(path)([1.0]).numpy().tolist() == [4]
    assert client.ops.double_it([2.0]).numpy().tolist() == [8]
    (tmp_path / "by.h").write_text("constexpr double by = 5;\n")
    assert client.ops.double_it([1.0]).numpy().tolist() == [4]  # read once
    assert client.load(str(path)).version == 2 and client.ops.double_it([1.0]).numpy().tolist() == [5]
    with Raw(client.socket) as raw:
        assert raw.call("events")["events"][-1]["file"] == str(path)
    path.write_text(double_by("oops"))
    with pytest.raises(opd.CompileError, match=r"^any.cu:14:.*('oops' was not declared|identifier \"oops\" is undefined)"):
        client.load(path)
    os.chmod(tmp_path, 0o777)
    with pytest.raises(opd.InvalidArgument, match="can be written by everyone"):
        client.load(path)
    os.chmod(tmp_path, 0o755)
    path.write_bytes(b"//! op \xff\n")
    with pytest.raises(ValueError, match="any.cu: byte 7 is no UTF-8 text"):
        client.load(path)
    for wrong, error in ((tmp_path / "none.cu", FileNotFoundError), ("", ValueError), (3, TypeError)):
        with pytest.raises(error):
            client.load(wrong)


def test_what_a_text_includes_is_looked_up_nowhere(client, tmp_path):
    (tmp_path / "by.h").write_text("constexpr double by = 4;\n")
    text = f'#include "{str(tmp_path / "by.h")[1:]}"\n' + double_by("by")
    with pytest.raises(opd.CompileError, match="by"):
        client.load(text, name="<string>", line=1)
    with Raw(client.socket) as raw:
        assert raw.call("load", text, {"folder": "/"})["version"] == 1


def test_bad_input(daemon):
    with Raw(daemon.socket) as raw:
        for source, options, message in (
            ("", {}, "<string>:1: no '//! op' line"),
            ("//! op\n", {"name": "a/b"}, "load: name is 'a/b', expected that of a file"),
            ("//! op\n", {"name": ""}, "load: name is '', expected that of a file"),
            ("//! op\n", {"name": 7}, "load: name is an integer, expected a string"),
            ("//! op\n", {"name": "a" * 300}, "load: name is a string, expected a string below 256"),
            ("//! op\n", {"folder": "here"}, "load: folder is 'here', expected an absolute path"),
            ("//! op\n", {"shared": 1}, "load: shared is an integer, expected a boolean"),
            ("//! op\0\n", {}, "load: <string>: holds a zero byte; expected text"),
            ("x" * (1 << 20) + "y", {}, "load: <string>: 1048577 bytes, expected at most 1048576"),
            (b"//! op \xff", {}, "<string>:1: a byte that is no text, expected UTF-8"),
            ("#line 7\n//! op", {"name": "a.py"}, "a.py:7: expected the name of the operator"),
            ("#line 0\n" + add(), {}, "<string>:1: the number of #line is not one of 1 to 99999999"),
            ("#line 123456789\n" + add(), {}, "<string>:1: the number of #line"),
            ("#line 5x\n" + add(), {}, "<string>:1: the number of #line"),
        ):
            with pytest.raises(Exception, match=f"(?s)^{message}") as caught:
                raw.call("load", source, options)
            assert caught.value.code == "invalid_argument"
            if source[:7] in ("#line 0", "#line 5"):
                assert caught.value.log == source.splitlines()[0] + "\n^\n"
        assert raw.call("load", add(3, "load_odd").encode(), {})["version"] == 1
        assert raw.call("unload", "load_odd") is None
        assert raw.call("load", "#line 1\n" + add(3, "load_odd"), {})["version"] == 1


def test_a_text_longer_than_the_program_is_no_literal_of_it(client, monkeypatch):
    monkeypatch.setattr(opd._load.ast, "parse", lambda text: pytest.fail("looked for in the program"))
    with pytest.raises(opd.InvalidArgument, match=r"bytes, expected at most 1048576$"):
        client.load("//! op      more(Tensor x) -> Tensor y\n" + "// more\n" * (1 << 20))


def test_limits(daemon):
    with Raw(daemon.socket) as raw:
        bare = "//! op      {}(Tensor x) -> Tensor y\n//! dtypes  float32\n//! formula y = -x\n"
        for i in range(256):
            raw.call("load", bare.format(f"many_{i}"), {})
        with pytest.raises(Exception, match="has loaded 256 operators, more are not allowed") as caught:
            raw.call("load", bare.format("many_256"), {})
        assert caught.value.code == "out_of_memory"
        assert raw.call("load", bare.format("many_0") + "// more\n", {})["version"] == 2
        raw.call("unload", "many_0")
        raw.call("load", bare.format("many_256"), {})
    with Raw(daemon.socket) as raw:
        assert not [o for o in raw.call("op_list") if o["name"].startswith("many_")]
        large = bare + "// " + "x" * (1 << 19) + "\n"
        with pytest.raises(Exception, match="would take [0-9]+ bytes, at most 33554432 are allowed"):
            for i in range(64):
                raw.call("load", large.format(f"large_{i}"), {})
        assert i > 16
        raw.call("unload", "large_0")
        raw.call("load", large.format(f"large_{i}"), {})


def test_a_files_operator_goes_on_beside(tmp_path, start_daemon):
    folder = put_kernels(tmp_path / "ops", double_it=double_by(2))
    daemon = start_daemon("--kernels", folder)
    with daemon.connect() as client, daemon.connect() as other:
        assert client.ops.double_it([1.0]).numpy() == 2
        client.load(double_by(9))
        put_kernels(tmp_path / "ops", double_it=double_by(3))
        assert [c["version"] for c in other.reload()] == [2]
        assert client.ops.double_it([1.0]).numpy() == 9 and other.ops.double_it([1.0]).numpy() == 3
        os.unlink(os.path.join(folder, "double_it.cu"))
        assert [c["state"] for c in other.reload()] == ["withdrawn"]
        assert client.ops.double_it([1.0]).numpy() == 9 and "double_it" not in other.ops
        client.unload("double_it")
        assert "double_it" not in client.ops


def test_an_upgrade_keeps_them(start_daemon):
    daemon = start_daemon()
    x = np.ones(2, "float32")
    with daemon.connect() as client, daemon.connect() as other:
        mine, gone = client.load(add(2)), client.load(add("x", "load_gone"))
        client.load(add(3))
        _, context = mine.forward(x, version=1)
        _, orphan = gone.forward(x)
        client.unload("load_gone")
        other.load(add(4, "gelu"), shared=True)
        t = client.tensor(x)
        assert mine(t).numpy().tolist() == [4, 4] and client.ops.gelu(t).numpy().tolist() == [5, 5]
        for serial in (3, 4):
            client.upgrade()
            assert mine(t).numpy().tolist() == [serial + 1] * 2 and client.ops.gelu(t).numpy().tolist() == [5, 5]
            assert mine(t, version=1).numpy().tolist() == [3, 3]
            assert "load_add" not in other.ops and "load_gone" not in client.ops
            assert context.backward(x)[0].numpy().tolist() == [1, 1]
            assert orphan.backward(x)[0].numpy().tolist() == [2, 2]
            assert client.load(add(serial + 1)).version == serial
            assert sorted(c["loaded"] for c in client.status()["clients"]) == [["gelu"], ["load_add"]]
        other.close()
        assert eventually(lambda: client.ops.gelu(t).numpy().tolist() != [5, 5])
    with daemon.connect() as client:
        assert "load_add" not in client.ops and eventually(lambda: len(client.status()["clients"]) == 1)


def test_a_graph_follows_a_derivative_over_an_upgrade(start_daemon):
    daemon = start_daemon()
    with Raw(daemon.socket) as before, daemon.connect() as client, Raw(daemon.socket) as after:
        for raw in (before, after):
            raw.call("events", 0, {"follow": True})
        client.load(add("x * x"))
        x = client.tensor(np.full(2, 2, "float32"))
        with client.capture() as graph:
            made = client.ops["load_add.backward"](x, x)
        assert made.numpy().tolist() == [10, 10]
        client.upgrade()
        client.load(add("2 * x * x"))
        graph.replay()
        assert made.numpy().tolist() == [18, 18]


def test_who_leaves_while_it_compiles(slow_cxx, start_daemon):
    daemon = start_daemon("--cache", "", device="cpu")
    with Raw(daemon.socket) as raw:
        left = Raw(daemon.socket)
        left.request("load", add(5, "load_left"), {"shared": True})
        assert eventually(slow_cxx.begun.exists)
        left.close()
        slow_cxx.go.touch()
        assert eventually(lambda: len(raw.call("status")["clients"]) == 1)
        assert raw.call("load", add(6, "load_left"), {"shared": True})["version"] == 1


def test_a_stop_while_it_compiles(slow_cxx, start_daemon):
    daemon = start_daemon("--cache", "", device="cpu")
    with Raw(daemon.socket) as raw:
        waits = raw.request("load", add(5, "load_left"), {})
        assert eventually(slow_cxx.begun.exists)
        daemon.process.terminate()
        with pytest.raises(Exception, match="load_left is not loaded: the daemon is stopping") as caught:
            raw.wait(waits)
        assert caught.value.code == "unavailable"
    slow_cxx.go.touch()


C_PROGRAM = r"""
#include <stdio.h>
#include <opd.h>

static bool run(struct opd_client *opd, const char *op, float *x, struct opd_error *err)
{
    struct opd_tensor in = { .dtype = "float32", .rank = 1, .shape = { 1 } };
    int64_t out = opd_new_id(opd);
    struct opd_forward_params params = {
        .op = op, .inputs = &in.id, .input_count = 1, .outputs = &out, .output_count = 1,
    };
    return opd_tensor_new(opd, &in, err) && opd_tensor_write(opd, in.id, 0, x, sizeof *x, err) &&
           opd_forward(opd, &params, err) && opd_tensor_read(opd, out, 0, x, sizeof *x, err);
}

static bool show(struct opd_client *opd, struct opd_load_params *params)
{
    struct opd_error err = { 0 };
    float x = 5;
    bool good = opd_load(opd, params, &err) && run(opd, params->op, &x, &err);
    if (good)
        printf("%s %d: %g\n", params->op, (int)params->version, x);
    else
        printf("%s\n%s", err.message, err.log ? err.log : "");
    opd_error_clear(&err);
    return good;
}

int main(int argc, char **argv)
{
    struct opd_error err = { 0 };
    struct opd_client *opd = opd_connect(argv[1], &err);
    struct opd_load_params from_text = {
        .name = __FILE__, .line = __LINE__ + 1, .source =
            "//! op      from_c(Tensor x) -> Tensor y\n"
            "//! dtypes  float32\n"
            "//! formula y = x * z\n"
    };
    struct opd_load_params from_file = { .path = argv[2] }, none = { .shared = true };
    show(opd, &from_text);
    show(opd, &from_file);
    show(opd, &from_file);
    show(opd, &none);
    from_file.path = "/no/such";
    show(opd, &from_file);
    bool good = opd_unload(opd, "from_c", &err);
    printf("%d %d\n", good, opd_unload(opd, "from_c", &err));
    opd_error_clear(&err);
    opd_close(opd);
    return argc - 3;
}
"""


@pytest.mark.unsanitized("its compiler needs flags")
@pytest.mark.skipif(not can_compile(), reason="no C compiler or msgpack.h")
def test_from_c(daemon, tmp_path):
    (tmp_path / "prog.c").write_text(C_PROGRAM)
    (tmp_path / "from_c.cu").write_text(add(2, "from_c"))
    library = tmp_path / "libopd.so.0"  # its soname
    library.symlink_to(ROOT / "build" / "libopd.so")
    command = ["cc", "-I", ROOT / "client" / "c", "prog.c", library, "-Wl,-rpath,.", "-o", "prog"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=PATIENCE)
    command = [tmp_path / "prog", daemon.socket, "from_c.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True)
    line = next(i for i, text in enumerate(C_PROGRAM.split("\n"), 1) if "x * z" in text)
    assert done.stdout.splitlines() == [
        f"prog.c:{line}:21: 'z' is not defined here, expected a tensor, attribute, let or an earlier formula",
        "//! formula y = x * z",
        "                    ^",
        "from_c 1: 7",
        "from_c 1: 7",
        "opd_load() takes the text of an operator or the path of a file",
        "/no/such: No such file or directory",
        "1 0",
    ]


def test_channels_last_is_told(client):
    names = [f"x{i}" for i in range(32)]
    client.load(
        f"""
//! op      planes({", ".join(f"Tensor {x}" for x in names)}) -> Tensor y
//! dtypes  float32
//! shape   {" ".join(names)} y [N, C, H, W]
//! channels_last rows x31 x2 y when C*H < 9
//! forward
//!   kernel  add
__global__ void add({", ".join(f"const float *{x}" for x in names)}, float *y)
{{
    y[0] = {" + ".join(f"{x}[0]" for x in names)};
}}
"""
    )
    with Raw(client.socket) as raw:
        assert raw.call("op_info", "gelu")["channels_last"] is None
    (told,) = [o["channels_last"] for o in client._conn.call("op_list") if o["name"] == "planes"]
    assert told == {"op": "rows", "inputs": [2, 31], "outputs": [0], "when": "C H * 9 <"}
