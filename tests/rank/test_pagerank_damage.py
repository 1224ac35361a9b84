"""A damaged tile is found by the sweep that reads it first, however it is read."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.base.events import BlockFinished
from ecgl_scale.errors import CorruptStoreError
from ecgl_scale.rank import tile_stream
from ecgl_scale.rank.pagerank import PageRankSettings, rank_importance
from ecgl_scale.store import graph as graph_module
from ecgl_scale.store.edges.read import TileStore
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.ragged import write_ragged
from tests.resources import at
from tests.store.graphs import random_edges


@pytest.fixture
def unread(tmp_path, monkeypatch):
    """A store that was not read whole when it was opened, as a large one is not."""
    monkeypatch.setattr(graph_module, "READ_WHOLE_BELOW_BYTES", 0)
    monkeypatch.setattr(tile_stream, "PIECE_BYTES", 1 << 14)
    edges = random_edges(140_000, 30_000, seed=6)
    return GraphStore.from_edge_index(edges, path=tmp_path / "store", num_nodes=140_000)


def flip(path, position, bit=0):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("is_resident", [True, False], ids=["mapped", "direct"])
@pytest.mark.parametrize("place", ["head", "first edge", "middle", "last edge", "end"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_flipped_bit_in_the_tiles_is_found_in_the_first_sweep(unread, monkeypatch, is_resident, place, number):
    monkeypatch.setattr(tile_stream, "_is_resident", lambda values: is_resident)
    block = unread.tiles.blocks()[number]
    path = unread.tiles.path(block)
    tiles = unread.tiles.map_unchecked(block)
    positions = {
        "head": 9,
        "first edge": tiles.values_start,
        "middle": tiles.values_start + tiles.values.nbytes // 2 + 1,
        "last edge": tiles.values_start + tiles.values.nbytes - 1,
        "end": path.stat().st_size - 1,
    }
    del tiles
    flip(path, positions[place])
    swept = []
    with pytest.raises(CorruptStoreError, match=re.escape(str(path))):
        rank_importance(unread, at(on_event=swept.append, threads=2))
    assert not [event for event in swept if isinstance(event, BlockFinished)]


def test_a_bit_flipped_anywhere_in_the_tiles_is_found(unread):
    block = unread.tiles.blocks()[0]
    path = unread.tiles.path(block)
    good = path.read_bytes()
    tiles = unread.tiles.map_unchecked(block)
    start, stop = tiles.values_start, tiles.values_start + tiles.values.nbytes
    del tiles
    random = np.random.default_rng(7)
    outside = [*range(start), *range(stop, len(good))]
    places = [*random.choice(outside, 40), *random.integers(start, stop, 10)]
    for place in places:
        path.unlink()  # never write where a map may still look
        path.write_bytes(good)
        flip(path, place, int(random.integers(8)))
        with pytest.raises(CorruptStoreError):
            rank_importance(unread, at(threads=1), settings=PageRankSettings(max_iter=1))


@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.float32])
def test_tiles_of_another_type_are_refused_though_their_checksum_is_right(unread, monkeypatch, dtype):
    block = unread.tiles.blocks()[0]
    path = unread.tiles.path(block)
    tiles = unread.tiles.read(block)
    path.rename(path.with_name("aside"))
    written = {block.index: write_ragged(path, tiles.offsets, tiles.values.astype(dtype), {})}
    expected = TileStore.expected

    def forged(self: TileStore, asked: graph_module.EdgeStore) -> WrittenFile:
        return written.get(asked.index) or expected(self, asked)

    monkeypatch.setattr(TileStore, "expected", forged)
    with pytest.raises(CorruptStoreError, match="tiles"):
        rank_importance(unread, at(), settings=PageRankSettings(max_iter=1))


def test_a_missing_or_short_tile_file_is_refused(unread):
    path = unread.tiles.path(unread.tiles.blocks()[1])
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CorruptStoreError):
        rank_importance(unread, at())
