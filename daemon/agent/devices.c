/* The devices of this node. Of CPUs, device i is core i of the cores that we may use, with an equal
 * share of the machine's memory; with more devices than cores ranks are not bound. GPUs: gpus.h. */
#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

static int read_memory(int64_t *ret, struct err *e)
{
    struct buf b = BUF_INIT;
    int r = file_read("/proc/meminfo", 65536, &b, e);
    if (r < 0)
        return r;
    long long kib = 0;
    const char *p = strstr(b.data, "MemTotal:");
    int got = p ? sscanf(p, "MemTotal: %lld kB", &kib) : 0;
    buf_done(&b);
    if (got != 1 || kib < 1)
        return err_set(e, ERR_IO, "/proc/meminfo does not name MemTotal");
    *ret = kib * 1024;
    return 0;
}

/* "AMD EPYC 7763 64-Core Processor", or "CPU" where the kernel names none. */
static char *read_model(void)
{
    struct buf b = BUF_INIT;
    char *name = NULL;
    if (file_read("/proc/cpuinfo", 16 * 1024 * 1024, &b, NULL) == 0) {
        char *p = strstr(b.data, "model name");
        char *colon = p ? strchr(p, ':') : NULL;
        if (colon) {
            colon += 1 + strspn(colon + 1, " \t");
            name = mem_strndup(colon, strcspn(colon, "\n"));
        }
    }
    buf_done(&b);
    return name ? name : mem_strdup("CPU");
}

static int find_cores(struct agent *g, struct err *e)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return err_errno(e, "cannot read which CPUs may be used");
    g->cores = mem_zalloc(CPU_SETSIZE * sizeof *g->cores);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET((size_t)i, &set))
            g->cores[g->core_count++] = i;
    }
    return 0;
}

/* ---- CPU devices ---- */

int devices_core(const struct agent *g, int64_t device)
{
    int64_t i = device - g->cpu_first;
    if (g->cpu_count > g->core_count || i < 0 || i >= g->core_count)
        return -1;
    return g->cores[i];
}

static void list_cpus(struct agent *g)
{
    CLEANUP(mem_freep) char *model = read_model();
    json_decref(g->cpus);
    g->cpus = json_array();
    for (int i = 0; i < g->cpu_count; i++) {
        int core = devices_core(g, g->cpu_first + i);
        json_t *name = core >= 0 ? json_sprintf("%.120s, core %d", model, core)
                                 : json_sprintf("%.120s, unbound", model);
        json_array_append_new(g->cpus,
                              json_pack("{s:i, s:s, s:I, s:o}", "index", g->cpu_first + i, "kind",
                                        "cpu", "memory_bytes",
                                        (json_int_t)(g->memory / g->cpu_count), "name", name));
    }
}

/* The numbers below GPUS_MAX are GPUs' where there has ever been one. Such a node is there for its
 * GPUs: it offers CPUs only where it was told how many. */
void devices_number(struct agent *g)
{
    int has_gpus = 0;
    for (int i = 0; i < g->gpus.count; i++)
        has_gpus |= g->gpus.items[i].saved;
    int first = has_gpus ? GPUS_MAX : 0;
    int by_default = g->options.default_cpus && has_gpus && strcmp(g->options.gpus, "none") != 0;
    int count = by_default ? 0 : g->options.cpu_devices;
    if (has_gpus && count > GPUS_CPUS_MAX) {
        log_event(LOG_LEVEL_ERROR, "devices",
                  "note=\"of %d CPU devices %d are offered: a node with GPUs has no more\"", count,
                  GPUS_CPUS_MAX);
        count = GPUS_CPUS_MAX;
    }
    if (g->cpus && first == g->cpu_first && count == g->cpu_count)
        return;
    g->cpu_first = first;
    g->cpu_count = count;
    list_cpus(g);
    gpus_news(g);
}

int devices_find(struct agent *g, struct err *e)
{
    int r = find_cores(g, e);
    if (r == 0)
        r = read_memory(&g->memory, e);
    if (r == 0)
        r = gpumap_load(g, e);
    if (r == 0)
        devices_number(g);
    return r;
}

/* ---- what the coordinator is told ---- */

json_t *devices_to_json(const struct agent *g)
{
    json_t *list = json_array();
    gpus_to_json(g, list);
    json_array_extend(list, g->cpus);
    return list;
}

json_t *devices_trainers(const struct agent *g)
{
    return g->options.trainer_cuda ? json_pack("[s, s]", "cpu", "cuda") : json_pack("[s]", "cpu");
}

