/* Data ranks that agree later, or now and then; values kept as bfloat16; and what is told of
 * communication. Real processes. */
#include "tests/unit/trainer_forms.h"

/* ---- other forms of storage ---- */

static void bfloat16_is_the_same_on_every_mesh(void **state)
{
    (void)state;
    static const struct form FORMS[] = {
        {.data = 1, .pipeline = 1, .reproducible = 1},
        {.data = 2, .pipeline = 1, .reproducible = 1, .zero = 1, .overlap = 1},
        {.data = 4, .pipeline = 2, .reproducible = 1, .zero = 2},
        {.data = 2, .pipeline = 3, .reproducible = 1, .zero = 3, .overlap = 1},
        {.data = 8, .pipeline = 1, .reproducible = 1, .zero = 0},
        {.data = 8, .pipeline = 1, .reproducible = 1, .zero = 3},
    };
    for (int kind = 1; kind <= 3; kind++) {
        struct buf want = BUF_INIT;
        for (size_t i = 0; i < ARRAY_LEN(FORMS); i++) {
            struct form f = FORMS[i];
            struct buf got = BUF_INIT;
            f.microbatches = 1;
            f.precision.weights = kind & 1 ? STORAGE_BFLOAT16 : STORAGE_FLOAT32;
            f.precision.moments = kind & 2 ? STORAGE_BFLOAT16 : STORAGE_FLOAT32;
            weights_of(REPRODUCIBLE("101", "22"), &f, i == 0 ? &want : &got);
            if (i > 0)
                check_equal(&want, &got);
            buf_done(&got);
        }
        buf_done(&want);
    }
}

/* Close to float32 and not the same, and the masters are what is written. */
static void bfloat16_learns_as_float32_does(void **state)
{
    (void)state;
    const char *job = SMALL("203", "16", "", "\"epochs\": 4");
    const struct form plain = {.data = 2, .pipeline = 1, .microbatches = 1, .zero = 1};
    struct gang a, b;
    struct form rounded = plain;
    struct buf file = BUF_INIT;
    rounded.precision =
        (struct precision){.weights = STORAGE_BFLOAT16, .moments = STORAGE_BFLOAT16};
    run_form(job, &plain, &a);
    run_form(job, &rounded, &b);
    double x = gang_number(gang_line(&a, "epoch", 0, 3), "loss");
    double y = gang_number(gang_line(&b, "epoch", 0, 3), "loss");
    assert_true(step_number(&a, 1, "loss") != step_number(&b, 1, "loss"));
    assert_true(fabs(x - y) < 0.05 * x);
    read_whole(&b, "model.safetensors", &file);
    int fine = 0;
    for (size_t i = file.len - 400; i + 4 <= file.len; i += 4)
        fine += file.data[i] != 0 || file.data[i + 1] != 0;
    assert_true(fine > 20);
    buf_done(&file);
    gang_close(&a);
    gang_close(&b);
}

/* ---- delayed ---- */

#define PLAIN(FIT)                                                                                 \
    "{\"name\": \"plain\", \"model\": {\"input\": [6], \"layers\": ["                              \
    "{\"type\": \"dense\", \"units\": 9, \"activation\": \"tanh\"},"                               \
    "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"                          \
    "\"compile\": {\"optimizer\": {\"name\": \"sgd\", \"learning_rate\": 0.1},"                    \
    "\"loss\": \"sparse_categorical_crossentropy\"},"                                              \
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 44, \"input\": 6, "            \
    "\"classes\": 4, \"seed\": 1}}, \"fit\": {\"shuffle\": false, \"seed\": 3, " FIT "}}"

static const struct form ONE = {.data = 1, .pipeline = 1, .microbatches = 1};

/* All samples in every batch: nothing has changed in step 2, and step 3 has what step 1 found. */
static void delayed_applies_one_step_late(void **state)
{
    (void)state;
    struct gang plain, late;
    struct form f = ONE;
    run_form(PLAIN("\"batch_size\": 44, \"steps\": 4"), &f, &plain);
    f.sync = SYNC_DELAYED;
    run_form(PLAIN("\"batch_size\": 44, \"steps\": 4"), &f, &late);
    double first = step_number(&plain, 0, "loss");
    assert_true(step_number(&late, 0, "loss") == first);
    assert_true(step_number(&late, 1, "loss") == first);
    assert_true(step_number(&late, 2, "loss") == step_number(&plain, 1, "loss"));
    assert_true(step_number(&late, 3, "loss") < step_number(&plain, 1, "loss"));
    assert_true(step_number(&late, 0, "grad_norm") == 0);
    assert_true(step_number(&late, 0, "learning_rate") == 0);
    assert_true(step_number(&late, 1, "grad_norm") == step_number(&plain, 0, "grad_norm"));
    gang_close(&plain);
    gang_close(&late);
}

/* One step is the last one, too: the gradient is applied at once. */
static void delayed_applies_the_last_gradient(void **state)
{
    (void)state;
    struct buf plain = BUF_INIT, late = BUF_INIT;
    struct form f = ONE;
    f.data = 2;
    weights_of(PLAIN("\"batch_size\": 44, \"steps\": 1"), &f, &plain);
    f.sync = SYNC_DELAYED;
    weights_of(PLAIN("\"batch_size\": 44, \"steps\": 1"), &f, &late);
    check_equal(&plain, &late);
    buf_done(&plain);
    buf_done(&late);
}

