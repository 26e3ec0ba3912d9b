/* Going on from checkpoints: what comes after is what would have come, wherever a run was left and
 * whatever mesh goes on. */
#include "tests/unit/trainer_checkpoints.h"

/* `data` x `pipeline` ranks go on from each checkpoint in turn. */
static void check_resumes(const struct gang *whole, struct resume_list *list, struct store *s,
                          int data, int pipeline, double tolerance)
{
    for (int i = 0; i < list->count; i++) {
        struct gang g;
        int64_t step = list->items[i].step;
        gang_open_with(&g, RESUMABLE, data, pipeline, s, 0);
        resume_from(&g, &list->items[i], 1);
        gang_run(&g);
        assert_int_equal(gang_number(gang_line(&g, "start", 0, 0), "from_step"), step);
        same_rest(whole, &g, step, RESUMABLE_STEPS, tolerance);
        assert_non_null(epoch_line(&g, 2));
        assert_int_equal(epoch_line(&g, 1) != NULL, step <= 13);
        if (tolerance == 0)
            same_weights(whole, &g);
        gang_close(&g);
    }
}

/* A run and one that was left and gone on with after each of its steps: in the midst of the first
 * epoch, at the border, in the second, and when all steps are done. */
static void check_every_step(int data, int pipeline)
{
    struct store s;
    struct gang whole, saved;
    struct resume_list list;
    store_open(&s);
    gang_open_with(&whole, RESUMABLE, data, pipeline, &s, 0);
    gang_run(&whole);
    gang_open_with(&saved, RESUMABLE, data, pipeline, &s, 0);
    gang_save_every(&saved, 1);
    list_checkpoints(&saved, &list);
    assert_int_equal(list.count, RESUMABLE_STEPS);
    check_resumes(&whole, &list, &s, data, pipeline, 0);
    list_done(&list);
    gang_close(&saved);
    gang_close(&whole);
    store_close(&s);
}

static void to_the_bit_after_any_step(void **state)
{
    (void)state;
    check_every_step(1, 1);
    check_every_step(3, 1);
    check_every_step(1, 2);
    check_every_step(2, 2);
}

/* Written by four ranks, gone on with by other numbers of them, and other cuts. Sums over ranks are
 * rounded otherwise, so the losses agree as they do between meshes. */
static void at_any_other_mesh(void **state)
{
    (void)state;
    static const int meshes[][2] = {{1, 1}, {2, 1}, {3, 1}, {8, 1}, {1, 2}, {1, 3}, {2, 3}};
    static const int writers[][2] = {{4, 1}, {2, 2}};
    for (size_t w = 0; w < ARRAY_LEN(writers); w++) {
        struct store s;
        struct gang whole, saved;
        struct resume_list list;
        store_open(&s);
        gang_open_with(&whole, RESUMABLE, writers[w][0], writers[w][1], &s, 0);
        gang_run(&whole);
        gang_open_with(&saved, RESUMABLE, writers[w][0], writers[w][1], &s, 0);
        gang_save_every(&saved, 5);
        list_checkpoints(&saved, &list);
        for (size_t m = 0; m < ARRAY_LEN(meshes); m++)
            check_resumes(&whole, &list, &s, meshes[m][0], meshes[m][1], 2e-5);
        list_done(&list);
        gang_close(&saved);
        gang_close(&whole);
        store_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(to_the_bit_after_any_step),
        cmocka_unit_test(at_any_other_mesh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
