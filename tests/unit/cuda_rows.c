/* Rows of tables on the GPU: found, listed and added up as on the CPU, bit for bit. */
#include "cuda_parity.h"
#include "spec/codec.h"

struct rows {
    int64_t rows, cols, most, count, room;
    int members;
    size_t stride;
    int x, ids, packed, y;
};

static void find_rows(struct parity_side *s, const void *args)
{
    const struct rows *v = args;
    s->result[0] = (double)s->ops->find_rows(v->rows, v->cols, parity_at(s, v->x), v->most,
                                             parity_at(s, v->ids));
}

static void pack_rows(struct parity_side *s, const void *args)
{
    const struct rows *v = args;
    s->ops->pack_rows(v->count, v->room, v->cols, parity_at(s, v->ids), parity_at(s, v->x),
                      parity_at(s, v->packed));
}

static void sum_rows(struct parity_side *s, const void *args)
{
    const struct rows *v = args;
    s->ops->sum_rows(v->members, v->room, v->cols, parity_at(s, v->packed), v->stride,
                     parity_at(s, v->y));
}

/* Rows that member d has: the first elements of some are zero, and one has but a negative zero. */
static int is_own(int64_t row, int d, int64_t every)
{
    return every > 0 && (row * 7 + d * 3) % every == 0;
}

static float *table_of(int64_t rows, int64_t cols, int d, int64_t every)
{
    float *x = mem_zalloc((size_t)(rows * cols + 1) * sizeof *x);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = r % 3 ? 0 : cols - 1; is_own(r, d, every) && c < cols; c++)
            x[r * cols + c] = r % 5 ? (float)(d * 31 + r * 7 + c) / 9.0f - 11.0f : -0.0f;
    return x;
}

static uint32_t *words(int64_t n)
{
    uint32_t *w = mem_alloc((size_t)(n + 1) * sizeof *w);
    memset(w, 0xee, (size_t)(n + 1) * sizeof *w);
    return w;
}

static void begin(struct parity *p, const char *verb, const struct rows *v, int64_t every,
                  int offset)
{
    parity_begin(p, verb, "%lld x %lld, every %lldth, %lld, %d, offset %d", (long long)v->rows,
                 (long long)v->cols, (long long)every, (long long)v->most, v->members, offset);
    p->offset = offset;
}

static void check_find(struct rows v, int64_t every, int offset)
{
    struct parity p;
    CLEANUP(mem_freep) float *x = table_of(v.rows, v.cols, 1, every);
    CLEANUP(mem_freep) uint32_t *ids = words(v.most);
    begin(&p, "find_rows", &v, every, offset);
    v.x = parity_given(&p, sizeof *x, v.rows * v.cols, x);
    v.ids = parity_add(&p, PARITY_INOUT, sizeof *ids, v.most, ids);
    parity_run(&p, find_rows, &v);
    parity_result_near(&p, 0, 0, 0);
    parity_same_bits(&p, v.ids);
    parity_end(&p);
}

static void touched_rows_are_found(void **state)
{
    (void)state;
    static const int64_t rows[] = {0, 1, 31, 2048, 2049, 6007}, cols[] = {1, 3, 16, 17, 129, 260};
    for (size_t r = 0; r < ARRAY_LEN(rows); r++)
        for (size_t c = 0; c < ARRAY_LEN(cols); c++)
            for (int64_t every = 0; every < 4; every++) {
                struct rows v = {.rows = rows[r], .cols = cols[c], .most = rows[r]};
                check_find(v, every, every % 2 == 1);
                v.most = rows[r] / 5;
                check_find(v, every, every % 2 == 1);
            }
    struct rows v = {.rows = (1 << 20) + 77, .cols = 1, .most = 30000}; /* more than at a time */
    check_find(v, 50, 0);
    check_find(v, 5, 0);
}

static void check_pack(struct rows v, int64_t every, int offset)
{
    struct parity p;
    CLEANUP(mem_freep) float *x = table_of(v.rows, v.cols, 0, every);
    CLEANUP(mem_freep) uint32_t *ids = words(v.rows);
    v.count = ops_cpu.find_rows(v.rows, v.cols, x, v.rows, ids);
    for (v.room = v.count; v.room <= v.count + 3; v.room += 3) {
        int64_t n = v.room * (v.cols + 1);
        CLEANUP(mem_freep) uint32_t *packed = words(n);
        v.most = v.room;
        begin(&p, "pack_rows", &v, every, offset);
        v.x = parity_given(&p, sizeof *x, v.rows * v.cols, x);
        v.ids = parity_given(&p, sizeof *ids, v.count, ids);
        v.packed = parity_add(&p, PARITY_INOUT, sizeof *packed, n, packed);
        parity_run(&p, pack_rows, &v);
        parity_same_bits(&p, v.packed);
        parity_end(&p);
    }
}

static void rows_are_listed(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 33, 511}, cols[] = {1, 4, 7, 260};
    for (size_t r = 0; r < ARRAY_LEN(rows); r++)
        for (size_t c = 0; c < ARRAY_LEN(cols); c++)
            for (int64_t every = 0; every < 3; every++)
                check_pack((struct rows){.rows = rows[r], .cols = cols[c]}, every, (int)every % 2);
}

static void check_sum(struct rows v, int64_t every)
{
    struct parity p;
    uint32_t **ids = mem_alloc((size_t)v.members * sizeof *ids);
    float **x = mem_alloc((size_t)v.members * sizeof *x);
    int64_t *count = mem_alloc((size_t)v.members * sizeof *count);
    for (int d = 0; d < v.members; d++) {
        x[d] = table_of(v.rows, v.cols, d, d == 1 ? 0 : every); /* one that touches nothing */
        ids[d] = words(v.rows);
        count[d] = ops_cpu.find_rows(v.rows, v.cols, x[d], v.rows, ids[d]);
        v.room = count[d] > v.room ? count[d] : v.room;
    }
    v.stride = codec_rows_bytes(v.room, v.cols);
    CLEANUP(mem_freep) char *packed = mem_zalloc(v.stride * (size_t)v.members + 1);
    for (int d = 0; d < v.members; d++)
        ops_cpu.pack_rows(count[d], v.room, v.cols, ids[d], x[d], packed + (size_t)d * v.stride);
    begin(&p, "sum_rows", &v, every, 0);
    v.packed = parity_given(&p, 1, (int64_t)(v.stride * (size_t)v.members), packed);
    v.y = parity_add(&p, PARITY_INOUT, sizeof(float), v.rows * v.cols, x[0]);
    parity_run(&p, sum_rows, &v);
    parity_same_bits(&p, v.y);
    parity_end(&p);
    for (int d = 0; d < v.members; d++) {
        free(ids[d]);
        free(x[d]);
    }
    free(ids);
    free(x);
    free(count);
}

static void lists_are_added_up_in_the_tree(void **state)
{
    (void)state;
    for (int members = 1; members <= 9; members++)
        for (int64_t every = 1; every <= 5; every += 2) {
            check_sum((struct rows){.rows = 41, .cols = 3, .members = members}, every);
            check_sum((struct rows){.rows = 17, .cols = 300, .members = members}, every);
        }
    check_sum((struct rows){.rows = 5, .cols = 2, .members = 1024}, 3);
    check_sum((struct rows){.rows = 5, .cols = 1, .members = 777}, 2);
    check_sum((struct rows){.rows = 5, .cols = 1, .members = 3}, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(touched_rows_are_found),
        cmocka_unit_test(rows_are_listed),
        cmocka_unit_test(lists_are_added_up_in_the_tree),
    };
    return parity_main(tests);
}
