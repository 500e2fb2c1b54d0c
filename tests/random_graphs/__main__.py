"""`python -m tests.random_graphs --minutes 60`: random graphs, for as long as asked."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.random_graphs.bench import Options, run, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_graphs", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, help="how long; default 1 if --graphs is not given"
    )
    parser.add_argument("--graphs", type=int, help="how many")
    parser.add_argument("--seed", type=int, help="of the first graph; by default a new one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--guard", action="store_true", help="pages that fault around all memory")
    parser.add_argument("--gpu-share", type=float, default=0.0, help="graphs that are interpreted")
    parser.add_argument(
        "--compiled-share", type=float, default=1.0,
        help="graphs that are compiled; the others run by references after all passes",
    )  # fmt: skip
    parser.add_argument("--cache", type=Path, help="folder of compiled objects, for further runs")
    parser.add_argument("--row", default="", help="that graphs begin with, as `Dropout`")
    parser.add_argument("--save", type=Path, help="folder for findings, made small")
    parser.add_argument("--json", type=Path, help="where the summary goes")
    given = parser.parse_args()
    minutes = 1.0 if given.minutes is None and given.graphs is None else given.minutes
    seed = int(time.time()) * 1000 if given.seed is None else given.seed
    print(f"seeds from {seed}", flush=True)
    options = Options(
        seconds=None if minutes is None else 60 * minutes, graphs=given.graphs, seed=seed,
        jobs=given.jobs, guard=given.guard, gpu_share=given.gpu_share, folder=given.save,
        row=given.row, compiled_share=given.compiled_share, cache=given.cache,
    )  # fmt: skip
    summary = run(options, lambda line: print(line, flush=True))
    print(summary.text())
    if given.json is not None:
        write(summary, given.json)
    return 1 if summary.findings else 0


if __name__ == "__main__":
    sys.exit(main())
