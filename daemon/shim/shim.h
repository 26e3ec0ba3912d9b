/* shim.h: one attempt on one node, from its launch document to its exit record.
 *
 *   prepare -> ranks -> (ending) -> exit.json
 *
 * One event loop owns it: child exits, stop.json, the time limit and the grace of the ending. It
 * is finished when it has no child left: as a child subreaper it inherits every orphan, so that
 * "no child" means that nothing which the attempt started is alive.
 */
#ifndef TRAINYARD_DAEMON_SHIM_SHIM_H
#define TRAINYARD_DAEMON_SHIM_SHIM_H

#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "base/err.h"
#include "daemon/attempt.h"
#include "daemon/shim/cause.h"
#include "spec/launch.h"

#define SHIM_PEER_GRACE_S 5 /* after a rank died by itself, and for what ranks left running */

enum shim_end { /* why the attempt is being ended; the first one stays */
                SHIM_END_NONE,
                SHIM_END_LEFTOVERS, /* all ranks have ended well; only what they left is ended */
                SHIM_END_FAILED,    /* a rank failed */
                SHIM_END_PREPARE,   /* the prepare step failed */
                SHIM_END_SPAWN,     /* a program could not be started */
                SHIM_END_STOP,      /* stop.json */
                SHIM_END_TIME,      /* the time limit */
                SHIM_END_SIGNAL,    /* SIGTERM to the shim: the machine goes down */
};

struct shim_user {
    int switched; /* to another user than ours */
    uid_t uid;
    gid_t gid;
    char *name;
    char *home;
};

struct shim {
    const char *dir; /* absolute */
    int lock_fd;
    struct launch launch;
    struct shim_user user;
    struct shim_record record;
    int report_fd, shm_fd, data_fd, launch_fd, spool_fd; /* what ranks get as fds 3 to 7; -1: not
                                                            made */

    struct rank_end prepare; /* rank -1 */
    pid_t prepare_pid;       /* 0 unless it runs */
    struct rank_end *ends;   /* one for each of launch.ranks */
    pid_t *pids;             /* likewise; 0 unless it runs */
    int ended_count;         /* ranks and prepare steps reaped so far: the order */

    enum shim_end end;
    int term_sent, kill_sent;
    int64_t kill_at_us; /* boot time; while ending */
    uint64_t kill_pause_us;
    struct stop_request stop; /* for SHIM_END_STOP */
    struct err spawn_error;   /* for SHIM_END_SPAWN */
    int spawn_rank;           /* which could not be started; -1: none in particular */
    int spawn_final;          /* the job's command is at fault: another start would fail as well */

    sd_event *event;
    sd_event_source *kill_timer, *retry_timer, *directory;
    json_t *exit_record; /* while writing it is retried */
    int64_t give_up_us;  /* boot time */
};

/* ---- ranks.c: what is started ---- */
/* Resolves run_as, makes artifacts/, the report file and the memory files. */
int shim_make_room(struct shim *s, struct err *e);
int shim_start_prepare(struct shim *s, struct err *e);
/* Starts every rank; at a failure those started stay for the caller to end, and s->spawn_rank says
 * which could not be started. */
int shim_start_ranks(struct shim *s, struct err *e);

/* ---- environment.c ---- */
/* A rank's environment, or with `rank` NULL that of the prepare step; NULL-terminated,
 * environment_free() it. */
char **environment_new(const struct shim *s, const struct launch_rank *rank, const char *mark);
void environment_free(char **env);
#define SHIM_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
/* An executable regular file for argv[0]: itself where it holds a slash, else the first on
 * SHIM_PATH; free() it. */
int environment_find(const char *name, char **ret, struct err *e);

/* ---- ending.c: TERM, grace, KILL ---- */
/* Begins to end the attempt for `why`; where that has begun, only an earlier deadline counts. */
void shim_begin_end(struct shim *s, enum shim_end why, int64_t grace_s);

/* ---- record.c ---- */
json_t *shim_exit_record(struct shim *s); /* a new reference */

/* ---- shim.c ---- */
/* Runs the attempt in s->dir to its end; s->dir and s->lock_fd are set. 0 when the exit record is
 * written. */
int shim_run(struct shim *s, struct err *e);
void shim_done(struct shim *s);

#endif
