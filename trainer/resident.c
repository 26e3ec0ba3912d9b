#include "trainer/resident.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"

#define ROLLUP_MAX 16384

/* The number behind `name`, in KiB; -1: there is none. */
static int64_t kib_of(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    long long kib;
    return at && sscanf(at + strlen(name), " %lld kB", &kib) == 1 ? kib : -1;
}

int64_t resident_bytes(void)
{
    struct buf text = BUF_INIT;
    int64_t anonymous = -1, shared = -1;
    if (file_read("/proc/self/smaps_rollup", ROLLUP_MAX, &text, NULL) == 0) {
        buf_add(&text, "", 1);
        anonymous = kib_of(text.data, "Pss_Anon:");
        shared = kib_of(text.data, "Pss_Shmem:");
    }
    buf_done(&text);
    return anonymous < 0 || shared < 0 ? -1 : (anonymous + shared) * 1024;
}
