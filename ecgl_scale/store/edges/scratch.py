"""An array that grows on disk where it would not fit in memory, and is then mapped like one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import storage_errors


class ScratchValues:
    """Appends values to a scratch file; ``mapped`` gives them back in memory that is the kernel's to reclaim."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._path = path
        self._dtype = dtype
        self._num_values = 0
        with storage_errors(path):
            self._file = path.open("wb")

    def append(self, values: NDArray[Any]) -> None:
        """Add values at the end."""
        with storage_errors(self._path, needed_bytes=values.nbytes):
            self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._num_values += values.size

    def mapped(self) -> NDArray[Any]:
        """See all values that were appended."""
        with storage_errors(self._path):
            self._file.flush()
            if self._num_values == 0:
                return np.empty(0, self._dtype)
            return np.memmap(self._path, self._dtype, "r", shape=(self._num_values,))

    def __enter__(self) -> ScratchValues:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # what a full disk could not take was said when it was appended or mapped
            self._file.close()
        self._path.unlink(missing_ok=True)
