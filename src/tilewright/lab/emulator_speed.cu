// The kernels of emulator_speed.py.
typedef unsigned u32;
typedef unsigned long long u64;
extern "C" __global__ void naive(const float *a, const float *b, float *c, int n) {
    int x = blockIdx.x * 32 + threadIdx.x % 32, y = blockIdx.y * 8 + threadIdx.x / 32;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[y * n + k] * b[k * n + x];
    c[y * n + x] = sum;
}
extern "C" __global__ void tiled(const float *a, const float *b, float *c, int n) {
    __shared__ float s[32][33], t[32][33];
    int tx = threadIdx.x % 32, ty = threadIdx.x / 32, x = blockIdx.x * 32 + tx, y = blockIdx.y * 32 + ty;
    float sum = 0;
    for (int k = 0; k < n; k += 32) {
        s[ty][tx] = a[y * n + k + tx];
        t[ty][tx] = b[(k + ty) * n + x];
        __syncthreads();
        for (int j = 0; j < 32; ++j) sum += s[ty][j] * t[j][tx];
        __syncthreads();
    }
    c[y * n + x] = sum;
}
extern "C" __global__ void warp_tiles(const float *a, const float *b, float *c, int n) {
    __shared__ float s[8][128], t[8][128];
    int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    int row = warp / 4 * 64 + lane / 8 * 16, column = warp % 4 * 32 + lane % 8 * 4;
    float sums[16][4] = {};
    for (int k = 0; k < n; k += 8) {
        for (int i = tid; i < 1024; i += 256) {
            s[i % 8][i / 8] = a[(blockIdx.y * 128 + i / 8) * n + k + i % 8];
            t[i / 128][i % 128] = b[(k + i / 128) * n + blockIdx.x * 128 + i % 128];
        }
        __syncthreads();
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
            float4 v = *(float4 *)&t[j][column];
            #pragma unroll
            for (int i = 0; i < 16; ++i) {
                float u = s[j][row + i];
                sums[i][0] += u * v.x; sums[i][1] += u * v.y; sums[i][2] += u * v.z; sums[i][3] += u * v.w;
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 4; ++j) c[(blockIdx.y * 128 + row + i) * n + blockIdx.x * 128 + column + j] = sums[i][j];
}
extern "C" __global__ void axpy(const float *x, float *y, float a, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void histogram(const unsigned *x, unsigned *bins, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(bins + x[i] % 256, 1);
}
extern "C" __global__ void tickets(const unsigned *x, float *old, float *sums, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) old[i] = atomicAdd(sums + x[i] % 64, 1.0f);
}
extern "C" __global__ void collatz(const unsigned *x, unsigned *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = x[i], steps = 0;
    while (v != 1) {
        if (v & 1) v = 3 * v + 1; else v >>= 1;
        ++steps;
    }
    y[i] = steps;
}
extern "C" __global__ void lone(unsigned *y, int n) {
    unsigned v = 1;
    for (int i = 0; i < n; ++i) { v ^= v << 13; v ^= v >> 17; v ^= v << 5; v += i; }
    *y = v;
}
extern "C" __global__ void mma(const u32 *a, const u32 *b, float *c, int n) {  // C = A B', bf16; a warp 64 x 32
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, half = n / 2;
    int row = (blockIdx.y * 2 + warp / 2) * 64, column = (blockIdx.x * 2 + warp % 2) * 32;
    float d[4][4][4] = {};
    for (int k = 0; k < half; k += 8) {
        u32 u[4][4], v[4][2];
        for (int i = 0; i < 4; ++i)
            for (int r = 0; r < 4; ++r) u[i][r] = a[(row + 16 * i + g + r % 2 * 8) * half + k + t + r / 2 * 4];
        for (int j = 0; j < 4; ++j)
            for (int r = 0; r < 2; ++r) v[j][r] = b[(column + 8 * j + g) * half + k + t + r * 4];
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < 4; ++j)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                    "{%8, %9}, {%0, %1, %2, %3};"
                    : "+f"(d[i][j][0]), "+f"(d[i][j][1]), "+f"(d[i][j][2]), "+f"(d[i][j][3])
                    : "r"(u[i][0]), "r"(u[i][1]), "r"(u[i][2]), "r"(u[i][3]), "r"(v[j][0]), "r"(v[j][1]));
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j)
            for (int r = 0; r < 4; ++r) c[(row + 16 * i + g + r / 2 * 8) * n + column + 8 * j + 2 * t + r % 2] = d[i][j][r];
}
struct alignas(64) CUtensorMap { char bytes[128]; };
constexpr int stages = 4, depth = 64, tile_bytes = 128 * 64 * 2;
__device__ __forceinline__ u32 at(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait(const u64 *b, int parity) {
    asm volatile("{ .reg .pred p;\nL: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra L;\nD: }"
                 :: "r"(at(b)), "r"(parity) : "memory");
}
__device__ __forceinline__ void load(void *to, const CUtensorMap *map, int x, int y, const u64 *b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(at(to)), "l"((u64)map), "r"(x), "r"(y), "r"(at(b)) : "memory");
}
__device__ __forceinline__ u64 described(u32 address) {
    return (u64)(address >> 4 & 0x3fff) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}
