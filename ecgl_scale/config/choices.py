"""Words that a setting may have, where several places spell it: the config, the rankings, the command line."""

from __future__ import annotations

from typing import Literal

RankKind = Literal["importance", "diversity", "both"]
Norm = Literal["l1", "l2"]
Dangling = Literal["uniform", "reset"]
Precision = Literal["auto", "float32", "float64"]
Quota = Literal["none", "class"]
Scope = Literal["task", "seen"]
Select = Literal["ecgl", "random", "herding", "kmeans"]
