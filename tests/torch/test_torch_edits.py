"""Edits of an operator that opd.torch has in use."""

import inspect
import warnings
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import opd
import opd.torch
from conftest import eventually
from torch_fixtures import isolated  # noqa: F401
from scale_operator import X, grad_of, save, scale, write_scale  # noqa: F401


def test_an_edit_that_keeps_the_schema(scale, tmp_path):
    x = X.clone().requires_grad_()
    old = opd.torch.ops.scale(x)
    write_scale(tmp_path, 5)
    assert [c["state"] for c in scale.reload()] == ["serving"]
    new = opd.torch.ops.scale(x)
    assert_close(new, x * 5)
    # Backward is of the version that ran forward.
    assert_close(grad_of(old, x), torch.full_like(x, 2))
    assert_close(grad_of(new, x), torch.full_like(x, 5))


def test_compiled_code_follows_an_edit(scale, tmp_path):
    model = torch.compile(lambda x: opd.torch.ops.scale(x) + 1, fullgraph=True, backend="aot_eager")
    x = X.clone().requires_grad_()
    assert_close(model(x), x * 2 + 1)
    write_scale(tmp_path, 3)
    scale.reload()
    y = model(x)
    assert_close(y, x * 3 + 1)
    assert_close(grad_of(y, x), torch.full_like(x, 3))


CHANGED = (
    r"scale\(\) got an unexpected keyword argument 'by_what'; an edit changed it, it is now "
    r"scale\(Tensor x"
)


def test_a_call_of_what_an_edit_has_added(scale, tmp_path):
    """It does not fit what was registered, so torch refuses it before the daemon is asked."""
    function = opd.torch.ops.scale
    assert_close(function(X), X * 2)
    write_scale(tmp_path, 2, attr="by_what=3.0")
    scale.reload()
    assert_close(function(X, by_what=0.5), X)
    assert list(inspect.signature(function).parameters) == ["x", "by_what"]
    assert "by_what" in function.schema and "by_what" in str(function.overload._schema)
    write_scale(tmp_path, 2, attr="factor=3.0")
    scale.reload()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=CHANGED):
            function(X, by_what=0.5)
    assert "factor" in function.schema
    assert_close(function(X, factor=0.5), X)


def test_functions_follow_an_edit_of_the_doc(scale, tmp_path):
    function = opd.torch.ops.scale
    assert_close(function(X), X * 2)
    text = (tmp_path / "scale.cu").read_text()
    save(tmp_path / "scale.cu", text.replace("//! dtypes", "//! doc     Twice as much.\n//! dtypes"))
    scale.reload()
    function(X)
    assert "Twice as much." in function.__doc__


