"""Compiled kernels on disk: used again, never mixed up by processes that compile at once, void after any edit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache

from ecgl_kernels import _cache
from ecgl_kernels._cache import _KernelFiles, kernel_cache
from ecgl_kernels._jit import kernel
from ecgl_kernels.diversity import count_columns


@pytest.fixture(autouse=True)
def own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))


def count_again(dispatcher: Any) -> Any:
    """A new dispatcher of the same kernel, as another process has it, called once."""
    counts = np.zeros(3, np.int64)
    again: Any = kernel(dispatcher.py_func)
    again(np.array([2, 0, 2]), counts)
    assert counts.tolist() == [1, 0, 2]
    return again


def test_a_kernel_is_compiled_once_for_all_processes() -> None:
    count_again(count_columns)
    assert sum(count_again(count_columns).stats.cache_hits.values()) == 1


def test_an_edit_of_any_file_of_the_package_voids_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"_bits.py", "diversity.py", "random.py"} <= {name for name, _, _ in _cache._package_stamp()}
    count_again(count_columns)
    with monkeypatch.context() as edited:
        edited.setattr(_cache, "_package_stamp", lambda: (("random.py", 1, 1),))
        assert not count_again(count_columns).stats.cache_hits
    assert not count_again(count_columns).stats.cache_hits


def code_after_saving_at_once(kind: type[IndexDataCacheFile], directory: Path) -> str | None:
    """The code found for ``a``, where the process that saves ``b`` has read its index before ``a`` was in it.

    The index of ``b`` is written first, so it is lost; its code last.
    """
    directory.mkdir()
    first, second = (kind(str(directory), "kernel", 0) for _ in range(2))
    second._load_index = dict
    second._save_index = lambda overloads: None
    first.save("a", "code of a")
    second.save("b", "code of b")
    code: str | None = kind(str(directory), "kernel", 0).load("a")
    return code


def test_two_processes_that_save_at_once_never_mix_up_their_code(tmp_path: Path) -> None:
    assert code_after_saving_at_once(_KernelFiles, tmp_path / "ours") == "code of a"
    # Why there is a cache of our own: once numba passes this, ours may go.
    assert code_after_saving_at_once(IndexDataCacheFile, tmp_path / "numba") == "code of b"


def test_where_nothing_can_be_written_kernels_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])
    assert isinstance(kernel_cache(count_columns.py_func), NullCache)  # type: ignore[attr-defined]
    assert not count_again(count_columns).stats.cache_hits
