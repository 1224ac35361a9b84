"""A trained model as files: weights, the class of each output, scaling and config; all that a prediction needs.

a run           weights/model.safetensors   weights/model.json   config.yaml
ECGL.save       model.safetensors           model.json (with the config in it)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import write_atomically
from ecgl_scale.config.schema import RunConfig, config_from_mapping, load_config
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.learn.method.table import method_of
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.session.checkpoint import WEIGHTS_DIRECTORY
from ecgl_scale.session.directory import CONFIG_NAME
from ecgl_scale.session.seal import Seal
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.forgotten import FORGOTTEN_CLASSES
from ecgl_scale.tasks.scaling import Scaling

MODEL_NAME = "model.safetensors"
ABOUT_NAME = "model.json"


@dataclass(frozen=True)
class SavedModel:
    """A trained model as its files hold it."""

    config: RunConfig
    weights: SharedWeights
    classes: tuple[int, ...]
    """The label of each output."""
    scaling: Scaling
    more: dict[str, Any] = field(default_factory=dict)
    """Whatever else was written beside them."""

    @property
    def made(self) -> ModelInput:
        """How its input is made of features."""
        return method_of(self.config).shape(self.config).made

    def made_on(self, graph: GraphStore) -> ModelInput:
        """How its input is made for all nodes of a store."""
        return self.made.on(graph, keeps_zeros=self.scaling.keeps_zeros)

    @property
    def num_features(self) -> int:
        """Features of a store that it can predict."""
        found = self.more.get("num_features")
        return self.weights.num_features if found is None else int(found)

    @property
    def forgotten(self) -> list[int]:
        """Outputs of classes that were forgotten: they are never predicted."""
        return [self.classes.index(label) for label in self.more.get(FORGOTTEN_CLASSES, ())]

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What users call the class of each output; None where classes have no names."""
        names = self.more.get("class_names")
        return None if names is None else tuple(names)

    def labels_in(self, graph: GraphStore) -> NDArray[np.int64]:
        """The label of each output in a store, which may know the classes, by their names, by other numbers.

        A class that the store does not have gets a number after those that it has, as an append would give it.
        One that was forgotten has -1, and is never predicted.
        """
        if self.class_names is None or graph.class_names is None:
            found = np.array(self.classes, np.int64)
        else:
            number_of = {name: number for number, name in enumerate(graph.class_names)}
            found = np.array([number_of.setdefault(name, len(number_of)) for name in self.class_names], np.int64)
        found[self.forgotten] = -1
        return found

    def names_in(self, graph: GraphStore) -> dict[int, str] | None:
        """What users call the class of each label that may be predicted for a store; None where nobody has a name."""
        labels = self.labels_in(graph).tolist()
        if self.class_names is not None:
            return dict(zip(labels, self.class_names, strict=True))
        names = graph.class_names
        if names is None:
            return None
        return {label: names[label] if label < len(names) else str(label) for label in labels if label >= 0}


def names_of_outputs(classes: Sequence[int], class_names: Sequence[str] | None) -> dict[str, list[str]]:
    """The entry of a model's file that says what users call the class of each output, where classes have names."""
    return {} if class_names is None else {"class_names": [class_names[label] for label in classes]}


def save_model(
    directory: Path, weights: SharedWeights, classes: tuple[int, ...], scaling: Scaling, **more: Any
) -> None:
    """Write weights and what they mean to a directory, which must be there; ``more`` has the ``num_features``."""
    weights.save(directory / MODEL_NAME)
    about = {
        "classes": list(classes),
        "scaling": json.loads(scaling.to_json()),
        **more,
    }
    write_atomically(directory / ABOUT_NAME, json.dumps(about, indent=1))


def load_model(path: Path) -> SavedModel:
    """The model of a finished run, or one that ``ECGL.save`` wrote.

    Raises
    ------
    InvalidInputError
        There is neither, a file is damaged, or weights, classes and config do not belong together.
    """
    inside = path / WEIGHTS_DIRECTORY
    directory = inside if (inside / ABOUT_NAME).exists() else path
    try:
        about = json.loads((directory / ABOUT_NAME).read_text(encoding="utf-8"))
        classes = tuple(int(label) for label in about.pop("classes"))
        scaling = Scaling.from_json(json.dumps(about.pop("scaling")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_model(path) from error
    config = _config_of(path, about.pop("config", None))
    weights = SharedWeights.load(directory / MODEL_NAME)
    _refuse_other_shape(weights, classes, config, about.get("num_features"), directory / MODEL_NAME)
    if len(about.get("class_names", classes)) != len(classes):
        raise InvalidInputError("the model has not one name for each of its classes", where=directory / ABOUT_NAME)
    seal = Seal.read(path)
    if seal is not None:
        seal.check(path, config, f"{WEIGHTS_DIRECTORY}/{MODEL_NAME}", f"{WEIGHTS_DIRECTORY}/{ABOUT_NAME}")
        about["num_nodes"], about["num_erased"] = seal.num_nodes, seal.num_erased
    return SavedModel(config, weights, classes, scaling, about)


def _no_model(path: Path) -> InvalidInputError:
    is_begun = (path / CONFIG_NAME).exists()
    return InvalidInputError(
        "this is not the directory of a finished run, nor of a saved model",
        where=path,
        expected="what `ecgl run` has finished, or what ECGL.save wrote",
        fix="let it finish: ecgl run --resume" if is_begun else "choose another directory",
    )


def _config_of(path: Path, mapping: Any) -> RunConfig:
    """The config from the run's own file, or from the model's; what is wrong in it is bad input, not bad usage."""
    try:
        if mapping is None:
            return load_config(path / CONFIG_NAME)
        return config_from_mapping(mapping, where=path / ABOUT_NAME)
    except (UsageError, AttributeError, TypeError, ValueError) as error:
        what = error.what if isinstance(error, UsageError) else "it is no config"
        where = path / (CONFIG_NAME if mapping is None else ABOUT_NAME)
        raise InvalidInputError(f"the model's config cannot be read: {what}", where=where) from error


def _refuse_other_shape(
    weights: SharedWeights, classes: tuple[int, ...], config: RunConfig, num_features: int | None, where: Path
) -> None:
    """Refuse weights that took the place of others: each file is right by itself, together they predict nonsense."""
    fix = "use the weights that were written with them"
    if weights.num_classes != len(classes):
        raise InvalidInputError(
            f"the weights have {weights.num_classes} outputs for {len(classes)} classes", where=where, fix=fix
        )
    shape = method_of(config).shape(config)
    wanted = shape.widths(num_features or weights.num_features, len(classes))
    if weights.widths != wanted:
        raise InvalidInputError(
            f"the weights have the widths {list(weights.widths)}",
            where=where,
            expected=f"widths {list(wanted)}, as the config has them: input, hidden layers, classes",
            fix=fix,
        )
    if any((bias is not None) != shape.bias for _, bias in weights.layers):
        raise InvalidInputError(
            f"the model has {'a' if shape.bias else 'no'} bias by its config, and the weights are others",
            where=where,
            fix=fix,
        )
