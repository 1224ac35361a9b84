"""Streams of .npy and .npz arrays: what comes out is what went in, and nothing dangerous comes in."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.sources.npy import open_npy, open_npz
from ecgl_scale.units import MIB

DTYPES = st.sampled_from(["<i4", ">i4", "<i8", "u1", "<u2", ">f8", "<f4", "<f2", "?"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9))
)
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Canary:
    """Leaves a file behind when somebody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


def npy_bytes(array: np.ndarray, **changes: object) -> bytes:
    """Give an .npy file of ``array`` whose header may lie."""
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | changes
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + array.tobytes()


def write_zip(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@FEW
@given(array=ARRAYS, max_rows=st.integers(1, 12), compressed=st.booleans(), fortran=st.booleans())
def test_blocks_of_any_size_give_the_array_back(tmp_path, array, max_rows, compressed, fortran):
    array = np.asfortranarray(array) if fortran else array
    (np.savez_compressed if compressed else np.savez)(tmp_path / "a.npz", a=array)
    np.save(tmp_path / "a.npy", array)
    npz, npy = open_npz(tmp_path / "a.npz"), open_npy(tmp_path / "a.npy")
    for blocks in (list(npz.blocks("a", max_rows)), list(npy.blocks(max_rows))):
        assert all(len(block) <= max_rows for block in blocks)
        assert all(block.dtype == array.dtype.newbyteorder("=") for block in blocks)
        joined = np.concatenate(blocks) if blocks else array[:0]
        np.testing.assert_array_equal(joined, array)
    np.testing.assert_array_equal(npz.load("a"), array)
    np.testing.assert_array_equal(npy.load(), array)
    assert npz.members["a"].shape == npy.shape == array.shape


@FEW
@given(array=ARRAYS, ends=st.tuples(st.integers(0, 800), st.integers(0, 800)), items=st.integers(1, 50))
def test_flat_ranges_are_those_of_the_flattened_array(tmp_path, array, ends, items):
    start, stop = sorted(min(end, array.size) for end in ends)
    np.savez_compressed(tmp_path / "a.npz", a=array)
    np.save(tmp_path / "a.npy", array)
    streams = (
        open_npz(tmp_path / "a.npz").flat_blocks("a", start, stop, items),
        open_npy(tmp_path / "a.npy").flat_blocks(start, stop, items),
    )
    for blocks in map(list, streams):
        joined = np.concatenate(blocks) if blocks else array.reshape(-1)[:0]
        np.testing.assert_array_equal(joined, array.reshape(-1)[start:stop])


def test_two_handles_stream_the_rows_of_an_edge_index_in_lockstep(tmp_path):
    edges = np.arange(2_000, dtype=np.int32).reshape(2, -1)
    np.savez_compressed(tmp_path / "a.npz", e=edges)
    file = open_npz(tmp_path / "a.npz")
    for src, dst in zip(file.flat_blocks("e", 0, 1000, 7), file.flat_blocks("e", 1000, 2000, 7), strict=True):
        np.testing.assert_array_equal(dst - src, 1000)


def test_an_error_of_the_reader_of_a_cursor_keeps_its_type(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(3))
    with pytest.raises(KeyError), open_npz(tmp_path / "a.npz").cursor("a"):
        raise KeyError


def test_pickled_objects_are_refused_and_never_run(tmp_path):
    target = tmp_path / "ran"
    np.savez(tmp_path / "a.npz", good=np.arange(3), a=np.array([Canary(target)], dtype=object))
    np.save(tmp_path / "a.npy", np.array([Canary(target)], dtype=object), allow_pickle=True)
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Canary(target)))
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Canary(target)))
    write_zip(tmp_path / "c.npz", {"a.npy": pickle.dumps(Canary(target))})
    with pytest.raises(InvalidInputError, match="we never unpickle"):
        open_npz(tmp_path / "a.npz")
    with pytest.raises(InvalidInputError, match="we never unpickle"):
        open_npy(tmp_path / "a.npy")
    with pytest.raises(InvalidInputError, match=r"not an .npz file"):
        open_npz(tmp_path / "b.npz")
    with pytest.raises(InvalidInputError, match=r"not an .npy array"):
        open_npy(tmp_path / "b.npy")
    with pytest.raises(InvalidInputError, match=r"not an .npy array"):
        open_npz(tmp_path / "c.npz")
    file = open_npz(tmp_path / "a.npz", skip_objects=True)
    assert (set(file.members), file.skipped) == ({"good"}, ("a",))
    with pytest.raises(InvalidInputError, match="no array 'a'"):
        file.load("a")
    assert not target.exists()


GOOD = npy_bytes(np.arange(4))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"/a.npy": GOOD}, "climbs out"),
        ({"../a.npy": GOOD}, "climbs out"),
        ({"b/../../a.npy": GOOD}, "climbs out"),
        ({"C:a.npy": GOOD}, "climbs out"),
        ({"a.txt": b"hello"}, "not an .npy array"),
        ({"a.npy": b"hello"}, "not an .npy array"),
        ({"a.npy": b"\x93NUMPY\x07\x00" + GOOD[8:]}, "version 7"),
        ({"a.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + b" " * 99}, "claims 2147483648 bytes"),
        ({"a.npy": GOOD[:40]}, "header is truncated"),
        ({"a.npy": GOOD[:10] + b"(" * 64 + GOOD[74:]}, "header makes no sense"),
        ({"a.npy": npy_bytes(np.zeros(2, "i4,f4"), descr=[("a", "<i4"), ("b", "<f4")])}, "structured"),
        ({"a.npy": npy_bytes(np.arange(4), shape=(-4,))}, "impossible shape"),
        ({"a.npy": npy_bytes(np.arange(4), shape=(0, 1 << 60))}, "huge shape"),
        ({"a.npy": npy_bytes(np.arange(4), shape=(1 << 40, 1 << 40))}, "huge shape"),
        ({"a.npy": npy_bytes(np.arange(4), shape=(1 << 37,))}, "not what its header says"),
        ({"a.npy": npy_bytes(np.arange(4), shape=(5,))}, "not what its header says"),
        ({"a.npy": GOOD + b"more"}, "not what its header says"),
    ],
)
def test_members_that_lie_are_refused(tmp_path, members, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        open_npz(write_zip(tmp_path / "a.npz", members))
    assert "a.npz, member" in str(caught.value)


def test_duplicate_members_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", GOOD)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", GOOD)
    with pytest.raises(InvalidInputError, match="same name"):
        open_npz(tmp_path / "a.npz")


