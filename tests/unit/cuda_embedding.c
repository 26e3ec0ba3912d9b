/* Embeddings on the GPU have the CPU's bits, gradients too: rows are added in the order of the ids,
 * however many there are and however often one comes. */
#include "cuda_slopes.h"

struct embedding {
    int64_t count, cols, first, rows;
    float beta;
    int ids, table, y, dy, d_table;
};

static void gather(struct parity_side *s, const void *args)
{
    const struct embedding *v = args;
    s->ops->gather(v->count, v->cols, v->first, v->rows, parity_at(s, v->ids),
                   parity_at(s, v->table), parity_at(s, v->y));
}

static void scatter_add(struct parity_side *s, const void *args)
{
    const struct embedding *v = args;
    s->ops->scatter_add(v->count, v->cols, v->first, v->rows, parity_at(s, v->ids),
                        parity_at(s, v->dy), v->beta, parity_at(s, v->d_table));
}

/* Which of the ids are how frequent. */
enum frequency { UNIFORM, SKEWED, ONE };

/* Ids around [first, first + rows), some of them not in it, or no ids at all. */
static int add_ids(struct parity *p, const struct embedding *v, enum frequency f)
{
    CLEANUP(mem_freep) float *ids = mem_alloc((size_t)(v->count + 1) * sizeof *ids);
    for (int64_t i = 0; i < v->count; i++) {
        float u = parity_next(p) * 0.5f + 0.5f;
        u = f == SKEWED ? u * u * u * u : f == ONE ? 0.5f : u;
        ids[i] = (float)(v->first + (int64_t)(u * ((float)v->rows + 2.0f)) - 1);
        if (f != ONE && i % 37 == 36)
            ids[i] = i % 2 ? NAN : -1e30f;
    }
    return parity_given(p, sizeof *ids, v->count, ids);
}

static void begin(struct parity *p, const char *verb, const struct embedding *v, enum frequency f,
                  int offset)
{
    parity_begin(p, verb, "%lld ids of %lld x %lld from %lld, kind %d, offset %d",
                 (long long)v->count, (long long)v->rows, (long long)v->cols, (long long)v->first,
                 (int)f, offset);
    p->offset = offset;
}

static void check_gather(struct embedding v, int offset)
{
    struct parity p;
    begin(&p, "gather", &v, UNIFORM, offset);
    v.ids = add_ids(&p, &v, UNIFORM);
    v.table = parity_floats(&p, v.rows * v.cols, 1, PARITY_ODD);
    v.y = parity_out(&p, sizeof(float), v.count * v.cols);
    parity_run(&p, gather, &v);
    parity_same(&p, v.y);
    parity_end(&p);
}

static void check_scatter(struct embedding v, enum frequency f, float beta, int offset)
{
    struct parity p;
    begin(&p, beta == 0.0f ? "scatter_add" : "scatter_add to others", &v, f, offset);
    v.beta = beta;
    v.ids = add_ids(&p, &v, f);
    v.dy = parity_floats(&p, v.count * v.cols, 1, PARITY_ODD);
    v.d_table = beta == 0.0f ? parity_out(&p, sizeof(float), v.rows * v.cols)
                             : parity_floats_as(&p, PARITY_INOUT, v.rows * v.cols, 1, PARITY_ODD);
    parity_run(&p, scatter_add, &v);
    parity_same(&p, v.d_table);
    parity_end(&p);
}

static void rows_have_the_same_bits(void **state)
{
    (void)state;
    static const struct embedding shapes[] = {
        {.count = 0, .cols = 3, .rows = 5},
        {.count = 1, .cols = 1, .rows = 1},
        {.count = 31, .cols = 4, .rows = 255},
        {.count = 333, .cols = 5, .first = 7, .rows = 256},
        {.count = 1021, .cols = 17, .rows = 11},
        {.count = 257, .cols = 260, .rows = 300},
        {.count = 129, .cols = 1, .rows = 70001},
        {.count = 65, .cols = 128, .rows = 1},
        {.count = 5, .cols = 3, .rows = 0},
        {.count = 4099, .cols = 3, .rows = 1000},
    };
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (int offset = 0; offset < 2; offset++) {
            check_gather(shapes[i], offset);
            for (int f = UNIFORM; f <= ONE; f++) {
                check_scatter(shapes[i], (enum frequency)f, 0.0f, offset);
                check_scatter(shapes[i], (enum frequency)f, 1.0f, offset);
            }
        }
}

/* More ids than are sorted at a time. */
static void many_ids_are_added_in_order(void **state)
{
    (void)state;
    struct embedding v = {.count = (1 << 18) + 1000, .cols = 1, .rows = 200};
    check_scatter(v, SKEWED, 0.0f, 0);
}

/* ---- slopes ---- */

struct slopes {
    float *ids, *table, *y;
    const float *w;
};

enum { COUNT = 23, WORDS = 7, WIDTH = 5 };

static double value(const void *context)
{
    const struct slopes *s = context;
    ops_cuda.gather(COUNT, WIDTH, 0, WORDS, s->ids, s->table, s->y);
    return slopes_value(COUNT * WIDTH, s->y, s->w);
}

static void gradients_are_slopes(void **state)
{
    (void)state;
    float ids[COUNT];
    CLEANUP(mem_freep) float *table = slopes_random(WORDS * WIDTH, 1);
    CLEANUP(mem_freep) float *w = slopes_random(COUNT * WIDTH, 2);
    for (int i = 0; i < COUNT; i++)
        ids[i] = (float)(i * i % (WORDS + 1));
    struct slopes s = {.w = w};
    s.ids = slopes_upload(COUNT, ids);
    s.table = slopes_upload(WORDS * WIDTH, table);
    s.y = slopes_upload(COUNT * WIDTH, NULL);
    float *dy = slopes_upload(COUNT * WIDTH, w), *d_table = slopes_upload(WORDS * WIDTH, NULL);
    ops_cuda.scatter_add(COUNT, WIDTH, 0, WORDS, s.ids, dy, 0.0f, d_table);
    slopes_check("table", WORDS * WIDTH, s.table, d_table, 0.5f, 1e-4, value, &s);
    ops_cuda.release(s.ids);
    ops_cuda.release(s.table);
    ops_cuda.release(s.y);
    ops_cuda.release(dy);
    ops_cuda.release(d_table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_same_bits),
        cmocka_unit_test(many_ids_are_added_in_order),
        cmocka_unit_test(gradients_are_slopes),
    };
    return parity_main(tests);
}
