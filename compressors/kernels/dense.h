/* The kernels for one set of vector instructions; chain.c defines those and includes this once for each. */

#define INLINE static inline __attribute__((always_inline)) TARGET

#define ACTIVATION(name) INLINE FLOATS NAME(name)(const Step *step __attribute__((unused)), FLOATS x)

ACTIVATION(none) { return x; }

/* A NaN stays one in all of these, as the second operand of MIN and MAX does. */
ACTIVATION(relu) { return MAX(SET(0.0f), x); }

ACTIVATION(clip) { return MIN(SET(step->beta), MAX(SET(step->alpha), x)); }

ACTIVATION(leaky) {
  return MULTIPLY_ADD(SET(step->alpha), MIN(SET(0.0f), x), MAX(SET(0.0f), x));
}

/* onnxruntime's: a ratio of polynomials on [-9, 9]. */
ACTIVATION(tanh) {
  x = MIN(SET(9.0f), MAX(SET(-9.0f), x));
  FLOATS square = MULTIPLY(x, x);
  FLOATS p = SET(-2.76076847742355e-16f), q = SET(1.19825839466702e-06f);
  p = MULTIPLY_ADD(p, square, SET(2.00018790482477e-13f));
  p = MULTIPLY_ADD(p, square, SET(-8.60467152213735e-11f));
  p = MULTIPLY_ADD(p, square, SET(5.12229709037114e-08f));
  p = MULTIPLY_ADD(p, square, SET(1.48572235717979e-05f));
  p = MULTIPLY_ADD(p, square, SET(6.37261928875436e-04f));
  p = MULTIPLY_ADD(p, square, SET(4.89352455891786e-03f));
  q = MULTIPLY_ADD(q, square, SET(1.18534705686654e-04f));
  q = MULTIPLY_ADD(q, square, SET(2.26843463243900e-03f));
  q = MULTIPLY_ADD(q, square, SET(4.89352518554385e-03f));
  return DIVIDE(MULTIPLY(p, x), q);
}

/* e^r - 1, and 2^n, with e^x = 2^n e^r: x = n ln 2 + r with |r| <= ln 2 / 2, so the difference to 1 is exact too.
   The polynomial and the two parts of ln 2 are those of Cephes' expf. For x up to 88; below -87 it is as there. */
INLINE FLOATS NAME(exponential)(FLOATS x, FLOATS *power) {
  x = MAX(SET(-87.0f), x);
  INTEGERS n = TO_INTEGERS(MULTIPLY(x, SET(1.44269504088896341f)));
  FLOATS r = MULTIPLY_ADD(TO_FLOATS(n), SET(-0.693359375f), x);
  r = MULTIPLY_ADD(TO_FLOATS(n), SET(2.12194440e-4f), r);
  FLOATS square = MULTIPLY(r, r);
  FLOATS high = MULTIPLY_ADD(SET(1.9875691500e-4f), r, SET(1.3981999507e-3f));
  FLOATS middle = MULTIPLY_ADD(SET(8.3334519073e-3f), r, SET(4.1665795894e-2f));
  FLOATS low = MULTIPLY_ADD(SET(1.6666665459e-1f), r, SET(5.0000001201e-1f));
  FLOATS p = MULTIPLY_ADD(MULTIPLY_ADD(high, square, middle), square, low);
  *power = POWER_OF_TWO(n);
  return MULTIPLY_ADD(p, square, r);
}

ACTIVATION(sigmoid) {
  FLOATS power, rest = NAME(exponential)(MIN(SET(88.0f), SUBTRACT(SET(0.0f), x)), &power);
  return DIVIDE(SET(1.0f), ADD(SET(1.0f), MULTIPLY_ADD(power, rest, power)));
}

ACTIVATION(elu) {
  FLOATS power, rest = NAME(exponential)(MIN(SET(0.0f), x), &power);
  FLOATS less_one = MULTIPLY_ADD(power, rest, SUBTRACT(power, SET(1.0f)));
  return MULTIPLY_ADD(SET(step->alpha), less_one, MAX(SET(0.0f), x));
}

/* The product of x and a factor that vanishes far below 0: x is bounded there, so that huge numbers become 0. */
ACTIVATION(silu) {
  return MULTIPLY(MAX(SET(-87.0f), x), NAME(sigmoid)(step, x));
}

