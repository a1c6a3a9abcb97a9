"""The Python package from the ground up: a module imports those that stand before it alone, wherever and for
whatever the import is (types too)."""

import ast

import pytest
from conftest import ROOT

pytestmark = pytest.mark.unsanitized("of the client in Python")

PACKAGE = ROOT / "client" / "python" / "opd"
ORDER = """
    _version _protocol errors _warn _wire _places _native _start _cuda _dlpack _dtypes _trees _shapes _spec
    _told _fds _reply _conn _calls _lanes _kept _data _export _events _link _catalog _graph _array tensor _memory
    _prepared _ops _load client _aio_loop _aio_stream _aio_link _aio_tensor _aio_ops aio _notebook __init__
    torch._dtypes torch._library torch._direct torch._options torch._interface torch._schema torch._stamps
    torch._transport torch._prepared torch._daemon torch._host torch._cuda torch._session
    torch._view torch._draft torch._sharing torch._shapes torch._vmap torch._autocast torch._channels_last
    torch._onnx torch._functionalize torch._derivatives torch._function torch._loader torch._inproc torch._register
    torch._lists_here torch._lists
    torch._ops torch._namespace torch._layers
    torch.__init__
    stubs
""".split()
# Chosen when a tensor's device is known.
UPWARDS = {("torch._daemon", "torch._host"), ("torch._daemon", "torch._cuda")}


def imported(module, node):
    """Modules of the package that an import statement names."""
    if not isinstance(node, ast.ImportFrom) or node.level == 0 or node.module == "_shipped":
        return  # _shipped.pyi is for type checkers alone
    parents = module.split(".")[:-1]
    base = parents[: len(parents) - (node.level - 1)] + (node.module.split(".") if node.module else [])
    for name in node.names:
        whole = ".".join([*base, name.name])
        yield whole if whole in ORDER else ".".join(base) if base else "__init__"


def test_imports_point_downwards():
    files = {".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")}
    assert sorted(files) == sorted(ORDER), "ORDER is to name every module"
    wrong = []
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            for other in imported(module, node):
                up = ORDER.index(other) >= ORDER.index(module)
                if up and (module, other) not in UPWARDS:
                    wrong.append(f"{module}:{node.lineno} imports {other}")
    assert not wrong, wrong
