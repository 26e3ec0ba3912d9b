/* procs.h: the processes of this machine, and ending those that belong to an attempt.
 *
 * Two ways of belonging: descending from a process (a subreaper keeps its orphans, so that
 * setsid and double forks change nothing), and carrying the attempt's mark in the environment
 * that it was started with. A process is signalled only through a pidfd that was checked to be
 * the one seen in the walk; a pid alone names nobody.
 */
#ifndef TRAINYARD_DAEMON_PROCS_H
#define TRAINYARD_DAEMON_PROCS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "daemon/attempt.h"

#define PROCS_ABOVE_MAX 16

struct procs_entry {
    pid_t pid, parent, group;
    uint64_t start_time;
    int dead;  /* a zombie */
    int below; /* descends from the root that was asked for */
};

struct procs {
    struct procs_entry *items;
    size_t count;
};

void procs_done(struct procs *p); /* safe on a zeroed struct */

/* All processes, `below` set for those that descend from `root` (not root itself). One pass over
 * /proc: what is forked meanwhile is found by the next walk. */
int procs_walk(pid_t root, struct procs *ret, struct err *e);

/* Sends the signal to that very process; 0 also when it has gone meanwhile. */
int procs_signal(const struct procs_entry *p, int signal_number, struct err *e);

/* Sends SIGKILL to every process (other than ourselves) whose environment holds
 * ATTEMPT_MARK_VARIABLE=mark. *ret_count is how many were found alive; nobody is left once a call
 * finds 0. Processes whose environment we may not read are not ours. */
int procs_kill_marked(const char *mark, size_t *ret_count, struct err *e);

/* Who a process is: what it is called, whose it is, the mark in the environment that it was started
 * with ("" where there is none, or where we may not read it), and its ancestors, nearest first. */
struct procs_facts {
    char name[64];
    uid_t uid;
    char mark[ATTEMPT_MARK_SIZE];
    pid_t above[PROCS_ABOVE_MAX];
    int above_count;
};

int procs_facts(pid_t pid, struct procs_facts *ret); /* ERR_NOT_FOUND: it is not to be seen */

#endif
