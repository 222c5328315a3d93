/* Compares the model with what it should compute.

   check                            the weights in this program with vectors.bin
   check --time                     how long an image takes
   check WEIGHTS VECTORS [...]      files, in pairs; a line for each

   Vectors are five uint32: number, channels, height, width, classes; then the images and their logits. */
#include "model.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 101 };
static const float TOLERANCE = 1e-4f;

static void *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    unsigned char *content = NULL;
    *bytes = 0;
    while (file && !ferror(file) && !feof(file)) {
        unsigned char *more = realloc(content, *bytes + (1 << 20));
        if (!more)
            break;
        content = more;
        *bytes += fread(content + *bytes, 1, 1 << 20, file);
    }
    if (file)
        fclose(file);
    return content;
}

/* Return what is wrong with the logits, or NULL. `worst` is the largest difference over the largest logit. */
static const char *compare(const model *net, const unsigned char *vectors, size_t bytes, float *worst)
{
    const model_shape s = model_shape_of(net);
    uint32_t h[5];
    if (!vectors || bytes < sizeof h)
        return "there are no vectors";
    memcpy(h, vectors, sizeof h);
    if ((int)h[1] != s.channels || (int)h[2] != s.height || (int)h[3] != s.width || (int)h[4] != s.classes)
        return "the vectors are of another shape";
    const size_t count = h[0], size = (size_t)s.channels * (size_t)s.height * (size_t)s.width, classes = (size_t)s.classes;
    if (bytes != sizeof h + count * (size + classes) * sizeof(float))
        return "the vectors have another size";
    const float *images = (const float *)(const void *)(vectors + sizeof h), *expected = images + count * size;
    float *logits = malloc((count * classes + 1) * sizeof(float)), largest = 0, difference = 0;
    model_state *state = model_start(net, 2);
    const char *why = !logits || !state ? "there is no memory" : NULL;
    if (!why) {
        model_run(state, images, count, logits);
        for (size_t i = 0; i < count * classes; i++) {
            largest = fabsf(expected[i]) > largest ? fabsf(expected[i]) : largest;
            const float apart = fabsf(logits[i] - expected[i]);
            difference = apart > difference || apart != apart ? apart : difference;
        }
        *worst = difference == 0 ? 0 : difference / largest;
        why = *worst <= TOLERANCE ? NULL : "the logits differ";
    }
    model_stop(state);
    free(logits);
    return why;
}

static int check(const char *name, const void *weights, size_t bytes, const char *path)
{
    size_t length;
    const char *why = NULL;
    float worst = 0;
    unsigned char *vectors = read_file(path, &length);
    model *net = model_open(weights, bytes, &why);
    if (net)
        why = compare(net, vectors, length, &worst);
    printf("%s: %s", name, why ? why : "right");
    printf(net ? ", largest difference %.2g of the largest logit\n" : "\n", (double)worst);
    model_close(net);
    free(vectors);
    return why != NULL;
}

static int earlier(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(void)
{
    const char *why;
    model *net = model_open(model_weights, model_weights_bytes, &why);
    model_state *state = net ? model_start(net, 1) : NULL;
    const model_shape s = net ? model_shape_of(net) : (model_shape){0};
    float *image = calloc((size_t)s.channels * (size_t)s.height * (size_t)s.width + 1, sizeof(float));
    float *logits = calloc((size_t)s.classes + 1, sizeof(float));
    double times[RUNS];
    const int ready = state && image && logits;
    for (int i = -10; ready && i < RUNS; i++) {
        struct timespec start, end;
        timespec_get(&start, TIME_UTC);
        model_run(state, image, 1, logits);
        timespec_get(&end, TIME_UTC);
        times[i < 0 ? 0 : i] = 1e3 * (double)(end.tv_sec - start.tv_sec) + 1e-6 * (double)(end.tv_nsec - start.tv_nsec);
    }
    if (ready) {
        qsort(times, RUNS, sizeof *times, earlier);
        printf("%.4f ms an image (median of %d; the fastest %.4f)\n", times[RUNS / 2], RUNS, times[0]);
    } else {
        printf("%s\n", net ? "there is no memory" : why);
    }
    free(image), free(logits), model_stop(state), model_close(net);
    return !ready;
}

int main(int count, char **arguments)
{
    if (count == 2 && !strcmp(arguments[1], "--time"))
        return measure();
    if (count == 1)
        return check("model", model_weights, model_weights_bytes, "vectors.bin");
    int wrong = 0;
    for (int i = 1; i + 1 < count; i += 2) {
        size_t bytes;
        void *weights = read_file(arguments[i], &bytes);
        void *exact = malloc(bytes ? bytes : 1); /* so that a sanitizer sees where they end */
        if (exact && weights)
            memcpy(exact, weights, bytes);
        wrong |= check(arguments[i], exact, bytes, arguments[i + 1]);
        free(weights), free(exact);
    }
    return wrong;
}
