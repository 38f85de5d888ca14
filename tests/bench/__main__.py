"""`python -m tests.bench`: what the guard costs, measured; a table on stdout, JSON in a file.

On the API server that KUBEBUILDER_ASSETS names (`make envtest` makes one), else on the sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tests.bench.measuring import measured
from tests.bench.plan import FULL, QUICK
from tests.bench.telling import show, write

WIDTH = 160


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a little of everything, for no figures to quote"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("build/bench.json"), help="where to write everything"
    )
    parser.add_argument(
        "--sandbox", action="store_true", help="on the sandbox, also where there is a real one"
    )
    parser.add_argument("--reviews", type=int, help="how many reviews memory is measured over")
    options = parser.parse_args()
    if options.sandbox:
        os.environ.pop("KUBEBUILDER_ASSETS", None)
    plan = QUICK if options.quick else FULL
    if options.reviews:
        plan = replace(plan, reviews=options.reviews)
    figures = asyncio.run(measured(plan, lambda line: print(line, file=sys.stderr, flush=True)))  # noqa: T201
    write(options.json, figures, plan)
    show(Console(width=None if sys.stdout.isatty() else WIDTH), figures)
    print(f"everything is in {options.json}")  # noqa: T201


if __name__ == "__main__":
    main()
