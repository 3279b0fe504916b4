// Hopper instructions that the kernels share, as header-free PTX wrappers (NVRTC needs no include path).
// Shared-memory addresses are 32-bit offsets of the shared window, global ones are pointers.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) TensorMap {
  u64 opaque[16];
};

struct Vec4 {
  u32 x, y, z, w;
};

template <int TABLE>
__device__ __forceinline__ u32 lop3(u32 a, u32 b, u32 c) {
  u32 d;
  asm("lop3.b32 %0,%1,%2,%3,%4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
  return d;
}
constexpr int AND_OR = 0xEA;  // (a & b) | c

__device__ __forceinline__ float as_float(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ u32 as_bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }

__device__ __forceinline__ u16 to_bf16(float value) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0,%1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Two products at once; exact where they are representable, denormal operands included. Adding -0 changes nothing.
__device__ __forceinline__ u32 multiply_bf16(u32 a, u32 b) {
  u32 d;
  asm("fma.rn.bf16x2 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
  return d;
}

__device__ __forceinline__ void store(u16 *to, float value) { *to = to_bf16(value); }
__device__ __forceinline__ void store(float *to, float value) { *to = value; }

__device__ __forceinline__ u32 shared_address(const void *pointer) {
  return (u32)__cvta_generic_to_shared(pointer);
}
__device__ __forceinline__ Vec4 load_shared(u32 address) {
  Vec4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ __forceinline__ void load_shared2(u32 address, u32 &x, u32 &y) {
  asm volatile("ld.shared.v2.b32 {%0,%1},[%2];" : "=r"(x), "=r"(y) : "r"(address));
}
__device__ __forceinline__ u32 load_shared1(u32 address) {
  u32 v;
  asm volatile("ld.shared.b32 %0,[%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ u32 load_shared_byte(u32 address) {
  u32 v;
  asm volatile("ld.shared.u8 %0,[%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ void store_shared(u32 address, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
// If i < count, without the branch that the compiler would make of it.
__device__ __forceinline__ void and_shared(u32 address, u32 kept, u32 i, u32 count) {
  asm volatile("{\n.reg .pred inside;\nsetp.lt.u32 inside,%2,%3;\n"
               "@inside red.shared::cta.and.b32 [%0],%1;\n}" ::"r"(address), "r"(kept), "r"(i), "r"(count) : "memory");
}

// A BF16 of a tile of 64 a row in the 128-byte swizzle.
__device__ __forceinline__ float load_swizzled(u32 tile, u32 row, u32 k) {
  u16 bits;
  asm volatile("ld.shared.u16 %0,[%1];" : "=h"(bits) : "r"(tile + row * 128 + ((k >> 3 ^ row & 7) << 4) + (k & 7) * 2));
  return as_float((u32)bits << 16);
}

// mbarriers --------------------------------------------------------------------------------------
__device__ __forceinline__ void barrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile("{\n.reg .pred done;\nAGAIN:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done,[%0],%1;\n"
               "@done bra READY;\nbra AGAIN;\nREADY:\n}" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barriers_are_initialised() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// copy engine ------------------------------------------------------------------------------------
__device__ __forceinline__ u64 read_once_policy() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0,1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ u64 keep_policy() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0,1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_bulk(u32 to, const void *from, u32 bytes, u32 barrier,
                                          u64 policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0],[%1],%2,[%3],%4;" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
               : "memory");
}
__device__ __forceinline__ void copy_tile(u32 to, const TensorMap *map, int x, int y, u32 barrier,
                                          u64 policy) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
               ".L2::cache_hint [%0],[%1,{%3,%4}],[%2],%5;" ::"r"(to), "l"(map), "r"(barrier),
               "r"(x), "r"(y), "l"(policy) : "memory");
}
__device__ __forceinline__ void prefetch_map(const TensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// dependent launches (older GPUs have none: kernels follow each other) ---------------------------
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// words that other thread blocks read while the kernel runs ------------------------------------------
__device__ __forceinline__ void publish(u32 *to, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0],{%1,%2,%3,%4};" ::"l"(to), "r"(x), "r"(y),
               "r"(z), "r"(w) : "memory");
}
__device__ __forceinline__ Vec4 observe(const u32 *from) {
  Vec4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}

// registers of a thread, for all warps of a warpgroup at once
template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// warpgroup matrix multiply: D[64, N] += A[64, 16] (registers) x B[16, N] (shared memory) -------
__device__ __forceinline__ void wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// K-major tile of 64 bf16 a row in the 128-byte swizzle: rows 128 B apart, eight-row atoms 1024 B apart
__device__ __forceinline__ u64 tile_descriptor(u32 address) {
  return (u64)(address >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
#define L4 "%0,%1,%2,%3"
#define L8 L4 ",%4,%5,%6,%7"
#define L12 L8 ",%8,%9,%10,%11"
#define L16 L12 ",%12,%13,%14,%15"
#define L24 L16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define L32 L24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA(COLUMNS, REGISTERS, A, B) \
  "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.bf16.bf16 {" REGISTERS "},{" A "}," B ",1,1,1,0;"

template <int N>
__device__ __forceinline__ void wgmma(float *d, const u32 *a, u64 b) {
  static_assert(N == 8 || N == 16 || N == 24 || N == 32 || N == 48 || N == 64);
  if constexpr (N == 8)
    asm volatile(WGMMA("8", L4, "%4,%5,%6,%7", "%8") : D4(0) : OPERANDS);
  else if constexpr (N == 16)
    asm volatile(WGMMA("16", L8, "%8,%9,%10,%11", "%12") : D4(0), D4(4) : OPERANDS);
  else if constexpr (N == 24)
    asm volatile(WGMMA("24", L12, "%12,%13,%14,%15", "%16") : D4(0), D4(4), D4(8) : OPERANDS);
  else if constexpr (N == 32)
    asm volatile(WGMMA("32", L16, "%16,%17,%18,%19", "%20") : D16(0) : OPERANDS);
  else if constexpr (N == 48)
    asm volatile(WGMMA("48", L24, "%24,%25,%26,%27", "%28") : D16(0), D4(16), D4(20) : OPERANDS);
  else
    asm volatile(WGMMA("64", L32, "%32,%33,%34,%35", "%36") : D16(0), D16(16) : OPERANDS);
}
