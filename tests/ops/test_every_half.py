"""Functions of formulas at every value that 16 bits have, beside float64.

What is made in float errs by 2e-5 of the value at most (normcdf by 5e-5: of bfloat16, and where e^-z^2 is far out), and
is rounded once; what is less than twice the smallest normal float may be 0. Rows whose vectors do not begin at multiples
of 16 bytes are read element by element, and must have the same bits.
"""

import numpy as np
import pytest
import torch

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
pytestmark = pytest.mark.as_shipped

FUNCTIONS = {
    "acos(x)": torch.acos,
    "exp(x)": torch.exp,
    "expm1(x)": torch.expm1,
    "tanh(x)": torch.tanh,
    "normcdf(x)": lambda x: 0.5 * torch.erfc(-x * 0.5**0.5),  # torch.special.ndtr loses its digits on the left
    "1 / (1 + exp(-x))": torch.sigmoid,
    "x / (x + 3)": lambda x: x / (x + 3),
}


def every_value(dtype):
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


def rounded(x, dtype):
    """A double, by way of float as in the kernel, in 16 bits and back."""
    return x.float().to(dtype).double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("formula", FUNCTIONS)
def test_every_value(client, formula, dtype):
    op = client.load(f"//! op f(Tensor x) -> Tensor y\n//! dtypes float16 bfloat16\n//! formula y = {formula}\n")
    x = every_value(DTYPES[dtype])
    error = 5e-5 if "normcdf" in formula else 2e-5
    exact = FUNCTIONS[formula](x.double())
    given = client.tensor(x)
    found = torch.from_numpy(op(given).numpy().astype(np.float64))
    slack = torch.where(exact.isfinite(), error * exact.abs() + 2.0**-125, 0)
    low, high = rounded(exact - slack, DTYPES[dtype]), rounded(exact + slack, DTYPES[dtype])
    right = ((found >= low) & (found <= high)) | (found.isnan() & exact.isnan())
    assert right.all(), [(float(x[i]), float(found[i]), float(exact[i])) for i in (~right).nonzero()[:5, 0]]
    odd = torch.from_numpy(op(given[1:-2]).numpy().astype(np.float64))
    assert torch.equal(odd.nan_to_num(7), found[1:-2].nan_to_num(7))
