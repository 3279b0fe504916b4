// How far an exact logit may be from its approximation by the 8-bit copy of the head, and the words that decide between
// logits. `certified_head.py` states the bound.

__device__ __forceinline__ float infinite() { return as_float(0x7F800000u); }

struct Interval {
  float low, high;
};

// `accumulation` bounds what both sums may lose to rounding, relative to the norms of row and hidden state.
__device__ __forceinline__ Interval interval(float approximate, float residual, float weight, float hidden,
                                             float accumulation) {
  constexpr float UNDERFLOW = 0x1p-108f;  // more than 2^16 products can lose below the smallest normal number
  const float reach = __fmul_ru(__fadd_ru(weight, residual), hidden);
  // Near overflow, and where something is not a number, nothing is known: neither bound may exclude a row.
  if (!(reach < 0x1p120f) || !(fabsf(approximate) < 0x1p120f)) return {-infinite(), infinite()};
  const float lost = __fmaf_ru(accumulation, reach, __fmaf_ru(weight, UNDERFLOW, UNDERFLOW));
  const float slack = __fmaf_ru(residual, hidden, lost);
  return {__fsub_rd(approximate, slack), __fadd_ru(approximate, slack)};
}

// Integers in the order of the numbers, and back.
__device__ __forceinline__ int in_order(float value) {
  const int bits = (int)as_bits(value);
  return bits ^ (bits >> 31 & 0x7FFFFFFF);
}
__device__ __forceinline__ float from_order(int word) { return as_float((u32)(word ^ (word >> 31 & 0x7FFFFFFF))); }

// The smallest word belongs to the largest logit, and of equal ones to the lowest row. As in torch.argmax, NaN is
// larger than all numbers and zeros are equal.
__device__ __forceinline__ u64 rank_of(float logit, u32 row) {
  const u32 order = logit != logit ? ~0u : (u32)in_order(logit + 0.f) ^ 0x80000000u;
  return (u64)~order << 32 | row;
}
