// The rings of `packed_gemm.cu`, and the warps that fill them: records and rows come to shared memory by bulk copies, each
// announced by a barrier of its stage, and are released together by those who read them.

constexpr Format WEIGHTS = FORMAT;
constexpr bool LOSSLESS = WEIGHTS == W12 || WEIGHTS == W12N || WEIGHTS == W11S, LISTED = WEIGHTS == W11S;
constexpr int X_TILE = ROWS * 128, PLANE = LISTED ? 1024 : 0;
constexpr int STAGE = read_bytes(WEIGHTS) + PLANE;
// Warps by role. W11S has thrice the escapes of W12, and lists; beyond 12 warps a thread has 128 registers.
constexpr int CONSUMERS = 8, HELPERS = ROWS <= 16 ? 2 : 1;
constexpr int CORRECTORS = LISTED ? HELPERS : LOSSLESS, BUILDERS = LISTED ? HELPERS : 0;
constexpr int RECORDS_PRODUCER = CONSUMERS, ROWS_PRODUCER = RECORDS_PRODUCER + 1, CORRECTOR = ROWS_PRODUCER + 1;
constexpr int BUILDER = CORRECTOR + CORRECTORS, THREADS = 32 * (BUILDER + BUILDERS);
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
  int rows, channels, k_blocks, units;
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
      barrier_wait(released.free(), released.parity);
      released.next_record();
    }
    if (lane == 0) {
      barrier_expect(ring.x_landed(), X_TILE);
      copy_tile(ring.x(), map, block * 64, 0, ring.x_landed(), keep);
    }
    ring.next_x();
    if (++block == p.k_blocks) block = 0;
  }
}
