"""`python -m tests.mutants --count 100000`: mutated model files, as many as asked for."""

import argparse
import sys
import time
from pathlib import Path

from tests.mutants.bench import run, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many")
    parser.add_argument("--seed", type=int, help="of the first mutant; by default a new one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--run-share", type=float, default=0.03, help="mutants that are run")
    parser.add_argument("--save", type=Path, help="folder for mutants with findings")
    parser.add_argument("--json", type=Path, help="where the summary goes")
    given = parser.parse_args()
    seed = int(time.time()) * 1000 if given.seed is None else given.seed
    print(f"seeds from {seed}", flush=True)
    summary = run(
        given.count, seed, given.jobs, given.run_share, given.save,
        lambda line: print(line, flush=True),
    )  # fmt: skip
    print(summary.text())
    if given.json is not None:
        write(summary, given.json)
    return 1 if summary.findings else 0


if __name__ == "__main__":
    sys.exit(main())
