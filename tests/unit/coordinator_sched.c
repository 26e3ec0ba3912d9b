/* The queue of shapes and pure placement: order, backfill, packing, blocking, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "daemon/coordinator/sched.h"

struct placed {
    char id[ID_SIZE];
    char node[16];
    int64_t device[8];
    int64_t count;
};

struct cluster {
    struct queue queue;
    struct nodes nodes;
    struct placed placed[1000];
    int placed_count;
    int fail_with;
    struct job_row jobs[1000];
    int job_count;
};

static struct node *add_node(struct cluster *c, const char *name, int cpus, int gpus,
                             int64_t memory)
{
    struct node *n = nodes_get(&c->nodes, name);
    json_auto_t *devices = json_array();
    for (int i = 0; i < cpus + gpus; i++)
        json_array_append_new(devices, json_pack("{s:i, s:s, s:I, s:s}", "index", i, "kind",
                                                 i < cpus ? "cpu" : "gpu", "memory_bytes",
                                                 (json_int_t)memory, "name", "d"));
    struct err e = {0};
    assert_int_equal(node_set_devices(n, devices, &e), 1);
    n->health = NODE_READY;
    n->seen_us = 1;
    return n;
}

static struct job_row *add_job(struct cluster *c, int64_t priority, int64_t devices, int kind,
                               int64_t memory)
{
    struct job_row *j = &c->jobs[c->job_count++];
    j->seq = c->job_count;
    j->id = mem_printf("job-%d", c->job_count);
    j->priority = priority;
    j->devices = devices;
    j->device_kind = kind;
    j->memory = memory;
    queue_add(&c->queue, j);
    return j;
}

static struct job_row *job_named(struct cluster *c, const char *id)
{
    for (int i = 0; i < c->job_count; i++)
        if (strcmp(c->jobs[i].id, id) == 0)
            return &c->jobs[i];
    fail();
    return NULL;
}

static int assign(void *ctx, const struct queued *job, struct node *n,
                  struct device *const *devices, int64_t count, struct err *e)
{
    struct cluster *c = ctx;
    if (c->fail_with)
        return err_set(e, c->fail_with, "as asked");
    struct placed *p = &c->placed[c->placed_count++];
    snprintf(p->id, sizeof(p->id), "%s", job->id);
    snprintf(p->node, sizeof(p->node), "%s", n->name);
    p->count = count;
    for (int64_t i = 0; i < count; i++) {
        assert_true(node_device_free(devices[i]));
        if (i < 8)
            p->device[i] = devices[i]->index;
        snprintf(devices[i]->attempt, sizeof(devices[i]->attempt), "%s", job->id);
    }
    assert_int_equal(queue_remove(&c->queue, job_named(c, job->id)), 1);
    return 0;
}

static int pass(struct cluster *c)
{
    struct err e = {0};
    return sched_pass(&c->queue, &c->nodes, assign, c, &e);
}

static int setup(void **state)
{
    *state = mem_zalloc(sizeof(struct cluster));
    return 0;
}

static int teardown(void **state)
{
    struct cluster *c = *state;
    queue_done(&c->queue);
    nodes_done(&c->nodes);
    for (int i = 0; i < c->job_count; i++)
        free(c->jobs[i].id);
    free(c);
    return 0;
}

static void no_nodes_place_nothing(void **state)
{
    struct cluster *c = *state;
    assert_int_equal(pass(c), 0);
    add_job(c, 0, 1, DEVICE_ANY, 0);
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 0);
    assert_int_equal(c->queue.jobs, 1);
}

static void priority_then_age(void **state)
{
    struct cluster *c = *state;
    add_node(c, "n1", 1, 0, 0);
    add_job(c, 0, 1, DEVICE_CPU, 0);
    add_job(c, 5, 1, DEVICE_ANY, 0);
    add_job(c, 5, 1, DEVICE_CPU, 0);
    const char *order[] = {"job-2", "job-3", "job-1"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pass(c), 0);
        assert_int_equal(c->placed_count, i + 1);
        assert_string_equal(c->placed[i].id, order[i]);
        node_release(c->nodes.items[0], order[i]);
        queue_unblock(&c->queue);
    }
}

static void impossible_jobs_hold_up_nobody(void **state)
{
    struct cluster *c = *state;
    add_node(c, "n1", 4, 0, 100);
    add_job(c, 9, 16, DEVICE_CPU, 0);  /* never fits */
    add_job(c, 9, 1, DEVICE_GPU, 0);   /* no such device */
    add_job(c, 9, 1, DEVICE_CPU, 101); /* too little memory */
    add_job(c, 1, 3, DEVICE_CPU, 0);
    add_job(c, 0, 2, DEVICE_CPU, 0); /* does not fit beside the one before */
    add_job(c, 0, 1, DEVICE_CPU, 100);
    assert_int_equal(pass(c), 0);
    assert_string_equal(c->placed[0].id, "job-4");
    assert_int_equal(queue_has_candidates(&c->queue), 0);
    assert_int_equal(c->placed_count, 2);
    assert_string_equal(c->placed[1].id, "job-6");
    assert_int_equal(c->placed[1].device[0], 3);
}

