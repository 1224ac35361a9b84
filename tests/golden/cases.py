"""What is recorded: stores, rankings and runs, each named and given as arguments of ``ecgl``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

SETTINGS = ("task-il", "class-il")
METHODS = {
    "finetune": (),
    "joint": (),
    "lwf": (),
    "ewc": (),
    "mas": (),
    "gem": ("gem.memory_nodes=12",),
    "twp": (),
    "ergnn": (),
    "ssm": ("ssm.centre_nodes=4", "ssm.neighbours=[2, 1]"),
    "cat": ("cat.nodes=8", "cat.steps=40", "cat.lr=0.01", "cat.hidden=[24]"),
    "dygrain": ("dygrain.nodes=12",),
    "continualgnn": ("continualgnn.memory_nodes=30",),
    "ecgl": (),
}
"""Every method, with small values where the defaults would keep the whole graph or take long."""

PENALISED = ("ewc", "mas", "twp", "continualgnn")
"""Their penalties multiply the rounding of a weight by 10,000, or 80."""


@dataclass(frozen=True)
class StoreCase:
    """The bytes of a store that a command makes."""

    name: str
    arguments: tuple[str, ...]
    """``STORE`` stands for the store's directory."""


@dataclass(frozen=True)
class RankCase:
    """The scores of ``ecgl rank``."""

    name: str
    store: str
    arguments: tuple[str, ...]
    has_fixed_bits: bool = False
    """No matrix product is in it: bits are the same on every processor."""


@dataclass(frozen=True)
class RunCase:
    """A run: ``store`` and ``settings`` as ``--set`` takes them, over what all runs share."""

    name: str
    store: str
    settings: tuple[str, ...]
    with_predictions: bool = False
    """Also ``ecgl infer`` of the finished run on its store."""
    with_task_graphs: bool = False
    """Also the bytes of the task graphs that it extracts."""
    promises_bits: bool = True
    """The sums of DGL and torch are theirs to order: such runs are compared by value on any machine."""

    @property
    def rounding(self) -> float:
        """How much more than others it may differ where the arithmetic is another."""
        return 100.0 if any(f"method={method}" in self.settings for method in PENALISED) else 1.0


Case = StoreCase | RankCase | RunCase


def _store(name: str, *arguments: str) -> StoreCase:
    return StoreCase(f"store-{name}", arguments)


STORES = (
    _store("dense", "ingest", "npz", "dense.npz", "STORE", "--symmetrise"),
    _store("sparse", "ingest", "npz", "sparse.npz", "STORE", "--symmetrise"),
    _store("directed", "ingest", "npz", "dense.npz", "STORE"),
    _store("directed-sparse", "ingest", "npz", "sparse.npz", "STORE"),
    _store("duplicates", "ingest", "npz", "dense.npz", "STORE", "--symmetrise", "--keep-duplicates"),
    _store("loops", "ingest", "npz", "dense.npz", "STORE", "--keep-self-loops", "--keep-duplicates"),
    _store("added-loops", "ingest", "npz", "dense.npz", "STORE", "--add-self-loops", "--feature-dtype", "float16"),
    _store("made-sparse", "ingest", "npz", "dense.npz", "STORE", "--features-as", "sparse"),
    _store("made-dense", "ingest", "npz", "sparse.npz", "STORE", "--features-as", "dense"),
    _store("csv", "ingest", "edges", "edges-*.csv", "STORE", "--nodes", "421", "--symmetrise"),
    # Eight ranges of nodes, so that there is more than one block.
    _store("raw", "ingest", "edges", "edges.u32", "STORE", "--nodes", "500000", "--symmetrise"),
    _store(
        "edges", "ingest", "edges", "edges.u32", "STORE", "--nodes", "421", "--features", "x.npy", "--labels", "y.npy",
        "--columns", "columns.npz",
    ),
    _store("sbm", "generate", "sbm", "STORE", "--nodes", "400", "--classes", "6", "--features", "8", "--seed", "3"),
    _store(
        "sbm-sparse", "generate", "sbm", "STORE", "--nodes", "300", "--classes", "4", "--features", "30",
        "--features-as", "sparse", "--average-degree", "5", "--homophily", "0.5", "--signal", "2",
    ),
    # As many rows a task as several lanes of a gradient take.
    _store("lanes", "generate", "sbm", "STORE", "--nodes", "16000", "--classes", "4", "--features", "6", "--seed", "5"),
    _store("kron", "generate", "kron", "STORE", "--scale", "17", "--edge-factor", "2", "--features", "3"),
    _store("kron-directed", "generate", "kron", "STORE", "--scale", "9", "--directed", "--seed", "4"),
)  # fmt: skip


