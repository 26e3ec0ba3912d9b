/* The rules: what a look at a GPU, or an Xid, means for the work on it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/agent/agent.h"

#define GIB(bytes) ((double)(bytes) / (1 << 30))

__attribute__((format(printf, 4, 5))) static void find(struct gpu_finding *f, enum gpu_state state,
                                                       const char *code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    f->state = state;
    snprintf(f->code, sizeof f->code, "%s", code);
    vsnprintf(f->reason, sizeof f->reason, fmt, ap);
    va_end(ap);
}

static const char *text_of(const json_t *o, const char *key, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : otherwise;
}

static json_int_t number_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

/* ---- whose it is ---- */

static int rank_on(const struct attempt *a, const char *uuid)
{
    json_t *rank;
    size_t i;
    json_array_foreach(a->gpus, i, rank)
    {
        if (strcmp(text_of(rank, "uuid", ""), uuid) == 0)
            return (int)number_of(rank, "rank");
    }
    return -1;
}

struct attempt *gpu_lessee(const struct agent *g, const char *uuid, int *ret_rank)
{
    for (int i = 0; i < g->attempt_count; i++) {
        int rank = rank_on(g->attempts[i], uuid);
        if (rank < 0 || g->attempts[i]->phase == PHASE_ENDED)
            continue;
        if (ret_rank)
            *ret_rank = rank;
        return g->attempts[i];
    }
    return NULL;
}

static int is_below(const json_t *process, pid_t pid)
{
    json_t *above;
    size_t i;
    json_array_foreach(json_object_get(process, "above"), i, above)
    {
        if (json_integer_value(above) == pid)
            return 1;
    }
    return 0;
}

/* A living shim's descendants are its attempt's, and so is what carries its mark. */
static const struct attempt *attempt_of(const struct agent *g, const json_t *process)
{
    const char *mark = text_of(process, "mark", "");
    for (int i = 0; i < g->attempt_count; i++) {
        const struct attempt *a = g->attempts[i];
        size_t n = strlen(a->id);
        if (a->shim_pidfd >= 0 && is_below(process, a->shim.shim.pid))
            return a;
        if (strncmp(mark, a->id, n) == 0 && mark[n] == ':' && strcmp(mark + n + 1, g->boot_id) == 0)
            return a;
    }
    return NULL;
}

/* ---- processes ---- */

/* "The process 4711 ("python3", user alice; 12.0 GiB)" */
static void name_process(const json_t *p, char *out, size_t size)
{
    char memory[32] = "";
    const json_t *bytes = json_object_get(p, "memory_bytes");
    const char *name = json_string_value(json_object_get(p, "name"));
    if (bytes)
        snprintf(memory, sizeof memory, "%.1f GiB", GIB(json_integer_value(bytes)));
    if (name)
        snprintf(out, size, "The process %lld (\"%.60s\", user %.60s%s%s)",
                 (long long)number_of(p, "pid"), name, text_of(p, "user", "?"), bytes ? "; " : "",
                 memory);
    else
        snprintf(out, size, "The process %lld, which is not to be seen on this node%s%s%s,",
                 (long long)number_of(p, "pid"), bytes ? " (" : "", memory, bytes ? ")" : "");
}

static void find_stranger(struct gpu_finding *f, const json_t *p, const struct attempt *owner,
                          json_int_t others)
{
    char who[240];
    char rest[48] = "";
    name_process(p, who, sizeof who);
    if (others > 0)
        snprintf(rest, sizeof rest, ", and so do %lld more", (long long)others);
    if (!owner)
        find(f, GPU_DIRTY, "foreign_process", "%s uses it and is of no job of this node%s.", who,
             rest);
    else if (owner->phase == PHASE_ENDED)
        find(f, GPU_DIRTY, "foreign_process", "%s is left of %s, which has ended, and uses it%s.",
             who, owner->id, rest);
    else
        find(f, GPU_DIRTY, "wrong_device", "%s is of %s and uses it, but it was not given to it%s.",
             who, owner->id, rest);
}

/* Gone since the look, or of another namespace: in a container ranks may look like that. Where a
 * GPU is an attempt's they are taken for that one's. */
static int is_unseen(const json_t *process)
{
    return !json_object_get(process, "name");
}

/* 1 if something uses it that should not. */
static int judge_processes(const struct agent *g, const struct gpu *d, struct gpu_finding *f)
{
    const struct attempt *lessee = gpu_lessee(g, d->uuid, NULL);
    const json_t *first = NULL;
    json_int_t strangers = number_of(d->look, "more");
    json_t *p;
    size_t i;
    json_array_foreach(json_object_get(d->look, "processes"), i, p)
    {
        const struct attempt *owner = attempt_of(g, p);
        if (lessee && (owner == lessee || is_unseen(p)))
            continue;
        strangers++;
        if (!first)
            first = p;
    }
    if (first)
        find_stranger(f, first, attempt_of(g, first), strangers - 1);
    return first != NULL;
}

/* ---- memory ---- */

static int64_t held(const struct gpu *d)
{
    return number_of(d->look, "memory_used_bytes") - number_of(d->look, "graphics_bytes");
}

static int is_idle(const struct agent *g, const struct gpu *d)
{
    return d->look && json_object_get(d->look, "memory_used_bytes") &&
           json_array_size(json_object_get(d->look, "processes")) == 0 &&
           !gpu_lessee(g, d->uuid, NULL);
}

/* Of one that was never seen idle: what others of its kind hold, here, when they are. */
static int64_t baseline_of_kind(const struct agent *g, const struct gpu *d)
{
    int64_t least = GPUS_MEMORY_IDLE;
    for (int i = 0; i < g->gpus.count; i++) {
        const struct gpu *other = &g->gpus.items[i];
        if (other == d || strcmp(other->name, d->name) != 0)
            continue;
        if (other->baseline >= 0 && other->baseline < least)
            least = other->baseline;
        if (is_idle(g, other) && held(other) < least)
            least = held(other);
    }
    return least;
}