/* Narrow jobs keep coming and would fill every hole; the wide one starts when the four that were
 * there before it have ended. */
static void a_wide_job_is_not_starved(void **state)
{
    struct cluster *c = *state;
    struct node *n = add_node(c, "n1", 4, 0, 0);
    for (int i = 0; i < 4; i++)
        add_job(c, 0, 1, DEVICE_CPU, 0);
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 4);
    struct job_row *wide = add_job(c, 0, 4, DEVICE_CPU, 0);
    for (int i = 0; i < 4; i++) {
        add_job(c, 0, 1, DEVICE_CPU, 0);
        assert_int_equal(pass(c), 0);
        assert_int_equal(node_release(n, c->placed[i].id), 1);
        queue_unblock(&c->queue);
        assert_int_equal(pass(c), 0);
        assert_int_equal(c->placed_count, i < 3 ? 4 : 5);
    }
    assert_string_equal(c->placed[4].id, wide->id);
}

/* Two of four devices suffice for the wide job: the other two go to those behind it, but no more.
 */
static void those_behind_get_what_the_wide_job_can_spare(void **state)
{
    struct cluster *c = *state;
    struct node *n = add_node(c, "n1", 4, 0, 0);
    for (int i = 0; i < 3; i++)
        add_job(c, 0, 1, DEVICE_CPU, 0);
    assert_int_equal(pass(c), 0);
    struct job_row *wide = add_job(c, 0, 2, DEVICE_CPU, 0);
    for (int i = 0; i < 4; i++)
        add_job(c, 0, 1, DEVICE_CPU, 0);
    static const int placed[] = {4, 5, 5, 6};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pass(c), 0);
        assert_int_equal(c->placed_count, placed[i]);
        if (i < 3)
            assert_int_equal(node_release(n, c->placed[i].id), 1);
        queue_unblock(&c->queue);
    }
    assert_string_equal(c->placed[5].id, wide->id);
}

static void one_node_is_kept_and_only_from_those_behind(void **state)
{
    struct cluster *c = *state;
    struct node *a = add_node(c, "a", 3, 1, 0), *b = add_node(c, "b", 3, 0, 0);
    snprintf(a->devices[0].attempt, ID_SIZE, "x");
    snprintf(b->devices[0].attempt, ID_SIZE, "y");
    snprintf(b->devices[1].attempt, ID_SIZE, "z");
    add_job(c, 1, 3, DEVICE_CPU, 0); /* waits for a, which has two of three free */
    add_job(c, 0, 1, DEVICE_CPU, 0);
    add_job(c, 0, 1, DEVICE_CPU, 0);
    add_job(c, 0, 1, DEVICE_GPU, 0);
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 2);
    assert_string_equal(c->placed[0].id, "job-2");
    assert_string_equal(c->placed[0].node, "b");
    assert_string_equal(c->placed[1].id, "job-4"); /* a's device of another kind */
    add_job(c, 0, 1, DEVICE_ANY, 0);               /* a later pass knows it too */
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 2);
    add_job(c, 2, 1, DEVICE_CPU, 0); /* before the wide one in the order */
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 3);
    assert_string_equal(c->placed[2].node, "a");
    a->health = NODE_LOST; /* nothing to wait for: the others go on */
    node_release(b, "y");
    queue_unblock(&c->queue);
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 3); /* now b is kept, which could run it too */
    b->health = NODE_LOST;
    a->health = NODE_READY;
    node_release(a, "x");
    node_release(a, c->placed[2].id);
    queue_unblock(&c->queue);
    assert_int_equal(pass(c), 0);
    assert_string_equal(c->placed[3].id, "job-1");
}

