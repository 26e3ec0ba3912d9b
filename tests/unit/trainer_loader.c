/* What is fetched ahead: the loader's lanes, batches on devices with and without memory of their
 * own, and runs whose data is streamed, which give the same losses as from memory. */
#include "tests/unit/trainer_gang.h"

#include "trainer/batch.h"
#include "trainer/data_parts.h"

#define COUNT 1000
#define WIDTH 6

/* ---- lanes ---- */

/* Item i's number is 3 i; number 666 is not to be had. */
static int fetch_numbers(void *context, const struct items *items, void *to, struct err *e)
{
    int *calls = context;
    __atomic_add_fetch(calls, 1, __ATOMIC_RELAXED);
    for (int64_t i = 0; i < items->count; i++) {
        if (items->ids[i] == 222)
            return err_set(e, ERR_IO, "number %d is gone", 666);
        ((int64_t *)to)[i] = 3 * items->ids[i];
    }
    return 0;
}

static void lanes(void **state)
{
    (void)state;
    struct loader *l;
    struct err e = {0};
    struct dataset set = {0}, other = {0};
    int64_t ids[COUNT], room[10];
    int calls = 0;
    const void *got;
    for (int i = 0; i < COUNT; i++)
        ids[i] = (i * 7919) % COUNT;
    struct items items = {.set = &set, .ids = ids, .count = COUNT};
    assert_int_equal(loader_new(&l, &e), 0);
    loader_open(l, LOADER_FEATURES, 10, fetch_numbers, &calls);

    assert_int_equal(loader_take(l, LOADER_FEATURES, &items, 0, 10, &got, &e), 0); /* not asked */
    loader_ask(l, LOADER_TARGETS, &items, 0, 10, room); /* a closed lane */
    assert_int_equal(loader_take(l, LOADER_TARGETS, &items, 0, 10, &got, &e), 0);
    for (int at = 0; at + 10 <= 200; at += 10) {
        loader_ask(l, LOADER_FEATURES, &items, at, 10, room);
        assert_int_equal(loader_take(l, LOADER_FEATURES, &items, at, 10, &got, &e), 1);
        for (int i = 0; i < 10; i++)
            assert_int_equal(((const int64_t *)got)[i], 3 * ids[at + i]);
        assert_int_equal(loader_take(l, LOADER_FEATURES, &items, at, 10, &got, &e), 0);
    }
    assert_int_equal(calls, 20);

    loader_ask(l, LOADER_FEATURES, &items, 0, 10, room);
    assert_int_equal(loader_take(l, LOADER_FEATURES, &items, 0, 9, &got, &e), 0);
    assert_int_equal(loader_take(l, LOADER_FEATURES, &items, 1, 10, &got, &e), 0);
    struct items foreign = {.set = &other, .ids = ids, .count = COUNT};
    assert_int_equal(loader_take(l, LOADER_FEATURES, &foreign, 0, 10, &got, &e), 0);
    assert_int_equal(loader_take(l, LOADER_FEATURES, &items, 0, 10, &got, &e), 1);
    loader_ask(l, LOADER_FEATURES, &items, 0, 11, room); /* more than it has room for */
    assert_int_equal(loader_take(l, LOADER_FEATURES, &items, 0, 11, &got, &e), 0);
    for (int i = 0; i < 100; i++) /* never taken */
        loader_ask(l, LOADER_FEATURES, &items, i, 5, room);
    assert_int_equal(loader_take(l, LOADER_FEATURES, &items, 99, 5, &got, &e), 1);
    ids[99] = 5; /* copied when asked */
    loader_ask(l, LOADER_FEATURES, &items, 99, 1, room);
    ids[99] = 6;
    assert_int_equal(loader_take(l, LOADER_FEATURES, &items, 99, 1, &got, &e), 0);
    loader_free(l); /* with a request that nobody takes */
    loader_free(NULL);
}

static void a_fetch_that_fails(void **state)
{
    (void)state;
    struct loader *l;
    struct err e = {0};
    struct dataset set = {0};
    const int64_t ids[] = {221, 222, 223};
    int64_t room[3];
    int calls = 0;
    const void *got;
    struct items items = {.set = &set, .ids = ids, .count = 3};
    assert_int_equal(loader_new(&l, &e), 0);
    loader_open(l, LOADER_TARGETS, 3, fetch_numbers, &calls);
    loader_ask(l, LOADER_TARGETS, &items, 0, 3, room);
    assert_int_equal(loader_take(l, LOADER_TARGETS, &items, 0, 3, &got, &e), ERR_IO);
    assert_string_equal(e.text, "number 666 is gone");
    loader_ask(l, LOADER_TARGETS, &items, 2, 1, room);
    assert_int_equal(loader_take(l, LOADER_TARGETS, &items, 2, 1, &got, &e), 1);
    assert_int_equal(*(const int64_t *)got, 669);
    loader_free(l);
}

