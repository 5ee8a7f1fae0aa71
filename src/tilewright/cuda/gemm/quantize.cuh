// quantize: an array to fp8, and a scale for each of its blocks: the largest finite magnitude there over the largest
// number of fp8.
//
//     by_team        a team of threads has a block, which it reads twice, from L1 the second time
//     largest_only   blocks of columns, or of everything: each thread adds what it finds in eight columns x 8 rows
//     rounded_only   the next launch: makes scales of that, and rounds
#include "ptx/grid_dependency.cuh"
#include "ptx/number8.cuh"

constexpr int by_team = 0, largest_only = 1, rounded_only = 2;
constexpr int strip = 8;  // rows (STRIP in gemm/quantize_call.py)

/// gemm/params.py packs it. What is rounded lies dense, [batch, rows, cols].
struct QuantizeArgs {
  const void* from;
  void* to;
  float* scales;
  unsigned* largest;  // of each block, the bits of it: zeros at first
  long long from_batch, from_row, from_col, scale_batch, scale_row, scale_col;
  int batch, rows, cols, high, wide;  // of the array, and of a block
};

/// Blocks under one another, and beside each other.
__device__ inline int blocks_down(const QuantizeArgs& args) { return (args.rows + args.high - 1) / args.high; }
__device__ inline int blocks_across(const QuantizeArgs& args) { return (args.cols + args.wide - 1) / args.wide; }

using In = typename Cfg::in_type;
using Index = typename Cfg::index;  // of a thread: 64 bits divide slowly
using Out = typename Cfg::out_type;
constexpr float most_of_fp32 = 0x1.fffffep127f;

/// Eight elements of a row from `col` on; those after the first `count` are 0.
__device__ inline void read_eight(float (&value)[8], const In* row, int col, int count, long long step) {
  if (Cfg::vector && count == 8) {
    const uint4* from = reinterpret_cast<const uint4*>(row + col);
    if constexpr (sizeof(In) == 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 word = from[i];
        value[4 * i] = __uint_as_float(word.x), value[4 * i + 1] = __uint_as_float(word.y);
        value[4 * i + 2] = __uint_as_float(word.z), value[4 * i + 3] = __uint_as_float(word.w);
      }
    } else {
      const uint4 word = *from;
      const unsigned words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = half_of<In>(words[i / 2], i % 2);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      value[i] = i < count ? to_float(row[(col + i) * step]) : 0;
    }
  }
}

__device__ inline float finite_magnitude(float x) {
  x = fabsf(x);
  return x <= most_of_fp32 ? x : 0;  // 0 of NaN too
}

__device__ inline float scale_of(float largest) {
  return largest == 0 ? 1 : fmaxf(__fdiv_rn(largest, Cfg::most), 0x1p-126f);
}

/// A number's byte. Infinities and NaN are as torch's cast has them, not as the instruction.
__device__ inline unsigned byte_of(float x) {
  if (fabsf(x) <= most_of_fp32) return pack_two<Out>(x, 0) & 0xff;
  const unsigned bits = __float_as_uint(x);
  return bits >> 24 & 0x80 | (Cfg::infinities && (bits & 0x7fffffff) == 0x7f800000 ? 0x7c : 0x7f);
}

/// What numbers are divided by: a scale, and what takes the place of a division by it where that is exact.
struct Divisor {
  float scale = 1, inverse = 1;
  bool exact = true;

  __device__ Divisor() {}
  __device__ explicit Divisor(float scale)
      : scale(scale), inverse(__frcp_rn(scale)), exact(scale >= 0x1p-64f) {}  // below, remainders are subnormal

  /// x / scale, rounded to nearest: a quotient close by, mended twice by its remainder, as division itself ends.
  __device__ float operator()(float x) const {
    if (!exact) return __fdiv_rn(x, scale);
    float quotient = x * inverse;
    quotient = fmaf(fmaf(-quotient, scale, x), inverse, quotient);
    quotient = fmaf(fmaf(-quotient, scale, x), inverse, quotient);
    return fabsf(x) <= most_of_fp32 ? copysignf(quotient, x) : x;  // remainders lose the sign of a zero
  }
};

