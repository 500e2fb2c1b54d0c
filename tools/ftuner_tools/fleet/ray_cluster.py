"""A Ray cluster, as `fleet.tuning` sees it. Needs the extra `ray` here, and ftuner with its tools
on each node.

The members of a Ray cluster may run code on each other, so a cluster is to be trusted as a whole;
what its nodes return is checked all the same.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from typing import Any

from ftuner.errors import ConfigurationError
from ftuner_tools.fleet.tuning import Cluster, Node

CONNECT_S = 10.0
"""Ray itself tries for ten minutes to reach a head that is not there."""


class RayCluster(Cluster):
    """The nodes of a Ray cluster."""

    def __init__(self, address: str) -> None:
        """Connect. `address`: of the head (`host:6379`), of a Ray client server
        (`ray://host:10001`), `auto` for the cluster that this machine is in, or `local` for a
        cluster of this machine alone.

        Raises:
            ConfigurationError: the extra is not installed, or there is no such cluster.
        """
        try:
            self._ray = import_module("ray")
            scheduling = import_module("ray.util.scheduling_strategies")
        except ImportError as error:
            raise ConfigurationError(
                f"{error}; install the extra: pip install 'ftuner-tools[ray]'"
            ) from None
        self._on_node = scheduling.NodeAffinitySchedulingStrategy
        self._connected = not self._ray.is_initialized()
        if self._connected:
            _expect_reachable(address)
            try:
                self._ray.init(address=address, log_to_driver=False, logging_level="error")
            except (OSError, RuntimeError, ValueError) as error:
                raise ConfigurationError(f"no Ray cluster at {address!r}: {error}") from error

    def close(self) -> None:
        """Disconnect, unless the process was connected before."""
        if self._connected:
            self._ray.shutdown()

    def nodes(self) -> list[Node]:
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        hosts = [node.get("NodeName") or node["NodeManagerAddress"] for node in alive]
        # One host may have several nodes.
        names = [
            host if hosts.count(host) == 1 else f"{host} ({node['NodeID'][:8]})"
            for host, node in zip(hosts, alive, strict=True)
        ]
        return [
            Node(node["NodeID"], name, node["Resources"].get("CPU", 0.0))
            for name, node in zip(names, alive, strict=True)
        ]

    def start(
        self, node: Node, function: Callable[..., Any], arguments: tuple[Any, ...], alone: bool
    ) -> Hashable:
        # Another task of the process would find ftuner with the settings of this one.
        task = self._ray.remote(max_calls=1)(_called).options(
            num_cpus=node.cpus if alone else 0,
            max_retries=0,
            scheduling_strategy=self._on_node(node.id, soft=False),
        )
        handle: Hashable = task.remote(function, *arguments)
        return handle

    def finished(self, tasks: Sequence[Hashable], timeout_s: float) -> list[Hashable]:
        ready: list[Hashable]
        ready, _ = self._ray.wait(list(tasks), timeout=timeout_s)
        return ready

    def result(self, task: Any) -> Any:
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            # The cause without the trace of the node.
            raise (error.cause if isinstance(error.cause, Exception) else error) from error

    def cancel(self, task: Any) -> None:
        self._ray.cancel(task, force=True)


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    """The task: Ray takes functions alone, and a partial function is none."""
    return function(*arguments)


def _expect_reachable(address: str) -> None:
    """Raises ConfigurationError if an address names a host and port at which nothing answers."""
    if address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ConfigurationError(
            f"the address of a Ray cluster is {address!r}; expected host:port, ray://host:port, "
            "auto or local"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"no Ray cluster at {address!r}: {error}") from error
