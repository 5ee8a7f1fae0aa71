#pragma once
// An fp32 operand as scaled fp16 numbers: a workspace for all blocks that read it,
//
//     parts     [entry of the batch][part][line][pitch of k]; element = 2^exponent (part 0 + 2^-11 part 1)
//     origin    where the operand itself is, for what parts cannot give
//     lines     of each entry and line its exponent, and how much of a sum its smallest elements may lose
//
// A line is a row of A or a column of B. Its exponent takes its largest magnitude to 2^14..2^15. fp16 has 11 bits from
// 2^-14 on: part 0 is what tf32 makes of the element, both parts are its 24 bits but for the last. Elements below
// `small` have fewer bits; each costs a sum at most `lost`, and sums that are not far above that are made again
// (tile/restore.cuh).
//
// gemm/rungs/halves.py reckons the same sizes.

#include "tile/mend.cuh"

struct alignas(8) HalvedLine {
  int exponent;
  float lost;
};

/// The operand itself, by rows of A or columns of B, entry after entry of the batch.
struct HalvedOrigin {
  const float* base;
  long long stride, k_stride, batch_stride;
};

template <int parts>
struct Halved {
  static constexpr float small = 0x1p-12f;
  /// A sum's magnitude over which one small element's loss is no more than a rounding: it loses 2^-36 with a second
  /// part, 2^-25 without, times at most 2^15; against 2^-25 of the sum, and 2^-13.
  static constexpr float lost = parts == 2 ? 0x1p4f : 0x1p3f;

  unsigned char* base;
  int lines, pitch;
  long long parts_bytes;  // of all entries, up to where origin is

  /// `copies`: entries of the batch, 1 of an operand that all share.
  __device__ Halved(const void* base, int lines, int k, int copies)
      : base(const_cast<unsigned char*>(static_cast<const unsigned char*>(base))), lines(lines), pitch((k + 7) / 8 * 8),
        parts_bytes(((long long)copies * parts * lines * pitch * 2 + 255) / 256 * 256) {}

  /// Elements of line `line` in part `part`.
  __device__ unsigned short* part(int entry, int part, int line) const {
    return reinterpret_cast<unsigned short*>(base) + (((long long)entry * parts + part) * lines + line) * pitch;
  }
  __device__ HalvedOrigin& origin() const { return *reinterpret_cast<HalvedOrigin*>(base + parts_bytes); }
  __device__ HalvedLine& line(int entry, int line) const {
    return reinterpret_cast<HalvedLine*>(base + parts_bytes + 256)[(long long)entry * lines + line];
  }
};
