/* Runs chains that the standard input describes, for an emulator: see emulated.py. Its argument names the kernels. */

#include "chain.c"

#include <stdio.h>
#include <stdlib.h>

static size_t read_all(void *to, size_t size) {
  return size == 0 || fread(to, size, 1, stdin) == 1 ? size : (exit(0), 0);
}

static void *zeros(size_t size) {
  size_t whole = (size + 63) / 64 * 64;
  void *made = aligned_alloc(64, whole + 64);
  return memset(made, 0, whole);
}

/* An array behind its size in bytes; none for size 0. */
static void *read_array(void) {
  int64_t size;
  read_all(&size, sizeof size);
  void *made = size ? zeros(size) : NULL;
  read_all(made, size);
  return made;
}

int main(int count, char **arguments) {
  int32_t rows, which = runs_here();
  int dots = count > 1 && !strcmp(arguments[1], "dot_products");
  fwrite(&which, sizeof which, 1, stdout);
  for (;;) {
    Chain chain;
    fflush(stdout);
    read_all(&rows, sizeof rows);
    read_all(&chain, sizeof chain);
    void *mean = read_array(), *factor = read_array(), *x = read_array();
    Step *steps = read_array();
    for (Step *step = steps; step < steps + chain.steps; step++)
      step->weights = read_array(), step->bias = read_array(), step->scale = read_array();
    size_t cells = (size_t)rows * chain.stride;
    float *y = zeros(sizeof(float) * rows * chain.outputs);
    chain.mean = mean, chain.factor = factor, chain.each = steps;
    chain.floats = zeros(sizeof(float) * cells), chain.codes = zeros(2 * cells);
    (dots ? run_dot_products : run_neon)(&chain, rows, x, y);
    fwrite(y, sizeof(float), (size_t)rows * chain.outputs, stdout);
    for (Step *step = steps; step < steps + chain.steps; step++)
      free((void *)step->weights), free((void *)step->bias), free((void *)step->scale);
    free(mean), free(factor), free(x), free(steps), free(y), free(chain.floats), free(chain.codes);
  }
}
