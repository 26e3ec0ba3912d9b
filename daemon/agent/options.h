/* options.h: how an agent is told what it is: command line over configuration file over default. */
#ifndef TRAINYARD_DAEMON_AGENT_OPTIONS_H
#define TRAINYARD_DAEMON_AGENT_OPTIONS_H

#include "base/err.h"

#define OPTIONS_MAX_DATA_ROOTS 64
#define OPTIONS_MAX_DEVICES    1024
#define OPTIONS_MAX_SHARE      63

struct options {
    char *coordinator; /* "http://127.0.0.1:8724", no slash at the end */
    char *state_dir;   /* absolute once options_check() is through, as are the next three */
    char *data_roots[OPTIONS_MAX_DATA_ROOTS];
    int data_root_count;
    char *trainer;
    char *trainer_cuda; /* the one for GPUs, or NULL: there is none */
    char *gpus;         /* "auto", "none" or UUIDs, separated by commas */
    char *nvml;         /* NVML's path, or the name that the loader looks up */
    char *shim;
    char *name;
    char *token_file;       /* or NULL */
    char *token;            /* its content, or NULL */
    char *run_as;           /* or NULL: our own user */
    char *checkpoint_dir;   /* absolute once checked: a directory for each job that has some */
    char *checkpoint_share; /* name of the shared file system that it lies on, or NULL */
    char *config;           /* or NULL */
    int cpu_devices;        /* -1: not given */
    int default_cpus;       /* once checked: it was not given */
    int verbose;
};

/* Reads command line and configuration file; ends the program itself for --help, --version and a
 * wrong command line, as argp does. */
int options_read(int argc, char **argv, struct options *ret, struct err *e);
void options_done(struct options *o);

/* Reads one configuration file; what `o` has already stays. The sentence names file and line. */
int options_read_file(const char *path, struct options *o, struct err *e);

/* Fills in defaults and resolves paths; creates the state directory. */
int options_check(struct options *o, struct err *e);

#endif
