/* The whole trainer on a GPU's backend, over an emulated CUDA: every reference run step by step
 * within its tolerance, whatever order blocks and streams run in; and what it says of its memory.
 */
#include "tests/unit/trainer_reference.h"

#include "spec/memory.h"

static const char *const REFERENCES[] = {"digits-mlp-sgd",    "synthetic-seed42",
                                         "digits-deep-adamw", "digits-conv-nesterov",
                                         "mnist-mlp-adam",    "cancer-batchnorm-binary"};

static void in_order(const char *order)
{
    assert_int_equal(setenv("TRAINYARD_EMU_ORDER", order, 1), 0);
}

/* ---- one GPU ---- */

static void run_reference(const char *name, const char *order, int data, struct buf *ret_weights)
{
    struct gang g;
    json_auto_t *doc = gang_job(name);
    print_message("           %s, %d rank%s, blocks %s\n", name, data, data > 1 ? "s" : "", order);
    in_order(order);
    gang_open(&g, doc, STRATEGY_MIRRORED, data, 1, 1, SCHEDULE_GPIPE);
    g.launch.plan.parallel.overlap = 1;
    gang_run(&g);
    slack = data > 1 && strcmp(name, "digits-mlp-sgd") == 0 ? 6 : 1;
    check_gang(&g, name);
    read_whole(&g, "model.safetensors", ret_weights);
    gang_close(&g);
}

/* The order of blocks and threads, which nobody promises, shows in no bit. */
static void follows_the_references(void **state)
{
    static const char *const orders[] = {"forward", "reverse", "shuffle:11"};
    const int *ranks = *state;
    for (size_t i = 0; i < ARRAY_LEN(REFERENCES); i++) {
        struct buf first = BUF_INIT;
        for (size_t o = 0; o < ARRAY_LEN(orders); o++) {
            struct buf weights = BUF_INIT;
            if (*ranks > 1 && o != i % ARRAY_LEN(orders))
                continue;
            run_reference(REFERENCES[i], orders[o], *ranks, &weights);
            if (first.len == 0)
                buf_add(&first, weights.data, weights.len);
            assert_int_equal(first.len, weights.len);
            assert_memory_equal(first.data, weights.data, weights.len);
            buf_done(&weights);
        }
        buf_done(&first);
    }
}

int main(void)
{
    int one = 1, two = 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(follows_the_references, &one),
        cmocka_unit_test_prestate(follows_the_references, &two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
