"""Which failures of a block are worth another try, by whoever runs blocks outside this process.

Another try helps where the machine or the network was at fault. It does not help where the input, the config or the
memory is: the same block would be refused again, and a disk that is full stays full.
"""

from __future__ import annotations

import errno

from ecgl_scale.errors import EcglError, StorageError

MAX_TRIES = 3

_PASSING = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.ECONNABORTED,
    errno.EHOSTUNREACH,
}


def is_worth_another_try(error: BaseException) -> bool:
    """Whether the same block may succeed elsewhere or later."""
    if isinstance(error, StorageError):
        cause = error.__cause__
        return isinstance(cause, OSError) and cause.errno in _PASSING
    if isinstance(error, OSError):
        return error.errno in _PASSING
    return isinstance(error, Exception) and not isinstance(error, EcglError | MemoryError)