/* As a coordinator loads them: the newest first. Each must cost the same, however many there are.
 */
static void loading_many_of_a_shape_is_linear(void **state)
{
    struct cluster *c = *state;
    struct job_row job = {.id = (char *)"job-x", .devices = 1, .device_kind = DEVICE_CPU};
    struct timespec from, to;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (job.seq = 300000; job.seq > 0; job.seq--)
        queue_add(&c->queue, &job);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    assert_int_equal(c->queue.jobs, 300000);
    assert_true(to.tv_sec - from.tv_sec < 20); /* some 0.05 s; moving all of them took minutes */
    struct need need = {.devices = 1, .kind = DEVICE_CPU};
    assert_int_equal(queue_class_head(queue_find(&c->queue, 0, &need))->seq, 1);
    job.seq = 300001;
    queue_add(&c->queue, &job);
    assert_int_equal(queue_ahead(&c->queue, 0, 300001), 300000);
}

static void a_blocked_shape_is_not_tried_until_devices_are_freed(void **state)
{
    struct cluster *c = *state;
    struct node *n = add_node(c, "n1", 1, 0, 0);
    snprintf(n->devices[0].attempt, ID_SIZE, "other");
    add_job(c, 0, 1, DEVICE_CPU, 0);
    assert_int_equal(pass(c), 0);
    node_release(n, "other");
    add_job(c, 0, 1, DEVICE_CPU, 0);
    assert_int_equal(queue_has_candidates(&c->queue), 0);
    add_job(c, 0, 2, DEVICE_CPU, 0); /* another shape is tried */
    assert_int_equal(queue_has_candidates(&c->queue), 1);
    queue_unblock(&c->queue);
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 1);
    assert_string_equal(c->placed[0].id, "job-1");
}

static void all_ranks_on_one_node_packed_tightly(void **state)
{
    struct cluster *c = *state;
    add_node(c, "big", 8, 0, 0);
    add_node(c, "small", 3, 0, 0);
    add_job(c, 0, 2, DEVICE_CPU, 0);
    add_job(c, 0, 6, DEVICE_CPU, 0);
    add_job(c, 0, 3, DEVICE_CPU, 0);
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 2);
    assert_string_equal(c->placed[0].node, "small");
    assert_string_equal(c->placed[1].node, "big");
    assert_int_equal(c->placed[1].count, 6);
}

static void any_kind_takes_one_kind_only(void **state)
{
    struct cluster *c = *state;
    add_node(c, "n1", 2, 2, 0);
    add_job(c, 0, 3, DEVICE_ANY, 0); /* 4 devices, but no 3 of a kind */
    add_job(c, 0, 2, DEVICE_ANY, 0);
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 1);
    assert_string_equal(c->placed[0].id, "job-2");
    assert_int_equal(c->placed[0].device[0], 0);
    assert_int_equal(c->placed[0].device[1], 1);
    add_job(c, 0, 1, DEVICE_ANY, 0); /* a command gets a GPU where no CPU is free */
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 2);
    assert_int_equal(c->placed[1].device[0], 2);
}

/* What trains gets the GPU, whatever the nodes' names; what does not gets none before CPUs end. */
static void any_kind_goes_by_what_the_job_is(void **state)
{
    struct cluster *c = *state;
    add_node(c, "a", 1, 0, 0);
    add_node(c, "b", 1, 1, 0);
    add_node(c, "c", 1, 0, 0);
    struct job_row training = {
        .seq = 500, .id = (char *)"job-9", .devices = 1, .device_kind = DEVICE_ANY, .trains = 1};
    for (int i = 0; i < 3; i++)
        add_job(c, 0, 1, DEVICE_ANY, 0);
    c->jobs[c->job_count] = training;
    c->jobs[c->job_count].id = mem_strdup("job-9");
    queue_add(&c->queue, &c->jobs[c->job_count++]);
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(c->placed[i].device[0], strcmp(c->placed[i].id, "job-9") == 0);
}

