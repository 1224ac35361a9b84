"""The place of the lowest bit of a word in one instruction; numba has it only under a name it calls unsafe."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(typing_context: Any, bits: Any) -> Any:
    """Place of the lowest bit of ``bits`` (uint64) that is set, from 0; 64 if there is none."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        is_zero_undefined = ir.Constant(ir.IntType(1), 0)
        return builder.cttz(arguments[0], is_zero_undefined)

    return types.int64(bits), generate
