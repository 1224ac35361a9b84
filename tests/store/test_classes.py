"""Labels as users have them: words, numbers with gaps, and most of them missing, from every source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.build import build_store
from ecgl_scale.store.classes import name_classes
from ecgl_scale.store.source import GraphSource
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.sources.edges import open_edge_files
from ecgl_scale.store.sources.npz import open_npz_source
from tests.resources import at

EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
WORDS = ["main", None, "contrib", "main", None]
WORD_NUMBERS = [0, -1, 1, 0, -1]


def built(source: GraphSource, path: Path) -> GraphStore:
    build_store(source, path, at())
    return GraphStore.open(path)


def of_labels(labels: object, path: Path) -> GraphStore:
    return GraphStore.from_edge_index(EDGES, y=labels, num_nodes=5, path=path)


@pytest.mark.parametrize(
    ("labels", "numbers", "names"),
    [
        ([1, 2, 6, 3, 1], [0, 1, 3, 2, 0], ("1", "2", "3", "6")),
        ([5, 0, 2, -1, 2], [2, 0, 1, -1, 1], ("0", "2", "5")),
        ([2.0, np.nan, 7.0, np.nan, 2.0], [0, -1, 1, -1, 0], ("2", "7")),
        ([2**40, -1, -1, -1, 3], [1, -1, -1, -1, 0], ("3", str(2**40))),
        ([2, 0, 1, -1, 0], [2, 0, 1, -1, 0], None),
        ([False, True, True, False, True], [0, 1, 1, 0, 1], None),
        ([-1] * 5, [-1] * 5, None),
        (["b", "a", "b", "c", "a"], [0, 1, 0, 2, 1], ("b", "a", "c")),
        (["b", "", "-1", "nan", "a"], [0, -1, -1, -1, 1], ("b", "a")),
        (WORDS, WORD_NUMBERS, ("main", "contrib")),
        (pa.array(WORDS).dictionary_encode(), WORD_NUMBERS, ("main", "contrib")),
        (np.array(WORDS, object), WORD_NUMBERS, ("main", "contrib")),
        (np.array([b"x", b"y", b"x", b"", b"y"]), [0, 1, 0, -1, 1], ("x", "y")),
    ],
)
def test_labels_become_class_numbers_and_keep_their_names(
    tmp_path: Path, labels: object, numbers: list[int], names: tuple[str, ...] | None
) -> None:
    graph = of_labels(labels, tmp_path / "g.ecgl")
    assert graph.column("label").tolist() == numbers
    assert graph.class_names == names
    assert graph.num_classes == max(numbers) + 1
    for label in set(numbers) - {-1}:
        assert graph.class_name(label) == (str(label) if names is None else names[label])
    if names is None:
        assert "class_names" not in (tmp_path / "g.ecgl" / "manifest.json").read_text()


def test_names_are_part_of_the_identity(tmp_path: Path) -> None:
    first, second = (of_labels([word, *"abcb"], tmp_path / f"{word}.ecgl") for word in "xy")
    assert first.column("label").tolist() == second.column("label").tolist()
    assert first.identity != second.identity


def test_words_come_from_every_file_that_can_hold_them(tmp_path: Path) -> None:
    words = np.array([word or "" for word in WORDS])
    np.savez(tmp_path / "g.npz", edge_index=EDGES, y=words, num_nodes=5)
    np.save(tmp_path / "y.npy", words)
    column = pa.array(WORDS)
    for name, labels in (
        ("plain", column),
        ("large", column.cast(pa.large_string())),
        ("dictionary", column.dictionary_encode()),
    ):
        pq.write_table(pa.table({"node": range(5), "label": labels}), tmp_path / f"{name}.parquet")
        with pa.ipc.new_file(str(tmp_path / f"{name}.arrow"), pa.schema([("label", labels.type)])) as writer:
            writer.write_table(pa.table({"label": labels}))
    (tmp_path / "y.csv").write_text("node,label\n" + "".join(f"{row},{word}\n" for row, word in enumerate(words)))
    (tmp_path / "e.csv").write_text("0,1\n1,2\n2,3\n3,4\n")
    sources = [open_npz_source(tmp_path / "g.npz")]
    for path in sorted(
        [*tmp_path.glob("*.parquet"), *tmp_path.glob("*.arrow"), tmp_path / "y.npy", tmp_path / "y.csv"]
    ):
        sources.append(open_edge_files([tmp_path / "e.csv"], num_nodes=5, labels=path))
        if path.suffix in (".parquet", ".arrow"):
            sources.append(open_edge_files([tmp_path / "e.csv"], num_nodes=5, columns=path))
    assert len(sources) == 15
    for index, source in enumerate(sources):
        graph = built(source, tmp_path / f"{index}.ecgl")
        assert graph.column("label").tolist() == WORD_NUMBERS, source.provenance
        assert graph.class_names == ("main", "contrib"), source.provenance


def test_numbers_with_nulls_and_gaps_come_from_tables_and_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": pa.array([7, None, 3, None, 7])}), tmp_path / "y.parquet")
    (tmp_path / "y.csv").write_text("label\n7\n-1\n3\n-1\n7\n")
    (tmp_path / "e.csv").write_text("0,1\n1,2\n")
    for name in ("y.parquet", "y.csv"):
        source = open_edge_files([tmp_path / "e.csv"], num_nodes=5, labels=tmp_path / name)
        graph = built(source, tmp_path / f"{name}.ecgl")
        assert graph.column("label").tolist() == [1, -1, 0, -1, 1]
        assert graph.class_names == ("3", "7")


def test_known_classes_keep_their_numbers_and_new_ones_follow() -> None:
    def numbered(labels: list[object], known: list[str]) -> tuple[list[int], tuple[str, ...] | None, int | None]:
        source, names = name_classes(array_source(EDGES, y=labels, num_nodes=len(labels)), known)
        [column] = source.number_columns
        assert source.is_part
        return np.concatenate(list(column.blocks(2))).tolist(), names, source.num_classes

    assert numbered(["z", "a", "y"], ["a", "b"]) == ([2, 0, 3], ("a", "b", "z", "y"), 4)
    assert numbered([3, 2, -1], ["0", "1"]) == ([3, 2, -1], None, 4)
    assert numbered([1, 0, -1], ["0", "1", "2"]) == ([1, 0, -1], None, 3)
    assert numbered([7, 0, 5], ["0", "1"]) == ([3, 0, 2], ("0", "1", "5", "7"), 4)
    assert numbered([7, 1, 5], ["7", "a"]) == ([0, 2, 3], ("7", "a", "1", "5"), 4)


def test_negative_labels_and_keys_instead_of_classes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInputError, match=r"label -2 is not a class[\s\S]*row 3"):
        of_labels([0, 1, 0, -2, 1], tmp_path / "g.ecgl")
    monkeypatch.setattr("ecgl_scale.store.classes.MAX_CLASSES", 3)
    for labels in ([10, 20, 30, 40, 50], list("abcde")):
        with pytest.raises(InvalidInputError, match="more than 3 different labels"):
            of_labels(labels, tmp_path / "g.ecgl")
    assert list(tmp_path.iterdir()) == []
