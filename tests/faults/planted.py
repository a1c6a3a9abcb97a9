"""Operators whose kernel is one line, in which a mistake is planted; a daemon for those in the folder that a module's
fixture `kernels` names, and a client of it."""

import pytest

HEADER = """\
//! op      {name}(Tensor x, Tensor? bias=None, *, int by=0) -> Tensor y
//! dtypes  {dtypes}
//! shape   x [N]
//! shape   bias [N]
//! shape   y [N]
//!
//! forward
//!   kernel  {name}
//!   grid    cdiv(N, 64)
//!   block   64
{before}
__global__ void {name}(const scalar_t *x, const scalar_t *bias, scalar_t *y, int64_t N, int64_t by)
{{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= N)
        return;
    {body} // here
}}
"""


class Planted:
    """`lines`: name -> (what stands before the kernel, its line, whatever else)."""

    def __init__(self, dtypes, lines):
        self.dtypes, self.lines = dtypes, lines

    def source(self, name):
        before, body, *_ = self.lines[name]
        return HEADER.format(name=name, dtypes=self.dtypes, before=before, body=body)

    def line(self, name, mark="// here"):
        """FILE:LINE of the line with that mark."""
        lines = self.source(name).splitlines()
        return f"{name}.cu:{[mark in text for text in lines].index(True) + 1}"

    def write(self, folder):
        """All of them; the folder as a string."""
        for name in self.lines:
            (folder / f"{name}.cu").write_text(self.source(name))
        return str(folder)


@pytest.fixture(scope="module")
def served(start_shared, kernels):
    return start_shared("--kernels", kernels)


@pytest.fixture
def client(served):
    with served.connect() as client:
        yield client
