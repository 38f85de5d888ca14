"""A longer search than the tests make: `python -m tests.model --seconds 600 --seed 7`."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from dataclasses import fields, replace

from tests.model.assumptions import CLOSED, Exceptions
from tests.model.parts import PARTS, settings_without
from tests.model.search import Outcome, search
from tests.model.start_parts import TWO_JOBS


def main() -> int:
    """Search, tell what was gone through and found; exit 1 when something was."""
    chosen = _arguments()
    part = next((part for part in PARTS if part.name == chosen.without), None)
    allowed = [*chosen.allow, *(CLOSED if chosen.webhooks else ())]
    exceptions = Exceptions(**dict.fromkeys(allowed, True))
    # A start that nobody admitted is one of those that the webhook on Jobs holds apart, one after the other.
    only_latest = not chosen.only_two_at_once and not chosen.webhooks
    settings = settings_without([part] if part else [], exceptions, only_latest=only_latest)
    settings = replace(settings, webhooks=chosen.webhooks)
    if chosen.two_jobs:
        settings = TWO_JOBS
    began = time.monotonic()
    with part.switched_off() if part else nullcontext():
        outcome = search(
            settings,
            seed=chosen.seed,
            steps_at_most=chosen.steps,
            seconds=chosen.seconds,
            count_states=True,
            ends_live=part is None and not chosen.allow,
            focus=part.focus if part else (),
        )
    _tell(outcome, seconds=time.monotonic() - began)
    return 0 if outcome.found is None else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--seconds", type=float, default=60, help="stop after so many seconds (60)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed takes the same steps (0)")
    parser.add_argument(
        "--without", choices=[part.name for part in PARTS], help="switch off a part of the rule"
    )
    parser.add_argument(
        "--allow",
        nargs="*",
        default=[],
        choices=[exception.name for exception in fields(Exceptions)],
        help="what the rule does not promise",
    )
    parser.add_argument(
        "--webhooks",
        action="store_true",
        help="have Jobs and pods asked about too, and let happen all that those webhooks close",
    )
    parser.add_argument(
        "--two-jobs",
        action="store_true",
        help="the same for TrainJobs of two Jobs; stands alone",
    )
    parser.add_argument(
        "--only-two-at-once",
        action="store_true",
        help="look for two executions at once only, not for one that outlives a later admission",
    )
    return parser.parse_args()


def _tell(outcome: Outcome, *, seconds: float) -> None:
    tally = outcome.tally
    states = len(tally.states or ())
    speed = f"{tally.steps / seconds:.0f} steps and {states / seconds:.0f} distinct states a second"
    lines = [f"{tally.runs} runs, {tally.steps} steps, {states} distinct states in {seconds:.0f} s: {speed}"]
    if outcome.found is None:
        lines.append("nothing found")
    else:
        lines += [f"found, in {len(outcome.found.steps)} steps: {outcome.found.what}", outcome.found.story]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
