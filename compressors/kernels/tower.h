/* Dense layers and their gradients, for what trains them: included by dense.h for each set of vector instructions. */

/* A part of b [k, m], at most two vectors of its columns from j on, as [k, two vectors]; zeros beyond m. */
static TARGET void NAME(pack)(Matrix b, int k, int j, int count, float *packed) {
  if (count < 2 * LANES) memset(packed, 0, sizeof(float) * k * 2 * LANES);
  if (b.column == 1)
    for (int i = 0; i < k; i++) memcpy(packed + i * 2 * LANES, b.data + i * b.row + j, sizeof(float) * count);
  else
    for (int c = 0; c < count; c++)
      for (int i = 0; i < k; i++) packed[i * 2 * LANES + c] = b.data[i * b.row + (j + c) * b.column];
}

/* R rows of y, two vectors wide: what is there, or the start, and a [R, k] by what is packed. */
INLINE void NAME(cell)(const int R, int k, Matrix a, const float *packed, const float *start, int add, int count,
                       float *y, long pitch) {
  FLOATS first[MAX_ROWS], second[MAX_ROWS];
  for (int r = 0; r < R; r++) {
    const float *from = add ? y + r * pitch : start;
    first[r] = from ? NAME(load_part)(from, count) : SET(0.0f);
    second[r] = from ? NAME(load_part)(from + LANES, count - LANES) : SET(0.0f);
  }
  for (int i = 0; i < k; i++) {
    FLOATS u = LOAD(packed + i * 2 * LANES), v = LOAD(packed + i * 2 * LANES + LANES);
    for (int r = 0; r < R; r++) {
      FLOATS x = SET(a.data[r * a.row + i * a.column]);
      first[r] = MULTIPLY_ADD(x, u, first[r]);
      second[r] = MULTIPLY_ADD(x, v, second[r]);
    }
  }
  for (int r = 0; r < R; r++) {
    float part[2 * LANES], *to = count == 2 * LANES ? y + r * pitch : part;
    STORE(to, first[r]);
    STORE(to + LANES, second[r]);
    if (to == part) memcpy(y + r * pitch, part, sizeof(float) * count);
  }
}

/* y [n, m], contiguous, is a [n, k] b [k, m] and the start of each column, if there is one; or that is added to y. */
static TARGET void NAME(multiply)(int n, int k, int m, Matrix a, Matrix b, const float *start, int add, float *y,
                                  float *packed) {
  for (int j = 0; j < m; j += 2 * LANES) {
    int count = m - j < 2 * LANES ? m - j : 2 * LANES, row = 0;
    const float *from = start ? start + j : start;
    Matrix rest = a;
    NAME(pack)(b, k, j, count, packed);
    for (; row + MAX_ROWS <= n; row += MAX_ROWS, rest.data += MAX_ROWS * a.row)
      NAME(cell)(MAX_ROWS, k, rest, packed, from, add, count, y + (long)row * m + j, m);
    for (; row < n; row++, rest.data += a.row)
      NAME(cell)(1, k, rest, packed, from, add, count, y + (long)row * m + j, m);
  }
}

static TARGET void NAME(forward_block)(const Tower *tower, int rows, const float *x, const Range *of, long row,
                                       float *values) {
  const float *read = x;
  for (int l = 0; l < tower->layers + tower->heads; l++) {
    const Layer *layer = tower->each + l;
    float *made = values + row * layer->outputs;
    Matrix inputs = {read, layer->inputs, 1}, transposed = {layer->weight, layer->column, layer->row};
    NAME(multiply)(rows, layer->inputs, layer->outputs, inputs, transposed, layer->bias, 0, made, of->packed);
    if (l < tower->layers) {
      Step whole = {.outputs = rows * layer->outputs, .alpha = 1.0f};
      NAME(finish)[tower->activation](&whole, 1, 0, made, NULL);
      read = made;
    }
    values += of->all * layer->outputs;
  }
}

/* Values of every tower's layers and heads one behind the other, each [all rows, outputs]. All, and the first
   row of a range, are multiples of 16: an activation is of whole vectors, and writes to the rows behind. */
TARGET void NAME(forward)(const Tower *tower, int towers, const Range *of, const float *x, float *values) {
  for (int t = 0; t < towers; values += of->all * tower[t++].columns)
    for (long row = of->from; row < of->to; row += BLOCK) {
      int rows = of->to - row < BLOCK ? of->to - row : BLOCK;
      NAME(forward_block)(tower + t, rows, x + row * tower[t].each->inputs, of, row, values);
    }
}

