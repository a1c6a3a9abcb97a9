"""Arrays that are read again lie in memory that is shared with the daemon: nobody may notice but by the time it takes."""

import gc
import os
import resource
import threading

import numpy as np
import pytest

import opd

SHAPE = (1024, 1024)  # 4 MiB
SEEN = np.arange(1 << 20, dtype=np.float32).reshape(SHAPE)


@pytest.fixture
def tensor(client):
    return client.tensor(SEEN)


@pytest.fixture
def client(daemon):
    with opd.connect(socket=daemon.socket, start=False) as client:
        yield client


def regions(client):
    return client._link.transfer._kept._regions


def test_an_array_is_its_owners_alone(client, tensor):
    first, second, third, fourth = (tensor.numpy() for _ in range(4))
    second[:] = -1
    third += 1
    for array, expected in ((first, SEEN), (second, np.full_like(SEEN, -1)), (third, SEEN + 1), (fourth, SEEN)):
        assert np.array_equal(array, expected)
    assert np.array_equal(tensor.numpy(), SEEN)


def test_memory_is_used_again_when_no_view_is_left(client, tensor):
    tensor.numpy()
    array = tensor.numpy()
    row, address = array[3:4], array.ctypes.data
    del array
    assert tensor.numpy().ctypes.data != address
    assert np.array_equal(row, SEEN[3:4])
    del row
    gc.collect()
    assert address in [tensor.numpy().ctypes.data for _ in range(2)]
    assert len(regions(client)) == 2


def test_arrays_outlive_their_client(daemon):
    with opd.connect(socket=daemon.socket, start=False) as client:
        tensor = client.tensor(SEEN)
        arrays = [tensor.numpy() for _ in range(3)]
    gc.collect()
    assert all(np.array_equal(array, SEEN) for array in arrays)


def test_as_much_is_kept_as_there_is_room_for(client, tensor, monkeypatch):
    from opd import _kept

    monkeypatch.setattr(_kept, "_MOST", 10 << 20)
    arrays = [tensor.numpy() for _ in range(6)]
    assert [region.size for region in regions(client)] == [4 << 20] * 2
    assert all(np.array_equal(array, SEEN) for array in arrays)
    del arrays
    small = client.tensor(SEEN[:512])
    for _ in range(3):  # the others' memory is given up for it
        assert np.array_equal(small.numpy(), SEEN[:512])
    assert [region.size for region in regions(client)].count(2 << 20) >= 1
    assert sum(region.size for region in regions(client)) <= 10 << 20


def test_a_part_is_read_by_itself(client, tensor):
    for offset in (0, 5, 1 << 19):
        for _ in range(3):
            assert np.array_equal(tensor.read(offset, 1 << 19), SEEN.reshape(-1)[offset : offset + (1 << 19)])


def test_a_failed_read_leaves_nothing(client, tensor):
    for _ in range(3):
        tensor.numpy()
    for _ in range(5):
        with pytest.raises(opd.InvalidArgument):
            client._link.read_array(tensor._live_id(), 8, SEEN.nbytes)
        assert len(regions(client)) <= 3
    assert all(np.array_equal(tensor.numpy(), SEEN) for _ in range(3))


@pytest.fixture
def spreading(client, monkeypatch):
    """As for a GPU, on a machine with many cores."""
    if opd._native.native is None:
        pytest.skip("there is no opd_native")
    monkeypatch.setattr("opd._data._THREADS", 4)
    monkeypatch.setattr("opd._data._LEAST_SPREAD", 1 << 20)
    monkeypatch.setattr("opd._kept._MOST", 16 << 20)
    client._link.transfer._spreads = True
    return client


def test_what_several_threads_copy_is_written(spreading):
    array = np.random.default_rng(0).integers(0, 255, (5 << 20) + 77, np.uint8)
    tensor = spreading.tensor(array)
    for i in range(4):
        array[::1000] = i
        tensor.write(array)
        assert np.array_equal(tensor.numpy(), array)


def test_memory_is_not_written_again_before_it_was_read(spreading):
    """Writes of a batch, which nobody awaits, from one array that changes in between."""
    array = np.zeros(3 << 20, np.uint8)
    tensors = [spreading.zeros(array.shape, np.uint8) for _ in range(40)]
    with spreading.batch():
        for i, tensor in enumerate(tensors):
            array[:] = i
            tensor.write(array)
    assert all((tensor.numpy() == i).all() for i, tensor in enumerate(tensors))
    assert 2 <= len(regions(spreading)) <= 4


def test_a_copy_that_is_interrupted_ends(spreading):
    array = np.ones(8 << 20, np.uint8)
    tensor = spreading.zeros(array.shape, np.uint8)
    tensor.write(array)

    def copied(at):
        raise KeyboardInterrupt

    out = np.empty_like(array)
    with pytest.raises(KeyboardInterrupt):
        opd._native.native.copy(out.ctypes.data, array.ctypes.data, array.size, 1 << 20, 3, copied)
    tensor.write(array)
    assert (tensor.numpy() == 1).all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_arrays_of_its_own(client, tensor):
    tensor.numpy()
    array, free = tensor.numpy(), tensor.numpy()
    address = array.ctypes.data
    del free
    (wait, go), (hear, say) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(wait, 1)
            same = np.array_equal(array, SEEN)
            array[:] = -1
            os.write(say, b"%d" % same)
            os.read(wait, 1)
        finally:
            os._exit(0)
    array[0] = 7
    for _ in range(3):  # nor is its memory read into again, though it is the child's alone
        assert tensor.numpy().ctypes.data != address
    os.write(go, b".")
    assert os.read(hear, 1) == b"1"
    assert (array[0] == 7).all() and np.array_equal(array[1:], SEEN[1:])
    del array
    gc.collect()
    assert all(np.array_equal(tensor.numpy(), SEEN) for _ in range(3))
    os.write(go, b".")
    os.waitpid(pid, 0)
    for fd in (wait, go, hear, say):
        os.close(fd)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_another_thread_reads_during_a_fork_is_not_shared(client, tensor, monkeypatch):
    from opd._kept import Region

    tensor.numpy()
    held, free = tensor.numpy(), tensor.numpy()
    del free  # its region is what the next read would get
    before, read = Region.make_private, []

    def make_private(region):
        before(region)
        other = threading.Thread(target=lambda: read.append(tensor.numpy()))
        other.start()
        other.join()

    monkeypatch.setattr(Region, "make_private", make_private)
    pid = os.fork()
    if pid == 0:
        try:
            for array in (held, *read):
                array[:] = -1
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert len(read) == 1
    assert all(np.array_equal(array, SEEN) for array in (held, *read))


def test_without_descriptors_it_is_read_as_before(client, tensor):
    tensor.numpy()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # those that are open stay so
    try:
        arrays = [tensor.numpy() for _ in range(3)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(np.array_equal(array, SEEN) for array in arrays)
