"""Inference by workers that share no memory: the same bits as here, also after failures, and nothing is left behind."""

from __future__ import annotations

import errno
from dataclasses import replace

import numpy as np
import pytest

from ecgl_scale.base.events import BlockFinished
from ecgl_scale.engine import journal
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.infer.hops import k_hop_features
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.layout import PassLayout, Planner
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.tasks.scaling import Scaling, fit_standard
from tests.infer.networks import KEEP_LOOPS, assert_close, layers_of, matrix, naive_logits, random_graph
from tests.resources import at

NUM_NODES, NUM_FEATURES = 3000, 20
LAYERS = layers_of(NUM_FEATURES, 33, 7)
SLICES = (PassLayout((0, 8, 12, 20), True), PassLayout((0, 4, 7), True))


@pytest.fixture(scope="module", params=["dense", "sparse"])
def graph(tmp_path_factory, request):
    path = tmp_path_factory.mktemp(request.param) / "g"
    options = KEEP_LOOPS if request.param == "sparse" else None
    return random_graph(path, NUM_NODES, 20_000, NUM_FEATURES, density=0.4, features=request.param, options=options)


def scripted(directory):
    """Blocks that fail before they start, and one whose record never arrives."""
    lost, late = OSError(errno.EIO, "gone"), OSError(errno.ESTALE, "late")
    return ScriptedExecutor(
        directory,
        failures={("infer.layers", 0): [lost, None], ("infer.prepare", 0): [lost, lost, None]},
        after={("infer.layers", 1): late},
    )


def infer(graph, work, executor=None, scaling=None, on_event=None, **chosen):
    settings = InferSettings(**{"backend": "numba", "partitions": 3, **chosen})
    where = at(executor=executor, on_event=on_event or (lambda event: None))
    return infer_logits(graph, LAYERS, where, settings=settings, scaling=scaling, work_directory=work)


@pytest.mark.parametrize(
    "chosen",
    [{}, {"encoder": "sage"}, {"encoder": "sgc"}, {"norm": "sum", "bias_place": "outside"}, {"sources": "halo"}],
    ids=str,
)
def test_the_logits_have_the_same_bits(graph, tmp_path, chosen):
    script = scripted(tmp_path / "counts")
    wanted = infer(graph, tmp_path / "here", **chosen)
    found = infer(graph, tmp_path / "there", script, **chosen)
    assert found.logits.tobytes() == wanted.logits.tobytes()
    assert found.partitions == wanted.partitions == 3
    assert script.times_run("infer.layers", 0) > script.times_run("infer.layers", 2) >= 1
    assert list((tmp_path / "there").iterdir()) == []


def test_slices_in_files_have_the_same_bits(graph, tmp_path, monkeypatch):
    wanted = infer(graph, tmp_path / "here")
    first = (0, 8, 12, 20) if wanted.order[0].startswith("aggregate") else (0, 8, 33)
    passes = (PassLayout(first, True), SLICES[1])
    find = Planner.find
    monkeypatch.setattr(Planner, "find", lambda self, room: replace(find(self, room), passes=passes))
    found = infer(graph, tmp_path / "there", scripted(tmp_path / "counts"))
    assert isinstance(found.logits, np.memmap)
    assert found.logits.tobytes() == wanted.logits.tobytes()
    assert len(list((tmp_path / "there").iterdir())) == 1


@pytest.mark.parametrize("kind", ["row_l2", "standard"])
def test_scaled_features_have_the_same_bits(graph, tmp_path, kind):
    scaling = Scaling(kind) if kind != "standard" else fit_standard(graph.features)
    wanted = infer(graph, tmp_path / "here", scaling=scaling)
    found = infer(graph, tmp_path / "there", scripted(tmp_path / "counts"), scaling=scaling)
    assert found.logits.tobytes() == wanted.logits.tobytes()


@pytest.mark.parametrize("norm", ["sym", "mean"])
def test_propagated_features_have_the_same_bits(graph, tmp_path, norm):
    wanted, found = (
        k_hop_features(graph, 2, at(executor=executor), norm=norm, backend="numba", work_directory=tmp_path / "w")
        for executor in (None, scripted(tmp_path / "counts"))
    )
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("chosen", [{"partitioner": "ldg"}, {"backend": "torch"}], ids=str)
def test_other_partitions_and_backends_agree_to_rounding(graph, tmp_path, chosen):
    found = infer(graph, tmp_path / "there", scripted(tmp_path / "counts"), **chosen)
    assert_close(found.logits, naive_logits(graph, matrix(NUM_NODES, NUM_FEATURES, density=0.4), LAYERS))


def test_what_is_finished_is_not_done_again(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    wanted = infer(graph, tmp_path / "here")
    total = 3 * 2 + (len(graph.features.blocks()) if wanted.order[0].startswith("features") else 0)
    for after in range(1, total + 1):
        work = tmp_path / f"there-{after}"

        def stop(event, after=after):
            if isinstance(event, BlockFinished) and event.done == after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            infer(graph, work, ScriptedExecutor(tmp_path / "counts"), on_event=stop)
        found = infer(graph, work, ScriptedExecutor(tmp_path / "counts"))
        assert found.resumed_partitions == after
        assert found.logits.tobytes() == wanted.logits.tobytes()
        assert list(work.iterdir()) == []


def test_a_damaged_file_is_found_and_made_again(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    wanted, work = infer(graph, tmp_path / "here"), tmp_path / "there"
    refused = InvalidInputError("not this one")
    last = ScriptedExecutor(tmp_path / "last", failures={("infer.layers", 2): [None, refused]})
    with pytest.raises(InvalidInputError):
        infer(graph, work, last)
    directory = max(work.glob("matrix-*"), key=lambda path: int(path.name.removeprefix("matrix-")))
    path = directory / "0.rows"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    found = infer(graph, work, ScriptedExecutor(tmp_path / "counts"))
    before = 3 + (len(graph.features.blocks()) if wanted.order[0].startswith("features") else 0)
    assert found.resumed_partitions == before + 1
    assert found.logits.tobytes() == wanted.logits.tobytes()
    assert infer(graph, work, executor=None).resumed_partitions == 0
