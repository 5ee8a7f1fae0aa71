// halve: an fp32 operand as one or two scaled fp16 numbers per element, lines along k, as t04 and t05 read them by TMA
// (tile/halved.cuh). A line is read for its largest magnitude first, and again, from registers and caches mostly.
//
//     Cfg::k_inner    a block makes a line; threads take four neighbours along k
//     else            a cluster makes 32 lines, side by side in memory: each block takes a part of k, a lane a line
#include "ptx/cluster.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/number16.cuh"
#include "ptx/shared.cuh"
#include "tile/halved.cuh"

/// gemm/params.py packs it. Strides in elements: element (line, i) is at from[line * line_stride + i * k_stride].
struct HalveArgs {
  const float* from;
  void* to;  // tile/halved.cuh
  long long from_batch, line_stride, k_stride;
  int lines, k;
};

using Operand = Halved<Cfg::parts>;
constexpr unsigned infinity = 0x7f800000;

__device__ inline unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffff; }

/// How to scale a line whose largest magnitude has these bits.
struct Scale {
  int exponent;  // of the factor
  float first, second;

  __device__ explicit Scale(unsigned most) {
    const int top = most >= 0x00800000 ? int(most >> 23) - 127 : -118 - __clz(most);
    exponent = most == 0 || most >= infinity ? 0 : 14 - top;
    const int half = exponent / 2;
    first = __uint_as_float((127 + half) << 23), second = __uint_as_float((127 + exponent - half) << 23);
  }

  /// The parts of an element, in the low half of each word. Counts it where it is small.
  __device__ void apply(float x, unsigned (&part)[Cfg::parts], int& count) const {
    const float scaled = x * first * second;
    count += x != 0 && fabsf(scaled) < Operand::small;
    const f16 high = from_float<f16>(scaled);
    part[0] = high.bits;
    if constexpr (Cfg::parts == 2) part[1] = from_float<f16>((scaled - to_float(high)) * 2048).bits;
  }
  /// `count` elements; two to a word.
  template <int count>
  __device__ void apply(const float (&x)[count], unsigned (&word)[Cfg::parts][count / 2], int& small) const {
#pragma unroll
    for (int i = 0; i < count; i += 2) {
      unsigned low[Cfg::parts], high[Cfg::parts];
      apply(x[i], low, small), apply(x[i + 1], high, small);
#pragma unroll
      for (int p = 0; p < Cfg::parts; ++p) word[p][i / 2] = low[p] | high[p] << 16;
    }
  }
};

/// Up to four elements from `from` on, `step` apart; `left` exist, the others are 0.
__device__ inline void load_four(float (&to)[4], const float* from, long long step, int left) {
  if (Cfg::wide && left >= 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = i < left ? from[i * step] : 0.f;
  }
}

/// One line by a whole block. Its first elements stay in registers.
__device__ inline void halve_line(const HalveArgs& args, const Operand& operand, const float* from) {
  constexpr int warps = Cfg::threads / 32, pass = 4 * Cfg::threads, held = 4;
  __shared__ unsigned joined[2 * warps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto load = [&](float (&x)[4], int k) { load_four(x, from + k * args.k_stride, args.k_stride, args.k - k); };
  unsigned most = 0;
  const auto watch = [&](const float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) most = max(most, magnitude(x[i]));
  };
  float first[held][4];
#pragma unroll
  for (int i = 0; i < held; ++i) load(first[i], i * pass + 4 * threadIdx.x);
#pragma unroll
  for (int i = 0; i < held; ++i) watch(first[i]);
#pragma unroll 4
  for (int k = held * pass + 4 * threadIdx.x; k < args.k; k += pass) {
    float x[4];
    load(x, k), watch(x);
  }
  most = __reduce_max_sync(~0u, most);
  if (lane == 0) joined[warp] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < warps; ++w) most = max(most, joined[w]);
  const Scale scale(most);
  int small = 0;
  const auto store = [&](const float (&x)[4], int k) {
    unsigned word[Cfg::parts][2];
    scale.apply(x, word, small);
#pragma unroll
    for (int p = 0; p < Cfg::parts; ++p)
      *reinterpret_cast<uint2*>(operand.part(blockIdx.y, p, blockIdx.x) + k) = make_uint2(word[p][0], word[p][1]);
  };
#pragma unroll
  for (int i = 0; i < held; ++i)
    if (const int k = i * pass + 4 * threadIdx.x; k < args.k) store(first[i], k);
