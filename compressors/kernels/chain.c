/* A policy of dense layers in one call for a few rows: float or u8 x s8 products, norms, sums and products of values,
   activations, rounding to codes, one step after the other; once for each set of vector instructions. And dense layers
   with their gradients, for the learner: tower.h.

   compressors/kernels/chain.py owns all memory and checks all sizes. A row has one array of floats and one of codes, in
   which every value has its columns: a whole number of vectors, of which what is behind the value counts for nothing.
   Weights are packed for vectors of outputs (pack_floats, pack_codes), so that a product reads them once and in order
   for up to eight rows. From equal codes it computes what onnxruntime does: 32-bit sums of products, a float factor,
   rounding half to even, its rational tanh. */

#include <stdint.h>
#include <string.h>

/* dense.h has a function of each name, and chain.py the same names in this order. */
#define ACTIVATIONS(of) \
  of(none) of(relu) of(tanh) of(sigmoid) of(elu) of(silu) of(gelu) of(gelu_tanh) of(leaky) of(clip) of(softplus)

/* in chain.py's order; COPY takes the whole of a value, or none of it where only its activation or codes are to be made */
enum {
  FLOATS_PRODUCT, CODES_PRODUCT, WIDE_PRODUCT, NORM, SUM, DIFFERENCE, PRODUCT, QUOTIENT, COPY, DECODE, SPLIT, INPUT,
  CONSTANT, CONVOLUTION
};

/* Where a convolution's window lies in an image of codes, channels last. */
typedef struct {
  int32_t rows, columns; /* of positions */
  int32_t lines, line;   /* of a window, and the codes of one */
  int32_t pitch;         /* codes of an image's line */
  int32_t down, right;   /* codes from one position to the next */
} Window;

typedef struct {
  int32_t kind, activation, quantises;
  int32_t from, with, to; /* first columns of the values read and made; of an INPUT which input is read */
  int32_t inputs;         /* of a row; a multiple of 4 where products are of integers */
  int32_t outputs;        /* a multiple of two vectors */
  const void *weights;    /* packed; of a norm, and a constant itself, [outputs] floats */
  const void *bias;       /* [outputs], int32 or float; of a WIDE_PRODUCT for high and then for low bytes */
  const float *scale;     /* [outputs], of integer sums; likewise */
  float alpha, beta;      /* of the activation; of a SPLIT the least and the greatest number */
  float epsilon;          /* of the norm */
  float step;             /* of the codes made, of a DECODE of those read, of a SPLIT of the low bytes */
  int32_t zero;
  Window window; /* of a convolution, whose inputs and outputs are those of a position */
} Step;

/* A value that is handed out: its first column, and how many. */
typedef struct {
  int32_t from, columns;
} Result;

typedef struct {
  int32_t steps, features, inputs, results, stride;
  int32_t channels; /* of observations that are images of bytes, channels first; else 0 */
  const float *mean, *factor; /* [features] */
  float least, greatest;      /* of the observations, normalised */
  int32_t quantises;          /* whether there are codes of them too */
  float step;
  int32_t zero;
  const Step *each;
  const Result *made;
  float *floats;  /* [rows, stride]; observations first */
  uint8_t *codes; /* [2, rows, stride]: codes, or high bytes, and then low bytes */
  uint8_t *windows; /* of one image */
} Chain;

/* What products read and make: rows of floats or codes, the latter with their low bytes. */
typedef struct {
  const float *floats;
  const uint8_t *codes, *low;
  long stride, pitch; /* of what is read, and of what is made */
  float *made;
} Rows;

/* tower.h's: an element is at row * its row + column * its column. */
typedef struct {
  const float *data;
  long row, column;
} Matrix;

/* A linear layer: weight [outputs, inputs] with these strides, of which one is 1; its gradient lies in the same way. */
typedef struct {
  const float *weight, *bias;
  float *of_weight, *of_bias;
  long row, column;
  int32_t inputs, outputs;
} Layer;

/* Layers, each with the activation, and heads on the last of them; columns: outputs of them all. */
typedef struct {
  int32_t layers, heads, activation, widest, columns;
  const Layer *each;
} Tower;

/* Rows that pass all layers together, so that a cache holds what one layer leaves to the next. A layer's values have
   room for whole sixteens of rows: an activation is of whole vectors, and writes to what is behind the last. */
enum { BLOCK = 256 }; /* as in tower.py */
#define ROOM(rows) (((long)(rows) + 15) / 16 * 16)
typedef struct {
  long row, room;
  int32_t rows;
  float *packed; /* a part of a matrix */
} Block;

/* activations of which tower.h knows the derivative, by their place in ACTIVATIONS */
enum { RELU = 1, TANH, SIGMOID, ELU };

/* Images of bytes with their channels last. */
static void channels_last(const uint8_t *from, long positions, int channels, uint8_t *to) {
  for (int c = 0; c < channels; c++)
    for (long i = 0; i < positions; i++) to[i * channels + c] = from[c * positions + i];
}

