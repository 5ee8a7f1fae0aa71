// Updates that are lost although every access is volatile, ordered or an atomic; and orders that lose none.

template <bool ATOMIC> __device__ bool claim(volatile int *slot, int id) {
    if (ATOMIC) return atomicCAS((int *)slot, 0, id) == 0;
    if (*slot != 0) return false;
    *slot = id; // BUG
    return true;
}

//! lost_update | grid 4 | block 32 | i32[1]=zeros i32[4]=zeros
extern "C" __global__ void a_slot_is_claimed_by_looking(volatile int *slot, int *won) {
    if (threadIdx.x == 0) won[blockIdx.x] = claim<false>(slot, blockIdx.x + 1); // BUG
}

//! right | grid 4 | block 32 | i32[1]=zeros i32[4]=zeros
extern "C" __global__ void a_slot_is_claimed_by_an_atomic(volatile int *slot, int *won) {
    if (threadIdx.x == 0) won[blockIdx.x] = claim<true>(slot, blockIdx.x + 1);
}

//! lost_update | grid 3 | block 32 | i32[3]=arange i32[1]=zeros
extern "C" __global__ void a_maximum_by_looking(const int *in, volatile int *best) {
    if (threadIdx.x == 0 && in[blockIdx.x] >= *best) *best = in[blockIdx.x]; // BUG
}

//! right | grid 4 | block 32 | i32[4]=zeros
extern "C" __global__ void all_who_look_store_one_value(volatile int *seen) {
    if (threadIdx.x < 4 && !seen[threadIdx.x]) seen[threadIdx.x] = 1;
}

//! lost_update | grid 4 | block 32 | f32[1]=zeros
extern "C" __global__ void nobody_asks_whether_it_was_swapped(float *sum) {
    if (threadIdx.x) return;
    const int old = *(volatile int *)sum;
    atomicCAS((int *)sum, old, __float_as_int(__int_as_float(old) + 1)); // BUG
}

//! right | grid 4 | block 32 | f32[1]=zeros
extern "C" __global__ void swapped_until_it_was(float *sum) {
    if (threadIdx.x) return;
    int old = *(volatile int *)sum, seen;
    while ((seen = atomicCAS((int *)sum, old, __float_as_int(__int_as_float(old) + 1))) != old) old = seen;
}

//! right | grid 2 | block 32 | i32[1]=zeros i32[5]=zeros
extern "C" __global__ void a_mailbox_that_both_look_at(volatile int *flag, volatile int *box) {
    if (threadIdx.x) return;
    for (int i = 1; i < 5; ++i) {
        while ((*flag == 0) == blockIdx.x) {}
        __threadfence();
        if (blockIdx.x)
            box[i] = box[0];
        else
            box[0] = i;
        __threadfence();
        *flag = blockIdx.x ? 0 : i;
    }
}

// Within a block.

template <bool ATOMIC> __device__ void locked_sum(int *out) {
    __shared__ volatile int lock, sum;
    if (threadIdx.x == 0) lock = sum = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        if (ATOMIC) {
            while (atomicExch((int *)&lock, 1)) {}
        } else {
            while (lock) {}
            lock = 1;
        }
        __threadfence_block();
        sum = sum + 1; // BUG
        __threadfence_block();
        if (ATOMIC) atomicExch((int *)&lock, 0);
        else lock = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) *out = sum;
}

//! lost_update | block 128 | i32[1]=zeros
extern "C" __global__ void a_lock_that_is_looked_at_and_stored(int *out) { locked_sum<false>(out); } // BUG

//! right | block 128 | i32[1]=zeros
extern "C" __global__ void a_lock_that_is_exchanged(int *out) { locked_sum<true>(out); }

//! lost_update | block 128 | i32[1]=zeros
extern "C" __global__ void warps_add_to_a_volatile(volatile int *sum) {
    if (threadIdx.x % 32 == 0) *sum = *sum + 1; // BUG
}

//! right | block 128 | i32[1]=zeros
extern "C" __global__ void warps_add_to_a_volatile_in_turns(volatile int *sum) {
    if (threadIdx.x % 32) return;
    while (*sum != threadIdx.x / 32) {}
    *sum = *sum + 1;
}

//! lost_update | i32[1]=zeros
extern "C" __global__ void lanes_add_to_a_volatile(volatile int *sum) { *sum = *sum + (int)threadIdx.x; } // BUG

//! right | i32[1]=zeros
extern "C" __global__ void lanes_add_one_value_to_a_volatile(volatile int *sum) { *sum = *sum + 1; }

//! lost_update | grid 4 | i32[128]=random i32[1]=zeros
extern "C" __global__ void a_maximum_looked_at_and_exchanged(const int *x, volatile int *most) {
    int v = x[blockIdx.x * 32 + threadIdx.x] & 0xffff;
    if (*most < v) atomicExch((int *)most, v); // BUG
}

//! right | grid 4 | i32[1]=zeros
extern "C" __global__ void a_flag_looked_at_and_exchanged(volatile int *flag) {
    if (*flag == 0) atomicExch((int *)flag, (int)gridDim.x);
}

//! lost_update | grid 4 | u32[1]=ones
extern "C" __global__ void read_by_an_atomic_and_exchanged(unsigned *state) {
    if (threadIdx.x) return;
    unsigned old = atomicAdd(state, 0);
    atomicExch(state, old * 5 + blockIdx.x); // BUG
}

//! right | grid 4 | u32[1]=ones
extern "C" __global__ void taken_by_an_exchange_and_put_back(unsigned *state) {
    if (threadIdx.x) return;
    unsigned old;
    while ((old = atomicExch(state, 0)) == 0) {}
    __threadfence();
    atomicExch(state, old * 5 + blockIdx.x);
}
