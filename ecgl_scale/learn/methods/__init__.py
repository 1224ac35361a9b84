"""Methods by name. A method is what it adds to the shared loop; see ``base``."""

from __future__ import annotations

from ecgl_scale.errors import UsageError
from ecgl_scale.learn.methods.base import Method
from ecgl_scale.learn.methods.ecgl import Ecgl
from ecgl_scale.learn.methods.finetune import Finetune
from ecgl_scale.learn.methods.joint import Joint

METHODS: dict[str, type[Method]] = {kind.name: kind for kind in (Ecgl, Finetune, Joint)}


def create_method(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise UsageError(f"there is no method {name!r}", expected=", ".join(sorted(METHODS)))
    return METHODS[name]()
