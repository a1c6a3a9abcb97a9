"""opd.aio: many tasks on one connection, that are cancelled, fail, and lose their daemon."""

import asyncio
import gc
import warnings

import numpy as np
import pytest
from conftest import PATIENCE, eventually
from operators import double_by, put_kernels

import opd
import opd.aio

pytestmark = pytest.mark.unsanitized("of the client in Python")


def run(daemon, use):
    """use(client), in an event loop of its own."""

    async def main():
        async with opd.aio.connect(daemon.socket, start=False) as client:
            return await use(client)

    return asyncio.run(main())


@pytest.fixture
def held(start_daemon, slow_cxx, tmp_path):
    """A daemon whose first call of double_it waits for its compiler, until `slow_cxx.go`."""
    folder = put_kernels(tmp_path / "k", double_it=double_by(2))
    return start_daemon("--kernels", folder, "--cache", "", device="cpu")


async def until(holds):
    """As eventually(), while tasks go on."""
    await asyncio.get_running_loop().run_in_executor(None, eventually, holds)
    assert holds()


def test_a_hundred_requests_in_flight_from_a_task_each(held, slow_cxx):
    async def use(client):
        async def double(x):
            return await (await x.double_it()).numpy()

        xs = await asyncio.gather(*[client.tensor(np.full(3, i, np.float32)) for i in range(100)])
        tasks = [asyncio.create_task(double(x)) for x in xs]
        await until(slow_cxx.begun.exists)
        replies = client._client._conn.replies.values()
        assert sum(reply.method == "forward" for reply in replies) == 100
        slow_cxx.go.touch()
        return await asyncio.gather(*tasks)

    for i, y in enumerate(run(held, use)):
        assert y.tolist() == [2 * i] * 3


def test_a_cancelled_task_gives_up_what_it_asked_for(held, slow_cxx):
    async def use(client):
        x = await client.tensor(np.ones(3, np.float32))
        first, *others = [asyncio.create_task(client.ops.double_it(x)) for _ in range(10)]
        await until(slow_cxx.begun.exists)
        for task in others:
            task.cancel()
        ended = await asyncio.gather(*others, return_exceptions=True)
        assert all(isinstance(e, asyncio.CancelledError) for e in ended)
        slow_cxx.go.touch()
        y = await first
        assert (await y.numpy()).tolist() == [2, 2, 2]
        del others, task, ended
        gc.collect()
        assert len(await client.tensors()) == 2  # x and y
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0)  # the loop is as it was

    run(held, use)


def test_a_daemon_that_ends_in_the_middle(held, slow_cxx):
    async def use(client):
        x = await client.tensor(np.ones(3, np.float32))
        tasks = [asyncio.create_task(client.ops.double_it(x)) for _ in range(20)]
        stream = client.events(follow=True)
        following = asyncio.create_task(drain(stream))
        await until(slow_cxx.begun.exists)
        await stream.read()
        held.process.kill()
        errors = await asyncio.gather(*tasks, following, return_exceptions=True)
        assert [type(e) for e in errors] == [opd.ConnectionLost] * 21, errors
        with pytest.raises(opd.ConnectionLost):
            await x.numpy()

    async def drain(stream):
        async for _ in stream:
            pass

    run(held, use)
    held.process.wait()


def test_the_names_of_the_client(daemon, tmp_path):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)

    async def use(client):
        x = await client.tensor(array, name="aio")
        try:
            again = await client.attach("aio")
            assert (again.shape, again.dtype, again.name, again.ndim) == ((3, 4), "float32", "aio", 2)
            assert (await again.read(5, 2)).tolist() == [5, 6]
            y, context = await client.ops.elu.forward(x, alpha=0.5)
            (gradient,) = await context.backward(await client.tensor(np.ones((3, 4), np.float32)))
            assert (await gradient.numpy() == np.where(array > 0, 1, 0.5)).all() and (await y.numpy() == array).all()
            assert await (await (await x.view(2, offset=3)).mul(2.0)).tolist() == [6, 8]
            turned = await x.view((4, 3), strides=(1, 4))
            assert (await turned.numpy() == array.T).all()
            assert await (await x.reshape(-1)).numpy() is not None
            await x.write(array + 1)
            assert (await again.numpy() == array + 1).all() and await x.suspect() is None
            assert (await (await client.zeros((2, 2))).numpy() == 0).all()
            plan = await client.plan("gelu", [("float32", (2, 3))])
            assert plan["outputs"] == [("float32", (2, 3))]
            h, c = await client.ops.lltm(*[np.zeros(s, np.float32) for s in [(1, 2), (9, 5), 9, (1, 3), (1, 3)]])
            assert h.shape == c.shape == (1, 3)
            assert "gelu" in client.ops and len(client.ops) == len(list(client.ops)) == len(dir(client.ops))
            assert "approximate" in client.ops.gelu.__doc__ and client.ops.gelu.schema.startswith("gelu(")
            assert "opd_requests_total" in await client.metrics() and await client.reload() == []
            checked = tmp_path / "double_it.cu"
            checked.write_text(double_by(2))
            assert (await client.check(checked))["ok"]
            loaded = await client.load(double_by(3))
            assert await (await loaded(x)).numpy() is not None and "double_it" in client.ops
            await client.unload("double_it")
            assert "double_it" not in client.ops
        finally:
            await x.free()
        assert not [t for t in await client.tensors() if t["name"] == "aio"]

    run(daemon, use)


