/* The environment of ranks, made from nothing: the torchrun convention, TF_CONFIG, and the mark. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "daemon/shim/shim.h"

#define ENVIRONMENT_MAX 32

struct builder {
    char **items;
    int count;
};

__attribute__((format(printf, 2, 3))) static void add(struct builder *b, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        BUG("out of host memory while formatting a variable");
    if (b->count == ENVIRONMENT_MAX - 1)
        BUG("more than %d variables", ENVIRONMENT_MAX - 1);
    b->items[b->count++] = text;
}

static int world_size(const struct launch *l)
{
    return l->plan.ranks > l->rank_count ? l->plan.ranks : l->rank_count;
}

/* Every rank is a worker; rank i's port is master_port + i, of the ports leased with it. */
static char *tf_config(const struct launch *l, int rank)
{
    json_t *workers = json_array();
    for (int i = 0; i < world_size(l); i++)
        json_array_append_new(workers, json_sprintf("%s:%d", l->master_addr, l->master_port + i));
    json_auto_t *doc = json_pack("{s:{s:o}, s:{s:s, s:i}}", "cluster", "worker", workers, "task",
                                 "type", "worker", "index", rank);
    return doc ? json_dumps(doc, JSON_COMPACT) : NULL;
}

static void add_rank(struct builder *b, const struct launch *l, const struct launch_rank *rank)
{
    int world = world_size(l);
    add(b, "RANK=%d", rank->rank);
    add(b, "LOCAL_RANK=%d", rank->local_rank);
    add(b, "WORLD_SIZE=%d", world);
    add(b, "LOCAL_WORLD_SIZE=%d", l->rank_count);
    add(b, "GROUP_RANK=%d", (rank->rank - rank->local_rank) / l->rank_count);
    add(b, "ROLE_RANK=%d", rank->rank);
    add(b, "ROLE_WORLD_SIZE=%d", world);
    add(b, "MASTER_ADDR=%s", l->master_addr);
    add(b, "MASTER_PORT=%d", l->master_port);
    add(b, "TORCHELASTIC_RESTART_COUNT=%lld", (long long)l->number - 1);
    add(b, "TORCHELASTIC_RUN_ID=%s", l->attempt);
    CLEANUP(mem_freep) char *tf = tf_config(l, rank->rank);
    if (tf)
        add(b, "TF_CONFIG=%s", tf);
    /* By UUID: CUDA's own order is by speed, and another one after a reset. */
    add(b, "CUDA_VISIBLE_DEVICES=%s", rank->kind == DEVICE_GPU ? rank->uuid : "");
    add(b, "CUDA_DEVICE_ORDER=PCI_BUS_ID");
}

char **environment_new(const struct shim *s, const struct launch_rank *rank, const char *mark)
{
    struct builder b = {.items = mem_zalloc(ENVIRONMENT_MAX * sizeof *b.items)};
    add(&b, "PATH=%s", SHIM_PATH);
    add(&b, "HOME=%s", s->user.home);
    add(&b, "LANG=C.UTF-8");
    add(&b, "OPENBLAS_NUM_THREADS=1");
    add(&b, "OMP_NUM_THREADS=1");
    add(&b, "TRAINYARD_JOB_ID=%s", s->launch.job);
    add(&b, "TRAINYARD_ATTEMPT=%s", s->launch.attempt);
    add(&b, "%s=%s", ATTEMPT_MARK_VARIABLE, mark);
    if (rank)
        add_rank(&b, &s->launch, rank);
    return b.items;
}

void environment_free(char **env)
{
    for (char **p = env; p && *p; p++)
        free(*p);
    free(env);
}

static int is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

int environment_find(const char *name, char **ret, struct err *e)
{
    if (!*name)
        return err_set(e, ERR_INVALID, "the command's first word is empty");
    if (strchr(name, '/')) {
        *ret = mem_strdup(name);
        return 0;
    }
    for (const char *p = SHIM_PATH; *p;) {
        size_t n = strcspn(p, ":");
        char *path = mem_printf("%.*s/%s", (int)n, p, name);
        if (is_program(path)) {
            *ret = path;
            return 0;
        }
        free(path);
        p += n + (p[n] == ':');
    }
    return err_set(e, ERR_NOT_FOUND, "the command \"%.100s\" is not on the PATH %s", name,
                   SHIM_PATH);
}
