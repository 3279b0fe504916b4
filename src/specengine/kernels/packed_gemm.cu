// Product with packed weights: y[rows, n] = x[rows, k] @ W[n, k]^T for 1 to 64 rows, W read as records.
//
// Bound: the weight stream. Records of 128 channels x 64 k flow by bulk copies into a ring of STAGES; two consumer
// warpgroups of 64 channels each rebuild 32 BF16 weights a thread from a few 16-byte words (1.4 operations a weight for
// W12), in the register order of wgmma's A operand, and multiply them by the rows (B, in shared memory). A channel's
// scale is applied once, in the epilogue; for the lossless formats it is a power of two, so this rounds nothing.
//
// Order: thread block c owns records [c R / P, (c + 1) R / P), k fastest. The block with a tile's first record owns
// the tile and adds the later parts in ascending k. P depends on the shape alone, so a row has the same bits on every
// run and whatever its company. Parts meet in `partials`, whose words start as EMPTY, a NaN that arithmetic never
// yields: a word that is not EMPTY has arrived, which needs no fence and no flag. Its reader empties it again.
//
// Escapes (lossless formats): one warp follows the rows' ring and adds (true - substitute) * x per escape to
// `corrections`, one lane a row, in list order; x comes from the ring, so no load waits behind the weight stream.
//
// W11S: one exponent bit of each weight is 1 but for a list at the end of the record. Two warps turn the list into a
// bit plane behind the record before the consumers read it.
//
// Weights do not depend on the previous kernel, so records are asked for before the wait for it (dependent launches).
//
// The compiler is given FORMAT, ROWS (8, 16, 32, 48 or 64), STAGES, X_STAGES, IN_FLIGHT, OUTPUT (u16 for BF16, or float)
// and, for the certified head, TILE_STEP (that every so many-th tile is multiplied) and SKIPPABLE (1: none if all `skip`).

constexpr Format WEIGHTS = FORMAT;
constexpr bool LOSSLESS = WEIGHTS == W12 || WEIGHTS == W12N || WEIGHTS == W11S, LISTED = WEIGHTS == W11S;
constexpr int X_TILE = ROWS * 128, PLANE = LISTED ? 1024 : 0;
constexpr int STAGE = read_bytes(WEIGHTS) + PLANE;
constexpr int CONSUMERS = 8, PRODUCER = 8, CORRECTOR = 9, BUILDER = 10, BUILDERS = 2;
constexpr int THREADS = 32 * (LISTED ? BUILDER + BUILDERS : LOSSLESS ? BUILDER : CORRECTOR);
constexpr int GROUPS = ROWS / 8;         // accumulator groups of four a thread
constexpr int PART = 128 * 4 * GROUPS;   // words of one warpgroup's part of a tile
constexpr u32 EMPTY = 0xFFFFFFFFu;
constexpr int X_RING = STAGES * STAGE, CORRECTIONS = X_RING + X_STAGES * X_TILE;
constexpr int LANDED = CORRECTIONS + (LOSSLESS ? 128 * ROWS * 4 : 0), X_LANDED = LANDED + STAGES * 8;
constexpr int FREE = X_LANDED + X_STAGES * 8, BUILT = FREE + STAGES * 8;  // BUILT is used for W11S only
static_assert(IN_FLIGHT <= STAGES && X_STAGES <= STAGES);

struct Arguments {
  const u8 *records;
  const float *scale;
  const uint2 *escapes;        // {channel in tile | k << 16, true | substitute << 16}, sorted by record
  const int *escape_offsets;   // units + 1
  const int *record_offsets;   // units + 1, in 16 bytes; W11S only
  OUTPUT *y;
  u32 *partials;               // P x 2 x PART words
  const int *skip;             // [rows]; SKIPPABLE only
  int rows, channels, k_blocks, units, dependent;
};

struct Work {
  int first, last;  // records of this block: [first, last)
};

// Where a role stands in the two rings. Record i and its rows are released together.
struct Ring {
  u32 base;
  int stage, x_stage;
  u32 parity, x_parity;
  __device__ __forceinline__ u32 landed() const { return base + LANDED + 8 * stage; }
  __device__ __forceinline__ u32 x_landed() const { return base + X_LANDED + 8 * x_stage; }
  __device__ __forceinline__ u32 free() const { return base + FREE + 8 * stage; }
  __device__ __forceinline__ u32 built() const { return base + BUILT + 8 * stage; }
  __device__ __forceinline__ u32 record() const { return base + stage * STAGE; }
  __device__ __forceinline__ u32 plane() const { return record() + read_bytes(WEIGHTS); }
  __device__ __forceinline__ u32 x() const { return base + X_RING + x_stage * X_TILE; }
  __device__ __forceinline__ void next_record() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ void next_x() {
    if (++x_stage == X_STAGES) x_stage = 0, x_parity ^= 1;
  }
};

