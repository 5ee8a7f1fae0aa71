"""Kernels to start from, with what they must compute: `tilewright new`."""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidOperand
from .record import check_writable, write_text

_HEAD = """// Score it without a GPU:  tilewright check {name}
// Time it on a GPU:        tilewright bench {name}{against}
"""
STARTERS: dict[str, str] = {
    "transpose": """\
// y = x transposed, n x n. It is right, and every store asks for 32 sectors where 4 would do.
// Exercise: pass a tile through shared memory. Then look at the conflicts.
//
// check: let n = 128
// check: grid n / 32, n / 32
// check: block 32, 8
// check: arg x = f32[n, n]=random
// check: arg y = f32[n, n]=nan
// check: arg n = n
// check: reference y = x.T

__global__ void transpose(const float* x, float* y, int n) {
  int column = blockIdx.x * 32 + threadIdx.x;
  for (int i = threadIdx.y; i < 32; i += 8) {
    int row = blockIdx.y * 32 + i;
    y[column * n + row] = x[row * n + column];
  }
}
""",
    "matmul": """\
// c = a b, n x n, one element per thread. It is right, and reads each element n times from global memory.
// Exercise: bring tiles of a and b into shared memory, then give each thread several elements of c.
//
// check: let n = 64
// check: grid n / 32, n / 32
// check: block 32, 32
// check: arg a = f32[n, n]=random
// check: arg b = f32[n, n]=random
// check: arg c = f32[n, n]=nan
// check: arg n = n
// check: reference c = a.astype(np.float64) @ b
// check: tolerance 1e-4

__global__ void matmul(const float* a, const float* b, float* c, int n) {
  int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
  c[row * n + column] = sum;
}
""",
    "sum": """\
// total[0] = the sum of x, by one block. It is right; lanes that are left lie apart, so their words share banks.
// Exercise: halve the threads that are left so that those of a warp stay neighbours. Then use warp shuffles.
//
// check: let n = 4096
// check: grid 1
// check: block 256
// check: arg x = f32[n]=random
// check: arg total = f32[1]=nan
// check: arg n = n
// check: reference total = x.astype(np.float64).sum()
// check: tolerance 1e-3

__global__ void sum(const float* x, float* total, int n) {
  __shared__ float part[256];
  float mine = 0;
  for (int i = threadIdx.x; i < n; i += 256) mine += x[i];
  part[threadIdx.x] = mine;
  for (int step = 1; step < 256; step *= 2) {
    __syncthreads();
    int i = 2 * step * threadIdx.x;
    if (i < 256) part[i] += part[i + step];
  }
  if (threadIdx.x == 0) total[0] = part[0];
}
""",
}


def new_kernel(path: str | Path, kind: str = "transpose", *, force: bool = False) -> Path:
    """Write a kernel to start from, whose comments say how to check it. Return its path.

    kind: transpose, matmul or sum. force: replace a file that is there. Raises InvalidOperand.
    """
    place = Path(path)
    if kind not in STARTERS:
        raise InvalidOperand(f"kind {kind!r} is not one of {', '.join(STARTERS)}.")
    if place.suffix != ".cu":
        raise InvalidOperand(f"{place} is not a .cu file: name it {place.with_suffix('.cu')}.")
    if place.exists() and not force:
        raise InvalidOperand(f"{place} is there already. Choose another name, or replace it with --force.")
    check_writable(place)
    against = {"matmul": " --against f02 --set n=4096", "transpose": " --set n=8192"}.get(kind, "")
    write_text(place, _HEAD.format(name=place.name, against=against) + "//\n" + STARTERS[kind])
    return place
