"""Requests at random, valid and invalid, of several clients, against a model in NumPy:

    python tests/model/run.py --seconds 60 [--seed N] [--clients 4] [--calm]

In a round each client sends some requests without waiting, and every reply is compared with what the
model says, bit by bit. No request of a round touches what another client's changes, so their order
does not matter. Meanwhile the daemon is upgraded, its executor restarted, and kernels fault and hang;
in some rounds executors and compilers are killed and operators edited, and each client has one request
in flight. Some calls and replays beside which a client has nothing else in flight go by its lane. From time to
time everything that there is is read and compared.

--seed repeats the draws. What a kill hits differs from time to time; with --calm, which leaves the
rounds of kills and edits out, a seed repeats everything.
"""

import argparse
import random
import re
import select
import shutil
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from model import TESTS, Client, Tensor, Untold  # noqa: E402

from chaos import Chaos  # noqa: E402
from comparer import Auditor, Wrong, check_reply, map_export, take_fd, take_plan  # noqa: E402
from generator import Generator  # noqa: E402
from graphs import Graphs  # noqa: E402
from lanes import Lane  # noqa: E402

from conftest import DEVICE, PATIENCE, Daemon, eventually  # noqa: E402
from raw import Raw  # noqa: E402

KERNELS = Path(__file__).resolve().parent / "kernels"
FAULTS = TESTS / "faults" / "kernels" / "fault.cu"


BY_LANE = ("call", "replay")


class Connection(Raw):
    """Raw, with the descriptors that come; it reads while it sends, as who does not wait must."""

    def __init__(self, path):
        super().__init__(path)
        self.fds = []
        self.lane = Lane(self, Tensor.device)
        self.replays = {}  # the graph of each

    def send(self, data, fds=()):
        super().send(data[:1], fds)
        rest = memoryview(data)[1:]
        while rest:
            readable, writable, _ = select.select([self.sock], [self.sock], [], PATIENCE)
            if readable:
                self.read()
            elif writable:
                rest = rest[self.sock.send(rest, socket.MSG_DONTWAIT) :]
            else:
                raise Wrong(f"the daemon has neither read nor answered for {PATIENCE} s")

    def read(self):
        data, fds, _, _ = socket.recv_fds(self.sock, 1 << 18, 16)
        if not data:
            raise Wrong("the daemon hung up")
        self.fds += fds
        self.unpacker.feed(data)
        for kind, id, error, result in self.unpacker:
            self.replies[id] = (error, result)

    def wait(self, msgid):
        """(error, result)"""
        while msgid not in self.replies:
            self.read()
        error, result = self.replies.pop(msgid)
        graph = self.replays.pop(msgid, None)
        if graph is not None and result and "lane" in result:
            self.lane.graphs[graph] = result.pop("lane")
        return error, result

    def read_for(self, seconds):
        if select.select([self.sock], [], [], seconds)[0]:
            self.read()

    def close(self):
        super().close()
        self.lane.close_bell()

    def ask(self, method, *params):
        return self.wait(self.request(method, *params))


class Sent:
    def __init__(self, client, method, params, prediction):
        self.client, self.method, self.params = client, method, params
        self.prediction = prediction
        self.tried_lane = self.by_lane = False

    def send(self, connection):
        fds = [self.prediction.shared.fd] if self.prediction.shared else []
        self.msgid = connection.request(self.method, *self.params, fds=fds)
        if self.method == "replay":
            connection.replays[self.msgid] = self.params[0]

    def wait(self, connection):
        """(error, result)"""
        told = connection.lane.end(self.msgid, self.prediction) if self.by_lane else None
        if self.by_lane and told is None:
            self.send(connection)
        return told or connection.wait(self.msgid)

    def __repr__(self):
        shown = [f"<{len(p)} bytes>" if isinstance(p, bytes) else repr(p) for p in self.params]
        return f"{self.client.name}: {self.method}({', '.join(shown)}){' by a lane' * self.by_lane}"


