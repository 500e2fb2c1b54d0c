"""`python -m benchmarks.gallery`: the gallery of docs/own_operators.md beside PyTorch, eager and
compiled, and ONNX Runtime.

Each operator runs on 20 random shapes. All ways of a shape take turns (`ftuner_tools.timing`), and
must agree. The figure of an operator is the geometric mean, over the shapes, of the time of the
fastest other one over ftuner's. ftuner and compiled PyTorch know all extents as variables; ONNX
Runtime has a model of each shape. Scans are loops in Python for PyTorch, which neither compiles nor
exports them for more than one length.
"""

import io
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import torch
import typer
from torch.nn import functional

from ftuner_tools.timing import Call, Settings, geomean, measure

PAGE = Path(__file__).parent.parent / "docs" / "own_operators.md"
SHAPES = 20
SCANS = ("selective_scan", "lattice")


def operators() -> dict[str, Any]:
    """What the Python of the page defines."""
    found: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
        exec(compile(block, str(PAGE), "exec"), found)
    return found


class Module(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *operands: Any) -> Any:
        return self._function(*operands)


def rms_norm(x: Any, scale: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * scale


def layer_norm(x: Any, residual: Any, scale: Any, shift: Any) -> Any:
    return functional.layer_norm(x + residual, scale.shape, scale, shift)


def rotary(x: Any, positions: Any) -> Any:
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10000.0 ** (-torch.arange(half) / half)
    angles, other = torch.cat([angles, angles], -1), torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angles.cos() + other * angles.sin()


def depthwise(x: Any, w: Any) -> Any:
    taps, channels = w.shape
    windows = functional.conv1d(x.transpose(1, 2), w.T[:, None], padding=taps // 2, groups=channels)
    return windows.transpose(1, 2)


def windowed(q: Any, k: Any, v: Any) -> Any:
    i = torch.arange(q.shape[-2])
    near = (i <= i[:, None]) & (i[:, None] < i + 64)
    return functional.scaled_dot_product_attention(q, k, v, near)


def int4_product(x: Any, levels: Any, scales: Any) -> Any:
    both = torch.stack([levels & 15, levels >> 4], -1).flatten(1)
    return x @ ((both.float() - 8) * scales.repeat_interleave(32, 1)).T


def selective_scan(x: Any, step: Any, a: Any, b: Any, c: Any) -> Any:
    state, rows = torch.zeros(x.shape[0], *a.shape), []
    for i in range(x.shape[1]):
        width = step[:, i, :, None]
        state = torch.exp(width * a) * state + width * b[:, i, None] * x[:, i, :, None]
        rows.append((state * c[:, i, None]).sum(-1))
    return torch.stack(rows, 1)


def lattice(x: Any, k: Any) -> Any:
    backward, rows, gains = [torch.zeros(x.shape[1])] * 5, [], k.tolist()
    for forward in x:
        made = [forward] * 5
        for stage in (3, 2, 1, 0):
            forward = forward - gains[stage] * backward[stage]
            made[stage + 1] = backward[stage] + gains[stage] * forward
        backward = [forward, *made[1:]]
        rows.append(forward)
    return torch.stack(rows)


PEERS: Mapping[str, Callable[..., Any]] = {
    "matmul": torch.matmul, "softmax": lambda x: torch.softmax(x, -1), "layer_norm": layer_norm,
    "rms_norm": rms_norm, "rotary": rotary, "depthwise": depthwise, "windowed": windowed,
    "int4_product": int4_product, "selective_scan": selective_scan, "lattice": lattice,
}  # fmt: skip


def operands(name: str, rng: np.random.Generator) -> list[Any]:
    """Operands of a random shape."""

    def some(*shape: int) -> Any:
        return rng.standard_normal(shape, np.float32)

    b, m, n, k = (int(2 ** rng.uniform(*s)) for s in ((0, 3), (2, 8.5), (4, 9.5), (4, 9)))
    match name:
        case "matmul":
            return [some(b, m, k), some(b, k, n)]
        case "softmax":
            return [some(b * m, n)]
        case "layer_norm":
            return [some(b * m, n), some(b * m, n), some(n), some(n)]
        case "rms_norm":
            return [some(b * m, n), some(n)]
        case "rotary":
            return [some(b, m, 2 * k), np.arange(m)]
        case "depthwise":
            return [some(b, m, n), some(5, n)]
        case "windowed":
            return [some(b, 8, m, 64) for _ in range(3)]
        case "int4_product":
            wide = 32 * (k // 32 + 1)
            levels = rng.integers(0, 256, (n, wide // 2), np.uint8)
            return [some(m, wide), levels, some(n, wide // 32)]
        case "selective_scan":
            x, rows = some(b, m, n), some(b, m, 16)
            return [x, abs(x) / 8, -abs(some(n, 16)), rows, rows]
    return [some(m, n), some(4) / 8]


def exported(function: Callable[..., Any], tensors: tuple[Any, ...]) -> Call:
    """A call of ONNX Runtime with a model of the shapes of some tensors."""
    names, file = [f"x{number}" for number in range(len(tensors))], io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Module(function), tensors, file, dynamo=False, input_names=names,
                          opset_version=18)  # fmt: skip
    session = onnxruntime.InferenceSession(file.getvalue())
    given = {name: x.numpy() for name, x in zip(names, tensors, strict=True)}
    return lambda: session.run(None, given)[0]


def ways(name: str, operator: Any, given: list[Any], whole: Any) -> Iterator[tuple[str, Call]]:
    """The calls that compete. `whole`: the compiled function of PyTorch."""
    tensors, function = tuple(map(torch.from_numpy, given)), PEERS[name]
    yield "ftuner", lambda: operator(*given)
    yield "eager", lambda: function(*tensors)
    if name not in SCANS:
        yield "compiled", lambda: whole(*tensors)
        yield "onnxruntime", exported(function, tensors)


def ratio(name: str, operator: Any, given: list[Any], whole: Any, settings: Settings) -> float:
    """The time of the fastest other way over ftuner's. Raises AssertionError if two differ."""
    calls = dict(ways(name, operator, given, whole))
    wanted = np.asarray(calls["eager"]())
    scale = max(float(np.abs(wanted).max(initial=0)), 1.0)
    for call in calls.values():
        np.testing.assert_allclose(np.asarray(call()) / scale, wanted / scale, rtol=2e-3, atol=2e-4)
    timings = measure({n: [c] for n, c in calls.items()}, settings, random.Random(name))
    own = timings.pop("ftuner").median_s
    return min(t.median_s for t in timings.values()) / own


def main(
    only: Annotated[list[str] | None, typer.Option(help="Operators; by default all.")] = None,
    shapes: Annotated[int, typer.Option(help="Shapes of each.")] = SHAPES,
    budget: Annotated[float, typer.Option(help="Seconds for a way of a shape.")] = 0.3,
) -> None:
    """Print the geometric mean for each operator, and the least and the largest ratio."""
    made = operators()
    for name in only or PEERS:
        rng, whole = np.random.default_rng(0), torch.compile(PEERS[name], dynamic=True)
        settings = Settings(budget_s_per_engine=budget)
        with torch.inference_mode():
            found = [
                ratio(name, made[name], operands(name, rng), whole, settings) for _ in range(shapes)
            ]
        print(f"{name:15} {geomean(found):.2f} ({min(found):.2f} to {max(found):.2f})", flush=True)


if __name__ == "__main__":
    typer.run(main)
