/* A queue's jobs: at once, by a thread, and as halves around what a device does by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/queue.h"

/* What happened, in order: "a1 s1 f1" for asking, settling and finishing. */
struct story {
    char text[1024];
    uint64_t asked;
    int fails; /* the job that does; 0: none */
};

static void tell(struct story *s, char what, long long n)
{
    size_t at = strlen(s->text);
    snprintf(s->text + at, sizeof s->text - at, "%s%c%lld", at ? " " : "", what, n);
}

static int ask(void *context, int argument, struct err *e)
{
    struct story *s = context;
    tell(s, 'a', argument);
    if (argument == s->fails)
        return err_set(e, ERR_PEER, "Rank %d died.", argument);
    s->asked++;
    return 0;
}

static int finish(void *context, int argument, struct err *e)
{
    (void)e;
    tell(context, 'f', argument);
    return 0;
}

static uint64_t mark(void *context)
{
    return ((struct story *)context)->asked;
}

static int settle(void *context, uint64_t until, struct err *e)
{
    (void)e;
    tell(context, 's', (long long)until);
    return 0;
}

static const struct queue_work halves = {.ask = ask, .finish = finish};
static const struct queue_work alone = {.ask = ask};
static const struct queue_work in_turn = {ask, finish, .in_turn = 1};

static void without_a_device_a_job_is_done_whole(void **state)
{
    (void)state;
    for (int threaded = 0; threaded < 2; threaded++) {
        struct story s = {0};
        struct queue *q;
        struct err e;
        assert_int_equal(queue_open(&q, threaded, &e), 0);
        assert_int_equal(queue_is_beside(q), threaded);
        queue_submit(q, &halves, &s, 1);
        queue_submit(q, &alone, &s, 2);
        assert_int_equal(queue_submit(q, &in_turn, &s, 3), 3);
        assert_int_equal(queue_wait_all(q, &e), 0);
        assert_string_equal(s.text, "a1 f1 a2 a3 f3");
        queue_close(q);
    }
}

static struct queue *on_device(struct story *s, int is_beside)
{
    return queue_open_on(&(struct queue_device){s, mark, settle, is_beside});
}

static void a_device_is_asked_at_once_and_settled_when_waited_for(void **state)
{
    (void)state;
    struct story s = {0};
    struct queue *q = on_device(&s, 1);
    struct err e;
    assert_int_equal(queue_is_beside(q), 1);
    int64_t first = queue_submit(q, &halves, &s, 1);
    queue_submit(q, &alone, &s, 2);
    queue_submit(q, &halves, &s, 3);
    assert_string_equal(s.text, "a1 a2 a3");
    assert_int_equal(queue_wait(q, first, &e), 0); /* not what came later */
    assert_string_equal(s.text, "a1 a2 a3 s1 f1");
    assert_int_equal(queue_wait(q, first, &e), 0);
    assert_int_equal(queue_wait_all(q, &e), 0);
    assert_string_equal(s.text, "a1 a2 a3 s1 f1 s3 f3");
    queue_close(q);
}

static void jobs_that_share_memory_take_turns(void **state)
{
    (void)state;
    struct story s = {0};
    struct queue *q = on_device(&s, 1);
    struct err e;
    queue_submit(q, &in_turn, &s, 1);
    queue_submit(q, &in_turn, &s, 2);
    assert_string_equal(s.text, "a1 s1 f1 a2");
    assert_int_equal(queue_wait_all(q, &e), 0);
    assert_string_equal(s.text, "a1 s1 f1 a2 s2 f2");
    queue_close(q);
}

static void without_overlap_a_job_is_settled_at_once(void **state)
{
    (void)state;
    struct story s = {0};
    struct queue *q = on_device(&s, 0);
    assert_int_equal(queue_is_beside(q), 0);
    queue_submit(q, &halves, &s, 1);
    queue_submit(q, &halves, &s, 2);
    assert_string_equal(s.text, "a1 s1 f1 a2 s2 f2");
    queue_close(q);
}

static void a_failed_job_ends_all(void **state)
{
    (void)state;
    struct story s = {.fails = 2};
    struct queue *q = on_device(&s, 1);
    struct err e = {0};
    queue_submit(q, &halves, &s, 1);
    queue_submit(q, &halves, &s, 2);
    queue_submit(q, &halves, &s, 3);
    assert_string_equal(s.text, "a1 a2");
    assert_int_equal(queue_wait(q, 1, &e), ERR_PEER);
    assert_string_equal(e.text, "Rank 2 died.");
    assert_int_equal(queue_wait_all(q, &e), ERR_PEER);
    assert_string_equal(s.text, "a1 a2");
    queue_close(q);
}

static int ask_quietly(void *context, int argument, struct err *e)
{
    (void)argument;
    (void)e;
    ((struct story *)context)->asked++;
    return 0;
}

/* More jobs than the ring has room for: the oldest are settled on the way. */
static void a_long_row_of_jobs_is_settled_on_the_way(void **state)
{
    (void)state;
    static const struct queue_work quiet = {.ask = ask_quietly};
    struct story s = {0};
    struct queue *q = on_device(&s, 1);
    struct err e;
    for (int i = 0; i < QUEUE_ROOM; i++)
        queue_submit(q, &quiet, &s, i);
    assert_string_equal(s.text, "");
    queue_submit(q, &quiet, &s, 0);
    assert_string_equal(s.text, "s1");
    assert_int_equal(queue_wait_all(q, &e), 0);
    assert_string_equal(s.text, "s1 s1025");
    queue_close(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_device_a_job_is_done_whole),
        cmocka_unit_test(a_device_is_asked_at_once_and_settled_when_waited_for),
        cmocka_unit_test(jobs_that_share_memory_take_turns),
        cmocka_unit_test(without_overlap_a_job_is_settled_at_once),
        cmocka_unit_test(a_failed_job_ends_all),
        cmocka_unit_test(a_long_row_of_jobs_is_settled_on_the_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
