"""The origin of records that are made with torch."""

from __future__ import annotations

from typing import Any

from ..errors import MissingDependency, install
from .climb_gpu import driver_version
from .record import provenance


def torch_origin(what: str) -> tuple[Any, dict[str, Any]]:
    """torch, and the provenance of records made with it on its first GPU. `what` needs it: "the suite of fp8".

    Raises MissingDependency.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(f"{what} needs torch: {install('bench')}") from error
    return torch, provenance(
        machine_kind="gpu", gpu=torch.cuda.get_device_name(0), driver=driver_version(),
        reference_version=f"torch {torch.__version__}",
    )  # fmt: skip
