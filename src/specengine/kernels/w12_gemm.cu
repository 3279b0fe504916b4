// W12 matrix product: y[rows, n] = x[rows, k] @ W[n, k]^T for 1 to 64 rows, W read as 12-bit records.
//
// Bound: the weight stream. 12 KB records (128 channels x 64 k) flow by bulk copies into a ring of STAGES; two
// consumer warpgroups of 64 channels each load three 16-byte words a thread, rebuild 32 BF16 weights with
// 1.4 operations each in the register order of wgmma's A operand, and multiply them by the rows (B, shared memory).
// The window exponent of a channel is a power of two, so it is applied once, in the epilogue, without rounding.
//
// Order: thread block c owns records [c R / P, (c + 1) R / P), k fastest. The block with a tile's first record owns
// the tile and adds the later parts in ascending k. P depends on the shape alone, so a row has the same bits on every
// run and whatever its company. Parts meet in `partials`, whose words start as EMPTY, a NaN that arithmetic never
// yields: a word that is not EMPTY has arrived, which needs no fence and no flag. Its reader empties it again.
//
// Escapes: one warp follows the ring and adds (true - substitute) * x per escape to `corrections`, one lane a row,
// in list order; x comes from the ring, so no load waits behind the weight stream.
//
// Weights do not depend on the previous kernel, so the ring is filled before the wait for it (dependent launches).

#ifndef ROWS
#define ROWS 8
#define STAGES 8
#define X_STAGES 8
#define BLOCKS_PER_SM 2
#endif

constexpr int RECORD = 12288, HALF = RECORD / 2, PLANE = 2048, X_TILE = ROWS * 128;
constexpr int CONSUMERS = 8, PRODUCER = 8, CORRECTOR = 9, THREADS = 320;
constexpr int GROUPS = ROWS / 8;         // accumulator groups of four a thread
constexpr int PART = 128 * 4 * GROUPS;   // words of one warpgroup's part of a tile
constexpr u32 EMPTY = 0xFFFFFFFFu;
constexpr int X_RING = STAGES * RECORD, CORRECTIONS = X_RING + X_STAGES * X_TILE;
constexpr int BARRIERS = CORRECTIONS + 128 * ROWS * 4;
static_assert(X_STAGES <= STAGES);

struct Arguments {
  const u8 *records;
  const float *scale;
  const uint2 *escapes;        // {channel in tile | k << 16, true | substitute << 16}, sorted by record
  const int *escape_offsets;   // units + 1
  u16 *y;
  u32 *partials;               // P x 2 x PART words
  int rows, channels, k_blocks, units, dependent;
};

struct Work {
  int first, last;  // records of this block: [first, last)
};

struct Ring {
  u32 base;
  int stage, x_stage;
  u32 parity;
  __device__ __forceinline__ u32 full() const { return base + BARRIERS + 8 * stage; }
  __device__ __forceinline__ u32 empty() const { return base + BARRIERS + 8 * (STAGES + stage); }
  __device__ __forceinline__ u32 record() const { return base + stage * RECORD; }
  __device__ __forceinline__ u32 x() const { return base + X_RING + x_stage * X_TILE; }
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
    if (++x_stage == X_STAGES) x_stage = 0;
  }
};

__device__ __forceinline__ void corrections_are_ready() { asm volatile("bar.sync 3,288;" ::: "memory"); }
__device__ __forceinline__ void corrections_were_read() { asm volatile("bar.arrive 4,288;" ::: "memory"); }
__device__ __forceinline__ void wait_for_readers() { asm volatile("bar.sync 4,288;" ::: "memory"); }

