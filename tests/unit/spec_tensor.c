/* spec_tensor.c: how layers are split over tensor ranks: a letter a layer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/mem.h"
#include "spec/tensor.h"

/* w whole, c columns, r rows, v vocabulary, h channels; "+" where the output is gathered. */
static const struct {
    const char *input, *layers, *want;
    int fused;
} cuts[] = {
    {"[8]", "D D S", "c r c+", 1},
    {"[8]", "D S", "c r", 1},
    {"[8]", "S", "c+", 1},
    {"[8]", "S", "w", 0},
    {"[8]", "D S", "c r", 0},
    {"[8]", "D D", "c r", 0},
    {"[8]", "D D D", "c r c+", 0},
    {"[8]", "D d a D", "c h h r", 0},
    {"[8]", "D N D", "c+ w c+", 0},
    {"[8]", "D B D", "c h r", 0},
    {"[8]", "D B", "c+ w", 0},
    {"[8]", "D B N", "c+ w w", 0},
    {"[8]", "R D D", "w c r", 0},
    {"[8]", "D M A D", "c+ c+ w c+", 0},
    {"[8]", "D s", "c+ w", 1},
    {"[8, 8, 1]", "C P C F D", "c h+ c+ w c+", 0},
    {"[8, 8, 1]", "C B P G D", "c h h h r", 0},
    {"[4]", "E D F D", "v c+ w c+", 0},
};

static const char *layer_of(char c)
{
    switch (c) {
    case 'D': return "{\"type\": \"dense\", \"units\": 8, \"activation\": \"relu\"}";
    case 'M': return "{\"type\": \"dense\", \"units\": 8}";
    case 'S': return "{\"type\": \"dense\", \"units\": 5, \"activation\": \"softmax\"}";
    case 'd': return "{\"type\": \"dropout\", \"rate\": 0.5}";
    case 'a': return "{\"type\": \"activation\", \"activation\": \"gelu\"}";
    case 's': return "{\"type\": \"activation\", \"activation\": \"softmax\"}";
    case 'N': return "{\"type\": \"layer_normalization\"}";
    case 'B': return "{\"type\": \"batch_normalization\"}";
    case 'R': return "{\"type\": \"rescaling\", \"scale\": 2}";
    case 'A': return "{\"type\": \"add\", \"back\": 2}";
    case 'C': return "{\"type\": \"conv2d\", \"filters\": 6, \"kernel_size\": 3}";
    case 'P': return "{\"type\": \"max_pooling2d\"}";
    case 'G': return "{\"type\": \"global_average_pooling2d\"}";
    case 'F': return "{\"type\": \"flatten\"}";
    case 'E': return "{\"type\": \"embedding\", \"input_dim\": 7, \"output_dim\": 8}";
    default: fail(); return NULL;
    }
}

static struct model model_of(const char *input, const char *layers)
{
    struct faults f = {0};
    struct model m;
    json_auto_t *doc = json_object();
    json_t *list = json_array();
    json_object_set_new(doc, "input", json_loads(input, 0, NULL));
    for (const char *c = layers; *c; c++)
        if (*c != ' ')
            json_array_append_new(list, json_loads(layer_of(*c), 0, NULL));
    json_object_set_new(doc, "layers", list);
    int r = model_parse(doc, "/model", &m, &f);
    for (size_t i = 0; i < f.count; i++)
        print_error("%s: %s\n", f.items[i].pointer, f.items[i].message);
    assert_int_equal(r, 0);
    faults_done(&f);
    return m;
}

static void letters(const struct tensor_cut *cut, int n, char *out)
{
    for (int i = 0; i < n; i++) {
        *out++ = "wcrvh"[cut[i].split];
        if (cut[i].gather)
            *out++ = '+';
        *out++ = i + 1 < n ? ' ' : '\0';
    }
}

static void test_cuts(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
        struct tensor_cut cut[16];
        char have[64];
        struct model m = model_of(cuts[i].input, cuts[i].layers);
        tensor_cuts(&m, 0, m.layer_count, 2, cuts[i].fused, cut);
        letters(cut, m.layer_count, have);
        print_message("%s: %s\n", cuts[i].layers, have);
        assert_string_equal(have, cuts[i].want);
        for (int l = 0; l < m.layer_count; l++) {
            assert_int_equal(cut[l].why != NULL, cut[l].split == TENSOR_WHOLE);
            assert_false(cut[l].gather && cut[l].output_split);
            if (l > 0)
                assert_int_equal(cut[l].input_split, cut[l - 1].output_split);
        }
        tensor_cuts(&m, 0, m.layer_count, 1, cuts[i].fused, cut);
        for (int l = 0; l < m.layer_count; l++)
            assert_true(cut[l].split == TENSOR_WHOLE && !cut[l].gather);
        model_done(&m);
    }
}

/* Every element is in one part, and all parts are of one length. */
static void test_parts(void **state)
{
    (void)state;
    for (int64_t size = 1; size < 40; size++)
        for (int ranks = 1; ranks < 12; ranks++) {
            int64_t next = 0;
            for (int r = 0; r < ranks; r++) {
                int64_t begin, end, each = tensor_part(size, ranks, r, &begin, &end);
                assert_int_equal(begin, next);
                assert_true(begin <= end && end - begin <= each && each * ranks >= size);
                next = end;
            }
            assert_int_equal(next, size);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
