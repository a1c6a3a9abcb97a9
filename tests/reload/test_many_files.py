"""What an edit costs where there are many operators: as much as where there are few."""

import os

from conftest import read_stat
from edits import Caller, make_site, put  # noqa: F401

TEXT = """\
//! op {name}(Tensor x) -> Tensor y
//! dtypes float32
//! formula y = x + 1
//! formula grad_x = grad_y
"""
OPERATORS, NEW = 2000, 20


def cpu_seconds(pid):
    stat = read_stat(pid)
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def test_a_new_file_among_many(make_site):
    """In parts of what it took to read them all, so that no machine is too slow for it."""
    files = {f"many{i}.cu": TEXT.format(name=f"many{i}") for i in range(OPERATORS)}
    site = make_site(files)
    assert site.outcomes() == []
    start = cpu_seconds(site.daemon.pid)
    for i in range(NEW):
        site.save(f"new{i}.cu", TEXT.format(name=f"new{i}"))
        assert site.outcomes() == [(f"new{i}", "serving", 1)]
    each = (cpu_seconds(site.daemon.pid) - start) / NEW
    assert each < start / 20, f"{each * 1e3:.1f} ms each, all of them {start * 1e3:.1f} ms"
