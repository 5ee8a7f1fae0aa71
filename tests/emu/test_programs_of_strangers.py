"""Whole CUDA programs in the style of public ones: host code, libraries and short type names around the kernels."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

SGEMM = r"""
#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <fstream>
#include <iostream>
#include <vector>

#define CEIL_DIV(M, N) (((M) + (N)-1) / (N))
#define cudaCheck(err) (cudaCheck_((err), __FILE__, __LINE__))
const uint WARP = 32;
static cublasHandle_t handle;
const std::string errLogFile = "matrixValidationFailure.txt";
void cudaCheck_(cudaError_t error, const char *file, int line);
float *d_A = nullptr, *d_B = nullptr;

__global__ void naive(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  const uint x = blockIdx.x * blockDim.x + threadIdx.x;
  const uint y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < M && y < N) {
    float sum = 0.0;
    for (int i = 0; i < K; ++i) sum += A[x * K + i] * B[i * N + y];
    C[x * N + y] = alpha * sum + beta * C[x * N + y];
  }
}

template <const uint SIZE>
__global__ void coalesced(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  const int row = blockIdx.x * SIZE + (threadIdx.x / SIZE);
  const int column = blockIdx.y * SIZE + (threadIdx.x % SIZE);
  if (row < M && column < N) {
    float sum = 0.0;
    for (int i = 0; i < K; ++i) sum += A[row * K + i] * B[i * N + column];
    C[row * N + column] = alpha * sum + beta * C[row * N + column];
  }
}

template <const int SIZE>
__global__ void shared(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  __shared__ float As[SIZE * SIZE], Bs[SIZE * SIZE];
  const uint row = blockIdx.x, column = blockIdx.y, tx = threadIdx.x % SIZE, ty = threadIdx.x / SIZE;
  A += row * SIZE * K;
  B += column * SIZE;
  C += row * SIZE * N + column * SIZE;
  float sum = 0.0;
  for (int block = 0; block < K; block += SIZE) {
    As[ty * SIZE + tx] = A[ty * K + tx];
    Bs[ty * SIZE + tx] = B[ty * N + tx];
    __syncthreads();
    A += SIZE;
    B += SIZE * N;
    for (int i = 0; i < SIZE; ++i) sum += As[ty * SIZE + i] * Bs[i * SIZE + tx];
    __syncthreads();
  }
  C[ty * N + tx] = alpha * sum + beta * C[ty * N + tx];
}

template <const int BM, const int BN, const int BK, const int TM>
__global__ void tile1d(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  __shared__ float As[BM * BK];
  __shared__ float Bs[BK * BN];
  const int column = threadIdx.x % BN, row = threadIdx.x / BN;
  A += blockIdx.y * BM * K;
  B += blockIdx.x * BN;
  C += blockIdx.y * BM * N + blockIdx.x * BN;
  assert(BM * BK == blockDim.x);
  const uint aColumn = threadIdx.x % BK, aRow = threadIdx.x / BK, bColumn = threadIdx.x % BN, bRow = threadIdx.x / BN;
  float results[TM] = {0.0};
  for (uint block = 0; block < K; block += BK) {
    As[aRow * BK + aColumn] = A[aRow * K + aColumn];
    Bs[bRow * BN + bColumn] = B[bRow * N + bColumn];
    __syncthreads();
    A += BK;
    B += BK * N;
    for (uint i = 0; i < BK; ++i) {
      float b = Bs[i * BN + column];
      for (uint j = 0; j < TM; ++j) results[j] += As[(row * TM + j) * BK + i] * b;
    }
    __syncthreads();
  }
  for (uint j = 0; j < TM; ++j) {
    float *c = C + (row * TM + j) * N + column;
    *c = alpha * results[j] + beta * *c;
  }
}

