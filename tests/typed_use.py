"""What a type checker knows of the public names: mypy reads this file (pyproject.toml), nothing runs it.

An ignore that is not needed is an error there: each line that has one must be found wrong.
"""

import numpy as np

import tilewright as tw

a = np.zeros((4, 4), np.float32)
text: str = str(tw.explain(a, a, gpu="H200"))
with tw.emulator(gpu="A100") as emulator:
    tw.matmul(a, a, alpha=1.5, rung="f12", deterministic=True)
    launches: int = emulator.last.counters.thread_instructions
    emulator.lastt  # type: ignore[attr-defined]  # noqa: B018
tw.matmull(a, a)  # type: ignore[attr-defined]
tw.matmul(a)  # type: ignore[call-arg]
tw.matmul(a, a, rung=12)  # type: ignore[arg-type]
tw.explain(a, a, gpu=3)  # type: ignore[arg-type]
c: np.ndarray = tw.matmul(a, a, precision="tf32", activation="silu")
words_of: str = tw.matmul(a, a)  # type: ignore[assignment]
tw.matmul(a, a, precision="tf-32")  # type: ignore[arg-type]
tw.matmul(a, a, activation="swish")  # type: ignore[arg-type]
tw.matmul("a", 3)  # type: ignore[type-var]
o: np.ndarray = tw.attention(a, a, a, is_causal=True)
o, lse = tw.attention(a, a, a, return_lse=True)
tw.attention(a, a, a, is_casual=True)  # type: ignore[call-overload]
tw.attention(a, a, a, layout="hsd")  # type: ignore[call-overload]
tw.emulate("", "k", 1, 32, [], hazards="ignore")  # type: ignore[arg-type]
told: tw.Explanation = tw.explain(a, a)
tuned: tw.Tuned
config: tw.GemmConfig = tw.ladder.GemmConfig(64, 64)
boards = tw.gpus.GPUS
try:
    tw.matmul(a, a, verify=True)
except tw.errors.WrongResult as error:
    words: str = str(error)
