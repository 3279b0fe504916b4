// The rings of `packed_gemm.cu`, and the warps that fill them: records and rows come to shared memory by bulk copies, each
// announced by a barrier of its stage. Records are released once they are in registers, rows once they are multiplied and
// corrected with: an answer that correctors wait for must not hold up the records.

constexpr Format WEIGHTS = FORMAT;
constexpr bool LOSSLESS = WEIGHTS == W12 || WEIGHTS == W12N || WEIGHTS == W11S, LISTED = WEIGHTS == W11S;
constexpr int X_TILE = ROWS * 128, PLANE = LISTED ? 1024 : 0;
constexpr int STAGE = read_bytes(WEIGHTS) + PLANE;
// Warps by role. W11S has thrice the escapes of W12, and lists: a builder for each of the four schedulers, whose integer
// pipes are what it needs. A multiprocessor's registers are dealt for four warpgroups then, and dealt anew.
constexpr int CONSUMERS = 8, CORRECTORS = LISTED ? 2 : LOSSLESS ? 1 + (ROWS >= 32) : 0, BUILDERS = LISTED ? 4 : 0;
constexpr int CONSUMER_REGISTERS = 168;
constexpr int RECORDS_PRODUCER = CONSUMERS, ROWS_PRODUCER = RECORDS_PRODUCER + 1, CORRECTOR = ROWS_PRODUCER + 1;
constexpr int BUILDER = CORRECTOR + CORRECTORS, THREADS = 32 * (BUILDER + BUILDERS);
constexpr int GROUPS = ROWS / 8;         // accumulator groups of four a thread
constexpr int PART = 128 * 4 * GROUPS;   // words of one warpgroup's part of a tile
constexpr u32 EMPTY = 0xFFFFFFFFu;
constexpr int X_RING = STAGES * STAGE, CORRECTIONS = X_RING + X_STAGES * X_TILE;
constexpr int LANDED = CORRECTIONS + (LOSSLESS ? 128 * ROWS * 4 : 0), FREE = LANDED + STAGES * 8;
constexpr int X_LANDED = FREE + STAGES * 8, X_FREE = X_LANDED + X_STAGES * 8;
constexpr int BUILT = X_FREE + X_STAGES * 8;  // W11S only
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
  int rows, channels, k_blocks, units;
  int record_bytes;            // W11S only: of each record where all have as many, else 0
  int parts;                   // thread blocks of a tile, where all tiles have equally many; else 0
};

struct Work {
  int first, last;  // records of this block: [first, last)
};

// The first record of a block. Of a tile's blocks the first gets LEAD records more for each of the others, which so have
// their parts ready when it comes to add them.
__device__ __forceinline__ int first_record(const Arguments &p, u32 block) {
  const int part = p.parts ? (int)(block % (u32)p.parts) : 0;
  return (int)(block * (u32)p.units / gridDim.x) + (part ? (p.parts - part) * LEAD : 0);
}

// Where a role stands in the two rings.
struct Ring {
  u32 base;
  int stage, x_stage;
  u32 parity, x_parity;
  __device__ __forceinline__ u32 landed() const { return base + LANDED + 8 * stage; }
  __device__ __forceinline__ u32 x_landed() const { return base + X_LANDED + 8 * x_stage; }
  __device__ __forceinline__ u32 free() const { return base + FREE + 8 * stage; }
  __device__ __forceinline__ u32 x_free() const { return base + X_FREE + 8 * x_stage; }
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

// Where the next record lies. Of variable ones, each lane holds an offset, and a batch is read ahead; where all have one size,
// the first records need not wait for their offsets.
struct RecordStream {
  const Arguments &p;
  const int lane, stop;
  int unit, batch, offsets, more_offsets;
  __device__ __forceinline__ RecordStream(const Arguments &arguments, Work work, int lane_)
      : p(arguments), lane(lane_), stop(work.last), unit(work.first), batch(work.first) {
    if (LISTED && !p.record_bytes) {
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
    if (LISTED && p.record_bytes) {
      start = (u64)record * p.record_bytes;
      bytes = p.record_bytes;
    } else if constexpr (LISTED) {
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
__device__ __forceinline__ void produce_records(const Arguments &p, Ring ring, Work work, int lane) {
  const u64 once = read_once_policy();
  const int count = work.last - work.first;
  RecordStream stream(p, work, lane);
  Ring landing = ring, released = ring;
  for (int i = 0; i < count; i++) {
    if (i >= STAGES) {
      barrier_wait(released.free(), released.parity);
      released.next_record();
    }
    if (i >= IN_FLIGHT) {
      barrier_wait(landing.landed(), landing.parity);
      landing.next_record();
    }
    u64 start;
    u32 bytes;
    stream.next(start, bytes);
    if (lane == 0) {
      barrier_expect(ring.landed(), bytes);
      copy_bulk(ring.record(), p.records + start, bytes, ring.landed(), once);
    }
    ring.next_record();
  }
}

// A warp of its own: small records come faster than one warp can ask for both.
__device__ __forceinline__ void produce_rows(const TensorMap *map, const Arguments &p, Ring ring, Work work, int lane) {
  const u64 keep = keep_policy();
  const int count = work.last - work.first;
  int block = work.first % p.k_blocks;
  Ring released = ring;
  wait_for_previous_kernel();
  for (int i = 0; i < count; i++) {
    if (i >= X_STAGES) {
      barrier_wait(released.x_free(), released.x_parity);
      released.next_x();
    }
    if (lane == 0) {
      barrier_expect(ring.x_landed(), X_TILE);
      copy_tile(ring.x(), map, block * 64, 0, ring.x_landed(), keep);
    }
    ring.next_x();
    if (++block == p.k_blocks) block = 0;
  }
}
