"""What an update begins from: a finished model, whole, and the nodes that are its next task.

An update is a run whose stream is one task longer. It is begun as a run is resumed: weights and moments, bank and the
method's state are those of the model, and the state says that the next thing to do is the new task.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.base.durable import fsync_directory, storage_errors
from ecgl_scale.base.versions import SEAL_NAME, version_directory
from ecgl_scale.config.keys import NOT_IN_DIGEST
from ecgl_scale.config.schema import RunConfig, config_from_mapping
from ecgl_scale.engine.journal import read_sealed, write_sealed
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import InvalidInputError, StoreError, UsageError
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.method.table import method_of
from ecgl_scale.session.checkpoint import WEIGHTS_DIRECTORY, Tensors, load_checkpoint
from ecgl_scale.session.directory import CONFIG_NAME, FORGOTTEN_NAME, ORIGIN_NAME, differences
from ecgl_scale.session.saved_model import SavedModel, load_model
from ecgl_scale.session.seal import Seal
from ecgl_scale.session.setup import RunSetup, open_store, require_scored
from ecgl_scale.session.state import MATRICES, RunState
from ecgl_scale.store.compose import num_erased_of
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.verify import check_bytes
from ecgl_scale.tasks.split import read_split
from ecgl_scale.tasks.stream import TaskStream
from ecgl_scale.tasks.task_nodes import at_generation

SPLIT_NAME = "split.parquet"
FREE = ("store", "tasks.evaluate")
"""Keys that an update may change, though results name them: when tests are made changes no model."""
KEPT_FOLDERS = ("tests", "tasks")
"""Graphs of earlier tasks: those that belong to the model, and those that need not be extracted again."""


@dataclass(frozen=True, eq=False)
class Basis:
    """A finished model, checked, and what it is to learn next."""

    directory: Path
    """The directory of the version that counts."""
    seal: Seal
    saved: SavedModel
    state: RunState
    asked: str | None = None
    """Which nodes are learned: a condition, see ``tasks/where``; None: those that the model has not seen yet."""

    @classmethod
    def open(cls, model: Path, asked: str | None = None) -> Basis:
        """Open a model and compare all its files with its seal.

        Raises
        ------
        InvalidInputError
            There is no finished model here, or a file of it is damaged or another's.
        """
        directory = version_directory(model)
        saved, seal, state = load_model(directory), Seal.read(directory), RunState.read(directory)
        if seal is None or state is None or state.checkpoint is None or not state.is_finished:
            raise InvalidInputError(
                "this model has no seal, so it cannot go on: it is not finished, or an earlier version wrote it",
                where=directory,
                expected="all files of a finished run, of an update, or of what ECGL.save wrote",
                fix=f"ecgl run {directory / CONFIG_NAME} --out {directory} --resume, which finishes and seals it",
            )
        seal.check(directory, saved.config)
        return cls(directory, seal, saved, state, asked)

    @property
    def num_tasks(self) -> int:
        """Tasks that the model has learned."""
        return self.seal.num_tasks

    def config_for(self, store: object, overrides: list[str]) -> RunConfig:
        """The model's config with another store, and other keys that change nothing of what is learned.

        Raises
        ------
        UsageError
            A key that changes results: all tasks of a model are learned alike.
        """
        own = self.saved.config
        config = config_from_mapping({**own.to_mapping(), "store": str(store)}, overrides=overrides)
        changed = differences(own.to_mapping(), config.to_mapping()) - {*NOT_IN_DIGEST, *FREE}
        if changed:
            raise UsageError(
                f"an update learns with the model's own settings, and these differ: {', '.join(sorted(changed))}",
                where=self.directory,
                fix="leave them out; a model with other settings is a run of its own",
            )
        return config

    def has_new_nodes(self, config: RunConfig) -> bool:
        """Whether the store has nodes that came after those which the model has seen."""
        graph = open_store(config)
        self._require_same_store(graph)
        return graph.num_nodes > self.state.new_from

    def _require_same_store(self, graph: GraphStore) -> None:
        """Refuse a store in which rows or classes have other numbers: the model knows nodes and classes by them."""
        known, named = self.seal.class_names, graph.class_names
        if known is not None and (named is None or named[: len(known)] != known):
            raise InvalidInputError(
                "the store is not the one that the model has learned: its classes have other names, or other numbers",
                where=graph.path,
                expected=f"the classes {', '.join(known)}, in this order",
                fix="give the store that the model was trained on, or train a model on this one: ecgl run",
            )
        erased = num_erased_of(graph.manifest)
        if self.seal.num_erased is not None and erased != self.seal.num_erased:
            raise InvalidInputError(
                f"the store was compacted after {erased - self.seal.num_erased:,} of its nodes were dropped, so its "
                "rows have other numbers than those by which the model knows its tasks",
                where=graph.path,
                expected="the store with which the model was trained, or one that has grown from it",
                fix="train a model anew on the store as it is: ecgl run; `ecgl drop` alone keeps the numbers",
            )

    def setup(self, config: RunConfig, resources: Resources, generation: int | None = None) -> RunSetup:
        """The store, which must be the one that the model has learned, and the stream with one task more.

        Raises
        ------
        InvalidInputError
            Another store, or nothing to learn.
        UsageError
            New classes for a head that cannot grow, or for an ``infer`` that the store cannot have.
        """
        graph = open_store(config, generation)
        known = self.known_tasks(graph)
        stream = known.add(graph, self._nodes(known, graph), self._name(graph), on_event=resources.on_event)
        task = stream[-1]
        require_scored(task, config, graph)
        if config.setting == "task-il" and config.tasks.kind == "class" and len(task.classes) == 1:
            raise InvalidInputError(
                f"the new nodes are all of class {task.classes[0]}, and in task-IL a node is told apart from its "
                "task's classes alone",
                where=graph.path,
                expected="nodes of two or more classes",
                fix="wait for nodes of another class, or learn them with a model in class-il",
            )
        if config.learn.head == "whole" and stream.classes != self.saved.classes:
            raise UsageError(
                f"learn.head is whole, so the model has outputs for {len(self.saved.classes)} classes for good, "
                f"and the new nodes are of the classes {', '.join(map(str, task.classes))}",
                where=self.directory,
                fix="run it with `learn: {head: grow}`, whose head gets an output for each class that comes",
            )
        return RunSetup(config, graph, stream, resources, scaling=self.saved.scaling, first_task=self.num_tasks)

    def known_tasks(self, graph: GraphStore) -> TaskStream:
        """The model's own tasks, for its store as it is now.

        A store that has been compacted knows no generations any more: then all tasks have the edges of today.
        """
        self._require_same_store(graph)
        stream = TaskStream.load(self.directory / SPLIT_NAME, graph, may_have_grown=True)
        try:
            is_known = at_generation(graph, self.seal.generation).identity == self.seal.store_identity
        except (StoreError, UsageError):
            is_known = False
        return stream if is_known else stream.without_generations(graph)

    def _nodes(self, known: TaskStream, graph: GraphStore) -> Any:
        if self.asked is not None:
            return self.asked
        new = np.arange(self.state.new_from, graph.num_nodes)
        new = new[~np.isin(new, np.concatenate([task.node_ids for task in known]))]
        if not new.size:
            raise InvalidInputError(
                f"the store has no new nodes: the model has seen all {graph.num_nodes:,}",
                where=graph.path,
                expected="nodes that were appended since",
                fix='append what is new, or choose among known nodes: --where "COLUMN op VALUE"',
            )
        return new

    def _name(self, graph: GraphStore) -> str | None:
        return f"generation {graph.generation}" if self.asked is None and graph.generation else None

    # --- the directory of an update

    def begun(self, setup: RunSetup) -> RunState:
        """The state of an update that is about to begin."""
        return replace(
            RunState.of(setup),
            task=self.num_tasks,
            checkpoint=self.state.checkpoint,
            checkpoint_place=self.state.checkpoint_place,
            losses=self.state.losses,
            new_from=self.state.new_from if self.asked is not None else setup.graph.num_nodes,
            **{name: getattr(self.state, name) for name in MATRICES},
        )

    def describe(self) -> dict[str, Any]:
        """What an update was begun from, and what it learns."""
        return {
            "model": str(self.directory.absolute()),
            "num_tasks": self.num_tasks,
            "split_hash": self.state.split_hash,
            "digest": self.state.digest,
            "where": self.asked,
        }

    def is_update_by(self, asked: str | None) -> bool:
        """Whether the model itself is an update that was asked for in these words."""
        try:
            return bool(read_sealed(self.directory / ORIGIN_NAME)["where"] == asked)
        except (OSError, ValueError, KeyError):
            return False

    def refuse_other(self, target: Path) -> None:
        """Refuse a directory where an update of another model, or with other nodes, was begun."""
        try:
            found = read_sealed(target / ORIGIN_NAME)
        except FileNotFoundError:
            found = {} if RunState.read(target) is None else {"where": "a run"}
        except (OSError, ValueError) as error:
            raise InvalidInputError(f"this file cannot be read: {error}", where=target / ORIGIN_NAME) from error
        wanted = self.describe()
        changed = [name for name in wanted if name != "model" and found and found.get(name) != wanted[name]]
        if changed:
            raise UsageError(
                "an update of another model, or of other nodes, was begun here",
                where=target,
                expected=", ".join(f"{name} {wanted[name]}" for name in changed),
                fix="resume it as it was begun, or choose another --out",
            )

    def copy_to(self, target: Path) -> None:
        """Put the learner's files into a directory, so that it can go on there; done again it does the same."""
        with storage_errors(target):
            (target / WEIGHTS_DIRECTORY).mkdir(parents=True, exist_ok=True)
            names = ["bank.arrow", FORGOTTEN_NAME, f"{WEIGHTS_DIRECTORY}/{self.state.checkpoint}"]
            names += [f"{WEIGHTS_DIRECTORY}/method-{self.num_tasks - 1}.safetensors"]
            of_method = method_of(self.saved.config).kept_files
            if of_method:
                found = sorted((self.directory / WEIGHTS_DIRECTORY).glob(of_method))
                names += [f"{WEIGHTS_DIRECTORY}/{path.name}" for path in found]
            for name in names:
                if (self.directory / name).exists():
                    link_file(self.directory / name, target / name)
            for folder in KEPT_FOLDERS:
                for path in sorted((self.directory / folder).glob("*.ecgl")):
                    link_tree(path, target / folder / path.name)

    def tensors(self) -> Tensors:
        """Weights and moments at the end of the last task."""
        found = load_checkpoint(self.directory, self.state)
        return {} if found is None else found

    def bank(self) -> MemoryBank:
        """The nodes that are remembered."""
        path = self.directory / "bank.arrow"
        return MemoryBank.load(path) if path.exists() else MemoryBank.empty(self.saved.weights.num_features)

    def verify(self) -> None:
        """Read what the seal alone does not look into: tensors, bank, tasks and kept graphs."""
        self.tensors()
        self.bank()
        read_split(self.directory / SPLIT_NAME)
        for path in sorted((self.directory / KEPT_FOLDERS[0]).glob("*.ecgl")):
            check_bytes(path, GraphStore.open(path).manifest)

    def copy_whole(self, target: Path) -> None:
        """Another copy of the model, the seal last."""
        with storage_errors(target):
            (target / WEIGHTS_DIRECTORY).mkdir(parents=True, exist_ok=True)
            (target / SEAL_NAME).unlink(missing_ok=True)
            for path in sorted((self.directory / "tests").glob("*.ecgl")):
                link_tree(path, target / "tests" / path.name)
            for name in (CONFIG_NAME, *self.seal.files):
                if not name.startswith("tests/"):
                    link_file(self.directory / name, target / name)
            link_file(self.directory / SEAL_NAME, target / SEAL_NAME)

    def begin(self, target: Path) -> None:
        """Fill the directory of an update; what it was begun from is said first, the state comes last."""
        write_sealed(target / ORIGIN_NAME, self.describe())
        self.copy_to(target)
        fsync_directory(target)


def link_file(path: Path, target: Path) -> None:
    """Give a file, which is only ever replaced, a second name; copy it where that cannot be."""
    target.unlink(missing_ok=True)
    with suppress(OSError):
        os.link(path, target)
        return
    shutil.copyfile(path, target)


def link_tree(folder: Path, target: Path) -> None:
    """Give a folder of such files a second name; it appears whole, and one that is there stays."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        coming = target.with_name(f".{target.name}.coming")
        shutil.rmtree(coming, ignore_errors=True)
        shutil.copytree(folder, coming, copy_function=lambda path, to: link_file(Path(path), Path(to)))
        coming.rename(target)