ACTIVATION(gelu_tanh) {
  x = MAX(SET(-9.0f), x);
  FLOATS cubic = MULTIPLY_ADD(MULTIPLY(x, x), MULTIPLY(x, SET(0.044715f)), x);
  return MULTIPLY(x, NAME(sigmoid)(step, MULTIPLY(cubic, SET(1.59576912160573f))));
}

/* x (1 + erf(x / sqrt 2)) / 2; erf is a ratio of polynomials on [-4, 4], as in Eigen. */
ACTIVATION(gelu) {
  x = MAX(SET(-5.65685424949238f), x);
  FLOATS z = MIN(SET(4.0f), MULTIPLY(x, SET(0.707106781186548f))), square = MULTIPLY(z, z);
  FLOATS p = SET(-2.72614225801306e-10f), q = SET(-1.45660718464996e-05f);
  p = MULTIPLY_ADD(p, square, SET(2.77068142495902e-08f));
  p = MULTIPLY_ADD(p, square, SET(-2.10102402082508e-06f));
  p = MULTIPLY_ADD(p, square, SET(-5.69250639462346e-05f));
  p = MULTIPLY_ADD(p, square, SET(-7.34990630326855e-04f));
  p = MULTIPLY_ADD(p, square, SET(-2.95459980854025e-03f));
  p = MULTIPLY_ADD(p, square, SET(-1.60960333262415e-02f));
  q = MULTIPLY_ADD(q, square, SET(-2.13374055278905e-04f));
  q = MULTIPLY_ADD(q, square, SET(-1.68282697438203e-03f));
  q = MULTIPLY_ADD(q, square, SET(-7.37332916720468e-03f));
  q = MULTIPLY_ADD(q, square, SET(-1.42647390514189e-02f));
  FLOATS half = MULTIPLY(x, SET(0.5f));
  return MULTIPLY_ADD(half, DIVIDE(MULTIPLY(p, z), q), half);
}

/* max(x, 0) + log(1 + t) with t = exp(-|x|), and log(1 + t) = 2 artanh(t / (2 + t)), a polynomial. */
ACTIVATION(softplus) {
  FLOATS positive = MAX(SET(0.0f), x), negative = MIN(SET(0.0f), x);
  FLOATS power, rest = NAME(exponential)(SUBTRACT(negative, positive), &power);
  FLOATS t = MULTIPLY_ADD(power, rest, power), z = DIVIDE(t, ADD(SET(2.0f), t)), square = MULTIPLY(z, z);
  FLOATS p = SET(0.134257490f);
  p = MULTIPLY_ADD(p, square, SET(0.141183099f));
  p = MULTIPLY_ADD(p, square, SET(0.200037803f));
  p = MULTIPLY_ADD(p, square, SET(0.333333202f));
  z = ADD(z, z);
  return ADD(positive, MULTIPLY_ADD(p, MULTIPLY(square, z), z));
}

/* Codes of v; a NaN becomes the least. */
INLINE void NAME(round)(FLOATS v, float step, int zero, uint8_t *codes) {
  v = BOUNDED(DIVIDE(v, SET(step)), zero);
  STORE_CODES(codes, ADD_INTEGERS(TO_INTEGERS(v), SET_INTEGERS(zero)));
}

/* The activation of a whole value, in place, and its codes. */
#define FINISH(name)                                                                                             \
  static TARGET void NAME(finish_##name)(const Step *of, int rows, long stride, float *floats, uint8_t *codes) {   \
    const Step own = *of, *step = &own; /* which no store can change */                                          \
    for (int r = 0; r < rows; r++)                                                                               \
      for (long i = r * stride; i < r * stride + step->outputs; i += LANES) {                                   \
        FLOATS v = NAME(name)(step, LOAD(floats + i));                                                          \
        STORE(floats + i, v);                                                                                    \
        if (step->quantises) NAME(round)(v, step->step, step->zero, codes + i);                                  \
      }                                                                                                          \
  }
ACTIVATIONS(FINISH)

#define ENTRY(name) NAME(finish_##name),
static void (*const NAME(finish)[])(const Step *, int, long, float *, uint8_t *) = {ACTIVATIONS(ENTRY)};

