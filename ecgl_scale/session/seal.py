"""The seal of a finished model: one JSON file, written last, with the checksum of every file that belongs to it.

Each file is whole by itself. That they belong together, and to which store, only the seal knows: a file that was taken
from another model is noticed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ecgl_scale.base.durable import WrittenFile, crc32c_of, storage_errors
from ecgl_scale.base.versions import SEAL_NAME
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.journal import read_sealed, write_sealed
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.compose import num_erased_of
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.stream import TaskStream
from ecgl_scale.units import MIB

KIND, VERSION = "ecgl-model", 1
SEALED = (
    "state.json",
    "split.parquet",
    "bank.arrow",
    "results.json",
    "metrics.parquet",
    "origin.json",
    "forgotten.json",
    "weights/*",
    "tests/*/manifest.json",
)
"""Files of a model, where it has them; of kept graphs the manifest, which has the checksums of all the rest."""


@dataclass(frozen=True)
class Seal:
    """What a model was made of, and its files."""

    config_digest: str
    """A digest of the keys that change results; others may be changed in its config.yaml."""
    store_identity: str
    generation: int
    num_nodes: int
    num_tasks: int
    classes: tuple[int, ...]
    class_names: tuple[str, ...] | None
    """Names of all classes that the store has, by label id, where it has names."""
    files: dict[str, WrittenFile]
    num_erased: int | None = None
    """Nodes that compactions had erased from the store by then; None in a seal of an earlier version."""

    @classmethod
    def write(cls, directory: Path, config: RunConfig, graph: GraphStore, stream: TaskStream) -> None:
        """Seal the files that are in a directory now."""
        seal = cls(
            config.digest(),
            graph.identity,
            graph.generation,
            graph.num_nodes,
            len(stream),
            stream.classes,
            graph.class_names,
            {},
            num_erased_of(graph.manifest),
        )
        seal.seal_again(directory)

    def seal_again(self, directory: Path) -> None:
        """Seal the files that are in a directory now as a model of the same config, store and tasks."""
        found = sorted({path for pattern in SEALED for path in directory.glob(pattern) if path.is_file()})
        files = {str(path.relative_to(directory)): _written(path) for path in found if not path.name.startswith(".")}
        sealed = asdict(replace(self, files=files))
        write_sealed(directory / SEAL_NAME, {"kind": KIND, "version": VERSION, **sealed})

    @classmethod
    def read(cls, directory: Path) -> Seal | None:
        """The seal of a directory; None where there is none."""
        path = directory / SEAL_NAME
        try:
            found = read_sealed(path)
            if (found.pop("kind", None), found.pop("version", None)) != (KIND, VERSION):
                raise ValueError("it was written by another version")
            return cls._from_json(found)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise InvalidInputError(
                f"the seal of the model cannot be read: {error}", where=path, fix="restore it from a copy"
            ) from error

    @classmethod
    def _from_json(cls, found: dict[str, Any]) -> Seal:
        files = {name: WrittenFile(**file) for name, file in found.pop("files").items()}
        names, classes = found.pop("class_names"), tuple(int(label) for label in found.pop("classes"))
        return cls(files=files, classes=classes, class_names=None if names is None else tuple(names), **found)

    def check(self, directory: Path, config: RunConfig, *names: str) -> None:
        """Compare the config and these files with the seal, or all of them; other files are none of its business.

        Raises
        ------
        InvalidInputError
            A file is gone, or is another than was sealed.
        """
        if config.digest() != self.config_digest:
            raise InvalidInputError(
                "the config is another than the model's: a key differs that changes results",
                where=directory,
                expected=f"a config with the digest {self.config_digest[:12]}",
                fix="restore it from a copy",
            )
        for name, expected in self.files.items():
            if names and name not in names:
                continue
            path = directory / name
            if not path.is_file() or _written(path) != expected:
                raise InvalidInputError(
                    f"a file of the model is {'another than was written' if path.is_file() else 'gone'}",
                    where=path,
                    expected=f"{expected.size_bytes:,} bytes with crc32c {expected.crc32c:08x}, as {SEAL_NAME} has it",
                    fix="restore it from a copy; a file of another model does not belong here",
                )


def _written(path: Path) -> WrittenFile:
    """Size and checksum of a file. Memory: a MiB."""
    crc = 0
    with storage_errors(path), path.open("rb") as file:
        while part := file.read(MIB):
            crc = crc32c_of(part, crc)
        return WrittenFile(file.tell(), crc)