/* ---- batches ---- */

static size_t uploaded;

static void upload(void *to, const void *host, size_t bytes)
{
    uploaded += bytes;
    memcpy(to, host, bytes);
}

/* Bytes, rescaled by a half and by minus one; classes are the id's last digit. */
struct world {
    struct layer layers[2];
    struct model model;
    struct net_chunk chunk;
    struct ops ops;
    struct net net;
    uint8_t bytes[COUNT * WIDTH];
    uint16_t labels[COUNT];
    struct dataset set;
};

static void make_world(struct world *w, int is_host, int is_ahead)
{
    *w = (struct world){.ops = ops_cpu, .chunk = {0, 2}};
    w->layers[0] = (struct layer){.type = LAYER_RESCALING,
                                  .scale = 0.5,
                                  .offset = -1,
                                  .in = {1, {WIDTH}},
                                  .out = {1, {WIDTH}}};
    w->layers[1] = (struct layer){.type = LAYER_DENSE, .in = {1, {WIDTH}}, .out = {1, {10}}};
    w->model = (struct model){.input = {1, {WIDTH}}, .layers = w->layers, .layer_count = 2};
    w->ops.is_host = is_host;
    w->ops.upload = upload;
    w->net = (struct net){
        .model = &w->model, .ops = &w->ops, .chunks = &w->chunk, .chunk_count = 1, .folded = 1};
    for (int i = 0; i < COUNT * WIDTH; i++)
        w->bytes[i] = (uint8_t)(i * 37);
    for (int i = 0; i < COUNT; i++)
        w->labels[i] = (uint16_t)(i % 10);
    w->set = (struct dataset){
        .samples = COUNT,
        .feature_size = WIDTH,
        .target_type = TARGET_CLASS,
        .target_size = 1,
        .positions = 1,
        .is_ahead = is_ahead,
        .features = {.type = NUMBER_U8, .size = WIDTH, .stride = WIDTH, .map = w->bytes},
        .labels = {
            .type = NUMBER_U16, .size = 1, .stride = 2, .map = (const unsigned char *)w->labels}};
}

static void check_batch(const struct world *w, const struct batch *b, const struct items *items,
                        int64_t begin, int64_t n, const float *x)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t id = items->ids[begin + i];
        assert_int_equal(b->classes[i], id % 10);
        for (int64_t k = 0; k < WIDTH; k++)
            assert_true(x[i * WIDTH + k] == (float)w->bytes[id * WIDTH + k] * 0.5f - 1.0f);
    }
}

/* Announced rightly, wrongly and not at all. */
static void batches_ahead(void **state)
{
    (void)state;
    struct err e = {0};
    int64_t ids[COUNT];
    float x[32 * WIDTH];
    for (int i = 0; i < COUNT; i++)
        ids[i] = (i * 7919) % COUNT;
    for (int kind = 0; kind < 4; kind++) {
        struct world w;
        struct batch b;
        make_world(&w, kind & 1, kind >> 1);
        struct items items = {.set = &w.set, .ids = ids, .count = COUNT};
        assert_int_equal(batch_init(&b, &w.net, &w.set, 32, &e), 0);
        int has_loader = !(kind & 1) || kind >> 1;
        assert_int_equal(b.loader != NULL, has_loader);
        size_t bytes = 32 * 4, each = 32 * (4 + 4 * WIDTH), ids_too = 2 * 32 * 8;
        assert_int_equal(batch_bytes(&w.net, &w.set, 32),
                         !(kind & 1) ? bytes + BATCH_SLOTS * each
                                     : bytes + (has_loader ? ids_too + each : 0));
        uploaded = 0;
        for (int64_t at = 0; at + 32 <= COUNT; at += 32) {
            int64_t n = 1 + at % 32;
            assert_int_equal(batch_features(&b, &items, at, n, x, &e), 0);
            batch_expect_features(&b, &items, at % 3 == 2 ? 0 : at + 32, 1 + (at + 32) % 32);
            assert_int_equal(batch_targets(&b, &items, at, n, &e), 0);
            if (at % 5)
                batch_expect_targets(&b, &items, at + 32, 1 + (at + 32) % 32);
            check_batch(&w, &b, &items, at, n, x);
            batch_send_ahead(&b);
            if (at % 7 == 0)
                batch_waited(&b);
        }
        assert_int_equal(uploaded > 0, has_loader);
        batch_done(&b);
    }
}