/* ---- what an attempt is given ---- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static int is_here(const struct agent *g, const json_t *rank)
{
    const char *node = json_string_value(json_object_get(rank, "node"));
    return !node || strcmp(node, g->options.name) == 0;
}

static int is_on_gpu(const json_t *rank)
{
    return strcmp(text_of(rank, "kind"), "gpu") == 0;
}

void devices_take(struct attempt *a, const json_t *ranks)
{
    json_t *rank;
    size_t i;
    json_array_foreach(ranks, i, rank)
    {
        if (!is_here(a->agent, rank))
            continue;
        if (!is_on_gpu(rank)) {
            a->on_cpus = 1;
            continue;
        }
        if (!a->gpus)
            a->gpus = json_array();
        json_array_append_new(
            a->gpus, json_pack("{s:I, s:s}", "rank",
                               (json_int_t)json_integer_value(json_object_get(rank, "rank")),
                               "uuid", text_of(rank, "uuid")));
    }
}

static int check_ready(const struct agent *g, const struct gpu *d, struct err *e)
{
    struct gpu_finding f;
    gpu_report(g, d, &f);
    if (f.state == GPU_READY)
        return 0;
    return err_set(e, ERR_CONFLICT, "The GPU %s of node %s (device %d) is %s: %.300s", d->uuid,
                   g->options.name, d->index, gpu_state_name(f.state), f.reason);
}

int devices_check(const struct attempt *a, struct err *e)
{
    json_t *rank;
    size_t i;
    int r = 0;
    json_array_foreach(a->gpus, i, rank)
    {
        const struct gpu *d = gpumap_find(a->agent, text_of(rank, "uuid"));
        if (r == 0)
            r = d ? check_ready(a->agent, d, e)
                  : err_set(e, ERR_CONFLICT, "Node %s offers no GPU %.95s", a->agent->options.name,
                            text_of(rank, "uuid"));
    }
    return r;
}

static int check_gpu(const struct agent *g, const json_t *rank, struct err *e)
{
    const char *uuid = text_of(rank, "uuid");
    const struct attempt *lessee = gpu_lessee(g, uuid, NULL);
    json_int_t index = json_integer_value(json_object_get(rank, "device"));
    const struct gpu *d = gpumap_find(g, uuid);
    if (!d || !gpus_offered(g, d))
        return err_set(e, ERR_CONFLICT, "Node %s offers no GPU %.95s", g->options.name, uuid);
    if (d->index != index)
        return err_set(e, ERR_CONFLICT, "The GPU %s of node %s is its device %d, not %lld", uuid,
                       g->options.name, d->index, (long long)index);
    if (lessee) /* a coordinator whose books were put back to what they were */
        return err_set(e, ERR_CONFLICT, "The GPU %s of node %s (device %d) is %s's, which runs",
                       uuid, g->options.name, d->index, lessee->id);
    return check_ready(g, d, e);
}

static int place_rank(const struct agent *g, json_t *rank, struct err *e)
{
    json_int_t device = json_integer_value(json_object_get(rank, "device"));
    int core = -1;
    int r = 0;
    if (is_on_gpu(rank)) {
        r = check_gpu(g, rank,
                      e); /* unbound: it feeds its GPU by threads, of NCCL and the loader */
    } else if (device < g->cpu_first) {
        r = err_set(e, ERR_CONFLICT,
                    "Node %s has GPUs by now, so that its device %lld is no CPU any more",
                    g->options.name, (long long)device);
    } else {
        core = devices_core(g, device);
    }
    json_object_set_new(rank, "cpu", json_integer(core));
    return r;
}

static int choose_trainer(const struct agent *g, json_t *launch, int gpus, int cpus, struct err *e)
{
    const char *trainer = gpus > 0 ? g->options.trainer_cuda : g->options.trainer;
    if (gpus > 0 && cpus > 0)
        return err_set(e, ERR_CONFLICT, "Its ranks on node %s are on GPUs and on CPUs",
                       g->options.name);
    if (!trainer)
        return err_set(e, ERR_CONFLICT,
                       "Node %s has no trainer for GPUs: install trainyard-trainer-cuda beside its "
                       "agent, or name it with --trainer-cuda",
                       g->options.name);
    json_object_set_new(launch, "trainer", json_string(trainer));
    return 0;
}

int devices_launch(const struct agent *g, json_t *launch, struct err *e)
{
    json_t *rank;
    size_t i;
    int gpus = 0;
    int cpus = 0;
    int r = 0;
    int is_training = !json_object_get(json_object_get(launch, "spec"), "command");
    json_object_set_new(launch, "trainer", json_string(g->options.trainer));
    json_array_foreach(json_object_get(launch, "ranks"), i, rank)
    {
        if (!is_here(g, rank))
            continue;
        *(is_on_gpu(rank) ? &gpus : &cpus) += 1;
        if (r == 0)
            r = place_rank(g, rank, e);
    }
    return r == 0 && is_training ? choose_trainer(g, launch, gpus, cpus, e) : r;
}