__device__ __forceinline__ void corrections_are_ready() { asm volatile("bar.sync 3,288;" ::: "memory"); }
__device__ __forceinline__ void corrections_were_read() { asm volatile("bar.arrive 4,288;" ::: "memory"); }
__device__ __forceinline__ void wait_for_readers() { asm volatile("bar.sync 4,288;" ::: "memory"); }

// Where the next record lies. Of variable ones, each lane holds an offset, and a batch is read ahead.
struct RecordStream {
  const Arguments &p;
  const int lane, stop;
  int unit, batch, offsets, more_offsets;
  __device__ __forceinline__ RecordStream(const Arguments &arguments, Work work, int lane_)
      : p(arguments), lane(lane_), stop(work.last), unit(work.first), batch(work.first) {
    if constexpr (LISTED) {
      offsets = offsets_from(batch);
      more_offsets = offsets_from(batch + 31);
    }
  }
  __device__ __forceinline__ int offsets_from(int first) const {
    return first + lane <= stop ? __ldg(p.record_offsets + first + lane) : 0;
  }
  __device__ __forceinline__ void next(u64 &start, u32 &bytes) {
    const int record = TILE_STEP == 1 ? unit : unit + unit / p.k_blocks * (TILE_STEP - 1) * p.k_blocks;
    start = (u64)record * stride_bytes(WEIGHTS);
    bytes = read_bytes(WEIGHTS);
    if constexpr (LISTED) {
      if (unit - batch == 31) {
        batch = unit;
        offsets = more_offsets;
        more_offsets = offsets_from(batch + 31);
      }
      const int from = __shfl_sync(~0u, offsets, unit - batch), to = __shfl_sync(~0u, offsets, unit - batch + 1);
      start = (u64)(u32)from * 16;
      bytes = (to - from) * 16;
    }
    unit++;
  }
};

// The ring is deeper than what is asked for at once: a longer queue at the memory would delay x and the escapes.
__device__ __forceinline__ void produce(const TensorMap *map, const Arguments &p, Ring ring, Work work, int lane) {
  const u64 once = read_once_policy(), keep = keep_policy();
  const int count = work.last - work.first, ahead = smaller(count, IN_FLIGHT);
  RecordStream stream(p, work, lane);
  int x_block = work.first % p.k_blocks;
  Ring landing = ring, released = ring, x_ring = ring;
  auto load_record = [&]() {
    u64 start;
    u32 bytes;
    stream.next(start, bytes);
    if (lane == 0) {
      barrier_expect(ring.landed(), bytes);
      copy_bulk(ring.record(), p.records + start, bytes, ring.landed(), once);
    }
    ring.next_record();
  };
  auto load_rows = [&]() {
    if (lane == 0) {
      barrier_expect(x_ring.x_landed(), X_TILE);
      copy_tile(x_ring.x(), map, x_block * 64, 0, x_ring.x_landed(), keep);
    }
    x_ring.next_x();
    if (++x_block == p.k_blocks) x_block = 0;
  };
  auto wait_for_release = [&]() {
    barrier_wait(released.free(), released.parity);
    released.next_record();
  };
  int x_count = 0;
  for (int i = 0; i < ahead; i++) {
    load_record();
    if (!p.dependent && x_count < X_STAGES) load_rows(), x_count++;
  }
  wait_for_previous_kernel();
  for (; x_count < smaller(ahead, X_STAGES); x_count++) load_rows();
  for (int i = ahead; i < count; i++) {
    if (i >= STAGES) wait_for_release();
    barrier_wait(landing.landed(), landing.parity);
    landing.next_record();
    load_record();
    if (x_count < X_STAGES || i >= STAGES) load_rows(), x_count++;
  }
  for (; x_count < count; x_count++) {
    if (x_count >= X_STAGES) wait_for_release();
    load_rows();
  }
}

__device__ __forceinline__ void build_planes(Ring ring, Work work, int builder, int lane) {
  for (int unit = work.first; unit < work.last; unit++, ring.next_record()) {
    if ((unit - work.first) % BUILDERS != builder) continue;
    barrier_wait(ring.landed(), ring.parity);
    build_plane(ring.record() + dense_bytes(WEIGHTS), ring.plane(), lane);
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.built());
  }
}

// The escapes of a block in order. Offsets and entries are read a batch of 32 ahead, so that the rings never wait.
struct EscapeList {
  const Arguments &p;
  const int lane, stop, limit;
  int record, position, batch, ends, more_ends;
  uint2 entries, more_entries;