template <const int BM, const int BN, const int BK, const int TM, const int TN>
__global__ void __launch_bounds__((BM * BN) / (TM * TN), 1)
    tile2d(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  __shared__ float As[BM * BK];
  __shared__ float Bs[BK * BN];
  const uint threads = BM * BN / (TM * TN), column = threadIdx.x % (BN / TN), row = threadIdx.x / (BN / TN);
  A += blockIdx.y * BM * K;
  B += blockIdx.x * BN;
  C += blockIdx.y * BM * N + blockIdx.x * BN;
  float results[TM * TN] = {0.0}, m[TM], n[TN];
  for (uint block = 0; block < K; block += BK) {
    for (uint k = threadIdx.x; k < BM * BK; k += threads) As[k] = A[(k / BK) * K + k % BK];
    for (uint k = threadIdx.x; k < BK * BN; k += threads) Bs[k] = B[(k / BN) * N + k % BN];
    __syncthreads();
    A += BK;
    B += BK * N;
    for (uint i = 0; i < BK; ++i) {
      for (uint j = 0; j < TM; ++j) m[j] = As[(row * TM + j) * BK + i];
      for (uint j = 0; j < TN; ++j) n[j] = Bs[i * BN + column * TN + j];
      for (uint a = 0; a < TM; ++a)
        for (uint b = 0; b < TN; ++b) results[a * TN + b] += m[a] * n[b];
    }
    __syncthreads();
  }
  for (uint a = 0; a < TM; ++a)
    for (uint b = 0; b < TN; ++b) {
      float &c = C[(row * TM + a) * N + column * TN + b];
      c = alpha * results[a * TN + b] + beta * c;
    }
}

void run_shared(int M, int N, int K, float alpha, float *A, float *B, float beta, float *C) {
  dim3 gridDim(CEIL_DIV(M, 32), CEIL_DIV(N, 32));
  cudaFuncSetAttribute(shared<32>, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  shared<32><<<gridDim, 32 * 32>>>(M, N, K, alpha, A, B, beta, C);
}

int main(int argc, char **argv) {
  if (argc != 2) { std::cerr << "Please select a kernel" << std::endl; exit(EXIT_FAILURE); }
  if (cublasCreate(&handle)) { std::cerr << "Create cublas handle error." << std::endl; };
  cudaEvent_t beg, end;
  cudaEventCreate(&beg);
  std::vector<int> SIZE = {128, 256, 512};
  cudaCheck(cudaMalloc((void **)&d_A, sizeof(float) * 512 * 512));
  for (int size : SIZE) { run_shared(size, size, size, 0.5, d_A, d_B, 3.0, d_A); }
  return 0;
};
"""


@pytest.mark.parametrize(
    ("entry", "grid", "block"),
    [
        ("naive", (2, 2), (32, 32)),
        ("coalesced<16>", (4, 4), 256),
        ("shared<16>", (4, 4), 256),
        ("tile1d<64, 64, 8, 8>", (1, 1), 512),
        ("tile2d<32, 32, 8, 4, 4>", (2, 2), 64),
    ],
)
def test_the_steps_of_a_matrix_product_run_from_a_benchmark_program(entry, grid, block):
    random = np.random.default_rng(1)
    a, b, c = (random.standard_normal((64, 64)).astype(np.float32) for _ in range(3))
    args = {"M": 64, "N": 64, "K": 64, "alpha": 0.5, "A": a, "B": b, "beta": 3.0, "C": c}
    result = tw.emulate(SGEMM, entry, grid, block, args)
    np.testing.assert_allclose(result.named["C"], 0.5 * (a @ b) + 3 * c, rtol=2e-4, atol=2e-4)


SOFTMAX = r"""
/* Kernels for a softmax over rows, and a host program that compares them. */
#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include <assert.h>
#include <float.h>
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include "common.h"

// on the host, the reference
void softmax_forward_cpu(float* out, const float* inp, int N, int C) {
    for (int i = 0; i < N; i++) {
        float maxval = -INFINITY;
        for (int j = 0; j < C; j++) { if (inp[i * C + j] > maxval) { maxval = inp[i * C + j]; } }
    }
}

template<class T>
__global__ void softmax_forward_kernel(T* out, const T* inp, int N, int C) {
    namespace cg = cooperative_groups;
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row >= N) { return; }
    const T* x = inp + row * C;
    float maxval = -INFINITY;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) { maxval = fmaxf(maxval, (float)x[i]); }
    maxval = cg::reduce(warp, maxval, cg::greater<float>{});
    float sum = 0.0f;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) { sum += expf((float)x[i] - maxval); }
    sum = cg::reduce(warp, sum, cg::plus<float>{});
    T* y = out + row * C;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) { y[i] = (T)(expf((float)x[i] - maxval) / sum); }
}

