"""`python -m tests.faults_under_load`: two guards, 64 clients, every fault in turn; a minute.

Ends with 1 for a wrong yes, a wrong no, a recovery that took too long, or a fault that nobody noticed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.faults_under_load.plan import FAULTS
from tests.faults_under_load.run import run


def main() -> int:
    """Run and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults_under_load", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="only the faults whose name has this in it")
    options = parser.parse_args()
    if options.only is not None and not any(options.only in fault.name for fault in FAULTS):
        parser.error(
            f"no fault has {options.only!r} in its name: {'; '.join(fault.name for fault in FAULTS)}"
        )
    figures = asyncio.run(run(options.seed, options.only))
    sys.stdout.write(f"{figures.report()}\n")
    return 0 if figures.is_as_it_should_be else 1


if __name__ == "__main__":
    sys.exit(main())
