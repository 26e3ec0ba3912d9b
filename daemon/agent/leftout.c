/* What an attempt left behind and the coordinator does not get: told with its exit record, so that
 * the job's user hears of it. Names are the job's: all but printable ASCII is escaped. At most
 * LEFT_OUT_MAX are named; the rest are counted. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "daemon/agent/agent.h"

#define NAME_SIZE 128
#define WHY_SIZE  200

void agent_escape(const char *text, char *out, size_t size)
{
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        int plain = *p >= 0x20 && *p < 0x7f && *p != '\\';
        if (n + 8 > size) {
            snprintf(out + n, size - n, "...");
            return;
        }
        n += (size_t)snprintf(out + n, size - n, plain ? "%c" : "\\x%02x", *p);
    }
    out[n] = '\0';
}

void left_out_add(struct attempt *a, const char *name, const char *why)
{
    char plain_name[NAME_SIZE] = "", plain_why[WHY_SIZE] = "";
    agent_escape(name, plain_name, sizeof plain_name);
    agent_escape(why, plain_why, sizeof plain_why);
    if (!a->left_out)
        a->left_out = json_array();
    if (a->left_out_count++ >= LEFT_OUT_MAX)
        return;
    log_event(LOG_LEVEL_WARNING, "file_left_out", "attempt=%s file=%s reason=%s", a->id,
              log_quote(plain_name), log_quote(plain_why));
    json_array_append_new(a->left_out,
                          json_pack("{s:s, s:s}", "name", plain_name, "why", plain_why));
}

void left_out_cut(struct attempt *a, int count)
{
    a->left_out_count = count;
    while (json_array_size(a->left_out) > (size_t)count)
        json_array_remove(a->left_out, json_array_size(a->left_out) - 1);
}

json_t *left_out_exit(const struct attempt *a)
{
    json_t *record = json_copy(a->exit);
    if (record && a->left_out_count > 0) {
        json_object_set(record, "left_out", a->left_out);
        json_object_set_new(record, "left_out_count", json_integer(a->left_out_count));
    }
    if (record && a->xids)
        json_object_set(record, "xids", a->xids);
    return record;
}
