from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from ecgl_scale.base.arrow import as_arrow, as_numpy, numbers_as_arrow, texts_as_arrow


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "float16", "float32", "float64", "bool"])
@pytest.mark.parametrize("size", [0, 1, 9, 64])
def test_columns_go_to_arrow_and_back(dtype: str, size: int) -> None:
    values = np.random.default_rng(size).integers(0, 2, size).astype(dtype)
    column = as_arrow(values)
    assert column.equals(pa.array(values))
    part = column.slice(size // 3, size // 2)
    for found, wanted in ((as_numpy(column), values), (as_numpy(part), values[size // 3 :][: size // 2])):
        assert found.dtype == values.dtype
        assert not found.flags.writeable
        assert np.array_equal(found, wanted)


def test_nulls_are_refused_and_other_types_are_left_to_arrow() -> None:
    with pytest.raises(pa.ArrowInvalid, match="1 nulls"):
        as_numpy(pa.array([1, None]))
    assert as_numpy(pa.array(["a", "b"])).tolist() == ["a", "b"]


def test_lists_may_lack_values() -> None:
    for texts in (["a", None, "äb", ""], ["x"], [None], []):
        assert texts_as_arrow(texts).equals(pa.array(texts, pa.string()))
    for numbers in ([1, None, 3], [4], [None], []):
        for kind in (pa.int64(), pa.float64()):
            assert numbers_as_arrow(numbers, kind).equals(pa.array(numbers, kind))


def test_pandas_is_not_imported() -> None:
    code = (
        "import sys, numpy as np, pyarrow as pa\n"
        "from ecgl_scale.base.arrow import as_arrow, as_numpy, numbers_as_arrow, texts_as_arrow\n"
        "as_numpy(as_arrow(np.arange(3))), texts_as_arrow(['a', None]), numbers_as_arrow([1, None], pa.int64())\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
