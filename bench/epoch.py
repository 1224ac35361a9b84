"""An epoch of training: ours, rows in memory and on disk, against torch's full batch; MLP against full-graph GCN.

    python -m bench.epoch [--rows 200000 1469417] [--products-share 0.1] [--epochs 6] [--repeats 2]

Every candidate is a process of its own, and they take turns; each trains the same weights (features -> 256 -> classes,
Adam) on the same labels for some epochs, of which the first is not counted; what an epoch takes is forward, loss,
backward and step. Rows, features and graphs are there before the clock starts; the page cache is warm.

    rows    products-like features. torch: one full batch in memory, autograd, torch.optim.Adam. memory, disk: ours
    graphs  60 % of the nodes are trained on. dgl_gcn: two GraphConv over the whole graph. mlp: ours on those rows;
            torch_mlp: torch's full batch on them, which shows how much of the gain is the method's and how much is ours
            dgl_sampled, products only, as the paper trains there: batches of 8000 with sampled neighbours, a step
            each; some of them are timed, and an epoch is that times their number

Losses of all candidates of a case must agree where they compute the same thing; that is in the record.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.harness import DEFAULT_WORK, run_measured, save, spread
from bench.inference import BATCH_ROWS, FAN_OUTS
from ecgl_scale.engine.resources import Resources
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.sbm import LIKE, SbmSettings, sbm_source
from ecgl_scale.units import GIB

HIDDEN = 256
LR, WEIGHT_DECAY = 0.005, 0.0005
TRAIN_SHARE = 0.6
BUDGET_BYTES = GIB
"""For the whole process with its rows on disk, Python and torch included."""
TOLERANCE = 1e-3
"""Relative, of the loss after all epochs: float32 in another order, through Adam."""
ROWS_CANDIDATES = ("torch", "memory", "disk")
GRAPH_CANDIDATES, SAMPLED = ("dgl_gcn", "mlp", "torch_mlp"), "dgl_sampled"
PAPER = {"corafull": 1.94, "arxiv": 1.69, "products": 28.44}
"""Milliseconds an epoch trained as GCN / as MLP, of the paper's table; its MLP runs over all nodes of a task."""
BATCHED = ("products",)
"""Graphs on which the paper's GCN is trained in batches of sampled neighbours."""
TIMED_BATCHES = 4
EpochLoss = Callable[[], float]


def run(work: Path, *, rows: Sequence[int], shares: Mapping[str, float], epochs: int, repeats: int) -> dict[str, Any]:
    """Both parts."""
    return {
        "hidden": HIDDEN,
        "epochs_counted": epochs - 1,
        "page_cache": "warm",
        "rows": {str(count): _run_rows(work, count, epochs, repeats) for count in rows},
        "graphs": {name: _run_graph(work, name, share, epochs, repeats) for name, share in shares.items()},
    }


def _run_rows(work: Path, count: int, epochs: int, repeats: int) -> dict[str, Any]:
    """Rows as the products graph has them; its edges play no part, so there are few."""
    store = _build(work, "products", count / LIKE["products"].num_nodes, num_edges=count)
    found = _take_turns(store, ROWS_CANDIDATES, work, epochs, repeats)
    medians = {name: result["seconds"]["median"] for name, result in found.items()}
    losses = [result["loss"] for result in found.values()]
    row_bytes = count * LIKE["products"].num_features * 4
    shutil.rmtree(store, ignore_errors=True)
    return {
        "num_rows": count,
        "row_bytes": row_bytes,
        "candidates": found,
        "times_torch": {name: medians[name] / medians["torch"] for name in ("memory", "disk")},
        "wanted_at_most": {"memory": 1.15, "disk": 2.0},
        "disk_budget_bytes": BUDGET_BYTES,
        "disk_within_budget": found["disk"]["peak_anon_bytes"] <= BUDGET_BYTES,
        "all_agree": _agree(losses),
    }


def _run_graph(work: Path, name: str, share: float, epochs: int, repeats: int) -> dict[str, Any]:
    store = _build(work, name, share)
    graph = GraphStore.open(store)
    candidates = (*GRAPH_CANDIDATES, *([SAMPLED] if name in BATCHED else []))
    found = _take_turns(store, candidates, work, epochs, repeats)
    medians = {candidate: result["seconds"]["median"] for candidate, result in found.items()}
    shutil.rmtree(store, ignore_errors=True)
    return {
        "share_of_the_published_graph": share,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": graph.num_features,
        "features": "sparse" if LIKE[name].sparse else "dense",
        "candidates": found,
        "gcn_over_mlp": medians["dgl_gcn"] / medians["mlp"],
        "gcn_over_torch_mlp": medians["dgl_gcn"] / medians["torch_mlp"],
        "sampled_gcn_over_mlp": medians[SAMPLED] / medians["mlp"] if SAMPLED in medians else None,
        "gcn_over_mlp_in_the_paper": PAPER.get(name),
        "mlps_agree": _agree([found["mlp"]["loss"], found["torch_mlp"]["loss"]]),
    }


