"""opd --prove: what is wrong with the gradients of an edit is told once it serves."""

import os
import warnings

import numpy as np

import opd
from conftest import eventually

TEXT = """\
//! op      trial(Tensor x) -> Tensor y
//! dtypes  float32 float64
//! shape   x [N]
//! shape   y [N]
//! example x=[10]
//! forward
//!   kernel f
//! backward grad_x
//!   kernel b
__global__ void f(const scalar_t *x, scalar_t *y, int N) { CUDA_KERNEL_LOOP(i, N) y[i] = 3 * x[i]; }
__global__ void b(const scalar_t *grad_y, scalar_t *grad_x, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        grad_x[i] = FACTOR * grad_y[i];
}
"""


def write(folder, factor):
    new = folder / "trial.new"
    new.write_text(TEXT.replace("FACTOR", factor))
    os.replace(new, folder / "trial.cu")


def test_wrong_gradients_are_told(start_daemon, tmp_path):
    write(tmp_path, "2")  # what is there at the start is no edit
    daemon = start_daemon("--kernels", str(tmp_path), "--prove", device="cpu")
    with daemon.connect() as client:
        def told():
            return [e for e in client._conn.call("events", 0)["events"] if e["kind"] in ("proved", "doubted")]

        x = client.tensor(np.ones(4))
        assert np.array_equal(client.ops.trial(x).numpy(), np.full(4, 3.0))
        write(tmp_path, "-3")
        assert eventually(lambda: len(told()) == 1)
        (doubt,) = told()
        assert doubt["kind"] == "doubted" and doubt["version"] == 2 and doubt["op"] == "trial"
        assert "trial.cu:9: trial: grad_x[0] is" in doubt["message"]
        assert "by central differences (float64, example 1, backward)" in doubt["message"]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            client.ops.trial(x)
            client.ops.trial(x)
        (warning,) = [w for w in caught if w.category is not ResourceWarning]  # another test's, collected now
        assert warning.category is opd.ReloadWarning
        assert "trial: version 2: trial.cu:9: trial: grad_x[0] is" in str(warning.message)
        write(tmp_path, "3")
        assert eventually(lambda: len(told()) == 2)
        assert told()[1]["kind"] == "proved" and told()[1]["version"] == 3
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            client.ops.trial(x)
        write(tmp_path, "4")  # what it has begun ends with the daemon
        assert client.reload()[-1]["version"] == 4