class Trial:
    def __init__(self, args, daemon, folder, world, seed):
        self.args, self.daemon, self.world, self.seed = args, daemon, world, seed
        self.connections, self.born = {}, 0
        self.admin = Raw(daemon.socket)
        self.chaos = Chaos(daemon, folder, world, self.admin, random.Random(seed), args.device)
        self.auditor = Auditor(world, self.connections)
        self.round = self.requests = self.by_lane = self.refused = self.disturbed = 0
        self.recent = []
        while len(world.clients) < args.clients:
            self.join()

    def join(self):
        client = Client(f"client {self.born}")
        self.born += 1
        self.connections[client] = Connection(self.daemon.socket)
        self.world.clients.append(client)

    def leave(self, client):
        self.world.leave(client)
        self.connections.pop(client).close()

    def play(self):
        """One round."""
        self.round += 1
        self.rng = random.Random(f"{self.seed}.{self.round}")
        self.chaos.rng = self.rng
        self.world.rng = numbers = np.random.default_rng([self.seed, self.round])
        self.generator = Generator(self.world, self.rng, numbers)
        self.locks = {}  # what is read or written: by whom
        if not self.args.calm and self.rng.random() < 0.15:
            self.play_storm()
        else:
            self.play_bursts()
        if self.rng.random() < 0.01:
            self.leave(self.rng.choice(self.world.clients))
            self.join()
        if self.round % 20 == 0:
            self.auditor.audit()

    def draw(self, client, by_lane=False):
        """A request that disturbs no other client's of this round, and what it must be answered with. by_lane: one that
        may go by one, if there is any."""
        done = self.connections[client].lane.done
        for _ in range(200 if by_lane else 50):
            method, params = self.generator.draw(client)
            again = by_lane and done and self.rng.random() < 0.5
            if again:
                method, params = self.rng.choice(done)
                params = [*params]
            if by_lane and method not in BY_LANE:
                continue
            try:
                prediction = self.world.predict(client, method, params)
                if again and prediction.code:  # several mistakes, maybe
                    continue
                if prediction.code is None and self.rng.random() < 0.12:  # one mistake at a time
                    params = self.generator.spoil(method, params)
                    prediction = self.world.predict(client, method, params)
            except Untold:
                continue
            if self.lock(client, prediction):
                return method, params, prediction
        return "sync", [], self.world.predict(client, "sync", [])

    def lock(self, client, prediction):
        mine = [(what, "w") for what in prediction.writes] + [(what, "r") for what in prediction.reads]
        for what, how in mine:
            for other, theirs in self.locks.get(what, ()):
                if other is not client and "w" in (how, theirs):
                    return False
        for what, how in mine:
            self.locks.setdefault(what, set()).add((client, how))
        return True

    def send(self, client, method, params, prediction, alone=True):
        """alone: nothing of this client's is in flight."""
        connection = self.connections[client]
        sent = Sent(client, method, params, prediction)
        # Where an edit may come first, what a lane refuses is sent after it.
        prepared = client.prepareds.get(params[0]) if method == "call" else None
        overtaken = self.world.stormy and prepared and prepared[1] == "turn"
        sent.tried_lane = alone and method in BY_LANE and not overtaken and self.rng.random() < 0.7
        if sent.tried_lane:
            sent.msgid = connection.lane.enter(method, params, prediction)
            sent.by_lane = sent.msgid is not None
            self.by_lane += sent.by_lane
        if not sent.by_lane:
            sent.send(connection)
        self.recent = [*self.recent[-self.args.history :], sent]
        self.requests += 1
        return sent

    def play_bursts(self):
        """What is predicted has happened for the next request of the same client."""
        sent = []
        for client in self.world.clients:
            for i in range(self.rng.choice([1, 2, 5, 10])):
                drawn = self.draw(client, by_lane=i == 0 and self.rng.random() < 0.4)
                sent.append(self.send(client, *drawn, alone=i == 0))
                drawn[-1].happen()
                if drawn[-1].late or sent[-1].tried_lane:
                    break
        self.chaos.calm()
        for one in sent:
            self.settle(one, *one.wait(self.connections[one.client]))
        self.chaos.finish()

    def play_storm(self):
        """One request of each client, which happens when its reply is there."""
        event = self.chaos.choose_storm()
        self.world.stormy = True
        self.generator.slow = event == self.chaos.kill_executor
        sent = [self.send(client, *self.draw(client, self.rng.random() < 0.3)) for client in self.world.clients]
        time.sleep(self.rng.choice([0, 0.002, 0.005, 0.02]))  # for different moments of them to be hit
        self.chaos.do(event)
        for one in sent:
            error, result = one.wait(self.connections[one.client])
            if error and error["code"] != one.prediction.code and self.chaos.forgives(event, error):
                self.disturbed += 1
                if error["code"] == "kernel_fault":
                    one.prediction.breaks()
                self.auditor.learn(one.client, self.connections[one.client])
                continue
            if error and error["code"] == "not_found" and self.names_forgotten(one):
                continue
            self.adapt(one, result)
            one.prediction.happen()
            self.settle(one, error, result)
        self.chaos.finish()
        self.world.stormy = False

    def names_forgotten(self, one):
        """A version that the edit of this round was one too many for."""
        return one.method == "forward" and len(one.params) > 4 and one.params[4].get("version") in self.chaos.forgotten

    def adapt(self, one, result):
        """To the version that ran, and to whether a failed edit was told."""
        if one.method not in ("forward", "plan") or one.params[0] != "turn" or not result:
            return
        if "warnings" in result:
            one.client.told.add(re.search(r"no_such_name_\d+", result.pop("warnings")[0])[0])
        told = one.client.told
        one.client.told = {*told, self.world.failed_edit}
        options = one.params[4] if len(one.params) > 4 else {}
        if "version" not in options and result["version"] in self.world.turns:
            params = [*one.params[:4], {**options, "version": result["version"]}]
            if one.method == "plan":
                params = [*one.params[:3], {"version": result["version"]}]
            one.prediction = self.world.predict(one.client, one.method, params)
        else:
            one.prediction = self.world.predict(one.client, one.method, one.params)
        one.client.told = told

    def settle(self, one, error, result):
        self.refused += error is not None
        if error is None and one.method in BY_LANE:
            self.connections[one.client].lane.done.append((one.method, one.params))
        fds = self.connections[one.client].fds
        try:
            if one.method == "plan_export" and not error:
                take_plan(result, fds)
            check_reply(one.method, one.params, one.prediction, error, result)
            if one.method == "tensor_export" and not error:
                map_export(one.prediction.export, result, take_fd(fds, "opd-chunk") if result["chunk"] is not None else None)
        except Wrong as wrong:
            raise Wrong(f"{one}: {wrong}") from None

    def finish(self):
        """Nothing is left of clients that are gone, and of names that are given up."""
        self.auditor.audit()
        with Raw(self.daemon.socket) as raw:
            for client in [*self.world.clients]:
                self.leave(client)
            self.admin.close()
            for id, name in enumerate([*self.world.graphs], start=1):
                raw.call("graph_attach", id, name)
                raw.call("free", "graph", [id])
            for id, name in enumerate([*self.world.names], start=1):
                raw.call("tensor_attach", id, name)
                raw.call("free", "tensor", [id])

            def left():
                device = raw.call("status")["devices"][0]
                return {k: device[k] for k in ("memory_used", "tensors") if device[k]}

            if not eventually(lambda: not left()):
                raise Wrong(f"left behind: {left()}")

    def say(self, seconds):
        print(f"{seconds:6.0f} s  {self.round} rounds, {self.requests} requests, {self.by_lane} of them "
              f"by lanes, {self.refused} refused, {self.disturbed} disturbed; {self.chaos.counts}", flush=True)  # fmt: skip


