"""Methods by name. A method is what it adds to the shared loop; see ``base``."""

from __future__ import annotations

from importlib import import_module

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.methods.base import Method
from ecgl_scale.learn.methods.cat import Cat
from ecgl_scale.learn.methods.continualgnn import Continualgnn
from ecgl_scale.learn.methods.dygrain import Dygrain
from ecgl_scale.learn.methods.ecgl import Ecgl
from ecgl_scale.learn.methods.ergnn import Ergnn
from ecgl_scale.learn.methods.ewc import Ewc
from ecgl_scale.learn.methods.finetune import Finetune
from ecgl_scale.learn.methods.gem import Gem
from ecgl_scale.learn.methods.joint import Joint
from ecgl_scale.learn.methods.lwf import Lwf
from ecgl_scale.learn.methods.mas import Mas
from ecgl_scale.learn.methods.ssm import Ssm
from ecgl_scale.learn.methods.twp import Twp

METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (Ecgl, Finetune, Joint, Lwf, Ewc, Mas, Gem, Twp, Ergnn, Ssm, Cat, Dygrain, Continualgnn)
}


def method_of(config: RunConfig) -> Method:
    """The method of a config, which must be able to learn with its settings."""
    method = create_method(config.method)
    if config.learn.train_as not in method.backbones:
        raise UsageError(
            f"learn.train_as is {config.learn.train_as}, which {config.method} cannot be trained as",
            expected=" or ".join(method.backbones),
        )
    method.check(config)
    return method


def create_method(name: str) -> Method:
    """The method of this name, or of the class that ``package.module:Class`` names."""
    if ":" in name:
        return _own_method(name)
    if name not in METHODS:
        raise UsageError(f"there is no method {name!r}", expected=", ".join(sorted(METHODS)))
    return METHODS[name]()


def _own_method(name: str) -> Method:
    module_name, _, class_name = name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever someone else's module does when it is imported
        raise UsageError(
            f"the module of the method {name} cannot be imported: {type(error).__name__}: {error}",
            fix="install it, or name its folder in PYTHONPATH",
        ) from error
    kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, Method) and isinstance(getattr(kind, "name", None), str)):
        raise UsageError(
            f"{name} is no method",
            where=getattr(module, "__file__", module_name),
            expected="a class with ecgl_scale.learn.methods.base.Method as its base, and a name",
            fix="begin with docs/method_template.py",
        )
    try:
        return kind()
    except TypeError as error:
        raise UsageError(f"the method {name} cannot be made: {error}", expected="a class without arguments") from error