/* More than one thread is to copy; and what was announced is on its way before it is asked for. */
static void large_batches(void **state)
{
    (void)state;
    enum { ROWS = 3 * (4 << 20) / (4 * WIDTH) };
    struct err e = {0};
    struct world w;
    struct batch b;
    CLEANUP(mem_freep) int64_t *ids = mem_alloc(ROWS * sizeof *ids);
    CLEANUP(mem_freep) float *x = mem_alloc(ROWS * WIDTH * sizeof *x);
    for (int i = 0; i < ROWS; i++)
        ids[i] = (i * INT64_C(7919)) % COUNT;
    make_world(&w, 0, 0);
    struct items items = {.set = &w.set, .ids = ids, .count = ROWS};
    assert_int_equal(batch_init(&b, &w.net, &w.set, ROWS, &e), 0);
    for (int ahead = 0; ahead < 2; ahead++) {
        memset(x, 0, ROWS * WIDTH * sizeof *x);
        uploaded = 0;
        if (ahead) {
            batch_expect_features(&b, &items, 0, ROWS);
            batch_expect_targets(&b, &items, 0, ROWS);
            batch_send_all(&b);
            for (int l = 0; l < LOADER_LANES; l++)
                assert_true(b.lanes[l].slots[b.lanes[l].slot].is_sent);
        }
        assert_int_equal(batch_features(&b, &items, 0, ROWS, x, &e), 0);
        assert_int_equal(batch_targets(&b, &items, 0, ROWS, &e), 0);
        check_batch(&w, &b, &items, 0, ROWS, x);
        assert_int_equal(uploaded, ahead ? 0 : ROWS * (WIDTH + 1) * sizeof *x);
    }
    batch_done(&b);
}

/* What the check at the start did not see: told with its sample, ahead as well as not. */
static void classes_that_are_none(void **state)
{
    (void)state;
    struct err e = {0};
    int64_t ids[] = {3, 4, 5};
    for (int ahead = 0; ahead < 2; ahead++) {
        struct world w;
        struct batch b;
        make_world(&w, 1, 1);
        w.labels[4] = 10;
        struct items items = {.set = &w.set, .ids = ids, .count = 3};
        assert_int_equal(batch_init(&b, &w.net, &w.set, 3, &e), 0);
        if (ahead)
            batch_expect_targets(&b, &items, 0, 3);
        assert_int_equal(batch_targets(&b, &items, 0, 3, &e), ERR_CORRUPT);
        assert_non_null(strstr(e.text, "Sample 5 of the prepared data has class 10"));
        batch_done(&b);
    }
}

/* ---- runs ---- */

#define DIGITS                                                                                     \
    "{\"name\": \"digits\", \"model\": {\"input\": [64], \"layers\": ["                            \
    "{\"type\": \"rescaling\", \"scale\": 0.0625},"                                                \
    "{\"type\": \"dense\", \"units\": 12, \"activation\": \"tanh\"},"                              \
    "{\"type\": \"dense\", \"units\": 12, \"activation\": \"tanh\"},"                              \
    "{\"type\": \"dense\", \"units\": 10, \"activation\": \"softmax\"}]},"                         \
    "\"compile\": {\"optimizer\": \"adam\", \"loss\": \"sparse_categorical_crossentropy\","        \
    "\"metrics\": [\"accuracy\"]}, \"data\": {\"train\": {\"format\": \"csv\","                    \
    "\"path\": \"digits.csv.gz\"}}, \"fit\": {\"epochs\": 2, \"batch_size\": 96,"                  \
    "\"validation_split\": 0.3, \"seed\": 5}}"

/* "step" or "epoch" lines without what time says. */
static json_t *figures_of(const struct gang *g, const char *type)
{
    json_t *all = json_array();
    for (size_t n = 0; gang_line(g, type, -1, n); n++) {
        json_t *line = json_deep_copy(gang_line(g, type, -1, n));
        json_object_del(line, "time_us");
        json_object_del(line, "seconds");
        json_object_del(line, "samples_per_second");
        json_object_del(line, "comm_exposed_us");
        json_object_del(line, "comm_hidden_us");
        json_array_append_new(all, line);
    }
    return all;
}

