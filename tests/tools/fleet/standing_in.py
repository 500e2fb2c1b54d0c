"""A cluster without Ray: nodes of this process, which say what kind they are."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ftuner_tools.fleet.tuning import Cluster, Kind, Node, kind_here


class StandIn(Cluster):
    """Nodes that work when somebody waits for them. A node whose kind is an exception raises it."""

    def __init__(self, kinds: Sequence[Kind | Exception]) -> None:
        self._nodes = [Node(str(i), f"host-{i}", 2.0) for i in range(len(kinds))]
        self._kinds = kinds
        self._tasks: dict[Hashable, Callable[[], Any]] = {}
        self.started: list[tuple[str, bool]] = []
        """Names of the nodes that worked, and whether alone."""
        self.cancelled: list[Hashable] = []

    def nodes(self) -> list[Node]:
        return [*self._nodes, Node("head", "head", 0.0)]

    def start(
        self, node: Node, function: Callable[..., Any], arguments: tuple[Any, ...], alone: bool
    ) -> Hashable:
        task = f"task-{len(self._tasks)}"

        def run() -> Any:
            if function is not kind_here:
                return function(node, *arguments)
            found = self._kinds[int(node.id)]
            if isinstance(found, Exception):
                raise found
            return tuple(found)

        if function is not kind_here:
            self.started.append((node.name, alone))
        self._tasks[task] = run
        return task

    def finished(self, tasks: Sequence[Hashable], timeout_s: float) -> list[Hashable]:
        return list(tasks)[:1]

    def result(self, task: Any) -> Any:
        return self._tasks[task]()

    def cancel(self, task: Any) -> None:
        self.cancelled.append(task)
