#pragma once
// A ring of buffers that barriers of shared memory guard.

/// A place in the ring, and the parity of the phase that its barriers are in.
template <int stages>
struct RingPlace {
  int stage = 0;
  unsigned parity = 0;
  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};