  __device__ __forceinline__ EscapeList(const Arguments &arguments, Work work, int first, int limit_, int lane_)
      : p(arguments), lane(lane_), stop(work.last), limit(limit_), record(work.first), position(first), batch(first) {
    ends = ends_from(record);
    entries = entries_from(batch);
    more_ends = ends_from(record + 32);
    more_entries = entries_from(batch + 32);
  }
  __device__ __forceinline__ int ends_from(int unit) const {
    return unit + lane < stop ? __ldg(p.escape_offsets + unit + lane + 1) : 0;
  }
  __device__ __forceinline__ uint2 entries_from(int index) const {
    return index + lane < limit ? __ldg(p.escapes + index + lane) : make_uint2(0, 0);
  }
  __device__ __forceinline__ int end_of_record(int unit) {
    if (unit - record == 32) {
      record = unit;
      ends = more_ends;
      more_ends = ends_from(unit + 32);
    }
    return __shfl_sync(~0u, ends, unit - record);
  }
  __device__ __forceinline__ uint2 next() {
    if (position - batch == 32) {
      batch = position;
      entries = more_entries;
      more_entries = entries_from(batch + 32);
    }
    const int from = position++ - batch;
    return make_uint2(__shfl_sync(~0u, entries.x, from), __shfl_sync(~0u, entries.y, from));
  }
};

