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
// Escapes (lossless formats): a warp or two follow the rows' ring and add (true - substitute) * x per escape to
// `corrections` in list order; x comes from the ring, so no load waits behind the weight stream.
//
// W11S: one exponent bit of each weight is 1 but for a list at the end of the record. Four warps take turns to make the
// list a bit plane behind the record before the consumers read it.
//
// Weights do not depend on the previous kernel, so records are asked for before the wait for it (dependent launches).
//
// The compiler is given FORMAT, ROWS (8, 16, 32, 48 or 64), STAGES, X_STAGES, IN_FLIGHT, LEAD, OUTPUT (u16 for BF16, or float)
// and, for the certified head, TILE_STEP (that every so many-th tile is multiplied) and SKIPPABLE (1: none if all `skip`).

// Named barriers of consumers and correctors.
constexpr int CONCERNED = 32 * (CONSUMERS + CORRECTORS);
__device__ __forceinline__ void corrections_are_ready() { asm volatile("bar.sync 3,%0;" ::"n"(CONCERNED) : "memory"); }
__device__ __forceinline__ void corrections_were_read() { asm volatile("bar.arrive 4,%0;" ::"n"(CONCERNED) : "memory"); }
__device__ __forceinline__ void wait_for_readers() { asm volatile("bar.sync 4,%0;" ::"n"(CONCERNED) : "memory"); }

// Where a correction lies: rows are swapped by channel, so that a warp of consumers meets each memory bank once.
__device__ __forceinline__ int correction_at(int channel, int row) {
  return channel * ROWS + (ROWS == 8 ? row : ROWS % 32 ? row ^ (channel & 2) << 2 : row ^ (channel & 3) << 3);
}

// Needs the rows of records, not records, so it is done before the products are, for some records at once. Entries are
// read a batch of 32 ahead, so that the rings never wait. A lane works for one row (or two) and for the channels of one class
// (their remainder by CLASSES); where rows leave lanes over, these take other classes. No two lanes share a sum, and each
// adds in list order.
struct Corrector {
  static constexpr int SIDE = ROWS < 32 ? 32 / ROWS : 1;
  static constexpr int WARPS = CORRECTORS + !LOSSLESS, CLASSES = SIDE * WARPS;  // without escapes none of these runs
  static constexpr int TOGETHER = 4, SPAN = (ROWS + 31) / 32;  // records at once, rows of a lane
  static_assert(X_STAGES > TOGETHER);
  const Arguments &p;
  const int warp, lane, first_class, stop, limit;
  float *corrections;
  int record, batch, ends, more_ends;
  uint2 entries, more_entries;

  __device__ __forceinline__ Corrector(const Arguments &arguments, Work work, int first, int limit_, int warp_, int lane_,
                                       float *corrections_)
      : p(arguments), warp(warp_), lane(lane_), first_class(warp_ * SIDE), stop(work.last), limit(limit_), corrections(corrections_),
        record(work.first), batch(first) {
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
    if (unit - record >= 32) {
      record += 32;
      ends = more_ends;
      more_ends = ends_from(record + 32);
    }
    return __shfl_sync(~0u, ends, unit - record);
  }
  // The entries of lanes `from` to `to` of the batch. `ring` has the rows of inputs from 64 * block on.
  __device__ __forceinline__ void add(Ring ring, int block, int from, int to) {
    const bool inside = lane >= from && lane < to;
    u32 left = 0;
#pragma unroll
    for (int side = 0; side < SIDE; side++) {
      const u32 of_class = __ballot_sync(~0u, inside && (int)(entries.x & CLASSES - 1) == first_class + side);
      if (SIDE == 1 || lane / ROWS == side) left = of_class;
    }
    // Two entries at a time. Where both are of one channel, the second adds to what the first leaves.
    const int row = SIDE == 1 ? lane : lane % ROWS;
    while (__any_sync(~0u, left)) {
      const u32 rest = left & left - 1;
      const int at = left ? __ffs(left) - 1 : 0, next = rest ? __ffs(rest) - 1 : at;
      const u32 place = __shfl_sync(~0u, entries.x, at), values = __shfl_sync(~0u, entries.y, at);
      const u32 next_place = __shfl_sync(~0u, entries.x, next), next_values = __shfl_sync(~0u, entries.y, next);
      const u32 x = rows_of(ring, place, block), next_x = rows_of(ring, next_place, block);
      const int channel = place & 0xFFFF, next_channel = next_place & 0xFFFF;
      if (left) {
        float *sum[SPAN], *next_sum[SPAN], value[SPAN], next_value[SPAN], old[SPAN], other[SPAN];
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
          const int one = row + 32 * i < ROWS ? row + 32 * i : row;
          sum[i] = corrections + correction_at(channel, one), next_sum[i] = corrections + correction_at(next_channel, one);
          value[i] = load_swizzled(x, one, place >> 16 & 63), next_value[i] = load_swizzled(next_x, one, next_place >> 16 & 63);
          old[i] = *sum[i], other[i] = *next_sum[i];
        }
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
          const float first = corrected(values, value[i], old[i]);
          *sum[i] = first;
          if (rest) *next_sum[i] = corrected(next_values, next_value[i], channel == next_channel ? first : other[i]);
        }
      }
      left = rest & rest - 1;
    }
  }
  __device__ __forceinline__ static u32 rows_of(const Ring &ring, u32 place, int block) {
    const int stage = ring.x_stage + (int)(place >> 22) - block;
    return ring.base + X_RING + (stage < X_STAGES ? stage : stage - X_STAGES) * X_TILE;
  }
  __device__ __forceinline__ static float corrected(u32 values, float x, float sum) {
    return fmaf(-as_float(values & 0xFFFF0000u), x, fmaf(as_float(values << 16), x, sum));
  }
  __device__ __forceinline__ void correct_records(Ring ring, int block, int position, int end) {
    while (position < end) {
      if (position - batch == 32) {
        batch = position;
        entries = more_entries;
        more_entries = entries_from(batch + 32);
      }
      const int until = smaller(end, batch + 32);
      add(ring, block, position - batch, until - batch);
      position = until;
    }
  }
  __device__ __forceinline__ void run(Ring ring, Work work, int position) {
    int block = work.first % p.k_blocks;
    for (int unit = work.first; unit < work.last; block = 0) {
      const int last = smaller(unit - block + p.k_blocks, work.last);
      if (unit != work.first) wait_for_readers();
      constexpr int OWN = SIDE * ROWS / 4;  // of the channels that this warp corrects, as many as lie together
      for (int i = lane; i < 32 * ROWS / WARPS; i += 32)
        ((float4 *)corrections)[(i / OWN * WARPS + warp) * OWN + i % OWN] = make_float4(0.f, 0.f, 0.f, 0.f);
      __syncwarp();
      while (unit < last) {
        const int count = smaller(TOGETHER, last - unit), end = end_of_record(unit + count - 1);
        Ring landed = ring;
        for (int i = 0; i < count; i++, landed.next_x()) barrier_wait(landed.x_landed(), landed.x_parity);
        correct_records(ring, block, position, end);
        position = end;
        __syncwarp();
        for (int i = 0; i < count; i++, ring.next_x())
          if (lane == 0) barrier_arrive(ring.x_free());
        unit += count, block += count;
      }
      corrections_are_ready();
    }
  }
};