/// Writes `count` of eight numbers. Column e is divided by divisor[e % divisors].
template <int divisors>
__device__ inline void write_eight(unsigned char* to, const float (&value)[8], const Divisor (&divisor)[divisors],
                                   int count) {
  unsigned pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float low = divisor[2 * i % divisors](value[2 * i]);
    const float high = divisor[(2 * i + 1) % divisors](value[2 * i + 1]);
    pair[i] = fmaxf(fabsf(low), fabsf(high)) <= most_of_fp32 && low == low && high == high
                  ? pack_two<Out>(low, high)
                  : byte_of(low) | byte_of(high) << 8;
  }
  if (Cfg::vector_out && count == 8) {
    *reinterpret_cast<uint2*>(to) = make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < count) to[i] = pair[i / 2] >> 8 * (i % 2);
  }
}

/// A row of the array, and of what is rounded.
__device__ inline const In* row_of(const QuantizeArgs& args, int entry, int row) {
  return static_cast<const In*>(args.from) + entry * args.from_batch + row * args.from_row;
}
__device__ inline unsigned char* rounded_row(const QuantizeArgs& args, int entry, int row) {
  return static_cast<unsigned char*>(args.to) + (entry * (long long)args.rows + row) * args.cols;
}

/// The largest of a team's values, in all of its threads.
__device__ inline float largest_of_team(float mine) {
#pragma unroll
  for (int step = (Cfg::team < 32 ? Cfg::team : 32) / 2; step > 0; step /= 2)
    mine = fmaxf(mine, __shfl_xor_sync(~0u, mine, step));
  if constexpr (Cfg::team > 32) {
    __shared__ float of_warp[Cfg::team > 32 ? Cfg::team / 32 : 1];
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < Cfg::team / 32; ++warp) mine = fmaxf(mine, of_warp[warp]);
  }
  return mine;
}

/// The row and the column of a block's chunk i, where each row has so many chunks.
__device__ inline int line_of(int i, int chunks) { return Cfg::one_line ? 0 : i / chunks; }
__device__ inline int col_of(int i, int chunks) { return (Cfg::one_line ? i : i % chunks) * 8; }

__device__ inline void quantize_by_team(const QuantizeArgs& args) {
  static_assert(Cfg::team <= 32 || Cfg::team == Cfg::threads, "a warp has whole teams, or a block is one");
  const Index index = blockIdx.x * Index(Cfg::threads) + threadIdx.x;
  const int down = blocks_down(args), across = blocks_across(args), lane = threadIdx.x % Cfg::team;
  const bool inside = index / Cfg::team < Index(args.batch) * down * across;
  const Index block = inside ? index / Cfg::team : 0;  // lanes without a block follow one, for the shuffles
  const int entry = block / across / down, block_row = block / across % down, block_col = block % across;
  const int row0 = block_row * args.high, col0 = block_col * args.wide;
  const int rows = min(args.high, args.rows - row0), cols = min(args.wide, args.cols - col0);
  const int chunks = (cols + 7) / 8;
  float largest = 0, value[8];
  for (int i = lane; i < rows * chunks; i += Cfg::team) {
    const int col = col_of(i, chunks);
    read_eight(value, row_of(args, entry, row0 + line_of(i, chunks)), col0 + col, min(cols - col, 8), args.from_col);
#pragma unroll
    for (int e = 0; e < 8; ++e) largest = fmaxf(largest, finite_magnitude(value[e]));
  }
  const float scale = scale_of(largest_of_team(largest));
  const Divisor divisor[1] = {Divisor(scale)};
  if (!inside) return;
  if (lane == 0)
    args.scales[entry * args.scale_batch + block_row * args.scale_row + block_col * args.scale_col] = scale;
  for (int i = lane; i < rows * chunks; i += Cfg::team) {
    const int row = row0 + line_of(i, chunks), col = col_of(i, chunks), count = min(cols - col, 8);
    read_eight(value, row_of(args, entry, row), col0 + col, count, args.from_col);
    write_eight(rounded_row(args, entry, row) + col0 + col, value, divisor, count);
  }
}

