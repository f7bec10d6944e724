/* Dense layers and their gradients, for what trains them: included by dense.h for each set of vector instructions. */

/* Transposes LANES rows of as many floats, to [LANES, two vectors]. Each round interleaves vectors r and r + LANES / 2,
   which rotates the bits of an element's place, those of its row before those of its column, to the left by one. */
static TARGET void NAME(transpose)(const float *from, long row, float *packed) {
  FLOATS given[LANES], next[LANES];
  for (int r = 0; r < LANES; r++) given[r] = LOAD(from + r * row);
  for (int round = 1; round < LANES; round *= 2) {
    for (int r = 0; r < LANES / 2; r++) {
      next[2 * r] = INTERLEAVE_LOWER(given[r], given[r + LANES / 2]);
      next[2 * r + 1] = INTERLEAVE_UPPER(given[r], given[r + LANES / 2]);
    }
    memcpy(given, next, sizeof(next));
  }
  for (int c = 0; c < LANES; c++) STORE(packed + c * 2 * LANES, given[c]);
}

/* A part of b [k, m], at most two vectors of its columns from j on, as [k, two vectors]; zeros beyond m. */
static TARGET void NAME(pack)(Matrix b, int k, int j, int count, float *packed) {
  if (count < 2 * LANES) memset(packed, 0, sizeof(float) * k * 2 * LANES);
  if (b.column == 1) {
    for (int i = 0; i < k; i++) memcpy(packed + i * 2 * LANES, b.data + i * b.row + j, sizeof(float) * count);
    return;
  }
  int rows = b.row == 1 ? k / LANES * LANES : 0, columns = count / LANES * LANES;
  for (int c = 0; c < columns; c += LANES)
    for (int i = 0; i < rows; i += LANES)
      NAME(transpose)(b.data + i + (j + c) * b.column, b.column, packed + i * 2 * LANES + c);
  for (int c = 0; c < count; c++)
    for (int i = c < columns ? rows : 0; i < k; i++)
      packed[i * 2 * LANES + c] = b.data[i * b.row + (j + c) * b.column];
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
    for (; row + MAX_ROWS / 2 <= n; row += MAX_ROWS / 2, rest.data += MAX_ROWS / 2 * a.row)
      NAME(cell)(MAX_ROWS / 2, k, rest, packed, from, add, count, y + (long)row * m + j, m);
    for (; row < n; row++, rest.data += a.row)
      NAME(cell)(1, k, rest, packed, from, add, count, y + (long)row * m + j, m);
  }
}

/* Values of a tower's layers and heads one behind the other. */
static TARGET void NAME(forward_block)(const Tower *tower, const Block *at, const float *x, float *values) {
  const float *read = x + at->row * tower->each->inputs;
  for (int l = 0; l < tower->layers + tower->heads; l++) {
    const Layer *of = tower->each + l;
    float *made = values + at->row * of->outputs;
    Matrix inputs = {read, of->inputs, 1}, transposed = {of->weight, of->column, of->row};
    NAME(multiply)(at->rows, of->inputs, of->outputs, inputs, transposed, of->bias, 0, made, at->packed);
    if (l < tower->layers) {
      Step whole = {.outputs = at->rows * of->outputs, .alpha = 1.0f};
      NAME(finish)[tower->activation](&whole, 1, 0, made, NULL);
      read = made;
    }
    values += at->room * of->outputs;
  }
}

/* The values of every tower. */
TARGET void NAME(forward)(const Tower *tower, int towers, int rows, const float *x, float *values, float *packed) {
  for (int t = 0; t < towers; values += ROOM(rows) * tower[t++].columns)
    for (Block at = {.room = ROOM(rows), .packed = packed}; at.row < rows; at.row += BLOCK) {
      at.rows = rows - at.row < BLOCK ? rows - at.row : BLOCK;
      NAME(forward_block)(tower + t, &at, x, values);
    }
}

