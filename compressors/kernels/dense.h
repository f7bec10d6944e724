/* The kernels for one set of vector instructions; chain.c defines these and includes this once for each. */

#define INLINE static inline __attribute__((always_inline)) TARGET

/* onnxruntime's: a ratio of polynomials on [-9, 9]; a NaN stays one, as the second operand of MIN and MAX does. */
INLINE FLOATS NAME(tanh)(FLOATS x) {
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

/* Codes of v; a NaN becomes the least. */
INLINE void NAME(round)(FLOATS v, float step, int zero, uint8_t *codes) {
  v = MIN(MAX(DIVIDE(v, SET(step)), SET(LEAST(zero))), SET(GREATEST(zero)));
  STORE_CODES(codes, v, zero);
}

INLINE void NAME(finish)(const Layer *layer, FLOATS v, float *floats, uint8_t *codes) {
  if (layer->activation == RELU) v = MAX(SET(0.0f), v);
  if (layer->activation == TANH) v = NAME(tanh)(v);
  if (layer->quantises) NAME(round)(v, layer->step, layer->zero, codes);
  else STORE(floats, v);
}

INLINE void NAME(integers)(const int R, const Layer *layer, int j, const uint8_t *x, long stride, float *floats,
                           uint8_t *codes) {
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
  for (int r = 0; r < R; r++) {
    long to = r * stride + j;
    const float *scale = layer->scale + j;
    NAME(finish)(layer, MULTIPLY(TO_FLOATS(a[r]), LOAD(scale)), floats + to, codes + to);
    NAME(finish)(layer, MULTIPLY(TO_FLOATS(b[r]), LOAD(scale + LANES)), floats + to + LANES, codes + to + LANES);
  }
}

INLINE void NAME(floats)(const int R, const Layer *layer, int j, const float *x, long stride, float *floats,
                         uint8_t *codes) {
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
    long to = r * stride + j;
    NAME(finish)(layer, a[r], floats + to, codes + to);
    NAME(finish)(layer, b[r], floats + to + LANES, codes + to + LANES);
  }
}

/* Two vectors of outputs for all rows, so that their weights stay in the cache. */
INLINE void NAME(block)(const int R, const Layer *layer, int j, long from, const Chain *chain, int now) {
  long at = from * chain->stride;
  float *floats = chain->floats[!now] + at;
  uint8_t *codes = chain->codes[!now] + at;
  if (layer->is_integer) NAME(integers)(R, layer, j, chain->codes[now] + at, chain->stride, floats, codes);
  else NAME(floats)(R, layer, j, chain->floats[now] + at, chain->stride, floats, codes);
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
#undef STORE_CODES