void softmax_forward(int kernel_num, float* out, const float* inp, int N, int C, const int block_size) {
    switch (kernel_num) {
        case 1: softmax_forward_kernel<<<ceil_div(N * 32, block_size), block_size>>>(out, inp, N, C); break;
        default: printf("Invalid kernel number\n"); exit(1);
    }
    cudaCheck(cudaGetLastError());
}

int main(int argc, char **argv) {
    setup_main();
    srand(0);
    const int* outliers = make_random_int(10, 5);
    float elapsed_time = benchmark_kernel(100, softmax_forward, 1, nullptr, nullptr, 8, 16, 32);
    free((void*)outliers);
    return 0;
}
"""
COMMON = r"""#pragma once
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <chrono>

template<class T>
__host__ __device__ T ceil_div(T dividend, T divisor) { return (dividend + divisor-1) / divisor; }
void cuda_check(cudaError_t error, const char *file, int line) { if (error != cudaSuccess) { exit(EXIT_FAILURE); } };
#define cudaCheck(err) (cuda_check(err, __FILE__, __LINE__))
const size_t cublaslt_workspace_size = 32 * 1024 * 1024;
void* cublaslt_workspace = NULL;
cublasComputeType_t cublas_compute_type;
cublasHandle_t cublas_handle;
int cuda_arch_major = 0, cuda_num_SMs;
struct Timer { std::chrono::steady_clock::time_point begin; cudaEvent_t start; };
template<typename Kernel, typename... Args>
float benchmark_kernel(int repeats, Kernel kernel, Args&&... args) { return 0.f; }
#if defined(ENABLE_BF16)
typedef __nv_bfloat16 floatX;
#else
typedef float floatX;
#endif
"""


@pytest.mark.parametrize("kind", ["floatX", "__nv_bfloat16"])
def test_a_softmax_with_cooperative_groups_and_a_header_of_host_helpers_runs(kind, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    (tmp_path / "common.h").write_text(COMMON)
    (tmp_path / "softmax.cu").write_text(SOFTMAX)
    x = np.random.default_rng(2).standard_normal((6, 45)).astype("f4" if kind == "floatX" else ml_dtypes.bfloat16)
    args = [np.zeros_like(x), x, 6, 45]
    result = tw.emulate(tmp_path / "softmax.cu", f"softmax_forward_kernel<{kind}>", 2, 128, args)
    want = np.exp(x.astype("f8") - x.astype("f8").max(axis=1, keepdims=True))
    want /= want.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(result.arrays[0].astype("f8"), want, rtol=1e-5 if kind == "floatX" else 1e-2)


REDUCTION = r"""
#include <helper_cuda.h>
#include <helper_functions.h>
#include <algorithm>
#include <cooperative_groups.h>
using namespace std;
typedef unsigned int UINT;
StopWatchInterface *timer = NULL;
enum ReduceType { REDUCE_INT, REDUCE_FLOAT };
template <class T> struct SharedMemory {
  __device__ inline operator T *() { extern __shared__ int __smem[]; return (T *)__smem; }
};
template <class T> __device__ __forceinline__ T warpReduceSum(uint mask, T mySum) {
  for (int offset = warpSize / 2; offset > 0; offset /= 2) mySum += __shfl_down_sync(mask, mySum, offset);
  return mySum;
}
template <typename T, uint blockSize, bool nIsPow2>
__global__ void reduce(const T *__restrict__ g_idata, T *__restrict__ g_odata, uint n) {
  T *sdata = SharedMemory<T>();
  uint tid = threadIdx.x, i = blockIdx.x * blockSize + threadIdx.x, gridSize = blockSize * gridDim.x;
  T mySum = 0;
  while (i < n) { mySum += g_idata[i]; i += gridSize; }
  mySum = warpReduceSum<T>(0xffffffff, mySum);
  if ((tid % warpSize) == 0) sdata[tid / warpSize] = mySum;
  __syncthreads();
  const uint shmem_extent = (blockSize / warpSize) > 0 ? (blockSize / warpSize) : 1;
  const uint ballot_result = __ballot_sync(0xffffffff, tid < shmem_extent);
  if (tid < shmem_extent) {
    mySum = sdata[tid];
    for (int offset = shmem_extent / 2; offset > 0; offset /= 2) mySum += __shfl_xor_sync(ballot_result, mySum, offset);
  }
  if (tid == 0) g_odata[blockIdx.x] = mySum;
}
bool isPow2(uint x) { return ((x & (x - 1)) == 0); }
template <class T> void reduce(int size, int threads, int blocks, T *d_idata, T *d_odata) {
  dim3 dimBlock(threads, 1, 1);
#if CUDART_VERSION >= 13000
  if (isPow2(size)) {
#else
  if (size & 1) {
#endif
    reduce<T, 256, true><<<blocks, dimBlock, 32 * sizeof(T)>>>(d_idata, d_odata, size);
  }
}
template void reduce<int>(int size, int threads, int blocks, int *d_idata, int *d_odata);
template void reduce<float>(int size, int threads, int blocks, float *d_idata, float *d_odata);
template <class T> bool runTest(int argc, char **argv, ReduceType datatype);
int main(int argc, char **argv) { printf("%s Starting...\n\n", argv[0]); return 0; }
"""


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64"])
def test_a_reduction_with_shuffles_runs_from_a_sample_with_instantiations(dtype):
    kind = {"float32": "float", "int32": "int", "float64": "double"}[dtype]
    x = np.random.default_rng(3).integers(-100, 100, 5000).astype(dtype)
    args = [x, np.zeros(4, dtype), 5000]
    result = tw.emulate(REDUCTION, f"reduce<{kind}, 256, false>", 4, 256, args, shared_bytes=256)
    assert result.arrays[1].sum() == x.sum()


HISTOGRAM = """\ufeff// saved by an editor that marks the order of bytes
#include <stdint.h>
#include <iostream>
#include <thrust/device_vector.h>
#include <cub/device/device_histogram.cuh>
using namespace std::chrono;
#define BINS 64
__constant__ uchar shift;
typedef struct { uint count; float share; } Bin;
std::vector<uint> cpu(const uchar *data, size_t n);
texture_reference_of_old *unused;
__global__ void histogram(const uchar *__restrict__ data, ulong n, uint *out) {
  __shared__ uint bins[BINS];
  for (uint k = threadIdx.x; k < BINS; k += blockDim.x) bins[k] = 0;
  __syncthreads();
  for (ulong k = blockIdx.x * blockDim.x + threadIdx.x; k < n; k += blockDim.x * gridDim.x)
    atomicAdd(&bins[data[k] >> shift], 1u);
  __syncthreads();
  for (uint k = threadIdx.x; k < BINS; k += blockDim.x) atomicAdd(out + k, bins[k]);
}
int main() { auto start = high_resolution_clock::now(); histogram<<<1, 1>>>(0, 0, 0); cudaMemcpyToSymbol(shift, 0, 1); }
"""


def test_a_histogram_with_atomics_and_a_constant_runs():
    source = HISTOGRAM.replace("#define BINS", "typedef unsigned char uchar;\n#define BINS")
    data = np.random.default_rng(4).integers(0, 256, 3000).astype(np.uint8)
    args = [data, data.size, np.zeros(64, np.uint32)]
    result = tw.emulate(source, "histogram", 3, 128, args, constants={"shift": np.uint8(2)})
    assert result.arrays[1].tolist() == np.bincount(data >> 2, minlength=64).tolist()


CUB = """
#include <cub/cub.cuh>
#include <iostream>
template <int THREADS>
__global__ void sums(const int *x, int *out) {
  using Reduce = cub::BlockReduce<int, THREADS>;
  __shared__ typename Reduce::TempStorage storage;
  int sum = Reduce(storage).Sum(x[blockIdx.x * THREADS + threadIdx.x]);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
int main() {
  size_t bytes = 0;
  cub::DeviceReduce::Sum(nullptr, bytes, (int *)nullptr, (int *)nullptr, 5);
  std::cout << bytes << std::endl;
}
"""


def test_parts_of_cub_run_from_a_program_that_includes_all_of_it():
    x = np.arange(256, dtype=np.int32)
    out = tw.emulate(CUB, "sums<128>", 2, 128, [x, np.zeros(2, np.int32)]).arrays[1]
    assert out.tolist() == [x[:128].sum(), x[128:].sum()]


EXTENSION = r"""
#include <torch/extension.h>
#include <torch/types.h>
#include <cuda_fp16.h>
#define STRINGFY(str) #str
#define TORCH_BINDING_COMMON_EXTENSION(func) m.def(STRINGFY(func), &func, STRINGFY(func));
#define FLOAT4(value) (reinterpret_cast<float4 *>(&(value))[0])
#define HALF2(value) (reinterpret_cast<half2 *>(&(value))[0])
__device__ __forceinline__ half gelu(half x) { return x * (half(0.5f) + half(0.5f) * htanh(x)); }
__global__ void gelu_f16x2_kernel(half *x, half *y, int N) {
  int idx = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (idx < N) {
    half2 reg = HALF2(x[idx]);
    HALF2(y[idx]) = __halves2half2(gelu(reg.x), hexp(reg.y));
  }
}
#define TORCH_BINDING_GELU(packed_type, th_type, element_type) \
  void gelu_##packed_type(torch::Tensor x, torch::Tensor y) { \
    CHECK_TORCH_TENSOR_DTYPE(x, (th_type)) \
    gelu_##packed_type##_kernel<<<1, 256>>>(reinterpret_cast<element_type *>(x.data_ptr()), nullptr, 5); \
  }
TORCH_BINDING_GELU(f16x2, torch::kHalf, half)
at::Tensor forward(at::Tensor x) { AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "f", [&] { return x; }); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { TORCH_BINDING_COMMON_EXTENSION(gelu_f16x2) }
"""


def test_a_kernel_of_a_torch_extension_runs_and_transcendental_functions_of_half_with_it():
    x = np.linspace(-2, 2, 64).astype(np.float16)
    out = tw.emulate(EXTENSION, "gelu_f16x2_kernel", 1, 32, [x, np.zeros_like(x), 64]).arrays[1]
    want = np.where(np.arange(64) % 2, np.exp(x.astype("f8")), x * (0.5 + 0.5 * np.tanh(x.astype("f8"))))
    np.testing.assert_allclose(out, want, rtol=5e-3, atol=5e-3)


def test_lambdas_that_say_where_they_run_and_types_that_nvcc_brings_are_taken():
    source = """
#include <functional>
#include <iostream>
template <int N> __global__ void apply(uint32_t *x, uint64_t limit) {
    auto scaled = [=] __device__ (uint32_t v) { return v * N; };
    auto least = [] __host__ __device__ (uint64_t a, uint64_t b) { return a < b ? a : b; };
    x[threadIdx.x] = least(scaled(x[threadIdx.x]), limit % UINT32_MAX);
}
int main() { std::function<void()> run = [] { apply<3><<<1, 32>>>(nullptr, 9); }; run(); std::cout << "done\\n"; }
"""
    result = tw.emulate(source, "apply<3>", 1, 32, ["u32[32]=arange", 9])
    assert result.arrays[0].tolist() == [min(3 * i, 9) for i in range(32)]


def test_macros_of_one_letter_do_not_reach_the_lines_that_ask_for_the_entry():
    macros = "".join(f"#define {name} 16\n" for name in ["A", "N", "T", "of", "code", "codes", "parameters"])
    source = macros + "__global__ void k(float *x) { x[threadIdx.x] = T; }"
    assert tw.emulate(source, "k", 1, 32, ["f32[32]"]).arrays[0].tolist() == [16] * 32
