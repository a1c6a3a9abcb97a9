"""A daemon with operators for calls and replays that go by lanes, a client of it and a tensor; an edit of one."""

import numpy as np
import pytest
from operators import ADD, COUNT, FAULTY, PICK, double_by, put_kernels


@pytest.fixture
def served(start_daemon, tmp_path):
    folder = put_kernels(
        tmp_path / "kernels", double_it=double_by(2), add_to=ADD, faulty=FAULTY, count=COUNT, pick=PICK
    )
    daemon = start_daemon("--kernels", folder)
    daemon.kernels = tmp_path / "kernels"
    return daemon


@pytest.fixture
def client(served):
    with served.connect() as client:
        yield client


@pytest.fixture
def x(client):
    return client.tensor(np.array([1, 2, 3, 4], np.float32))


def edit(served, factor):
    put_kernels(served.kernels, double_it=double_by(factor))
    with served.connect() as other:
        other.reload()
