"""As much of Ray as the executor calls, in this process: arguments and results are copied."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType, SimpleNamespace


class Cluster:
    """A cluster of two nodes with two processors each.

    Attributes:
        refused: the error of connecting to it.
        n_gpus: the devices of each node.
        reserved: the devices that each worker takes.
        lost: calls that end with their worker's death, which Ray then repeats elsewhere.
        n_bytes: what was sent with calls, and kept for them.
    """

    def __init__(self) -> None:
        self.connected, self.refused, self.lost = False, None, 0
        self.homes, self.killed, self.n_bytes = [], 0, 0
        self.n_gpus, self.reserved = 1, []

    def init(self, **settings) -> None:
        if self.refused is not None:
            raise self.refused
        self.connected, self.address = True, settings["address"]

    def shutdown(self) -> None:
        self.connected = False

    def kill(self, actor) -> None:
        self.killed += 1

    def remote(self, **_):
        return lambda kind: SimpleNamespace(
            options=lambda num_gpus, scheduling_strategy: SimpleNamespace(
                remote=lambda: self._actor(kind, scheduling_strategy, num_gpus)
            )
        )

    def _actor(self, kind, home, num_gpus):
        self.homes.append(home)
        self.reserved.append(num_gpus)
        methods = {
            name: SimpleNamespace(remote=lambda *sent, name=name: self._call(kind, name, sent))
            for name in ("check", "train", "measure")
        }
        return SimpleNamespace(**methods)

    def put(self, value):
        raw = pickle.dumps(value)
        self.n_bytes += len(raw)
        return Reference(raw)

    def _call(self, kind, name, sent):
        # A worker is new for each call: it must not need what an earlier call left there.
        for _ in range(1 + (self.lost if name == "train" else 0)):
            if any(isinstance(one, Reference) and one.raw is None for one in sent):
                return Reference(None)
            own = [pickle.loads(one.raw) if isinstance(one, Reference) else one for one in sent]
            found = getattr(kind(), name)(*pickle.loads(pickle.dumps(own)))
        return self.put(found)

    def get(self, wanted, timeout=None):
        if isinstance(wanted, list):
            return [self.get(one) for one in wanted]
        if wanted.raw is None:
            raise sys.modules["ray"].exceptions.ObjectLostError("no copy is left")
        return pickle.loads(wanted.raw)

    def module(self) -> dict[str, ModuleType]:
        """Return the modules that stand for Ray."""
        ray, util, strategies = (
            ModuleType(name) for name in ("ray", "ray.util", "ray.util.scheduling_strategies")
        )
        errors = ModuleType("ray.exceptions")
        for name, base in {
            "RayError": Exception,
            "RayActorError": "RayError",
            "ActorUnschedulableError": "RayError",
            "ObjectLostError": "RayError",
            "OutOfDiskError": "RayError",
            "ObjectStoreFullError": "RayError",
            "AuthenticationError": "RayError",
            "GetTimeoutError": "RayError",
        }.items():
            kind = getattr(errors, base) if isinstance(base, str) else base
            setattr(errors, name, type(name, (kind,), {}))
        strategies.NodeAffinitySchedulingStrategy = lambda node, soft: node
        for name in ("init", "shutdown", "kill", "remote", "put", "get"):
            setattr(ray, name, getattr(self, name))
        ray.wait = lambda waiting, num_returns: ([waiting[-1]], waiting[:-1])
        ray.is_initialized = lambda: self.connected
        ray.nodes = lambda: [
            {"NodeID": node, "Alive": node != "gone", "Resources": {"CPU": 2.0, "GPU": self.n_gpus}}
            for node in ("two", "gone", "one")
        ]
        ray.exceptions, ray.util, util.scheduling_strategies = errors, util, strategies
        return {one.__name__: one for one in (ray, util, strategies, errors)}


class Reference:
    """A reference to a value, as pickled when it was put, or None if it was lost since."""

    def __init__(self, raw: bytes | None) -> None:
        self.raw = raw


def installed(monkeypatch) -> Cluster:
    """Import the executor upon such a cluster."""
    cluster = Cluster()
    for name, module in cluster.module().items():
        monkeypatch.setitem(sys.modules, name, module)
    # In this order, the executor upon such a cluster doesn't outlive the test.
    monkeypatch.setitem(sys.modules, "fedrec.cluster.ray_executor", None)
    del sys.modules["fedrec.cluster.ray_executor"]
    return cluster
