/* Why this node wants no new jobs: its state directory's disk is full, or nearly so, or that of its
 * checkpoints (sweep.c looks at it). Looked at each second; a write that found no room counts for a
 * minute, since a quota is not seen by statvfs(). The coordinator hears of it with the next sync.
 */
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/agent/agent.h"

#define FLOOR_SHARE 20          /* of the disk, 1/20 is to be free, */
#define FLOOR_MOST  (256 << 20) /* and at most that many bytes */
#define LOOK_US     1000000
#define REMEMBER_US 60000000
#define MIB(bytes)  ((double)(bytes) / (1 << 20))

void trouble_of_disk(const char *what, const char *dir, const struct statvfs *fs, int had,
                     char out[TROUBLE_SIZE])
{
    uint64_t room = (uint64_t)fs->f_bavail * fs->f_frsize;
    uint64_t least = (uint64_t)fs->f_blocks * fs->f_frsize / FLOOR_SHARE;
    if (least > FLOOR_MOST)
        least = FLOOR_MOST;
    out[0] = '\0';
    if (room < least + (had ? least / 4 : 0)) { /* it does not come and go with each log line */
        uint64_t wanted = least + least / 4;
        snprintf(out, TROUBLE_SIZE,
                 "The disk of its %s %.100s has %.1f MiB free; %.1f MiB are needed to start jobs.",
                 what, dir, MIB(room), MIB(wanted));
    } else if (fs->f_files > 0 && fs->f_favail == 0)
        snprintf(out, TROUBLE_SIZE, "The disk of its %s %.100s has no free inodes.", what, dir);
}

/* "The disk … has 3.1 MiB free" at one look and 3.2 at the next is no news. */
static void set(struct agent *g, const char *text)
{
    int news = !*text != !g->trouble[0];
    agent_escape(text, g->trouble, sizeof g->trouble);
    if (!news)
        return;
    g->urgent_due = 1;
    log_event(*text ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, "trouble", "reason=%s",
              log_quote(*text ? text : "over"));
}

void trouble_no_space(struct agent *g, const char *what)
{
    char text[TROUBLE_SIZE];
    g->no_space_until_us = clock_boottime_us() + REMEMBER_US;
    snprintf(text, sizeof text, "Its state directory has no room: %.200s.", what);
    set(g, text);
}

void trouble_pump(struct agent *g)
{
    struct statvfs fs;
    char text[TROUBLE_SIZE];
    int64_t now = clock_boottime_us();
    if (now >= g->trouble_look_us) {
        g->trouble_look_us = now + LOOK_US;
        if (now >= g->no_space_until_us && statvfs(g->options.state_dir, &fs) == 0) {
            trouble_of_disk("state directory", g->options.state_dir, &fs, g->trouble[0] != '\0',
                            text);
            if (!text[0])
                gpus_unknown(g, text, sizeof text);
            set(g, text[0] ? text : g->sweep.trouble);
        }
    }
    agent_wake_at(g, g->trouble_look_us);
}