def _rank(name: str, store: str, *arguments: str, has_fixed_bits: bool = False) -> RankCase:
    return RankCase(f"rank-{name}", store, arguments, has_fixed_bits)


TOPK = ("--topk", "24", "--quota", "class")

RANKS = (
    *(
        case
        for store in ("dense", "sparse", "directed", "directed-sparse")
        for case in (
            _rank(f"{store}-both", store, "--kind", "both"),
            _rank(f"{store}-plain", store, "--kind", "importance", "--ignore-features", has_fixed_bits=True),
            _rank(f"{store}-topk", store, "--kind", "both", *TOPK),
        )
    ),
    _rank("loops-reset", "loops", "--kind", "both", "--dangling", "reset", "--norm", "l2", "--include-self"),
    _rank("split-topk", "dense", "--kind", "importance", "--topk", "20", "--candidates", "split=0"),
    _rank("outputs", "directed", "--kind", "both", "--features", "x.npy", "--gamma", "0.2"),
    _rank("kron-plain", "kron", "--kind", "importance", "--ignore-features", has_fixed_bits=True),
    _rank("kron-plain-32", "kron", "--ignore-features", "--precision", "float32", has_fixed_bits=True),
    _rank("kron-both", "kron", "--kind", "both"),
)


def _run(name: str, store: str, *settings: str, **further: bool) -> RunCase:
    return RunCase(f"run-{name}", store, settings, **further)


TIME = ("tasks.kind=time", "tasks.column=year")
EDGES_KEPT = ("tasks.inter_task_edges=true", "tasks.eval_scope=seen")
AS_GCN = "learn.train_as=gcn"
BOTH_SCOPES = "tasks.eval_scope=both"
TRAINED = "learn.last_layer=trained"
RANKED = ("bank.select=ecgl", TRAINED)
ANALYTIC = ("method=analytic", "analytic.width=16")

