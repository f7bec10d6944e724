/* A policy of dense layers in one call for a few rows: float or u8 x s8 products, norms, sums and products of values,
   activations, rounding to codes, one step after the other.

   compressors/kernels/chain.py owns all memory and checks all sizes. A row has one array of floats and one of codes, in
   which every value has its columns: a whole number of vectors, of which what is behind the value counts for nothing.
   Weights are packed for vectors of outputs (pack_floats, pack_codes), so that a product reads them once and in order
   for up to eight rows. From equal codes it computes what onnxruntime does: 32-bit sums of products, a float factor,
   rounding half to even, its rational tanh. */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* dense.h has a function of each name, and chain.py the same names in this order. */
#define ACTIVATIONS(of) \
  of(none) of(relu) of(tanh) of(sigmoid) of(elu) of(silu) of(gelu) of(gelu_tanh) of(leaky) of(clip) of(softplus)

/* in chain.py's order; COPY takes the whole of a value, or none of it where only its activation or codes are to be made */
enum { FLOATS_PRODUCT, CODES_PRODUCT, WIDE_PRODUCT, NORM, SUM, PRODUCT, COPY, DECODE, SPLIT };

typedef struct {
  int32_t kind, activation, quantises;
  int32_t from, with, to; /* first columns of the values read and made */
  int32_t inputs;         /* of a row; a multiple of 4 where products are of integers */
  int32_t outputs;        /* a multiple of two vectors */
  const void *weights;    /* packed; of a norm [outputs] floats */
  const void *bias;       /* [outputs], int32 or float; of a WIDE_PRODUCT for high and then for low bytes */
  const float *scale;     /* [outputs], of integer sums; likewise */
  float alpha, beta;      /* of the activation; of a SPLIT the least and the greatest number */
  float epsilon;          /* of the norm */
  float step;             /* of the codes made, of a DECODE of those read, of a SPLIT of the low bytes */
  int32_t zero;
} Step;

typedef struct {
  int32_t steps, features, outputs, result, stride;
  const float *mean, *factor; /* [features] */
  float least, greatest;      /* of the observations, normalised */
  int32_t quantises;          /* whether there are codes of them too */
  float step;
  int32_t zero;
  const Step *each;
  float *floats;  /* [rows, stride]; observations first */
  uint8_t *codes; /* [2, rows, stride]: codes, or high bytes, and then low bytes */
} Chain;

/* Least and greatest code of a number less the zero point, as floats: sums beyond 32 bits saturate too. */
#define LEAST(zero) ((float)-(zero))
#define GREATEST(zero) ((float)(255 - (zero)))

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")))
#define NAME(name) name##_avx512
#define LANES 16
#define MAX_ROWS 8
#define FLOATS __m512
#define INTEGERS __m512i
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define SET(x) _mm512_set1_ps(x)
#define ADD(a, b) _mm512_add_ps(a, b)
#define SUBTRACT(a, b) _mm512_sub_ps(a, b)
#define MULTIPLY(a, b) _mm512_mul_ps(a, b)
#define DIVIDE(a, b) _mm512_div_ps(a, b)
#define MULTIPLY_ADD(a, b, c) _mm512_fmadd_ps(a, b, c)
#define SQUARE_ROOT(v) _mm512_sqrt_ps(v)
#define MIN(a, b) _mm512_min_ps(a, b)
#define MAX(a, b) _mm512_max_ps(a, b)
#define LOAD_INTEGERS(p) _mm512_loadu_si512(p)
#define SET_INTEGERS(x) _mm512_set1_epi32(x)
#define PRODUCTS(sum, x, w) _mm512_dpbusd_epi32(sum, x, w)
#define TO_FLOATS(v) _mm512_cvtepi32_ps(v)
#define SUBTRACT_INTEGERS(a, b) _mm512_sub_epi32(a, b)
#define LOAD_CODES(p) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define TO_INTEGERS(v) _mm512_cvtps_epi32(v)
#define POWER_OF_TWO(n) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, SET_INTEGERS(127)), 23))
#define STORE_CODES(p, v, zero) \
  _mm_storeu_si128((__m128i *)(p), _mm512_cvtepi32_epi8(_mm512_add_epi32(TO_INTEGERS(v), SET_INTEGERS(zero))))
