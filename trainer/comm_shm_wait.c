/* comm_shm_wait.c: the layout of the shared memory, meeting, waiting, and noticing who died. */
#include "trainer/comm_shm_map.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/proc.h"

#define SPIN_US 200
#define TICK_MS 50
#define LINGER_MS                                                                                  \
    2000 /* for the rank that gave up to be the first to end, so that its reason counts */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

void shm_layout(struct shm *s, const struct comm_options *o)
{
    size_t n = (size_t)o->size;
    s->rank = o->rank;
    s->size = o->size;
    s->message_bytes = round_up(o->message_bytes, LINE);
    s->memory_bytes = round_up(o->memory_bytes, 4096);
    s->ranks_at = sizeof(struct shm_header);
    s->syncs_at = s->ranks_at + n * sizeof(struct shm_rank);
    s->regions_at =
        round_up(s->syncs_at + (1 + (COMM_FAMILY__MAX - 1) * n) * sizeof(struct shm_sync), 4096);
    s->channel_bytes = sizeof(struct shm_channel) + SLOTS * s->message_bytes;
    s->region_bytes =
        round_up(CHANNELS * s->channel_bytes, 4096) + COMM_FAMILY__MAX * STAGE + s->memory_bytes;
    s->bytes = s->regions_at + n * s->region_bytes;
}

size_t comm_shm_foretold(const struct comm_options *o)
{
    struct shm s;
    shm_layout(&s, o);
    size_t channels = o->message_bytes > 0 ? 2 * s.channel_bytes : 0;
    return s.regions_at / (size_t)o->size + channels + STAGE + s.memory_bytes;
}

struct shm_header *shm_head(const struct shm *s)
{
    return (struct shm_header *)s->map;
}

struct shm_rank *shm_rank(const struct shm *s, int rank)
{
    return (struct shm_rank *)(s->map + s->ranks_at) + rank;
}

struct shm_sync *shm_sync(const struct shm *s, enum comm_family family, int index)
{
    int at = family == COMM_WORLD ? 0 : 1 + ((int)family - 1) * s->size + index;
    return (struct shm_sync *)(s->map + s->syncs_at) + at;
}

static char *region(const struct shm *s, int rank)
{
    return s->map + s->regions_at + (size_t)rank * s->region_bytes;
}

struct shm_channel *shm_channel(const struct shm *s, int rank, int is_back, int is_next)
{
    size_t at = (size_t)(2 * is_back + is_next) * s->channel_bytes;
    return (struct shm_channel *)(region(s, rank) + at);
}

char *shm_stage(const struct shm *s, int rank, enum comm_family family)
{
    return region(s, rank) + round_up(CHANNELS * s->channel_bytes, 4096) + (size_t)family * STAGE;
}

char *shm_memory(const struct shm *s, int rank)
{
    return shm_stage(s, rank, COMM_FAMILY__MAX);
}

/* ---- who is gone ---- */

static pid_t pid_of(const struct shm *s, int rank)
{
    return __atomic_load_n(&shm_rank(s, rank)->pid, __ATOMIC_ACQUIRE);
}

/* A descriptor of that rank's process, kept open; the error where there is none. */
static int pidfd_of(struct shm *s, int rank)
{
    int r = 0;
    pthread_mutex_lock(&s->mutex);
    if (s->pidfds[rank] < 0) {
        struct proc_identity id = {.pid = pid_of(s, rank),
                                   .start_time = shm_rank(s, rank)->start_time};
        memcpy(id.boot_id, s->boot_id, sizeof id.boot_id);
        r = proc_open(&id, &s->pidfds[rank], NULL);
    }
    int fd = s->pidfds[rank];
    pthread_mutex_unlock(&s->mutex);
    return r < 0 ? r : fd;
}

/* 1 if that rank has come and its process has ended, or does so within `ms`. */
static int is_gone_in(struct shm *s, int rank, int ms)
{
    if (rank == s->rank || pid_of(s, rank) <= 0)
        return 0;
    int fd = pidfd_of(s, rank);
    if (fd < 0)
        return fd == ERR_NOT_FOUND;
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, ms) > 0;
}

