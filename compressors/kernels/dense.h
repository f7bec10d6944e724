/* The kernels for one set of vector instructions; chain.c defines these and includes this once for each. */

#define INLINE static inline __attribute__((always_inline)) TARGET

#define ACTIVATION(name) INLINE FLOATS NAME(name)(const Layer *layer __attribute__((unused)), FLOATS x)

ACTIVATION(none) { return x; }

/* A NaN stays one in all of these, as the second operand of MIN and MAX does. */
ACTIVATION(relu) { return MAX(SET(0.0f), x); }

ACTIVATION(clip) { return MIN(SET(layer->beta), MAX(SET(layer->alpha), x)); }

ACTIVATION(leaky) {
  return MULTIPLY_ADD(SET(layer->alpha), MIN(SET(0.0f), x), MAX(SET(0.0f), x));
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

/* 2^n (e^r - 1), and 2^n, whose sum is e^x: x = n ln 2 + r with |r| <= ln 2 / 2, so the difference to 1 is exact too.
   The polynomial and the two parts of ln 2 are those of Cephes' expf. For x in [-87, 88]; beyond, its ends. */
INLINE FLOATS NAME(exponential)(FLOATS x, FLOATS *power) {
  x = MIN(SET(88.0f), MAX(SET(-87.0f), x));
  INTEGERS n = TO_INTEGERS(MULTIPLY(x, SET(1.44269504088896341f)));
  FLOATS r = MULTIPLY_ADD(TO_FLOATS(n), SET(-0.693359375f), x);
  r = MULTIPLY_ADD(TO_FLOATS(n), SET(2.12194440e-4f), r);
  FLOATS p = SET(1.9875691500e-4f);
  p = MULTIPLY_ADD(p, r, SET(1.3981999507e-3f));
  p = MULTIPLY_ADD(p, r, SET(8.3334519073e-3f));
  p = MULTIPLY_ADD(p, r, SET(4.1665795894e-2f));
  p = MULTIPLY_ADD(p, r, SET(1.6666665459e-1f));
  p = MULTIPLY_ADD(p, r, SET(5.0000001201e-1f));
  *power = POWER_OF_TWO(n);
  return MULTIPLY(*power, MULTIPLY_ADD(p, MULTIPLY(r, r), r));
}

ACTIVATION(sigmoid) {
  FLOATS power, rest = NAME(exponential)(SUBTRACT(SET(0.0f), x), &power);
  return DIVIDE(SET(1.0f), ADD(SET(1.0f), ADD(power, rest)));
}

ACTIVATION(elu) {
  FLOATS power, rest = NAME(exponential)(MIN(SET(0.0f), x), &power);
  return MULTIPLY_ADD(SET(layer->alpha), ADD(rest, SUBTRACT(power, SET(1.0f))), MAX(SET(0.0f), x));
}

/* The product of x and a factor that vanishes far below 0: x is bounded there, so that huge numbers become 0. */
ACTIVATION(silu) {
  return MULTIPLY(MAX(SET(-87.0f), x), NAME(sigmoid)(layer, x));
}

ACTIVATION(gelu_tanh) {
  x = MAX(SET(-9.0f), x);
  FLOATS cubic = MULTIPLY_ADD(MULTIPLY(x, x), MULTIPLY(x, SET(0.044715f)), x);
  return MULTIPLY(x, NAME(sigmoid)(layer, MULTIPLY(cubic, SET(1.59576912160573f))));
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
  FLOATS t = ADD(power, rest), z = DIVIDE(t, ADD(SET(2.0f), t)), square = MULTIPLY(z, z);
  FLOATS p = SET(0.134257490f);
  p = MULTIPLY_ADD(p, square, SET(0.141183099f));
  p = MULTIPLY_ADD(p, square, SET(0.200037803f));
  p = MULTIPLY_ADD(p, square, SET(0.333333202f));
  z = ADD(z, z);
  return ADD(positive, MULTIPLY_ADD(p, MULTIPLY(square, z), z));
}

/* Codes of v; a NaN becomes the least. */
INLINE void NAME(round)(FLOATS v, float step, int zero, uint8_t *codes) {
  v = MIN(MAX(DIVIDE(v, SET(step)), SET(LEAST(zero))), SET(GREATEST(zero)));
  STORE_CODES(codes, v, zero);
}

/* Of all sums of a layer, in place or as codes. */
#define FINISH(name)                                                                                             \
  static TARGET void NAME(finish_##name)(const Layer *layer, int rows, long stride, float *floats, uint8_t *codes) { \
    for (int r = 0; r < rows; r++)                                                                               \
      for (long i = r * stride; i < r * stride + layer->outputs; i += LANES) {                                   \
        FLOATS v = NAME(name)(layer, LOAD(floats + i));                                                          \
        if (layer->quantises) NAME(round)(v, layer->step, layer->zero, codes + i);                               \
        else STORE(floats + i, v);                                                                               \
      }                                                                                                          \
  }
ACTIVATIONS(FINISH)

#define ENTRY(name) NAME(finish_##name),
static void (*const NAME(finish)[])(const Layer *, int, long, float *, uint8_t *) = {ACTIVATIONS(ENTRY)};

INLINE void NAME(integers)(const int R, const Layer *layer, int j, const uint8_t *x, long stride, float *y) {
  int fours = layer->inputs / 4;
  const int32_t *bias = (const int32_t *)layer->bias + j;
  const int8_t *w = (const int8_t *)layer->weights + (long)j * layer->inputs, *v = w + (long)LANES * layer->inputs;
  INTEGERS a[MAX_ROWS], b[MAX_ROWS];
  for (int r = 0; r < R; r++) a[r] = LOAD_INTEGERS(bias), b[r] = LOAD_INTEGERS(bias + LANES);
  for (int i = 0; i < fours; i++) {
    INTEGERS first = LOAD_INTEGERS(w + (long)i * LANES * 4), second = LOAD_INTEGERS(v + (long)i * LANES * 4);
    for (int r = 0; r < R; r++) {
      int32_t four;
      memcpy(&four, x + r * stride + i * 4, 4);
      INTEGERS these = SET_INTEGERS(four);
      a[r] = PRODUCTS(a[r], these, first);
      b[r] = PRODUCTS(b[r], these, second);
    }
  }
  FLOATS scale = LOAD(layer->scale + j), next = LOAD(layer->scale + j + LANES);
  for (int r = 0; r < R; r++) {
    STORE(y + r * stride + j, MULTIPLY(TO_FLOATS(a[r]), scale));
    STORE(y + r * stride + j + LANES, MULTIPLY(TO_FLOATS(b[r]), next));
  }
}

INLINE void NAME(floats)(const int R, const Layer *layer, int j, const float *x, long stride, float *y) {
  const float *bias = (const float *)layer->bias + j;
  const float *w = (const float *)layer->weights + (long)j * layer->inputs, *v = w + (long)LANES * layer->inputs;
  FLOATS a[MAX_ROWS], b[MAX_ROWS];
  for (int r = 0; r < R; r++) a[r] = LOAD(bias), b[r] = LOAD(bias + LANES);
  for (int i = 0; i < layer->inputs; i++) {
    FLOATS first = LOAD(w + (long)i * LANES), second = LOAD(v + (long)i * LANES);
    for (int r = 0; r < R; r++) {
      FLOATS this = SET(x[r * stride + i]);
      a[r] = MULTIPLY_ADD(this, first, a[r]);
      b[r] = MULTIPLY_ADD(this, second, b[r]);
    }
  }
  for (int r = 0; r < R; r++) {
    STORE(y + r * stride + j, a[r]);
    STORE(y + r * stride + j + LANES, b[r]);
  }
}

/* Two vectors of outputs for all rows, so that their weights stay in the cache. */
INLINE void NAME(block)(const int R, const Layer *layer, int j, long from, const Chain *chain, int now) {
  long at = from * chain->stride;
  float *y = chain->floats[!now] + at;
  if (layer->is_integer) NAME(integers)(R, layer, j, chain->codes[now] + at, chain->stride, y);
  else NAME(floats)(R, layer, j, chain->floats[now] + at, chain->stride, y);
}

static TARGET void NAME(dense)(const Layer *layer, int rows, const Chain *chain, int now) {
  for (int j = 0; j < layer->outputs; j += 2 * LANES)
    for (int from = 0; from < rows; from += MAX_ROWS) switch (rows - from) {
        case 1: NAME(block)(1, layer, j, from, chain, now); break;
        case 2: NAME(block)(2, layer, j, from, chain, now); break;
        case 3: NAME(block)(3, layer, j, from, chain, now); break;
#if MAX_ROWS == 8
        case 4: NAME(block)(4, layer, j, from, chain, now); break;
        case 5: NAME(block)(5, layer, j, from, chain, now); break;
        case 6: NAME(block)(6, layer, j, from, chain, now); break;
        case 7: NAME(block)(7, layer, j, from, chain, now); break;
#endif
        default: NAME(block)(MAX_ROWS, layer, j, from, chain, now);
      }
  if (layer->activation || layer->quantises)
    NAME(finish)[layer->activation](layer, rows, chain->stride, chain->floats[!now], chain->codes[!now]);
}

TARGET void NAME(run)(const Chain *chain, int rows, const float *x, float *y) {
  int now = 0;
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < chain->features; i += LANES) {
      long at = (long)r * chain->stride + i;
      float row[LANES] = {0};
      int count = chain->features - i < LANES ? chain->features - i : LANES;
      memcpy(row, x + (long)r * chain->features + i, count * sizeof(float));
      FLOATS v = MULTIPLY(SUBTRACT(LOAD(row), LOAD(chain->mean + i)), LOAD(chain->factor + i));
      v = MIN(SET(chain->greatest), MAX(SET(chain->least), v));
      STORE(chain->floats[0] + at, v);
      if (chain->layer->is_integer) NAME(round)(v, chain->step, chain->zero, chain->codes[0] + at);
    }
  for (int i = 0; i < chain->layers; i++, now = !now) NAME(dense)(chain->layer + i, rows, chain, now);
  for (int r = 0; r < rows; r++)
    memcpy(y + (long)r * chain->outputs, chain->floats[now] + (long)r * chain->stride, chain->outputs * sizeof(float));
}

#undef INLINE
#undef ACTIVATION
#undef FINISH
#undef ENTRY
#undef TARGET
#undef NAME
#undef LANES
#undef MAX_ROWS
#undef FLOATS
#undef INTEGERS
#undef LOAD
#undef STORE
#undef SET
#undef ADD
#undef SUBTRACT
#undef MULTIPLY
#undef DIVIDE
#undef MULTIPLY_ADD
#undef MIN
#undef MAX
#undef LOAD_INTEGERS
#undef SET_INTEGERS
#undef PRODUCTS
#undef TO_FLOATS
#undef TO_INTEGERS
#undef POWER_OF_TWO
#undef STORE_CODES