// Three words hold three pairs in place, and the fourth cut into their free bits 14..11.
__device__ __forceinline__ void decode(u32 w0, u32 w1, u32 w2, u32 *pair) {
  constexpr u32 TOP = 0x38003800u, KEPT = 0x87FF87FFu;
  pair[0] = lop3<AND_OR>(w0, KEPT, TOP);
  pair[1] = lop3<AND_OR>(w1, KEPT, TOP);
  pair[2] = lop3<AND_OR>(w2, KEPT, TOP);
  u32 cut = lop3<AND_OR>(w0 >> 4, 0x07800780u, TOP);
  cut = lop3<AND_OR>(w1 >> 8, 0x00780078u, cut);
  cut = lop3<AND_OR>(w2 >> 11, 0x00070007u, cut);
  pair[3] = lop3<AND_OR>(w2 << 1, 0x80008000u, cut);
}

__device__ __forceinline__ void produce(const TensorMap *map, const Arguments &p, Ring ring, Work work) {
  const u64 once = read_once_policy(), keep = keep_policy();
  const int count = work.last - work.first, ahead = smaller(count, STAGES), x_ahead = smaller(count, X_STAGES);
  const u8 *source = p.records + (u64)work.first * RECORD;
  const u32 base = ring.base, full = base + BARRIERS;
  int x_block = work.first % p.k_blocks;
  auto load_x = [&](int stage, int x_stage) {
    copy_tile(base + X_RING + x_stage * X_TILE, map, x_block * 64, 0, full + 8 * stage, keep);
    if (++x_block == p.k_blocks) x_block = 0;
  };
  for (int i = 0; i < ahead; i++) {
    barrier_expect(full + 8 * i, RECORD + X_TILE);
    copy_bulk(base + i * RECORD, source, RECORD, full + 8 * i, once);
    source += RECORD;
    if (!p.dependent && i < x_ahead) load_x(i, i);
  }
  if (p.dependent) {
    wait_for_previous_kernel();
    for (int i = 0; i < x_ahead; i++) load_x(i, i);
  }
  // The release of record i frees its place for record i + STAGES, and its rows' place for i + X_STAGES.
  int x_stage = X_STAGES == STAGES ? 0 : X_STAGES;
  for (int i = 0; i + X_STAGES < count; i++) {
    barrier_wait(ring.empty(), ring.parity);
    if (i + STAGES < count) {
      barrier_expect(ring.full(), RECORD + X_TILE);
      copy_bulk(ring.record(), source, RECORD, ring.full(), once);
      source += RECORD;
    }
    load_x(x_stage, ring.x_stage);
    if (++x_stage == STAGES) x_stage = 0;
    ring.next();
  }
}

// Entries and offsets are read a batch of 32 ahead, so that the ring never waits for them.
struct EscapeList {
  const Arguments &p;
  int lane, position, batch, record, end;
  uint2 entries, more_entries;
  int ends, more_ends;
  __device__ __forceinline__ int ends_at(int unit) const {
    return unit + lane < end ? __ldg(p.escape_offsets + unit + lane + 1) : 0;
  }
  __device__ __forceinline__ uint2 entries_at(int index) const {
    return index + lane < total() ? __ldg(p.escapes + index + lane) : make_uint2(0, 0);
  }
  __device__ __forceinline__ int total() const { return limit; }
  int limit;
  __device__ EscapeList(const Arguments &arguments, Work work, int lane_)
      : p(arguments), lane(lane_), record(work.first), end(work.last) {
    position = batch = __ldg(p.escape_offsets + work.first);
    limit = __ldg(p.escape_offsets + work.last);
    ends = ends_at(work.first);
    more_ends = ends_at(work.first + 32);
    entries = entries_at(batch);
    more_entries = entries_at(batch + 32);
  }
  __device__ __forceinline__ int end_of_record(int unit) {
    if (unit - record == 32) {
      record = unit;
      ends = more_ends;
      more_ends = ends_at(unit + 32);
    }
    return __shfl_sync(~0u, ends, unit - record);
  }
  __device__ __forceinline__ uint2 next() {
    if (position - batch == 32) {
      batch = position;
      entries = more_entries;
      more_entries = entries_at(batch + 32);
    }
    const int from = position++ - batch;
    return make_uint2(__shfl_sync(~0u, entries.x, from), __shfl_sync(~0u, entries.y, from));
  }
};

