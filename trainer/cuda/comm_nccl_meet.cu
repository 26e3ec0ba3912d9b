/* comm_nccl_meet.cu: what ranks must have in common, and their communicators. */
#include "trainer/cuda/comm_nccl_parts.h"

#include <sys/utsname.h>

extern "C" {
#include "base/proc.h"
}
#include "spec/plan.h"

/* ---- who has which GPU ---- */

/* What each rank tells of itself. */
struct identity {
    int32_t version; /* of NCCL */
    char boot_id[PROC_BOOT_ID_SIZE];
    char node[64];
    char uuid[48];
};
static_assert(sizeof(struct identity) <= COMM_EXCHANGE_MAX, "an identity is too long");

static int identify(struct identity *ret, struct err *e)
{
    struct utsname name;
    int version = 0;
    *ret = {};
    int r = proc_boot_id(ret->boot_id, e);
    if (r < 0)
        return r;
    if (ncclGetVersion(&version) != ncclSuccess)
        return err_set(e, ERR_IO, "NCCL does not tell its version.");
    ret->version = version;
    snprintf(ret->node, sizeof ret->node, "%.63s", uname(&name) == 0 ? name.nodename : "unknown");
    snprintf(ret->uuid, sizeof ret->uuid, "%s", device_traits()->uuid);
    return 0;
}

/* Another process's words are printed only as far as they can be. */
static void end_texts(struct identity *x)
{
    x->boot_id[sizeof x->boot_id - 1] = x->node[sizeof x->node - 1] = '\0';
    x->uuid[sizeof x->uuid - 1] = '\0';
    for (char *text : {x->node, x->uuid})
        for (char *p = text; *p; p++)
            if (*p < ' ' || *p > '~' || *p == '"')
                *p = '?';
}

static int check_versions(const struct identity *all, int size, struct err *e)
{
    for (int i = 1; i < size; i++) {
        int a = all[0].version, b = all[i].version;
        if (a != b)
            return err_set(e, ERR_INVALID,
                           "Rank 0 on node %s has NCCL %d.%d.%d and rank %d on node %s has "
                           "%d.%d.%d; all ranks of a job need the same.",
                           all[0].node, a / 10000, a / 100 % 100, a % 100, i, all[i].node,
                           b / 10000, b / 100 % 100, b % 100);
    }
    return 0;
}

static int may_share(void)
{
    const char *value = getenv("TRAINYARD_NCCL_SHARE_GPU");
    return value && strcmp(value, "1") == 0;
}

/* NCCL's ranks on one GPU would wait for each other's kernels, which cannot always run beside one
 * another. */
static int check_gpus(const struct identity *all, int size, struct err *e)
{
    for (int i = 1; i < size; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(all[k].boot_id, all[i].boot_id) == 0 &&
                strcmp(all[k].uuid, all[i].uuid) == 0 && !may_share())
                return err_set(e, ERR_CONFLICT,
                               "Ranks %d and %d were given the same GPU, %s of node %s; each rank "
                               "needs one of its own.",
                               k, i, all[i].uuid, all[i].node);
    return 0;
}

static int compare(struct nccl_world *w, struct err *e)
{
    struct identity mine, *all;
    int r = identify(&mine, e);
    if (r < 0)
        return r;
    all = static_cast<struct identity *>(mem_alloc(static_cast<size_t>(w->size) * sizeof *all));
    r = w->hosts->verbs->exchange(w->hosts, &mine, sizeof mine, all, e);
    for (int i = 0; r == 0 && i < w->size; i++)
        end_texts(&all[i]);
    if (r == 0)
        r = check_versions(all, w->size, e);
    if (r == 0)
        r = check_gpus(all, w->size, e);
    free(all);
    return r;
}

/* Before NCCL reads them. What the environment says already stays. */
static void set_environment(void)
{
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    if (may_share())
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
}

/* ---- communicators ---- */

static int keep(struct nccl_world *w, ncclComm_t c)
{
    if (w->comm_count == NCCL_COMMS)
        BUG("more than %d communicators", NCCL_COMMS);
    w->comms[w->comm_count++] = c;
    return 0;
}

static ncclConfig_t config(void)
{
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    c.blocking = 0;
    return c;
}

int nccl_meet(struct nccl_world *w, struct err *e)
{
    set_environment();
    int r = compare(w, e);
    if (r < 0)
        return r;
    ncclUniqueId id = {};
    ncclComm_t c = NULL;
    ncclConfig_t how = config();
    ncclResult_t made = w->hosts->rank == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
    if (made != ncclSuccess)
        return err_set(e, ERR_IO, "NCCL could not make an id: %s: %s", ncclGetErrorString(made),
                       ncclGetLastError(NULL));
    if ((r = w->hosts->verbs->broadcast(w->hosts, &id, sizeof id, 0, e)) < 0)
        return r;
    made = ncclCommInitRankConfig(&c, w->size, id, w->hosts->rank, &how);
    if (c)
        keep(w, c);
    return nccl_done(w, c, made, "make the communicator of all ranks", e);
}

/* The new one is told of once the old one is ready, and has then to get ready itself. */
int nccl_split(struct nccl_world *w, int color, int key, ncclComm_t *ret, struct err *e)
{
    ncclConfig_t how = config();
    w->arriving = NULL;
    ncclResult_t made =
        ncclCommSplit(w->comms[0], color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &w->arriving, &how);
    int r = nccl_done(w, w->comms[0], made, "split the communicator of all ranks", e);
    ncclComm_t c = r == 0 ? w->arriving : NULL;
    if (c) {
        keep(w, c);
        r = nccl_done(w, c, ncclInProgress, "make a group's communicator", e);
    }
    *ret = c;
    return r;
}

static int finish_comms(struct nccl_world *w, struct err *e)
{
    int r = 0;
    for (int i = w->comm_count - 1; r == 0 && i >= 0; i--) {
        ncclComm_t c = w->comms[i];
        r = nccl_done(w, c, ncclCommFinalize(c), "finish a communicator", e);
        if (r == 0) {
            ncclCommDestroy(c);
            w->comm_count--;
        }
    }
    return r;
}

/* Nobody leaves while another one's kernels may still read what it sent, nor while others look
 * whether all live. */
void nccl_leave(struct nccl_world *w)
{
    struct err e = {};
    if (w->has_left || w->why.code)
        return;
    w->has_left = 1;
    cudaStream_t s = device_stream();
    for (int i = 0; i < w->lane_count; i++)
        nccl_lane_settle(w->lanes[i], UINT64_MAX, s);
    int r = device_finish(&e);
    if (r == 0)
        r = w->hosts->verbs->barrier(w->hosts, &e);
    if (r == 0)
        r = finish_comms(w, &e);
    if (r == 0)
        r = w->hosts->verbs->barrier(w->hosts, &e);
    if (r < 0)
        nccl_end(w, &e);
    /* From here on nobody is waited for: others may be gone for good, and lanes are freed. */
    device_watch(NULL, NULL);
    w->lane_count = 0;
}