RUNS = (
    *(
        _run(f"{method}-{setting}", "dense", f"method={method}", f"setting={setting}", *METHODS[method])
        for method, setting in product(METHODS, SETTINGS)
    ),
    *(
        _run(f"{preset}-{setting}-{store}", store, f"preset={preset}", f"setting={setting}")
        for preset, setting, store in product(("paper", "reference", "plus"), SETTINGS, ("dense", "sparse"))
        if (preset, store) != ("plus", "dense")  # the method's own case
    ),
    _run("predictions-dense", "dense", "seed=6", with_predictions=True, with_task_graphs=True),
    _run("predictions-sparse", "sparse", "seed=6", with_predictions=True, with_task_graphs=True),
    _run("backend-torch", "dense", "infer.backend=torch", with_predictions=True, promises_bits=False),
    _run("backend-dgl", "dense", "infer.backend=dgl", with_predictions=True, promises_bits=False),
    _run("time", "dense", *TIME, with_predictions=True, with_task_graphs=True),
    _run("time-joint", "sparse", *TIME, "method=joint", "setting=task-il"),
    _run("gcn-ecgl", "dense", AS_GCN),
    _run("gcn-ecgl-sparse", "sparse", AS_GCN, "preset=paper", "setting=task-il"),
    _run("gcn-joint", "dense", AS_GCN, "method=joint"),
    _run("gcn-ewc", "dense", AS_GCN, "method=ewc", "ewc.draws=4"),
    _run("gcn-twp", "dense", AS_GCN, "method=twp", "setting=task-il"),
    _run("gcn-sage", "dense", AS_GCN, "learn.encoder=sage"),
    _run("sage", "dense", "learn.encoder=sage", with_predictions=True),
    _run("sgc", "dense", "learn.encoder=sgc", with_predictions=True),
    _run("propagated", "dense", "learn.features=propagated:2", with_predictions=True),
    _run("propagated-sparse", "sparse", "learn.features=propagated:2"),
    _run("minibatch", "dense", "learn.batching=minibatch", "learn.batch_rows=24"),
    _run("lanes", "lanes", "learn.block_rows=500", "tasks.classes_per_task=2"),
    _run("lanes-ewc", "lanes", "learn.block_rows=700", "tasks.classes_per_task=2", "method=ewc", "learn.dropout=0.2"),
    _run("dropout", "dense", "learn.dropout=0.4", "learn.hidden=[16, 9]"),
    _run("dropout-gcn", "dense", "learn.dropout=0.4", AS_GCN),
    _run("blocks", "dense", "learn.block_rows=17", "infer.partitions=3", with_predictions=True),
    _run("cut-by-ldg", "dense", "infer.partitions=4", "infer.partitioner=ldg", with_predictions=True),
    _run("scale-standard", "dense", "learn.scale=standard", "learn.optimizer=reset", with_predictions=True),
    _run("scale-row-sum", "sparse", "learn.scale=row_sum", "learn.bias_place=outside", with_predictions=True),
    _run("no-bias", "dense", "learn.bias=false", "learn.balance=task", "infer.norm=mean", with_predictions=True),
    _run("all-edges", "dense", *EDGES_KEPT, with_task_graphs=True),
    _run("all-edges-continualgnn", "dense", *EDGES_KEPT, "method=continualgnn", "continualgnn.memory_nodes=30"),
    _run("all-edges-dygrain", "dense", "tasks.inter_task_edges=true", "method=dygrain", "dygrain.nodes=12"),
    _run("directed", "directed", "tasks.class_order=[5, 2, 7, 0, 1, 6]", "tasks.score=valid"),
    _run("store-split", "dense", "tasks.split=store", "tasks.classes_per_task=3"),
    _run("analytic-class-il", "dense", *ANALYTIC, with_predictions=True),
    _run("analytic-sparse", "sparse", *ANALYTIC, BOTH_SCOPES, with_predictions=True),
    _run("both-scopes", "dense", BOTH_SCOPES),
    _run("importance-bank", "dense", *RANKED),
    _run("random-bank", "dense", "bank.select=random", TRAINED),
    _run("herding-bank", "dense", "bank.select=herding", TRAINED),
    _run("herding-bank-sparse", "sparse", "bank.select=herding", TRAINED),
    _run("diverse-bank", "dense", *RANKED, "bank.importance=false", "bank.quota=none"),
    _run("ewc-reference", "dense", "method=ewc", "ewc.reference=true", "setting=task-il"),
    _run("gem-reference", "dense", "method=gem", "gem.reference=true", "gem.memory_nodes=12"),
    _run("twp-reference", "dense", "method=twp", "twp.reference=true"),
    _run("ergnn-reference", "dense", "method=ergnn", "ergnn.reference=true", "setting=task-il"),
    _run("ergnn-coverage", "sparse", "method=ergnn", "ergnn.select=cm"),
    _run("ssm-degree", "sparse", "method=ssm", "ssm.select=degree", *METHODS["ssm"]),
    # Real means of so few rows have other last digits on processors of another family (26 instead of the record's).
    _run("cat-sparse", "sparse", "method=cat", *METHODS["cat"], "cat.real_nodes=5", promises_bits=False),
)  # fmt: skip

CASES: tuple[Case, ...] = (*STORES, *RANKS, *RUNS)
