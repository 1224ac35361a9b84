"""What the ``ogb`` package knows of its datasets: its table master.csv, read as a file.

``import ogb`` would start a thread that asks the network for a newer version, so it is never imported here.
"""

from __future__ import annotations

import csv
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.units import GIB


@dataclass(frozen=True)
class OgbDataset:
    """One column of OGB's table of node datasets."""

    name: str
    num_classes: int
    num_tasks: int
    metric: str
    split: str
    download_name: str
    """The folder inside the zip."""
    url: str
    add_inverse_edge: bool
    binary: bool
    is_hetero: bool

    @property
    def folder_names(self) -> tuple[str, ...]:
        """What the folder is called in the zip, and after OGB's own loader moved it."""
        return self.download_name, self.name.replace("-", "_"), self.name

    @property
    def max_download_bytes(self) -> int:
        """Cap for a download: several times what the zip has today (81 MB, 1.4 GB, 56 GB for the binary one)."""
        return 120 * GIB if self.binary else 8 * GIB


def ogb_package_file(name: str) -> Path:
    """A file of the installed ogb's ``nodeproppred``, found without importing ogb."""
    spec = importlib.util.find_spec("ogb")
    folders = spec.submodule_search_locations if spec is not None else None
    path = Path(next(iter(folders))) / "nodeproppred" / name if folders else None
    if path is None or not path.is_file():
        raise InvalidInputError(
            "the ogb package is not installed", where=path, expected="ogb >= 1.3.6", fix="pip install 'ogb>=1.3.6'"
        )
    return path


@cache
def read_ogb_table() -> dict[str, OgbDataset]:
    """All node datasets of OGB's table, by name."""
    with ogb_package_file("master.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    fields = {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows if row}
    return {
        name: OgbDataset(
            name=name,
            num_classes=int(fields["num classes"][name]),
            num_tasks=int(fields["num tasks"][name]),
            metric=fields["eval metric"][name],
            split=fields["split"][name],
            download_name=fields["download_name"][name],
            # The table says http; the host serves the same files by https, and we fetch nothing else.
            url=fields["url"][name].replace("http://", "https://", 1),
            add_inverse_edge=fields["add_inverse_edge"][name] == "True",
            binary=fields["binary"][name] == "True",
            is_hetero=fields["is hetero"][name] == "True",
        )
        for name in header[1:]
    }


def supported_datasets() -> dict[str, OgbDataset]:
    """The datasets that are one homogeneous graph with one label a node: arxiv, products and papers100M."""
    return {
        name: dataset for name, dataset in read_ogb_table().items() if dataset.num_tasks == 1 and not dataset.is_hetero
    }
