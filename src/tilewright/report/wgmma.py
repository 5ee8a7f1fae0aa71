"""The tables of the records of h12 and h13, besides the ladder's."""

from __future__ import annotations

from .cells import Column, config, milliseconds, result, rung, share, spread

_PRODUCT: tuple[Column, ...] = (
    ("m x n x k", lambda record: "{m} x {n} x {k}".format(**record["case"])),
    ("layout", lambda record: str(record["case"]["layout"]).upper()),
)
STEPS: tuple[Column, ...] = (
    ("step", lambda record: str(record["case"]["step"])),
    ("k 4096", result("ratio_k4096", ".3f")),
    ("k 1024", result("ratio_k1024", ".3f")),
)
TILES: tuple[Column, ...] = (
    *_PRODUCT,
    ("rung", rung),
    ("config", config),
    ("blocks per SM", lambda record: str(record["case"]["min_blocks"])),
    ("ms", milliseconds),
    ("of cuBLAS", share("ratio")),
    ("p10..p90", spread),
)
SECTORS: tuple[Column, ...] = (
    *_PRODUCT,
    ("lines", lambda record: str(record["case"]["lines"])),
    ("copied", lambda record: str(record["case"]["way"])),
    ("ms", milliseconds),
    ("of cuBLAS", share("ratio")),
    ("p10..p90", spread),
)
