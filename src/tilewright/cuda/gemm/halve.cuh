// halve: fp32 operands as one or two scaled fp16 numbers per element, lines along k, as t04 and t05 read them by TMA
// (tile/halved.cuh). A line is read for its largest magnitude first. What a thread reads first it keeps in registers,
// and L2 may forget it, so that the halves stay there for the product. One grid makes both operands.
//
//     k_inner    a team of a block's threads makes a line; threads take four neighbours along k
//     else       a cluster makes 32 lines, side by side in memory: each block takes a part of k, a lane a line
//
//     blocks     those of the operand in clusters first, whose blocks take longer; whole clusters of each operand
#include "ptx/cluster.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/number16.cuh"
#include "ptx/shared.cuh"
#include "tile/halved.cuh"

/// gemm/params.py packs it. Strides in elements: element (line, i) of A is at a[line * a_line + i * a_k], of B's
/// columns likewise. An operand whose batch stride is 0 is made once, whatever the batch.
struct HalveArgs {
  const float* a;
  void* to_a;  // tile/halved.cuh
  long long a_batch, a_line, a_k;
  const float* b;
  void* to_b;
  long long b_batch, b_line, b_k;
  int a_lines, b_lines, k;
};

/// One operand of them.
struct OperandLines {
  const float* from;
  void* to;
  long long batch, stride, k_stride;
  int count, k;

  template <bool k_inner>
  __device__ unsigned blocks() const {
    const int of_cluster = k_inner ? Cfg::threads / Cfg::team * Cfg::share : 32;
    return (count + of_cluster - 1) / of_cluster * Cfg::share;
  }
};

using Operand = Halved<Cfg::parts>;
constexpr unsigned infinity = 0x7f800000;
constexpr int warps = Cfg::threads / 32;

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

/// An element, or several side by side; `once`: nothing here reads it again.
template <bool once, class T>
__device__ inline T read(const T* from) {
  return once ? __ldcs(from) : *from;
}

struct Once {
  __device__ constexpr bool operator()() const { return true; }
};
struct Twice {
  __device__ constexpr bool operator()() const { return false; }
};

/// Up to four elements from `from` on, `step` apart; `left` exist, the others are 0.
template <bool wide, bool once>
__device__ inline void load_four(float (&to)[4], const float* from, long long step, int left) {
  if (wide && left >= 4) {
    const float4 v = read<once>(reinterpret_cast<const float4*>(from));
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = i < left ? read<once>(from + i * step) : 0.f;
  }
}

/// Line `line` by team `team` of the block.
template <bool wide>
__device__ inline void halve_line(const OperandLines& lines, const Operand& operand, int entry, int line, int team) {
  if (line >= lines.count) return;
  constexpr int held = 4, of_team = Cfg::team / 32, pass = 4 * Cfg::team;
  __shared__ unsigned joined[2][warps];
  const int own = threadIdx.x % Cfg::team;
  const float* const from = lines.from + entry * lines.batch + line * lines.stride;
  const auto load = [&](float (&x)[4], int k, auto once) {
    load_four<wide, once()>(x, from + k * lines.k_stride, lines.k_stride, lines.k - k);
  };
  unsigned most = 0;
  const auto watch = [&](const float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) most = max(most, magnitude(x[i]));
  };
  /// Joins a value of each of the team's warps.
  const auto join = [&](unsigned value, unsigned (&of_warp)[warps], auto both) {
    if constexpr (of_team > 1) {
      if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
      named_barrier_sync<Cfg::team>(1 + team);
      value = of_warp[team * of_team];
#pragma unroll
      for (int w = 1; w < of_team; ++w) value = both(value, of_warp[team * of_team + w]);
    }
    return value;
  };
  float first[held][4];
#pragma unroll
  for (int i = 0; i < held; ++i) load(first[i], i * pass + 4 * own, Once());
#pragma unroll
  for (int i = 0; i < held; ++i) watch(first[i]);
#pragma unroll 1  // more would take registers, and so blocks
  for (int k = held * pass + 4 * own; k < lines.k; k += pass) {
    float x[4];
    load(x, k, Twice()), watch(x);
  }
  const Scale scale(join(__reduce_max_sync(~0u, most), joined[0], [](unsigned a, unsigned b) { return max(a, b); }));
  int small = 0;
  const auto store = [&](const float (&x)[4], int k) {
    unsigned word[Cfg::parts][2];
    scale.apply(x, word, small);
#pragma unroll
    for (int p = 0; p < Cfg::parts; ++p)
      *reinterpret_cast<uint2*>(operand.part(entry, p, line) + k) = make_uint2(word[p][0], word[p][1]);
  };
#pragma unroll
  for (int i = 0; i < held; ++i)
    if (const int k = i * pass + 4 * own; k < lines.k) store(first[i], k);
#pragma unroll 1  // more would take registers, and so blocks
  for (int k = held * pass + 4 * own; k < lines.k; k += pass) {
    float x[4];
    load(x, k, Once()), store(x, k);
  }
  small = join(__reduce_add_sync(~0u, unsigned(small)), joined[1], [](unsigned a, unsigned b) { return a + b; });
  if (own == 0) operand.line(entry, line) = {-scale.exponent, small * Operand::lost};
}

