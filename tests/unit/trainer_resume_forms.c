/* Going on from checkpoints under every form of parallel training: state that is divided, layers
 * that are split, stages in chunks; from any to any. */
#include "tests/unit/trainer_checkpoints.h"

/* Moving statistics, layers that are split by columns, by rows and not at all, odd sizes. */
static const char IMAGES[] =
    "{\"model\": {\"input\": [36], \"layers\": ["
    "{\"type\": \"reshape\", \"target_shape\": [6, 6, 1]},"
    "{\"type\": \"conv2d\", \"filters\": 5, \"kernel_size\": 3, \"use_bias\": false},"
    "{\"type\": \"batch_normalization\"},"
    "{\"type\": \"activation\", \"activation\": \"elu\"},"
    "{\"type\": \"global_average_pooling2d\"},"
    "{\"type\": \"dense\", \"units\": 9, \"activation\": \"tanh\"},"
    "{\"type\": \"dropout\", \"rate\": 0.25},"
    "{\"type\": \"dense\", \"units\": 7, \"activation\": \"gelu\"},"
    "{\"type\": \"layer_normalization\"},"
    "{\"type\": \"dense\", \"units\": 3, \"activation\": \"softmax\"}]},"
    "\"compile\": {\"optimizer\": {\"name\": \"adamw\", \"learning_rate\": 0.01},"
    "\"loss\": \"sparse_categorical_crossentropy\", \"metrics\": [\"accuracy\"]},"
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 40, \"input\": 36, "
    "\"classes\": 3, \"seed\": 1}}, \"fit\": {\"batch_size\": 16, \"seed\": 3, \"epochs\": 2}}";
#define IMAGES_STEPS 6

static const struct plan forms[] = {
    {.data = 1},
    {.data = 3, .zero = 1},
    {.data = 2, .zero = 2, .microbatches = 3},
    {.data = 4, .zero = 3},
    {.kind = STRATEGY_PIPELINE, .pipeline = 3, .microbatches = 3, .schedule = SCHEDULE_GPIPE},
    {.kind = STRATEGY_PIPELINE, .data = 2, .pipeline = 2, .microbatches = 2, .zero = 3},
    {.kind = STRATEGY_TENSOR, .tensor = 2},
    {.kind = STRATEGY_TENSOR, .tensor = 3, .data = 2, .zero = 1},
    {.kind = STRATEGY_TENSOR, .tensor = 2, .data = 2, .pipeline = 2, .microbatches = 2, .zero = 2},
};

static void say(const char *what, const struct plan *p)
{
    print_message("           %s data %d, pipeline %d, tensor %d, zero %d\n", what, p->data,
                  p->pipeline, p->tensor, p->zero);
}

struct saved {
    struct store store;
    struct gang whole;
    struct resume_list list;
};

/* A run of plan `p` that was left alone, and its checkpoints. */
static void save(struct saved *s, const char *job, const struct plan *p, int64_t every)
{
    struct gang g;
    store_open(&s->store);
    gang_open_as(&s->whole, job, p, &s->store, 0);
    gang_run(&s->whole);
    gang_open_as(&g, job, p, &s->store, 0);
    gang_save_every(&g, every);
    list_checkpoints(&g, &s->list);
    assert_true(s->list.count > 0);
    gang_close(&g);
}

static void saved_done(struct saved *s)
{
    list_done(&s->list);
    gang_close(&s->whole);
    store_close(&s->store);
}

/* The rest of the run from checkpoint `i`; `tolerance` 0: to the bit. */
static void check_rest(struct saved *s, const char *job, int64_t steps, int i, const struct plan *p,
                       double tolerance)
{
    struct gang g;
    gang_open_as(&g, job, p, &s->store, 0);
    resume_from(&g, &s->list.items[i], 1);
    gang_run(&g);
    same_rest(&s->whole, &g, s->list.items[i].step, steps, tolerance);
    if (tolerance == 0)
        same_weights(&s->whole, &g);
    gang_close(&g);
}

static void each_form_goes_on_by_itself(void **state)
{
    (void)state;
    for (size_t f = 0; f < ARRAY_LEN(forms); f++) {
        struct saved s;
        say("", &forms[f]);
        save(&s, IMAGES, &forms[f], 1);
        for (int i = 0; i < s.list.count; i++)
            check_rest(&s, IMAGES, IMAGES_STEPS, i, &forms[f], 0);
        saved_done(&s);
    }
}

/* The same values to the bit, and losses that agree as they do between meshes. */
static void from_any_form_to_any_other(void **state)
{
    (void)state;
    for (size_t f = 0; f < ARRAY_LEN(forms); f++) {
        struct saved s;
        struct whole a, b;
        say("from", &forms[f]);
        save(&s, IMAGES, &forms[f], 4);
        whole_of(&a, &s.store, s.list.items[0].name, &s.whole.launch.spec->model);
        for (size_t t = 0; t < ARRAY_LEN(forms); t++) {
            struct store to;
            store_open(&to);
            move_to(IMAGES, &forms[t], &s.store, &s.list, &to);
            whole_of(&b, &to, s.list.items[0].name, &s.whole.launch.spec->model);
            for (int k = 0; k <= PIECE_STATE_1; k++)
                assert_memory_equal(a.values[k], b.values[k], a.elements * sizeof(float));
            whole_done(&b);
            store_close(&to);
            check_rest(&s, IMAGES, IMAGES_STEPS, 0, &forms[t], 1e-4);
        }
        whole_done(&a);
        saved_done(&s);
    }
}

/* ---- reproducible ---- */

static void reproducible_runs_go_on_to_the_bit(void **state)
{
    (void)state;
    struct saved s;
    struct plan four = {.data = 4, .zero = 1};
    parallel_set_defaults(&four.parallel);
    four.parallel.reproducible = 1;
    save(&s, RESUMABLE, &four, 10);
    for (int data = 1; data <= 8; data *= 2)
        for (int pipeline = 1; pipeline * data <= 8 && pipeline <= 3; pipeline++) {
            struct plan p = {.kind = pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED,
                             .data = data,
                             .pipeline = pipeline,
                             .microbatches = 8 / data,
                             .zero = data > 1 ? data % 3 + 1 : 0,
                             .parallel = four.parallel};
            for (int i = 0; i < s.list.count; i++)
                check_rest(&s, RESUMABLE, RESUMABLE_STEPS, i, &p, 0);
        }
    saved_done(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_form_goes_on_by_itself),
        cmocka_unit_test(from_any_form_to_any_other),
        cmocka_unit_test(reproducible_runs_go_on_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
