// Words of a record to the 16 registers of a thread: pairs of BF16 in the order of a matrix multiply's A operand.
// The layouts are those of `specengine.weights.layout`; a record holds two halves of 64 channels, 128 threads each.

enum Format { W12, W12N, W12_VIEW, W11S, E2M5, E2M4, E2M3 };

// Exponent top of the lossless formats: 0111 above the four bits of the offset.
constexpr u32 TOP = 0x38003800u;
constexpr u32 SIGNS = 0x80008000u;

__device__ constexpr int words_of(Format format) {
  return format == W11S ? 11 : format == W12_VIEW || format == E2M5 ? 8 : format == E2M4 ? 7 : format == E2M3 ? 6 : 12;
}
// Words that a thread needs to rebuild its registers: one more for W11S, of its bit plane.
__device__ constexpr int loaded_words(Format format) { return words_of(format) + (format == W11S); }
// Bytes that a product reads of a record (at most, for W11S, whose records end in a list), and from one to the next.
__device__ constexpr int read_bytes(Format format) { return format == W11S ? 12288 : words_of(format) * 1024; }
__device__ constexpr int stride_bytes(Format format) { return format == W12_VIEW ? 12288 : read_bytes(format); }
__device__ constexpr int dense_bytes(Format format) { return words_of(format) * 1024; }

// Planes of four words a thread, then of two, then of one.
template <int WORDS>
__device__ __forceinline__ void load_words(u32 half, int thread, u32 *w) {
#pragma unroll
  for (int i = 0; i + 4 <= WORDS; i += 4) {
    const Vec4 v = load_shared(half + i * 512 + thread * 16);
    w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
  }
  if constexpr (WORDS & 2) load_shared2(half + (WORDS & ~3) * 512 + thread * 8, w[WORDS & ~3], w[(WORDS & ~3) + 1]);
  if constexpr (WORDS & 1) w[WORDS - 1] = load_shared1(half + (WORDS - 1) * 512 + thread * 4);
}

// Three words hold three pairs in place, and the fourth cut into their free bits 14..11.
__device__ __forceinline__ void unpack_w12(u32 w0, u32 w1, u32 w2, u32 *pair) {
  constexpr u32 KEPT = 0x87FF87FFu;
  pair[0] = lop3<AND_OR>(w0, KEPT, TOP);
  pair[1] = lop3<AND_OR>(w1, KEPT, TOP);
  pair[2] = lop3<AND_OR>(w2, KEPT, TOP);
  u32 cut = lop3<AND_OR>(w0 >> 4, 0x07800780u, TOP);
  cut = lop3<AND_OR>(w1 >> 8, 0x00780078u, cut);
  cut = lop3<AND_OR>(w2 >> 11, 0x00070007u, cut);
  pair[3] = lop3<AND_OR>(w2 << 1, SIGNS, cut);
}

// A view word holds two pairs without their low mantissa bits; those come from `nibbles`, or are at their midpoint.
__device__ __forceinline__ void unpack_view(u32 view, u32 low_a, u32 low_b, u32 *pair) {
  pair[0] = lop3<AND_OR>(view, 0x87F087F0u, low_a);
  const u32 upper = lop3<AND_OR>(view << 4, 0x00700070u, low_b);
  pair[1] = lop3<AND_OR>(__funnelshift_r(view, view, 4), 0x87808780u, upper);
}

// Eleven words hold eleven pairs in place and five cut into their free bits; `tops` supplies bit 10 of all sixteen.
__device__ __forceinline__ void unpack_w11s(const u32 *w, u32 tops, u32 *pair) {
  constexpr u32 BIT = 0x04000400u;
#pragma unroll
  for (int i = 0; i < 11; i++) pair[i] = lop3<AND_OR>(w[i], 0x83FF83FFu, lop3<AND_OR>(tops << (10 - i), BIT, TOP));
#pragma unroll
  for (int j = 0; j < 5; j++) {
    u32 cut = lop3<AND_OR>(tops >> (j + 1), BIT, TOP);
    cut = lop3<AND_OR>(w[2 * j] >> 5, 0x03E003E0u, cut);
    cut = lop3<AND_OR>(w[2 * j + 1] >> 10, 0x001F001Fu, cut);
    pair[11 + j] = lop3<AND_OR>(w[10] << (5 - j), SIGNS, cut);
  }
}

