#pragma once
// What a gate makes of a thread's elements: here without an activation. One with an activation has this file's place
// taken by a text made from the activation's expression and its derivative (gemm/gated.py).

/// Forward, first is activation(inside) * other. Backward, first and second are the gradients of inside and other.
template <int count>
__device__ inline void gate(const float (&inside)[count], const float (&other)[count], const float (&grad)[count],
                            float (&first)[count], float (&second)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    first[i] = (Cfg::backward ? grad[i] : inside[i]) * other[i];
    second[i] = grad[i] * inside[i];
  }
}