/* The window of each position, one behind the other. */
static void unfold(const Step *step, const uint8_t *image, uint8_t *to) {
  const Window *of = &step->window;
  for (int row = 0; row < of->rows; row++, image += of->down)
    for (int column = 0; column < of->columns; column++, to += step->inputs)
      for (int i = 0; i < of->lines; i++)
        memcpy(to + (long)i * of->line, image + (long)column * of->right + (long)i * of->pitch, of->line);
}

/* Least and greatest code of a number less the zero point, as floats: sums beyond 32 bits saturate too. */
#define LEAST(zero) SET((float)-(zero))
#define GREATEST(zero) SET((float)(255 - (zero)))
#define BOUNDED(v, zero) MIN(MAX(v, LEAST(zero)), GREATEST(zero))

/* Bits of the kernels that a CPU runs, best first, in the order of library.py. */
enum { AVX512 = 1, AVX_VNNI = 2, AVX2 = 4, DOT_PRODUCTS = 8, NEON = 16 };

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#define LOAD(p) OF(loadu_ps)(p)
#define STORE(p, v) OF(storeu_ps)(p, v)
#define SET(x) OF(set1_ps)(x)
#define ADD(a, b) OF(add_ps)(a, b)
#define SUBTRACT(a, b) OF(sub_ps)(a, b)
#define MULTIPLY(a, b) OF(mul_ps)(a, b)
#define DIVIDE(a, b) OF(div_ps)(a, b)
#define MULTIPLY_ADD(a, b, c) OF(fmadd_ps)(a, b, c)
#define SQUARE_ROOT(v) OF(sqrt_ps)(v)
#define MIN(a, b) OF(min_ps)(a, b)
#define MAX(a, b) OF(max_ps)(a, b)
#define SET_INTEGERS(x) OF(set1_epi32)(x)
#define SET_CODES(four) OF(set1_epi32)(four)
#define TO_FLOATS(v) OF(cvtepi32_ps)(v)
#define TO_INTEGERS(v) OF(cvtps_epi32)(v)
#define ADD_INTEGERS(a, b) OF(add_epi32)(a, b)
#define POWER_OF_TWO(n) (FLOATS)OF(slli_epi32)(ADD_INTEGERS(n, SET_INTEGERS(127)), 23)

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")))
#define NAME(name) name##_avx512
#define OF(operation) _mm512_##operation
#define LANES 16
#define MAX_ROWS 8
#define FLOATS __m512
#define INTEGERS __m512i
#define LOAD_INTEGERS(p) _mm512_loadu_si512(p)
/* vectors interleaved: a_0 b_0 a_1 b_1 ... of the lower halves of a and b, and of the upper ones */
#define INTERLEAVE_LOWER(a, b) \
  _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b)
#define INTERLEAVE_UPPER(a, b) \
  _mm512_permutex2var_ps(a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b)
#define PRODUCTS(sum, x, w) _mm512_dpbusd_epi32(sum, x, w)
#define LOAD_CODES(p) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define STORE_CODES(p, v) _mm_storeu_si128((__m128i *)(p), _mm512_cvtepi32_epi8(v))
#include "dense.h"
#undef OF
#undef LANES
#undef MAX_ROWS
#undef FLOATS
#undef INTEGERS
#undef LOAD_INTEGERS
#undef INTERLEAVE_LOWER
#undef INTERLEAVE_UPPER
#undef LOAD_CODES
#undef STORE_CODES
#undef BOUNDED

#define OF(operation) _mm256_##operation
#define LANES 8
#define MAX_ROWS 4
#define FLOATS __m256
#define INTEGERS __m256i
#define LOAD_INTEGERS(p) _mm256_loadu_si256((const __m256i *)(p))
#define INTERLEAVE_LOWER(a, b) _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20)
#define INTERLEAVE_UPPER(a, b) _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31)
#define LOAD_CODES(p) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p)))
/* what is below, or a NaN, becomes the least integer, and that the least code */
#define BOUNDED(v, zero) MIN(GREATEST(zero), v)
#define STORE_CODES(p, v) store_eight(p, v)
static inline __attribute__((target("avx2"))) void store_eight(uint8_t *p, __m256i v) {
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
}

#define TARGET __attribute__((target("avx2,fma")))
#define NAME(name) name##_avx2
/* pairs of products in 16 bits: exact for weights of at most 64 in size, which chain.py sees to */
#define PRODUCTS(sum, x, w) \
  _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, w), _mm256_set1_epi16(1)))
#include "dense.h"

/* compilers know these instructions since GCC 11 and Clang 12 */
#if __GNUC__ >= 11 || __clang_major__ >= 12
#define COMPILED (AVX512 | AVX_VNNI | AVX2)
#define TARGET __attribute__((target("avx2,fma,avxvnni")))
#define NAME(name) name##_avx_vnni
#define PRODUCTS(sum, x, w) _mm256_dpbusd_avx_epi32(sum, x, w)
#include "dense.h"
#else
#define COMPILED (AVX512 | AVX2)
#endif