// Needs the rows of a record, not the record, so it is done before the products are.
__device__ __forceinline__ void correct(const Arguments &p, Ring ring, Work work, EscapeList &list, int lane,
                                        float *corrections) {
  int block = work.first % p.k_blocks;
  for (int unit = work.first; unit < work.last; block = 0) {
    const int stop = smaller(unit - block + p.k_blocks, work.last);
    if (unit != work.first) wait_for_readers();
    for (int i = lane; i < 32 * ROWS; i += 32) ((float4 *)corrections)[i] = make_float4(0.f, 0.f, 0.f, 0.f);
    __syncwarp();
    for (; unit < stop; unit++) {
      const int end = list.end_of_record(unit);
      barrier_wait(ring.x_landed(), ring.x_parity);
      while (list.position < end) {
        const uint2 entry = list.next();
        const float weight = as_float(entry.y << 16), substitute = as_float(entry.y & 0xFFFF0000u);
        const u32 k = entry.x >> 16 & 63;
#pragma unroll
        for (int row = lane; row < ROWS; row += 32) {
          float *sum = corrections + (entry.x & 0xFFFF) * ROWS + row;
          const float x = load_swizzled(ring.x(), row, k);
          *sum = fmaf(-substitute, x, fmaf(weight, x, *sum));
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.free());
      ring.next_record();
      ring.next_x();
    }
    corrections_are_ready();
  }
}

// Adds the parts of blocks [block + 1, last] in this order and empties their words for the next launch.
// The warp polls as one: a loop that lanes leave apart would cost the kernel its uniform registers.
__device__ __forceinline__ void add_parts(float *sum, u32 *partials, int block, int last, int group, int thread) {
  constexpr int TOGETHER = ROWS <= 32 ? 4 : 2;  // what registers hold
  u32 *words = partials + (block * 2 + group) * PART + thread * 4;
#pragma unroll 1
  for (int left = last - block; left > 0; left -= TOGETHER) {
    words += 2 * PART;
    Vec4 part[TOGETHER][GROUPS];
    bool arrived;
    do {
      arrived = true;
#pragma unroll
      for (int j = 0; j < TOGETHER; j++)
#pragma unroll
        for (int v = 0; v < GROUPS; v++)
          if (j < left) {
            const Vec4 q = part[j][v] = observe(words + j * 2 * PART + v * 512);
            arrived &= q.x != EMPTY && q.y != EMPTY && q.z != EMPTY && q.w != EMPTY;
          }
    } while (!__all_sync(~0u, arrived));
#pragma unroll
    for (int j = 0; j < TOGETHER; j++)
#pragma unroll
      for (int v = 0; v < GROUPS; v++)
        if (j < left) {
          const Vec4 &q = part[j][v];
          sum[4 * v] += as_float(q.x);
          sum[4 * v + 1] += as_float(q.y);
          sum[4 * v + 2] += as_float(q.z);
          sum[4 * v + 3] += as_float(q.w);
          publish(words + j * 2 * PART + v * 512, EMPTY, EMPTY, EMPTY, EMPTY);
        }
    words += (TOGETHER - 1) * 2 * PART;
  }
}

__device__ __forceinline__ void consume(const Arguments &p, Ring ring, Work work, int group, int thread,
                                        const float *corrections) {
  const int lane = thread & 31, local = group * 64 + (thread >> 5) * 16 + (lane >> 2);
  float sum[ROWS / 2];
  u32 pairs[2][16];
  u32 previous = 0;
  auto multiply = [&](int buffer, bool release) {
    barrier_wait(ring.landed(), ring.parity);
    if constexpr (LISTED) barrier_wait(ring.built(), ring.parity);
    u32 *pair = pairs[buffer];
    unpack<WEIGHTS>(ring.record(), ring.plane(), group, thread, pair);
    barrier_wait(ring.x_landed(), ring.x_parity);
    wgmma_begin();
    const u64 rows = tile_descriptor(ring.x());
#pragma unroll
    for (int step = 0; step < 4; step++) wgmma<ROWS>(sum, pair + 4 * step, rows + 2 * step);
    wgmma_commit();
    wgmma_wait<1>();
    if (release && lane == 0) barrier_arrive(previous);
    previous = ring.free();
    ring.next_record();
    ring.next_x();
  };

  int tile = work.first / p.k_blocks, start = work.first - tile * p.k_blocks;
  // Divisions are 32-bit, or the compiler no longer sees them uniform, and here: in the tail they cost a microsecond.
  const int final_tile = (work.last - 1) / p.k_blocks;
  const int last_part = (int)(((u32)(final_tile + 1) * p.k_blocks * gridDim.x - 1) / (u32)p.units);
  bool waited = false;
  for (int unit = work.first; unit < work.last; tile++, start = 0) {
    const int count = smaller(p.k_blocks - start, work.last - unit), channel = tile * TILE_STEP * 128 + local;
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
    if (!waited) wait_for_previous_kernel(), waited = true;

    if constexpr (LOSSLESS) {
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
    } else {
#pragma unroll
      for (int i = 0; i < ROWS / 2; i++) sum[i] *= i & 2 ? high : low;
    }

    if (start > 0) {
      u32 *to = p.partials + (blockIdx.x * 2 + group) * PART + thread * 4;
#pragma unroll
      for (int v = 0; v < ROWS / 2; v += 4)
        publish(to + v * 128, as_bits(sum[v]), as_bits(sum[v + 1]), as_bits(sum[v + 2]), as_bits(sum[v + 3]));
      continue;
    }
    if (count < p.k_blocks) add_parts(sum, p.partials, blockIdx.x, last_part, group, thread);
#pragma unroll
    for (int v = 0; v < GROUPS; v++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int row = 8 * v + 2 * (lane & 3) + (e & 1), to = channel + (e >> 1) * 8;
        if (row < p.rows && to < p.channels) store(p.y + (u64)row * p.channels + to, sum[4 * v + e]);
      }
  }
}

extern "C" __global__ __launch_bounds__(THREADS, 1)
void packed_gemm(const __grid_constant__ TensorMap map, const Arguments p) {
  extern __shared__ __align__(1024) u8 shared[];
  const u32 base = shared_address(shared);
  // The shuffle shows the compiler a warp-uniform role, so that descriptors stay in uniform registers.
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  const u32 units = p.units;
  const Work work{(int)(blockIdx.x * units / gridDim.x), (int)((blockIdx.x + 1) * units / gridDim.x)};
  // asked for before the records, or the answer would queue behind them
  const int first_escape = LOSSLESS && warp == CORRECTOR ? __ldg(p.escape_offsets + work.first) : 0;
  const int last_escape = LOSSLESS && warp == CORRECTOR ? __ldg(p.escape_offsets + work.last) : 0;
  if (threadIdx.x == 0) {
    prefetch_map(&map);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(base + LANDED + 8 * i, 1);
      barrier_init(base + FREE + 8 * i, CONSUMERS + LOSSLESS);
      if (LISTED) barrier_init(base + BUILT + 8 * i, 1);
    }
    for (int i = 0; i < X_STAGES; i++) barrier_init(base + X_LANDED + 8 * i, 1);
    barriers_are_initialised();
  }
  let_next_kernel_start();
  if constexpr (SKIPPABLE) {
    wait_for_previous_kernel();
    if (__syncthreads_and(threadIdx.x >= p.rows || p.skip[threadIdx.x])) return;
  }
  __syncthreads();
  const Ring ring{base, 0, 0, 0, 0};
  float *corrections = (float *)(shared + CORRECTIONS);
  if (warp == PRODUCER) {
    produce(&map, p, ring, work, lane);
  } else if (LISTED && warp >= BUILDER) {
    build_planes(ring, work, warp - BUILDER, lane);
  } else if (LOSSLESS && warp == CORRECTOR) {
    EscapeList list(p, work, first_escape, last_escape, lane);
    correct(p, ring, work, list, lane, corrections);
  } else {
    consume(p, ring, work, warp >> 2, threadIdx.x & 127, corrections);
  }
}