INLINE void NAME(integers)(const int R, const Step *step, int j, const Rows *rows, long row, float *y) {
  const uint8_t *x = rows->codes + row * rows->stride;
  long stride = rows->stride, pitch = rows->pitch;
  int fours = step->inputs / 4;
  const int32_t *bias = (const int32_t *)step->bias + j;
  const int8_t *w = (const int8_t *)step->weights + (long)j * step->inputs, *v = w + (long)LANES * step->inputs;
  INTEGERS a[MAX_ROWS], b[MAX_ROWS];
  for (int r = 0; r < R; r++) a[r] = LOAD_INTEGERS(bias), b[r] = LOAD_INTEGERS(bias + LANES);
  for (int i = 0; i < fours; i++) {
    INTEGERS first = LOAD_INTEGERS(w + (long)i * LANES * 4), second = LOAD_INTEGERS(v + (long)i * LANES * 4);
    for (int r = 0; r < R; r++) {
      int32_t four;
      memcpy(&four, x + r * stride + i * 4, 4);
      INTEGERS these = SET_CODES(four);
      a[r] = PRODUCTS(a[r], these, first);
      b[r] = PRODUCTS(b[r], these, second);
    }
  }
  FLOATS scale = LOAD(step->scale + j), next = LOAD(step->scale + j + LANES);
  for (int r = 0; r < R; r++) {
    STORE(y + r * pitch + j, MULTIPLY(TO_FLOATS(a[r]), scale));
    STORE(y + r * pitch + j + LANES, MULTIPLY(TO_FLOATS(b[r]), next));
  }
}

/* Activations of two bytes: two products with the same weights, joined in floats, as 32 bits may not hold the sum. */
INLINE void NAME(wide)(const int R, const Step *step, int j, const Rows *rows, long row, float *y) {
  const uint8_t *x = rows->codes + row * rows->stride, *x_low = rows->low + row * rows->stride;
  long stride = rows->stride, pitch = rows->pitch;
  int fours = step->inputs / 4;
  const int32_t *bias = (const int32_t *)step->bias + j, *bias_low = bias + step->outputs;
  const float *scale = step->scale + j, *scale_low = scale + step->outputs;
  const int8_t *w = (const int8_t *)step->weights + (long)j * step->inputs, *v = w + (long)LANES * step->inputs;
  INTEGERS a[MAX_ROWS], b[MAX_ROWS], a_low[MAX_ROWS], b_low[MAX_ROWS];
  for (int r = 0; r < R; r++) {
    a[r] = LOAD_INTEGERS(bias), b[r] = LOAD_INTEGERS(bias + LANES);
    a_low[r] = LOAD_INTEGERS(bias_low), b_low[r] = LOAD_INTEGERS(bias_low + LANES);
  }
  for (int i = 0; i < fours; i++) {
    INTEGERS first = LOAD_INTEGERS(w + (long)i * LANES * 4), second = LOAD_INTEGERS(v + (long)i * LANES * 4);
    for (int r = 0; r < R; r++) {
      int32_t four, four_low;
      memcpy(&four, x + r * stride + i * 4, 4);
      memcpy(&four_low, x_low + r * stride + i * 4, 4);
      INTEGERS high = SET_CODES(four), low = SET_CODES(four_low);
      a[r] = PRODUCTS(a[r], high, first);
      b[r] = PRODUCTS(b[r], high, second);
      a_low[r] = PRODUCTS(a_low[r], low, first);
      b_low[r] = PRODUCTS(b_low[r], low, second);
    }
  }
  for (int r = 0; r < R; r++) {
    FLOATS sum = MULTIPLY(TO_FLOATS(a_low[r]), LOAD(scale_low));
    FLOATS next = MULTIPLY(TO_FLOATS(b_low[r]), LOAD(scale_low + LANES));
    STORE(y + r * pitch + j, ADD(MULTIPLY(TO_FLOATS(a[r]), LOAD(scale)), sum));
    STORE(y + r * pitch + j + LANES, ADD(MULTIPLY(TO_FLOATS(b[r]), LOAD(scale + LANES)), next));
  }
}

