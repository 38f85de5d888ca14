"""`python -m tests.fuzz --inputs 100000 --seed 1`: whatever is sent to `/validate`, it says no wrong yes.

Every input is made from its number and the seed; `--only NUMBER` sends one again and shows it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.fuzz.campaign import Campaign
from tests.fuzz.inputs import make

SHOWN_BYTES = 4000


def main() -> int:
    """Run and report; 1 where something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="how many to send")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--failures", type=int, default=20, help="stop after so many")
    parser.add_argument("--only", type=int, help="send only the input of this number, and show it")
    options = parser.parse_args()
    numbers = range(options.inputs) if options.only is None else [options.only]
    if options.only is not None:
        sys.stdout.write(f"{make(options.seed, options.only).sent[:SHOWN_BYTES]!r}\n")
    campaign = Campaign(options.seed, iter(numbers), options.failures)
    asyncio.run(campaign.run())
    sys.stdout.write(f"{campaign.report()}\n")
    return 1 if campaign.failures else 0


if __name__ == "__main__":
    sys.exit(main())
