// W12 records back to BF16, bit for bit, for products with many rows and for taking weights out again.
//
// Bound: memory, 3.5 bytes a weight. A thread block of 256 rebuilds one record as the consumers of `w12_gemm.cu` do,
// moves exponents into place, lays the 128 x 64 tile out in shared memory, writes its escapes over their substitutes
// there, and stores whole 128-byte rows. Needs no instruction newer than sm_80.

constexpr int RECORD = 12288, HALF = RECORD / 2, PLANE = 2048, STRIDE = 72;  // bf16 of a padded row

struct Arguments {
  const u8 *records;
  const float *scale;
  const uint2 *escapes;
  const int *escape_offsets;
  u16 *weights;  // [channels, width]
  int channels, width, k_blocks, first_record;
};

// Two decoded lanes to BF16: the exponent's constant top 112 becomes the bottom of the channel's window.
__device__ __forceinline__ u32 move_window(u32 pair, float scale) {
  const u32 top = as_bits(scale) >> 23;
  const u32 shift = (top - 127) << 7;
  const u32 low = ((pair & 0x7FFF) + shift) & 0x7FFF, high = ((pair >> 16 & 0x7FFF) + shift) & 0x7FFF;
  return (pair & 0x80008000u) | (top ? low | high << 16 : 0);
}

extern "C" __global__ __launch_bounds__(256) void w12_decode(const Arguments p) {
  __shared__ __align__(16) u16 tile[128 * STRIDE];
  const int record = p.first_record + blockIdx.x, group = threadIdx.x >> 7, thread = threadIdx.x & 127;
  const int lane = thread & 31, local = group * 64 + (thread >> 5) * 16 + (lane >> 2);
  const int channel = record / p.k_blocks * 128, k = record % p.k_blocks * 64;
  const uint4 *words = (const uint4 *)(p.records + (u64)record * RECORD + group * HALF) + thread;
  const uint4 a = words[0], b = words[PLANE / 16], c = words[2 * PLANE / 16];
  const int first = p.escape_offsets[record], last = p.escape_offsets[record + 1];
  const float scale[2] = {p.scale[channel + local], p.scale[channel + local + 8]};
  u32 pair[16];
  unpack_w12(a.x, a.y, a.z, pair);
  unpack_w12(a.w, b.x, b.y, pair + 4);
  unpack_w12(b.z, b.w, c.x, pair + 8);
  unpack_w12(c.y, c.z, c.w, pair + 12);
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
  if (p.width % 8 == 0) {
    for (int i = threadIdx.x; i < 128 * 8; i += 256) {
      const int row = i >> 3, column = (i & 7) * 8;
      if (channel + row < p.channels && k + column < p.width)
        *(uint4 *)(p.weights + (u64)(channel + row) * p.width + k + column) = *(uint4 *)(tile + row * STRIDE + column);
    }
  } else {
    for (int i = threadIdx.x; i < 128 * 64; i += 256) {
      const int row = i >> 6, column = i & 63;
      if (channel + row < p.channels && k + column < p.width)
        p.weights[(u64)(channel + row) * p.width + k + column] = tile[row * STRIDE + column];
    }
  }
}