static void delayed_is_the_same_however_it_is_divided(void **state)
{
    (void)state;
    static const int DATA[] = {2, 3, 5};
    for (size_t i = 0; i < ARRAY_LEN(DATA); i++) {
        struct buf want = BUF_INIT;
        struct form f = {.data = DATA[i], .pipeline = 1, .microbatches = 1, .sync = SYNC_DELAYED};
        weights_of(i == 0 ? WIDE : DROPPING, &f, &want);
        for (int k = 1; k < 6; k++) {
            struct buf got = BUF_INIT;
            f.zero = k / 2;
            f.overlap = k % 2;
            weights_of(i == 0 ? WIDE : DROPPING, &f, &got);
            check_equal(&want, &got);
            buf_done(&got);
        }
        buf_done(&want);
    }
}

/* ---- local_sgd ---- */

/* Meeting after every step, plain gradient descent is what it is with summed gradients: for uneven
 * and empty shares, too. */
static void meeting_after_every_step_is_mirrored(void **state)
{
    (void)state;
    static const int DATA[] = {2, 3, 7};
    const char *const jobs[] = {PLAIN("\"batch_size\": 10, \"epochs\": 3"),
                                PLAIN("\"batch_size\": 4, \"epochs\": 2")};
    for (size_t j = 0; j < ARRAY_LEN(jobs); j++)
        for (size_t i = 0; i < ARRAY_LEN(DATA); i++) {
            struct gang mirrored, local;
            struct form f = ONE;
            f.data = DATA[i];
            run_form(jobs[j], &f, &mirrored);
            f.sync = SYNC_LOCAL_SGD;
            f.local_steps = 1;
            f.overlap = i % 2 == 0;
            run_form(jobs[j], &f, &local);
            for (size_t k = 0; k < gang_count(&mirrored, "step"); k++) {
                double a = step_number(&mirrored, k, "loss"), b = step_number(&local, k, "loss");
                if (!(fabs(a - b) <= 1e-5 * fabs(a)))
                    fail_msg("loss %zu is %.9g, not %.9g", k + 1, b, a);
            }
            gang_close(&mirrored);
            gang_close(&local);
        }
}

static void local_steps_of_one_rank_change_nothing(void **state)
{
    (void)state;
    struct buf plain = BUF_INIT, local = BUF_INIT;
    struct form f = ONE;
    weights_of(DROPPING, &f, &plain);
    f.sync = SYNC_LOCAL_SGD;
    f.local_steps = 3;
    weights_of(DROPPING, &f, &local);
    check_equal(&plain, &local);
    buf_done(&plain);
    buf_done(&local);
}

static void local_steps_learn(void **state)
{
    (void)state;
    static const struct form FORMS[] = {
        {.data = 2, .pipeline = 1, .microbatches = 1, .sync = SYNC_LOCAL_SGD, .local_steps = 4},
        {.data = 3,
         .pipeline = 2,
         .microbatches = 2,
         .sync = SYNC_LOCAL_SGD,
         .local_steps = 3,
         .overlap = 1},
        {.data = 2,
         .pipeline = 1,
         .microbatches = 1,
         .sync = SYNC_LOCAL_SGD,
         .local_steps = 2,
         .outer_rate = 0.7,
         .outer_momentum = 0.5,
         .precision = {.weights = STORAGE_BFLOAT16}},
    };
    for (size_t i = 0; i < ARRAY_LEN(FORMS); i++) {
        struct gang g;
        run_form("digits-mlp-sgd", &FORMS[i], &g);
        double first = gang_number(gang_line(&g, "epoch", 0, 0), "loss");
        double second = gang_number(gang_line(&g, "epoch", 0, 1), "loss");
        if (!(second < 0.8 * first))
            fail_msg("the loss went from %g to %g", first, second);
        gang_close(&g);
    }
}

/* ---- time in communication ---- */

static void communication_is_told_where_there_is_any(void **state)
{
    (void)state;
    for (int data = 1; data <= 2; data++) {
        struct gang g;
        struct form f = ONE;
        f.data = data;
        f.overlap = 1;
        run_form(DROPPING, &f, &g);
        const json_t *line = gang_line(&g, "step", 0, 3);
        assert_int_equal(json_object_get(line, "comm_exposed_us") != NULL, data > 1);
        assert_int_equal(json_object_get(line, "comm_hidden_us") != NULL, data > 1);
        if (data > 1) {
            double total = 0;
            for (size_t i = 0; i < gang_count(&g, "step"); i++) {
                assert_true(step_number(&g, i, "comm_exposed_us") >= 0);
                assert_true(step_number(&g, i, "comm_hidden_us") >= 0);
                total += step_number(&g, i, "comm_exposed_us");
                total += step_number(&g, i, "comm_hidden_us");
            }
            assert_true(total > 0);
        }
        gang_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bfloat16_is_the_same_on_every_mesh),
        cmocka_unit_test(bfloat16_learns_as_float32_does),
        cmocka_unit_test(delayed_applies_one_step_late),
        cmocka_unit_test(delayed_applies_the_last_gradient),
        cmocka_unit_test(delayed_is_the_same_however_it_is_divided),
        cmocka_unit_test(meeting_after_every_step_is_mirrored),
        cmocka_unit_test(local_steps_of_one_rank_change_nothing),
        cmocka_unit_test(local_steps_learn),
        cmocka_unit_test(communication_is_told_where_there_is_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