static void only_ready_nodes_and_free_devices(void **state)
{
    struct cluster *c = *state;
    add_node(c, "a", 4, 0, 0)->health = NODE_SUSPECT;
    add_node(c, "b", 4, 0, 0)->health = NODE_UNKNOWN;
    struct node *n = add_node(c, "c", 2, 0, 0);
    n->devices[0].haunted = 1;
    add_job(c, 0, 3, DEVICE_CPU, 0);
    add_job(c, 0, 1, DEVICE_CPU, 0);
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, 1);
    assert_string_equal(c->placed[0].node, "c");
    assert_int_equal(c->placed[0].device[0], 1);
}

static void a_pass_is_bounded(void **state)
{
    struct cluster *c = *state;
    add_node(c, "n1", SCHED_MAX_PLACEMENTS + 10, 0, 0);
    for (int i = 0; i < SCHED_MAX_PLACEMENTS + 5; i++)
        add_job(c, i % 3, 1, DEVICE_CPU, 0);
    assert_int_equal(pass(c), 1);
    assert_int_equal(c->placed_count, SCHED_MAX_PLACEMENTS);
    assert_int_equal(pass(c), 0);
    assert_int_equal(c->placed_count, SCHED_MAX_PLACEMENTS + 5);
}

static void a_failure_ends_the_pass(void **state)
{
    struct cluster *c = *state;
    add_node(c, "n1", 2, 0, 0);
    add_job(c, 0, 1, DEVICE_CPU, 0);
    c->fail_with = ERR_NO_SPACE;
    assert_int_equal(pass(c), ERR_NO_SPACE);
    assert_int_equal(c->queue.jobs, 1);
}

static void queue_keeps_order_and_counts(void **state)
{
    struct cluster *c = *state;
    for (int i = 0; i < 300; i++)
        add_job(c, i % 2, 1 + i % 3, DEVICE_CPU, 0);
    assert_int_equal(c->queue.count, 6);
    assert_int_equal(queue_ahead(&c->queue, 1, c->jobs[1].seq), 0);
    assert_int_equal(queue_ahead(&c->queue, 0, c->jobs[0].seq), 150);
    assert_int_equal(queue_ahead(&c->queue, 0, c->jobs[298].seq), 299);
    queue_add(&c->queue, &c->jobs[7]); /* twice is once */
    assert_int_equal(c->queue.jobs, 300);
    for (int i = 0; i < 300; i += 2)
        assert_int_equal(queue_remove(&c->queue, &c->jobs[i]), 1);
    assert_int_equal(queue_remove(&c->queue, &c->jobs[0]), 0);
    assert_int_equal(c->queue.count, 3);
    assert_int_equal(queue_ahead(&c->queue, 0, 1), 150);
    queue_add(&c->queue, &c->jobs[0]); /* comes back to the front of its shape */
    queue_add(&c->queue, &c->jobs[6]);
    queue_add(&c->queue, &c->jobs[0]);
    struct need need = {.devices = 1, .kind = DEVICE_CPU};
    assert_string_equal(queue_class_head(queue_find(&c->queue, 0, &need))->id, "job-1");
    for (int i = 0; i < 300; i++)
        queue_remove(&c->queue, &c->jobs[i]);
    assert_int_equal(c->queue.jobs, 0);
    assert_int_equal(c->queue.count, 0);
}

