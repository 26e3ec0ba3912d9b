/* CPU devices: device i is core i of the cores that we may use, with an equal share of the
 * machine's memory. With more devices than cores ranks are not bound. */
#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
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

int devices_core(const struct agent *g, int64_t device)
{
    if (g->options.cpu_devices > g->core_count || device < 0 || device >= g->core_count)
        return -1;
    return g->cores[device];
}

int devices_find(struct agent *g, struct err *e)
{
    int64_t memory = 0;
    int n = g->options.cpu_devices;
    int r = find_cores(g, e);
    if (r == 0)
        r = read_memory(&memory, e);
    if (r < 0)
        return r;
    CLEANUP(mem_freep) char *model = read_model();
    g->devices = json_array();
    for (int i = 0; i < n; i++) {
        int core = devices_core(g, i);
        json_t *name = core >= 0 ? json_sprintf("%.120s, core %d", model, core)
                                 : json_sprintf("%.120s, unbound", model);
        json_array_append_new(g->devices,
                              json_pack("{s:i, s:s, s:I, s:o}", "index", i, "kind", "cpu",
                                        "memory_bytes", (json_int_t)(memory / n), "name", name));
    }
    return 0;
}
