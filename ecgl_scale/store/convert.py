"""Between stores and the in-memory graphs of DGL and PyG.

The only file of this room that touches DGL, and only where a user hands us a DGL graph or asks for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ecgl_scale.errors import UsageError
from ecgl_scale.store.features.files import dense_matrix

if TYPE_CHECKING:
    import dgl

    from ecgl_scale.store.graph import GraphStore

_FEATURE_NAMES = ("feat", "x", "features")
_LABEL_NAMES = ("label", "y", "labels")
_MASKS = ("train_mask", "val_mask", "test_mask")


def arrays_of_dgl(graph: Any) -> dict[str, Any]:
    """Edges, features, labels and columns of a homogeneous DGL graph."""
    if not getattr(graph, "is_homogeneous", True):
        raise UsageError(
            "the DGL graph has several node or edge types",
            expected="a homogeneous graph",
            fix="dgl.to_homogeneous(graph)",
        )
    source, target = graph.edges()
    edge_index = np.stack([_numpy(source), _numpy(target)])
    return _named_arrays(edge_index, {name: graph.ndata[name] for name in graph.ndata}, int(graph.num_nodes()))


def arrays_of_pyg(data: Any) -> dict[str, Any]:
    """Edges, features, labels and columns of a PyG ``Data``."""
    if getattr(data, "edge_index", None) is None:
        raise UsageError(
            f"{type(data).__name__} has no edge_index", expected="a PyG Data with edge_index of shape [2, E]"
        )
    names = data.keys() if callable(data.keys) else data.keys
    edge_index = _numpy(data.edge_index)
    node_arrays = {
        name: data[name]
        for name in names
        if name != "edge_index"
        and hasattr(data[name], "shape")
        # As in PyG: where there are as many edges as nodes, the name tells whose values they are.
        and not ("edge" in name and tuple(data[name].shape[:1]) == edge_index.shape[1:])
    }
    return _named_arrays(edge_index, node_arrays, int(data.num_nodes))


def _named_arrays(edge_index: Any, given: dict[str, Any], num_nodes: int) -> dict[str, Any]:
    node_arrays = {name: _numpy(value) for name, value in given.items()}
    x = next((node_arrays.pop(name) for name in _FEATURE_NAMES if name in node_arrays), None)
    y = next((node_arrays.pop(name) for name in _LABEL_NAMES if name in node_arrays), None)
    columns = {name: value for name, value in node_arrays.items() if value.shape == (num_nodes,)}
    if "split" not in columns and all(name in columns for name in _MASKS):
        masks = [columns.pop(name).astype(bool) for name in _MASKS]
        columns["split"] = np.select(masks, [0, 1, 2], -1).astype(np.int8)
    return {"edge_index": edge_index, "x": x, "y": y, "num_nodes": num_nodes, "columns": columns}


def _numpy(value: Any) -> Any:
    for method in ("detach", "cpu", "numpy"):
        if hasattr(value, method):
            value = getattr(value, method)()
    return np.asarray(value)


def to_dgl(store: GraphStore) -> dgl.DGLGraph:
    """A DGL graph with the store's edges, ``feat`` and node columns."""
    try:
        import dgl
    except ImportError as error:
        raise UsageError(
            "DGL is not installed here",
            expected="dgl 1.1.3, which has wheels for Python 3.11 and older",
            fix="pip install dgl==1.1.3",
        ) from error
    import torch

    source, target = torch.from_numpy(store.to_edge_index())
    graph = dgl.graph((source, target), num_nodes=store.num_nodes)
    if store.features is not None:
        graph.ndata["feat"] = torch.from_numpy(dense_matrix(store.features))
    for name in [] if store.nodes is None else store.nodes.names:
        graph.ndata[name] = torch.from_numpy(np.ascontiguousarray(store.column(name)))
    return graph