/* From the gradient of an activation's output y to that of its input, in place. */
static TARGET void NAME(derive)(int activation, long count, const float *restrict y, float *restrict gradient) {
  switch (activation) {
    case RELU: for (long i = 0; i < count; i++) gradient[i] = y[i] > 0.0f ? gradient[i] : 0.0f; break;
    case TANH: for (long i = 0; i < count; i++) gradient[i] *= 1.0f - y[i] * y[i]; break;
    case SIGMOID: for (long i = 0; i < count; i++) gradient[i] *= y[i] * (1.0f - y[i]); break;
    case ELU: for (long i = 0; i < count; i++) gradient[i] *= y[i] > 0.0f ? 1.0f : y[i] + 1.0f;
  }
}

/* From the gradient of a layer's sums [rows, outputs] to those of its weight and bias; added to what is there, or not. */
static TARGET void NAME(of_layer)(const Layer *of, int rows, const float *gradient, const float *inputs, int add,
                                  float *packed) {
  int n = of->inputs, m = of->outputs;
  float *restrict sums = of->of_bias;
  Matrix outputs = {gradient, m, 1}, outputs_t = {gradient, 1, m}, x = {inputs, n, 1}, x_t = {inputs, 1, n};
  if (of->column == 1) NAME(multiply)(m, rows, n, outputs_t, x, NULL, add, of->of_weight, packed);
  else NAME(multiply)(n, rows, m, x_t, outputs, NULL, add, of->of_weight, packed);
  if (!add) memset(sums, 0, sizeof(float) * m);
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < m; j++) sums[j] += gradient[(long)r * m + j];
}

static TARGET void NAME(backward_block)(const Tower *tower, int rows, const float *x, const Range *of, long row,
                                        const float *values, const float *const *gradients, int trains, float *of_x,
                                        int first, int adds_to_x, float *room) {
  int add = row > of->from;
  float *gradient = room, *next = room + BLOCK * tower->widest;
  for (int l = 0; l < tower->layers; l++) values += of->all * tower->each[l].outputs;
  for (int l = tower->layers + tower->heads - 1; l >= 0; l--) {
    const Layer *layer = tower->each + l;
    int is_head = l >= tower->layers, is_last = l == tower->layers + tower->heads - 1;
    const float *from = is_head ? gradients[l - tower->layers] + row * layer->outputs : gradient;
    long read = l ? tower->each[(is_head ? tower->layers : l) - 1].outputs : 0;
    if (!is_head) {
      values -= of->all * layer->outputs;
      NAME(derive)(tower->activation, (long)rows * layer->outputs, values + row * layer->outputs, gradient);
    }
    if (trains) {
      const float *inputs = l ? values + (row - of->all) * read : x;
      NAME(of_layer)(layer, rows, from, inputs, add, of->packed);
    }
    Matrix outputs = {from, layer->outputs, 1}, weight = {layer->weight, layer->row, layer->column};
    if (is_head)
      NAME(multiply)(rows, layer->outputs, layer->inputs, outputs, weight, NULL, !is_last, gradient, of->packed);
    else if (l) {
      NAME(multiply)(rows, layer->outputs, layer->inputs, outputs, weight, NULL, 0, next, of->packed);
      float *swap = gradient;
      gradient = next, next = swap;
    } else if (of_x) {
      weight.data += first * layer->column;
      int columns = layer->inputs - first;
      NAME(multiply)(rows, layer->outputs, columns, outputs, weight, NULL, adds_to_x, of_x + row * columns, of->packed);
    }
  }
}

/* From the gradients of all heads' outputs, each contiguous, to the parameters', if it trains; and to that of the
   columns of x from the first on, unless of_x is NULL. Room is for two layers' gradients, the widest's, of a block. */
TARGET void NAME(backward)(const Tower *tower, int towers, const Range *of, const float *x, const float *values,
                           const float *const *gradients, int trains, float *of_x, int first, float *room) {
  for (int t = 0; t < towers; values += of->all * tower[t].columns, gradients += tower[t++].heads)
    for (long row = of->from; row < of->to; row += BLOCK) {
      int rows = of->to - row < BLOCK ? of->to - row : BLOCK;
      NAME(backward_block)(tower + t, rows, x + row * tower[t].each->inputs, of, row, values, gradients, trains, of_x,
                           first, t > 0, room);
    }
}
