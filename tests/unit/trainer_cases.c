/* What goes wrong in other trainers (docs/trainer-cases.md), where no other test has the case:
 * ranks without items, figures of uneven batches, copies that drift apart, tables that do not
 * divide, arrays beyond 2^31 elements, checkpoints without their place in the data. */
#include <math.h>
#include <sys/resource.h>

#include "tests/unit/trainer_checkpoints.h"
#include "trainer/share.h"

static void run_plan(struct gang *g, const char *job, struct plan p)
{
    json_auto_t *doc = gang_job(job);
    if (!p.parallel.grains)
        parallel_set_defaults(&p.parallel);
    print_message("           data %d, pipeline %d, tensor %d, zero %d\n", p.data, p.pipeline,
                  p.tensor, p.zero);
    gang_open_plan(g, doc, &p);
    gang_run(g);
}

static void check_near(const char *what, double have, double want, double tolerance)
{
    if (!(fabs(have - want) <= tolerance * fmax(fabs(want), 1e-3)))
        fail_msg("%s is %.9g, not %.9g", what, have, want);
}

static void same_losses(const struct gang *g, const struct gang *one, double tolerance)
{
    assert_int_equal(gang_count(g, "step"), gang_count(one, "step"));
    for (size_t i = 0; i < gang_count(one, "step"); i++)
        check_near("loss", gang_number(gang_line(g, "step", 0, i), "loss"),
                   gang_number(gang_line(one, "step", 0, i), "loss"), tolerance);
}

/* The values behind the files' headers. */
static void close_weights(const struct gang *g, const struct gang *one)
{
    struct buf x = BUF_INIT, y = BUF_INIT;
    read_whole(g, "model.safetensors", &x);
    read_whole(one, "model.safetensors", &y);
    size_t at = 8 + (unsigned char)y.data[0] + 256 * (size_t)(unsigned char)y.data[1];
    assert_int_equal(x.len, y.len);
    assert_true(at < y.len);
    for (; at + sizeof(float) <= y.len; at += sizeof(float)) {
        float a, b;
        memcpy(&a, x.data + at, sizeof a);
        memcpy(&b, y.data + at, sizeof b);
        if (!(fabsf(a - b) <= 1e-4f + 1e-3f * fabsf(b)))
            fail_msg("byte %zu: %g instead of %g", at, (double)a, (double)b);
    }
    buf_done(&x);
    buf_done(&y);
}

/* ---- 5: figures of an epoch whose last batch is smaller ---- */

/* 57 samples in batches of 16, 16, 16 and 9: an epoch's loss is a mean over samples, not over
 * batches, and ranks with fewer of them count for less. */
static void figures_are_means_over_samples(void **state)
{
    (void)state;
    static const char job[] = SMALL("76", "16", "", "\"epochs\": 3, \"validation_split\": 0.25");
    struct gang one, g;
    run_plan(&one, job, (struct plan){.data = 1});
    for (int64_t epoch = 1; epoch <= 3; epoch++) {
        double sum = 0;
        for (int64_t k = 0; k < 4; k++)
            sum += (k < 3 ? 16 : 9) * gang_number(step_line(&one, 4 * (epoch - 1) + k + 1), "loss");
        double right = gang_number(epoch_line(&one, epoch), "accuracy") * 57;
        check_near("epoch's loss", gang_number(epoch_line(&one, epoch), "loss"), sum / 57, 1e-6);
        check_near("number of right answers", right, round(right), 1e-6);
    }
    for (int data = 2; data <= 4; data++) {
        run_plan(&g, job, (struct plan){.kind = STRATEGY_MIRRORED, .data = data});
        same_losses(&g, &one, 2e-5);
        for (int64_t epoch = 1; epoch <= 3; epoch++) {
            static const char *const names[] = {"loss", "val_loss", "accuracy", "val_accuracy"};
            for (size_t i = 0; i < ARRAY_LEN(names); i++)
                check_near(names[i], gang_number(epoch_line(&g, epoch), names[i]),
                           gang_number(epoch_line(&one, epoch), names[i]), 2e-5);
        }
        gang_close(&g);
    }
    gang_close(&one);
}

/* ---- 8: who gets which samples ---- */

