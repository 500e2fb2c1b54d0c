"""`python -m tests.hostile`: all changes of several nodes of every importer."""

import argparse
import sys
import time

from tests.hostile.bases import bases
from tests.hostile.sweeping import sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="of each operator")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--op", help="one operator alone")
    given = parser.parse_args()
    began = time.perf_counter()
    chosen = bases(given.nodes).items()
    nodes = [node for (_, op), of in chosen if given.op in (None, op) for node in of]
    found = sweep(nodes, every=True, jobs=given.jobs)
    for line in found.findings:
        print(line)
    seconds = time.perf_counter() - began
    print(f"{len(nodes)} nodes, {found.answers} answers, {found.refusals} refusals, "
          f"{len(found.findings)} findings, {seconds:.0f} s")  # fmt: skip
    return 1 if found.findings else 0


if __name__ == "__main__":
    sys.exit(main())