static void devices_are_checked(void **state)
{
    struct cluster *c = *state;
    static const char *const wrong[] = {
        "{}",
        "[1]",
        "[{}]",
        "[{\"index\":0}]",
        "[{\"index\":-1,\"kind\":\"cpu\"}]",
        "[{\"index\":0,\"kind\":\"tpu\"}]",
        "[{\"index\":0.5,\"kind\":\"cpu\"}]",
        "[{\"index\":0,\"kind\":\"cpu\"},{\"index\":0,\"kind\":\"gpu\"}]",
        "[{\"index\":0,\"kind\":\"cpu\",\"memory_bytes\":-5}]",
        "[{\"index\":0,\"kind\":\"gpu\",\"state\":\"tired\"}]",
        "[{\"index\":0,\"kind\":\"gpu\",\"code\":\"Not a code\"}]",
        "[{\"index\":0,\"kind\":\"gpu\",\"uuid\":\"GPU 1\"}]",
        "[{\"index\":0,\"kind\":\"gpu\",\"uuid\":7}]",
        "[{\"index\":0,\"kind\":\"gpu\",\"numa\":-2}]",
        "[{\"index\":0,\"kind\":\"gpu\",\"links\":{}}]",
        "[{\"index\":0,\"kind\":\"gpu\",\"links\":[{}]}]",
        "[{\"index\":0,\"kind\":\"gpu\",\"links\":[{\"uuid\":\"a\",\"count\":-1}]}]",
        "[{\"index\":0,\"kind\":\"gpu\",\"uuid\":\"GPU-a\"},"
        "{\"index\":1,\"kind\":\"gpu\",\"uuid\":\"GPU-a\"}]"};
    struct node *n = add_node(c, "n1", 2, 0, 7);
    snprintf(n->devices[1].attempt, ID_SIZE, "att");
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct err e = {0};
        json_auto_t *doc = json_loads(wrong[i], 0, NULL);
        assert_int_equal(node_set_devices(n, doc, &e), ERR_INVALID);
        assert_int_not_equal(e.text[0], 0);
    }
    assert_int_equal(n->device_count, 2);
    struct err e = {0};
    json_auto_t *doc = json_loads("[{\"index\":1,\"kind\":\"cpu\"}]", 0, NULL);
    assert_int_equal(node_set_devices(n, doc, &e), 1);
    assert_int_equal(node_set_devices(n, doc, &e), 0);
    assert_int_equal(n->device_count, 1);
    assert_string_equal(n->devices[0].attempt, "att"); /* a lease survives a new list */
    json_auto_t *none = json_array();
    assert_int_equal(node_set_devices(n, none, &e), 1);
    assert_int_equal(n->device_count, 1); /* and one without it */
    assert_true(n->devices[0].absent);
    assert_int_equal(node_release(n, "att"), 1);
    assert_int_equal(node_set_devices(n, none, &e), 1);
    assert_int_equal(n->device_count, 0);
}

static void health_by_silence(void **state)
{
    (void)state;
    struct node n = {0};
    assert_int_equal(node_health_at(&n, 10, 0), NODE_UNKNOWN);
    assert_int_equal(node_health_at(&n, NODE_LOST_US, 0), NODE_LOST);
    n.seen_us = 1000;
    assert_int_equal(node_health_at(&n, 1000, 0), NODE_READY);
    assert_int_equal(node_health_at(&n, 999 + NODE_SUSPECT_US, 0), NODE_READY);
    assert_int_equal(node_health_at(&n, 1000 + NODE_SUSPECT_US, 0), NODE_SUSPECT);
    assert_int_equal(node_health_at(&n, 1000 + NODE_LOST_US, 0), NODE_LOST);
    assert_int_equal(node_name_valid("n-1.example"), 1);
    assert_int_equal(node_name_valid(""), 0);
    assert_int_equal(node_name_valid("-n"), 0);
    assert_int_equal(node_name_valid(".n"), 0);
    assert_int_equal(node_name_valid("N1"), 0);
    assert_int_equal(node_name_valid("n/1"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_nodes_place_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(priority_then_age, setup, teardown),
        cmocka_unit_test_setup_teardown(impossible_jobs_hold_up_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(a_wide_job_is_not_starved, setup, teardown),
        cmocka_unit_test_setup_teardown(those_behind_get_what_the_wide_job_can_spare, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(one_node_is_kept_and_only_from_those_behind, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(loading_many_of_a_shape_is_linear, setup, teardown),
        cmocka_unit_test_setup_teardown(a_blocked_shape_is_not_tried_until_devices_are_freed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(all_ranks_on_one_node_packed_tightly, setup, teardown),
        cmocka_unit_test_setup_teardown(any_kind_takes_one_kind_only, setup, teardown),
        cmocka_unit_test_setup_teardown(any_kind_goes_by_what_the_job_is, setup, teardown),
        cmocka_unit_test_setup_teardown(only_ready_nodes_and_free_devices, setup, teardown),
        cmocka_unit_test_setup_teardown(a_pass_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failure_ends_the_pass, setup, teardown),
        cmocka_unit_test_setup_teardown(queue_keeps_order_and_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(devices_are_checked, setup, teardown),
        cmocka_unit_test_setup_teardown(health_by_silence, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