#include "dense.h"

#define TARGET __attribute__((target("avx2,fma")))
#define NAME(name) name##_avx2
#define LANES 8
#define MAX_ROWS 4
#define FLOATS __m256
#define INTEGERS __m256i
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#define SET(x) _mm256_set1_ps(x)
#define ADD(a, b) _mm256_add_ps(a, b)
#define SUBTRACT(a, b) _mm256_sub_ps(a, b)
#define MULTIPLY(a, b) _mm256_mul_ps(a, b)
#define DIVIDE(a, b) _mm256_div_ps(a, b)
#define MULTIPLY_ADD(a, b, c) _mm256_fmadd_ps(a, b, c)
#define SQUARE_ROOT(v) _mm256_sqrt_ps(v)
#define MIN(a, b) _mm256_min_ps(a, b)
#define MAX(a, b) _mm256_max_ps(a, b)
#define LOAD_INTEGERS(p) _mm256_loadu_si256((const __m256i *)(p))
#define SET_INTEGERS(x) _mm256_set1_epi32(x)
/* pairs of products in 16 bits: exact for weights of at most 64 in size, which chain.py sees to */
#define PRODUCTS(sum, x, w) \
  _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, w), _mm256_set1_epi16(1)))
#define TO_FLOATS(v) _mm256_cvtepi32_ps(v)
#define SUBTRACT_INTEGERS(a, b) _mm256_sub_epi32(a, b)
#define LOAD_CODES(p) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p)))
#define TO_INTEGERS(v) _mm256_cvtps_epi32(v)
#define POWER_OF_TWO(n) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, SET_INTEGERS(127)), 23))
#define STORE_CODES(p, v, zero) NAME(store_codes)(p, _mm256_add_epi32(TO_INTEGERS(v), SET_INTEGERS(zero)))
static inline TARGET void store_codes_avx2(uint8_t *p, __m256i v) {
  __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
}
#include "dense.h"

/* Vector outputs of the best kernels that this CPU runs: 16 with VNNI, 8 with AVX2, 0 for none. */
int lanes(void) {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma"))
    return 16;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 8 : 0;
}

/* The checksum of what this was compiled from; see checksum in library.py. */
uint32_t source(void) { return SOURCE; }

/* w [n, k] with these strides, to [ceil(n / lanes), k, lanes]; zeros beyond n are there already. w lies in a model's
   bytes, so it need not be aligned. */
void pack_floats(const char *w, int n, int k, long row, long column, int lanes, float *packed) {
  for (int block = 0; block < n; block += lanes) {
    int count = n - block < lanes ? n - block : lanes;
    for (int i = 0; i < k; i++, packed += lanes)
      for (int j = 0; j < count; j++) memcpy(packed + j, w + 4 * ((block + j) * row + i * column), 4);
  }
}

/* w [n, k] with these strides, to [ceil(n / lanes), ceil(k / 4), lanes, 4], and the bias less the zero point's part. */
void pack_codes(const int8_t *w, int n, int k, long row, long column, int lanes, int32_t zero, int8_t *packed,
                int32_t *bias) {
  int fours = (k + 3) / 4;
  for (int j = 0; j < n; j++) {
    const int8_t *from = w + j * row;
    int8_t *to = packed + ((long)(j / lanes) * fours * lanes + j % lanes) * 4;
    int32_t sum = 0;
    if (column == 1) {
      for (int i = 0; i < k / 4; i++) memcpy(to + (long)i * lanes * 4, from + i * 4, 4);
      for (int i = k & ~3; i < k; i++) to[(long)(i / 4) * lanes * 4 + i % 4] = from[i];
      for (int i = 0; i < k; i++) sum += from[i];
    } else {
      for (int i = 0; i < k; i++) {
        to[(long)(i / 4) * lanes * 4 + i % 4] = from[i * column];
        sum += from[i * column];
      }
    }
    bias[j] -= zero * sum;
  }
}