__device__ __forceinline__ void correct(const Arguments &p, Ring ring, Work work, int lane, float *corrections) {
  EscapeList list(p, work, lane);
  for (int unit = work.first; unit < work.last;) {
    const int stop = smaller(unit - unit % p.k_blocks + p.k_blocks, work.last);
    if (unit != work.first) wait_for_readers();
    for (int i = lane; i < 128 * ROWS; i += 32) corrections[i] = 0.f;
    __syncwarp();
    for (; unit < stop; unit++) {
      const int end = list.end_of_record(unit);
      barrier_wait(ring.full(), ring.parity);
      while (list.position < end) {
        const uint2 entry = list.next();
        const float weight = as_float(entry.y << 16), substitute = as_float(entry.y & 0xFFFF0000u);
        const u32 k = entry.x >> 16 & 63;
#pragma unroll
        for (int row = lane; row < ROWS; row += 32) {
          const u32 at = ring.x() + row * 128 + ((k >> 3 ^ row & 7) << 4) + (k & 7) * 2;
          u16 bits;
          asm volatile("ld.shared.u16 %0,[%1];" : "=h"(bits) : "r"(at));
          const float x = as_float((u32)bits << 16);
          float *sum = corrections + (entry.x & 0xFFFF) * ROWS + row;
          *sum = fmaf(-substitute, x, fmaf(weight, x, *sum));
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.empty());
      ring.next();
    }
    corrections_are_ready();
  }
}

// Adds the parts of blocks [block + 1, last] in this order and empties their words for the next launch.
__device__ __forceinline__ void add_parts(float *sum, u32 *partials, int block, int last, int group, int thread) {
  constexpr int TOGETHER = ROWS <= 16 ? 4 : ROWS <= 32 ? 2 : 1;
  for (int from = block + 1; from <= last; from += TOGETHER) {
    Vec4 part[TOGETHER][GROUPS];
#pragma unroll
    for (int j = 0; j < TOGETHER; j++)
#pragma unroll
      for (int v = 0; v < GROUPS; v++)
        if (from + j <= last)
          part[j][v] = load_shared_word4(partials + ((from + j) * 2 + group) * PART + (v * 128 + thread) * 4);
#pragma unroll
    for (int j = 0; j < TOGETHER; j++)
#pragma unroll
      for (int v = 0; v < GROUPS; v++)
        if (from + j <= last) {
          u32 *words = partials + ((from + j) * 2 + group) * PART + (v * 128 + thread) * 4;
          Vec4 &q = part[j][v];
          while (q.x == EMPTY || q.y == EMPTY || q.z == EMPTY || q.w == EMPTY) q = load_shared_word4(words);
          store_shared_word4(words, EMPTY, EMPTY, EMPTY, EMPTY);
          sum[4 * v] += as_float(q.x);
          sum[4 * v + 1] += as_float(q.y);
          sum[4 * v + 2] += as_float(q.z);
          sum[4 * v + 3] += as_float(q.w);
        }
  }
}

__device__ __forceinline__ void consume(const Arguments &p, Ring ring, Work work, int group, int thread,
                                        const float *corrections) {
  const int lane = thread & 31, local = group * 64 + (thread >> 5) * 16 + (lane >> 2);
  float sum[ROWS / 2];
  u32 pairs[2][16];
  u32 previous = 0;
  auto multiply = [&](int buffer, bool release) {
    barrier_wait(ring.full(), ring.parity);
    const u32 at = ring.record() + group * HALF + thread * 16;
    const Vec4 a = load_shared(at), b = load_shared(at + PLANE), c = load_shared(at + 2 * PLANE);
    u32 *pair = pairs[buffer];
    decode(a.x, a.y, a.z, pair);
    decode(a.w, b.x, b.y, pair + 4);
    decode(b.z, b.w, c.x, pair + 8);
    decode(c.y, c.z, c.w, pair + 12);
    wgmma_begin();
    const u64 rows = tile_descriptor(ring.x());
#pragma unroll
    for (int step = 0; step < 4; step++) wgmma<ROWS>(sum, pair + 4 * step, rows + 2 * step);
    wgmma_commit();
    wgmma_wait<1>();
    if (release && lane == 0) barrier_arrive(previous);
    previous = ring.empty();
    ring.next();
  };

  int tile = work.first / p.k_blocks, start = work.first - tile * p.k_blocks;
  // 32-bit division here, while the ring fills: in the tail it would cost a microsecond
  const int final_tile = (work.last - 1) / p.k_blocks;
  const int last_part = (int)(((u64)(final_tile + 1) * p.k_blocks * gridDim.x - 1) / (u32)p.units);
  bool waited = false;
  for (int unit = work.first; unit < work.last; tile++, start = 0) {
    const int count = smaller(p.k_blocks - start, work.last - unit), channel = tile * 128 + local;
    const float low = __ldg(p.scale + channel), high = __ldg(p.scale + channel + 8);
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) sum[i] = 0.f;
    // The way out is in the middle of the pair: a tail of its own would need a third set of registers for A.
    int i = 0;
#pragma unroll 1
    for (;;) {
      multiply(0, i > 0);
      if (++i == count) break;
      multiply(1, true);
      if (++i == count) break;
    }
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(previous);
    unit += count;
    if (!waited) wait_for_previous_kernel();
    waited = true;

    corrections_are_ready();
    const float *correction = corrections + local * ROWS + 2 * (lane & 3);
#pragma unroll
    for (int v = 0; v < GROUPS; v++) {
      const float2 a = *(const float2 *)(correction + 8 * v), b = *(const float2 *)(correction + 8 * ROWS + 8 * v);
      sum[4 * v] = fmaf(sum[4 * v], low, a.x);
      sum[4 * v + 1] = fmaf(sum[4 * v + 1], low, a.y);
      sum[4 * v + 2] = fmaf(sum[4 * v + 2], high, b.x);
      sum[4 * v + 3] = fmaf(sum[4 * v + 3], high, b.y);
    }
    if (unit < work.last) corrections_were_read();

    if (start > 0) {
      u32 *to = p.partials + (blockIdx.x * 2 + group) * PART + thread * 4;
#pragma unroll
      for (int v = 0; v < GROUPS; v++)
        store_shared_word4(to + v * 512, as_bits(sum[4 * v]), as_bits(sum[4 * v + 1]), as_bits(sum[4 * v + 2]),
                           as_bits(sum[4 * v + 3]));
      continue;
    }
    if (count < p.k_blocks) add_parts(sum, p.partials, blockIdx.x, last_part, group, thread);
#pragma unroll
    for (int v = 0; v < GROUPS; v++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int row = 8 * v + 2 * (lane & 3) + (e & 1), to = channel + (e >> 1) * 8;
        if (row < p.rows && to < p.channels) p.y[(u64)row * p.channels + to] = to_bf16(sum[4 * v + e]);
      }
  }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM)
void w12_gemm(const __grid_constant__ TensorMap map, const Arguments p) {
  extern __shared__ __align__(1024) u8 shared[];
  const u32 base = shared_address(shared);
  // The shuffle shows the compiler a warp-uniform role, so that descriptors stay in uniform registers.
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    prefetch_map(&map);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(base + BARRIERS + 8 * i, 1);
      barrier_init(base + BARRIERS + 8 * (STAGES + i), CONSUMERS + 1);
    }
    barriers_are_initialised();
  }
  let_next_kernel_start();
  __syncthreads();
  const Work work{(int)((u64)blockIdx.x * p.units / gridDim.x), (int)((u64)(blockIdx.x + 1) * p.units / gridDim.x)};
  const Ring ring{base, 0, 0, 0};
  float *corrections = (float *)(shared + CORRECTIONS);
  if (warp == PRODUCER) {
    if (lane == 0) produce(&map, p, ring, work);
  } else if (warp == CORRECTOR) {
    correct(p, ring, work, lane, corrections);
  } else {
    consume(p, ring, work, warp >> 2, threadIdx.x & 127, corrections);
  }
}
