/* A GPU's memory: what is foretold against what is taken, and what is said when there is too
 * little.
 */
#include "tests/unit/trainer_gang.h"

#include "base/mem.h"

#define LAYER(n) "{\"type\": \"dense\", \"units\": " #n ", \"activation\": \"relu\"},"

/* 9.8 million parameters; with bfloat16 all that is packed and unpacked as well. */
static const char large[] =
    "{\"model\": {\"input\": [600], \"layers\": [" LAYER(2300) LAYER(2000) LAYER(
        1500) "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"
              "\"compile\": {\"optimizer\": \"adam\", \"loss\": "
              "\"sparse_categorical_crossentropy\"},"
              "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 64, \"input\": 600, "
              "\"classes\": 4, \"seed\": 1}}, \"resources\": {\"device\": \"gpu\"},"
              "\"fit\": {\"batch_size\": 32, \"steps\": 2}}";

static void open_large(struct gang *g, int data, int zero, int microbatches)
{
    json_auto_t *doc = gang_job(large);
    gang_open(g, doc, STRATEGY_MIRRORED, data, 1, microbatches, SCHEDULE_GPIPE);
    g->launch.plan.zero = zero;
}

static void within(const char *what, double want, double got, double share)
{
    print_message("           %s: %.1f MiB foretold, %.1f MiB\n", what, want / 1048576,
                  got / 1048576);
    if (!(got <= want * (1 + 1e-9) && got >= (1 - share) * want))
        fail_msg("%s: %.0f bytes foretold, %.0f", what, want, got);
}

static void what_is_foretold_is_taken(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct gang g;
        open_large(&g, 1, 0, 1 + kind % 2);
        if (kind >= 2)
            g.launch.spec->precision = (struct precision){.weights = STORAGE_BFLOAT16,
                                                          .activations = STORAGE_BFLOAT16,
                                                          .moments = STORAGE_BFLOAT16,
                                                          .compute = COMPUTE_BFLOAT16};
        double planned = (double)plan_memory(g.launch.spec, &g.launch.plan);
        gang_run(&g);
        const json_t *line = gang_line(&g, "memory", 0, 0);
        double ready = gang_number(line, "memory_bytes");
        within("a rank, at its start", ready, gang_number(line, "measured_bytes"), 0.05);
        within("a plan", planned, ready, 0.05);
        gang_close(&g);
    }
}

/* The sentence has the numbers, and what would fit; the peers hear of it. */
static void too_little(void **state)
{
    (void)state;
    struct gang g;
    open_large(&g, 1, 0, 1);
    assert_int_equal(setenv("TRAINYARD_EMU_MEMORY", "200000000", 1), 0);
    assert_int_equal(gang_prepare(&g), 0);
    gang_start(&g);
    gang_wait(&g);
    unsetenv("TRAINYARD_EMU_MEMORY");
    assert_int_equal(g.status[0], TRAIN_PERMANENT);
    const json_t *line = gang_line(&g, "verdict", 0, 0);
    assert_string_equal(gang_text(line, "code"), "device_out_of_memory");
    const char *why = gang_text(line, "reason");
    print_message("           %s\n", why);
    assert_non_null(strstr(why, "Rank 0 needs "));
    assert_non_null(strstr(why, "the device has 190.7 MiB"));
    assert_non_null(strstr(why, "\"zero\" or \"pipeline\""));
    assert_null(gang_line(&g, "ready", 0, 0));
    gang_close(&g);
}

/* The run's verdict with a setting of the emulation. */
static void ends(const char *name, const char *value, int status, const char *code,
                 const char *words)
{
    struct gang g;
    json_auto_t *doc = gang_job(SMALL("40", "10", , "\"epochs\": 2"));
    gang_open(&g, doc, STRATEGY_NONE, 1, 1, 1, SCHEDULE_GPIPE);
    assert_int_equal(gang_prepare(&g), 0);
    assert_int_equal(setenv(name, value, 1), 0);
    gang_start(&g);
    gang_wait(&g);
    unsetenv(name);
    const json_t *line = gang_line(&g, "verdict", 0, 0);
    const char *why = gang_text(line, "reason");
    print_message("           %s=%s: %d, %s: %s\n", name, value, g.status[0],
                  gang_text(line, "code"), why);
    assert_int_equal(g.status[0], status);
    assert_string_equal(gang_text(line, "code"), code);
    assert_non_null(strstr(why, words));
    gang_close(&g);
}

/* Another device may do; its memory is not at fault, and nor is the node's disk. */
static void a_device_that_cannot_be_used(void **state)
{
    (void)state;
    ends("TRAINYARD_EMU_FAIL", "INIT:1:cudaErrorNoDevice", TRAIN_RETRY, "device_failed",
         "CUDA sees no GPU");
    ends("TRAINYARD_EMU_FAIL", "INIT:1:cudaErrorInsufficientDriver", TRAIN_RETRY, "device_failed",
         "driver");
    ends("TRAINYARD_EMU_FAIL", "SET:2:cudaErrorECCUncorrectable", TRAIN_RETRY, "device_failed",
         "could not clear memory");
    ends("TRAINYARD_EMU_FAIL", "QUERY:3:cudaErrorECCUncorrectable", TRAIN_RETRY, "device_failed",
         "could not finish its work");
    ends("TRAINYARD_EMU_FAIL", "KERNEL:40:cudaErrorECCUncorrectable", TRAIN_RETRY, "device_failed",
         "the GPU must be reset");
    ends("TRAINYARD_EMU_FAIL", "LAUNCH:12:cudaErrorMemoryAllocation", TRAIN_PERMANENT,
         "device_out_of_memory", "the GPU's memory is full");
    ends("TRAINYARD_EMU_FAIL", "MALLOC_HOST:1", TRAIN_PERMANENT, "out_of_memory",
         "page-locked host memory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_foretold_is_taken),
        cmocka_unit_test(too_little),
        cmocka_unit_test(a_device_that_cannot_be_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
