// One thread follows a chain in which each step needs the one before: cycles per step are a latency.
// place 0: memory past L1 (ld.cg: L2, or device memory where the chain is larger), 1: through L1, 2: shared memory,
// 3: a multiply-add of registers.
extern __shared__ unsigned shared_chain[];

__device__ unsigned follow(const unsigned* next, unsigned at, int steps, int place) {
  for (int step = 0; step < steps; ++step) {
    if (place == 0)
      at = __ldcg(next + at);
    else if (place == 1)
      at = __ldca(next + at);
    else if (place == 2)
      at = shared_chain[at];
    else
      asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(at) : "r"(1664525u), "r"(1013904223u));  // not folded
  }
  return at;
}

template <int Place>
__device__ void measure(const unsigned* next, int elements, int steps, unsigned* where, long long* cycles) {
  if (Place == 2)
    for (int i = 0; i < elements; ++i) shared_chain[i] = next[i];
  unsigned at = follow(next, *where, Place == 0 ? 0 : steps, Place);  // fills L1; L2 is filled by a launch before
  asm volatile("" : "+r"(at));  // the clock is read after the step before, and after the last one
  const long long begin = clock64();
  at = follow(next, at, steps, Place);
  asm volatile("" : "+r"(at));
  *cycles = clock64() - begin;
  *where = at;
}

extern "C" __global__ void chain(const unsigned* next, int elements, int steps, int place, unsigned* where,
                                 long long* cycles) {
  if (place == 0)
    measure<0>(next, elements, steps, where, cycles);
  else if (place == 1)
    measure<1>(next, elements, steps, where, cycles);
  else if (place == 2)
    measure<2>(next, elements, steps, where, cycles);
  else
    measure<3>(next, elements, steps, where, cycles);
}
