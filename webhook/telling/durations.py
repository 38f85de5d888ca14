"""Go durations: how the API server and kubectl write `5s` and `1m30s`."""

from __future__ import annotations

import re

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_LONGEST_DURATION = 40


def parse_duration(text: str) -> float | None:
    """The seconds of a Go duration such as `5s` or `1m30s`; None if it is none."""
    if len(text) > _LONGEST_DURATION:
        return None
    parts = _DURATION.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        return None
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
