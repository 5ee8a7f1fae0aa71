#pragma once
// An fp32 operand, by rows of A or columns of B.

/// Element k of line i is base[i * stride + k * k_stride].
struct Lines {
  const float* base;
  long long stride, k_stride;
};