#define D4(j) "+f"(d[j]), "+f"(d[j + 1]), "+f"(d[j + 2]), "+f"(d[j + 3])
#define D16(j) D4(j), D4(j + 4), D4(j + 8), D4(j + 12)
__device__ __forceinline__ void multiply(float (&d)[64], u64 a, u64 b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23,"
        "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45,"
        "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},"
        "%64, %65, p, 1, 1, 0, 0; }" : D16(0), D16(16), D16(32), D16(48) : "l"(a), "l"(b));
}
extern "C" __global__ void __launch_bounds__(384, 1) ring(
    const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, float *c, int n) {
    extern __shared__ __align__(1024) char shared[];
    char *a_tile = shared, *b_tile = shared + stages * tile_bytes;
    __shared__ u64 full[stages], empty[stages];
    const int group = threadIdx.x / 128, x = blockIdx.x * 128, y = blockIdx.y * 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(full + s)) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" :: "r"(at(empty + s)) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (group == 0) {
        if (threadIdx.x == 0)
            for (int step = 0; step < n / depth; ++step) {
                const int s = step % stages;
                wait(empty + s, step / stages + 1 & 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                             :: "r"(at(full + s)), "r"(2 * tile_bytes) : "memory");
                load(a_tile + s * tile_bytes, &a_map, step * depth, y, full + s);
                load(b_tile + s * tile_bytes, &b_map, step * depth, x, full + s);
            }
        return;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    float d[64] = {};
    for (int step = 0; step < n / depth; ++step) {
        const int s = step % stages;
        wait(full + s, step / stages & 1);
        const u32 a = at(a_tile + s * tile_bytes) + (group - 1) * 64 * 128, b = at(b_tile + s * tile_bytes);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int part = 0; part < 4; ++part) multiply(d, described(a + 32 * part), described(b + 32 * part));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (threadIdx.x % 128 == 0)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(empty + s)) : "memory");
    }
    for (int j = 0; j < 16; ++j)
        for (int r = 0; r < 4; ++r)
            c[(y + (group - 1) * 64 + 16 * warp + lane / 4 + r / 2 * 8) * n + x + 8 * j + lane % 4 * 2 + r % 2] = d[4 * j + r];
}
__device__ __forceinline__ void copy(u32 to, const unsigned short *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from));
}
extern "C" __global__ void __launch_bounds__(128, 1) copied(  // the same without TMA: a warpgroup 64 x 128
    const unsigned short *a, const unsigned short *b, float *c, int n) {
    extern __shared__ __align__(1024) char shared[];
    const int a_bytes = 64 * 128, tid = threadIdx.x, x = blockIdx.x * 128, y = blockIdx.y * 64, steps = n / depth;
    char *a_tile = shared, *b_tile = shared + stages * a_bytes;
    auto load = [&](int step) {
        const u32 to_a = at(a_tile + step % stages * a_bytes), to_b = at(b_tile + step % stages * tile_bytes);
        for (int i = tid; i < 192 * 8; i += 128) {
            const int row = i / 8, part = i % 8, k = step * depth + 8 * part, r = row < 64 ? row : row - 64;
            const u32 to = (row < 64 ? to_a : to_b) + r * 128 + (part ^ r % 8) * 16;
            copy(to, row < 64 ? a + (y + r) * n + k : b + (x + r) * n + k);
        }
    };
    float d[64] = {};
    for (int step = 0; step < stages - 1; ++step) {
        if (step < steps) load(step);
        asm volatile("cp.async.commit_group;");
    }
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group 2;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
        __syncthreads();
        const u32 a_at = at(a_tile + step % stages * a_bytes), b_at = at(b_tile + step % stages * tile_bytes);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int part = 0; part < 4; ++part) multiply(d, described(a_at + 32 * part), described(b_at + 32 * part));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
        if (step + stages - 1 < steps) load(step + stages - 1);
        asm volatile("cp.async.commit_group;");
    }
    const int lane = tid % 32, warp = tid / 32;
    for (int j = 0; j < 16; ++j)
        for (int r = 0; r < 4; ++r)
            c[(y + 16 * warp + lane / 4 + r / 2 * 8) * n + x + 8 * j + lane % 4 * 2 + r % 2] = d[4 * j + r];
}
