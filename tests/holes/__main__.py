"""`python -m tests.holes`: holes with more seeds, in small or in exported networks."""

import argparse
import sys
from pathlib import Path

from tests.holes.bases import BASES
from tests.holes.sweeping import sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.holes", description=__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="of each hole")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--exported", type=Path, nargs="*", help="folders of benchmarks.zoo in place of BASES"
    )
    given = parser.parse_args()
    names = [*BASES] if given.exported is None else [str(path) for path in given.exported]
    found = sweep(names, range(given.seeds), given.jobs)
    for line in found.findings:
        print(line)
    refusals = ", ".join(f"{count} {name}" for name, count in sorted(found.refusals.items()))
    print(f"{len(names)} models, {found.answers} answers, refused: {refusals}, "
          f"{len(found.findings)} findings")  # fmt: skip
    return 1 if found.findings else 0


if __name__ == "__main__":
    sys.exit(main())
