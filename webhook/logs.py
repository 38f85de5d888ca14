"""Structured logs: one JSON object a line on stderr, the library's own lines included."""

from __future__ import annotations

import logging
import sys
from typing import Any

import orjson
import structlog


def configure(level: str) -> None:
    """Send everything to stderr as JSON, from `level` (debug, info, warning, error) up."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    render = structlog.processors.JSONRenderer(serializer=_to_json)
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(level=max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    logging.getLogger().handlers = [handler]


def _to_json(event: Any, **_: Any) -> str:
    return orjson.dumps(event, default=repr).decode()