INLINE void NAME(floats)(const int R, const Step *step, int j, const Rows *rows, long row, float *y) {
  const float *x = rows->floats + row * rows->stride;
  long stride = rows->stride, pitch = rows->pitch;
  const float *bias = (const float *)step->bias + j;
  const float *w = (const float *)step->weights + (long)j * step->inputs, *v = w + (long)LANES * step->inputs;
  FLOATS a[MAX_ROWS], b[MAX_ROWS];
  for (int r = 0; r < R; r++) a[r] = LOAD(bias), b[r] = LOAD(bias + LANES);
  for (int i = 0; i < step->inputs; i++) {
    FLOATS first = LOAD(w + (long)i * LANES), second = LOAD(v + (long)i * LANES);
    for (int r = 0; r < R; r++) {
      FLOATS this = SET(x[r * stride + i]);
      a[r] = MULTIPLY_ADD(this, first, a[r]);
      b[r] = MULTIPLY_ADD(this, second, b[r]);
    }
  }
  for (int r = 0; r < R; r++) {
    STORE(y + r * pitch + j, a[r]);
    STORE(y + r * pitch + j + LANES, b[r]);
  }
}

/* Two vectors of outputs for all rows, so that their weights stay in the cache. */
INLINE void NAME(block)(const int R, const Step *step, int j, const Rows *rows, long row) {
  float *y = rows->made + row * rows->pitch;
  if (step->kind == FLOATS_PRODUCT) NAME(floats)(R, step, j, rows, row, y);
  else if (step->kind == WIDE_PRODUCT) NAME(wide)(R, step, j, rows, row, y);
  else NAME(integers)(R, step, j, rows, row, y);
}

static TARGET void NAME(dense)(const Step *step, int count, const Rows *rows) {
  int most = step->kind == WIDE_PRODUCT ? MAX_ROWS / 2 : MAX_ROWS;
  for (int j = 0; j < step->outputs; j += 2 * LANES)
    for (int row = 0; row < count; row += most) switch (count - row < most ? count - row : most) {
        case 1: NAME(block)(1, step, j, rows, row); break;
        case 2: NAME(block)(2, step, j, rows, row); break;
        case 3: NAME(block)(3, step, j, rows, row); break;
#if MAX_ROWS == 8
        case 4: NAME(block)(4, step, j, rows, row); break;
        case 5: NAME(block)(5, step, j, rows, row); break;
        case 6: NAME(block)(6, step, j, rows, row); break;
        case 7: NAME(block)(7, step, j, rows, row); break;
#endif
        default: NAME(block)(MAX_ROWS, step, j, rows, row);
      }
}

/* A convolution and its codes, image by image: a window is a row of a product. */
static TARGET void NAME(convolve)(const Step *step, int rows, const Chain *chain) {
  int positions = step->window.rows * step->window.columns;
  Step whole = *step;
  whole.outputs *= positions;
  for (long at = 0; at < rows * (long)chain->stride; at += chain->stride) {
    float *made = chain->floats + at + step->to;
    unfold(step, chain->codes + at + step->from, chain->windows);
    Rows windows = {.codes = chain->windows, .stride = step->inputs, .pitch = step->outputs, .made = made};
    NAME(dense)(step, positions, &windows);
    NAME(finish)[step->activation](&whole, 1, chain->stride, made, chain->codes + at + step->to);
  }
}

/* The first count of a vector, others zero. */
INLINE FLOATS NAME(load_part)(const float *x, int count) {
  if (count >= LANES) return LOAD(x);
  float part[LANES] = {0};
  if (count > 0) memcpy(part, x, count * sizeof(float));
  return LOAD(part);
}

INLINE float NAME(total)(FLOATS a, FLOATS b) {
  float parts[LANES], sum = 0;
  STORE(parts, ADD(a, b));
  for (int i = 0; i < LANES; i++) sum += parts[i];
  return sum;
}

