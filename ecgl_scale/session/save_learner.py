"""A learner as the files of a finished model, for ``ECGL.save``: what a run leaves, without what a run is about.

config.yaml  state.json  split.parquet  bank.arrow  weights/  tests/ where graphs are kept; sealed.json last
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from ecgl_scale.base.durable import storage_errors, write_atomically
from ecgl_scale.base.versions import SEAL_NAME
from ecgl_scale.session.basis import KEPT_FOLDERS, SPLIT_NAME, link_file, link_tree
from ecgl_scale.session.checkpoint import WEIGHTS_DIRECTORY, Checkpoints
from ecgl_scale.session.directory import CONFIG_NAME, FORGOTTEN_NAME, WORK_NAME
from ecgl_scale.session.learner import BANK_NAME, Learner
from ecgl_scale.session.results import matrix_of
from ecgl_scale.session.saved_model import names_of_outputs, save_model
from ecgl_scale.session.seal import Seal
from ecgl_scale.session.state import RunState
from ecgl_scale.tasks.forgotten import about_forgotten


def save_learner(directory: Path, learner: Learner, state: RunState) -> None:
    """Write a learner that has learned ``state.task`` tasks of its stream; what was there is a model no more."""
    graph, num_tasks = learner.graphs.graph, state.task
    stream = learner.stream.until(graph, num_tasks)
    state = replace(state, split_hash=stream.split_hash, is_finished=True)
    with storage_errors(directory):
        (directory / WEIGHTS_DIRECTORY).mkdir(parents=True, exist_ok=True)
        for name in (SEAL_NAME, BANK_NAME, FORGOTTEN_NAME):
            (directory / name).unlink(missing_ok=True)
        write_atomically(directory / CONFIG_NAME, learner.config.to_yaml())
        stream.save(directory / SPLIT_NAME)
        if learner.keeps_nodes:
            learner.bank.save(directory / BANK_NAME)
        if (learner.directory / FORGOTTEN_NAME).exists():
            link_file(learner.directory / FORGOTTEN_NAME, directory / FORGOTTEN_NAME)
        of_method = learner.method_path(num_tasks - 1)
        if of_method.exists():
            link_file(of_method, directory / WEIGHTS_DIRECTORY / of_method.name)
        if learner.method.kept_files:
            for path in sorted(of_method.parent.glob(learner.method.kept_files)):
                link_file(path, directory / WEIGHTS_DIRECTORY / path.name)
        for path in sorted((learner.directory / KEPT_FOLDERS[0]).glob("*.ecgl")):
            link_tree(path, directory / KEPT_FOLDERS[0] / path.name)
    matrix = matrix_of(state.macro, num_tasks).to_lists()
    about = {"tasks_learned": num_tasks, "split_hash": stream.split_hash, "matrix": matrix}
    about |= about_forgotten(learner.classes, [task.classes for task in learner.stream])
    about |= names_of_outputs(learner.classes, stream.class_names)
    about |= learner.about_input
    save_model(directory / WEIGHTS_DIRECTORY, learner.weights, learner.classes, learner.scaling, **about)
    checkpoints = Checkpoints(directory)
    try:
        checkpoints.save(state, learner.tensors())
    finally:
        checkpoints.close()
    Seal.write(directory, learner.config, graph, stream)


def remove_learned(directory: Path) -> None:
    """Remove what a learner keeps in its working directory; task graphs are extracted again."""
    with storage_errors(directory):
        for name in (BANK_NAME, FORGOTTEN_NAME):
            (directory / name).unlink(missing_ok=True)
        for name in (WEIGHTS_DIRECTORY, WORK_NAME, *KEPT_FOLDERS):
            shutil.rmtree(directory / name, ignore_errors=True)