def run(args, folder):
    Tensor.device = args.device
    world = Graphs(None)
    before = Chaos(None, folder, world, None, None, None)
    before.begin()
    options = ["--kernels", str(folder), "--compilers", "2", "--compile-deadline", str(PATIENCE), "--deadline", "60"]
    daemon = Daemon(*options, device=args.device)
    trial = Trial(args, daemon, folder, world, args.seed)
    start = told = time.monotonic()
    try:
        while time.monotonic() - start < args.seconds:
            trial.play()
            if time.monotonic() - told > 10:
                told = time.monotonic()
                trial.say(told - start)
        trial.finish()
        trial.say(time.monotonic() - start)
        daemon.stop()
    except BaseException:
        print("\nthe last requests:", *trial.recent, sep="\n  ", file=sys.stderr)
        print(f"\nthe daemon's log:\n{daemon.read_log()[-3000:]}", file=sys.stderr)
        trial.say(time.monotonic() - start)
        daemon.process.kill()
        raise


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--device", default=DEVICE)
    parser.add_argument("--history", type=int, default=60, help="requests to be shown where one is wrong")
    parser.add_argument("--calm", action="store_true", help="no kills, no edits")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="opd-model-"))
    for path in (*KERNELS.glob("*.cu"), FAULTS):
        shutil.copy(path, folder)
    try:
        run(args, folder)
    except Wrong as wrong:
        print(f"\nwrong: {wrong}\n--seed {args.seed} repeats it", file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        print(f"--seed {args.seed} repeats it", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder)
    print("ok: every reply was as it must be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
