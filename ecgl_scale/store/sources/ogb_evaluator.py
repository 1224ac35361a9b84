"""OGB's own evaluator, without what importing ``ogb`` brings along."""

from __future__ import annotations

import importlib.util
from typing import Any

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.sources.ogb_table import ogb_package_file, read_ogb_table


def ogb_evaluator(name: str) -> Any:
    """OGB's ``Evaluator`` for one dataset.

    The file that defines it is loaded alone: ``import ogb`` would start a thread that asks the network for a newer
    version, and ``ogb.nodeproppred`` would load DGL and PyG.
    """
    if name not in read_ogb_table():
        raise InvalidInputError(f"OGB has no dataset {name!r}", expected=f"one of {', '.join(read_ogb_table())}")
    path = ogb_package_file("evaluate.py")
    spec = importlib.util.spec_from_file_location("_ecgl_ogb_evaluate", path)
    if spec is None or spec.loader is None:
        raise InvalidInputError("the ogb package cannot be loaded", where=path, fix="install ogb again")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Evaluator(name)
