"""A Kronecker store whose tiles have the order of sources that is asked for: prints its counts as JSON.

    python -m bench.kron_store STORE SCALE {auto,none,degree}

``auto`` is what ``ecgl generate kron`` writes; ``none`` is the natural order, that of all stores up to version 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ecgl_scale.engine.resources import Resources
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.sources.kron import kron_source


def main() -> None:
    """Build one store."""
    store, scale, order = sys.argv[1:]
    source = kron_source(scale=int(scale), edge_factor=16, seed=0, num_features=0)
    options = BuildOptions(symmetrise=True, source_order=order)
    manifest = build_store(source, Path(store), Resources.of(), options=options)
    counts = {"num_nodes": manifest.num_nodes, "num_edges": manifest.edges.num_edges}
    print(json.dumps({**counts, "source_order": manifest.source_order}))


if __name__ == "__main__":
    main()
