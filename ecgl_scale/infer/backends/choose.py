"""Which backend ``auto`` stands for, and the backend of a name."""

from __future__ import annotations

import sys
from pathlib import Path

from ecgl_scale.errors import UsageError
from ecgl_scale.infer.backends.backend import Backend
from ecgl_scale.infer.settings import InferSettings

NVIDIA = Path("/dev/nvidiactl")
SHARE_OF_DEVICE = 0.8
"""The share of a device's free memory that is used: allocators and libraries need some too."""


def choose_backend(settings: InferSettings) -> str:
    """``auto``: torch on CUDA where there is a device and nobody forbade it, else our own kernels."""
    if settings.backend != "auto":
        return settings.backend
    if settings.device.startswith("cuda"):
        return "torch"
    if settings.device == "cpu" or not ("torch" in sys.modules or NVIDIA.exists()):
        return "numba"  # without loading torch only to be told so
    try:
        import torch
    except ImportError:
        return "numba"
    return "torch" if torch.cuda.is_available() else "numba"


def make_backend(name: str, settings: InferSettings, threads: int) -> Backend:
    """The backend of this name; what it needs is imported here and not before."""
    if name == "numba":
        from ecgl_scale.infer.backends.numba_backend import NumbaBackend

        return NumbaBackend(threads)
    if name == "dgl":
        from ecgl_scale.infer.backends.dgl_backend import DglBackend

        return DglBackend(threads)
    try:
        from ecgl_scale.infer.backends.torch_backend import TorchBackend
    except ImportError as error:
        raise UsageError("torch is not installed here", fix="pip install torch, or backend: numba") from error
    return TorchBackend(settings.device, threads)


def find_device_room(name: str, settings: InferSettings) -> int | None:
    """Memory that the backend may use on another device; None where it works in ours."""
    if name != "torch" or settings.device == "cpu":
        return None
    import torch

    from ecgl_scale.infer.backends.torch_backend import find_device

    device = find_device(settings.device)
    if device.type == "cpu":
        return None
    return int(torch.cuda.mem_get_info(device)[0] * SHARE_OF_DEVICE)
