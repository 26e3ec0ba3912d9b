/* trainer_rows.c: gradients of tables that go as their touched rows: the sums are those of whole
 * tables, bit for bit. */
#include <math.h>

#include "spec/codec.h"
#include "trainer_gang.h"

enum { ROWS = 40, COLS = 3, MEMBERS = 5 };

/* Member d touches rows d, d + step, ...; with values that round when they are added. */
static void fill(int d, int step, float *x)
{
    memset(x, 0, ROWS * COLS * sizeof *x);
    for (int r = d; r < ROWS && step > 0; r += step)
        for (int c = 0; c < COLS; c++)
            x[r * COLS + c] = (float)(d * 31 + r * 7 + c) / 9.0f - 11.0f;
}

static void sum_tree(int members, float x[MEMBERS][ROWS * COLS], float *y)
{
    for (int i = 0; i < ROWS * COLS; i++) {
        float v[MEMBERS];
        for (int d = 0; d < members; d++)
            v[d] = x[d][i];
        for (int stride = 1; stride < members; stride *= 2)
            for (int d = 0; d + stride < members; d += 2 * stride)
                v[d] += v[d + stride];
        y[i] = v[0];
    }
}

static void lists_have_the_sums_of_tables(void **state)
{
    (void)state;
    static float x[MEMBERS][ROWS * COLS];
    for (int members = 1; members <= MEMBERS; members++)
        for (int step = 0; step <= 7; step++) {
            uint32_t ids[MEMBERS][ROWS];
            int64_t count[MEMBERS], room = 0;
            float want[ROWS * COLS], have[ROWS * COLS];
            for (int d = 0; d < members; d++) {
                fill(d, d == 1 ? 0 : step, x[d]); /* one that touches nothing */
                count[d] = ops_cpu.find_rows(ROWS, COLS, x[d], ROWS, ids[d]);
                room = count[d] > room ? count[d] : room;
            }
            size_t bytes = codec_rows_bytes(room, COLS);
            char *packed = mem_alloc(bytes * (size_t)members + 1);
            for (int d = 0; d < members; d++)
                ops_cpu.pack_rows(count[d], room, COLS, ids[d], x[d], packed + (size_t)d * bytes);
            sum_tree(members, x, want);
            memcpy(have, x[0], sizeof have);
            ops_cpu.sum_rows(members, room, COLS, packed, bytes, have);
            assert_memory_equal(have, want, sizeof want);
            free(packed);
        }
}

/* The first that fit are told, and that there are more. */
static void rows_are_counted(void **state)
{
    (void)state;
    float x[ROWS * COLS];
    uint32_t ids[ROWS];
    memset(ids, 0xff, sizeof ids);
    fill(1, 4, x);
    x[0] = -0.0f; /* its bits are not zero */
    assert_int_equal(ops_cpu.find_rows(ROWS, COLS, x, 2, ids), 11);
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], 1);
    assert_int_equal(ids[2], UINT32_MAX);
}

#define JOB(WORDS_)                                                                                \
    "{\"model\": {\"input\": [3], \"layers\": ["                                                   \
    "{\"type\": \"embedding\", \"input_dim\": " WORDS_ ", \"output_dim\": 6},"                     \
    "{\"type\": \"flatten\"}, {\"type\": \"dense\", \"units\": 11, \"activation\": \"tanh\"},"     \
    "{\"type\": \"dense\", \"units\": 5, \"activation\": \"softmax\"}]}, "                         \
    "\"compile\": {\"optimizer\": {\"name\": \"adam\", \"learning_rate\": 0.02, "                  \
    "\"global_clipnorm\": 0.7}, \"loss\": \"sparse_categorical_crossentropy\"}, "                  \
    "\"data\": {\"train\": {\"format\": \"csv\", \"path\": \"words.csv\"}}, "                      \
    "\"fit\": {\"batch_size\": 10, \"seed\": 3, \"epochs\": 2}}"

static void run(const char *job, const struct plan *p, struct buf *ret)
{
    struct gang g;
    char path[160];
    json_auto_t *doc = gang_job(job);
    gang_open_plan(&g, doc, p);
    free(g.roots[0]);
    g.roots[0] = mem_strdup(g.dir);
    snprintf(path, sizeof path, "%s/words.csv", g.dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("a,b,c,label\n", f);
    for (int i = 0; i < 53; i++)
        fprintf(f, "%d,%d,%d,%d\n", i % 31, i * 3 % 29, 6 - i * 2 % 7, i * i % 5);
    fclose(f);
    *ret = (struct buf)BUF_INIT;
    gang_run(&g);
    read_whole(&g, "model.safetensors", ret);
    gang_close(&g);
}

/* Zero 1 sums whole tables in the same tree. 400 words: a list is shorter; 31: the table is. */
static void training_has_the_same_bits(void **state)
{
    (void)state;
    static const char *const jobs[] = {JOB("400"), JOB("31")};
    for (size_t j = 0; j < ARRAY_LEN(jobs); j++)
        for (int data = 2; data <= 5; data++)
            for (int tensor = 1; tensor <= 2; tensor++) {
                struct buf want, have;
                struct plan p = {.kind = STRATEGY_MIRRORED, .data = data, .tensor = tensor};
                parallel_set_defaults(&p.parallel);
                run(jobs[j], &p, &have);
                p.zero = 1;
                run(jobs[j], &p, &want);
                assert_int_equal(have.len, want.len);
                assert_memory_equal(have.data, want.data, want.len);
                buf_done(&have);
                buf_done(&want);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_have_the_sums_of_tables),
        cmocka_unit_test(rows_are_counted),
        cmocka_unit_test(training_has_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