static void ranks_share_every_epoch_exactly(void **state)
{
    (void)state;
    enum { N = 53, BATCH = 10 };
    struct dataset set = {.samples = N};
    struct fit fit = {.epochs = 3, .batch_size = BATCH, .shuffle = 1, .seed = 7};
    for (int data = 1; data <= 12; data++)
        for (int64_t epoch = 1; epoch <= 3; epoch++) {
            int64_t order[N], at = 0;
            struct share whole, s;
            struct mesh alone = {.data = 1};
            share_init(&whole, &set, &fit, &alone, 0);
            share_epoch(&whole, epoch);
            memcpy(order, whole.ids, sizeof order);
            for (int64_t k = 0; k < whole.steps_per_epoch; k++)
                for (int r = 0; r < data; r++) {
                    struct mesh mesh = {.data_rank = r, .data = data};
                    struct items it;
                    share_init(&s, &set, &fit, &mesh, 0);
                    share_epoch(&s, epoch);
                    share_items(&s, k, &it);
                    for (int64_t i = 0; i < it.count; i++)
                        assert_int_equal(it.ids[i], order[at++]);
                    share_done(&s);
                }
            assert_int_equal(at, N);
            share_done(&whole);
        }
}

/* ---- 11: a checkpoint without its place in the data ---- */

static void no_place_in_the_data_is_no_checkpoint(void **state)
{
    (void)state;
    static const char *const fields[] = {"step_in_epoch", "epoch", "step"};
    for (size_t f = 0; f < ARRAY_LEN(fields); f++) {
        struct store s;
        struct gang saved, g;
        struct resume_list list;
        char path[160];
        store_open(&s);
        gang_open_with(&saved, RESUMABLE, 2, 1, &s, 0);
        gang_save_every(&saved, 20);
        snprintf(path, sizeof path, "%s/step-0000000020/manifest.json", s.root);
        json_auto_t *manifest = json_load_file(path, 0, NULL);
        assert_int_equal(json_object_del(manifest, fields[f]), 0);
        assert_int_equal(json_dump_file(manifest, path, JSON_COMPACT), 0);
        list_store(&s, &list);
        assert_int_equal(list.count, 1);
        gang_open_with(&g, RESUMABLE, 2, 1, &s, 0);
        resume_from(&g, list.items, list.count);
        assert_int_equal(gang_prepare(&g), 0);
        gang_start(&g);
        gang_wait(&g);
        const json_t *v = gang_line(&g, "verdict", 0, 0);
        assert_string_equal(gang_text(v, "code"), "checkpoint_invalid");
        if (!strstr(gang_text(v, "reason"), fields[f]))
            fail_msg("%s", gang_text(v, "reason"));
        assert_int_equal(gang_count(&g, "step"), 0);
        list_done(&list);
        gang_close(&g);
        gang_close(&saved);
        store_close(&s);
    }
}

/* ---- 29: what is on its way is part of a checkpoint ---- */

/* A gradient that was not applied yet; weights that have not met since, and their outer momentum.
 */
static void what_is_on_its_way_is_saved(void **state)
{
    (void)state;
    for (int sync = SYNC_EVERY_STEP; sync <= SYNC_LOCAL_SGD; sync++) {
        struct store s;
        struct gang whole, saved, g;
        struct resume_list list;
        struct plan p = {.kind = STRATEGY_MIRRORED, .data = 2};
        parallel_set_defaults(&p.parallel);
        p.parallel.sync = (enum sync_kind)sync;
        p.parallel.codec = sync == SYNC_EVERY_STEP ? CODEC_TOP_K : CODEC_NONE; /* its residuals */
        p.parallel.local_steps = 4;
        p.parallel.outer_learning_rate = 0.7;
        p.parallel.outer_momentum = 0.9;
        store_open(&s);
        gang_open_as(&whole, RESUMABLE, &p, &s, 0);
        gang_run(&whole);
        gang_open_as(&saved, RESUMABLE, &p, &s, 0);
        gang_save_every(&saved, 5);
        list_checkpoints(&saved, &list);
        assert_int_equal(list.count, 5);
        for (int i = 0; i < list.count; i++) {
            gang_open_as(&g, RESUMABLE, &p, &s, 0);
            resume_from(&g, &list.items[i], 1);
            gang_run(&g);
            same_rest(&whole, &g, list.items[i].step, RESUMABLE_STEPS, 0);
            same_weights(&whole, &g);
            gang_close(&g);
        }
        list_done(&list);
        gang_close(&saved);
        gang_close(&whole);
        store_close(&s);
    }
}

