// Memory that holds nothing, is gone, is somebody else's, or is never given back.
#include <cuda_fp16.h>

struct Vec {
    float x, y, z;
};

template <typename T, int N>
struct Stack {
    T items[N];
    int top = 0;
    __device__ void push(T v) { items[top++ % N] = v; }
    __device__ T pop() { return items[(--top + N) % N]; } // BUG
};

//! uninitialised_read | i32[32]=arange i32[32]=zeros
extern "C" __global__ void one_pop_too_many(const int *in, int *out) {
    Stack<int, 16> stack;
    int n = in[threadIdx.x] % 5 + 1;
    for (int i = 0; i < n; ++i) stack.push(i);
    int sum = 0;
    for (int i = 0; i <= n; ++i) sum += stack.pop();
    out[threadIdx.x] = sum;
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void as_many_pops_as_pushes(const int *in, int *out) {
    Stack<int, 16> stack;
    int n = in[threadIdx.x] % 5 + 1;
    for (int i = 0; i < n; ++i) stack.push(i);
    int sum = 0;
    for (int i = 0; i < n; ++i) sum += stack.pop();
    out[threadIdx.x] = sum;
}

//! uninitialised_read | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_histogram_that_starts_from_nothing(const int *in, int *out) {
    int bins[8];
    for (int i = 0; i < 4; ++i) bins[(in[threadIdx.x] + i * 3) % 8] += 1; // BUG
    out[threadIdx.x] = bins[in[threadIdx.x] % 8]; // BUG
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_histogram_that_starts_from_zeros(const int *in, int *out) {
    int bins[8] = {};
    for (int i = 0; i < 4; ++i) bins[(in[threadIdx.x] + i * 3) % 8] += 1;
    out[threadIdx.x] = bins[in[threadIdx.x] % 8];
}

//! uninitialised_read | i32[32]=arange f32[32]=zeros
extern "C" __global__ void a_field_that_nobody_sets(const int *in, float *out) {
    Vec v[4];
    for (int i = 0; i < 4; ++i) {
        v[i].x = i;
        v[i].y = 2 * i;
    }
    const float *raw = &v[in[threadIdx.x] & 3].x;
    out[threadIdx.x] = raw[in[threadIdx.x] % 3]; // BUG
}

//! uninitialised_read | i32[32]=arange i32[32]=zeros
extern "C" __global__ void heap_of_new(const int *in, int *out) {
    int *own = new int[8];
    own[in[threadIdx.x] % 8] = 5;
    out[threadIdx.x] = own[(in[threadIdx.x] + 1) % 8]; // BUG
    delete[] own;
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void heap_of_new_filled(const int *in, int *out) {
    int *own = new int[8]();
    own[in[threadIdx.x] % 8] = 5;
    out[threadIdx.x] = own[(in[threadIdx.x] + 1) % 8];
    delete[] own;
}

struct Node {
    int value;
    Node *next;
};

//! uninitialised_read | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_list_without_an_end(const int *in, int *out) {
    Node *head = (Node *)malloc(sizeof(Node));
    head->value = in[threadIdx.x];
    out[threadIdx.x] = head->value;
    Node *next = head->next; // BUG
    free(head);
    if (next == head) out[threadIdx.x] = 0;
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_list_with_an_end(const int *in, int *out) {
    Node *head = nullptr;
    for (int i = 0; i < 3; ++i) {
        Node *node = (Node *)malloc(sizeof(Node));
        node->value = in[threadIdx.x] + i;
        node->next = head;
        head = node;
    }
    int sum = 0;
    while (head) {
        sum += head->value;
        Node *next = head->next;
        free(head);
        head = next;
    }
    out[threadIdx.x] = sum;
}

//! uninitialised_read | f32[32]=random f32[32]=empty
extern "C" __global__ void an_output_that_is_added_to(const float *in, float *out) {
    out[threadIdx.x] += in[threadIdx.x]; // BUG
}

//! uninitialised_read | f32[32]=random f32[1]=empty
extern "C" __global__ void atomics_on_an_output(const float *in, float *out) {
    atomicAdd(out, in[threadIdx.x]); // BUG
}

//! uninitialised_read | f32[64]=random f32[64]=empty f32[16]=zeros
extern "C" __global__ void a_tail_that_is_not_written(const float *in, float *half, float *out) {
    if (threadIdx.x < 31) half[threadIdx.x] = in[threadIdx.x];
    __syncwarp();
    float4 v = reinterpret_cast<const float4 *>(half)[threadIdx.x % 8]; // BUG
    if (threadIdx.x < 8) out[threadIdx.x] = v.x + v.w;
}

//! uninitialised_read | f32[32]=random f32[32]=empty
extern "C" __global__ void beta_that_is_zero(const float *in, float *out) {
    float beta = in[threadIdx.x] > 1e9f;
    out[threadIdx.x] = in[threadIdx.x] + beta * out[threadIdx.x]; // BUG
}

//! right | f32[32]=random f32[32]=empty
extern "C" __global__ void beta_that_is_not_read(const float *in, float *out) {
    float beta = in[threadIdx.x] > 1e9f;
    float old = beta != 0 ? out[threadIdx.x] : 0.0f;
    out[threadIdx.x] = in[threadIdx.x] + beta * old;
}

//! right | f32[32]=random f32[32]=empty
extern "C" __global__ void set_then_added_to(const float *in, float *out) {
    out[threadIdx.x] = 0;
    for (int i = 0; i < 4; ++i) out[threadIdx.x] += in[(threadIdx.x + i) % 32];
}

// Pointers to local variables that are gone.

__device__ __noinline__ int *digits_of(int n) {
    int digits[8];
    for (int i = 0; i < 8; ++i) digits[i] = n >> i & 1;
    int *p = digits;
    asm volatile("" : "+l"(p));
    return p;
}

//! dead_local | i32[32]=arange i32[32]=zeros
extern "C" __global__ void digits_after_the_return(const int *in, int *out) {
    int *digits = digits_of(in[threadIdx.x]);
    out[threadIdx.x] = digits[in[threadIdx.x] % 8]; // BUG
}

struct View {
    const float *data;
    __device__ __noinline__ static View of(float a, float b) {
        float pair[2] = {a, b};
        const float *p = pair;
        asm volatile("" : "+l"(p) : : "memory");
        return View{p};
    }
    __device__ float get(int i) const { return data[i & 1]; } // BUG
};

//! dead_local | f32[32]=random f32[32]=zeros
extern "C" __global__ void a_view_of_temporaries(const float *in, float *out) {
    View view = View::of(in[threadIdx.x], 2);
    out[threadIdx.x] = view.get(threadIdx.x);
}

__device__ __noinline__ void remember(int **slot, int v) {
    int local[4] = {v, v + 1, v + 2, v + 3};
    *slot = local + (v & 3);
}

//! dead_local | i32[32]=arange i32[32]=zeros
extern "C" __global__ void an_address_kept_by_the_caller(const int *in, int *out) {
    int *kept;
    remember(&kept, in[threadIdx.x]);
    *kept = 7; // BUG
    out[threadIdx.x] = 1;
}

__device__ __noinline__ int read_at(const int *p) { return *(const volatile int *)p; } // BUG

//! dead_local,uninitialised_read | i32[32]=arange i32[32]=zeros
extern "C" __global__ void passed_on_to_another_function(const int *in, int *out) {
    int *kept;
    remember(&kept, in[threadIdx.x]);
    out[threadIdx.x] = read_at(kept);
}

__device__ __noinline__ int sum_with_a_copy(const int *p, int n) {
    int copy[8];
    for (int i = 0; i < 8; ++i) copy[i * n & 7] = i;
    return p[n] + copy[n]; // BUG
}

//! dead_local | i32[32]=arange i32[32]=zeros
extern "C" __global__ void where_the_next_function_has_its_own(const int *in, int *out) {
    int n = in[threadIdx.x] % 8, *digits = digits_of(n);
    out[threadIdx.x] = sum_with_a_copy(digits, n); // BUG
}

//! dead_local | i32[32]=arange i32[32]=zeros
extern "C" __global__ void of_the_call_before_of_one_function(const int *in, int *out) {
    int n = in[threadIdx.x] % 8, *first = digits_of(n), *second = digits_of(n + 1);
    *first = 1; // BUG
    out[threadIdx.x] = first < second;
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void many_calls_that_each_have_their_own(const int *in, int *out) {
    int n = in[threadIdx.x] % 8, own[8], sum = 0;
    for (int i = 0; i < 8; ++i) own[i * n & 7] = own[i] = i;
    for (int i = 0; i < 100; ++i) sum += sum_with_a_copy(own, n);
    out[threadIdx.x] = sum;
}

__device__ __noinline__ int *deepest(int n, int *up) {
    int here[2] = {n, n};
    int *p = here + (n & 1);
    asm volatile("" : "+l"(p) : : "memory");
    return n == 0 ? p : deepest(n - 1, p);
}

//! dead_local | i32[32]=arange i32[32]=zeros
extern "C" __global__ void from_the_end_of_a_recursion(const int *in, int *out) {
    int mine = 3;
    int *p = deepest(in[threadIdx.x] % 3, &mine);
    out[threadIdx.x] = *p; // BUG
}

__device__ __noinline__ int sum_of(const int *p, int n) {
    int s = 0;
    for (int i = 0; i < n; ++i) s += p[i];
    return s;
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void arrays_handed_down(const int *in, int *out) {
    int own[6];
    for (int i = 0; i < 6; ++i) own[i] = in[threadIdx.x] * i;
    out[threadIdx.x] = sum_of(own, in[threadIdx.x] % 6) + sum_of(own + 1, 3);
}

__device__ __noinline__ void fill(int *to, int n) {
    for (int i = 0; i < n; ++i) to[i] = i * i;
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void arrays_filled_by_a_function(const int *in, int *out) {
    int own[9];
    fill(own, 9);
    out[threadIdx.x] = own[in[threadIdx.x] % 9];
}

// Neighbours in shared memory, by request.

//! out_of_bounds | block 32 | red_zones | i32[32]=arange i32[32]=zeros
extern "C" __global__ void one_past_the_row(const int *in, int *out) {
    __shared__ int row[32];
    __shared__ int next[32];
    row[threadIdx.x] = next[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = row[threadIdx.x + 1] + next[threadIdx.x]; // BUG
}

struct Buffers {
    float a[16];
    float b[16];
};

//! out_of_bounds | block 32 | red_zones | f32[64]=random f32[32]=zeros
extern "C" __global__ void past_the_end_of_a_struct(const float *in, float *out) {
    __shared__ Buffers one;
    __shared__ Buffers two;
    float *flat = one.a;
    flat[threadIdx.x] = in[threadIdx.x];
    two.a[threadIdx.x % 16] = two.b[threadIdx.x % 16] = in[threadIdx.x % 16];
    __syncthreads();
    int i = (int)threadIdx.x + 8;
    out[threadIdx.x] = flat[i] + two.b[3]; // BUG
}

//! out_of_bounds | block 32 | red_zones | shared_bytes 128 | f32[32]=random f32[32]=zeros
extern "C" __global__ void before_the_dynamic_part(const float *in, float *out) {
    extern __shared__ float dynamic[];
    __shared__ float fixed[32];
    fixed[threadIdx.x] = dynamic[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = dynamic[(int)threadIdx.x - 1] + fixed[threadIdx.x]; // BUG
}

//! out_of_bounds | block 32 | red_zones | f32[32]=random f32[32]=zeros
extern "C" __global__ void a_vector_over_the_end(const float *in, float *out) {
    __shared__ __align__(16) float first[28];
    __shared__ __align__(16) float second[32];
    if (threadIdx.x < 28) first[threadIdx.x] = in[threadIdx.x];
    second[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float4 v = reinterpret_cast<float4 *>(first)[threadIdx.x % 8]; // BUG
    out[threadIdx.x] = v.x + second[threadIdx.x];
}

//! out_of_bounds | block 32 | red_zones | i32[32]=arange i32[32]=zeros
extern "C" __global__ void inline_store_past_the_end(const int *in, int *out) {
    __shared__ int first[16];
    __shared__ int second[32];
    unsigned at = (unsigned)__cvta_generic_to_shared(first) + threadIdx.x * 4;
    second[threadIdx.x] = 0;
    __syncthreads();
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(in[threadIdx.x]) : "memory"); // BUG
    __syncthreads();
    out[threadIdx.x] = first[threadIdx.x % 16] + second[threadIdx.x];
}

//! right | block 32 | red_zones | shared_bytes 128 | f32[32]=random f32[32]=zeros
extern "C" __global__ void arrays_within_their_ends(const float *in, float *out) {
    extern __shared__ float dynamic[];
    __shared__ float fixed[33];
    __shared__ Buffers two;
    fixed[threadIdx.x + 1] = dynamic[threadIdx.x] = in[threadIdx.x];
    two.a[threadIdx.x % 16] = two.b[threadIdx.x % 16] = 1;
    __syncthreads();
    out[threadIdx.x] = dynamic[31 - threadIdx.x] + fixed[32 - threadIdx.x] + two.a[threadIdx.x % 16];
}

// Leaks.

//! leak | i32[32]=arange i32[32]=zeros
extern "C" __global__ void nobody_frees(const int *in, int *out) {
    int *p = (int *)malloc(16); // BUG
    p[0] = in[threadIdx.x];
    out[threadIdx.x] = p[0];
}

//! leak | i32[32]=arange i32[32]=zeros
extern "C" __global__ void one_path_forgets(const int *in, int *out) {
    Vec *v = new Vec[2]; // BUG
    v[0].x = in[threadIdx.x];
    out[threadIdx.x] = v[0].x;
    if (threadIdx.x != 9) delete[] v;
}

__device__ __noinline__ float *buffer_of(int n) {
    return static_cast<float *>(malloc(n * sizeof(float))); // BUG
}

//! leak | i32[32]=arange f32[32]=zeros
extern "C" __global__ void overwritten_pointer(const int *in, float *out) {
    float *p = buffer_of(4);
    p[1] = in[threadIdx.x];
    out[threadIdx.x] = p[1];
    p = buffer_of(8);
    p[1] = 2;
    out[threadIdx.x] += p[1];
    free(p);
}

//! leak | i32[32]=arange i32[32]=zeros
extern "C" __global__ void the_head_without_the_tail(const int *in, int *out) {
    Node *head = (Node *)malloc(sizeof(Node));
    head->next = (Node *)malloc(sizeof(Node)); // BUG
    head->next->value = in[threadIdx.x];
    out[threadIdx.x] = head->next->value;
    free(head);
}

struct Holder {
    int *data;
    __device__ explicit Holder(int n) : data(new int[n]) {} // BUG
};

//! leak | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_class_without_a_destructor(const int *in, int *out) {
    Holder holder(4);
    holder.data[in[threadIdx.x] & 3] = 1;
    out[threadIdx.x] = holder.data[in[threadIdx.x] & 3];
}

//! right | i32[32]=arange i32[32]=zeros i64[1]=zeros
extern "C" __global__ void kept_for_a_later_kernel(const int *in, int *out, int **kept) {
    if (threadIdx.x == 0) *kept = (int *)malloc(64);
    out[threadIdx.x] = in[threadIdx.x];
}

struct Owner {
    int *data;
    __device__ explicit Owner(int n) : data(new int[n]) {}
    __device__ ~Owner() { delete[] data; }
};

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_class_with_a_destructor(const int *in, int *out) {
    Owner owner(4);
    owner.data[in[threadIdx.x] & 3] = 1;
    out[threadIdx.x] = owner.data[in[threadIdx.x] & 3];
}

// Parts of what is loaded at once.

template <bool BOTH> __device__ void pairs_of_halves(const half *in, float *out) {
    __shared__ half2 s[32];
    s[threadIdx.x].x = in[threadIdx.x];
    if (BOTH) s[threadIdx.x].y = in[31 - threadIdx.x];
    __syncwarp();
    const half2 v = s[31 - threadIdx.x]; // BUG
    out[threadIdx.x] = __low2float(v) + __high2float(v);
}

//! uninitialised_shared_read | f16[32]=random f32[32]=zeros
extern "C" __global__ void one_half_of_each_pair_is_set(const half *in, float *out) { pairs_of_halves<false>(in, out); } // BUG

//! right | f16[32]=random f32[32]=zeros
extern "C" __global__ void both_halves_of_each_pair_are_set(const half *in, float *out) { pairs_of_halves<true>(in, out); }

template <bool BOTH> __device__ void local_pairs(const half *in, float *out, int k) {
    half2 v[4];
    for (int i = 0; i < 4; ++i) {
        v[(i + k) & 3].x = in[threadIdx.x];
        if (BOTH) v[(i + k) & 3].y = in[threadIdx.x ^ 1];
    }
    half2 sum = v[k];
    for (int i = 1; i < 4; ++i) sum = __hadd2(sum, v[(i + k) & 3]); // BUG
    out[threadIdx.x] = __low2float(sum) + __high2float(sum);
}

//! uninitialised_read | f16[32]=random f32[32]=zeros 1
extern "C" __global__ void local_pairs_of_which_one_half_is_set(const half *in, float *out, int k) { local_pairs<false>(in, out, k); } // BUG

//! right | f16[32]=random f32[32]=zeros 1
extern "C" __global__ void local_pairs_of_which_both_halves_are_set(const half *in, float *out, int k) { local_pairs<true>(in, out, k); }

//! right | f16[33]=random f32[32]=zeros 33
extern "C" __global__ void the_half_beyond_the_end_is_not_used(const half *in, float *out, int n) {
    __shared__ half2 s[17];
    half *flat = (half *)s;
    for (int i = threadIdx.x; i < n; i += 32) flat[i] = in[i];
    __syncwarp();
    if (threadIdx.x > 16) return;
    const half2 v = s[threadIdx.x];
    float sum = __low2float(v);
    if (2 * (int)threadIdx.x + 1 < n) sum += __high2float(v);
    out[threadIdx.x] = sum;
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_struct_is_copied_with_its_padding(const int *in, int *out) {
    struct Padded {
        char tag;
        int value;
    };
    __shared__ __align__(8) Padded from[32], to[32];
    from[threadIdx.x].tag = 'x';
    from[threadIdx.x].value = in[threadIdx.x];
    __syncwarp();
    ((unsigned long long *)to)[threadIdx.x] = ((unsigned long long *)from)[31 - threadIdx.x];
    __syncwarp();
    out[threadIdx.x] = to[threadIdx.x].value + to[threadIdx.x].tag;
}

template <bool OWN>
__device__ void freed_and_given_out_again(int *out) {
    int *old = (int *)malloc(64);
    old[3] = 5;
    free(old); // BUG
    int *now = (int *)malloc(64);
    now[3] = 7;
    out[threadIdx.x] = OWN ? now[3] : old[3]; // BUG
    free(now);
}

//! out_of_bounds | i32[32]=empty
extern "C" __global__ void the_old_pointer_to_the_next_of_malloc(int *out) { freed_and_given_out_again<false>(out); } // BUG

//! right | i32[32]=empty
extern "C" __global__ void the_new_pointer_of_malloc(int *out) { freed_and_given_out_again<true>(out); }
