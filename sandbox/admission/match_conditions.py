"""A webhook's matchConditions, evaluated where celpy is installed (Kubernetes 1.28, matchconditions.Match).

Left out: the variable `authorizer`, whose use is an error, and the checks of an expression as it is written:
here one that does not compile is an error of each request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

try:
    from celpy import Environment
    from celpy.adapter import json_to_cel
    from celpy.celparser import CELParseError
    from celpy.celtypes import BoolType
    from celpy.evaluation import CELEvalError
except ImportError:
    EVALUATED = False
else:
    EVALUATED = True

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Obj = dict[str, Any]
    Program = Callable[[Mapping[str, Any]], Any]

__all__ = ["EVALUATED", "ConditionError", "MatchConditions"]

_OBJECTS = ("object", "oldObject")
_LONGEST_REASON = 80


class ConditionError(Exception):
    """Conditions that err, where none of the others is false; the message says what went wrong."""


class MatchConditions:
    """Decides whether a webhook is called at all; keeps what it compiled."""

    def __init__(self) -> None:
        self._programs: dict[str, Program | ConditionError] = {}

    async def hold(self, conditions: Sequence[Mapping[str, str]], asked: Obj) -> bool:
        """Whether all hold for the request of a review; without celpy, always.

        A false one decides, whatever the others say. Raises `ConditionError`.
        """
        if not (conditions and EVALUATED):
            return True
        programs = [self._program(condition["expression"]) for condition in conditions]
        # Objects of 700 kB in small pieces take over a second.
        return await asyncio.to_thread(_hold, programs, asked)

    def _program(self, expression: str) -> Program | ConditionError:
        if expression not in self._programs:
            self._programs[expression] = _compiled(expression)
        return self._programs[expression]


def _compiled(expression: str) -> Program | ConditionError:
    environment = Environment()
    try:
        return environment.program(environment.compile(expression)).evaluate
    except CELParseError as error:
        return ConditionError(f"expression '{expression}' does not compile: {error}")


def _hold(programs: Sequence[Program | ConditionError], asked: Obj) -> bool:
    request = {key: value for key, value in asked.items() if key not in _OBJECTS}
    try:
        variables = {name: json_to_cel(asked[name]) for name in _OBJECTS} | {"request": json_to_cel(request)}
    except ValueError as error:
        raise ConditionError(f"a number of the object is too large: {error}") from None
    errors = []
    for program in programs:
        try:
            if not _evaluated(program, variables):
                return False
        except ConditionError as error:
            errors.append(str(error))
    if errors:
        raise ConditionError(", ".join(errors))
    return True


def _evaluated(program: Program | ConditionError, variables: Mapping[str, Any]) -> bool:
    if isinstance(program, ConditionError):
        raise program
    try:
        value = program(variables)
    except CELEvalError as error:
        # An undeclared name comes with all that is declared: the beginning says it.
        raise ConditionError(str(error.args[0])[:_LONGEST_REASON]) from None
    if not isinstance(value, BoolType):
        raise ConditionError(f"a condition is true or false, not a {type(value).__name__}")
    return bool(value)
