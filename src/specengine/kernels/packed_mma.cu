// Product with packed weights where there is no wgmma: y[rows, n] = x[rows, k] @ W[n, k]^T for 1 to 64 rows, sm_80 and newer.
//
// The records are those of `packed_gemm.cu`: a warp of mma.sync reads the A operand of 16 channels in the very order in
// which a quarter of a warpgroup does. A thread block of 8 warps multiplies one tile of 128 channels by a stretch of k:
// records and rows come by asynchronous copies into a ring of STAGES, rows as 128-byte lines whose 16-byte parts are
// swapped by row, so that ldmatrix meets no bank twice.
//
// Order: a block adds its records in ascending k, scales (exact), and adds its escapes in list order; the last block of a
// tile to end adds all blocks' parts in ascending k. How a tile is cut depends on the shape and the device alone, so a
// row has the same bits on every run and in any company. Bits differ from those of `packed_gemm.cu`, which cuts otherwise.
//
// FORMAT (any but W11S), ROWS (8, 16, 32, 48 or 64) and OUTPUT (u16 for BF16, or float) are given to the compiler.

constexpr Format WEIGHTS = FORMAT;
constexpr bool LOSSLESS = WEIGHTS == W12 || WEIGHTS == W12N;
constexpr int THREADS = 256, STAGES = 4, GROUPS = ROWS / 8;
constexpr int RECORD = read_bytes(WEIGHTS), STAGE = RECORD + ROWS * 128;
static_assert(WEIGHTS != W11S);

struct Arguments {
  const u16 *x;  // [rows, width]
  const u8 *records;
  const float *scale;
  const uint2 *escapes;       // {channel in tile | k << 16, true | substitute << 16}, sorted by record
  const int *escape_offsets;  // records + 1
  OUTPUT *y;                  // [rows, channels]
  float *parts;               // a tile of 128 x ROWS for each block
  u32 *tickets;               // a word for each tile, EMPTY between launches
  int rows, channels, width, x_stride, k_blocks, cuts;
};

__device__ __forceinline__ void copy16(u32 to, const void *from, bool inside) {
  const int bytes = inside ? 16 : 0;  // the rest is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ Vec4 load_matrices(u32 address) {
  Vec4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ __forceinline__ void mma(float *d, const u32 *a, u32 low, u32 high) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
}

__device__ __forceinline__ void load_stage(const Arguments &p, u32 stage, int tile, int block) {
  const u8 *record = p.records + (u64)(tile * p.k_blocks + block) * stride_bytes(WEIGHTS);
  for (int at = threadIdx.x * 16; at < RECORD; at += THREADS * 16) copy16(stage + at, record + at, true);
  for (int i = threadIdx.x; i < ROWS * 8; i += THREADS) {
    const int row = i >> 3, part = i & 7, k = block * 64 + part * 8;
    const bool inside = row < p.rows && k < p.width;
    copy16(stage + RECORD + row * 128 + ((part ^ row & 7) << 4), p.x + (inside ? (u64)row * p.x_stride + k : 0), inside);
  }
}

__device__ __forceinline__ void multiply(u32 stage, int group, int thread, float *sum) {
  const int lane = thread & 31;
  u32 loaded[loaded_words(WEIGHTS)], pair[16];
  load_record<WEIGHTS>(stage, 0, group, thread, loaded);
  unpack<WEIGHTS>(loaded, pair);
#pragma unroll
  for (int v = 0; v < GROUPS; v++) {
    const u32 line = stage + RECORD + (8 * v + (lane & 7)) * 128;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const Vec4 b = load_matrices(line + ((4 * half + (lane >> 3) ^ lane & 7) << 4));
      mma(sum + 4 * v, pair + 8 * half, b.x, b.y);
      mma(sum + 4 * v, pair + 8 * half + 4, b.z, b.w);
    }
  }
}

