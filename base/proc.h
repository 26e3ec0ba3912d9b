/* proc.h: who a process is, and how to start and end one without a shell.
 *
 * A pid alone names nobody: pids are reused. An identity is (boot id, pid, start time), the
 * start time in clock ticks since boot as /proc/PID/stat field 22 has it.
 */
#ifndef TRAINYARD_BASE_PROC_H
#define TRAINYARD_BASE_PROC_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define PROC_BOOT_ID_SIZE 37

struct proc_identity {
    char boot_id[PROC_BOOT_ID_SIZE];
    pid_t pid;
    uint64_t start_time;
};

int proc_boot_id(char out[PROC_BOOT_ID_SIZE], struct err *e);
int proc_start_time(pid_t pid, uint64_t *ret, struct err *e); /* ERR_NOT_FOUND if gone */
int proc_identify(pid_t pid, struct proc_identity *ret, struct err *e);

/* A pidfd for exactly that process, ERR_NOT_FOUND if it is gone, is a zombie or another one
 * has its pid now; any other code says that we could not look. Poll it for POLLIN to see it exit;
 * signal through it. */
int proc_open(const struct proc_identity *id, int *ret_pidfd, struct err *e);
int proc_signal(int pidfd, int signal_number, struct err *e);

/* What to start. argv and envp are NULL-terminated and used as they are. */
struct proc_spawn {
    const char *program; /* absolute path */
    char *const *argv;
    char *const *envp;
    const char *cwd;     /* or NULL */
    int fds[16];         /* child's fd i becomes a copy of fds[i], or /dev/null where -1 */
    int fd_count;        /* child's fds at and above this are closed */
    int new_session;     /* setsid() */
    int die_with_parent; /* PR_SET_PDEATHSIG SIGKILL, set after the user is switched */
    int cpu;             /* bind to this CPU, or -1 */
    uid_t uid;           /* switched to with its groups when `switch_user` */
    gid_t gid;
    int switch_user;
    const char *user_name; /* for initgroups(); required with switch_user */
};

/* fork and exec with signals at their defaults and nothing inherited but what is named above.
 * If exec fails the sentence says why and no child is left; ERR_INVALID where the program is not
 * there, or is nothing that can be run. */
int proc_start(const struct proc_spawn *s, pid_t *ret_pid, struct err *e);

/* The name "SIGKILL" of a signal, "signal 64" if it has none; static storage. */
const char *proc_signal_name(int signal_number);

#endif
