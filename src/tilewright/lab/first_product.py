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

from tilewright.lab.check import check  # noqa: E402

out, left, right, library = (array.float().cpu().numpy() for array in (result, a, b, a @ b))
exact = (a.double() @ b.double()).cpu().numpy()
dtype, out_dtype = ({torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[x.dtype] for x in (a, result))
verdict = check(out, left, right, library=library, expected=exact, dtype=dtype, out_dtype=out_dtype)
print(json.dumps({"wrong": verdict.reason, "seconds": seconds, "import_seconds": imported - start}))
