"""The one loop we do not leave to the vectoriser: add up rows of a matrix that an index list names.

Rows are narrow (4 to 64 columns), and with a constant width LLVM unrolls the inner loop before it can vectorise it;
with a variable one it spends more on the check and the remainder than on the adding. Here the sums are one vector
of ``width`` float32 in registers, and the rows that come ``AHEAD`` places later are prefetched, as no hardware can
guess them. Measured on Kronecker scale 22: a third of the time of the plain loop at 16 columns.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

AHEAD, AHEAD_WIDE = 32, 64
"""Rows between a prefetch and its use, where all of a row is up to two cache lines and where it is more."""
LINE_BYTES = 64

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_FLOAT, _HALF = ir.FloatType(), ir.HalfType()


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def sum_rows(
    typing_context: Any, indices: Any, start: Any, stop: Any, x: Any, column: Any, width: Any, scale: Any, sums: Any
) -> Any:
    """sums[:width] = sum over p in [start, stop) of scale[u] * x[u, column:column + width], u = indices[p]; float32.

    ``width`` is a constant; ``scale`` a float32 array, or None for ones; ``x`` float32, or float16 seen as uint16.
    Rows are added in the order of ``indices``, so a column's sum depends on neither ``width`` nor ``column``.
    """
    del typing_context
    num_columns = width.literal_value
    is_scaled = scale != types.none

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def array_of(position: int) -> Any:
            return context.make_array(signature.args[position])(context, builder, arguments[position])

        index_array, x_array = array_of(0), array_of(3)
        stride = builder.extract_value(x_array.shape, 1)
        is_half = isinstance(x_array.data.type.pointee, ir.IntType)
        item_bytes = 2 if is_half else 4
        is_wide = builder.icmp_signed(">", stride, ir.Constant(_I64, 2 * LINE_BYTES // item_bytes))
        ahead = builder.select(is_wide, ir.Constant(_I64, AHEAD_WIDE), ir.Constant(_I64, AHEAD))
        row_type = ir.VectorType(_HALF if is_half else _FLOAT, num_columns)
        sum_type = ir.VectorType(_FLOAT, num_columns)
        start, stop, column = (context.cast(builder, arguments[i], signature.args[i], types.int64) for i in (1, 2, 4))
        last = builder.sub(builder.extract_value(index_array.shape, 0), ir.Constant(_I64, 1))
        total = cgutils.alloca_once(builder, sum_type)
        builder.store(ir.Constant(sum_type, None), total)

        def index_at(place: Any) -> Any:
            index = builder.load(builder.gep(index_array.data, [place]))
            return index if index.type.width == 64 else builder.zext(index, _I64)

        def row_at(index: Any) -> Any:
            return builder.gep(x_array.data, [builder.add(builder.mul(index, stride), column)])

        with cgutils.for_range_slice(builder, start, stop, ir.Constant(_I64, 1), intp=_I64) as (place, _):
            later = builder.add(place, ahead)
            later = builder.select(builder.icmp_signed("<", later, last), later, last)
            _prefetch(builder, row_at(index_at(later)), num_columns * item_bytes)
            index = index_at(place)
            row = builder.load(builder.bitcast(row_at(index), row_type.as_pointer()), align=item_bytes)
            if is_half:
                row = builder.fpext(row, sum_type)
            if is_scaled:
                factor = builder.load(builder.gep(array_of(6).data, [index]))
                row = builder.fmul(row, _spread(builder, factor, sum_type))
            builder.store(builder.fadd(builder.load(total), row), total)
        builder.store(builder.load(total), builder.bitcast(array_of(7).data, sum_type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(indices, start, stop, x, column, width, scale, sums), generate


def _prefetch(builder: Any, address: Any, num_bytes: int) -> None:
    byte = builder.bitcast(address, _I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [_I8.as_pointer()], kind)
    # Into L2, not L1: a core waits for few lines at once in L1 (Zen 4: 24) and for many more in L2. On
    # Kronecker scale 22 with 100 columns that, and fetching further ahead, takes half the time.
    to_read, second_level, is_data = (ir.Constant(_I32, value) for value in (0, 2, 1))
    for offset in range(0, num_bytes, LINE_BYTES):
        line = builder.gep(byte, [ir.Constant(_I64, offset)])
        builder.call(prefetch, [line, to_read, second_level, is_data])


def _spread(builder: Any, value: Any, vector_type: Any) -> Any:
    """A vector whose elements are all ``value``."""
    one = builder.insert_element(ir.Constant(vector_type, ir.Undefined), value, ir.Constant(_I32, 0))
    mask = ir.Constant(ir.VectorType(_I32, vector_type.count), None)
    return builder.shuffle_vector(one, ir.Constant(vector_type, ir.Undefined), mask)
