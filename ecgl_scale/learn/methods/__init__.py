"""Methods by name. A method is what it adds to the shared loop; see ``base``."""

from __future__ import annotations

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


def create_method(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise UsageError(f"there is no method {name!r}", expected=", ".join(sorted(METHODS)))
    return METHODS[name]()