/* The kernels that a CPU runs of which CPUID says this: ECX of leaf 1, EBX and ECX of leaf 7, EAX of its second part;
   and XGETBV which registers the system keeps. */
int runs(uint32_t first, uint32_t seventh_b, uint32_t seventh_c, uint32_t more, uint32_t kept) {
  const uint32_t fma = 1u << 12, avx = 1u << 28, avx2 = 1u << 5, ymm = 6, zmm = 0xe6;
  const uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11, vex_vnni = 1u << 4;
  if (~first & (fma | avx) || ~seventh_b & avx2 || ~kept & ymm) return 0;
  int wide = !(~seventh_b & (f | dq | bw | vl) || ~seventh_c & vnni || ~kept & zmm);
  return (AVX2 | (wide ? AVX512 : 0) | (more & vex_vnni ? AVX_VNNI : 0)) & COMPILED;
}

/* Bits of the kernels that this CPU runs. */
int runs_here(void) {
  uint32_t a, b, first, seventh_b, seventh_c, d, more = 0, kept;
  if (!__get_cpuid(1, &a, &b, &first, &d) || !(first >> 27 & 1)) return 0;
  if (!__get_cpuid_count(7, 0, &a, &seventh_b, &seventh_c, &d)) return 0;
  if (a >= 1) __get_cpuid_count(7, 1, &more, &b, &a, &d);
  __asm__("xgetbv" : "=a"(kept), "=d"(d) : "c"(0));
  return runs(first, seventh_b, seventh_c, more, kept);
}

#elif defined(__aarch64__)

#include <arm_neon.h>
#include <sys/auxv.h>

#define LANES 4
#define MAX_ROWS 8
#define FLOATS float32x4_t
#define INTEGERS int32x4_t
#define LOAD(p) vld1q_f32(p)
#define STORE(p, v) vst1q_f32(p, v)
#define SET(x) vdupq_n_f32(x)
#define ADD(a, b) vaddq_f32(a, b)
#define SUBTRACT(a, b) vsubq_f32(a, b)
#define MULTIPLY(a, b) vmulq_f32(a, b)
#define DIVIDE(a, b) vdivq_f32(a, b)
#define MULTIPLY_ADD(a, b, c) vfmaq_f32(c, a, b)
#define SQUARE_ROOT(v) vsqrtq_f32(v)
/* the second operand where one is a NaN, as on x86 */
#define MIN(a, b) least_of(a, b)
#define MAX(a, b) greatest_of(a, b)
#define LOAD_INTEGERS(p) vld1q_s32((const int32_t *)(p))
#define INTERLEAVE_LOWER(a, b) vzip1q_f32(a, b)
#define INTERLEAVE_UPPER(a, b) vzip2q_f32(a, b)
#define SET_INTEGERS(x) vdupq_n_s32(x)
/* less 128, as products are of signed numbers: chain.py sees to the bias */
#define SET_CODES(four) vdupq_n_s32((int32_t)((four) ^ 0x80808080u))
#define TO_FLOATS(v) vcvtq_f32_s32(v)
#define TO_INTEGERS(v) vcvtnq_s32_f32(v)
#define ADD_INTEGERS(a, b) vaddq_s32(a, b)
#define POWER_OF_TWO(n) vreinterpretq_f32_s32(vshlq_n_s32(ADD_INTEGERS(n, SET_INTEGERS(127)), 23))
#define LOAD_CODES(p) load_four(p)
#define STORE_CODES(p, v) store_four(p, v)
static inline float32x4_t least_of(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline float32x4_t greatest_of(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline int32x4_t load_four(const uint8_t *p) {
  uint32_t four;
  memcpy(&four, p, 4);
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
}
static inline void store_four(uint8_t *p, int32x4_t v) {
  uint16x4_t words = vqmovun_s32(v);
  uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vqmovn_u16(vcombine_u16(words, words))), 0);
  memcpy(p, &four, 4);
}

#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#define NAME(name) name##_dot_products
#define PRODUCTS(sum, x, w) vdotq_s32(sum, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(w))
#include "dense.h"

#define TARGET
#define NAME(name) name##_neon
#define PRODUCTS(sum, x, w) sum_fours(sum, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(w))
static inline int32x4_t sum_fours(int32x4_t sum, int8x16_t x, int8x16_t w) {
  int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(w)), high = vmull_high_s8(x, w);
  return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}
#include "dense.h"

int runs_here(void) {
  const unsigned long dot_products = 1ul << 20; /* ASIMDDP of AT_HWCAP */
  return NEON | (getauxval(AT_HWCAP) & dot_products ? DOT_PRODUCTS : 0);
}

#endif

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
