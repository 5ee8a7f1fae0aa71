// pack: an operand copied to lines that 16-byte accesses can read, zeros after it up to whole tiles.
//
// A thread writes chunks of 16 bytes. A line may start at any element: where 16-bit elements are contiguous, a chunk
// comes from five aligned words, each pair shifted together; at a line's ends, where such words would reach out of the
// operand, and in strided lines, it comes element by element. Elements of 32 bits are words, and come one by one.
//
//     words     | a b | c d | e f | g h | i j |        the line's chunk starts at b:
//     chunk       | b c | d e | f g | h i |
#include "ptx/grid_dependency.cuh"

/// gemm/params.py packs it. Strides in elements: element (line, i) is at from[line * line_stride + i * step], and at
/// to[line * pitch + i].
struct PackArgs {
  const void* from;
  void* to;
  long long from_batch, to_batch, line_stride, step, pitch;
  int lines, padded, length;  // lines of `from` and of `to`, elements of a line of `from`
};

/// Elements i .. i + 7 of a line at `from` that has `length`; zeros from its end on.
__device__ inline uint4 chunk_of(const unsigned short* from, long long step, int i, int length) {
  unsigned word[5];
  if (Cfg::contiguous && i > 0 && i + 10 <= length) {
    const unsigned long long at = reinterpret_cast<unsigned long long>(from + i);
    const unsigned* aligned = reinterpret_cast<const unsigned*>(at & ~3ull);
#pragma unroll
    for (int j = 0; j < 5; ++j) word[j] = aligned[j];
    const unsigned shift = (at & 2) * 8;
#pragma unroll
    for (int j = 0; j < 4; ++j) word[j] = __funnelshift_r(word[j], word[j + 1], shift);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned low = i + 2 * j < length ? from[(i + 2 * j) * step] : 0;
      const unsigned high = i + 2 * j + 1 < length ? from[(i + 2 * j + 1) * step] : 0;
      word[j] = low | high << 16;
    }
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}
/// Elements i .. i + 15 of one of bytes.
__device__ inline uint4 chunk_of(const unsigned char* from, long long step, int i, int length) {
  unsigned word[5];
  if (Cfg::contiguous && i > 0 && i + 20 <= length) {
    const unsigned long long at = reinterpret_cast<unsigned long long>(from + i);
    const unsigned* aligned = reinterpret_cast<const unsigned*>(at & ~3ull);
#pragma unroll
    for (int j = 0; j < 5; ++j) word[j] = aligned[j];
    const unsigned shift = (at & 3) * 8;
#pragma unroll
    for (int j = 0; j < 4; ++j) word[j] = __funnelshift_r(word[j], word[j + 1], shift);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      word[j] = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int place = i + 4 * j + e;
        word[j] |= unsigned(place < length ? from[place * step] : 0) << 8 * e;
      }
    }
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}
/// Elements i .. i + 3 of one of 32-bit elements.
__device__ inline uint4 chunk_of(const unsigned* from, long long step, int i, int length) {
  unsigned word[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) word[j] = i + j < length ? from[(i + j) * (Cfg::contiguous ? 1 : step)] : 0;
  return make_uint4(word[0], word[1], word[2], word[3]);
}

extern "C" __global__ void __launch_bounds__(Cfg::threads) pack(const __grid_constant__ PackArgs args) {
  using Element = typename Cfg::element;
  constexpr int elements = 16 / int(sizeof(Element));  // a chunk
  const auto* from = static_cast<const Element*>(args.from) + blockIdx.y * args.from_batch;
  auto* to = static_cast<Element*>(args.to) + blockIdx.y * args.to_batch;
  // Chunks are counted through all lines: a block takes threads * each of them.
  const unsigned chunks = args.pitch / elements;
  const unsigned long long first = blockIdx.x * (unsigned long long)(Cfg::threads * Cfg::each);
  unsigned chunk = unsigned(first % chunks) + threadIdx.x;
  int line = int(first / chunks) + chunk / chunks;
  chunk %= chunks;
  wait_for_earlier_grids();
  let_later_grids_start();
#pragma unroll
  for (int e = 0; e < Cfg::each; ++e) {
    if (line < args.padded) {
      const int exist = line < args.lines ? args.length : 0;
      const uint4 value = chunk_of(from + line * args.line_stride, args.step, chunk * elements, exist);
      *reinterpret_cast<uint4*>(to + line * args.pitch + chunk * elements) = value;
    }
    chunk += Cfg::threads;
    if (chunk >= chunks) line += chunk / chunks, chunk %= chunks;
  }
}