static json_t *run(const struct plan *p, int64_t memory_limit)
{
    struct gang g;
    json_auto_t *doc = gang_job(DIGITS);
    gang_open_plan(&g, doc, p);
    g.launch.spec->train.memory_limit = memory_limit;
    assert_int_equal(gang_prepare(&g), 0);
    gang_start(&g);
    gang_wait(&g);
    for (int r = 0; r < g.launch.plan.ranks; r++)
        if (g.status[r] != 0)
            fail_msg("rank %d ended with %d", r, g.status[r]);
    json_t *both = json_pack("[o, o]", figures_of(&g, "step"), figures_of(&g, "epoch"));
    assert_int_equal(json_array_size(json_array_get(both, 0)), 2 * 14);
    assert_int_equal(json_array_size(json_array_get(both, 1)), 2);
    const char *note = gang_text(gang_line(&g, "prepared", -1, 0), "note");
    assert_int_equal(strstr(note, "node's disk") != NULL, memory_limit < 1 << 20);
    gang_close(&g);
    return both;
}

static void streamed_runs_give_the_same(void **state)
{
    (void)state;
    static const struct plan PLANS[] = {
        {.kind = STRATEGY_NONE},
        {.kind = STRATEGY_NONE, .microbatches = 5},
        {.kind = STRATEGY_MIRRORED, .data = 3},
        {.kind = STRATEGY_PIPELINE, .pipeline = 2, .microbatches = 4, .schedule = SCHEDULE_1F1B},
        {.kind = STRATEGY_PIPELINE, .data = 2, .pipeline = 2, .microbatches = 3},
        {.kind = STRATEGY_SEGMENT_ENSEMBLE, .data = 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(PLANS); i++) {
        struct plan p = PLANS[i];
        parallel_set_defaults(&p.parallel);
        json_auto_t *from_memory = run(&p, 1 << 30), *streamed = run(&p, 100000);
        if (!json_equal(from_memory, streamed)) {
            CLEANUP(mem_freep) char *a = json_dumps(from_memory, 0), *b = json_dumps(streamed, 0);
            fail_msg("plan %zu:\n%s\n%s", i, a, b);
        }
    }
}

/* A file that is cut while ranks read it ends the run with its name. */
static void a_file_that_is_cut_meanwhile(void **state)
{
    (void)state;
    struct gang g;
    char path[128];
    json_auto_t *doc = gang_job(SMALL("8", "8", "", "\"epochs\": 100000"));
    gang_open(&g, doc, STRATEGY_MIRRORED, 2, 1, 1, SCHEDULE_GPIPE);
    free(g.roots[0]);
    g.roots[0] = mem_strdup(g.dir);
    struct data_source *s = &g.launch.spec->train;
    *s = (struct data_source){.format = DATA_IDX,
                              .images = mem_strdup("images"),
                              .labels = mem_strdup("labels"),
                              .memory_limit = 1000};
    struct buf b = BUF_INIT;
    struct err e;
    buf_add(&b, "\0\0\x08\2\0\0\x10\0\0\0\0\6", 12); /* 4,096 items of 6 bytes */
    for (int i = 0; i < 4096 * 6; i++)
        buf_add(&b, i % 7 ? "\1" : "\2", 1);
    snprintf(path, sizeof path, "%s/labels", g.dir);
    unsigned char labels[8 + 4096] = {0, 0, 8, 1, 0, 0, 0x10, 0};
    assert_int_equal(file_write_atomic(path, labels, sizeof labels, 0644, &e), 0);
    snprintf(path, sizeof path, "%s/images", g.dir);
    assert_int_equal(file_write_atomic(path, b.data, b.len, 0644, &e), 0);
    buf_done(&b);
    assert_int_equal(gang_prepare(&g), 0);
    gang_start(&g);
    do {
        usleep(20000);
        gang_read(&g);
    } while (!gang_line(&g, "step", 0, 20));
    assert_int_equal(truncate(path, 1000), 0);
    gang_wait(&g);
    int told = 0;
    for (int r = 0; r < 2; r++) {
        const char *why = gang_text(gang_line(&g, "verdict", r, 0), "reason");
        assert_int_not_equal(g.status[r], 0);
        told += strstr(why, "images ends at byte") != NULL;
    }
    assert_true(told >= 1);
    gang_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes),
        cmocka_unit_test(a_fetch_that_fails),
        cmocka_unit_test(batches_ahead),
        cmocka_unit_test(large_batches),
        cmocka_unit_test(classes_that_are_none),
        cmocka_unit_test(streamed_runs_give_the_same),
        cmocka_unit_test(a_file_that_is_cut_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