/// Where the largest of the block of element (row, col) is kept.
__device__ inline long long block_of(const QuantizeArgs& args, int entry, int row, int col) {
  return (entry * (long long)blocks_down(args) + row / args.high) * blocks_across(args) + col / args.wide;
}

__device__ inline void find_largest(const QuantizeArgs& args) {
  const Index index = blockIdx.x * Index(Cfg::threads) + threadIdx.x;
  const int chunks = (args.cols + 7) / 8, strips = (args.rows + strip - 1) / strip;
  const int entry = index / chunks / strips, col = index % chunks * 8, count = min(args.cols - col, 8);
  const int first = int(index / chunks % strips) * strip, last = min(first + strip, args.rows);
  float largest[8] = {}, value[8];
  const bool inside = entry < args.batch;
  for (int row = first; inside && row < last; ++row) {
    read_eight(value, row_of(args, entry, row), col, count, args.from_col);
#pragma unroll
    for (int e = 0; e < 8; ++e) largest[e] = fmaxf(largest[e], finite_magnitude(value[e]));
    if constexpr (Cfg::one_block) continue;
    if (row + 1 < last && (row + 1) % args.high) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (e < count)
        atomicMax(args.largest + block_of(args, entry, row, col + e), __float_as_uint(largest[e])), largest[e] = 0;
  }
  if constexpr (Cfg::one_block) {
#pragma unroll
    for (int e = 1; e < 8; ++e) largest[0] = fmaxf(largest[0], largest[e]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest[0] = fmaxf(largest[0], __shfl_xor_sync(~0u, largest[0], step));
    if (threadIdx.x % 32 == 0 && largest[0] > 0) atomicMax(args.largest, __float_as_uint(largest[0]));
  }
}

__device__ inline void round_by_largest(const QuantizeArgs& args) {
  const Index index = blockIdx.x * Index(Cfg::threads) + threadIdx.x;
  const int chunks = (args.cols + 7) / 8, strips = (args.rows + strip - 1) / strip;
  const int entry = index / chunks / strips, col = index % chunks * 8, count = min(args.cols - col, 8);
  const int first = int(index / chunks % strips) * strip, last = min(first + strip, args.rows);
  if (entry >= args.batch) return;
  constexpr int divisors = Cfg::one_block ? 1 : 8;
  Divisor divisor[divisors];
  float value[8];
  for (int row = first; row < last; ++row) {
    const bool begins = row % args.high == 0;
    if (row == first || begins) {
#pragma unroll
      for (int e = 0; e < divisors; ++e) {
        if (e >= count) continue;
        divisor[e] = Divisor(scale_of(__uint_as_float(args.largest[block_of(args, entry, row, col + e)])));
        if (begins && (col + e) % args.wide == 0)
          args.scales[entry * args.scale_batch + row / args.high * args.scale_row +
                      (col + e) / args.wide * args.scale_col] = divisor[e].scale;
      }
    }
    read_eight(value, row_of(args, entry, row), col, count, args.from_col);
    write_eight(rounded_row(args, entry, row) + col, value, divisor, count);
  }
}

extern "C" __global__ void __launch_bounds__(Cfg::threads) quantize(const __grid_constant__ QuantizeArgs args) {
  wait_for_earlier_grids();
  let_later_grids_start();
  if constexpr (Cfg::part == by_team)
    quantize_by_team(args);
  else if constexpr (Cfg::part == largest_only)
    find_largest(args);
  else
    round_by_largest(args);
}
