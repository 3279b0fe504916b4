// Records back to BF16, bit for bit, for products with many rows and for taking weights out again.
//
// Bound: memory, about 3.5 bytes a weight. A thread block of 256 brings one record to shared memory, rebuilds it as the
// consumers of `packed_gemm.cu` do, moves exponents into their windows, lays the 128 x 64 tile out in shared memory,
// writes its escapes over their substitutes there, and stores whole 128-byte rows. Runs on sm_80 and newer.
//
// FORMAT (W12, W12N or W11S) is given to the compiler.

constexpr Format WEIGHTS = FORMAT;
constexpr int STRIDE = 72;  // BF16 of a padded row of the tile

struct Arguments {
  const u8 *records;
  const float *scale;
  const uint2 *escapes;
  const int *escape_offsets;
  const int *record_offsets;
  u16 *weights;  // [channels, width]
  int channels, width, k_blocks;
};

// The constant top 112 of two decoded exponents becomes the bottom of the channel's window; channels of zeros keep signs.
__device__ __forceinline__ u32 move_window(u32 pair, float scale) {
  const u32 top = as_bits(scale) >> 23, shift = (top - 127) << 7;
  const u32 low = ((pair & 0x7FFF) + shift) & 0x7FFF, high = ((pair >> 16 & 0x7FFF) + shift) & 0x7FFF;
  return (pair & SIGNS) | (top ? low | high << 16 : 0);
}

extern "C" __global__ __launch_bounds__(256) void packed_decode(const Arguments p) {
  __shared__ __align__(16) u8 record[read_bytes(WEIGHTS) + 16];  // lists are read by words
  __shared__ __align__(1024) u8 plane[1024];
  __shared__ __align__(16) u16 tile[128 * STRIDE];
  const int unit = blockIdx.x, group = threadIdx.x >> 7, thread = threadIdx.x & 127, lane = thread & 31;
  const int local = group * 64 + (thread >> 5) * 16 + (lane >> 2);
  const int channel = unit / p.k_blocks * 128, k = unit % p.k_blocks * 64;
  const int first = p.escape_offsets[unit], last = p.escape_offsets[unit + 1];
  u64 start = (u64)unit * stride_bytes(WEIGHTS);
  int bytes = read_bytes(WEIGHTS);
  if constexpr (WEIGHTS == W11S) {
    start = (u64)(u32)p.record_offsets[unit] * 16;
    bytes = (p.record_offsets[unit + 1] - p.record_offsets[unit]) * 16;
  }
  for (int i = threadIdx.x * 16; i < bytes; i += 256 * 16) *(uint4 *)(record + i) = *(const uint4 *)(p.records + start + i);
  __syncthreads();
  const u32 words = shared_address(record), tops = shared_address(plane);
  if constexpr (WEIGHTS == W11S) {
    if (threadIdx.x < 32) build_plane(words + dense_bytes(WEIGHTS), tops, lane);
    __syncthreads();
  }
  const float scale[2] = {p.scale[channel + local], p.scale[channel + local + 8]};
  u32 loaded[loaded_words(WEIGHTS)], pair[16];
  load_record<WEIGHTS>(words, tops, group, thread, loaded);
  unpack<WEIGHTS>(loaded, pair);
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int row = local + (i & 1) * 8, column = i / 4 * 16 + (i >> 1 & 1) * 8 + (lane & 3) * 2;
    *(u32 *)(tile + row * STRIDE + column) = move_window(pair[i], scale[i & 1]);
  }
  __syncthreads();
  for (int e = first + threadIdx.x; e < last; e += 256) {
    const uint2 entry = p.escapes[e];
    tile[(entry.x & 0xFFFF) * STRIDE + (entry.x >> 16 & 63)] = (u16)entry.y;
  }
  __syncthreads();
  const int step = p.width % 8 == 0 ? 8 : 1;  // rows start at multiples of 16 bytes, or anywhere
  for (int i = threadIdx.x * step; i < 128 * 64; i += 256 * step) {
    const int row = i >> 6, column = i & 63;
    if (channel + row >= p.channels || k + column >= p.width) continue;
    u16 *to = p.weights + (u64)(channel + row) * p.width + k + column;
    if (step == 8)
      *(uint4 *)to = *(uint4 *)(tile + row * STRIDE + column);
    else
      *to = tile[row * STRIDE + column];
  }
}