def test_an_operator_whose_first_file_fails(scale, tmp_path):
    text = (tmp_path / "scale.cu").read_text().replace("scale", "bad")
    save(tmp_path / "bad.cu", text.replace("numel(x)", "numle(x)"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", opd.ReloadWarning)
        scale.reload()
    with pytest.raises(AttributeError, match="no operator 'bad': .*/bad.cu failed: bad.cu:.*numle"):
        opd.torch.ops.bad
    save(tmp_path / "bad.cu", text)
    scale.reload()
    assert_close(opd.torch.ops.bad(X), X * 2)


def test_an_edit_that_changes_the_schema(scale, tmp_path):
    x = X.clone().requires_grad_()
    function = opd.torch.ops.scale
    assert_close(function(x), x * 2)
    write_scale(tmp_path, 2, attr="by_what=3.0")
    scale.reload()
    assert_close(function(x), x * 6)
    y = function(x, by_what=0.5)
    assert_close(grad_of(y, x), torch.full_like(x, 1))
    assert "by_what" in function.schema
    # A default is part of the interface, although the old call still fits.
    write_scale(tmp_path, 2, attr="by_what=4.0")
    scale.reload()
    assert_close(function(x), x * 8)
    write_scale(tmp_path, 2)
    scale.reload()
    assert_close(function(x), x * 2)
    with pytest.raises(RuntimeError, match=CHANGED):
        function(x, by_what=0.5)


def test_an_edit_that_changes_what_is_saved(scale, tmp_path):
    x = X.clone().requires_grad_()
    old = opd.torch.ops.scale(x)
    write_scale(tmp_path, 7, keeps=True)
    scale.reload()
    new = opd.torch.ops.scale(x)
    assert_close(grad_of(new, x), torch.full_like(x, 7))
    assert_close(grad_of(old, x), torch.full_like(x, 2))


def test_an_edit_of_an_operator_that_works_in_place(scale, tmp_path):
    """Each call is done once, whichever version it was."""
    source = (Path(__file__).parent / "kernels" / "step_down.cu").read_text()
    save(tmp_path / "step_down.cu", source)
    scale.reload()
    param, grad = torch.zeros(4), torch.ones(4)
    opd.torch.ops.step_down(param, grad)
    save(tmp_path / "step_down.cu", source.replace("lr=0.5", "lr=0.25"))
    scale.reload()
    before = param.clone()
    opd.torch.ops.step_down(param, grad)
    assert (before - param).unique().tolist() in ([0.5], [0.25])
    before = param.clone()
    opd.torch.ops.step_down(param, grad)
    assert torch.equal(before - param, torch.full((4,), 0.25))


def test_refresh_takes_a_new_schema_up_at_once(scale, tmp_path):
    assert_close(opd.torch.ops.scale(X), X * 2)
    write_scale(tmp_path, 2, attr="by_what=3.0")
    scale.reload()
    opd.torch.refresh("scale")
    assert_close(opd.torch.ops.scale(X, by_what=2), X * 4)


def test_compiled_code_tells_of_a_changed_schema_and_then_follows(scale, tmp_path):
    model = torch.compile(lambda x: opd.torch.ops.scale(x), fullgraph=True, backend="aot_eager")
    assert_close(model(X), X * 2)
    write_scale(tmp_path, 2, attr="by_what=3.0")
    scale.reload()
    with pytest.raises(opd.torch.InterfaceChanged, match=r"scale: an edit.*compiler\.reset"):
        model(X)
    torch.compiler.reset()
    assert_close(model(X), X * 6)


def test_code_compiled_after_an_edit_has_its_schema(scale, tmp_path):
    function = opd.torch.ops.scale
    assert_close(function(X), X * 2)
    write_scale(tmp_path, 2, attr="by_what=3.0")
    scale.reload()
    for model in (lambda x: opd.torch.ops.scale(x, by_what=0.5), lambda x: function(x, by_what=0.5)):
        model = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert_close(model(X), X)
    assert "by_what" in function.schema


def test_a_failed_edit_warns_at_the_callers_line(scale, tmp_path):
    assert_close(opd.torch.ops.scale(X), X * 2)
    write_scale(tmp_path, broken=True)
    scale.reload()
    with pytest.warns(opd.ReloadWarning, match="oops") as caught:
        y = opd.torch.ops.scale(X)
    assert caught[0].filename == __file__
    assert_close(y, X * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opd.torch.ops.scale(X)


def test_an_operator_that_comes_later(scale, tmp_path):
    with pytest.raises(AttributeError, match="no operator 'later'"):
        opd.torch.ops.later
    text = (tmp_path / "scale.cu").read_text()
    save(tmp_path / "later.cu", text.replace("scale", "later"))
    scale.reload()
    assert_close(opd.torch.ops.later(X), X * 2)


def test_an_operator_that_is_gone(scale, tmp_path):
    assert_close(opd.torch.ops.scale(X), X * 2)
    (tmp_path / "scale.cu").unlink()
    assert eventually(scale.reload)
    with pytest.raises(opd.NotFound, match="no operator 'scale'"):
        opd.torch.ops.scale(X)


def test_a_fault_is_an_error_and_the_next_call_works(scale, tmp_path, isolated):
    isolated()
    assert_close(opd.torch.ops.scale(X), X * 2)
    text = (tmp_path / "scale.cu").read_text().replace("scale", "fault")
    save(tmp_path / "fault.cu", text.replace("x[i] *", "x[i + (1 << 30)] *"))
    scale.reload()
    with pytest.raises(opd.KernelFault, match="fault"):
        opd.torch.ops.fault(X)
    assert_close(opd.torch.ops.scale(X), X * 2)
    big = torch.randn(1 << 19)
    assert_close(opd.torch.ops.scale(big), big * 2)