// Low-bit lanes are BF16 with an exponent field of 0 to 3; times 2^126 they are what their channel's scale expects.
__device__ __forceinline__ void raise(u32 *pair) {
#pragma unroll
  for (int i = 0; i < 16; i++) pair[i] = multiply_bf16(pair[i], 0x7E807E80u);
}
__device__ __forceinline__ void unpack_e2m5(const u32 *w, u32 *pair) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    pair[i] = w[i] & 0x81FC81FCu;
    const u32 cut = lop3<AND_OR>(w[i] << 1, 0x00040004u, w[i] << 15 & SIGNS);
    pair[8 + i] = lop3<AND_OR>(w[i] >> 6, 0x01F801F8u, cut);
  }
}
__device__ __forceinline__ void unpack_e2m4(const u32 *w, u32 *pair) {
#pragma unroll
  for (int i = 0; i < 7; i++) {
    pair[i] = w[i] & 0x81F881F8u;
    pair[7 + i] = lop3<AND_OR>(w[i] >> 6, 0x01F801F8u, w[i] << 15 & SIGNS);
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 cut = lop3<AND_OR>(w[4 * i] << 6, 0x01800180u, w[3] << (14 - i) & SIGNS);
    cut = lop3<AND_OR>(w[4 * i + 1] << 4, 0x00600060u, cut);
    pair[14 + i] = lop3<AND_OR>(w[4 * i + 2] << 2, 0x00180018u, cut);
  }
}
__device__ __forceinline__ void unpack_e2m3(const u32 *w, u32 *pair) {
#pragma unroll
  for (int i = 0; i < 6; i++) {
    pair[i] = w[i] & 0x81F081F0u;
    pair[6 + i] = lop3<AND_OR>(w[i] >> 5, 0x01F001F0u, w[i] << 1 & SIGNS);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 rest = w[3 * (i / 2) + 2];
    const u32 cut = lop3<AND_OR>(rest << (1 + i % 2), 0x00100010u, rest << (14 + i % 2) & SIGNS);
    pair[12 + i] = lop3<AND_OR>(w[3 * (i / 2) + i % 2] << 5, 0x01E001E0u, cut);
  }
}

// W11S: the list behind a record (32 counts, then each lane's positions) to a plane of 256 words. A lane clears its bits in
// eight words of its own: consumers read neighbours without a conflict, and a position costs five integer operations, which
// is what builders and consumers compete for.
// The warp stays together for the steps of the longest list; eight positions a step are more than most lists have.
__device__ __forceinline__ void build_plane(u32 list, u32 plane, int lane) {
  const u32 own = plane + lane * 32;
  store_shared(own, ~0u, ~0u, ~0u, ~0u);
  store_shared(own + 16, ~0u, ~0u, ~0u, ~0u);
  const Vec4 low = load_shared(list), high = load_shared(list + 16);
  const u32 counts[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  u32 before[2] = {0, 0};  // counts of lower lanes: bytes below the lane's, with a weight of 1
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int bytes = lane - 4 * i;
    const u32 ones = bytes <= 0 ? 0u : bytes >= 4 ? 0x01010101u : 0x01010101u >> (32 - 8 * bytes);
    before[i & 1] = __dp4a(counts[i], ones, before[i & 1]);
  }
  const u32 count = load_shared_byte(list + lane), first = list + 32 + before[0] + before[1];
  const u32 start = first & ~3u, shift = (first & 3) * 8;
  u32 carried = load_shared1(start), i = 0;
  do {
    const u32 middle = load_shared1(start + i + 4), last = load_shared1(start + i + 8);
    const u32 positions[2] = {__funnelshift_r(carried, middle, shift), __funnelshift_r(middle, last, shift)};
    carried = last;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const u32 from = positions[j / 4], bit = j % 4 ? from >> (8 * (j % 4)) : from;
      const u32 word = lop3<AND_OR>(from >> (8 * (j % 4) + 3), 28, own);
      and_shared(word, __funnelshift_l(~1u, ~1u, bit), i + j, count);
    }
    i += 8;
  } while (__any_sync(~0u, i < count));
}

// The words of one thread of half `group` of a record in shared memory; `tops` of W11S lies behind the record.
template <Format FORMAT>
__device__ __forceinline__ void load_record(u32 record, u32 tops, int group, int thread, u32 *w) {
  if constexpr (FORMAT == W12N) {
    load_words<8>(record + group * 4096, thread, w);
    load_words<4>(record + 8192 + group * 2048, thread, w + 8);
  } else {
    load_words<words_of(FORMAT)>(record + group * words_of(FORMAT) * 512, thread, w);
  }
  if constexpr (FORMAT == W11S) w[11] = load_shared1(tops + (group * 128 + thread) * 4);
}

// Words to registers.
template <Format FORMAT>
__device__ __forceinline__ void unpack(const u32 *w, u32 *pair) {
  if constexpr (FORMAT == W12) {
#pragma unroll
    for (int i = 0; i < 4; i++) unpack_w12(w[3 * i], w[3 * i + 1], w[3 * i + 2], pair + 4 * i);
  } else if constexpr (FORMAT == W12N) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const u32 nibbles = w[8 + i / 2] >> (8 * (i % 2));
      unpack_view(w[i], lop3<AND_OR>(nibbles, 0x000F000Fu, TOP), lop3<AND_OR>(nibbles >> 4, 0x000F000Fu, TOP), pair + 2 * i);
    }
  } else if constexpr (FORMAT == W12_VIEW) {
#pragma unroll
    for (int i = 0; i < 8; i++) unpack_view(w[i], TOP | 0x00080008u, TOP | 0x00080008u, pair + 2 * i);
  } else if constexpr (FORMAT == W11S) {
    unpack_w11s(w, w[11], pair);
  } else {
    if constexpr (FORMAT == E2M5) unpack_e2m5(w, pair);
    if constexpr (FORMAT == E2M4) unpack_e2m4(w, pair);
    if constexpr (FORMAT == E2M3) unpack_e2m3(w, pair);
    raise(pair);
  }
}
