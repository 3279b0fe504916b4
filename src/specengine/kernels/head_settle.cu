// The argmax of an LM head's logits from bounds on them, exactly: after the pass over the 8-bit copy.
//
// Thread blocks that all run at once meet twice. First each takes the largest lower bound of its part of the rows; then
// each lists the rows of its part whose upper bound reaches the largest of all; then warps share the list and compute
// the logits of listed rows from the BF16 head. A hidden state that the judge has marked, or any where no copy is used,
// skips the bounds: all rows are its list. No branch can change the answer, because a logit has one arithmetic:
//
// lane l adds the products of inputs 256 i + 8 l + j in the order of i, then j, each product and each sum rounded to
// FP32; then lanes 16, 8, 4, 2 and 1 apart are added. The same for a row in any company and on every run. Which warp
// computes a row, and the order of the list, do vary; the largest logit with the lowest row does not.
//
// Bound: memory. A survivor costs a row of the head. The dense pass reads the head once a hidden state.
//
// State lives in words that hold EMPTY between launches, which the last block restores.

constexpr int THREADS = 512, WARPS = THREADS / 32, MOST_ROWS = 64;
constexpr int TOGETHER = 4, AHEAD = 4;  // rows of a warp, and steps of 256 inputs whose loads are in flight

struct State {
  u64 best[MOST_ROWS];     // see rank_of
  u32 counts[MOST_ROWS];   // these start at EMPTY too, which is one less than 0
  u32 listed, arrived, finished;
};

struct Arguments {
  const u16 *hidden;         // [rows, width]
  const u16 *head;           // [channels, width], rows at multiples of 16 bytes
  const float *approximate;  // [rows, channels]
  const float *residual;     // per channel
  const float *weight;
  const float *norms;  // of hidden states
  const int *dense;    // per hidden state; null: all are
  int *lows;           // [blocks, rows]
  int *list;           // [channels]
  u64 *masks;          // [channels]: for which hidden states a listed row is
  State *state;
  long long *tokens;  // [rows]
  int *counts;        // [rows]: logits computed from the head
  int rows, channels, width;
  float accumulation;
};

// Words that hold EMPTY at first: adding 1 yields 0.
__device__ __forceinline__ u32 take(u32 *word, u32 count) { return atomicAdd(word, count) + 1; }

__device__ __forceinline__ void meet(u32 *arrived, u32 expected) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    take(arrived, 1);
    u32 seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(seen) : "l"(arrived) : "memory");
    while (seen + 1 < expected);
    __threadfence();
  }
  __syncthreads();
}

__device__ __forceinline__ Vec4 load_once(const u16 *from) {
  Vec4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

__device__ __forceinline__ void add_products(float &sum, u32 w, u32 h) {
  sum = __fadd_rn(sum, __fmul_rn(as_float(w << 16), as_float(h << 16)));
  sum = __fadd_rn(sum, __fmul_rn(as_float(w & 0xFFFF0000u), as_float(h & 0xFFFF0000u)));
}

// Logits of TOGETHER rows of the head for one hidden state, in all lanes.
__device__ __forceinline__ void logits(const Arguments &p, const int *rows, const u16 *hidden, int lane, float *sum) {
#pragma unroll
  for (int j = 0; j < TOGETHER; j++) sum[j] = 0.f;
#pragma unroll 1
  for (int start = lane * 8; start - lane * 8 < p.width; start += 256 * AHEAD) {
    Vec4 w[AHEAD][TOGETHER], h[AHEAD];
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
      const int k = start + 256 * s;
#pragma unroll
      for (int j = 0; j < TOGETHER; j++)
        w[s][j] = k < p.width ? load_once(p.head + (u64)rows[j] * p.width + k) : Vec4{0, 0, 0, 0};
      h[s] = k < p.width ? *(const Vec4 *)(hidden + k) : Vec4{0, 0, 0, 0};
    }
#pragma unroll
    for (int s = 0; s < AHEAD; s++)
#pragma unroll
      for (int j = 0; j < TOGETHER; j++) {
        add_products(sum[j], w[s][j].x, h[s].x);
        add_products(sum[j], w[s][j].y, h[s].y);
        add_products(sum[j], w[s][j].z, h[s].z);
        add_products(sum[j], w[s][j].w, h[s].w);
      }
  }
#pragma unroll
  for (int step = 16; step; step /= 2)
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) sum[j] = __fadd_rn(sum[j], __shfl_xor_sync(~0u, sum[j], step));
}

// The warp's share of rows, for hidden states `mask` at least. Rows are `list`, or 0 to count where it is null.
__device__ __forceinline__ void score(const Arguments &p, const int *list, int count, u64 mask, u64 *best) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  // neighbours go to different multiprocessors
  for (int group = warp * gridDim.x + blockIdx.x; group * TOGETHER < count; group += WARPS * gridDim.x) {
    int rows[TOGETHER];
    u64 wanted = mask;
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      const int at = smaller(group * TOGETHER + j, count - 1);  // the last row may come again
      rows[j] = list ? list[at] : at;
      if (list) wanted |= p.masks[at];
    }
    for (; wanted; wanted &= wanted - 1) {
      const int row = __ffsll(wanted) - 1;
      float sum[TOGETHER];
      logits(p, rows, p.hidden + (u64)row * p.width, lane, sum);
      u64 least = rank_of(sum[0], rows[0]);
#pragma unroll
      for (int j = 1; j < TOGETHER; j++) least = min(least, rank_of(sum[j], rows[j]));
      if (lane == 0) atomicMin(best + row, least);
    }
  }
}