/* (x - mean) / sqrt(variance + epsilon) w + b of a row. */
static TARGET void NAME(norm)(const Step *step, const float *x, float *y) {
  int n = step->inputs;
  const float *w = step->weights, *bias = step->bias;
  FLOATS a = SET(0.0f), b = a;
  for (int i = 0; i < n; i += 2 * LANES) {
    a = ADD(a, NAME(load_part)(x + i, n - i));
    b = ADD(b, NAME(load_part)(x + i + LANES, n - i - LANES));
  }
  FLOATS mean = SET(NAME(total)(a, b) / n);
  a = b = SET(0.0f);
  for (int i = 0; i < n; i += 2 * LANES) {
    FLOATS first = SUBTRACT(LOAD(x + i), mean), second = SUBTRACT(LOAD(x + i + LANES), mean);
    STORE(y + i, first);
    STORE(y + i + LANES, second);
    if (i + 2 * LANES > n) {
      first = NAME(load_part)(y + i, n - i);
      second = NAME(load_part)(y + i + LANES, n - i - LANES);
    }
    a = MULTIPLY_ADD(first, first, a);
    b = MULTIPLY_ADD(second, second, b);
  }
  FLOATS factor = DIVIDE(SET(1.0f), SQUARE_ROOT(SET(NAME(total)(a, b) / n + step->epsilon)));
  for (int i = 0; i < n; i += LANES)
    STORE(y + i, MULTIPLY_ADD(MULTIPLY(LOAD(y + i), factor), LOAD(w + i), LOAD(bias + i)));
}

/* Numbers as high and low bytes of at most 128, whose pairs of products with bytes fit 16 bits: v is about
   (128 (high - zero) + low - 64) step. */
static TARGET void NAME(split)(const Step *step, const float *x, uint8_t *high, uint8_t *low) {
  FLOATS coarse = SET(128.0f * step->step), fine = SET(step->step);
  for (int i = 0; i < step->outputs; i += LANES) {
    FLOATS v = MIN(MAX(LOAD(x + i), SET(step->alpha)), SET(step->beta));
    FLOATS whole = TO_FLOATS(TO_INTEGERS(DIVIDE(v, coarse)));
    FLOATS rest = DIVIDE(SUBTRACT(v, MULTIPLY(whole, coarse)), fine);
    STORE_CODES(high + i, ADD_INTEGERS(TO_INTEGERS(whole), SET_INTEGERS(step->zero)));
    STORE_CODES(low + i, ADD_INTEGERS(TO_INTEGERS(rest), SET_INTEGERS(64)));
  }
}

#define COMBINE(operation) \
  for (int i = 0; i < step->outputs; i += LANES) STORE(y + i, operation(LOAD(x + i), LOAD(with + i)))

/* What a step does to each row alone. */
static TARGET void NAME(row)(const Step *step, const float *x, const float *with, const uint8_t *codes, float *y) {
  switch (step->kind) {
    case NORM: NAME(norm)(step, x, y); break;
    case SUM: COMBINE(ADD); break;
    case DIFFERENCE: COMBINE(SUBTRACT); break;
    case PRODUCT: COMBINE(MULTIPLY); break;
    case QUOTIENT: COMBINE(DIVIDE); break;
    case COPY: memcpy(y, x, step->inputs * sizeof(float)); break;
    case CONSTANT: memcpy(y, step->weights, step->inputs * sizeof(float)); break;
    case DECODE:
      for (int i = 0; i < step->outputs; i += LANES) {
        INTEGERS code = ADD_INTEGERS(LOAD_CODES(codes + i), SET_INTEGERS(-step->zero));
        STORE(y + i, MULTIPLY(TO_FLOATS(code), SET(step->step)));
      }
  }
}

