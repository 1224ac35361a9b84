"""Nodes chosen by a condition on a node column: ``year == 2024``, ``label in 3, 5``, ``label == bakery``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import LABEL
from ecgl_scale.tasks.split import Ids, missing_column

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*(?P<column>\S.*?)\s*(?P<operator>==|!=|<=|>=|<|>|\sin\s)\s*(?P<value>.*\S)\s*", re.DOTALL)


@dataclass(frozen=True)
class Where:
    """A condition that a node meets or not; a value that is missing meets none."""

    column: str
    operator: str
    values: tuple[str, ...]
    """One, or with ``in`` several."""

    @classmethod
    def parse(cls, text: str) -> Where:
        """Read ``COLUMN op VALUE`` with op one of == != < <= > >=, or ``COLUMN in VALUE, VALUE``."""
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise UsageError(
                f"this is no condition: {text!r}",
                expected=f"COLUMN op VALUE with op one of {' '.join(OPERATORS)}, or COLUMN in VALUE, VALUE",
                fix='write it as "year == 2024"',
            )
        name, value = found["operator"].strip(), found["value"]
        values = tuple(part.strip() for part in value.split(",")) if name == "in" else (value,)
        return cls(found["column"], name, tuple(_unquoted(one) for one in values))

    def __str__(self) -> str:
        return f"{self.column} {self.operator} {', '.join(self.values)}"

    def select(self, graph: GraphStore) -> Ids:
        """Ids of the nodes that meet it, ascending. Memory: the ids, and a batch of the column."""
        nodes = graph.nodes
        if nodes is None or self.column not in nodes.names:
            raise missing_column(graph, self.column)
        wanted = [self._number(graph, text) for text in self.values]
        found = [np.empty(0, np.int64)]
        for start, values in nodes.blocks(self.column):
            found.append(np.flatnonzero(self._is_met(values, wanted)) + start)
        return np.concatenate(found)

    def _is_met(self, values: NDArray[Any], wanted: list[float | int]) -> NDArray[np.bool_]:
        if self.operator == "in":
            met: NDArray[np.bool_] = np.isin(values, wanted)
        else:
            met = OPERATORS[self.operator](values, wanted[0])
        is_chosen: NDArray[np.bool_] = met & ~np.isnan(values)
        return is_chosen

    def _number(self, graph: GraphStore, text: str) -> float | int:
        """A value as the column has it; of labels that have names, the number of the name."""
        names = graph.class_names
        if self.column == LABEL and names is not None:
            if text not in names:
                raise InvalidInputError(f"the store has no class {text!r}", where=graph.path, expected=_some(names))
            return int(names.index(text))
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        if text.lower() in ("true", "false"):
            return int(text.lower() == "true")
        raise UsageError(
            f"{text!r} is no value of the column {self.column!r}", expected="a number, as node columns hold them"
        )


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def _some(names: tuple[str, ...]) -> str:
    return f"one of {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