struct Part {
  int first, last;  // rows of the head that this block bounds
};

__device__ __forceinline__ void find_lows(const Arguments &p, Part part, u64 dense, int (*lows)[MOST_ROWS]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int nothing = in_order(-infinite());
  for (int row = lane; row < MOST_ROWS; row += 32) lows[warp][row] = nothing;
  __syncwarp();
  for (int start = part.first + warp * 32; start < part.last; start += THREADS) {
    const int channel = start + lane;
    const bool inside = channel < part.last;
    const float residual = inside ? p.residual[channel] : 0, weight = inside ? p.weight[channel] : 0;
#pragma unroll 4
    for (int row = 0; row < p.rows; row++) {
      int low = nothing;
      if (inside && !(dense >> row & 1))
        low = in_order(interval(p.approximate[(u64)row * p.channels + channel], residual, weight, p.norms[row], p.accumulation).low);
      low = __reduce_max_sync(~0u, low);
      if (lane == 0 && low > lows[warp][row]) lows[warp][row] = low;
    }
  }
  __syncthreads();
  for (int row = threadIdx.x; row < p.rows; row += THREADS) {
    int low = nothing;
    for (int i = 0; i < WARPS; i++) low = max(low, lows[i][row]);
    p.lows[blockIdx.x * p.rows + row] = low;
  }
}

__device__ __forceinline__ void list_survivors(const Arguments &p, Part part, u64 dense, float *thresholds, u32 *counts) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int row = warp; row < p.rows; row += WARPS) {
    int low = in_order(-infinite());
    for (int block = lane; block < gridDim.x; block += 32) low = max(low, ((volatile int *)p.lows)[block * p.rows + row]);
    low = __reduce_max_sync(~0u, low);
    if (lane == 0) thresholds[row] = from_order(low), counts[row] = 0;
  }
  __syncthreads();
  for (int start = part.first + warp * 32; start < part.last; start += THREADS) {
    const int channel = start + lane;
    const bool inside = channel < part.last;
    const float residual = inside ? p.residual[channel] : 0, weight = inside ? p.weight[channel] : 0;
    u64 mask = 0;
#pragma unroll 4
    for (int row = 0; row < p.rows; row++) {
      bool left = false;
      if (inside && !(dense >> row & 1))
        left = !(interval(p.approximate[(u64)row * p.channels + channel], residual, weight, p.norms[row], p.accumulation).high < thresholds[row]);
      const u32 together = __ballot_sync(~0u, left);
      if (lane == 0 && together) atomicAdd(counts + row, __popc(together));
      mask |= (u64)left << row;
    }
    const u32 survivors = __ballot_sync(~0u, mask != 0);
    if (!survivors) continue;
    u32 place = 0;
    if (lane == 0) place = take(&p.state->listed, __popc(survivors));
    place = __shfl_sync(~0u, place, 0) + __popc(survivors & ((1u << lane) - 1));
    if (mask) p.list[place] = channel, p.masks[place] = mask;
  }
  __syncthreads();
  for (int row = threadIdx.x; row < p.rows; row += THREADS)
    if (counts[row]) take(p.state->counts + row, counts[row]);
}

// The last block to come here has all blocks' results.
__device__ __forceinline__ void finish(const Arguments &p, u64 dense, const u64 *best) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x < p.rows && ~best[threadIdx.x]) atomicMin(p.state->best + threadIdx.x, best[threadIdx.x]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = take(&p.state->finished, 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (threadIdx.x < p.rows) {
    const u32 counted = atomicExch(p.state->counts + threadIdx.x, ~0u) + 1;
    p.tokens[threadIdx.x] = (u32)atomicExch(p.state->best + threadIdx.x, ~0ull);
    p.counts[threadIdx.x] = dense >> threadIdx.x & 1 ? p.channels : counted;
  }
  if (threadIdx.x == 0) p.state->listed = p.state->arrived = p.state->finished = ~0u;
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void head_settle(const Arguments p) {
  __shared__ int lows[WARPS][MOST_ROWS];
  __shared__ float thresholds[MOST_ROWS];
  __shared__ u32 counts[MOST_ROWS];
  __shared__ u64 best[MOST_ROWS];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const u64 all = p.rows == 64 ? ~0ull : (1ull << p.rows) - 1;
  u64 dense = all;
  if (p.dense) {
    dense = 0;
    for (int row = 0; row < p.rows; row++) dense |= (u64)(p.dense[row] != 0) << row;
  }
  if (threadIdx.x < MOST_ROWS) best[threadIdx.x] = ~0ull;
  __syncthreads();
  if (dense != all) {
    const u32 blocks = gridDim.x;
    const Part part{(int)((u64)p.channels * blockIdx.x / blocks), (int)((u64)p.channels * (blockIdx.x + 1) / blocks)};
    find_lows(p, part, dense, lows);
    meet(&p.state->arrived, blocks);
    list_survivors(p, part, dense, thresholds, counts);
    meet(&p.state->arrived, 2 * blocks);
    score(p, p.list, *(volatile u32 *)&p.state->listed + 1, 0, best);
  }
  if (dense) score(p, nullptr, p.channels, dense, best);
  finish(p, dense, best);
}
