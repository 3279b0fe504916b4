// Before the pass over the 8-bit copy of an LM head: is it worth its time for this hidden state?
//
// One thread block a hidden state. It takes the state's norm (rounded up), then the logits of a sample of the head's
// tiles, which `packed_gemm.cu` has approximated. A row that the best of the sample does not exclude is a row that the
// best of the whole head may not exclude either. Where more than half of the sample is left, reading those rows would
// cost more than the certificate saves, and the state is marked: `head_settle.cu` then reads the whole head.
// A wrong guess costs time, never the argmax. Bound: latency, about 2 us.

constexpr int THREADS = 512, WARPS = THREADS / 32;

struct Arguments {
  const u16 *hidden;         // [rows, width]
  const float *approximate;  // [rows, channels]; only sampled tiles are read
  const float *residual;     // per channel
  const float *weight;
  float *norms;  // [rows]
  int *dense;    // [rows]: 1 where the whole head is to be read
  int width, channels, tile_step;
  float accumulation;
};

__device__ __forceinline__ int channel_of(int sample, int tile_step) { return (sample >> 7) * 128 * tile_step + (sample & 127); }

extern "C" __global__ __launch_bounds__(THREADS) void head_judge(const Arguments p) {
  __shared__ double squares[WARPS];
  __shared__ int words[WARPS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  let_next_kernel_start();
  wait_for_previous_kernel();
  const u16 *hidden = p.hidden + (u64)blockIdx.x * p.width;
  const float *approximate = p.approximate + (u64)blockIdx.x * p.channels;

  double sum = 0;
  for (int k = threadIdx.x; k < p.width; k += THREADS) {
    const double h = as_float((u32)hidden[k] << 16);
    sum += h * h;
  }
#pragma unroll
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) squares[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < WARPS; i++) sum += squares[i];
  const float norm = __double2float_ru(sqrt(sum) * (1 + 0x1p-35));  // more than 2^16 roundings lose

  const int tiles = (p.channels + 127) / 128, samples = (tiles + p.tile_step - 1) / p.tile_step * 128;
  auto bounds = [&](int sample) {
    const int channel = channel_of(sample, p.tile_step);
    return interval(approximate[channel], p.residual[channel], p.weight[channel], norm, p.accumulation);
  };
  int best = in_order(-infinite());
  for (int i = threadIdx.x; i < samples; i += THREADS)
    if (channel_of(i, p.tile_step) < p.channels) best = max(best, in_order(bounds(i).low));
  best = __reduce_max_sync(~0u, best);
  if (lane == 0) words[warp] = best;
  __syncthreads();
  for (int i = 0; i < WARPS; i++) best = max(best, words[i]);
  const float threshold = from_order(best);
  int left = 0, seen = 0;
  for (int i = threadIdx.x; i < samples; i += THREADS)
    if (channel_of(i, p.tile_step) < p.channels) left += !(bounds(i).high < threshold), seen++;
  const int excess = 2 * left - seen;
  const int total = __reduce_add_sync(~0u, excess);
  __syncthreads();
  if (lane == 0) words[warp] = total;
  __syncthreads();
  if (threadIdx.x == 0) {
    int all = 0;
    for (int i = 0; i < WARPS; i++) all += words[i];
    p.norms[blockIdx.x] = norm;
    p.dense[blockIdx.x] = all > 0;
  }
}
