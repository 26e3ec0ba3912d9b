/* Checkpoints that go wrong: killed at any byte, on a full disk, damaged on the disk, of another
 * job; and what a snapshot is. */
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "tests/unit/trainer_checkpoints.h"
#include "trainer/checkpoint_load.h"

/* ---- faults at a byte ---- */

enum mishap_kind {
    MISHAP_NONE,
    MISHAP_COUNT,
    MISHAP_COUNT_CALLS,
    MISHAP_KILL_RANK,
    MISHAP_KILL_ALL,
    MISHAP_KILL_AT_CALL,
    MISHAP_DISK_FULL
};

/* Shared with the ranks. */
static struct mishap {
    enum mishap_kind kind;
    char root[64];    /* counted are bytes of files beneath it */
    atomic_long left; /* bytes that may still be written */
} * mishap;

static int is_beneath(int fd)
{
    char link[64], path[256];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    return n > 0 && strncmp(path, mishap->root, strlen(mishap->root)) == 0;
}

/* These stand before the C library's: everything that the trainer writes comes by here. */

static void count_call(int is_ours)
{
    if (!mishap || !is_ours)
        return;
    if (mishap->kind == MISHAP_COUNT_CALLS || mishap->kind == MISHAP_KILL_AT_CALL)
        if (atomic_fetch_sub(&mishap->left, 1) == 0 && mishap->kind == MISHAP_KILL_AT_CALL)
            kill(0, SIGKILL);
}

static int in_root(const char *path)
{
    return mishap && mishap->kind && strncmp(path, mishap->root, strlen(mishap->root)) == 0;
}

int fsync(int fd)
{
    int ours = mishap && mishap->kind && is_beneath(fd);
    count_call(ours);
    int r = (int)syscall(SYS_fsync, fd);
    count_call(ours);
    return r;
}

int rename(const char *from, const char *to)
{
    count_call(in_root(to));
    int r = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    count_call(in_root(to));
    return r;
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    if (!mishap || mishap->kind == MISHAP_NONE || !is_beneath(fd))
        return syscall(SYS_write, fd, bytes, n);
    count_call(1);
    if (mishap->kind == MISHAP_COUNT_CALLS || mishap->kind == MISHAP_KILL_AT_CALL)
        return syscall(SYS_write, fd, bytes, n);
    long left = atomic_fetch_sub(&mishap->left, (long)n);
    if (left >= (long)n || mishap->kind == MISHAP_COUNT)
        return syscall(SYS_write, fd, bytes, n);
    if (left > 0)
        n = (size_t)syscall(SYS_write, fd, bytes, left);
    if (mishap->kind == MISHAP_KILL_RANK)
        kill(getpid(), SIGKILL);
    if (mishap->kind == MISHAP_KILL_ALL)
        kill(0, SIGKILL);
    errno = ENOSPC;
    return left > 0 ? (ssize_t)n : -1;
}

static void set_mishap(enum mishap_kind kind, const struct store *s, long left)
{
    mishap->kind = kind;
    snprintf(mishap->root, sizeof mishap->root, "%s", s->root);
    atomic_store(&mishap->left, left);
}

