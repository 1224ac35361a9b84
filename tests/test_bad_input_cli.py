"""Bad input through the real command: the documented exit code, file and row in the message, nothing half-written."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.units import MIB
from tests.faults.running import leftovers, run_cli, run_process, write_graph

pytestmark = pytest.mark.faults

NUM_NODES = 50


@dataclass(frozen=True)
class Folder:
    """An empty folder for input and one for the store, which must stay empty."""

    input: Path
    output: Path
    store: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "store", self.output / "graph.ecgl")

    def refuse(self, code: int, *arguments: object) -> str:
        """Run, and check what holds for every refusal; the message."""
        ran = run_cli(*arguments)
        assert ran.code == code, ran.stderr
        assert ran.stdout == ""
        assert "Traceback" not in ran.stderr
        assert list(self.output.iterdir()) == []
        return ran.stderr

    def refuse_npz(self, **replaced: Any) -> str:
        """Ingest a small npz with some arrays replaced."""
        path = write_graph(self.input / "graph.npz", nodes=NUM_NODES, edges=90, **replaced)
        message = self.refuse(3, "ingest", "npz", path, self.store)
        assert str(path) in message or "graph" in message
        return message

    def refuse_edges(self, text: str, *options: object, name: str = "edges.csv", code: int = 3) -> str:
        """Ingest a text file of edges."""
        (self.input / name).write_text(text)
        message = self.refuse(code, "ingest", "edges", self.input / name, self.store, "--nodes", NUM_NODES, *options)
        assert str(self.input / name) in message
        return message


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    for name in ("input", "output"):
        (tmp_path / name).mkdir()
    return Folder(tmp_path / "input", tmp_path / "output")


def _edges(*, row: int, source: int, target: int, dtype: Any = np.int64) -> Any:
    edge_index = np.zeros((2, 90), dtype)
    edge_index[1] = 1
    edge_index[:, row] = source, target
    return edge_index


@pytest.mark.parametrize(
    ("source", "target", "dtype"),
    [
        (NUM_NODES, 0, np.int64),
        (0, NUM_NODES, np.int64),
        (-1, 0, np.int64),
        (0, -1, np.int32),
        (0, 2**63, np.uint64),
        (2**31 - 1, 0, np.int32),
        (-(2**63), 0, np.int64),
    ],
)
def test_an_edge_to_a_node_that_does_not_exist_is_named_with_file_and_row(
    folder: Folder, source: int, target: int, dtype: Any
) -> None:
    message = folder.refuse_npz(edge_index=_edges(row=37, source=source, target=target, dtype=dtype))
    assert f"edge {source} -> {target}" in message
    assert f"{folder.input}/graph.npz, member edge_index.npy, row 37" in message


@pytest.mark.parametrize(
    ("text", "row", "what"),
    [
        (f"0,1\n1,2\n3,{NUM_NODES}\n", 3, f"3 -> {NUM_NODES}"),
        ("0,1\n-4,2\n", 2, "-4 -> 2"),
        ("0,1\n1,2\n3\n4,5\n", 3, "1 fields"),
        ("0,1\n1,2\n3,4,5\n", 3, "3 fields"),
        ("0,1\n1,2\n3,x\n", 3, "'x' is not a node id"),
        ("0,1\n1.5,2\n", 2, "'1.5' is not a node id"),
        ("0,1\n99999999999999999999,2\n", 2, "is not a node id"),
        ("0,1\n,2\n", 2, "empty"),
        ("src,dst\n0,1\n1,\n", 3, "empty"),
        ("0,1,2\n3,4,5\n", 1, "3 columns"),
    ],
)
def test_a_bad_row_of_a_csv_is_named_with_file_and_row(folder: Folder, text: str, row: int, what: str) -> None:
    message = folder.refuse_edges(text)
    assert what in message
    assert f"edges.csv, row {row}" in message


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_a_text_file_without_edges_is_refused(folder: Folder, text: str) -> None:
    folder.refuse_edges(text)


def test_missing_columns_are_named_with_those_there_are(folder: Folder) -> None:
    assert "'src'" in folder.refuse_edges("a,b\n0,1\n")
    assert "a, b" in folder.refuse_edges("a,b\n0,1\n", "--src", "from", "--dst", "b")
    path = folder.input / "edges.parquet"
    pq.write_table(pa.table({"a": [0], "dst": [1]}), path)
    message = folder.refuse(3, "ingest", "edges", path, folder.store, "--nodes", NUM_NODES)
    assert "'src'" in message
    assert str(path) in message


def test_a_damaged_table_and_a_damaged_gzip_are_refused(folder: Folder) -> None:
    for name in ("edges.parquet", "edges.arrow", "edges.csv.gz", "edges.npz"):
        (folder.input / name).write_bytes(b"PAR1 ARROW1 not really" * 50)
        message = folder.refuse(3, "ingest", "edges", folder.input / name, folder.store, "--nodes", NUM_NODES)
        assert str(folder.input / name) in message


@pytest.mark.parametrize(
    ("replaced", "what"),
    [
        ({"edge_index": np.zeros((3, 90), np.int64)}, "edge_index has shape (3, 90)"),
        ({"edge_index": np.zeros((90, 2), np.int64)}, "edge_index has shape (90, 2)"),
        ({"edge_index": np.zeros(90, np.int64)}, "edge_index has shape (90,)"),
        ({"edge_index": np.zeros((2, 90), np.float64)}, "float64"),
        ({"edge_index": np.zeros((2, 90), bool)}, "bool"),
        ({"edge_index": None}, "edge_index"),
        ({"x": np.zeros((NUM_NODES, 8), np.complex128)}, "complex128"),
        ({"x": np.full((NUM_NODES, 8), "a")}, "strings"),
        ({"x": np.zeros(NUM_NODES, np.float32), "num_nodes": np.array(NUM_NODES)}, f"shape ({NUM_NODES},)"),
        ({"x": np.zeros((NUM_NODES, 8, 1), np.float32)}, f"shape ({NUM_NODES}, 8, 1)"),
        ({"x": np.zeros((NUM_NODES + 1, 8), np.float32), "num_nodes": np.array(NUM_NODES)}, f"({NUM_NODES + 1}, 8)"),
        ({"y": np.zeros(NUM_NODES - 1, np.int64)}, f"({NUM_NODES - 1},)"),
        ({"y": np.zeros(NUM_NODES + 1, np.int64)}, f"({NUM_NODES + 1},)"),
        ({"num_nodes": np.array([1, 2])}, "num_nodes has shape (2,)"),
        ({"num_nodes": np.array(50.0)}, "float64"),
        ({"num_nodes": np.array(-1)}, "num_nodes is -1"),
        ({"num_nodes": np.array(2**62), "x": None, "y": None}, str(2**62)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_dtype_or_shape_is_named(folder: Folder, replaced: dict[str, Any], what: str) -> None:
    assert what in folder.refuse_npz(**replaced)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_feature_that_is_not_finite_is_named_with_its_row_whatever_is_stored(
    folder: Folder, value: float, kind: str
) -> None:
    x = np.ones((NUM_NODES, 8), np.float32)
    x[33, 5] = value
    path = write_graph(folder.input / "graph.npz", nodes=NUM_NODES, edges=90, x=x)
    message = folder.refuse(3, "ingest", "npz", path, folder.store, "--features-as", kind)
    assert f"{path}, member x.npy, row 33" in message


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_sparse_feature_that_is_not_finite_is_named_with_its_row(folder: Folder, value: float, kind: str) -> None:
    x = sparse.random(NUM_NODES, 20, density=0.1, format="csr", dtype=np.float64, random_state=1)
    row = int(np.searchsorted(x.indptr, 41, side="right")) - 1
    x.data[41] = value
    parts = {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": np.array(x.shape)}
    path = write_graph(folder.input / "graph.npz", nodes=NUM_NODES, edges=90, x=None, **parts)
    message = folder.refuse(3, "ingest", "npz", path, folder.store, "--features-as", kind)
    assert f"{path}, member x_data.npy, row {row}" in message


def test_a_feature_too_large_for_float16_says_what_to_do(folder: Folder) -> None:
    x = np.ones((NUM_NODES, 8), np.float32)
    x[7, 2] = 1e6
    path = write_graph(folder.input / "graph.npz", nodes=NUM_NODES, edges=90, x=x)
    message = folder.refuse(3, "ingest", "npz", path, folder.store, "--feature-dtype", "float16")
    assert "row 7, column 2" in message
    assert "float32" in message


@pytest.mark.parametrize("name", ["x_indices", "x_indptr"])
def test_sparse_parts_that_point_outside_are_refused(folder: Folder, name: str) -> None:
    x = sparse.random(NUM_NODES, 20, density=0.1, format="csr", dtype=np.float32, random_state=1)
    parts = {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": np.array(x.shape)}
    for value in (-1, 10**6):
        changed = parts[name].copy()
        changed[20] = value
        message = folder.refuse_npz(x=None, **{**parts, name: changed})
        assert "graph.npz, member x_" in message


@pytest.mark.parametrize(
    ("label", "dtype"), [(-2, np.int64), (2**63, np.uint64), (0.5, np.float64), (np.inf, np.float64)]
)
def test_a_label_that_is_no_class_is_named_with_its_row(folder: Folder, label: float, dtype: Any) -> None:
    y = np.zeros(NUM_NODES, dtype)
    y[11] = label
    assert "graph.npz, member y.npy, row 11" in folder.refuse_npz(y=y)


def test_labels_features_and_columns_of_another_length_are_refused_with_their_file(folder: Folder) -> None:
    edges = folder.input / "edges.csv"
    edges.write_text("0,1\n")
    short = folder.input / "short.npy"
    np.save(short, np.zeros((NUM_NODES - 1, 2), np.float32))
    labels = folder.input / "labels.npy"
    np.save(labels, np.zeros(NUM_NODES + 1, np.int64))
    table = folder.input / "columns.parquet"
    pq.write_table(pa.table({"year": np.zeros(3)}), table)
    for option, path in (("--features", short), ("--labels", labels), ("--columns", table)):
        message = folder.refuse(3, "ingest", "edges", edges, folder.store, "--nodes", NUM_NODES, option, path)
        assert str(path) in message


class _Canary:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_pickles_are_refused_and_never_run(folder: Folder) -> None:
    canary = folder.input / "canary"
    objects = np.array([_Canary(canary)] * NUM_NODES, dtype=object)
    for name in ("x", "y", "year", "edge_index"):
        assert "never unpickle" in folder.refuse_npz(**{name: objects})
    pickled = folder.input / "pickled.npz"
    pickled.write_bytes(pickle.dumps(_Canary(canary)))
    assert str(pickled) in folder.refuse(3, "ingest", "npz", pickled, folder.store)
    edges = folder.input / "edges.csv"
    edges.write_text("0,1\n")
    (folder.input / "x.npy").write_bytes(pickle.dumps(_Canary(canary)))
    np.save(folder.input / "y.npy", objects, allow_pickle=True)
    for option, name in (("--features", "x.npy"), ("--labels", "y.npy"), ("--columns", "pickled.npz")):
        path = folder.input / name
        message = folder.refuse(3, "ingest", "edges", edges, folder.store, "--nodes", NUM_NODES, option, path)
        assert str(path) in message
    assert not canary.exists()
    pickle.loads(pickled.read_bytes())
    assert canary.exists(), "the canary does not sing"


def _npy_header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _write_members(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def test_zip_bombs_and_headers_that_lie_are_refused_in_little_memory(folder: Folder) -> None:
    path = folder.input / "bomb.npz"
    edges = _npy_header((2, 3), "<i8") + np.zeros(6, np.int64).tobytes()
    lies = {
        "a terabyte declared": _npy_header((2**38,)) + b"\0" * 100,
        "a shape past any memory": _npy_header((2**47, 2**40)),
        "a negative shape": _npy_header((-5,)),
        "a header of a gigabyte": b"\x93NUMPY\x02\x00\xff\xff\xff\x3f{",
        "a truncated array": _npy_header((NUM_NODES, 8)) + b"\0" * 10,
        "no header": b"hello",
        "nothing": b"",
    }
    before = own_memory_bytes()
    with PeakSampler() as sampler:
        for content in lies.values():
            _write_members(path, edge_index=edges, x=content)
            assert str(path) in folder.refuse(3, "ingest", "npz", path, folder.store)
        # A declared size that its compressed bytes cannot hold.
        damaged = bytearray(_write_members(path, edge_index=edges, x=lies["a terabyte declared"]).read_bytes())
        entry = damaged.rindex(b"PK\x01\x02")
        damaged[entry + 24 : entry + 28] = (2**31).to_bytes(4, "little")
        path.write_bytes(damaged)
        assert str(path) in folder.refuse(3, "ingest", "npz", path, folder.store)
    assert sampler.peak_bytes - before < 200 * MIB


def test_a_member_that_climbs_out_is_refused(folder: Folder) -> None:
    path = folder.input / "climbing.npz"
    for name in ("../../x", "/etc/x", "a\\..\\x"):
        _write_members(path, **{name: _npy_header((0,))})
        assert str(path) in folder.refuse(3, "ingest", "npz", path, folder.store)


def test_damaged_npz_files_are_refused(folder: Folder) -> None:
    path = write_graph(folder.input / "graph.npz", nodes=NUM_NODES, edges=90)
    whole = path.read_bytes()
    for content in (b"", whole[:100], whole[: len(whole) // 2], whole[:-10], b"\0" * 1000):
        path.write_bytes(content)
        assert str(path) in folder.refuse(3, "ingest", "npz", path, folder.store)
    # A byte of an array: the zip's crc finds it, if only at the end of the member.
    flipped = bytearray(whole)
    flipped[whole.index(b"\x93NUMPY") + 1000] ^= 1
    path.write_bytes(flipped)
    assert str(path) in folder.refuse(3, "ingest", "npz", path, folder.store)


def test_missing_files_directories_and_unknown_types_are_named(folder: Folder) -> None:
    missing, unknown = folder.input / "missing.npz", folder.input / "graph.xyz"
    unknown.write_text("0,1\n")
    edges = folder.input / "edges.csv"
    edges.write_text("0,1\n")
    for arguments in (
        ("npz", missing, folder.store),
        ("npz", folder.input, folder.store),
        ("npz", unknown, folder.store),
        ("edges", folder.input / "missing.csv", folder.store, "--nodes", 5),
        ("edges", folder.input / "*.nothing", folder.store, "--nodes", 5),
        ("edges", folder.input, folder.store, "--nodes", 5),
        ("edges", unknown, folder.store, "--nodes", 5),
        ("edges", edges, folder.store, "--nodes", 5, "--features", unknown),
        ("edges", edges, folder.store, "--nodes", 5, "--features", missing),
        ("edges", edges, folder.store, "--nodes", 5, "--labels", unknown),
        ("edges", edges, folder.store, "--nodes", 5, "--columns", unknown),
        ("ogb", folder.input, folder.store),
        ("dgl", folder.input, folder.store),
    ):
        assert str(folder.input) in folder.refuse(3, "ingest", *arguments)


def test_an_empty_graph_is_refused(folder: Folder) -> None:
    nothing = {"edge_index": np.zeros((2, 0), np.int64), "x": None, "y": None, "year": None}
    assert "empty" in folder.refuse_npz(**nothing, num_nodes=np.array(0))
    assert "number of nodes" in folder.refuse_npz(**nothing)
    with_features = {**nothing, "x": np.zeros((0, 8), np.float32)}
    assert "empty" in folder.refuse_npz(**with_features)


def test_a_graph_of_nodes_without_edges_is_good(folder: Folder) -> None:
    path = write_graph(folder.input / "graph.npz", nodes=NUM_NODES, edge_index=np.zeros((2, 0), np.int64))
    assert run_cli("--quiet", "ingest", "npz", path, folder.store).code == 0
    assert run_cli("verify", folder.store).code == 0


@pytest.mark.parametrize("size", ["lots", "4 gibibytes", "-1GiB", "", "1e9", "GiB"])
def test_a_memory_size_that_makes_no_sense_is_a_usage_error(folder: Folder, size: str) -> None:
    path = write_graph(folder.input / "graph.npz", nodes=NUM_NODES)
    assert "size" in folder.refuse(2, "ingest", "npz", path, folder.store, "--memory", size)


@pytest.mark.parametrize("size", ["0", "1", "10MiB", "60 MiB"])
def test_a_budget_that_is_too_small_is_refused_with_one_that_fits(folder: Folder, size: str) -> None:
    path = write_graph(folder.input / "graph.npz", nodes=NUM_NODES)
    message = folder.refuse(4, "ingest", "npz", path, folder.store, "--memory", size)
    assert "--memory" in message.split("fix:")[1]
    enough = message.split("at least --memory ")[1].split()[0]
    number = int(enough.removesuffix("MiB")) + 8  # this process may have grown a little since
    assert run_cli("--quiet", "ingest", "npz", path, folder.store, "--memory", f"{number}MiB").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["ingest", "npz", "FILE", "STORE", "--no-such-option"],
        ["ingest", "npz", "FILE", "STORE", "--threads", "0"],
        ["ingest", "npz", "FILE", "STORE", "--threads", "many"],
        ["ingest", "npz", "FILE", "STORE", "--features-as", "pickled"],
        ["ingest", "npz", "FILE", "STORE", "--keep-self-loops", "--add-self-loops"],
        ["ingest", "npz", "FILE"],
        ["ingest", "npz"],
        ["ingest", "edges", "FILE", "--nodes", "5"],
        ["ingest", "edges", "FILE", "STORE"],
        ["ingest", "edges", "FILE", "STORE", "--nodes", "0"],
        ["ingest", "edges", "FILE", "STORE", "--nodes", "-3"],
        ["ingest", "unknown", "FILE", "STORE"],
        ["generate", "kron", "STORE"],
        ["generate", "kron", "STORE", "--scale", "0"],
        ["generate", "kron", "STORE", "--scale", "99"],
        ["generate", "sbm", "STORE"],
        ["generate", "sbm", "STORE", "--like", "arxiv", "--nodes", "5"],
        ["generate", "sbm", "STORE", "--like", "facebook"],
        ["generate", "sbm", "STORE", "--like", "arxiv", "--share", "0"],
        ["generate", "sbm", "STORE", "--like", "arxiv", "--share", "2"],
        ["generate", "sbm", "STORE", "--like", "arxiv", "--labelled", "0"],
        ["generate", "sbm", "STORE", "--nodes", "50", "--classes", "2", "--features", "4", "--share", "0.5"],
        ["no-such-command"],
        ["--no-such-option"],
    ],
    ids=" ".join,
)
def test_a_command_line_that_makes_no_sense_ends_with_2(folder: Folder, arguments: list[str]) -> None:
    path = write_graph(folder.input / "graph.npz", nodes=NUM_NODES)
    named = {"FILE": path, "STORE": folder.store}
    folder.refuse(2, *[named.get(argument, argument) for argument in arguments])


def test_a_file_of_another_kind_as_store_is_refused_by_info_and_verify(folder: Folder) -> None:
    path = write_graph(folder.input / "graph.npz")
    for command in ("info", "verify"):
        for target in (path, folder.input, folder.store):
            assert str(target) in folder.refuse(3, command, target)


def test_json_prints_exactly_one_object_on_stdout(folder: Folder) -> None:
    path = write_graph(folder.input / "graph.npz", nodes=NUM_NODES, edges=90)
    for arguments in (
        ("ingest", "npz", path, folder.store, "--json"),
        ("info", folder.store, "--json"),
        ("verify", folder.store, "--json"),
        ("verify", folder.store, "--fast", "--json"),
        ("generate", "kron", folder.output / "kron.ecgl", "--scale", 6, "--json"),
    ):
        ran = run_cli(*arguments)
        assert ran.code == 0
        assert isinstance(json.loads(ran.stdout), dict)
    assert leftovers(folder.output) == []


def test_a_refusal_prints_no_json(folder: Folder) -> None:
    folder.refuse(3, "ingest", "npz", folder.input / "missing.npz", folder.store, "--json")
    folder.refuse(3, "info", folder.store, "--json")
    folder.refuse(3, "verify", folder.store, "--json")


@pytest.mark.parametrize(("name", "code"), [("missing.npz", 3), ("graph.npz", 0)])
def test_a_process_of_its_own_says_the_same(folder: Folder, name: str, code: int) -> None:
    write_graph(folder.input / "graph.npz", nodes=NUM_NODES)
    ran = run_process("ingest", "npz", folder.input / name, folder.store, "--json")
    assert ran.code == code, ran.stderr
    if code == 0:
        assert json.loads(ran.stdout)["num_nodes"] == NUM_NODES
        assert "Traceback" not in ran.stderr
    else:
        assert ran.stdout == ""
        assert str(folder.input / name) in ran.stderr
        assert list(folder.output.iterdir()) == []
    assert leftovers(folder.output) == []