/* From the gradient of an activation's output y to that of its input, in place. */
static TARGET void NAME(derive)(int activation, long count, const float *restrict y, float *restrict gradient) {
  switch (activation) {
    case RELU: for (long i = 0; i < count; i++) gradient[i] = y[i] <= 0.0f ? 0.0f : gradient[i]; break;
    case TANH: for (long i = 0; i < count; i++) gradient[i] *= 1.0f - y[i] * y[i]; break;
    case SIGMOID: for (long i = 0; i < count; i++) gradient[i] *= y[i] * (1.0f - y[i]); break;
    case ELU: for (long i = 0; i < count; i++) gradient[i] *= y[i] > 0.0f ? 1.0f : y[i] + 1.0f;
  }
}

/* From the gradient of a layer's sums [rows, outputs] to those of its weight and bias, each unless NULL; added to what is
   there, or not. */
static TARGET void NAME(of_layer)(const Layer *of, int rows, const float *gradient, const float *inputs, int add,
                                  float *packed) {
  int n = of->inputs, m = of->outputs;
  float *restrict sums = of->of_bias;
  Matrix outputs = {gradient, m, 1}, outputs_t = {gradient, 1, m}, x = {inputs, n, 1}, x_t = {inputs, 1, n};
  if (of->of_weight && of->column == 1) NAME(multiply)(m, rows, n, outputs_t, x, NULL, add, of->of_weight, packed);
  else if (of->of_weight) NAME(multiply)(n, rows, m, x_t, outputs, NULL, add, of->of_weight, packed);
  if (!sums) return;
  if (!add) memset(sums, 0, sizeof(float) * m);
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < m; j++) sums[j] += gradient[(long)r * m + j];
}

static TARGET void NAME(backward_block)(const Tower *tower, const Block *at, const float *x, const float *values,
                                        const float *const *gradients, int trains, float *of_x, int first,
                                        int adds_to_x, float *spare) {
  int rows = at->rows;
  float *gradient = spare, *next = spare + BLOCK * tower->widest, *packed = at->packed;
  for (int l = 0; l < tower->layers; l++) values += at->room * tower->each[l].outputs;
  for (int l = tower->layers + tower->heads - 1; l >= 0; l--) {
    const Layer *of = tower->each + l;
    int is_head = l >= tower->layers, is_last = l == tower->layers + tower->heads - 1;
    const float *from = is_head ? gradients[l - tower->layers] + at->row * of->outputs : gradient;
    long read = l ? tower->each[(is_head ? tower->layers : l) - 1].outputs : 0;
    if (!is_head) {
      values -= at->room * of->outputs;
      NAME(derive)(tower->activation, (long)rows * of->outputs, values + at->row * of->outputs, gradient);
    }
    if (trains) {
      const float *inputs = l ? values + (at->row - at->room) * read : x + at->row * of->inputs;
      NAME(of_layer)(of, rows, from, inputs, at->row > 0, packed);
    }
    Matrix outputs = {from, of->outputs, 1}, weight = {of->weight, of->row, of->column};
    if (is_head) NAME(multiply)(rows, of->outputs, of->inputs, outputs, weight, NULL, !is_last, gradient, packed);
    else if (l) {
      NAME(multiply)(rows, of->outputs, of->inputs, outputs, weight, NULL, 0, next, packed);
      float *swap = gradient;
      gradient = next, next = swap;
    } else if (of_x) {
      int columns = of->inputs - first;
      weight.data += first * of->column;
      NAME(multiply)(rows, of->outputs, columns, outputs, weight, NULL, adds_to_x, of_x + at->row * columns, packed);
    }
  }
}

/* From the gradients of all heads' outputs, each contiguous, to the parameters', if it trains; and to that of the
   columns of x from the first on, unless of_x is NULL. Spare is room for two layers' gradients, the widest's. */
TARGET void NAME(backward)(const Tower *tower, int towers, int rows, const float *x, const float *values, float *packed,
                           const float *const *gradients, int trains, float *of_x, int first, float *spare) {
  for (int t = 0; t < towers; values += ROOM(rows) * tower[t].columns, gradients += tower[t++].heads)
    for (Block at = {.room = ROOM(rows), .packed = packed}; at.row < rows; at.row += BLOCK) {
      at.rows = rows - at.row < BLOCK ? rows - at.row : BLOCK;
      NAME(backward_block)(tower + t, &at, x, values, gradients, trains, of_x, first, t > 0, spare);
    }
}