def test_other_compression_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="unsupported compression"):
        open_npz(write_zip(tmp_path / "a.npz", {"a.npy": GOOD}, zipfile.ZIP_LZMA))


def test_encrypted_members_are_refused(tmp_path):
    raw = bytearray(write_zip(tmp_path / "a.npz", {"a.npy": GOOD}).read_bytes())
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.npz").write_bytes(raw)
    with pytest.raises(InvalidInputError, match="encrypted"):
        open_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("content", [b"", b"hello, this is text\n", b"PK\x03\x04 cut off"])
def test_files_that_are_no_zip_are_refused(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"not an .npz file"):
        open_npz(tmp_path / "a.npz")


def test_missing_files_are_named(tmp_path):
    for opener in (open_npz, open_npy):
        with pytest.raises(InvalidInputError, match=r"no such file\n.*nowhere"):
            opener(tmp_path / "nowhere")


@pytest.mark.parametrize(("change", "message"), [(-1, "truncated"), (+1, "longer than its header")])
def test_npy_files_of_another_size_are_refused(tmp_path, change, message):
    content = GOOD[:change] if change < 0 else GOOD + b"x"
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        open_npy(tmp_path / "a.npy")


def test_a_flipped_byte_is_found_by_the_zip_checksum(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(1000))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[2000] ^= 1
    (tmp_path / "a.npz").write_bytes(raw)
    with pytest.raises(InvalidInputError, match=r"damaged.*CRC"):
        list(open_npz(tmp_path / "a.npz").blocks("a", 100))


def test_a_broken_deflate_stream_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", a=np.random.default_rng(0).random(10_000))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[5_000:9_000] = b"\xff" * 4_000
    (tmp_path / "a.npz").write_bytes(raw)
    with pytest.raises(InvalidInputError, match=r"damaged|truncated"):
        list(open_npz(tmp_path / "a.npz").blocks("a", 100))


def lie_about_size(path: Path, size: int) -> None:
    """Make the directory of a one-member zip claim ``size`` bytes."""
    raw = bytearray(path.read_bytes())
    struct.pack_into("<I", raw, raw.index(b"PK\x01\x02") + 24, size)
    path.write_bytes(raw)


def test_a_member_that_gives_less_than_declared_is_truncated(tmp_path):
    path = write_zip(tmp_path / "a.npz", {"a.npy": npy_bytes(np.arange(4), shape=(500,))})
    lie_about_size(path, len(GOOD) - 32 + 4000)
    with pytest.raises(InvalidInputError, match=r"damaged|truncated"):
        list(open_npz(path).blocks("a", 100))


def test_a_member_that_gives_more_than_declared_is_cut_and_refused(tmp_path):
    path = write_zip(tmp_path / "a.npz", {"a.npy": GOOD + bytes(50 * MIB)})
    lie_about_size(path, len(GOOD))
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="CRC"):
        list(open_npz(path).blocks("a", 100))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * MIB


def test_zip_bombs_stay_small(tmp_path):
    terabyte = npy_bytes(np.zeros(1), shape=(1 << 37,))
    honest = tmp_path / "b.npz"
    with zipfile.ZipFile(honest, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as stream:
        stream.write(npy_bytes(np.zeros(0), shape=(256 * MIB // 8,)))
        for _ in range(256):
            stream.write(bytes(MIB))
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="not what its header says"):
        open_npz(write_zip(tmp_path / "a.npz", {"a.npy": terabyte}))
    lying = write_zip(tmp_path / "c.npz", {"a.npy": npy_bytes(np.zeros(1), shape=(1 << 28,))})
    lie_about_size(lying, (1 << 31) + 128)
    with pytest.raises(InvalidInputError, match="claims 2 GiB from"):
        open_npz(lying)
    file = open_npz(honest)
    with pytest.raises(InvalidInputError, match="too large to be read whole"):
        file.load("a")
    assert sum(len(block) for block in file.blocks("a", MIB)) == 32 * MIB
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * MIB


def test_large_fortran_arrays_are_refused_with_the_way_out(tmp_path):
    path = tmp_path / "a.npy"
    content = npy_bytes(np.zeros(0), shape=(10_000_000, 2), fortran_order=True)
    with path.open("wb") as stream:
        stream.write(content)
        stream.truncate(len(content) + 160_000_000)
    with pytest.raises(InvalidInputError, match=r"Fortran order[\s\S]*ascontiguousarray"):
        next(open_npy(path).blocks(10))


def test_a_single_value_has_no_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.int64(3))
    assert open_npy(tmp_path / "a.npy").load() == 3
    with pytest.raises(InvalidInputError, match="single value"):
        next(open_npy(tmp_path / "a.npy").blocks(1))
