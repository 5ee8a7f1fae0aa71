// quantize: an array to fp8, and a scale for each of its blocks: the largest finite magnitude there over the largest
// number of fp8.
//
//     by_team        a team of threads has a block, which it keeps in registers where that is a few chunks per thread
//     largest_only   blocks of columns, or large ones: a thread finds the largest of eight columns x a strip of rows
//     rounded_only   the next launch: makes scales of that, and rounds; the last strips first, which L2 still has
//
// A chunk is eight elements of a row. Few of their values are special, so that a chunk is looked at as a whole first.
#include "ptx/grid_dependency.cuh"
#include "ptx/number8.cuh"

constexpr int by_team = 0, largest_only = 1, rounded_only = 2;

/// gemm/params.py packs it. What is rounded lies dense, [batch, rows, cols].
struct QuantizeArgs {
  const void* from;
  void* to;
  float* scales;
  unsigned* largest;  // of each block, the bits of it: zeros at first
  long long from_batch, from_row, from_col, scale_batch, scale_row, scale_col;
  int batch, rows, cols, high, wide;  // of the array, and of a block
  int down, across;                   // blocks under one another, and next to each other
  int strip;                          // rows of a block that threads of one block of the grid have, where it has strips
};

using In = typename Cfg::in_type;
using Index = typename Cfg::index;  // of a thread: 64 bits divide slowly
using Out = typename Cfg::out_type;
constexpr float most_of_fp32 = 0x1.fffffep127f;

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

  __device__ Divisor() {}
  __device__ explicit Divisor(float scale) : scale(scale), inverse(__frcp_rn(scale)) {}

  __device__ bool exact() const { return scale >= 0x1p-64f; }  // below, remainders are subnormal

  /// x / scale of a finite x, rounded to nearest: a quotient within one unit, mended by its remainder. That is exact
  /// since the inverse is the nearest (Markstein). A zero keeps its sign: the remainder is negated last.
  __device__ float operator()(float x) const {
    const float quotient = x * inverse;
    return fmaf(-fmaf(quotient, scale, -x), inverse, quotient);
  }
  /// Of any x: a NaN keeps its sign.
  __device__ float slowly(float x) const { return fabsf(x) <= most_of_fp32 ? __fdiv_rn(x, scale) : x; }
};

/// Eight elements of a row, as they are in memory; those after the first `count` are 0. Where the array is Cfg::whole,
/// chunks have all eight or none.
struct Chunk {
  unsigned word[2 * sizeof(In)];

  __device__ void read(const In* from, long long step, int count) {
    if (Cfg::vector && count >= 8) {
#pragma unroll
      for (int i = 0; i < int(2 * sizeof(In)); i += 4) {
        const uint4 four = reinterpret_cast<const uint4*>(from)[i / 4];
        word[i] = four.x, word[i + 1] = four.y, word[i + 2] = four.z, word[i + 3] = four.w;
      }
      return;
    }
#pragma unroll
    for (unsigned& w : word) w = 0;
    if (Cfg::whole) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i >= count) continue;
      if constexpr (sizeof(In) == 4)
        word[i] = reinterpret_cast<const unsigned*>(from)[i * step];
      else
        word[i / 2] |= unsigned(reinterpret_cast<const unsigned short*>(from)[i * step]) << 16 * (i % 2);
    }
  }

  __device__ float operator[](int i) const {
    if constexpr (sizeof(In) == 4)
      return __uint_as_float(word[i]);
    else
      return half_of<In>(word[i / 2], i % 2);
  }

  /// True where one of them is infinite or NaN.
  __device__ bool special() const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf((*this)[i], 0.f, sum);
    return !(sum == 0);
  }

  /// largest[i % count] becomes the larger of that and element i's magnitude, if this is finite.
  template <int count>
  __device__ void add_to(float (&largest)[count]) const {
    if (special()) {
#pragma unroll
      for (int i = 0; i < 8; ++i) largest[i % count] = fmaxf(largest[i % count], finite_magnitude((*this)[i]));
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) largest[i % count] = fmaxf(largest[i % count], fabsf((*this)[i]));
    }
  }

  /// Writes the first `count`, element i divided by divisor[i % divisors]. `exact`: all of those are.
  template <int divisors>
  __device__ void round(unsigned char* to, const Divisor (&divisor)[divisors], bool exact, int count) const {
    unsigned pair[4];
    if (exact && !special()) {
#pragma unroll
      for (int i = 0; i < 8; i += 2)
        pair[i / 2] = pack_two<Out>(divisor[i % divisors]((*this)[i]), divisor[(i + 1) % divisors]((*this)[i + 1]));
    } else {
#pragma unroll
      for (int i = 0; i < 8; i += 2)
        pair[i / 2] = byte_of(divisor[i % divisors].slowly((*this)[i])) |
                      byte_of(divisor[(i + 1) % divisors].slowly((*this)[i + 1])) << 8;
    }
    if (Cfg::whole || (Cfg::vector_out && count >= 8)) {
      *reinterpret_cast<uint2*>(to) = make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (i < count) to[i] = pair[i / 2] >> 8 * (i % 2);
    }
  }
};

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