/* ---- 14: what going on takes ---- */

#ifndef TRAINYARD_SANITIZED /* which count every freed byte as used */
static long most_kib(struct gang *g)
{
    struct rusage used;
    int status;
    assert_int_equal(gang_prepare(g), 0);
    gang_start(g);
    assert_int_equal(wait4(g->pids[0], &status, 0, &used), g->pids[0]);
    assert_int_equal(status, 0);
    return used.ru_maxrss;
}

/* 16 MB of parameters, three times as much with Adam's moments: none of it may be there twice. */
static void going_on_takes_no_more_than_beginning(void **state)
{
    (void)state;
    static const char job[] =
        "{\"model\": {\"input\": [2000], \"layers\": ["
        "{\"type\": \"dense\", \"units\": 2000}, {\"type\": \"dense\", \"units\": 1}]}, "
        "\"compile\": {\"optimizer\": \"adam\", \"loss\": \"mean_squared_error\"}, "
        "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 12, \"input\": 2000, "
        "\"classes\": 4, \"seed\": 1}}, \"fit\": {\"batch_size\": 4, \"epochs\": 1}}";
    struct store s;
    struct gang fresh, saved, g;
    struct resume_list list;
    store_open(&s);
    gang_open_with(&saved, job, 1, 1, &s, 0);
    gang_save_every(&saved, 2);
    list_checkpoints(&saved, &list);
    gang_open_with(&fresh, job, 1, 1, &s, 0);
    long beginning = most_kib(&fresh);
    gang_open_with(&g, job, 1, 1, &s, 0);
    resume_from(&g, list.items, 1);
    long going_on = most_kib(&g);
    print_message("           %ld KiB, going on %ld KiB\n", beginning, going_on);
    assert_true(beginning > 64000 && going_on < beginning + 8192);
    list_done(&list);
    gang_close(&g);
    gang_close(&fresh);
    gang_close(&saved);
    store_close(&s);
}
#endif

/* ---- 17: more than 2^31 elements ---- */

/* Address space that takes memory only where it is touched; a kernel that counts all of it
 * (vm.overcommit_memory 2) may refuse. */
static float *wide_open(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        skip();
    return p;
}

/* A table of 3 million rows of 1,024: row 2,500,000 begins at element 2,560,000,000. */
static void tables_beyond_31_bits(void **state)
{
    (void)state;
    enum { COLS = 1024, ROWS = 3000000, ROW = 2500000 };
    size_t bytes = (size_t)ROWS * COLS * sizeof(float);
    float *table = wide_open(bytes), *row = table + (size_t)ROW * COLS;
    float ids[2] = {ROW, 1}, y[2 * COLS], dy[2 * COLS];
    for (int i = 0; i < COLS; i++) {
        row[i] = (float)i;
        table[COLS + i] = -1;
        dy[i] = 10;
        dy[COLS + i] = 100;
    }
    ops_cpu.gather(2, COLS, 0, ROWS, ids, table, y);
    for (int i = 0; i < COLS; i++) {
        assert_true(y[i] == (float)i);
        assert_true(y[COLS + i] == -1);
    }
    ops_cpu.scatter_add(2, COLS, 0, ROWS, ids, dy, 1, table);
    for (int i = 0; i < COLS; i++) {
        assert_true(row[i] == (float)i + 10);
        assert_true(table[COLS + i] == 99);
    }
    munmap(table, bytes);
}

/* Logits of 50,000 rows and 50,257 classes are 2.5e9 elements: their rows are told apart by what
 * was written into the last one. */
static void columns_beyond_31_bits(void **state)
{
    (void)state;
    enum { ROWS = 50000, CLASSES = 50257 };
    size_t bytes = (size_t)ROWS * CLASSES * sizeof(float);
    float *logits = wide_open(bytes), last[2] = {7, 8}, got[ROWS * 2];
    memcpy(logits + (size_t)(ROWS - 1) * CLASSES, last, sizeof last);
    ops_cpu.copy_columns(ROWS, 2, logits, CLASSES, got, 2);
    for (int i = 0; i < 2 * (ROWS - 1); i++)
        assert_true(got[i] == 0);
    assert_memory_equal(got + 2 * (ROWS - 1), last, sizeof last);
    munmap(logits, bytes);
}

