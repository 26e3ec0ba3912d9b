/* What a step costs between host and device, counted: the host waits for the device once, nothing
 * is allocated, and what is asked is asked alike, so that graphs stand for it. */
#include "tests/unit/trainer_gang.h"

#include "trainer/cuda/ops_cuda.h"

static const char job[] =
    "{\"model\": {\"input\": [784], \"layers\": ["
    "{\"type\": \"dense\", \"units\": 128, \"activation\": \"relu\"},"
    "{\"type\": \"dense\", \"units\": 10, \"activation\": \"softmax\"}]},"
    "\"compile\": {\"optimizer\": \"adam\", \"loss\": \"sparse_categorical_crossentropy\"},"
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 1280, \"input\": 784, "
    "\"classes\": 10, \"seed\": 1}}, \"fit\": {\"batch_size\": 64, \"steps\": 20}}";

/* From here on steps are alike. */
#define WARM  6
#define STEPS 20

static int run_steps(struct engine *n, struct cuda_counts *ret, int64_t *ret_used, struct err *e)
{
    struct step_result s;
    int r = 0;
    engine_begin_epoch(n, 1);
    for (int64_t k = 0; r == 0 && k < STEPS; k++) {
        r = engine_step(n, k, &s, e);
        if (k == WARM - 1) {
            *ret = cuda_counts();
            *ret_used = cuda_used();
        }
    }
    return r;
}

static void check_steps(struct gang *g)
{
    struct engine n;
    struct engine_fds fds = gang_fds(g);
    struct cuda_counts before = {0};
    struct err e = {0};
    int64_t used = 0;
    if (engine_open(&n, &g->launch, 0, &fds, NULL, &e) < 0 || run_steps(&n, &before, &used, &e) < 0)
        fail_msg("%s", e.text);
    struct cuda_counts now = cuda_counts();
    int steps = STEPS - WARM;
    print_message("           %d steps: %lld waits, %lld tapes, %lld of them graphs\n", steps,
                  (long long)(now.waits - before.waits),
                  (long long)(now.direct + now.replayed - before.direct - before.replayed),
                  (long long)(now.replayed - before.replayed));
    assert_true(now.waits - before.waits <= steps);
    assert_true(now.direct - before.direct <= 2 * steps); /* the update; the squares */
    assert_true(now.replayed - before.replayed >= steps);
    assert_int_equal(cuda_used(), used);
    engine_close(&n);
}

static void a_step_waits_once(void **state)
{
    (void)state;
    struct gang g;
    json_auto_t *doc = gang_job(job);
    gang_open(&g, doc, STRATEGY_NONE, 1, 1, 1, SCHEDULE_GPIPE);
    assert_int_equal(gang_prepare(&g), 0);
    check_steps(&g);
    gang_close(&g);
}

/* Two archives have a backend: tests and programs over CUDA are worth nothing with the other one.
 */
static void the_backend_is_the_gpu(void **state)
{
    (void)state;
    assert_int_equal(backend.kind, DEVICE_GPU);
    assert_ptr_equal(backend.ops, &ops_cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_backend_is_the_gpu),
        cmocka_unit_test(a_step_waits_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