static int map_mishap(void **state)
{
    (void)state;
    mishap = mmap(NULL, sizeof *mishap, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return mishap == MAP_FAILED ? -1 : 0;
}

/* Runs the saving ranks in a process group of their own, which may be killed as a whole. */
static void save_in_group(struct gang *g, int64_t every)
{
    int status;
    pid_t host = fork();
    assert_true(host >= 0);
    if (host == 0) {
        setpgid(0, 0);
        gang_start_saving(g, every);
        for (int r = 0; r < g->launch.plan.ranks; r++)
            waitpid(g->pids[r], &status, 0);
        _exit(0);
    }
    assert_int_equal(waitpid(host, &status, 0), host);
    gang_read(g);
}

/* ---- killed ---- */

/* All that a kill leaves with a name is whole, and what was reported is there. */
static void check_left(const struct gang *whole, struct gang *killed, struct store *s, int *went_on)
{
    struct resume_list left, told;
    list_store(s, &left);
    list_checkpoints(killed, &told);
    assert_true(told.count <= left.count);
    for (int i = 0; i < told.count; i++)
        assert_string_equal(told.items[i].sum, left.items[left.count - told.count + i].sum);
    for (int i = 0; i < left.count; i++) {
        struct gang g;
        gang_open_with(&g, RESUMABLE, 2, 1, s, 0);
        resume_from(&g, &left.items[i], 1);
        gang_run(&g);
        same_rest(whole, &g, left.items[i].step, RESUMABLE_STEPS, 0);
        same_weights(whole, &g);
        assert_int_equal(count_unfinished(s), 0);
        gang_close(&g);
        ++*went_on;
    }
    list_done(&told);
    list_done(&left);
}

/* Bytes or calls of a run that takes two checkpoints and is left alone. */
static long count_all(enum mishap_kind kind)
{
    struct store s;
    struct gang g;
    store_open(&s);
    gang_open_with(&g, RESUMABLE, 2, 1, &s, 9);
    set_mishap(kind, &s, 1L << 40);
    gang_save_every(&g, 9);
    long all = (1L << 40) - atomic_load(&mishap->left);
    set_mishap(MISHAP_NONE, &s, 0);
    gang_close(&g);
    store_close(&s);
    return all;
}

static void check_kill(const struct gang *whole, enum mishap_kind kind, long at, int *went_on)
{
    struct store s;
    struct gang g;
    store_open(&s);
    gang_open_with(&g, RESUMABLE, 2, 1, &s, 9);
    set_mishap(kind, &s, at);
    save_in_group(&g, 9);
    set_mishap(MISHAP_NONE, &s, 0);
    check_left(whole, &g, &s, went_on);
    gang_close(&g);
    store_close(&s);
}

static void killed_at_any_byte(void **state)
{
    (void)state;
    struct store s;
    struct gang whole;
    int went_on = 0;
    store_open(&s);
    gang_open_with(&whole, RESUMABLE, 2, 1, &s, 0);
    gang_run(&whole);
    long all = count_all(MISHAP_COUNT);
    assert_true(all > 2 * 4000);
    srandom((unsigned)getpid());
    for (int i = 0; i < 20; i++) {
        long at = random() % all;
        print_message("           at byte %ld of %ld\n", at, all);
        check_kill(&whole, i % 2 ? MISHAP_KILL_ALL : MISHAP_KILL_RANK, at, &went_on);
    }
    check_kill(&whole, MISHAP_KILL_ALL, all - 1, &went_on);
    assert_true(went_on > 0);
    gang_close(&whole);
    store_close(&s);
}

/* Before and after each write, sync and rename. */
static void killed_between_any_two_calls(void **state)
{
    (void)state;
    struct store s;
    struct gang whole;
    int went_on = 0;
    store_open(&s);
    gang_open_with(&whole, RESUMABLE, 2, 1, &s, 0);
    gang_run(&whole);
    long all = count_all(MISHAP_COUNT_CALLS);
    assert_true(all > 2 * 15 && all < 200);
    for (long at = 0; at < all; at++)
        check_kill(&whole, MISHAP_KILL_AT_CALL, at, &went_on);
    assert_true(went_on > all / 4);
    gang_close(&whole);
    store_close(&s);
}

/* ---- a full disk ---- */

static void a_full_disk_costs_a_checkpoint_only(void **state)
{
    (void)state;
    struct store s;
    struct gang whole, saved, full;
    struct resume_list before, after;
    store_open(&s);
    gang_open_with(&whole, RESUMABLE, 2, 1, &s, 0);
    gang_run(&whole);
    gang_open_with(&saved, RESUMABLE, 2, 1, &s, 0);
    gang_save_every(&saved, 13);
    list_store(&s, &before);
    gang_open_with(&full, RESUMABLE, 2, 1, &s, 3);
    set_mishap(MISHAP_DISK_FULL, &s, 3000);
    int out = say_into(&full);
    gang_run(&full);
    say_back(out);
    set_mishap(MISHAP_NONE, &s, 0);
    same_rest(&whole, &full, 0, RESUMABLE_STEPS, 0);
    same_weights(&whole, &full);
    assert_int_equal(gang_count(&full, "checkpoint"), 0);
    assert_true(gang_count(&full, "checkpoint_failed") > 0);
    const json_t *line = gang_line(&full, "checkpoint_failed", 0, 0);
    if (!strstr(gang_text(line, "reason"), "No space left on device"))
        assert_non_null(strstr(gang_text(line, "reason"), "rank 1 says why in its log"));
    check_said(&full, "No space left on device");
    check_said(&full, "Training goes on");
    assert_int_equal(count_unfinished(&s), 0);
    list_store(&s, &after);
    assert_int_equal(after.count, before.count);
    for (int i = 0; i < after.count; i++)
        assert_string_equal(after.items[i].sum, before.items[i].sum);
    list_done(&before);
    list_done(&after);
    gang_close(&full);
    gang_close(&saved);
    gang_close(&whole);
    store_close(&s);
}

/* ---- damage ---- */

enum damage { FLIP_FIRST, FLIP_MIDDLE, FLIP_LAST, CUT, GROW, EMPTY, REMOVE, FIFO, DAMAGE__MAX };

static void damage_file(const char *path, enum damage how)
{
    struct buf b = BUF_INIT;
    struct err e;
    assert_int_equal(file_read(path, 64 << 20, &b, &e), 0);
    size_t at = how == FLIP_FIRST ? 0 : how == FLIP_MIDDLE ? b.len / 2 : b.len - 1;
    size_t n = how == CUT ? b.len - 1 : how == EMPTY ? 0 : b.len;
    if (how <= FLIP_LAST)
        b.data[at] = (char)(b.data[at] ^ 0x10);
    if (how == GROW)
        buf_add(&b, "x", 1), n++;
    if (how == REMOVE || how == FIFO)
        assert_int_equal(unlink(path), 0);
    if (how == FIFO)
        assert_int_equal(mkfifo(path, 0600), 0);
    else if (how != REMOVE)
        assert_int_equal(file_write_atomic(path, b.data, n, 0600, &e), 0);
    buf_done(&b);
}

static void check_passed_over(const struct gang *whole, struct store *s, struct resume_list *list,
                              const char *file, enum damage how)
{
    struct gang g;
    char path[160], words[128];
    struct buf kept = BUF_INIT;
    struct err e;
    snprintf(path, sizeof path, "%s/%s/%s", s->root, list->items[0].name, file);
    assert_int_equal(file_read(path, 64 << 20, &kept, &e), 0);
    damage_file(path, how);
    gang_open_with(&g, RESUMABLE, 3, 1, s, 0);
    resume_from(&g, list->items, list->count);
    int out = say_into(&g);
    gang_run(&g);
    say_back(out);
    snprintf(words, sizeof words, "%s cannot be gone on from: ", list->items[0].name);
    check_said(&g, words);
    check_said(&g, file);
    assert_int_equal(gang_number(gang_line(&g, "start", 0, 0), "from_step"), list->items[1].step);
    same_rest(whole, &g, list->items[1].step, RESUMABLE_STEPS, 2e-5);
    assert_int_equal(file_write_atomic(path, kept.data, kept.len, 0600, &e), 0);
    gang_close(&g);
    buf_done(&kept);
}

static void what_is_damaged_is_passed_over(void **state)
{
    (void)state;
    static const char *const files[] = {"manifest.json", "rank-0.safetensors",
                                        "rank-3.safetensors"};
    struct store s;
    struct gang whole, saved;
    struct resume_list list;
    store_open(&s);
    gang_open_with(&whole, RESUMABLE, 4, 1, &s, 0);
    gang_run(&whole);
    gang_open_with(&saved, RESUMABLE, 4, 1, &s, 0);
    gang_save_every(&saved, 12);
    list_checkpoints(&saved, &list);
    assert_int_equal(list.count, 2);
    for (size_t f = 0; f < ARRAY_LEN(files); f++)
        for (int how = 0; how < DAMAGE__MAX; how++)
            check_passed_over(&whole, &s, &list, files[f], (enum damage)how);
    list_done(&list);
    gang_close(&saved);
    gang_close(&whole);
    store_close(&s);
}

/* ---- nothing to go on from ---- */

/* Ends with checkpoint_invalid and these words, without a step. */
static void check_refused(struct gang *g, struct launch_checkpoint *items, int count,
                          const char *words)
{
    resume_from(g, items, count);
    assert_int_equal(gang_prepare(g), 0);
    gang_start(g);
    gang_wait(g);
    for (int r = 0; r < g->launch.plan.ranks; r++) {
        const json_t *v = gang_line(g, "verdict", r, 0);
        assert_int_equal(g->status[r], TRAIN_PERMANENT);
        assert_string_equal(gang_text(v, "code"), "checkpoint_invalid");
        if (!strstr(gang_text(v, "reason"), words))
            fail_msg("\"%s\" does not say \"%s\"", gang_text(v, "reason"), words);
    }
    assert_int_equal(gang_count(g, "start"), 0);
    assert_int_equal(gang_count(g, "step"), 0);
    gang_close(g);
}

static void never_from_step_0_when_there_was_one(void **state)
{
    (void)state;
    struct store s;
    struct gang saved, g;
    struct resume_list list;
    char path[160];
    store_open(&s);
    gang_open_with(&saved, RESUMABLE, 2, 1, &s, 0);
    gang_save_every(&saved, 12);
    list_checkpoints(&saved, &list);

    gang_open_with(&g, RESUMABLE, 2, 1, &s, 0);
    g.launch.job = "job_other";
    check_refused(&g, list.items, list.count, "it is of job job_test");

    json_auto_t *more =
        gang_job(SMALL("104", "8", "{\"type\": \"dropout\", \"rate\": 0.25},", "\"epochs\": 2"));
    gang_open(&g, more, STRATEGY_MIRRORED, 2, 1, 1, SCHEDULE_GPIPE);
    g.launch.checkpoints = s.root;
    check_refused(&g, list.items, 1, "made with 100 training samples, and now there are 104");

    json_auto_t *layers =
        gang_job(SMALL("100", "8", "{\"type\": \"dense\", \"units\": 8},", "\"epochs\": 2"));
    gang_open(&g, layers, STRATEGY_MIRRORED, 2, 1, 1, SCHEDULE_GPIPE);
    g.launch.checkpoints = s.root;
    check_refused(&g, list.items, 1, "layers.2.kernel");

    gang_open_with(&g, RESUMABLE, 2, 1, &s, 0);
    g.launch.checkpoints = NULL;
    check_refused(&g, list.items, list.count, "names no directory");

    for (int i = 0; i < list.count; i++) {
        snprintf(path, sizeof path, "%s/%s/manifest.json", s.root, list.items[i].name);
        damage_file(path, FLIP_MIDDLE);
    }
    gang_open_with(&g, RESUMABLE, 2, 1, &s, 0);
    check_refused(&g, list.items, list.count,
                  "None of the 2 checkpoints of this job can be gone on from; step-0000000024, the "
                  "newest: manifest.json is not what was written");
    list_done(&list);
    gang_close(&saved);
    store_close(&s);
}

/* ---- leftovers ---- */

static void only_leftovers_are_removed(void **state)
{
    (void)state;
    static const char *const kept[] = {"step-0000000007", "step-1.tmp", "step-0000000007.tmp.x",
                                       "notes.tmp", "step-000000000x.tmp"};
    static const char *const removed[] = {"step-0000000007.tmp", "step-12345678901.tmp"};
    struct store s;
    char path[160];
    struct err e;
    int count;
    store_open(&s);
    for (size_t i = 0; i < ARRAY_LEN(kept); i++) {
        snprintf(path, sizeof path, "%s/%s", s.root, kept[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(removed); i++) {
        snprintf(path, sizeof path, "%s/%s/deep", s.root, removed[i]);
        assert_int_equal(file_mkdirs(path, 0700, &e), 0);
    }
    assert_int_equal(checkpoint_remove_leftovers(s.root, &count, &e), 0);
    assert_int_equal(count, ARRAY_LEN(removed));
    for (size_t i = 0; i < ARRAY_LEN(kept); i++) {
        snprintf(path, sizeof path, "%s/%s", s.root, kept[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
    assert_int_equal(checkpoint_remove_leftovers(s.root, &count, &e), 0);
    assert_int_equal(count, 0);
    store_close(&s);
}

/* ---- what a snapshot is ---- */

/* Everything changes right after the snapshot; what is written is what was. */
static void written_is_what_was(void **state)
{
    (void)state;
    struct store s;
    struct gang g;
    struct engine n;
    struct report out;
    struct checkpoints c;
    struct checkpoint_cursor at = {.epoch = 1};
    struct step_result result;
    struct piece_copy *before, *after;
    struct resumed from = {0};
    struct err e;
    store_open(&s);
    gang_open_with(&g, RESUMABLE, 1, 1, &s, 1);
    struct engine_fds fds = gang_fds(&g);
    assert_int_equal(gang_prepare(&g), 0);
    report_init(&out, fds.report, 0);
    assert_int_equal(engine_open(&n, &g.launch, 0, &fds, NULL, &e), 0);
    assert_int_equal(checkpoints_open(&c, &n, &out, &e), 0);
    engine_begin_epoch(&n, 1);
    checkpoints_before_step(&c);
    assert_int_equal(engine_step(&n, 0, &result, &e), 0);
    at.step_in_epoch = 1;
    assert_int_equal(piece_copy_take(&n, 0, &before, &e), 0);
    assert_int_equal(checkpoints_after_step(&c, &at, &e), 0);
    const struct net *net = &n.stage.net;
    CLEANUP(mem_freep) float *spoiled = mem_alloc(net->elements * sizeof *spoiled);
    for (size_t i = 0; i < net->elements; i++)
        spoiled[i] = NAN;
    for (int k = PIECE_PARAMETER; k <= PIECE_STATE_1; k++)
        replicas_set(&n.replicas, (enum piece_kind)k, 0, net->trained, spoiled);
    assert_int_equal(checkpoints_finish(&c, &e), 0);
    assert_int_equal(n.tallies[0].checkpoint.committed, 1);
    gang_read(&g);
    struct resume_list list;
    list_checkpoints(&g, &list);
    assert_int_equal(list.count, 1);
    resume_from(&g, list.items, 1);
    if (checkpoint_load(&n, &from, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(piece_copy_take(&n, 0, &after, &e), 0);
    assert_int_equal(before->count, after->count);
    assert_true(before->count >= 3 * 6);
    for (size_t i = 0; i < before->count; i++)
        assert_memory_equal(before->values[i], after->values[i],
                            (before->pieces[i].to - before->pieces[i].from) * sizeof(float));
    piece_copy_drop(before);
    piece_copy_drop(after);
    resumed_done(&from);
    list_done(&list);
    checkpoints_close(&c);
    engine_close(&n);
    report_done(&out);
    gang_close(&g);
    store_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_any_byte),
        cmocka_unit_test(killed_between_any_two_calls),
        cmocka_unit_test(a_full_disk_costs_a_checkpoint_only),
        cmocka_unit_test(what_is_damaged_is_passed_over),
        cmocka_unit_test(never_from_step_0_when_there_was_one),
        cmocka_unit_test(only_leftovers_are_removed),
        cmocka_unit_test(written_is_what_was),
    };
    return cmocka_run_group_tests(tests, map_mishap, NULL);
}