def test_errors_are_those_of_opd(daemon):
    async def use(client):
        with pytest.raises(opd.NotFound, match="no operator 'gellu'; did you mean 'gelu'"):
            await client.ops.gellu(1.0)
        with pytest.raises(TypeError, match="aproximate"):
            await client.ops.gelu(1.0, aproximate="tanh")
        with pytest.raises(opd.InvalidArgument, match="broadcast|shape"):
            await client.ops.add(np.zeros(3), np.zeros(4))
        with pytest.raises(AttributeError, match="no 'gellu'"):
            (await client.tensor([1.0])).gellu
        both = await asyncio.gather(client.attach("none"), client.zeros(3), return_exceptions=True)
        assert isinstance(both[0], opd.NotFound) and both[1].shape == (3,)
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, client.status())

    run(daemon, use)


def test_large_tensors_of_many_tasks_at_once(daemon):
    """More than there are memfds for; and through messages what comes beyond."""

    async def use(client):
        async def there_and_back(i):
            array = np.full(50_000, i, np.float32)
            return np.array_equal(await (await client.tensor(array)).numpy(), array)

        assert all(await asyncio.gather(*map(there_and_back, range(80))))
        assert client._link.transfer._n_shared == 0

    run(daemon, use)


def test_an_edit_is_followed(start_daemon, tmp_path):
    folder = tmp_path / "k"
    daemon = start_daemon("--kernels", put_kernels(folder, double_it=double_by(2)))

    async def use(client):
        x = await client.tensor(np.ones(1, np.float32))
        async with client.events(follow=True) as events, client.trace() as runs:
            for _ in range(3):  # the third is prepared
                assert await (await x.double_it()).item() == 2
            assert [run["op"] for run in await runs.read()] == ["double_it"] * 3
            put_kernels(folder, double_it=double_by(3))
            assert [c["version"] for c in await client.reload()] == [2]
            async for event in events:
                if event["kind"] == "reloaded":
                    break
            assert event["version"] == 2 and client.ops.double_it.version == 2
            assert await (await x.double_it()).item() == 3
            text = double_by("more").replace("Tensor x)", "Tensor x, *, int more=4)")
            text = text.replace("long long n)", "long long n, int more)")
            put_kernels(folder, double_it=text, one=double_by(5).replace("double_it", "one"))
            other = daemon.connect()
            other.reload()
            other.close()
            assert await (await x.double_it(more=7)).item() == 7  # known when it is used
            assert await (await client.ops.one(x)).item() == 5
        assert [event async for event in events] == []  # it is closed
        put_kernels(folder, double_it="//! op")
        with pytest.warns(opd.ReloadWarning, match="not served") as told:
            await client.reload()
        assert told[0].filename == __file__

    run(daemon, use)


def test_a_stream_whose_start_is_cancelled_goes_on(daemon):
    async def use(client):
        await client.load(double_by(2))
        stream = client.events(follow=True)
        first = asyncio.create_task(stream.__anext__())
        await asyncio.sleep(0)  # it connects, in a thread
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert "kind" in await stream.__anext__()
        await stream.close()

    run(daemon, use)


async def back_to(client, n):
    """So many connections are left."""

    async def wait():
        while (await client.status())["connections"] > n:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), PATIENCE)


def test_a_client_that_is_dropped_is_closed(daemon):
    async def use(client):
        n = (await client.status())["connections"]
        other = await opd.aio.connect(daemon.socket, start=False)
        x = await other.tensor(np.ones(3, np.float32))
        del other
        gc.collect()
        assert await x.tolist() == [1, 1, 1]  # which has it still
        del x
        gc.collect()
        await back_to(client, n)

    run(daemon, use)


def test_a_stream_that_is_closed_while_it_starts(daemon):
    async def use(client):
        n = (await client.status())["connections"]
        stream = client.events(follow=True)
        first = asyncio.create_task(stream.__anext__())
        await asyncio.sleep(0)
        await stream.close()
        with pytest.raises(StopAsyncIteration):
            await first
        await back_to(client, n)

    run(daemon, use)


def test_of_a_stream_nothing_is_read_while_nobody_waits(daemon):
    """So that what comes stays in the daemon, which bounds it."""

    async def use(client):
        x = await client.tensor(np.ones(3, np.float32))
        async with client.trace() as runs:
            for _ in range(5):
                await x.gelu()
            await asyncio.sleep(0.05)
            assert not runs._inner._conn._notifications and not runs._queue
            assert [run["op"] for run in await runs.read()] == ["gelu"] * 5

    run(daemon, use)


def test_nothing_is_left_open(daemon):
    async def use():
        client = await opd.aio.connect(daemon.socket, start=False)
        events = client.events(follow=True)
        await events.read()
        await client.ops.gelu(np.zeros(100_000, np.float32))
        return None  # closes neither

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(use(), debug=True)
        gc.collect()
    assert not [w for w in told if issubclass(w.category, (ResourceWarning, RuntimeWarning))], told
