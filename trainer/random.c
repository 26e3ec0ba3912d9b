/* random.c: Philox4x32-10 words, and Keras's initialisers drawn from them.
 *
 * The key is the 64-bit seed with the use in its top byte, so that uses never share numbers for
 * seeds below 2^56. The counter is (index, stream). Every element of a tensor has a counter of its
 * own: any part of a tensor can be filled anywhere, in any order, with the same bits.
 */
#include "trainer/random.h"

#include <math.h>

#include "base/err.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#pragma GCC diagnostic ignored "-Wunused-function"
#include <Random123/philox.h>
#pragma GCC diagnostic pop

#define USE_SHIFT 56

void random_words(uint64_t seed, enum random_use use, uint64_t stream, uint64_t index,
                  uint32_t out[4])
{
    uint64_t key = seed ^ (uint64_t)use << USE_SHIFT;
    philox4x32_key_t k = {{(uint32_t)key, (uint32_t)(key >> 32)}};
    philox4x32_ctr_t c = {
        {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
    philox4x32_ctr_t r = philox4x32(c, k);
    for (int i = 0; i < 4; i++)
        out[i] = r.v[i];
}

float random_unit(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

/* Two independent standard normal numbers of two words (Box and Muller). The first uniform lies in
 * (0, 1], so that its logarithm is finite. */
static void normal_pair(uint32_t a, uint32_t b, double out[2])
{
    double radius = sqrt(-2.0 * log(((double)a + 1.0) * 0x1p-32));
    double angle = 2.0 * M_PI * ((double)b * 0x1p-32);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

/* A standard normal number cut at two deviations: the first of four candidates per counter that
 * lies within. Four in a row miss once in 230,000 elements; the next try counts in the index's top
 * 16 bits, where no element number reaches. */
static double truncated_normal(uint64_t seed, uint64_t tensor_number, uint64_t element)
{
    for (uint64_t attempt = 0;; attempt++) {
        uint32_t words[4];
        random_words(seed, RANDOM_INIT, tensor_number, element + (attempt << 48), words);
        double candidates[4];
        normal_pair(words[0], words[1], candidates);
        normal_pair(words[2], words[3], candidates + 2);
        for (int i = 0; i < 4; i++) {
            if (fabs(candidates[i]) <= 2.0)
                return candidates[i];
        }
    }
}

enum distribution { CONSTANT, UNIFORM, NORMAL, TRUNCATED_NORMAL };

/* What to draw: `scale` is the constant, the uniform's limit or the normal's deviation. */
struct draw {
    enum distribution distribution;
    double scale;
};

/* A normal cut at two deviations has this deviation; Keras divides by it. */
#define TRUNCATED_DEVIATION 0.87962566103423978

/* Keras's VarianceScaling: variance 1 / fan; a uniform's limit is sqrt(3 * variance). */
static struct draw scaled(enum distribution distribution, double numerator, double fan)
{
    double variance = numerator / fmax(1.0, fan);
    if (distribution == UNIFORM)
        return (struct draw){UNIFORM, sqrt(3.0 * variance)};
    return (struct draw){TRUNCATED_NORMAL, sqrt(variance) / TRUNCATED_DEVIATION};
}

static struct draw draw_of(const struct tensor_spec *t)
{
    double in = (double)t->fan_in;
    double mean = (in + (double)t->fan_out) / 2.0;
    switch (t->init) {
    case INIT_GLOROT_UNIFORM: return scaled(UNIFORM, 1.0, mean);
    case INIT_GLOROT_NORMAL: return scaled(TRUNCATED_NORMAL, 1.0, mean);
    case INIT_HE_UNIFORM: return scaled(UNIFORM, 2.0, in);
    case INIT_HE_NORMAL: return scaled(TRUNCATED_NORMAL, 2.0, in);
    case INIT_LECUN_UNIFORM: return scaled(UNIFORM, 1.0, in);
    case INIT_LECUN_NORMAL: return scaled(TRUNCATED_NORMAL, 1.0, in);
    case INIT_RANDOM_UNIFORM: return (struct draw){UNIFORM, 0.05};
    case INIT_RANDOM_NORMAL: return (struct draw){NORMAL, 0.05};
    case INIT_ZEROS: return (struct draw){CONSTANT, 0.0};
    case INIT_ONES: return (struct draw){CONSTANT, 1.0};
    case INITIALIZER__MAX: break;
    }
    BUG("initializer %d of tensor %s", (int)t->init, t->name);
}

static double draw_element(struct draw d, uint64_t seed, uint64_t tensor_number, uint64_t element)
{
    uint32_t words[4];
    double pair[2];
    switch (d.distribution) {
    case CONSTANT: return d.scale;
    case UNIFORM:
        random_words(seed, RANDOM_INIT, tensor_number, element, words);
        return (2.0 * (double)random_unit(words[0]) - 1.0) * d.scale;
    case NORMAL:
        random_words(seed, RANDOM_INIT, tensor_number, element, words);
        normal_pair(words[0], words[1], pair);
        return pair[0] * d.scale;
    case TRUNCATED_NORMAL: return truncated_normal(seed, tensor_number, element) * d.scale;
    }
    BUG("distribution %d", (int)d.distribution);
}

void random_initialize(const struct tensor_spec *t, uint64_t seed, uint64_t tensor_number, float *w)
{
    struct draw d = draw_of(t);
    int64_t n = shape_elements(&t->shape);
    for (int64_t i = 0; i < n; i++)
        w[i] = (float)draw_element(d, seed, tensor_number, (uint64_t)i);
}
