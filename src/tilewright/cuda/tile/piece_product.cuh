#pragma once
// Products of a warp, step by step of 16 along the summed index. Operands give the pieces of one step:
//
//     RowPieces      step k is column k of 16 x 16 pieces      Q, and K whose rows are the product's columns
//     ColumnPieces   step k is row k of them, transposed       V
//     Held           all steps in registers                    P; others where a config loads them whole

#include "ptx/mma.cuh"

template <class Reader, int count_>
struct RowPieces {
  static constexpr int count = count_;
  Reader reader;
  __device__ void load(unsigned (&to)[count][4], int step) const {
#pragma unroll
    for (int i = 0; i < count; ++i) reader.template load<false>(to[i], i, step);
  }
};

template <class Reader, int count_>
struct ColumnPieces {
  static constexpr int count = count_;
  Reader reader;
  __device__ void load(unsigned (&to)[count][4], int step) const {
#pragma unroll
    for (int i = 0; i < count; ++i) reader.template load<true>(to[i], step, i);
  }
};

template <int count_, int steps>
struct Held {
  static constexpr int count = count_;
  unsigned piece[steps][count][4];

  template <class Operand>
  __device__ void fill(const Operand& from) {
#pragma unroll
    for (int step = 0; step < steps; ++step) from.load(piece[step], step);
  }
  __device__ void load(unsigned (&to)[count][4], int step) const {
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i][j] = piece[step][i][j];
  }
};

/// acc[i][j] += a[i] * (columns 8 j .. 8 j + 7 of b). `paired`: b was read across, the two registers of a column are
/// neighbours; else they are two apart.
template <class T, bool paired, int m, int n>
__device__ inline void multiply_step(float (&acc)[m][2 * n][4], const unsigned (&a)[m][4], const unsigned (&b)[n][4]) {
#pragma unroll
  for (int i = 0; i < m; ++i)
#pragma unroll
    for (int step = 0; step < 2 * n; ++step) {
      const int j = i % 2 ? 2 * n - 1 - step : step;  // to and fro: neighbouring products share an operand
      const int first = paired ? j % 2 * 2 : j % 2, second = paired ? first + 1 : first + 2;
      mma_m16n8k16<T>(acc[i][j], a[i], b[j / 2][first], b[j / 2][second]);
    }
}

/// Each step: load its pieces, multiply them.
struct StepByStep {
  template <class T, bool paired, int steps, class A, class B>
  static __device__ void run(float (&acc)[A::count][2 * B::count][4], const A& a, const B& b) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      unsigned left[A::count][4], right[B::count][4];
      a.load(left, step);
      b.load(right, step);
      multiply_step<T, paired>(acc, left, right);
    }
  }
};

/// Two sets of registers: the next step's pieces are on their way while this step's are multiplied.
struct StepAhead {
  template <class T, bool paired, int steps, class A, class B>
  static __device__ void run(float (&acc)[A::count][2 * B::count][4], const A& a, const B& b) {
    unsigned left[2][A::count][4], right[2][B::count][4];
    a.load(left[0], 0);
    b.load(right[0], 0);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) {
        a.load(left[(step + 1) % 2], step + 1);
        b.load(right[(step + 1) % 2], step + 1);
      }
      multiply_step<T, paired>(acc, left[step % 2], right[step % 2]);
    }
  }
};
