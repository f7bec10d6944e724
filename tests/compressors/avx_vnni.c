/* The kernels for AVX-VNNI on a CPU without it: its one instruction in those of AVX2, by its definition. */

#include <immintrin.h>

static inline __attribute__((target("avx2"))) __m256i sum_of_fours(__m256i sum, __m256i x, __m256i w) {
  __m256i x_even = _mm256_and_si256(x, _mm256_set1_epi16(255)), x_odd = _mm256_srli_epi16(x, 8);
  __m256i w_even = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), w_odd = _mm256_srai_epi16(w, 8);
  __m256i two = _mm256_add_epi32(_mm256_madd_epi16(x_even, w_even), _mm256_madd_epi16(x_odd, w_odd));
  return _mm256_add_epi32(sum, two);
}

#define _mm256_dpbusd_avx_epi32 sum_of_fours
#include "chain.c"
