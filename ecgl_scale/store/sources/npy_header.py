"""The header of an .npy array: parsed without trusting it, refused where numpy would have to unpickle.

Costs a few hundred bytes; a header that claims more than 64 KiB is not read.
"""

from __future__ import annotations

import errno
import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from ecgl_scale.errors import EcglError, InvalidInputError, StorageError

MAX_HEADER_BYTES = 64 << 10
MAX_DIMENSION = 1 << 48


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Turn what can go wrong while reading a file into errors that name it."""
    try:
        yield
    except (EcglError, MemoryError):
        raise
    except FileNotFoundError:
        raise InvalidInputError("there is no such file", where=where, fix="check the path") from None
    except IsADirectoryError:
        raise InvalidInputError("this is a directory", where=where, expected="a file") from None
    except PermissionError:
        raise InvalidInputError("we may not read this file", where=where, fix="check its permissions") from None
    except OSError as error:
        if error.errno in (None, errno.EINVAL):  # a format's own complaint, or an offset that cannot be
            raise InvalidInputError(f"the file is damaged: {error}", where=where) from error
        raise StorageError(f"reading failed: {error}", where=where) from error
    except Exception as error:
        # zipfile, zlib and Arrow raise a dozen types on damaged input; all of them mean just that
        raise InvalidInputError(
            f"the file is damaged: {error or type(error).__name__}", where=where, fix="fetch or write it again"
        ) from error


@dataclass(frozen=True)
class NpyHeader:
    """What an .npy header says of its array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Native byte order: as the blocks come, whatever the file's order is."""
    fortran_order: bool
    stored_dtype: np.dtype[Any]
    header_bytes: int

    @property
    def size(self) -> int:
        """How many values there are."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes the values take."""
        return self.size * self.dtype.itemsize

    @property
    def is_columns(self) -> bool:
        """Whether values of one column lie together, so that rows cannot be streamed."""
        return self.fortran_order and len(self.shape) > 1


class ObjectArrayError(InvalidInputError):
    """The array holds pickled Python objects; some published files have such members beside the ones we read."""


def read_header(stream: IO[bytes], where: object) -> NpyHeader:
    """Read and check the header of an .npy stream, leaving the stream at the first value."""
    prefix = stream.read(8)
    if prefix[:6] != b"\x93NUMPY" or len(prefix) < 8:
        raise InvalidInputError("this is not an .npy array", where=where, expected="a file or member made by numpy")
    major = prefix[6]
    if major not in (1, 2):
        raise InvalidInputError(f"unsupported .npy version {major}", where=where, expected="version 1 or 2")
    length = stream.read(2 if major == 1 else 4)
    num_bytes = int.from_bytes(length, "little")
    # numpy reads the whole header before it looks at its length
    if num_bytes > MAX_HEADER_BYTES:
        raise InvalidInputError(f"the .npy header claims {num_bytes} bytes", where=where, expected="a few hundred")
    text = stream.read(num_bytes)
    if len(text) < num_bytes:
        raise InvalidInputError("the .npy header is truncated", where=where)
    parse = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a header written by Python 2 is as good
            shape, fortran_order, dtype = parse(io.BytesIO(length + text), max_header_size=MAX_HEADER_BYTES)
    except Exception as error:
        raise InvalidInputError(f"the .npy header makes no sense: {error}", where=where) from error
    _check_header(shape, dtype, where)
    return NpyHeader(shape, dtype.newbyteorder("="), fortran_order, dtype, 8 + len(length) + num_bytes)


def _check_header(shape: tuple[int, ...], dtype: np.dtype[Any], where: object) -> None:
    if dtype.hasobject:
        raise ObjectArrayError(
            "the array holds Python objects (pickled); we never unpickle",
            where=where,
            fix="save it again as numbers, with numpy.savez(..., allow_pickle=False)",
        )
    if dtype.kind not in "biufcmMSU" or dtype.itemsize == 0:
        raise InvalidInputError(f"the array has structured or odd dtype {dtype}", where=where, expected="plain numbers")
    if len(shape) > 32 or any(length < 0 for length in shape):
        raise InvalidInputError(f"the array has impossible shape {shape}", where=where)
    if any(length > MAX_DIMENSION for length in shape) or math.prod(shape) * dtype.itemsize >= 1 << 62:
        raise InvalidInputError(f"the array claims a huge shape {shape}", where=where)
