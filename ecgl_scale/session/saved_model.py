"""A trained model as files: weights, the class of each output, scaling and config; all that a prediction needs.

a run           weights/model.safetensors   weights/model.json   config.yaml
ECGL.save       model.safetensors           model.json (with the config in it)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecgl_scale.base.durable import write_atomically
from ecgl_scale.config.schema import RunConfig, config_from_mapping, load_config
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.session.checkpoint import WEIGHTS_DIRECTORY
from ecgl_scale.session.directory import CONFIG_NAME
from ecgl_scale.session.seal import Seal
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
    def forgotten(self) -> list[int]:
        """Outputs of classes that were forgotten: they are never predicted."""
        return [self.classes.index(label) for label in self.more.get(FORGOTTEN_CLASSES, ())]


def save_model(
    directory: Path, weights: SharedWeights, classes: tuple[int, ...], scaling: Scaling, **more: Any
) -> None:
    """Write weights and what they mean to a directory, which must be there."""
    weights.save(directory / MODEL_NAME)
    about = {
        "classes": list(classes),
        "scaling": json.loads(scaling.to_json()),
        "num_features": weights.num_features,
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
    seal = Seal.read(path)
    if seal is not None:
        seal.check(path, config, f"{WEIGHTS_DIRECTORY}/{MODEL_NAME}", f"{WEIGHTS_DIRECTORY}/{ABOUT_NAME}")
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
    wanted = (num_features or weights.num_features, *config.learn.hidden, len(classes))
    if weights.widths != wanted:
        raise InvalidInputError(
            f"the weights have the widths {list(weights.widths)}",
            where=where,
            expected=f"widths {list(wanted)}, as the config has them: features, hidden layers, classes",
            fix=fix,
        )
    if any((bias is not None) != config.learn.bias for _, bias in weights.layers):
        raise InvalidInputError(
            f"learn.bias is {str(config.learn.bias).lower()}, and the weights are others", where=where, fix=fix
        )
