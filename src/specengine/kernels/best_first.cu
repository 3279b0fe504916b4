// Best-first draft trees of a batch of lattices: the nodes of `trees/best_first.py` in its order, ties included.
//
// One thread block a lattice. All threads copy the edges (16 KiB at most) to shared memory; then one warp takes node
// after node. Lane l holds the best child that still waits below node l, and below node l + 32. The next node is the
// best of these 64: scores as ordered words, two warp reductions, and where scores are equal the smaller depth, then
// the smaller ranks of the path, which are 16 digits of 4 bits and compare as one number. A new node's children are
// sorted by counting, 16 lanes each. Scores are sums in FP64 from the root, as on the CPU, so they are equal bit for
// bit. Bound: latency of N - 1 dependent rounds.

#ifndef THREADS
#define THREADS 256
#endif
constexpr int DEPTHS = 16, WIDTH = 16, NODES = 64;
constexpr u32 ALL_LANES = ~0u;

struct Arguments {
  const long long *ids;     // [B, D, K]
  const float *edge;        // [B, D, K, K]
  const long long *anchor;  // [B]
  long long *tokens, *parent, *depth;  // [B, N]
  float *logp;                         // [B, N]
  long long *size;                     // [B]
  int positions, candidates, nodes;
};

// A child that waits below a node; `order` 0 says that none does.
struct Waiting {
  u64 order, path;
  int depth, rank;
};

// Words in the order of finite numbers; none is 0.
__device__ __forceinline__ u64 word_of(double score) {
  const long long bits = __double_as_longlong(score);
  return bits < 0 ? ~(u64)bits : (u64)bits | 1ull << 63;
}

__device__ __forceinline__ bool comes_first(const Waiting &a, const Waiting &b) {
  if (a.order != b.order) return a.order > b.order;
  return a.depth != b.depth ? a.depth < b.depth : a.path < b.path;
}

__device__ __forceinline__ u64 from_lane(u64 value, int lane) {
  const u32 high = __shfl_sync(ALL_LANES, (u32)(value >> 32), lane);
  return (u64)high << 32 | __shfl_sync(ALL_LANES, (u32)value, lane);
}

// Of the lanes that stand, those with the largest word. All lanes take part in the reductions.
__device__ __forceinline__ bool keep_largest(bool stands, u64 word) {
  const u32 high = stands ? (u32)(word >> 32) : 0;
  const u32 largest = __reduce_max_sync(ALL_LANES, high);
  stands &= high == largest;
  const u32 low = stands ? (u32)word : 0;
  const u32 larger = __reduce_max_sync(ALL_LANES, low);
  return stands && low == larger;
}

__device__ __forceinline__ int first_of(const Waiting &mine) {
  bool stands = keep_largest(true, mine.order);
  u32 lanes = __ballot_sync(ALL_LANES, stands);
  if (lanes & (lanes - 1)) {
    stands = keep_largest(stands, (u64)(DEPTHS - mine.depth));
    stands = keep_largest(stands, ~mine.path);
    lanes = __ballot_sync(ALL_LANES, stands);
  }
  return __ffs(lanes) - 1;
}

extern "C" __global__ __launch_bounds__(THREADS) void best_first(const Arguments p) {
  __shared__ float edges[DEPTHS * WIDTH * WIDTH];
  __shared__ float child_edge[NODES][WIDTH];
  __shared__ int child_slot[NODES][WIDTH];
  __shared__ double score_of[NODES];
  const int K = p.candidates, N = p.nodes, lane = threadIdx.x & 31;
  const int count = p.positions * K * K;
  const float *edge = p.edge + (u64)blockIdx.x * count;
  for (int i = threadIdx.x; i < count; i += THREADS) edges[i] = edge[i];
  __syncthreads();
  if (threadIdx.x >= 32) return;

  const long long *ids = p.ids + (u64)blockIdx.x * p.positions * K;
  const u64 first = (u64)blockIdx.x * N;
  Waiting low = {0, 0, 0, 0}, high = {0, 0, 0, 0};  // below nodes `lane` and `lane` + 32

  // Sorts the children of a node and lets the best of them wait.
  auto open = [&](int node, int depth, int slot, double score, u64 path) {
    if (depth == p.positions) return;
    const float own = lane < K ? edges[(depth * K + slot) * K + lane] : 0.f;
    int rank = 0;
#pragma unroll
    for (int other = 0; other < WIDTH; other++) {
      const float value = __shfl_sync(ALL_LANES, own, other);
      rank += other < K && (value > own || (value == own && other < lane));
    }
    if (lane < K) {
      // Rounding of a log-softmax may leave an edge just above 0; no path may gain by it.
      child_edge[node][rank] = fminf(own, 0.f);
      child_slot[node][rank] = lane;
    }
    if (lane == 0) score_of[node] = score;
    __syncwarp();
    if (lane != (node & 31)) return;
    const Waiting best = {word_of(score + child_edge[node][0]), path, depth + 1, 0};
    if (node < 32) low = best;
    else high = best;
  };
  auto write = [&](int node, long long token, int parent, int depth, double score) {
    if (lane) return;
    p.tokens[first + node] = token;
    p.parent[first + node] = parent;
    p.depth[first + node] = depth;
    p.logp[first + node] = (float)score;
  };

  write(0, p.anchor[blockIdx.x], -1, 0, 0.0);
  open(0, 0, 0, 0.0, 0);
  int size = 1;
  for (; size < N; size++) {
    const bool is_high = comes_first(high, low);
    const Waiting mine = is_high ? high : low;
    const int winner = first_of(mine);
    const u64 order = from_lane(mine.order, winner), path = from_lane(mine.path, winner);
    if (order == 0) break;
    const int parent = __shfl_sync(ALL_LANES, lane + 32 * is_high, winner);
    const int depth = __shfl_sync(ALL_LANES, mine.depth, winner), rank = __shfl_sync(ALL_LANES, mine.rank, winner);
    const int slot = child_slot[parent][rank];
    const double score = score_of[parent] + child_edge[parent][rank];
    if (lane == winner) {
      Waiting next = mine;
      next.rank++;
      next.path += 1ull << 4 * (DEPTHS - depth);
      next.order = next.rank < K ? word_of(score_of[parent] + child_edge[parent][next.rank]) : 0;
      if (is_high) high = next;
      else low = next;
    }
    write(size, ids[(depth - 1) * K + slot], parent, depth, score);
    open(size, depth, slot, score, path);
  }
  if (lane == 0) p.size[blockIdx.x] = size;
  for (int node = size + lane; node < N; node += 32) {
    p.tokens[first + node] = p.parent[first + node] = p.depth[first + node] = -1;
    p.logp[first + node] = as_float(0xFF800000u);
  }
}