def _agree(losses: list[float]) -> bool:
    return max(losses) - min(losses) <= TOLERANCE * max(map(abs, losses))


def _build(work: Path, name: str, share: float, num_edges: int | None = None) -> Path:
    preset = LIKE[name]
    store = work / f"epoch-{name}.ecgl"
    shutil.rmtree(store, ignore_errors=True)
    source = sbm_source(
        SbmSettings(
            num_nodes=max(round(preset.num_nodes * share), preset.num_classes),
            num_classes=preset.num_classes,
            num_features=preset.num_features,
            num_edges=round(preset.num_edges * share) if num_edges is None else num_edges,
            homophily=preset.homophily,
            symmetrise=preset.symmetrise,
            sparse=preset.sparse,
            name=f"like-{name}",
        )
    )
    build_store(source, store, Resources.of(), options=BuildOptions(symmetrise=preset.symmetrise))
    return store


def _take_turns(
    store: Path, candidates: Sequence[str], work: Path, epochs: int, repeats: int
) -> dict[str, dict[str, Any]]:
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    peaks: dict[str, int] = dict.fromkeys(candidates, 0)
    losses: dict[str, float] = {}
    for turn in range(repeats):
        first = turn % len(candidates)
        for name in (*candidates[first:], *candidates[:first]):
            arguments = ["--child", name, str(store), str(epochs), str(work)]
            child = run_measured([sys.executable, "-m", "bench.epoch", *arguments])
            said = json.loads(child.stdout.splitlines()[-1])
            seconds[name] += said["seconds"]
            peaks[name] = max(peaks[name], child.peak_anon_bytes)
            losses[name] = said["loss"]
            print(f"{name}: {np.median(said['seconds']):.4f} s an epoch, {child.peak_anon_bytes:,} B", flush=True)
    return {
        name: {"seconds": spread(seconds[name]), "peak_anon_bytes": peaks[name], "loss": losses[name]}
        for name in candidates
    }


# --- candidates: each returns a function that runs one epoch and tells its loss


def _train_ids(graph: GraphStore, *, everyone: bool) -> NDArray[np.int64]:
    if everyone:
        return np.arange(graph.num_nodes)
    chosen = np.random.default_rng(0).random(graph.num_nodes) < TRAIN_SHARE
    return np.flatnonzero(chosen)


