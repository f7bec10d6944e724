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
    void *mean = read_array(), *factor = read_array();
    Step *steps = read_array();
    Result *results = read_array();
    float *arrays[8];
    for (int i = 0; i < chain.inputs; i++) arrays[i] = read_array();
    float **made = arrays + chain.inputs;
    for (int i = 0; i < chain.results; i++) made[i] = zeros(sizeof(float) * rows * results[i].columns);
    for (Step *step = steps; step < steps + chain.steps; step++)
      step->weights = read_array(), step->bias = read_array(), step->scale = read_array();
    size_t cells = (size_t)rows * chain.stride;
    chain.mean = mean, chain.factor = factor, chain.each = steps, chain.made = results;
    chain.floats = zeros(sizeof(float) * cells), chain.codes = zeros(2 * cells);
    size_t most = 0;
    for (Step *step = steps; step < steps + chain.steps; step++) {
      size_t windows = (size_t)step->window.rows * step->window.columns * step->inputs;
      most = windows > most ? windows : most;
    }
    chain.windows = zeros(most);
    (dots ? run_dot_products : run_neon)(&chain, rows, arrays);
    for (int i = 0; i < chain.results; i++) fwrite(made[i], sizeof(float), (size_t)rows * results[i].columns, stdout);
    for (Step *step = steps; step < steps + chain.steps; step++)
      free((void *)step->weights), free((void *)step->bias), free((void *)step->scale);
    for (int i = 0; i < chain.inputs + chain.results; i++) free(arrays[i]);
    free(mean), free(factor), free(steps), free(results), free(chain.floats), free(chain.codes), free(chain.windows);
  }
}
