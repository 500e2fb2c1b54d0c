"""Random schedules: mappings, tiles, loops and expressions at random, compiled for every ISA and
compared with the interpreter. `python -m tests.tasks.random_schedules COUNT [SEED]` runs many."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conftest import HOST_ISAS

import ftuner
from ftuner.tasks import check
from ftuner.tasks.parse_loops import MOST_UNROLLED
from ftuner.tasks.schedule import Schedule

HEAD = """
from ftuner.tasks import *
from numpy import exp, tanh

def made({parameters}):
"""
NAMES = ("m", "n", "k")
UNARY = (
    "tanh({})", "exp(-abs({}))", "sigmoid({})", "-{}", "{} ** 2", "sqrt(abs({}))", "gelu({})",
    "erf({})", "silu({})", "sin({})", "cos({})", "atan({})", "log(1.0 + abs({}))", "softplus({})",
    "abs({})", "hard_swish({})", "(1.0 + abs({})) ** 0.75",
)  # fmt: skip
BINARY = ("{} + {}", "{} - {}", "{} * {}", "max({}, {})", "min({}, {})", "{} / (2.0 + {} ** 2)")
REDUCED = ("{0} += {1}", "{0} -= {1}", "{0} = max({0}, {1})", "{0} = min({0}, {1})")
MOST_IN_TILE = 4 * MOST_UNROLLED
MOST_COPIES = 32
"""Copies of a body. Assumed: each takes a tenth of a second to compile at most."""
STATES = 3
"""Elements of the tile that a scan carries from step to step."""
WAYS = ("strided", "quotient", "shifted", "reversed", "remainder", "window")
"""How an index of a load is made of a position."""


class Maker:
    """Writes one schedule. The output has an axis for each of some symbols; `places` are the index
    along each, of loops over tasks, blocks of them and whole axes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lines: list[str] = []
        self._inputs: dict[str, str] = {}
        self._names = NAMES[: self._random.randint(1, 3)]
        self._order = self._random.sample(self._names, len(self._names))
        """The axes of the output, in the order that it has them."""
        self._type = self._random.choice(("f32", "f32", "f64"))
        self._outputs: dict[str, Sequence[str]] = {"y": self._order}
        self._tiles: dict[str, tuple[int, ...]] = {}
        self._sizes: dict[str, str] = {}
        """The text of the block along each axis: a number, or a tile parameter."""
        self._places: dict[str, str] = {}
        self._guards: list[str] = []
        self._depth = 1
        self._in_lanes = False
        self._lane = ""
        self._copies = 1

    def text(self) -> str:
        """The source of a module with the function `made`."""
        names, rnd = self._names, self._random
        tasks = list(names[: rnd.randint(1, len(names))])
        blocks = {name: rnd.choice((1, 1, 2, 3, 4, 5, 8, 17)) for name in tasks}
        whole = [name for name in names if name not in tasks]
        kind = rnd.choice(("plain", "plain", "rows", "scan") if whole else ("plain",))
        if kind == "rows":
            blocks = dict.fromkeys(tasks, 1)
        elif rnd.random() < 0.3 and len(tasks) > 1 and blocks[tasks[-1]] > 1:
            kind = "tiled"
        for name in tasks:
            self._sizes[name] = str(blocks[name])
            if blocks[name] > 1 and rnd.random() < 0.25:
                self._tiles[f"b{name}"] = (rnd.choice((2, 3, 6)), blocks[name])
                self._sizes[name], blocks[name] = f"b{name}", max(self._tiles[f"b{name}"])
        if kind == "tiled" and prod(blocks.values()) > MOST_IN_TILE:
            kind = "plain"
        targets = ", ".join(f"t{name}" for name in tasks)
        self._open(f"for {targets} in {self._mapping(tasks, blocks)}:")
        inner = [name for name in names if name not in tasks or blocks[name] > 1]
        rnd.shuffle(inner)
        for name in tasks:
            self._places[name] = f"t{name}"
        if kind == "tiled":
            self._tiled(tasks, blocks)
        elif kind == "rows":
            self._rows(tasks, inner)
        elif kind == "scan":
            self._scan(inner, blocks, whole[0])
        else:
            self._plain(inner, blocks)
        shapes = [f"{n}: {kind}" for n, kind in self._inputs.items()]
        extents = [f'{name}{name}: {self._type}["{name}"]' for name in names]
        for output, axes in self._outputs.items():
            text = ", ".join(f'"{name}"' for name in axes)
            shapes.append(f"{output}: Out[{self._type}[{text}]]")
        tiles = [f"{name}: Tile = candidates{values}" for name, values in self._tiles.items()]
        head = HEAD.format(parameters=", ".join([*extents, *shapes, *tiles]))
        return head + "\n".join(self._lines) + "\n"

    def _put(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _open(self, line: str) -> None:
        self._put(line)
        self._depth += 1

    def _mapping(self, tasks: list[str], blocks: dict[str, int]) -> str:
        rnd = self._random
        extents = [n if blocks[n] == 1 else f"ceil_div({n}, {self._sizes[n]})" for n in tasks]
        ranks = ""
        if rnd.random() < 0.5:
            order = [*range(len(tasks))]
            rnd.shuffle(order)
            ranks = f", ranks=({', '.join(map(str, order))},)"
        kind = rnd.choice(("grid", "spatial", "repeat", "composed"))
        if kind == "grid" and len(tasks) == 1 and rnd.random() < 0.5:
            return f"split({extents[0]}, {rnd.choice(('workers', '3', '7'))})(worker)"
        if kind == "grid":
            parts = [str(rnd.choice((1, 1, 2, 3))) for _ in tasks]
            parts[rnd.randrange(len(parts))] = "workers"
            return f"grid(({', '.join(extents)},), ({', '.join(parts)},))(worker)"
        if kind != "composed":
            return f"{kind}({', '.join(extents)}{ranks})(worker)"
        outer, inner = rnd.choice((("spatial", "repeat"), ("repeat", "spatial")))
        times = [rnd.choice((1, 2, 3)) for _ in tasks]
        for name, time in zip(tasks, times, strict=True):
            if time > 1 and blocks[name] == 1:
                self._guards.append(f"t{name} < {name}")
        # A block number may be beyond the last one: the guard of its elements says so.
        first = ", ".join(
            f"ceil_div({n}, {self._sizes[n]} * {time})"
            for n, time in zip(tasks, times, strict=True)
        )
        factors = (f"{outer}({first}{ranks})", f"{inner}({', '.join(map(str, times))})")
        return f"({' * '.join(factors)})(worker)"

    def _plain(self, inner: list[str], blocks: dict[str, int]) -> None:
        rnd = self._random
        lane = rnd.choice([*inner, None]) if inner else None
        for name in inner:
            block = blocks.get(name, 0)
            kind = "lanes" if name == lane else rnd.choice(("range", "repeat"))
            if kind == "repeat" and self._copies * block > MOST_COPIES:
                kind = "range"
            self._enter(name, kind, block)
            self._copies *= block if block and kind == "repeat" else 1
        if self._guards:
            self._open(f"if {' and '.join(self._guards)}:")
        if rnd.random() < 0.6:
            self._reduction()
        else:
            self._put(f"s = {self._expression(2)}")
        if rnd.random() < 0.3:
            self._open(f"if {self._condition()}:")
            self._put(f"s = s * {self._expression(1)}")
            self._depth -= 1
        self._put(f"y[{self._index()}] = s + {self._expression(1)}")
        if rnd.random() < 0.3:
            self._outputs["z"] = rnd.sample(self._names, len(self._names))
            self._put(f"z[{self._index('z')}] = y[{self._index()}] * {self._expression(1)}")

    def _enter(self, name: str, kind: str, block: int) -> None:
        """Open the loop over a block of an axis, or over all of it."""
        self._open(f"for q{name} in {kind}({self._sizes[name] if block else name}):")
        self._in_lanes |= kind == "lanes"
        self._places[name] = f"q{name}"
        if block:
            self._places[name] = f"(t{name} * {self._sizes[name]} + q{name})"
            self._guards.append(f"{self._places[name]} < {name}")
        if kind == "lanes":
            self._lane = name

    def _reduction(self) -> None:
        rnd = self._random
        extent = rnd.choice((*self._names, "3"))
        kind = rnd.choice(("range", "repeat") if self._in_lanes else ("range", "repeat", "lanes"))
        if self._copies * 3 > MOST_COPIES:
            kind = "range"
        bounds = extent
        if kind == "range" and extent in self._places and extent != self._lane:
            place = self._places[extent]
            bounds = rnd.choice((extent, f"{place} + 1", f"{place}, {extent}", f"1, {extent}"))
        how = rnd.choice(REDUCED)
        self._put("s = 0.5")
        self._open(f"for p in {kind}({bounds}):")
        value = self._load({"p": extent})
        if kind != "lanes" and rnd.random() < 0.3:
            self._open(f"if {self._condition()}:")
            self._put(how.format("s", value))
            self._depth -= 1
        else:
            self._put(how.format("s", f"{value} * {self._load({'p': extent})}"))
        self._depth -= 1

    def _rows(self, tasks: list[str], inner: list[str]) -> None:
        """A statistic of each task, which is an output, and which another pass over its elements
        reads. The first pass may store elements that the second one reads."""
        rnd = self._random
        if self._guards:
            self._open(f"if {' and '.join(self._guards)}:")
        before, kinds = self._depth, [rnd.choice(("range", "repeat")) for _ in inner]
        kinds[-1] = rnd.choice(("lanes", "lanes", "range"))
        panel = ""
        if rnd.random() < 0.3:
            self._places |= {name: f"q{name}" for name in inner}
            loops = " ".join(f"for q{name} in range({name})" for name in inner)
            self._put(f"w = pack({self._load()} {loops})")
            panel = f" * w[{', '.join(f'q{name}' for name in inner)}]"
            for name in inner:
                del self._places[name]
        early = rnd.random() < 0.5
        self._put(f"r = {rnd.choice(('0.0', '0.5'))}")
        for step in ("first", "second"):
            for name, kind in zip(inner, kinds, strict=True):
                self._enter(name, kind, 0)
            at = f"y[{self._index()}]"
            if step == "first":
                if early:
                    self._put(f"{at} = {self._expression(2)}{panel}")
                value = at if early else f"{self._load()}{panel}"
                self._put(rnd.choice(REDUCED).format("r", value))
            else:
                value = at if early else f"{self._expression(2)}{panel}"
                self._put(f"y[{self._index()}] = {value} * u + {self._expression(1)}")
            self._depth, self._in_lanes, self._lane = before, False, ""
            if step == "first":
                for name in inner:
                    del self._places[name]
                self._put("u = 1.0 / (1.0 + r ** 2)")
                if rnd.random() < 0.6:
                    self._outputs["z"] = rnd.sample(tasks, len(tasks))
                    self._put(f"z[{self._index('z')}] = u * {self._load(names=tasks)}")

    def _scan(self, inner: list[str], blocks: dict[str, int], along: str) -> None:
        """States in a tile that go from step to step along an axis; each step is stored."""
        rnd = self._random
        others = [name for name in inner if name != along]
        for name in others:
            kind = "lanes" if name == others[-1] and rnd.random() < 0.8 else "range"
            self._enter(name, kind, blocks.get(name, 0))
        if self._guards:
            self._open(f"if {' and '.join(self._guards)}:")
        self._put(f"t = tile({STATES}, value={rnd.choice(('0.0', '0.5'))})")
        self._enter(along, "range", 0)
        self._put("s = 0.0")
        self._open(f"for e in repeat({STATES}):")
        kept = rnd.choice(("t[e]", f"t[{STATES - 1} - e]"))
        given = self._load({"e": str(STATES)})
        self._put(f"t[e] = {rnd.choice(('0.5', 'sigmoid(' + given + ')'))} * {kept} + {given}")
        if rnd.random() < 0.3:
            self._open(f"if {self._condition()}:")
            self._put(f"t[e] = t[e] * {self._load()}")
            self._depth -= 1
        self._put(rnd.choice(REDUCED).format("s", f"t[e] * {self._load({'e': str(STATES)})}"))
        self._depth -= 1
        self._put(f"y[{self._index()}] = s + {self._expression(1)}")

    def _tiled(self, tasks: list[str], blocks: dict[str, int]) -> None:
        """A product in a register tile along lanes."""
        rnd, last = self._random, tasks[-1]
        rows = [name for name in tasks[:-1] if blocks[name] > 1]
        whole = [name for name in self._names if name not in tasks]
        for name in whole:
            self._open(f"for q{name} in range({name}):")
            self._places[name] = f"q{name}"
        for name in (*rows, last):
            self._places[name] = f"(t{name} * {self._sizes[name]} + q{name})"
            self._guards.append(f"{self._places[name]} < {name}")
        shape = ", ".join(self._sizes[name] for name in (*rows, last))
        element = f"t[{', '.join(f'q{name}' for name in (*rows, last))}]"
        self._put(f"t = tile({shape}, value={rnd.choice(('0.0', '1.5'))})")
        extent, factor = rnd.choice(self._names), ""
        if rnd.random() < 0.5:
            rows_places = {name: self._places.pop(name) for name in rows}
            inside = self._guards[-1]
            value = self._load({"p": extent}, [n for n in self._names if n not in rows])
            loops = f"for p in range({extent}) for q{last} in lanes({self._sizes[last]})"
            self._put(f"w = pack({value} if {inside} else 0.25 {loops})")
            self._places |= rows_places
            factor = f"w[p, q{last}]"
        how = rnd.choice(REDUCED)
        for step in ("sum", "store"):
            before = self._depth
            if step == "sum":
                self._open(f"for p in range({extent}):")
            for name in rows:
                self._open(f"for q{name} in repeat({self._sizes[name]}):")
            self._open(f"for q{last} in lanes({self._sizes[last]}):")
            self._open(f"if {' and '.join(self._guards)}:")
            if step == "sum":
                a, b = self._load({"p": extent}), factor or self._load({"p": extent})
                self._put(how.format(element, f"{a} * {b}"))
            else:
                self._put(f"y[{self._index()}] = {element} + {self._expression(1)}")
            self._depth = before

    def _index(self, output: str = "y") -> str:
        return ", ".join(self._places[name] for name in self._outputs[output])

    def _load(self, more: dict[str, str] | None = None, names: Sequence[str] = ()) -> str:
        """An element of a new input, at some of the indices, in any order. `names`: of these
        extents; by default of all."""
        rnd = self._random
        names = names or [name for name in self._names if name in self._places]
        places = [(self._places[name], name) for name in names]
        some = rnd.sample(places, rnd.randint(0 if more else 1, len(places)))
        chosen = [*some, *((p, n) for p, n in (more or {}).items())]
        rnd.shuffle(chosen)
        name = f"x{len(self._inputs)}"
        axes, index, inside = [], [], []
        for place, extent in chosen:
            way = rnd.choice(("same",) * 4 + WAYS)
            if way == "strided":
                times = rnd.choice((2, 3, 5))
                axes.append(f'"{times} * {extent}"')
                index.append(f"{times} * {place} + {rnd.randrange(times)}")
            elif way == "quotient":
                axes.append(f'"({extent} + 2) // 3"')
                index.append(f"{place} // 3")
            elif way == "shifted":
                shift = rnd.choice((-2, -1, 1, 2))
                axes.append(f'"{extent}"')
                index.append(f"{place} + {shift}")
                inside.append(f"0 <= {place} + {shift} < {extent}")
            elif way == "reversed":
                axes.append(f'"{extent}"')
                index.append(f"{extent} - 1 - {place}")
            elif way == "remainder":
                divisor = rnd.choice((2, 5))
                axes.append(str(divisor))
                index.append(f"({place} + {rnd.randrange(3)}) % {divisor}")
            elif way == "window":
                other, length = rnd.choice(places or [(place, extent)])
                axes.append(f'"{extent} + {length}"')
                index.append(f"{place} + {other}")
            else:
                axes.append(f'"{extent}"' if not extent.isdigit() else extent)
                index.append(place)
        self._inputs[name] = f"{self._type}[{', '.join(axes)}]"
        found = f"{name}[{', '.join(index)}]"
        return f"({found} if {' and '.join(inside)} else 0.5)" if inside else found

    def _expression(self, depth: int) -> str:
        rnd = self._random
        if depth == 0:
            return rnd.choice((self._load, self._load, lambda: "0.75", self._position))()
        if rnd.random() < 0.3:
            return f"({rnd.choice(UNARY).format(f'({self._expression(depth - 1)})')})"
        if rnd.random() < 0.25:
            test, x, y = self._condition(), *(self._expression(depth - 1) for _ in range(2))
            lazy = rnd.random() < 0.4
            return f"(({x}) if {test} else ({y}))" if lazy else f"where({test}, {x}, {y})"
        parts = [f"({self._expression(depth - 1)})" for _ in range(2)]
        return f"({rnd.choice(BINARY).format(*parts)})"

    def _position(self) -> str:
        name = self._random.choice([*self._places])
        return f"(({self._places[name]}) % 7 * 0.125)"

    def _condition(self) -> str:
        """Of elements as they are loaded, which have the same bits everywhere, and of indices."""
        rnd = self._random
        a, b = (self._places[rnd.choice([*self._places])] for _ in range(2))
        test: Callable[[], str] = lambda: rnd.choice((  # noqa: E731
            f"{self._load()} < 0.3", f"-0.5 < {self._load()} <= 0.5", f"{a} % 3 == 0",
            f"{a} <= {b}", f"{a} != 1", f"{self._load()} > {self._load()}",
        ))  # fmt: skip
        return rnd.choice((
            test, test, lambda: f"({test()} and {test()})", lambda: f"({test()} or {test()})",
            lambda: f"not {test()}",
        ))()  # fmt: skip


def loaded(path: Path) -> Any:
    """The function `made` of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.made


def made(seed: int, folder: Path) -> Schedule:
    """The schedule of a seed. Its source is written to a folder."""
    path = folder / f"made_{seed}.py"
    path.write_text(Maker(seed).text())
    return Schedule(loaded(path))


def main(count: int, seed: int) -> None:
    check.MOST_ITERATIONS = 64
    with TemporaryDirectory() as folder:
        for number in range(seed, seed + count):
            try:
                isa = HOST_ISAS[number % len(HOST_ISAS)]
                ftuner.check(made(number, Path(folder)), cases=3, seed=number, isas=[isa])
            except Exception as error:
                print(f"seed {number}: {type(error).__name__}: {error}", flush=True)
            if (number - seed) % 25 == 24:
                print(f"{number - seed + 1} done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
