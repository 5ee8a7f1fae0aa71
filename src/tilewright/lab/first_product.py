"""A program, run by cold.py as text in a process of its own: one product, timed from before the import, then judged."""

import json
import sys
import time

import torch

m, n, k = map(int, sys.argv[1:4])
dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[sys.argv[4]]
a, b = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((m, k), (k, n)))
torch.cuda.synchronize()
start = time.perf_counter()
import tilewright  # noqa: E402

imported = time.perf_counter()
result = tilewright.matmul(a, b)
torch.cuda.synchronize()
seconds = time.perf_counter() - start
exact = a.double() @ b.double()
error = float((result.double() - exact).abs().max())
step = {torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
right = bool(torch.isfinite(result).all()) and error <= step * float(exact.abs().max()) + k * 2**-22
print(json.dumps({"right": right, "seconds": seconds, "import_seconds": imported - start}))