#pragma unroll 4
  for (int k = held * pass + 4 * threadIdx.x; k < args.k; k += pass) {
    float x[4];
    load(x, k), store(x, k);
  }
  small = __reduce_add_sync(~0u, unsigned(small));
  if (lane == 0) joined[warps + warp] = small;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < warps; ++w) small += joined[warps + w];
  operand.line(blockIdx.y, blockIdx.x) = {-scale.exponent, small * Operand::lost};
}

/// Joins a value per line of a block's warps and of the cluster's blocks. Every thread calls it.
template <class Join>
__device__ inline unsigned join_lines(unsigned value, unsigned (&of_warp)[Cfg::threads / 32][32], Join join) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  of_warp[warp][lane] = value;
  __syncthreads();
  if (warp == 0) {
#pragma unroll
    for (int w = 1; w < Cfg::threads / 32; ++w) value = join(value, of_warp[w][lane]);
    of_warp[0][lane] = value;
  }
  cluster_sync();
  value = load_of_block(shared_address(&of_warp[0][lane]), 0);
#pragma unroll
  for (int block = 1; block < Cfg::share; ++block)
    value = join(value, load_of_block(shared_address(&of_warp[0][lane]), block));
  return value;
}

/// 32 lines by a cluster, whose first elements are neighbours. Its blocks share k.
__device__ inline void halve_lines(const HalveArgs& args, const Operand& operand, const float* from) {
  constexpr int warps = Cfg::threads / 32, run = 16;
  __shared__ unsigned most_of[warps][32], small_of[warps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = blockIdx.x / Cfg::share * 32 + lane;
  const int own = (args.k + run * Cfg::share - 1) / (run * Cfg::share) * run;  // of k, for each block
  const int first = int(cluster_rank()) * own, last = min(first + own, args.k);
  const bool exists = line < args.lines;
  from += line * args.line_stride;
  unsigned most = 0;
  if (exists)
#pragma unroll 16
    for (int k = first + warp; k < last; k += warps) most = max(most, magnitude(from[k * args.k_stride]));
  const Scale scale(join_lines(most, most_of, [](unsigned a, unsigned b) { return max(a, b); }));
  int small = 0;
  // Two lanes share out each sector of 32 bytes: they swap halves of their lines' runs first.
  const bool odd = lane % 2;
  for (int k = first + run * warp; k < last; k += run * warps) {
    float x[run];
    unsigned word[Cfg::parts][run / 2];
#pragma unroll
    for (int i = 0; i < run; ++i) x[i] = exists && k + i < last ? from[(k + i) * args.k_stride] : 0.f;
    scale.apply(x, word, small);
#pragma unroll
    for (int p = 0; p < Cfg::parts; ++p)
#pragma unroll
      for (int which = 0; which < 2; ++which) {  // the even lane's line, then the odd one's
        unsigned mine[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const unsigned other = __shfl_xor_sync(~0u, word[p][which ? i : 4 + i], 1);
          mine[i] = odd == which ? word[p][which ? 4 + i : i] : other;
        }
        const int to = line - odd + which, at = k + 8 * odd;
        if (to < args.lines && at < last)
          *reinterpret_cast<uint4*>(operand.part(blockIdx.y, p, to) + at) =
              make_uint4(mine[0], mine[1], mine[2], mine[3]);
      }
  }
  small = join_lines(small, small_of, [](unsigned a, unsigned b) { return a + b; });
  if (warp == 0 && exists && cluster_rank() == 0)
    operand.line(blockIdx.y, line) = {-scale.exponent, small * Operand::lost};
  __syncwarp();    // lanes have parted
  cluster_sync();  // the others have read this block's
}

extern "C" __global__ void __cluster_dims__(Cfg::share, 1, 1) __launch_bounds__(Cfg::threads)
    halve(const __grid_constant__ HalveArgs args) {
  const Operand operand(args.to, args.lines, args.k, gridDim.y);
  wait_for_earlier_grids();
  let_later_grids_start();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
    operand.origin() = {args.from, args.line_stride, args.k_stride, args.from_batch};
  const float* const from = args.from + blockIdx.y * args.from_batch;
  if constexpr (Cfg::k_inner)
    halve_line(args, operand, from + blockIdx.x * args.line_stride);
  else
    halve_lines(args, operand, from);
}