/// Joins a value per line of a block's warps and of the cluster's blocks. Every thread calls it.
template <class Join>
__device__ inline unsigned join_lines(unsigned value, unsigned (&of_warp)[warps][32], Join join) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  of_warp[warp][lane] = value;
  __syncthreads();
  if (warp == 0) {
#pragma unroll
    for (int w = 1; w < warps; ++w) value = join(value, of_warp[w][lane]);
    of_warp[0][lane] = value;
  }
  cluster_sync();
  value = load_of_block(shared_address(&of_warp[0][lane]), 0);
#pragma unroll
  for (int block = 1; block < Cfg::share; ++block)
    value = join(value, load_of_block(shared_address(&of_warp[0][lane]), block));
  return value;
}

/// 32 lines from `line0` on by a cluster, whose first elements are neighbours. Its blocks share k.
__device__ inline void halve_lines(const OperandLines& lines, const Operand& operand, int entry, int line0) {
  constexpr int run = 16, pass = run * warps, held = 2;
  __shared__ unsigned most_of[warps][32], small_of[warps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = line0 + lane;
  const int own = (lines.k + run * Cfg::share - 1) / (run * Cfg::share) * run;  // of k, for each block
  const int first = int(cluster_rank()) * own, last = min(first + own, lines.k), own0 = first + run * warp;
  const bool exists = line < lines.count;
  const float* const from = lines.from + entry * lines.batch + line * lines.stride;
  const auto load = [&](float (&x)[run], int k, auto once) {
#pragma unroll
    for (int i = 0; i < run; ++i) x[i] = exists && k + i < last ? read<once()>(from + (k + i) * lines.k_stride) : 0.f;
  };
  unsigned most = 0;
  const auto watch = [&](const float (&x)[run]) {
#pragma unroll
    for (int i = 0; i < run; ++i) most = max(most, magnitude(x[i]));
  };
  float begun[held][run];
#pragma unroll
  for (int h = 0; h < held; ++h) load(begun[h], own0 + h * pass, Once());
#pragma unroll
  for (int h = 0; h < held; ++h) watch(begun[h]);
#pragma unroll 2
  for (int k = own0 + held * pass; k < last; k += pass) {
    float x[run];
    load(x, k, Twice()), watch(x);
  }
  const Scale scale(join_lines(most, most_of, [](unsigned a, unsigned b) { return max(a, b); }));
  int small = 0;
  // Two lanes share out each sector of 32 bytes: they swap halves of their lines' runs first.
  const bool odd = lane % 2;
  const auto store = [&](const float (&x)[run], int k) {
    unsigned word[Cfg::parts][run / 2];
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
        if (to < lines.count && at < last)
          *reinterpret_cast<uint4*>(operand.part(entry, p, to) + at) = make_uint4(mine[0], mine[1], mine[2], mine[3]);
      }
  };
#pragma unroll
  for (int h = 0; h < held; ++h)
    if (own0 + h * pass < last) store(begun[h], own0 + h * pass);
  for (int k = own0 + held * pass; k < last; k += pass) {
    float x[run];
    load(x, k, Once()), store(x, k);
  }
  small = join_lines(small, small_of, [](unsigned a, unsigned b) { return a + b; });
  if (warp == 0 && exists && cluster_rank() == 0) operand.line(entry, line) = {-scale.exponent, small * Operand::lost};
  __syncwarp();    // lanes have parted
  cluster_sync();  // the others have read this block's
}

/// Block `block` of those that make an operand.
template <bool k_inner, bool wide>
__device__ inline void halve_operand(const OperandLines& lines, unsigned block) {
  const int entry = blockIdx.y;
  if (lines.batch == 0 && entry > 0) return;
  const Operand operand(lines.to, lines.count, lines.k, lines.batch == 0 ? 1 : gridDim.y);
  if (block == 0 && entry == 0 && threadIdx.x == 0)
    operand.origin() = {lines.from, lines.stride, lines.k_stride, lines.batch};
  if constexpr (k_inner) {
    const int team = threadIdx.x / Cfg::team;
    halve_line<wide>(lines, operand, entry, block * (Cfg::threads / Cfg::team) + team, team);
  } else {
    halve_lines(lines, operand, entry, block / Cfg::share * 32);
  }
}

extern "C" __global__ void __cluster_dims__(Cfg::share, 1, 1) __launch_bounds__(Cfg::threads)
    halve(const __grid_constant__ HalveArgs args) {
  const OperandLines a = {args.a, args.to_a, args.a_batch, args.a_line, args.a_k, args.a_lines, args.k};
  const OperandLines b = {args.b, args.to_b, args.b_batch, args.b_line, args.b_k, args.b_lines, args.k};
  wait_for_earlier_grids();
  let_later_grids_start();
  constexpr bool a_first = !Cfg::a_k_inner;
  const unsigned first = a_first ? a.blocks<Cfg::a_k_inner>() : b.blocks<Cfg::b_k_inner>();
  const bool is_first = blockIdx.x < first;
  const unsigned block = is_first ? blockIdx.x : blockIdx.x - first;
  if (is_first == a_first)
    halve_operand<Cfg::a_k_inner, Cfg::a_wide>(a, block);
  else
    halve_operand<Cfg::b_k_inner, Cfg::b_wide>(b, block);
}
