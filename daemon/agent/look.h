/* look.h: one look at this node's GPUs through NVML, as a JSON object. Runs in the probe's process.
 *
 * {"type": "look", "began_us", "gpus": [{
 *     "uuid", "name", "pci": "0000:65:00.0", "numa", "mig_of", "mig": true,
 *     "memory_bytes", "memory_used_bytes", "graphics_bytes",
 *     "processes": [{"pid", "name", "user", "memory_bytes", "mark", "above": [pid…]}], "more",
 *     "links": [{"uuid", "kind": "nvlink", "count"}],
 *     "temperature_c", "power_w", "utilization", "clock_mhz", "throttled", "ecc_corrected",
 *     "ecc_uncorrected", "remap_pending", "remap_failure", "retirement_pending",
 *     "lost", "reset_required": what was asked when NVML said so,
 *     "unanswered": {what: "NOT_SUPPORTED"} }],
 *  "unidentified": [{"position", "error"}], "notes": [sentence] }
 *
 * Whatever NVML does not tell is absent. All texts are printable ASCII and short. "began_us" is
 * boot time. A GPU that is split by MIG has "mig", and its instances follow it with "mig_of"; what
 * is measured and counted of the whole card alone stands in each of them. A process without a
 * "name" is not to be seen from here: gone meanwhile, or of another namespace.
 */
#ifndef TRAINYARD_DAEMON_AGENT_LOOK_H
#define TRAINYARD_DAEMON_AGENT_LOOK_H

#include <jansson.h>

#include "daemon/agent/nvml.h"

#define LOOK_GPUS_MAX      64 /* whole GPUs of one node */
#define LOOK_MIG_MAX       16 /* instances of one GPU */
#define LOOK_PROCESSES_MAX 256
#define LOOK_UUID_SIZE     96
#define LOOK_NAME_SIZE     96

/* The whole GPUs as the last look found them: events name them by handle. */
struct look_handles {
    nvml_device handle[LOOK_GPUS_MAX];
    char uuid[LOOK_GPUS_MAX][LOOK_UUID_SIZE];
    int count;
};

/* A new reference; NULL with the sentence where NVML as a whole does not answer. */
json_t *look_take(const struct nvml *n, struct look_handles *ret_handles, struct err *e);

/* ---- lookfacts.c ---- */
int look_uuid_valid(const char *uuid); /* letters, digits, '-' and '/', 5 to 95 */
/* "processes" and "more" of a device. */
void look_processes(json_t *gpu, const struct nvml_process *list, unsigned count);
void look_place(json_t *gpu, const char *pci); /* "numa", where the kernel tells */
/* Makes "links" from "peers" ([{"pci", "count"}, {"switch": true, "count"}]) of all of `gpus`. */
void look_links(json_t *gpus);

#endif