static int is_gone(struct shm *s, int rank)
{
    return is_gone_in(s, rank, 0);
}

static int say_where(const struct shm *s, const char *what, char *out, size_t size)
{
    int64_t step = __atomic_load_n(&s->step, __ATOMIC_RELAXED);
    if (step > 0)
        return snprintf(out, size, "in %s at step %lld", what, (long long)step);
    return snprintf(out, size, "in %s", what);
}

static int say_gone(struct shm *s, int rank, const char *what, struct err *e)
{
    char where[96];
    say_where(s, what, where, sizeof where);
    return err_set(e, ERR_PEER, "Rank %d (pid %d) died while ranks waited %s.", rank,
                   (int)pid_of(s, rank), where);
}

/* The words of a rank that gave up are another process's: only their printable part is repeated. */
static int say_gave_up(struct shm *s, int rank, struct err *e)
{
    char why[WHY_SIZE];
    memcpy(why, shm_rank(s, rank)->why, sizeof why);
    why[WHY_SIZE - 1] = '\0';
    for (char *p = why; *p; p++)
        if (*p < ' ' || *p > '~')
            *p = '?';
    is_gone_in(s, rank, LINGER_MS);
    return err_set(e, ERR_PEER, "Rank %d (pid %d) gave up: %s", rank, (int)pid_of(s, rank), why);
}

static void set_abort(struct shm *s, uint32_t value)
{
    uint32_t none = 0;
    __atomic_compare_exchange_n(&shm_head(s)->abort, &none, value, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
}

void shm_give_up(struct shm *s, const char *why)
{
    pthread_mutex_lock(&s->mutex);
    if (!s->gave_up)
        snprintf(shm_rank(s, s->rank)->why, WHY_SIZE, "%s", why);
    s->gave_up = 1;
    pthread_mutex_unlock(&s->mutex);
    set_abort(s, GAVE_UP | ((uint32_t)s->rank + 1));
}

/* Why the gang is over, if the abort word says so. */
static int say_abort(struct shm *s, const struct shm_wait *why, struct err *e)
{
    uint32_t ended = __atomic_load_n(&shm_head(s)->abort, __ATOMIC_ACQUIRE);
    uint32_t who = ended & ~GAVE_UP;
    if (who == 0 || who > (uint32_t)s->size)
        return 0;
    if (who == (uint32_t)s->rank + 1) /* another thread of this rank has said so */
        return err_set(e, ERR_PEER, "Rank %d gave up.", s->rank);
    return ended & GAVE_UP ? say_gave_up(s, (int)who - 1, e)
                           : say_gone(s, (int)who - 1, why->what, e);
}

/* One look round between two slices of sleep. A rank that is gone may have left because another
 * had died: then it has said so in the abort word, which is therefore asked again after it. */
static int look_round(struct shm *s, const struct word *w, uint32_t old, const struct shm_wait *why,
                      struct err *e)
{
    int r = say_abort(s, why, e);
    for (int i = 0; r == 0 && i < why->count; i++) {
        int rank = why->members[i];
        /* It may have done its part and left in good order: only then has the word changed. */
        if (is_gone(s, rank) && __atomic_load_n(&w->value, __ATOMIC_ACQUIRE) == old) {
            set_abort(s, (uint32_t)rank + 1);
            r = say_abort(s, why, e);
        }
    }
    return r;
}

/* ---- waiting ---- */

static void futex_wait(uint32_t *word, uint32_t old, int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT, old, &t, NULL, 0);
}

void shm_publish(struct word *w, uint32_t value)
{
    __atomic_store_n(&w->value, value, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&w->sleepers, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &w->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static int changed(const struct word *w, uint32_t old)
{
    return __atomic_load_n(&w->value, __ATOMIC_ACQUIRE) != old;
}

static void pause_briefly(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

static int spin(const struct word *w, uint32_t old)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t until = t.tv_sec * 1000000000LL + t.tv_nsec + SPIN_US * 1000LL;
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (changed(w, old))
                return 1;
            pause_briefly();
        }
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (t.tv_sec * 1000000000LL + t.tv_nsec > until)
            return 0;
    }
}

