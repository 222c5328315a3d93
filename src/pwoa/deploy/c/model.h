/* A pruned network in plain C11. See model.c for how it computes, and artefact.json for what it is.

   Use:  const char *why;
         model *net = model_open(model_weights, model_weights_bytes, &why);
         model_state *state = model_start(net, 1);
         model_run(state, images, count, logits);
         model_stop(state); model_close(net);

   A model is never written to after model_open, so that any number of threads may share it. A state belongs to one
   thread at a time: start one for each. Memory is allocated by model_open and model_start alone. */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct model model;
typedef struct model_state model_state;

/* What goes in and comes out: images of channels x height x width, one logit a class. bytes: what a state allocates. */
typedef struct {
    int channels, height, width, classes;
    size_t bytes;
} model_shape;

/* Open the weights, which are used where they are: keep them until model_close. They must be aligned to 4 bytes.
   Returns NULL and says why if they are damaged, or if there is no memory. */
model *model_open(const void *weights, size_t bytes, const char **why);

model_shape model_shape_of(const model *net);

/* Allocate what a caller needs to run the model, with so many threads (1 where it is built without MODEL_THREADS).
   Returns NULL if there is no memory or no thread. */
model_state *model_start(const model *net, int threads);

/* Compute the logits of images in [0, 1], each channels x height x width floats, one image after the other. */
void model_run(model_state *state, const float *images, size_t count, float *logits);

void model_stop(model_state *state);
void model_close(model *net);

/* The weights of weights.bin, where weights.S is linked in. */
extern const unsigned char model_weights[];
extern const size_t model_weights_bytes;

#ifdef __cplusplus
}
#endif
#endif