__device__ __forceinline__ void build_planes(Ring ring, Work work, int builder, int lane) {
  for (int unit = work.first; unit < work.last; unit++, ring.next_record()) {
    if ((unit - work.first & BUILDERS - 1) != builder) continue;
    barrier_wait(ring.landed(), ring.parity);
    build_plane(ring.record() + dense_bytes(WEIGHTS), ring.plane(), lane);
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.built());
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
    if constexpr (GROUPS > 2) {  // a glance at what is written last, or all of it would be read again and again
      bool arrived;
      do {
        arrived = true;
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
          if (j < left) arrived &= observe(words + j * 2 * PART + (GROUPS - 1) * 512).w != EMPTY;
      } while (!__all_sync(~0u, arrived));
    }
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
    barrier_wait(LISTED ? ring.built() : ring.landed(), ring.parity);  // a builder has waited for the record
    u32 *pair = pairs[buffer], words[loaded_words(WEIGHTS)];
    load_record<WEIGHTS>(ring.record(), ring.plane(), group, thread, words);
    unpack<WEIGHTS>(words, pair);
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.free());
    barrier_wait(ring.x_landed(), ring.x_parity);
    wgmma_begin();
    const u64 rows = tile_descriptor(ring.x());
#pragma unroll
    for (int step = 0; step < 4; step++) wgmma<ROWS>(sum, pair + 4 * step, rows + 2 * step);
    wgmma_commit();
    wgmma_wait<1>();
    if (release && lane == 0) barrier_arrive(previous);
    previous = ring.x_free();
    ring.next_record();
    if constexpr (X_STAGES == STAGES)  // one count fewer in the loop
      ring.x_stage = ring.stage, ring.x_parity = ring.parity;
    else
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
#pragma unroll
      for (int v = 0; v < GROUPS; v++) {
        const float *correction = corrections + correction_at(local, 8 * v + 2 * (lane & 3));
        const float2 a = *(const float2 *)correction, b = *(const float2 *)(correction + 8 * ROWS);
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
  const Work work{first_record(p, blockIdx.x), first_record(p, blockIdx.x + 1)};
  // asked for before the records, or the answer would queue behind them
  const bool corrects = warp >= CORRECTOR && warp < CORRECTOR + CORRECTORS;
  const int first_escape = corrects ? __ldg(p.escape_offsets + work.first) : 0;
  const int last_escape = corrects ? __ldg(p.escape_offsets + work.last) : 0;
  if (threadIdx.x == 0) {
    prefetch_map(&map);
    for (int i = 0; i < STAGES; i++) {
      barrier_init(base + LANDED + 8 * i, 1);
      barrier_init(base + FREE + 8 * i, CONSUMERS);
      if (LISTED) barrier_init(base + BUILT + 8 * i, 1);
    }
    for (int i = 0; i < X_STAGES; i++) {
      barrier_init(base + X_LANDED + 8 * i, 1);
      barrier_init(base + X_FREE + 8 * i, CONSUMERS + CORRECTORS);
    }
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
  if (warp < CONSUMERS) {
    if constexpr (LISTED) take_registers<CONSUMER_REGISTERS>();
    consume(p, ring, work, warp >> 2, threadIdx.x & 127, corrections);
  } else {
    if constexpr (LISTED) give_registers<256 - CONSUMER_REGISTERS>();
    if (warp == RECORDS_PRODUCER) {
      produce_records(p, ring, work, lane);
    } else if (warp == ROWS_PRODUCER) {
      produce_rows(&map, p, ring, work, lane);
    } else if (LISTED && warp >= BUILDER) {
      build_planes(ring, work, warp - BUILDER, lane);
    } else if (LOSSLESS) {
      Corrector(p, work, first_escape, last_escape, warp - CORRECTOR, lane, corrections).run(ring, work, first_escape);
    }
  }
}
