/* spec_strategy.c: strategies that do not hold together, or not with the rest of the job. */
#include "tests/unit/spec_answers.h"

static const char good[] =
    "{\"name\": \"t\", \"model\": {\"input\": [64], \"layers\": [{\"type\": \"dense\", \"units\": "
    "32, \"activation\": \"relu\"},{\"type\": \"dense\", \"units\": 32, \"activation\": "
    "\"relu\"},{\"type\": \"dense\", \"units\": 32, \"activation\": \"relu\"},{\"type\": "
    "\"dense\", \"units\": 10, \"activation\": \"softmax\"}]},\"compile\": {\"optimizer\": "
    "{\"name\": \"adam\"}, \"loss\": \"sparse_categorical_crossentropy\", \"metrics\": "
    "[\"accuracy\"]},\"data\": {\"train\": {\"format\": \"csv\", \"path\": "
    "\"digits.csv.gz\"}},\"fit\": {\"epochs\": 2, \"batch_size\": 64}, \"resources\": "
    "{\"devices\": 4},\"strategy\": \"mirrored\"}";

static const struct wrong wrongs[] = {
    /* names */
    {.changes = {{"/strategy", "\"multi_worker_mirrored\""}},
     .warnings = {{"/strategy", "unsupported",
                   "This version places all ranks on one node, so \"multi_worker_mirrored\" runs "
                   "as \"mirrored\", with the same result.",
                   "Write \"mirrored\" to be spared this warning."}}},
    {.changes = {{"/strategy", "\"none\""}},
     .faults = {{"/strategy", "devices_mismatch",
                 "The strategy \"none\" trains on one device, but /resources/devices is 4.",
                 "Write \"mirrored\" to use them all, or set /resources/devices to 1."}}},
    {.changes = {{"/strategy", "\"fsdp\""}},
     .faults = {{"/strategy", "unsupported", "\"fsdp\" is not the name of a strategy here.",
                 "Write a mesh such as {\"data\": 4, \"zero\": 3}."}}},
    {.changes = {{"/strategy", "\"interleaved\""}},
     .faults = {{"/strategy", "unsupported", "\"interleaved\" is not the name of a strategy here.",
                 "Write a mesh such as {\"pipeline\": 2, \"schedule\": \"interleaved\"}."}}},
    {.changes = {{"/strategy", "\"mirored\""}},
     .faults = {{"/strategy", "unknown_value",
                 "\"mirored\" is not a strategy that this version knows.",
                 "Did you mean \"mirrored\"? This version has auto, none, mirrored, pipeline, "
                 "segment_ensemble, tensor and local_sgd."}}},
    {.changes = {{"/strategy", "{\"name\": \"local_sgd\"}"}},
     .faults = {{"/strategy/name", "invalid",
                 "A strategy is a name alone or a mesh of sizes, not both.",
                 "Write \"strategy\": \"local_sgd\", or a mesh such as {\"data\": 1, \"pipeline\": "
                 "2}."}}},
    {.changes = {{"/strategy", "{}"}},
     .faults = {{"/strategy", "required", "This mesh is empty.",
                 "For example: {\"data\": 2, \"pipeline\": 1}."}}},
    /* sizes */
    {.changes = {{"/strategy", "{\"data\": 2, \"pipeline\": 2, \"tensor\": 2}"}},
     .faults = {{"/strategy", "mesh_mismatch",
                 "data 2 times pipeline 2 times tensor 2 is 8, but /resources/devices is 4.",
                 "Set /resources/devices to 8, or the mesh to 4."}}},
    {.changes = {{"/strategy", "{\"data\": 2}"}},
     .faults = {{"/strategy", "mesh_mismatch",
                 "data 2 times pipeline 1 is 2, but /resources/devices is 4.",
                 "Set /resources/devices to 2, or the mesh to 4."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"microbatches\": 65}"}},
     .warnings = {{"/strategy/microbatches", "wasteful",
                   "65 micro-batches of a batch of 64 items leave some of them empty.", NULL}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"zero\": 4}"}},
     .faults = {{"/strategy/zero", "out_of_range",
                 "\"zero\" must be a whole number from 0 to 3, but is 4.",
                 "The nearest that works is 3."}}},
    /* stages */
    {.changes = {{"/strategy", "\"pipeline\""}, {"/resources/devices", "5"}},
     .faults = {{"/strategy", "too_many_stages",
                 "A pipeline of 5 stages needs as many layers with work, but the model has 4.",
                 "Use up to 4, or add data parallelism with a mesh such as {\"data\": 2, "
                 "\"pipeline\": 4} over 8 devices."}}},
    {.changes = {{"/strategy", "{\"pipeline\": 4, \"chunks\": 2}"}},
     .faults = {{"/strategy", "too_many_stages",
                 "A pipeline of 8 stages needs as many layers with work, but the model has 4.",
                 "Use fewer \"chunks\" or pipeline ranks: up to 4 stages."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"chunks\": 2}"}},
     .faults = {{"/strategy/chunks", "conflict",
                 "Chunks of the model (\"interleaved\") are spread over 2 or more pipeline ranks, "
                 "but there is one.",
                 "Add \"pipeline\": 2, or leave it out."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"schedule\": \"interleaved\"}"}},
     .faults = {{"/strategy/schedule", "conflict",
                 "Chunks of the model (\"interleaved\") are spread over 2 or more pipeline ranks, "
                 "but there is one.",
                 "Add \"pipeline\": 2, or leave it out."}}},
    {.changes = {{"/strategy",
                  "{\"data\": 2, \"pipeline\": 2, \"chunks\": 2, \"schedule\": \"1f1b\"}"}},
     .faults = {{"/strategy/chunks", "conflict",
                 "More than one chunk a rank is what \"interleaved\" means; \"1f1b\" has one.",
                 "Write \"schedule\": \"interleaved\", or leave one of the two out."}}},
    {.changes = {{"/strategy",
                  "{\"data\": 2, \"pipeline\": 2, \"chunks\": 1, \"schedule\": \"interleaved\"}"}},
     .faults = {{"/strategy/chunks", "conflict",
                 "\"interleaved\" with one chunk a rank is \"1f1b\".",
                 "Write \"chunks\": 2, or \"schedule\": \"1f1b\"."}}},
    /* the same bits */
    {.changes = {{"/strategy", "{\"data\": 4, \"reproducible\": true, \"grains\": 12}"}},
     .faults = {{"/strategy/grains", "invalid",
                 "The grains of a reproducible batch are added in pairs, so \"grains\" must be 1, "
                 "2, 4, 8, 16, 32 or 64, but is 12.",
                 "Write 16."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"reproducible\": true, \"grains\": 2}"}},
     .faults =
         {{"/strategy/data", "conflict",
           "A reproducible batch is cut into 2 grains, which 4 data ranks cannot divide evenly.",
           "Write \"grains\": 4 (other grains are other bits)."}}},
    {.changes = {{"/strategy", "{\"data\": 3, \"reproducible\": true}"},
                 {"/resources/devices", "3"}},
     .faults =
         {{"/strategy/data", "conflict",
           "A reproducible batch is cut into 8 grains, which 3 data ranks cannot divide evenly.",
           "Use 1, 2, 4, ... data ranks, up to 64, and the other ranks for a pipeline."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"reproducible\": true, \"microbatches\": 4}"}},
     .faults = {{"/strategy/microbatches", "conflict",
                 "The micro-batches of a reproducible run are its grains: 8 by 4 data ranks makes "
                 "2, not 4.",
                 "Leave it out, or write 2."}}},
    {.changes = {{"/strategy", "{\"reproducible\": true, \"microbatches\": 4}"}},
     .faults = {{"/strategy/microbatches", "conflict",
                 "The micro-batches of a reproducible run are its grains: 8 by the number of data "
                 "ranks, which is chosen here.",
                 "Leave it out, or say \"data\" too."}}},
    {.changes = {{"/strategy", "{\"data\": 2, \"tensor\": 2, \"reproducible\": true}"}},
     .faults = {{"/strategy/tensor", "conflict",
                 "Layers split over tensor ranks add their parts in another order than a whole "
                 "layer, so the bits cannot be the same.",
                 "Use data or pipeline ranks instead."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"reproducible\": true, \"sync\": \"delayed\"}"}},
     .faults = {{"/strategy/sync", "conflict",
                 "The same bits are promised where data ranks agree at every step; \"delayed\" is "
                 "other mathematics.",
                 "Leave it out, or \"reproducible\"."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"reproducible\": true, \"shares\": \"measured\"}"}},
     .faults = {{"/strategy/shares", "conflict",
                 "Measured shares follow the ranks' speeds, but grains are always cut alike.",
                 "Leave it out, or \"reproducible\"."}}},
    /* what data ranks do for one another */
    {.changes = {{"/strategy", "{\"data\": 4, \"zero\": 1, \"sync\": \"local_sgd\"}"}},
     .faults = {{"/strategy/zero", "conflict",
                 "With local_sgd each data rank has weights and optimizer state of its own, so "
                 "there is nothing that they could divide.",
                 "Write \"zero\": 0, or leave \"sync\" out."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"sync\": \"local_sgd\", \"codec\": \"bf16\"}"}},
     .faults = {{"/strategy/codec", "conflict",
                 "A codec packs gradients, and with local_sgd none travel: only weights do, every "
                 "8 steps.",
                 "Leave one of the two out."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"zero\": 1, \"codec\": \"bf16\"}"}},
     .faults = {{"/strategy/zero", "conflict",
                 "Packed gradients are added up whole on every data rank, so there is nothing that "
                 "they could divide.",
                 "Write \"zero\": 0, or leave \"codec\" out."}}},
    {.changes = {{"/strategy", "{\"data\": 2, \"tensor\": 2, \"codec\": \"top_k\"}"}},
     .faults = {{"/strategy/codec", "conflict",
                 "What the codec \"top_k\" rounds an element to depends on its neighbours, which "
                 "differ between tensor ranks, so parameters that all of them have would become "
                 "unlike.",
                 "Write \"codec\": \"bf16\", or leave one of the two out."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"reproducible\": true, \"codec\": \"int8\"}"}},
     .faults = {{"/strategy/codec", "conflict",
                 "The codec \"int8\" rounds what each data rank sends, so the bits depend on how "
                 "many there are.",
                 "Leave it out, or \"reproducible\"."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"sync\": \"delayed\", \"zero\": 3}"}},
     .faults = {{"/strategy/zero", "conflict",
                 "With \"zero\": 3 the next step must wait for the new parameters of every layer, "
                 "so that delayed gradients hide nothing.",
                 "Write \"zero\": 2 or less, or leave \"sync\" out."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"codec\": \"fp16\"}"}},
     .faults = {{"/strategy/codec", "unknown_value",
                 "\"fp16\" is not a codec that this version knows.",
                 "Did you mean \"bf16\"? This version has none, bf16, int8 and top_k."}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"codec\": \"top_k\", \"top_k\": 0}"}},
     .faults = {{"/strategy/top_k", "out_of_range",
                 "\"top_k\" must be a number above 0 and at most 1, but is 0.",
                 "Write a number above 0, such as 0.01."}}},
    /* what has no effect */
    {.changes = {{"/strategy",
                  "{\"data\": 4, \"grains\": 4, \"local_steps\": 2, \"outer_momentum\": 0.9, "
                  "\"outer_learning_rate\": 0.7, \"top_k\": 0.1}"}},
     .warnings = {{"/strategy/grains", "no_effect",
                   "\"grains\" has no effect without \"reproducible\": true.", NULL},
                  {"/strategy/local_steps", "no_effect",
                   "\"local_steps\" has no effect without \"sync\": \"local_sgd\".", NULL},
                  {"/strategy/outer_learning_rate", "no_effect",
                   "\"outer_learning_rate\" has no effect without \"sync\": \"local_sgd\".", NULL},
                  {"/strategy/outer_momentum", "no_effect",
                   "\"outer_momentum\" has no effect without \"sync\": \"local_sgd\".", NULL},
                  {"/strategy/top_k", "no_effect",
                   "\"top_k\" has no effect without \"codec\": \"top_k\".", NULL}}},
    {.changes = {{"/strategy",
                  "{\"pipeline\": 4, \"zero\": 1, \"shares\": \"measured\", \"overlap\": true}"}},
     .warnings = {{"/strategy/zero", "no_effect",
                   "\"zero\" has no effect without 2 or more data ranks.", NULL},
                  {"/strategy/shares", "no_effect",
                   "\"shares\" has no effect without 2 or more data ranks.", NULL},
                  {"/strategy/overlap", "no_effect",
                   "\"overlap\" has no effect without data ranks that exchange gradients.", NULL}}},
    {.changes = {{"/strategy", "{\"data\": 4, \"rebalance\": true}"}},
     .warnings = {{"/strategy/rebalance", "no_effect",
                   "\"rebalance\" has no effect without a pipeline of 2 or more stages.", NULL}}},
};