static uint64_t progress_of_all(const struct shm *s)
{
    uint64_t sum = 0;
    for (int r = 0; r < s->size; r++)
        sum += __atomic_load_n(&shm_rank(s, r)->progress, __ATOMIC_RELAXED);
    return sum;
}

static int say_late(struct shm *s, const struct shm_wait *why, struct err *e)
{
    char where[96], list[64] = "";
    say_where(s, why->what, where, sizeof where);
    for (int i = 0, n = 0; i < why->count && n < 40; i++)
        if (why->members[i] != s->rank)
            n +=
                snprintf(list + n, sizeof list - (size_t)n, "%s%d", n ? ", " : "", why->members[i]);
    return err_set(e, ERR_TIMEOUT,
                   "Rank %d waited %.3g s %s for rank %s, and nothing moved in the gang.", s->rank,
                   (double)s->deadline_us * 1e-6, where, list);
}

int shm_check(struct shm *s, const char *what, uint64_t *ret_moved, struct err *e)
{
    struct shm_wait why = {.what = what};
    *ret_moved = progress_of_all(s);
    int r = say_abort(s, &why, e);
    for (int rank = 0; r == 0 && rank < s->size; rank++)
        if (is_gone(s, rank)) {
            set_abort(s, (uint32_t)rank + 1);
            r = say_abort(s, &why, e);
        }
    return r;
}

/* ---- who is at work ---- */

/* Processor time that a rank has used, 0 where it cannot be told. */
static int64_t used_us(const struct shm *s, int rank)
{
    clockid_t clock;
    struct timespec t;
    pid_t pid = pid_of(s, rank);
    if (pid <= 0 || clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) < 0)
        return 0;
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

/* How long nothing has moved. Ranks that compute between two collectives say nothing for as long as
 * it takes, so before a deadline is called passed, their processor time is asked: of the second
 * half of it a rank at work uses a good part, and one that waits not a thousandth. */
struct vigil {
    int64_t since, halfway; /* boot time; halfway 0: not there yet */
    uint64_t progress;
    int64_t *used_us; /* [size]: processor time at half of the deadline; NULL: not there yet */
};

static int anyone_works(const struct shm *s, const struct vigil *v, int64_t took_us)
{
    for (int r = 0; r < s->size; r++)
        if (r != s->rank && (used_us(s, r) - v->used_us[r]) * 50 > took_us)
            return 1;
    return 0;
}

static void begin_again(struct vigil *v, int64_t now, uint64_t progress)
{
    v->since = now;
    v->halfway = 0;
    v->progress = progress;
}

static void look_at_clocks(struct shm *s, struct vigil *v, int64_t now)
{
    v->halfway = now;
    if (!v->used_us)
        v->used_us = mem_alloc((size_t)s->size * sizeof *v->used_us);
    for (int r = 0; r < s->size; r++)
        v->used_us[r] = used_us(s, r);
}

/* 1 if the deadline has passed. */
static int is_late(struct shm *s, struct vigil *v)
{
    int64_t now = clock_boottime_us();
    uint64_t progress = progress_of_all(s);
    if (progress != v->progress) {
        begin_again(v, now, progress);
    } else if (!v->halfway && now - v->since > s->deadline_us / 2) {
        look_at_clocks(s, v, now);
    } else if (now - v->since > s->deadline_us && v->used_us) {
        if (!anyone_works(s, v, now - v->halfway))
            return 1;
        begin_again(v, now, progress);
    }
    return 0;
}

static int keep_vigil(struct shm *s, struct word *w, uint32_t old, const struct shm_wait *why,
                      struct vigil *v, struct err *e)
{
    while (!changed(w, old)) {
        __atomic_fetch_add(&w->sleepers, 1, __ATOMIC_SEQ_CST);
        futex_wait(&w->value, old, TICK_MS);
        __atomic_fetch_sub(&w->sleepers, 1, __ATOMIC_SEQ_CST);
        if (changed(w, old))
            break;
        int r = look_round(s, w, old, why, e);
        if (r < 0)
            return r;
        if (is_late(s, v))
            return say_late(s, why, e);
    }
    return 0;
}