/// A block of one scale, and this thread's part of it.
struct TeamBlock {
  const In* from;
  unsigned char* to;
  int rows, cols;  // none where there is no block

  __device__ TeamBlock(const QuantizeArgs& args, bool exists, int entry, int down, int across) {
    const int row = down * args.high, col = across * args.wide;
    rows = exists ? min(args.high, args.rows - row) : 0, cols = min(args.wide, args.cols - col);
    from = static_cast<const In*>(args.from) + entry * args.from_batch + row * args.from_row + col * args.from_col;
    to = static_cast<unsigned char*>(args.to) + (entry * (long long)args.rows + row) * args.cols + col;
  }

  __device__ int chunks() const { return Cfg::chunks > 0 ? Cfg::chunks : (cols + 7) / 8; }  // of a row
  __device__ int row_of(int i) const { return Cfg::one_line ? 0 : i / chunks(); }
  __device__ int col_of(int i) const { return (Cfg::one_line ? i : i % chunks()) * 8; }
  /// The elements of chunk i, up to eight; 0 or fewer where there is none.
  __device__ int count(int i) const { return (Cfg::one_line ? rows > 0 : row_of(i) < rows) ? cols - col_of(i) : 0; }

  __device__ void read(const QuantizeArgs& args, int i, Chunk& chunk) const {
    chunk.read(from + row_of(i) * args.from_row + col_of(i) * args.from_col, args.from_col, count(i));
  }
  __device__ void round(const QuantizeArgs& args, int i, const Chunk& chunk, const Divisor (&divisor)[1]) const {
    if (count(i) > 0)
      chunk.round(to + row_of(i) * (long long)args.cols + col_of(i), divisor, divisor[0].exact(), count(i));
  }
};

/// A team has Cfg::each blocks under one another, whose chunks are on their way together.
__device__ inline void quantize_by_team(const QuantizeArgs& args) {
  static_assert(Cfg::team <= 32 || Cfg::team == Cfg::threads, "a warp has whole teams, or a block is one");
  constexpr int each = Cfg::each, held = Cfg::held;  // held: chunks per thread; 0: any number, which are read twice
  static_assert(each == 1 || held == 1, "each block is a chunk per thread");
  const Index team = blockIdx.x * Index(Cfg::threads / Cfg::team) + threadIdx.x / Cfg::team;
  const int groups = (args.down + each - 1) / each, lane = threadIdx.x % Cfg::team;
  const int col = team % args.across;
  const Index line = team / args.across;
  const int entry = Cfg::batched ? line / groups : 0, row = (Cfg::batched ? line % groups : line) * each;
  const bool inside = Cfg::batched ? entry < args.batch : line < groups;  // all lanes meet at the shuffles
  Chunk chunk[each][held > 0 ? held : 1];
  float largest[each][1];
#pragma unroll
  for (int b = 0; b < each; ++b) {
    const TeamBlock block(args, inside && row + b < args.down, entry, row + b, col);
#pragma unroll
    for (int h = 0; h < held; ++h) block.read(args, lane + h * Cfg::team, chunk[b][h]);
  }
#pragma unroll
  for (int b = 0; b < each; ++b) {
    largest[b][0] = 0;
    if constexpr (held == 0) {
      const TeamBlock block(args, inside, entry, row, col);
      for (int i = lane; i < block.rows * block.chunks(); i += Cfg::team)
        block.read(args, i, chunk[0][0]), chunk[0][0].add_to(largest[0]);
    }
#pragma unroll
    for (int h = 0; h < held; ++h) chunk[b][h].add_to(largest[b]);
    largest[b][0] = largest_of_team(largest[b][0]);
  }
#pragma unroll
  for (int b = 0; b < each; ++b) {
    const TeamBlock block(args, inside && row + b < args.down, entry, row + b, col);
    const Divisor divisor[1] = {Divisor(scale_of(largest[b][0]))};
    if (lane == 0 && block.rows > 0)
      args.scales[entry * args.scale_batch + (row + b) * args.scale_row + col * args.scale_col] = divisor[0].scale;
#pragma unroll
    for (int h = 0; h < held; ++h) block.round(args, lane + h * Cfg::team, chunk[b][h], divisor);
    if constexpr (held == 0)
      for (int i = lane; i < block.rows * block.chunks(); i += Cfg::team)
        block.read(args, i, chunk[0][0]), block.round(args, i, chunk[0][0], divisor);
  }
}

