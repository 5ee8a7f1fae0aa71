#pragma once
// Products of a warp, step by step of 16 along the summed index. An operand gives its 16 x 16 pieces of one step:
//
//     RowPieces      step k is column k of a tile's pieces     Q, and K whose rows are the product's columns
//     ColumnPieces   step k is row k of them, transposed       V
//     Held           all steps in registers                    P; others where a config loads them whole

#include "ptx/mma.cuh"

template <class Reader, int count_>
struct RowPieces {
  static constexpr int count = count_;
  Reader reader;
  __device__ void load(unsigned (&to)[4], int step, int i) const { reader.template load<false>(to, i, step); }
};

template <class Reader, int count_>
struct ColumnPieces {
  static constexpr int count = count_;
  Reader reader;
  __device__ void load(unsigned (&to)[4], int step, int i) const { reader.template load<true>(to, step, i); }
};

/// All pieces of a step.
template <class Operand, int count>
__device__ inline void load_step(const Operand& from, unsigned (&to)[count][4], int step) {
  static_assert(count == Operand::count, "one place for each piece");
#pragma unroll
  for (int i = 0; i < count; ++i) from.load(to[i], step, i);
}

template <int count_, int steps>
struct Held {
  static constexpr int count = count_;
  unsigned piece[steps][count][4];

  template <class Operand>
  __device__ void fill(const Operand& from) {
#pragma unroll
    for (int step = 0; step < steps; ++step) load_step(from, piece[step], step);
  }
  __device__ void load(unsigned (&to)[4], int step, int i) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = piece[step][i][j];
  }
};

/// Columns 16 n .. 16 n + 15 of acc += a * piece n of the right operand. `paired`: the piece was read across, the two
/// registers of a column are neighbours; else they are two apart.
template <class T, bool paired, int m, int columns>
__device__ inline void multiply_piece(float (&acc)[m][columns][4], const unsigned (&a)[m][4], const unsigned (&b)[4],
                                      int n) {
#pragma unroll
  for (int i = 0; i < m; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      mma_m16n8k16<T>(acc[i][2 * n + half], a[i], b[paired ? 2 * half : half], b[paired ? 2 * half + 1 : half + 2]);
}

/// Each step: load the left pieces; then load a right piece, multiply it, load the next.
struct StepByStep {
  template <class T, bool paired, int steps, class A, class B>
  static __device__ void run(float (&acc)[A::count][2 * B::count][4], const A& a, const B& b) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      unsigned left[A::count][4];
      load_step(a, left, step);
#pragma unroll
      for (int n = 0; n < B::count; ++n) {
        unsigned right[4];
        b.load(right, step, n);
        multiply_piece<T, paired>(acc, left, right, n);
      }
    }
  }
};

/// Two sets of registers: the next step's pieces are on their way while this step's are multiplied.
struct StepAhead {
  template <class T, bool paired, int steps, class A, class B>
  static __device__ void run(float (&acc)[A::count][2 * B::count][4], const A& a, const B& b) {
    unsigned left[2][A::count][4], right[2][B::count][4];
    load_step(a, left[0], 0);
    load_step(b, right[0], 0);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) {
        load_step(a, left[(step + 1) % 2], step + 1);
        load_step(b, right[(step + 1) % 2], step + 1);
      }
#pragma unroll
      for (int n = 0; n < B::count; ++n) multiply_piece<T, paired>(acc, left[step % 2], right[step % 2][n], n);
    }
  }
};