void gpu_learn(const struct agent *g, struct gpu *d)
{
    if (!is_idle(g, d))
        return;
    int64_t bytes = held(d) > 0 ? held(d) : 0;
    int64_t most = d->baseline >= 0 ? d->baseline : baseline_of_kind(g, d) + GPUS_MEMORY_SLACK;
    if (bytes <= most)
        d->baseline = bytes;
    else if (d->baseline < 0)
        d->baseline = most - GPUS_MEMORY_SLACK;
}

static void judge_memory(const struct agent *g, const struct gpu *d, struct gpu_finding *f)
{
    if (!is_idle(g, d) || d->baseline < 0 || held(d) <= d->baseline + GPUS_MEMORY_SLACK)
        return;
    find(f, GPU_DIRTY, "memory_held",
         "%.2f GiB of its memory (%lld bytes) are in use, though no process is seen on it; when "
         "idle it holds %.2f GiB (%lld bytes).",
         GIB(held(d)), (long long)held(d), GIB(d->baseline), (long long)d->baseline);
}

/* ---- errors ---- */

/* 1 if the card itself is not to be used. */
static int judge_hardware(const struct gpu *d, struct gpu_finding *f)
{
    const json_t *o = d->look;
    long long ecc = number_of(o, "ecc_uncorrected");
    const char *what = text_of(o, "reset_required", NULL);
    if (d->latch.state == GPU_FAILED)
        *f = d->latch;
    else if (what)
        find(f, GPU_FAILED, "reset_required",
             "NVML says that it must be reset (asked for its %.40s).", what);
    else if (number_of(o, "remap_failure"))
        find(f, GPU_FAILED, "row_remap_failure",
             "A row of its memory could not be replaced by a spare one: it needs repair.");
    else if (ecc > 0)
        find(f, GPU_FAILED, "ecc_error",
             "It has counted %lld uncorrected memory error%s since it was last reset.", ecc,
             ecc == 1 ? "" : "s");
    else if (number_of(o, "remap_pending"))
        find(f, GPU_FAILED, "row_remap_pending",
             "A row of its memory is to be replaced by a spare one, which takes a reset.");
    else if (number_of(o, "retirement_pending"))
        find(f, GPU_FAILED, "page_retirement_pending",
             "A page of its memory is to be taken out of use, which takes a reset.");
    else if (number_of(o, "memory_bytes") <= 0)
        find(f, GPU_FAILED, "memory_unknown",
             "NVML does not tell how much memory it has, so no job can be planned on it.");
    return f->state == GPU_FAILED;
}

static int judge_absence(const struct gpu *d, struct gpu_finding *f)
{
    const char *what = text_of(d->look, "lost", NULL);
    if (d->look && !what)
        return 0;
    if (d->look)
        find(f, GPU_LOST, "device_lost",
             "NVML says that it is lost (asked for its %.40s): it does not answer on the bus.",
             what);
    else
        find(f, GPU_LOST, "device_lost",
             "NVML no longer lists it; it was %.60s at %.31s. If it was taken out for good, remove "
             "it from " GPUS_MAP " while the agent is stopped.",
             d->name[0] ? d->name : "a GPU", d->pci[0] ? d->pci : "an unknown place");
    return 1;
}

void gpu_judge(const struct agent *g, struct gpu *d, struct gpu_finding *ret)
{
    *ret = (struct gpu_finding){.state = GPU_READY};
    if (judge_absence(d, ret) || judge_hardware(d, ret) || judge_processes(g, d, ret))
        return;
    if (d->xid > 0)
        find(ret, GPU_DIRTY, "xid", "It has reported Xid %d, whose meaning is not known here.",
             d->xid);
    else
        judge_memory(g, d, ret);
}

/* ---- Xids ---- */

/* By NVIDIA's catalogue of Xid errors. */
static const struct {
    int xid;
    enum xid_kind kind;
    const char *what;
} xids[] = {
    {13, XID_APPLICATION, "an error in a kernel"},
    {31, XID_APPLICATION, "an access to memory that is not mapped"},
    {43, XID_APPLICATION, "a kernel that was stopped for an error"},
    {45, XID_APPLICATION, "work that was removed with its process"},
    {46, XID_HARDWARE, "it stopped processing"},
    {48, XID_HARDWARE, "an uncorrectable memory error"},
    {61, XID_HARDWARE, "its microcontroller's breakpoint"},
    {62, XID_HARDWARE, "its microcontroller's halt"},
    {63, XID_HARDWARE, "a memory row or page to be replaced"},
    {64, XID_HARDWARE, "a memory row or page that could not be replaced"},
    {74, XID_HARDWARE, "an NVLink error"},
    {79, XID_HARDWARE, "it has fallen off the bus"},
    {94, XID_HARDWARE, "a contained memory error"},
    {95, XID_HARDWARE, "an uncontained memory error"},
    {110, XID_HARDWARE, "a security fault"},
    {119, XID_HARDWARE, "a timeout of its system processor"},
    {120, XID_HARDWARE, "an error of its system processor"},
    {140, XID_HARDWARE, "an unrecovered memory error"},
};

enum xid_kind xid_kind(int xid, const char **ret_what)
{
    for (size_t i = 0; i < ARRAY_LEN(xids); i++) {
        if (xids[i].xid == xid) {
            *ret_what = xids[i].what;
            return xids[i].kind;
        }
    }
    *ret_what = NULL;
    return XID_OTHER;
}