def _labels(graph: GraphStore, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    return graph.column("label")[ids].astype(np.int64)


def _dense(graph: GraphStore, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    assert graph.features is not None
    return graph.features.rows_dense(ids).astype(np.float32, copy=False)


def _weights(graph: GraphStore) -> Any:
    from ecgl_scale.learn.model import SharedWeights

    assert graph.num_classes is not None
    return SharedWeights.create(graph.num_features, [HIDDEN], graph.num_classes, seed=0)


def _prepare_ours(graph: GraphStore, work: Path, *, everyone: bool, on_disk: bool) -> EpochLoss:
    from ecgl_scale.learn.loss import Labelled, LossSettings, make_segments
    from ecgl_scale.learn.rows import RowCache
    from ecgl_scale.learn.train import Trainer

    assert graph.features is not None
    assert graph.num_classes is not None
    ids = _train_ids(graph, everyone=everyone)
    memory_bytes = 0 if on_disk else 1 << 62
    rows = RowCache.gather(graph.features, ids, memory_bytes=memory_bytes, directory=work, name="epoch")
    assert (rows.kind == "disk") == on_disk
    segments = make_segments(
        [Labelled.of_task(0, _labels(graph, ids), rows)],
        None,
        positions=[np.arange(graph.num_classes)],
        num_classes=graph.num_classes,
        settings=LossSettings(balance="none", reduction="mean"),
    )
    trainer = Trainer(_weights(graph), lr=LR, weight_decay=WEIGHT_DECAY)
    return lambda: trainer.run_epoch(segments, task_index=0, epoch=0).loss


def _prepare_torch(graph: GraphStore, work: Path, *, everyone: bool) -> EpochLoss:
    del work
    import torch

    ids = _train_ids(graph, everyone=everyone)
    x, labels = torch.from_numpy(_dense(graph, ids)), torch.from_numpy(_labels(graph, ids))
    layers = []
    for weight, bias in _weights(graph).layers:
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight.detach(), "bias": bias.detach()})
        layers += [layer, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    return _torch_epoch(model.parameters(), lambda: torch.nn.functional.cross_entropy(model(x), labels))


def _prepare_dgl(graph: GraphStore, work: Path) -> EpochLoss:
    del work
    import torch

    peer, layers = _dgl_graph(graph), _dgl_layers(graph, "both")
    ids = _train_ids(graph, everyone=False)
    x, labels = _all_rows(graph), torch.from_numpy(_labels(graph, ids))
    train = torch.from_numpy(ids)

    def loss() -> torch.Tensor:
        hidden = torch.relu(layers[0](peer, x))
        return torch.nn.functional.cross_entropy(layers[1](peer, hidden)[train], labels)

    return _torch_epoch([tensor for layer in layers for tensor in layer.parameters()], loss)


def _prepare_sampled(graph: GraphStore, work: Path) -> EpochLoss:
    """The time of a call stands for that of an epoch by ``_share_timed``; plain means, see ``bench.inference``."""
    del work
    peer, layers = _dgl_graph(graph), _dgl_layers(graph, "right")
    import dgl
    import torch

    ids = torch.from_numpy(np.random.default_rng(1).permutation(_train_ids(graph, everyone=False)))
    x, labels = _all_rows(graph), torch.from_numpy(graph.column("label").astype(np.int64))
    batches = cycle(ids.split(BATCH_ROWS))
    sampler = dgl.dataloading.NeighborSampler(list(FAN_OUTS))

    def loss() -> torch.Tensor:
        batch = next(batches)
        inputs, _, blocks = sampler.sample_blocks(peer, batch)
        hidden = torch.relu(layers[0](blocks[0], x[inputs]))
        return torch.nn.functional.cross_entropy(layers[1](blocks[1], hidden), labels[batch])

    step = _torch_epoch([tensor for layer in layers for tensor in layer.parameters()], loss)
    return lambda: [step() for _ in range(TIMED_BATCHES)][-1]


def _share_timed(name: str, graph: GraphStore) -> float:
    """How much of an epoch a call of the candidate runs."""
    num_batches = max(_train_ids(graph, everyone=False).size / BATCH_ROWS, 1.0)
    return TIMED_BATCHES / num_batches if name == SAMPLED else 1.0


def _dgl_graph(graph: GraphStore) -> Any:
    """The stored edges and a self loop for every node."""
    os.environ["DGLBACKEND"] = "pytorch"
    import dgl

    source, target = graph.to_edge_index()
    loops = np.arange(graph.num_nodes)
    peer = dgl.graph((np.concatenate([source, loops]), np.concatenate([target, loops])), num_nodes=graph.num_nodes)
    peer.create_formats_()
    return peer


def _dgl_layers(graph: GraphStore, norm: str) -> Any:
    import dgl

    layers = []
    for weight, bias in _weights(graph).layers:
        layer = dgl.nn.GraphConv(weight.shape[1], weight.shape[0], norm=norm)
        layer.load_state_dict({"weight": weight.detach().T, "bias": bias.detach()})
        layers.append(layer)
    return layers


def _all_rows(graph: GraphStore) -> Any:
    import torch

    return torch.from_numpy(_dense(graph, np.arange(graph.num_nodes)))


def _torch_epoch(parameters: Any, loss_of: Callable[[], Any]) -> EpochLoss:
    import torch

    optimizer = torch.optim.Adam(parameters, lr=LR, weight_decay=WEIGHT_DECAY)

    def epoch() -> float:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return epoch


CANDIDATES: dict[str, Callable[[GraphStore, Path], EpochLoss]] = {
    "torch": lambda graph, work: _prepare_torch(graph, work, everyone=True),
    "memory": lambda graph, work: _prepare_ours(graph, work, everyone=True, on_disk=False),
    "disk": lambda graph, work: _prepare_ours(graph, work, everyone=True, on_disk=True),
    "dgl_gcn": _prepare_dgl,
    SAMPLED: _prepare_sampled,
    "mlp": lambda graph, work: _prepare_ours(graph, work, everyone=False, on_disk=False),
    "torch_mlp": lambda graph, work: _prepare_torch(graph, work, everyone=False),
}


def _child(name: str, store: Path, epochs: int, work: Path) -> None:
    scratch = work / f"epoch-{name}.rows"
    scratch.mkdir(exist_ok=True)
    try:
        graph = GraphStore.open(store)
        epoch, share = CANDIDATES[name](graph, scratch), _share_timed(name, graph)
        seconds = []
        for _ in range(epochs):
            started = time.perf_counter()
            loss = epoch()
            seconds.append((time.perf_counter() - started) / share)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps({"seconds": seconds[1:], "loss": loss}))


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[200_000, 1_469_417])
    parser.add_argument("--graphs", nargs="*", default=["corafull", "arxiv", "products"], choices=list(LIKE))
    parser.add_argument("--products-share", type=float, default=0.1, help="1 needs more than 16 GB for DGL's epoch")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, store, epochs, work = arguments.child
        _child(name, Path(store), int(epochs), Path(work))
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    shares = {name: arguments.products_share if name == "products" else 1.0 for name in arguments.graphs}
    result = run(arguments.work, rows=arguments.rows, shares=shares, epochs=arguments.epochs, repeats=arguments.repeats)
    save("epoch", result)


if __name__ == "__main__":
    main()