/* ---- 23: sizes that ranks do not divide ---- */

/* Seven words, five outputs, at three positions. */
static const char WORDS_JOB[] =
    "{\"model\": {\"input\": [3], \"layers\": ["
    "{\"type\": \"embedding\", \"input_dim\": 7, \"output_dim\": 5},"
    "{\"type\": \"flatten\"}, {\"type\": \"dense\", \"units\": 11, \"activation\": \"tanh\"},"
    "{\"type\": \"dense\", \"units\": 5, \"activation\": \"softmax\"}]}, "
    "\"compile\": {\"optimizer\": {\"name\": \"adam\", \"learning_rate\": 0.02, "
    "\"global_clipnorm\": 0.7}, \"loss\": \"sparse_categorical_crossentropy\"}, "
    "\"data\": {\"train\": {\"format\": \"csv\", \"path\": \"words.csv\"}}, "
    "\"fit\": {\"batch_size\": 10, \"seed\": 3, \"epochs\": 3}}";

static void write_words(const char *root)
{
    char path[160];
    snprintf(path, sizeof path, "%s/words.csv", root);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("a,b,c,label\n", f);
    for (int i = 0; i < 53; i++)
        fprintf(f, "%d,%d,%d,%d\n", i % 7, i * 3 % 5, 6 - i * 2 % 7, i * i % 5);
    fclose(f);
}

static void run_words(struct gang *g, struct store *s, struct plan p)
{
    json_auto_t *doc = gang_job(WORDS_JOB);
    parallel_set_defaults(&p.parallel);
    print_message("           data %d, pipeline %d, tensor %d\n", p.data, p.pipeline, p.tensor);
    gang_open_plan(g, doc, &p);
    free(g->roots[0]);
    g->roots[0] = mem_strdup(s->root);
    gang_run(g);
}

static void words_that_ranks_do_not_divide(void **state)
{
    (void)state;
    struct store s;
    struct gang one, g;
    static const struct plan plans[] = {
        {.kind = STRATEGY_TENSOR, .tensor = 2},
        {.kind = STRATEGY_TENSOR, .tensor = 3},
        {.kind = STRATEGY_TENSOR, .tensor = 4, .data = 2},
        {.kind = STRATEGY_TENSOR, .tensor = 2, .pipeline = 2, .microbatches = 3},
    };
    store_open(&s);
    write_words(s.root);
    run_words(&one, &s, (struct plan){.data = 1});
    for (size_t i = 0; i < ARRAY_LEN(plans); i++) {
        run_words(&g, &s, plans[i]);
        same_losses(&g, &one, 3e-5);
        close_weights(&g, &one);
        gang_close(&g);
    }
    gang_close(&one);
    store_close(&s);
}

/* ---- 27: batch normalisation where a rank has no items ---- */

/* Batches of 10, the last of two items; no bias before it, whose gradient is rounding alone. */
static const char NORMALISED[] = SMALL("42", "10",
                                       "{\"type\": \"dense\", \"units\": 7, \"use_bias\": false},"
                                       "{\"type\": \"batch_normalization\"},",
                                       "\"epochs\": 2");

static void batch_normalisation_with_ranks_that_have_none(void **state)
{
    (void)state;
    struct gang one, g;
    static const struct plan plans[] = {
        {.kind = STRATEGY_MIRRORED, .data = 3},
        {.kind = STRATEGY_MIRRORED, .data = 7, .zero = 2},
        {.kind = STRATEGY_MIRRORED, .data = 4, .microbatches = 3},
        {.kind = STRATEGY_PIPELINE, .data = 3, .pipeline = 2, .schedule = SCHEDULE_GPIPE},
    };
    run_plan(&one, NORMALISED, (struct plan){.data = 1});
    for (size_t i = 0; i < ARRAY_LEN(plans); i++) {
        run_plan(&g, NORMALISED, plans[i]);
        same_losses(&g, &one, 1e-4);
        close_weights(&g, &one); /* moving statistics, too */
        gang_close(&g);
    }
    gang_close(&one);
}