// (true - substitute) * x for the escapes of records [first, last); the four lanes of a channel share its rows.
__device__ __forceinline__ void correct(const Arguments &p, int first, int last, int channel, int lane, float *sum) {
  const int stop = p.escape_offsets[last];
  for (int i = p.escape_offsets[first]; i < stop; i++) {
    const uint2 entry = p.escapes[i];
    const int apart = (int)(entry.x & 0xFFFF) - channel;
    if (apart != 0 && apart != 8) continue;
    const float weight = as_float(entry.y << 16), substitute = as_float(entry.y & 0xFFFF0000u);
    const u16 *x = p.x + (entry.x >> 16);
#pragma unroll
    for (int e = 0; e < ROWS / 2; e++) {
      const int row = 8 * (e / 4) + 2 * (lane & 3) + (e & 1);
      if ((e >> 1 & 1) * 8 != apart || row >= p.rows) continue;
      const float value = as_float((u32)x[(u64)row * p.x_stride] << 16);
      sum[e] = fmaf(-substitute, value, fmaf(weight, value, sum[e]));
    }
  }
}

// All parts of a tile in order, by the block that ends last; the others are done.
__device__ __forceinline__ bool gather(const Arguments &p, int tile, int cut, float *sum) {
  __shared__ bool last;
  float4 *parts = (float4 *)p.parts + (u64)tile * p.cuts * THREADS * GROUPS + threadIdx.x;
#pragma unroll
  for (int v = 0; v < GROUPS; v++)
    parts[(cut * GROUPS + v) * THREADS] = make_float4(sum[4 * v], sum[4 * v + 1], sum[4 * v + 2], sum[4 * v + 3]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(p.tickets + tile, 1) + 1 == p.cuts - 1;
  __syncthreads();
  if (!last) return false;
  __threadfence();
#pragma unroll
  for (int e = 0; e < ROWS / 2; e++) sum[e] = 0.f;
  for (int i = 0; i < p.cuts; i++)
#pragma unroll
    for (int v = 0; v < GROUPS; v++) {
      const float4 part = __ldcg(parts + (i * GROUPS + v) * THREADS);
      sum[4 * v] += part.x, sum[4 * v + 1] += part.y, sum[4 * v + 2] += part.z, sum[4 * v + 3] += part.w;
    }
  if (threadIdx.x == 0) p.tickets[tile] = ~0u;
  return true;
}

extern "C" __global__ __launch_bounds__(THREADS) void packed_mma(const Arguments p) {
  extern __shared__ __align__(128) u8 shared[];
  const u32 base = shared_address(shared);
  const int group = threadIdx.x >> 7, thread = threadIdx.x & 127, lane = thread & 31;
  const int tile = blockIdx.x / p.cuts, cut = blockIdx.x % p.cuts;
  const int first = p.k_blocks * cut / p.cuts, last = p.k_blocks * (cut + 1) / p.cuts;
  const int local = group * 64 + (thread >> 5) * 16 + (lane >> 2), channel = tile * 128 + local;
  float sum[ROWS / 2];
#pragma unroll
  for (int e = 0; e < ROWS / 2; e++) sum[e] = 0.f;
  for (int i = 0; i < STAGES - 1; i++) {
    if (first + i < last) load_stage(p, base + i * STAGE, tile, first + i);
    commit();
  }
  int stage = 0, next = STAGES - 1;
  for (int block = first; block < last; block++) {
    wait<STAGES - 2>();
    __syncthreads();
    if (block + STAGES - 1 < last) load_stage(p, base + next * STAGE, tile, block + STAGES - 1);
    commit();
    multiply(base + stage * STAGE, group, thread, sum);
    stage = stage + 1 == STAGES ? 0 : stage + 1, next = next + 1 == STAGES ? 0 : next + 1;
  }
  const float low = p.scale[channel], high = p.scale[channel + 8];
#pragma unroll
  for (int e = 0; e < ROWS / 2; e++) sum[e] *= e & 2 ? high : low;
  if constexpr (LOSSLESS) correct(p, tile * p.k_blocks + first, tile * p.k_blocks + last, local, lane, sum);
  if (p.cuts > 1 && !gather(p, tile, cut, sum)) return;
#pragma unroll
  for (int e = 0; e < ROWS / 2; e++) {
    const int row = 8 * (e / 4) + 2 * (lane & 3) + (e & 1), to = channel + (e >> 1 & 1) * 8;
    if (row < p.rows && to < p.channels) store(p.y + (u64)row * p.channels + to, sum[e]);
  }
}