static void test_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrongs); i++) {
        print_message("%s\n", wrongs[i].changes[0].value);
        answers_expect(good, &wrongs[i]);
    }
}

/* Right, and without a warning. */
static void test_right(void **state)
{
    (void)state;
    static const char *const meshes[] = {
        "\"auto\"",
        "\"local_sgd\"",
        "\"tensor\"",
        "{\"reproducible\": true, \"rebalance\": true}",
        "{\"data\": 4, \"reproducible\": true, \"microbatches\": 2, \"zero\": 3}",
        "{\"data\": 4, \"reproducible\": true, \"grains\": 64, \"overlap\": true}",
        "{\"pipeline\": 4, \"reproducible\": true, \"recompute\": \"all\"}",
        "{\"data\": 2, \"tensor\": 2, \"zero\": 2, \"microbatches\": 3}",
        "{\"data\": 4, \"sync\": \"delayed\", \"zero\": 2}",
        "{\"data\": 4, \"overlap\": true}",
        "{\"data\": 4, \"sync\": \"local_sgd\", \"local_steps\": 16, \"outer_momentum\": 0.9}",
        "{\"data\": 2, \"pipeline\": 2, \"schedule\": \"interleaved\", \"rebalance\": true}",
        "{\"data\": 4, \"shares\": \"measured\"}",
    };
    for (size_t i = 0; i < ARRAY_LEN(meshes); i++) {
        print_message("%s\n", meshes[i]);
        answers_expect(good, &(struct wrong){.changes = {{"/strategy", meshes[i]}}, .strict = 1});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