/// A block's strip: rows of one row of blocks, and Cfg::span chunks of each; this thread's chunk of them, every
/// `side_by_side` rows, a few of which are on their way together.
struct Strip {
  static constexpr int side_by_side = Cfg::threads / Cfg::span, together = sizeof(In) == 4 ? 2 : 4;
  int entry, down, row, last, col, count;

  __device__ Strip(const QuantizeArgs& args, unsigned index) {
    const unsigned wide = (args.cols + 8 * Cfg::span - 1) / (8 * Cfg::span);
    const unsigned strips = (min(args.high, args.rows) + args.strip - 1) / args.strip;
    const unsigned above = index / wide, of_blocks = above / strips;
    entry = of_blocks / args.down, down = of_blocks % args.down;
    col = (index % wide * Cfg::span + threadIdx.x % Cfg::span) * 8, count = args.cols - col;
    const int first = down * args.high + above % strips * args.strip;
    row = first + threadIdx.x / Cfg::span;
    last = min(min(first + args.strip, (down + 1) * args.high), args.rows);
  }

  /// use(chunk, bytes from where this thread's first is written) for each of the chunks.
  template <class Use>
  __device__ void each(const QuantizeArgs& args, const Use& use) const {
    const In* from =
        static_cast<const In*>(args.from) + entry * args.from_batch + row * args.from_row + col * args.from_col;
    const long long step = side_by_side * args.from_row;
    long long written = 0;
    for (int next = row; next < last; next += together * side_by_side) {
      Chunk chunk[together];
#pragma unroll
      for (int i = 0; i < together; ++i, from += step)
        chunk[i].read(from, args.from_col, next + i * side_by_side < last ? count : 0);
#pragma unroll
      for (int i = 0; i < together; ++i, written += side_by_side * (long long)args.cols)
        if (next + i * side_by_side < last) use(chunk[i], written);
    }
  }
  /// Where the largest of column `col + i` is kept.
  __device__ long long block(const QuantizeArgs& args, int i) const {
    if constexpr (Cfg::one_block) return 0;
    return (entry * (long long)args.down + down) * args.across + (col + i) / args.wide;
  }
};

__device__ inline void find_largest(const QuantizeArgs& args) {
  const Strip strip(args, blockIdx.x);
  float largest[8] = {};
  strip.each(args, [&](const Chunk& chunk, long long) { chunk.add_to(largest); });
  if constexpr (Cfg::one_block) {
    float mine = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) mine = fmaxf(mine, largest[i]);
    mine = largest_of_team(mine);
    if (threadIdx.x == 0 && mine > 0) atomicMax(args.largest, __float_as_uint(mine));
  } else {
    __shared__ float of_thread[8][Cfg::threads];
#pragma unroll
    for (int i = 0; i < 8; ++i) of_thread[i][threadIdx.x] = largest[i];
    __syncthreads();
    if (threadIdx.x >= Cfg::span) return;
    for (int i = 0; i < min(strip.count, 8); ++i) {
      float mine = 0;
#pragma unroll
      for (int row = 0; row < Strip::side_by_side; ++row)
        mine = fmaxf(mine, of_thread[i][row * Cfg::span + threadIdx.x]);
      if (mine > 0) atomicMax(args.largest + strip.block(args, i), __float_as_uint(mine));
    }
  }
}

__device__ inline void round_by_largest(const QuantizeArgs& args) {
  const Strip strip(args, gridDim.x - 1 - blockIdx.x);
  if (strip.count <= 0 || strip.row >= strip.last) return;
  constexpr int divisors = Cfg::one_block ? 1 : 8;
  Divisor divisor[divisors];
  bool exact = true;
#pragma unroll
  for (int i = 0; i < divisors; ++i) {
    if (i >= strip.count) continue;
    divisor[i] = Divisor(scale_of(__uint_as_float(args.largest[strip.block(args, i)])));
    exact = exact && divisor[i].exact();
    if (strip.row == strip.down * args.high && (strip.col + i) % args.wide == 0)
      args.scales[strip.entry * args.scale_batch + strip.down * args.scale_row +
                  (strip.col + i) / args.wide * args.scale_col] = divisor[i].scale;
  }
  unsigned char* const to =
      static_cast<unsigned char*>(args.to) + (strip.entry * (long long)args.rows + strip.row) * args.cols + strip.col;
  strip.each(args,
             [&](const Chunk& chunk, long long written) { chunk.round(to + written, divisor, exact, strip.count); });
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
