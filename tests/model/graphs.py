"""Graphs in the model: what a client runs is recorded, and a replay is predicted by running it again on copies
of the memory that it uses."""

from model import Client, Refused, Storage, Tensor, Text, Untold
from runs import Runs

RECORDED = ("forward", "vjp", "call", "tensor_new", "tensor_copy")


class Graph:
    def __init__(self, name):
        self.name = name
        self.nodes = []  # (method, parameters), so that results go into the tensors that are there
        self.own = Client("a graph")  # with the tensors and prepared calls that these name
        self.ended = self.failed = False
        self.filled, self.written, self.constant = set(), set(), set()  # storages

    def has_turn(self):
        prepared = self.own.prepareds
        return any(params[0] == "turn" or (m == "call" and prepared[params[0]][1] == "turn") for m, params in self.nodes)


class Graphs(Runs):
    def __init__(self, rng):
        super().__init__(rng)
        self.graphs = {}  # by name
        self.stormy = False  # edits and kills are on their way

    def predict(self, c, method, params):
        p = super().predict(c, method, params)
        graph = c.recording
        if graph is None:
            return p
        recorded = method in (*RECORDED, "backward")

        def fail():
            """What has failed was recorded before."""
            graph.written.update(p.writes if recorded and not graph.failed else ())
            graph.failed = True

        p.failures.append(fail)
        if p.late:
            p.effects.append(fail)
        elif p.code is None and recorded and not graph.failed:
            self.record(p, c, graph, method, params)
        return p

    def leave(self, client):
        if client.recording:
            self.graphs.pop(client.recording.name, None)
        super().leave(client)

    # --- recording

    def record(self, p, c, graph, method, params):
        if method == "backward":
            raise Untold
        if method == "vjp" and not any(p.result):
            return  # nothing is launched
        if method == "call":
            direction, name, descs, _, options = c.prepareds[params[0]]
            graph_ids = params[1]
            if direction == "vjp" and not any(graph_ids[-len(descs) :]):
                return
        else:
            name = params[0] if method in ("forward", "vjp") else None
            n_before = {"forward": 4, "vjp": 7}.get(method, len(params))
            options = params[n_before] if len(params) > n_before else {}
            graph_ids = [v for part in params for v in (part if isinstance(part, list) else [part]) if isinstance(v, int)]
            graph_ids += [v for many in options.values() if isinstance(many, list) for v in many]
            graph_ids = params[:1] if method == "tensor_new" else graph_ids
        op = self.operator(name, None) if name else None
        there = [c.tensors[id] for id in graph_ids if id in c.tensors]
        empty = any(not t.size for t in there) or (method == "tensor_new" and not p.result["bytes"])
        mine = all(t.storage.owner is t.storage for t in there)
        own = graph.own
        anew = any(id in own.tensors and own.tensors[id] is not c.tensors.get(id) for id in graph_ids)
        if method == "call":
            prepared = c.prepareds[params[0]]
            anew = anew or own.prepareds.get(params[0], prepared) is not prepared
        if anew:
            raise Untold  # an id that had been something else: nodes are kept by their ids
        if empty or not mine or options.keys() - {"into", "saved"} or (op and (op.view or op.near)):
            raise Untold
        if method == "call" and options or (name == "turn" and self.stormy):
            raise Untold

        def effect():
            graph.nodes.append((method, self.again(c, method, params, options)))
            graph.own.tensors.update({id: c.tensors[id] for id in graph_ids if id in c.tensors})
            if method == "call":
                graph.own.prepareds[params[0]] = c.prepareds[params[0]]
            if method == "tensor_new":
                graph.filled.add(c.tensors[params[0]].storage)
            else:
                graph.written.update(storage for storage, _ in p.begun)

        p.effects.append(effect)

    def again(self, c, method, params, options):
        """The parameters, with the results that there were as places for the new ones."""
        if method not in ("forward", "vjp"):
            return params
        at = 3 if method == "forward" else 6
        outs, saved = params[at], options.get("saved")
        into = [*options.get("into", []), *[None] * len(outs)][: len(outs)]
        places = [made if made in c.tensors else place for made, place in zip(outs, into)]
        given = {"into": [*places, *(saved or [])]}
        if saved is not None:
            given["saved"] = [None] * len(saved)
        return [*params[:at], [None] * len(outs), given]

    def do_tensor_write(self, p, c, id, offset, data):
        graph = c.recording
        if graph is None:
            return super().do_tensor_write(p, c, id, offset, data)
        storage = self.tensor(p, c, id).storage
        if storage not in graph.filled or storage in graph.written:
            raise Refused("invalid_argument", "a replay would not write it")
        super().do_tensor_write(p, c, id, offset, data)
        if p.begun:
            p.effects.append(lambda: graph.constant.add(storage))

    def do_graph_begin(self, p, c, id, options={}):
        name = options.get("name")
        if c.recording:
            raise Refused("invalid_argument", "a graph in a graph")
        self.new_id(c.graphs, id)
        if name is not None:
            p.writes.add(("graph", name))
            if name in self.graphs:
                raise Refused("invalid_argument", f"graph {name} is there")

        def effect():
            c.graphs[id] = c.recording = graph = Graph(name)
            if name is not None:
                self.graphs[name] = graph

        p.effects.append(effect)

    def graph(self, c, id):
        if id not in c.graphs:
            raise Refused("not_found", f"graph {id}")
        return c.graphs[id]

    def do_graph_end(self, p, c, id):
        graph = self.graph(c, id)
        if graph is not c.recording:
            raise Refused("invalid_argument", "it is not captured")
        if self.stormy:
            raise Untold  # it may be given up
        p.writes.add(("graph", graph.name))
        good = graph.nodes and not graph.failed
        p.code, p.why = (None, "") if good else ("invalid_argument", "nothing to be replayed")
        p.result = {"calls": len(graph.nodes) - len(graph.constant), "device": Tensor.device} if good else None

        def effect():
            c.recording, graph.ended = None, True
            if not good:
                del c.graphs[id]
                self.graphs.pop(graph.name, None)

        p.effects.append(effect)

    def do_graph_attach(self, p, c, id, name):
        self.new_id(c.graphs, id)
        p.reads.add(("graph", name))
        graph = self.graphs.get(name)
        if graph is None or not graph.ended:
            raise Refused("not_found", f"graph {name}")
        p.result = {"device": Tensor.device}
        p.effects.append(lambda: c.graphs.__setitem__(id, graph))

    def do_free(self, p, c, kind, ids, options={}):
        super().do_free(p, c, kind, ids, options)
        if kind != "graph":
            return
        for graph in [c.graphs[id] for id in ids if id in c.graphs]:
            p.writes.add(("graph", graph.name))
            if graph is c.recording:
                p.effects.append(lambda: setattr(c, "recording", None))
            if graph is c.recording or not options.get("drop"):
                p.effects.append(lambda graph=graph: self.drop_name(graph))

    def drop_name(self, graph):
        if self.graphs.get(graph.name) is graph:
            del self.graphs[graph.name]

    # --- replaying

    def do_replay(self, p, c, id, options={}):
        graph = self.graph(c, id)
        p.reads.add(("graph", graph.name))
        if c.recording:
            raise Refused("invalid_argument", "a graph is captured")
        turns = graph.has_turn()
        if turns and self.stormy:
            raise Untold
        copies = {t.storage: self.copy(t.storage) for t in graph.own.tensors.values()}
        p.reads |= copies.keys()
        own = Client("a replay")
        own.prepareds = graph.own.prepareds
        for known, t in graph.own.tensors.items():
            own.tensors[known] = Tensor(copies[t.storage], t.offset, t.dtype, t.shape)
        originals = {copy: storage for storage, copy in copies.items()}
        for method, params in graph.nodes:
            self.step(p, own, method, params, graph, originals)
        p.result = {}
        if turns and self.failed_edit not in (None, *c.told):
            p.result["warnings"] = [Text(self.failed_edit)]
            p.effects.append(lambda failed=self.failed_edit: c.told.add(failed))
        p.effects.append(lambda: [self.adopt(storage, copy) for storage, copy in copies.items()])

    @staticmethod
    def copy(storage):
        if storage.near:
            raise Untold
        copy = Storage(storage.bits.copy())
        copy.suspect[:] = storage.suspect
        return copy

    @staticmethod
    def adopt(storage, copy):
        if copy.version:
            storage.bits[:], storage.suspect[:] = copy.bits, copy.suspect
            storage.version += copy.version

    def step(self, p, own, method, params, graph, originals):
        """One node, on the copies."""
        if method == "tensor_new":
            tensor = own.tensors[params[0]]
            if originals[tensor.storage] in graph.constant:
                return
            done = type(p)()
            self.overwrite(done, tensor, tensor.storage.bits[tensor.part()] * 0)
        else:
            done = super().predict(own, method, params)
        if done.late:
            raise Untold
        if done.code:
            raise Refused(done.code, f"{method} {params}: {done.why}")
        done.happen()
        for storage, part in done.begun:
            p.writes.add(originals[storage])
            p.begun.append((originals[storage], part))