/* The arrays are the inputs [rows, columns], observations first, and then the outputs. */
TARGET void NAME(run)(const Chain *chain, int rows, float *const *arrays) {
  const float *x = arrays[0];
  float *floats = chain->floats;
  uint8_t *codes = chain->codes;
  long stride = chain->stride;
  if (chain->channels)
    for (long r = 0; r < rows; r++)
      channels_last((const uint8_t *)x + r * chain->features, chain->features / chain->channels, chain->channels,
                    codes + r * stride);
  else for (int r = 0; r < rows; r++)
    for (int i = 0; i < chain->features; i += LANES) {
      FLOATS v = NAME(load_part)(x + (long)r * chain->features + i, chain->features - i);
      v = MULTIPLY(SUBTRACT(v, LOAD(chain->mean + i)), LOAD(chain->factor + i));
      v = MIN(SET(chain->greatest), MAX(SET(chain->least), v));
      STORE(floats + r * stride + i, v);
      if (chain->quantises) NAME(round)(v, chain->step, chain->zero, codes + r * stride + i);
    }
  for (const Step *step = chain->each; step < chain->each + chain->steps; step++) {
    if (step->kind == CONVOLUTION) {
      NAME(convolve)(step, rows, chain);
      continue;
    }
    if (step->kind <= WIDE_PRODUCT) {
      const uint8_t *read = codes + step->from;
      Rows every = {floats + step->from, read, read + rows * stride, stride, stride, floats + step->to};
      NAME(dense)(step, rows, &every);
    }
    else if (step->kind == SPLIT)
      for (long at = 0; at < rows * stride; at += stride)
        NAME(split)(step, floats + at + step->from, codes + at + step->to, codes + (rows * stride) + at + step->to);
    else if (step->kind == INPUT)
      for (long r = 0; r < rows; r++)
        memcpy(floats + r * stride + step->to, arrays[step->from] + r * step->inputs, step->inputs * sizeof(float));
    else
      for (long at = 0; at < rows * stride; at += stride)
        NAME(row)(step, floats + at + step->from, floats + at + step->with, codes + at + step->from,
                  floats + at + step->to);
    if (step->activation || step->quantises)
      NAME(finish)[step->activation](step, rows, stride, floats + step->to, codes + step->to);
  }
  float *const *to = arrays + chain->inputs;
  for (const Result *made = chain->made; made < chain->made + chain->results; made++, to++)
    for (long r = 0; r < rows; r++)
      memcpy(*to + r * made->columns, floats + r * stride + made->from, made->columns * sizeof(float));
}

/* The greatest magnitude of each row of weights times factors; not finite where one of the row is not. */
TARGET void NAME(magnitudes)(const float *weights, long rows, long columns, const float *factors, float *greatest) {
  for (long r = 0; r < rows; r++, weights += columns) {
    float lanes[LANES], most = 0.0f, odd = 0.0f;
    FLOATS best = SET(0.0f), rest = SET(0.0f);
    for (long i = 0; i < columns; i += LANES) {
      FLOATS x = MULTIPLY(NAME(load_part)(weights + i, columns - i), NAME(load_part)(factors + i, columns - i));
      best = MAX(best, MAX(x, SUBTRACT(SET(0.0f), x)));
      rest = MULTIPLY_ADD(x, SET(0.0f), rest);
    }
    STORE(lanes, best);
    for (int i = 0; i < LANES; i++) most = lanes[i] > most ? lanes[i] : most;
    STORE(lanes, rest);
    for (int i = 0; i < LANES; i++) odd += lanes[i];
    greatest[r] = most + odd;
  }
}

/* Codes of weights times factors at a scale for each row, and what rounding takes from each output at these inputs. */
TARGET void NAME(write_codes)(const float *weights, long rows, long columns, const float *factors, const float *scales,
                              const float *means, int8_t *codes, float *lost) {
  for (long r = 0; r < rows; r++, weights += columns, codes += columns) {
    float lanes[LANES], sum = 0.0f;
    uint8_t made[LANES];
    FLOATS scale = SET(scales[r]), missing = SET(0.0f);
    for (long i = 0; i < columns; i += LANES) {
      long left = columns - i < LANES ? columns - i : LANES;
      FLOATS x = MULTIPLY(NAME(load_part)(weights + i, left), NAME(load_part)(factors + i, left));
      INTEGERS code = TO_INTEGERS(DIVIDE(x, scale));
      FLOATS error = SUBTRACT(x, MULTIPLY(TO_FLOATS(code), scale));
      missing = MULTIPLY_ADD(error, NAME(load_part)(means + i, left), missing);
      STORE_CODES(made, ADD_INTEGERS(code, SET_INTEGERS(128)));
      for (int j = 0; j < left; j++) codes[i + j] = (int8_t)(made[j] ^ 0x80);
    }
    STORE(lanes, missing);
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    lost[r] = sum;
  }
}

#include "tower.h"

#undef INLINE
#undef ACTIVATION
#undef FINISH
#undef ENTRY
#undef COMBINE
#undef TARGET
#undef NAME
#undef PRODUCTS
