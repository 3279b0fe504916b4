// Words of records to pairs of BF16 with a constant exponent top, in the order of a matrix multiply's registers.

// Three words hold three pairs in place, and the fourth cut into their free bits 14..11.
__device__ __forceinline__ void unpack_w12(u32 w0, u32 w1, u32 w2, u32 *pair) {
  constexpr u32 TOP = 0x38003800u, KEPT = 0x87FF87FFu;
  pair[0] = lop3<AND_OR>(w0, KEPT, TOP);
  pair[1] = lop3<AND_OR>(w1, KEPT, TOP);
  pair[2] = lop3<AND_OR>(w2, KEPT, TOP);
  u32 cut = lop3<AND_OR>(w0 >> 4, 0x07800780u, TOP);
  cut = lop3<AND_OR>(w1 >> 8, 0x00780078u, cut);
  cut = lop3<AND_OR>(w2 >> 11, 0x00070007u, cut);
  pair[3] = lop3<AND_OR>(w2 << 1, 0x80008000u, cut);
}