static int sleep_until_change(struct shm *s, struct word *w, uint32_t old,
                              const struct shm_wait *why, struct err *e)
{
    struct vigil v = {.since = clock_boottime_us(), .progress = progress_of_all(s)};
    int r = keep_vigil(s, w, old, why, &v, e);
    free(v.used_us);
    return r;
}

int shm_wait_change(struct shm *s, struct word *w, uint32_t old, const struct shm_wait *why,
                    struct err *e)
{
    if (changed(w, old))
        return 0;
    if (s->spin && pthread_equal(pthread_self(), s->owner) && spin(w, old))
        return 0;
    return sleep_until_change(s, w, old, why, e);
}

/* ---- meeting ---- */

static int bound_cpu(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) < 0 || CPU_COUNT(&set) != 1)
        return -1;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set))
            return i;
    return -1;
}

/* 1 if each rank is bound to a core that no other rank has. */
static int all_have_cores(const struct shm *s)
{
    for (int a = 0; a < s->size; a++)
        for (int b = 0; b <= a; b++)
            if (shm_rank(s, a)->cpu < 0 || (a != b && shm_rank(s, a)->cpu == shm_rank(s, b)->cpu))
                return 0;
    return 1;
}

static int introduce(struct shm *s, struct err *e)
{
    struct proc_identity me;
    int r = proc_identify(getpid(), &me, e);
    if (r < 0)
        return r;
    memcpy(s->boot_id, me.boot_id, sizeof me.boot_id);
    struct shm_rank *mine = shm_rank(s, s->rank);
    if (pid_of(s, s->rank) != 0)
        return err_set(e, ERR_CONFLICT,
                       "Rank %d has already come (pid %d): two processes were started for it.",
                       s->rank, (int)pid_of(s, s->rank));
    mine->start_time = me.start_time;
    mine->cpu = bound_cpu();
    __atomic_store_n(&mine->pid, me.pid, __ATOMIC_RELEASE);
    __atomic_fetch_add(&shm_head(s)->met.value, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &shm_head(s)->met.value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    return 0;
}

static int all_have_come(const struct shm *s)
{
    for (int r = 0; r < s->size; r++)
        if (pid_of(s, r) == 0)
            return 0;
    return 1;
}

static int say_missing(const struct shm *s, struct err *e)
{
    int missing = 0;
    while (missing < s->size && pid_of(s, missing) != 0)
        missing++;
    return err_set(e, ERR_TIMEOUT, "Rank %d did not come within %.3g s.", missing,
                   (double)s->deadline_us * 1e-6);
}

static int wait_for_peers(struct shm *s, const struct shm_wait *why, struct err *e)
{
    int64_t until = clock_boottime_us() + s->deadline_us;
    struct word *met = &shm_head(s)->met;
    while (!all_have_come(s)) {
        uint32_t seen = __atomic_load_n(&met->value, __ATOMIC_ACQUIRE);
        if (s->stop && *s->stop)
            return err_set(e, ERR_UNAVAILABLE,
                           "Rank %d was asked to stop before all ranks had come.", s->rank);
        if (!all_have_come(s))
            futex_wait(&met->value, seen, TICK_MS);
        int r = look_round(s, met, __atomic_load_n(&met->value, __ATOMIC_ACQUIRE), why, e);
        if (all_have_come(s)) /* who ended after that had met us: the next wait tells */
            break;
        if (r < 0)
            return r;
        if (clock_boottime_us() > until)
            return say_missing(s, e);
    }
    return 0;
}

int shm_meet(struct shm *s, struct err *e)
{
    CLEANUP(mem_freep) int *everyone = mem_alloc((size_t)s->size * sizeof *everyone);
    for (int r = 0; r < s->size; r++)
        everyone[r] = r;
    struct shm_wait why = {.what = "meeting", .members = everyone, .count = s->size};
    int r = introduce(s, e);
    if (r == 0)
        r = wait_for_peers(s, &why, e);
    if (r == 0)
        s->spin = all_have_cores(s);
    return r;
}