/* ---- 28, 32: copies that drift apart ---- */

#define COPIES_STEPS 10
#define COPIES_RANKS 5

/* Of all values that this rank has of the model. */
static uint64_t sum_of_values(const struct engine *n)
{
    uint64_t h = 14695981039346656037u;
    for (size_t at = 0; at < n->stage.net.elements;) {
        size_t end = replicas_stretch(&n->replicas, at);
        CLEANUP(mem_freep) unsigned char *x = mem_alloc((end - at) * sizeof(float));
        replicas_get(&n->replicas, PIECE_PARAMETER, at, end - at, (float *)(void *)x);
        for (size_t i = 0; i < (end - at) * sizeof(float); i++)
            h = (h ^ x[i]) * 1099511628211u;
        at = end;
    }
    return h;
}

static int train_and_tell(struct gang *g, int rank, uint64_t *sums)
{
    struct engine n;
    struct step_result result;
    struct err e = {0};
    struct engine_fds fds = gang_fds(g);
    int r = engine_open(&n, &g->launch, rank, &fds, NULL, &e);
    for (int64_t step = 0; r == 0 && step < COPIES_STEPS; step++) {
        int64_t k = step % n.share.steps_per_epoch;
        if (k == 0)
            engine_begin_epoch(&n, 1 + step / n.share.steps_per_epoch);
        if ((r = engine_step(&n, k, &result, &e)) == 0)
            r = replicas_settle(&n.replicas, &e);
        if (r == 0)
            sums[step * COPIES_RANKS + rank] = sum_of_values(&n);
    }
    if (r < 0)
        fprintf(stderr, "rank %d: %s\n", rank, e.text);
    engine_close(&n);
    return r < 0;
}

static void check_copies(const char *job, struct plan p)
{
    struct gang g;
    json_auto_t *doc = gang_job(job);
    size_t bytes = sizeof(uint64_t) * COPIES_RANKS * COPIES_STEPS;
    uint64_t *sums = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(sums != MAP_FAILED);
    parallel_set_defaults(&p.parallel);
    p.parallel.overlap = p.zero == 1;
    gang_open_plan(&g, doc, &p);
    assert_int_equal(gang_prepare(&g), 0);
    for (int r = 0; r < p.data; r++) {
        g.pids[r] = fork();
        assert_true(g.pids[r] >= 0);
        if (g.pids[r] == 0) {
            alarm(GANG_ALARM);
            _exit(train_and_tell(&g, r, sums));
        }
    }
    gang_wait(&g);
    for (int step = 0; step < COPIES_STEPS; step++)
        for (int r = 0; r < p.data; r++) {
            const uint64_t *now = sums + step * COPIES_RANKS;
            assert_int_equal(g.status[r], 0);
            if (now[r] != now[0])
                fail_msg("after step %d, rank %d has other values than rank 0", step + 1, r);
            assert_true(step == 0 || now[r] != now[r - COPIES_RANKS]); /* the step was one */
        }
    gang_close(&g);
    munmap(sums, bytes);
}

/* Parameters and moving statistics; ranks update all of them, or each its part and fetch the rest.
 */
static void data_ranks_have_the_same_bits_after_every_step(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 2; zero++)
        for (int data = 2; data <= COPIES_RANKS; data += 3)
            check_copies(NORMALISED, (struct plan){.kind = STRATEGY_MIRRORED,
                                                   .data = data,
                                                   .zero = zero,
                                                   .microbatches = 1 + zero});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_means_over_samples),
        cmocka_unit_test(ranks_share_every_epoch_exactly),
        cmocka_unit_test(no_place_in_the_data_is_no_checkpoint),
        cmocka_unit_test(what_is_on_its_way_is_saved),
#ifndef TRAINYARD_SANITIZED
        cmocka_unit_test(going_on_takes_no_more_than_beginning),
#endif
        cmocka_unit_test(tables_beyond_31_bits),
        cmocka_unit_test(columns_beyond_31_bits),
        cmocka_unit_test(words_that_ranks_do_not_divide),
        cmocka_unit_test(batch_normalisation_with_ranks_that_have_none),
        cmocka_unit_test(data_ranks_have_the_same_bits_after_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
