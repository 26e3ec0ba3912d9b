/* What a look adds to NVML's answers: who a process is, where a card sits, and which cards are
 * linked. */
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/look.h"
#include "daemon/procs.h"

int look_uuid_valid(const char *uuid)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-/";
    size_t n = strlen(uuid);
    return n >= 5 && n < LOOK_UUID_SIZE && strspn(uuid, allowed) == n;
}

/* ---- processes ---- */

/* NVML may tell the machine's numbers, which in a namespace of our own are others' or nobody's. */
static int sees_all_processes(void)
{
    char name[64] = "";
    ssize_t n = readlink("/proc/self/ns/pid", name, sizeof name - 1);
    return n < 0 || strcmp(name, "pid:[4026531836]") == 0; /* the kernel's first one, for ever */
}

/* From the file alone: a directory service that is away must not stop the probe. */
static void name_user(uid_t uid, char out[64])
{
    struct passwd *p;
    FILE *f = fopen("/etc/passwd", "re");
    snprintf(out, 64, "%u", (unsigned)uid);
    while (f && (p = fgetpwent(f))) {
        if (p->pw_uid == uid) {
            agent_escape(p->pw_name, out, 64);
            break;
        }
    }
    if (f)
        fclose(f);
}

static json_t *process(unsigned pid, unsigned long long memory)
{
    struct procs_facts facts;
    char name[64];
    char user[64];
    json_t *p = json_pack("{s:I}", "pid", (json_int_t)pid);
    if (memory <= INT64_MAX)
        json_object_set_new(p, "memory_bytes", json_integer((json_int_t)memory));
    if (pid > INT_MAX || procs_facts((pid_t)pid, &facts) < 0)
        return p; /* gone meanwhile, or of another namespace */
    if (!facts.mark[0] && !sees_all_processes())
        return p; /* it may be another one of that number */
    agent_escape(facts.name, name, sizeof name);
    name_user(facts.uid, user);
    json_object_set_new(p, "name", json_string(name));
    json_object_set_new(p, "user", json_string(user));
    if (facts.mark[0])
        json_object_set_new(p, "mark", json_string(facts.mark)); /* NULL is left out: no mark */
    json_t *above = json_array();
    for (int i = 0; i < facts.above_count; i++)
        json_array_append_new(above, json_integer(facts.above[i]));
    json_object_set_new(p, "above", above);
    return p;
}

static int is_repeated(const struct nvml_process *list, unsigned i)
{
    for (unsigned k = 0; k < i; k++) {
        if (list[k].pid == list[i].pid)
            return 1;
    }
    return 0;
}

void look_processes(json_t *gpu, const struct nvml_process *list, unsigned count)
{
    json_t *told = json_array();
    unsigned more = 0;
    for (unsigned i = 0; i < count; i++) {
        if (is_repeated(list, i))
            continue;
        if (json_array_size(told) < LOOK_PROCESSES_MAX)
            json_array_append_new(told, process(list[i].pid, list[i].memory));
        else
            more++;
    }
    json_object_set_new(gpu, "processes", told);
    if (more > 0)
        json_object_set_new(gpu, "more", json_integer(more));
}

/* ---- where it sits ---- */

static int read_line(const char *pci, const char *name, char *out, size_t size)
{
    char path[128];
    struct buf b = BUF_INIT;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.31s/%.31s", pci, name);
    int r = file_read(path, 4096, &b, NULL);
    if (r == 0)
        snprintf(out, size, "%.*s", (int)strcspn(b.data, "\n"), b.data);
    buf_done(&b);
    return r;
}

void look_place(json_t *gpu, const char *pci)
{
    char text[64];
    if (read_line(pci, "numa_node", text, sizeof text) < 0 || atoi(text) < 0)
        return; /* -1: a machine that has but one node, or does not tell */
    json_object_set_new(gpu, "numa", json_integer(atoi(text)));
}

/* ---- links ---- */

static json_int_t switch_links(const json_t *gpu)
{
    json_t *peer;
    size_t i;
    json_array_foreach(json_object_get(gpu, "peers"), i, peer)
    {
        if (json_object_get(peer, "switch"))
            return json_integer_value(json_object_get(peer, "count"));
    }
    return 0;
}

/* Links that lead straight from one to the other; behind switches, what both have: each reaches
 * every other with all of its links. */
static json_int_t links_between(const json_t *a, const json_t *b)
{
    json_t *peer;
    size_t i;
    json_int_t of_a = switch_links(a);
    json_int_t of_b = switch_links(b);
    json_int_t count = of_a < of_b ? of_a : of_b;
    if (json_object_get(a, "mig_of") || json_object_get(b, "mig_of"))
        return 0; /* instances do not reach one another */
    json_array_foreach(json_object_get(a, "peers"), i, peer)
    {
        const json_t *pci = json_object_get(peer, "pci");
        if (pci && json_equal(pci, json_object_get(b, "pci")))
            count += json_integer_value(json_object_get(peer, "count"));
    }
    return count;
}

void look_links(json_t *gpus)
{
    json_t *a;
    json_t *b;
    size_t i;
    size_t k;
    json_array_foreach(gpus, i, a)
    {
        json_t *links = json_array();
        json_array_foreach(gpus, k, b)
        {
            json_int_t count = i == k ? 0 : links_between(a, b);
            if (count > 0)
                json_array_append_new(links, json_pack("{s:O, s:s, s:I}", "uuid",
                                                       json_object_get(b, "uuid"), "kind", "nvlink",
                                                       "count", count));
        }
        if (json_array_size(links) > 0)
            json_object_set(a, "links", links);
        json_decref(links);
    }
    json_array_foreach(gpus, i, a) json_object_del(a, "peers");
}
