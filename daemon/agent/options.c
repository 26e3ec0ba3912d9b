/* One table of settings serves the command line and the file: a setting is "data-root" on the
 * command line and "data_root = ..." in the file. */
#include "daemon/agent/options.h"

#include <argp.h>
#include <curl/curl.h>
#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <pwd.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#ifndef TRAINYARD_LIBEXECDIR
#define TRAINYARD_LIBEXECDIR "/usr/local/libexec/trainyard"
#endif
#define DEFAULT_COORDINATOR "http://127.0.0.1:8724"
#define DEFAULT_NVML        "libnvidia-ml.so.1"
#define TOKEN_MAX           4096

const char *argp_program_version = "trainyard-agent " TRAINYARD_VERSION;
static const char doc[] =
    "Runs the jobs of one node: takes what the coordinator wants, starts a shim for each attempt "
    "and reports what is. Jobs go on when it ends.\v"
    "The configuration file has the same settings as lines such as \"cpu_devices = 8\" or "
    "\"data_root = /srv/data\" (may be repeated); the command line goes before it.";

enum { KEY_CONFIG = 256, KEY_VERBOSE, KEY_SETTING };

struct setting {
    const char *name; /* in the file; with '-' for '_' on the command line */
    size_t offset;    /* of a char * in struct options; SIZE_MAX: its own rule below */
};

static const struct setting settings[] = {
    {"coordinator", offsetof(struct options, coordinator)},
    {"state_dir", offsetof(struct options, state_dir)},
    {"name", offsetof(struct options, name)},
    {"token_file", offsetof(struct options, token_file)},
    {"run_as", offsetof(struct options, run_as)},
    {"trainer", offsetof(struct options, trainer)},
    {"shim", offsetof(struct options, shim)},
    {"checkpoint_dir", offsetof(struct options, checkpoint_dir)},
    {"checkpoint_share", offsetof(struct options, checkpoint_share)},
    {"trainer_cuda", offsetof(struct options, trainer_cuda)},
    {"gpus", offsetof(struct options, gpus)},
    {"nvml", offsetof(struct options, nvml)},
    {"cpu_devices", SIZE_MAX},
    {"data_root", SIZE_MAX},
};

static const struct argp_option argp_options[] = {
    {"coordinator", KEY_SETTING + 0, "URL", 0,
     "Where the coordinator listens (default " DEFAULT_COORDINATOR ")", 0},
    {"state-dir", KEY_SETTING + 1, "DIR", 0, "Where attempts are kept; required", 0},
    {"name", KEY_SETTING + 2, "NODE", 0, "This node's name (default: the host's)", 0},
    {"token-file", KEY_SETTING + 3, "FILE", 0, "File with the coordinator's agent token", 0},
    {"run-as", KEY_SETTING + 4, "USER", 0, "User that jobs run as (default: our own)", 0},
    {"trainer", KEY_SETTING + 5, "PATH", 0, "trainyard-trainer (default: beside this program)", 0},
    {"shim", KEY_SETTING + 6, "PATH", 0, "trainyard-shim (default: beside this program)", 0},
    {"checkpoint-dir", KEY_SETTING + 7, "DIR", 0,
     "Where jobs write checkpoints (default: checkpoints in the state directory)", 0},
    {"checkpoint-share", KEY_SETTING + 8, "NAME", 0,
     "DIR is on a shared file system of this name; jobs can go on on any node that gives the same "
     "name",
     0},
    {"trainer-cuda", KEY_SETTING + 9, "PATH", 0,
     "trainyard-trainer-cuda, for GPUs (default: beside this program, if it is there)", 0},
    {"gpus", KEY_SETTING + 10, "WHICH", 0,
     "auto (the default): all; none; or UUIDs as nvidia-smi -L prints them, separated by commas",
     0},
    {"nvml", KEY_SETTING + 11, "PATH", 0, "NVIDIA's management library (default: " DEFAULT_NVML ")",
     0},
    {"cpu-devices", KEY_SETTING + 12, "N", 0,
     "Ranks at a time on CPUs (default: the cores; none on a node with GPUs)", 0},
    {"data-root", KEY_SETTING + 13, "DIR", 0, "Directory that jobs may read data from; repeatable",
     0},
    {"config", KEY_CONFIG, "FILE", 0, "Configuration file", 0},
    {"verbose", KEY_VERBOSE, NULL, 0, "Log more", 0},
    {0},
};

static int set_devices(struct options *o, const char *value, struct err *e)
{
    char *end;
    errno = 0;
    long n = strtol(value, &end, 10);
    if (errno != 0 || *end || end == value || n < 1 || n > OPTIONS_MAX_DEVICES)
        return err_set(e, ERR_INVALID,
                       "cpu_devices is \"%.40s\"; it must be a number from 1 to %d, for a node "
                       "without devices runs nothing",
                       value, OPTIONS_MAX_DEVICES);
    o->cpu_devices = (int)n;
    return 0;
}

static int add_data_root(struct options *o, const char *value, struct err *e)
{
    if (o->data_root_count == OPTIONS_MAX_DATA_ROOTS)
        return err_set(e, ERR_INVALID, "more than %d data roots", OPTIONS_MAX_DATA_ROOTS);
    o->data_roots[o->data_root_count++] = mem_strdup(value);
    return 0;
}

static int apply(struct options *o, const struct setting *s, const char *value, struct err *e)
{
    if (!*value)
        return err_set(e, ERR_INVALID, "%s has no value", s->name);
    if (strcmp(s->name, "cpu_devices") == 0)
        return set_devices(o, value, e);
    if (strcmp(s->name, "data_root") == 0)
        return add_data_root(o, value, e);
    char **field = (char **)((char *)o + s->offset);
    free(*field);
    *field = mem_strdup(value);
    return 0;
}

/* ---- command line ---- */

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    struct err e;
    if (key == KEY_CONFIG) {
        free(o->config);
        o->config = mem_strdup(arg);
    } else if (key == KEY_VERBOSE) {
        o->verbose = 1;
    } else if (key >= KEY_SETTING && key < KEY_SETTING + (int)ARRAY_LEN(settings)) {
        if (apply(o, &settings[key - KEY_SETTING], arg, &e) < 0)
            argp_error(state, "%s", e.text);
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- file ---- */

struct file_read {
    struct options *from_file; /* what the file says */
    struct err *e;
};

static int on_line(void *user, const char *section, const char *name, const char *value)
{
    struct file_read *f = user;
    if (*section && strcmp(section, "agent") != 0) {
        err_set(f->e, ERR_INVALID, "the section [%.60s] is unknown; there is [agent]", section);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        if (strcmp(settings[i].name, name) == 0)
            return apply(f->from_file, &settings[i], value, f->e) == 0;
    }
    err_set(f->e, ERR_INVALID, "the setting \"%.60s\" is unknown", name);
    return 0;
}

/* Fields that `o` lacks are taken from `f`. */
static void merge(struct options *o, struct options *f)
{
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        if (settings[i].offset == SIZE_MAX)
            continue;
        char **to = (char **)((char *)o + settings[i].offset);
        char **from = (char **)((char *)f + settings[i].offset);
        if (!*to)
            *to = STEAL(*from);
    }
    if (o->cpu_devices < 0)
        o->cpu_devices = f->cpu_devices;
    if (o->data_root_count == 0) {
        memcpy(o->data_roots, f->data_roots, sizeof o->data_roots);
        o->data_root_count = f->data_root_count;
        f->data_root_count = 0;
    }
}

int options_read_file(const char *path, struct options *o, struct err *e)
{
    struct options from_file = {.cpu_devices = -1};
    struct err what = {.text = "the line cannot be read; write \"name = value\""};
    struct file_read f = {.from_file = &from_file, .e = &what};
    int line = ini_parse(path, on_line, &f);
    int r = 0;
    if (line < 0)
        r = err_errno(e, "cannot read %s", path);
    else if (line > 0)
        r = err_set(e, ERR_INVALID, "%s line %d: %s", path, line, what.text);
    else
        merge(o, &from_file);
    options_done(&from_file);
    return r;
}

int options_read(int argc, char **argv, struct options *ret, struct err *e)
{
    static const struct argp argp = {argp_options, parse, NULL, doc, NULL, NULL, NULL};
    struct options o = {.cpu_devices = -1};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0)
        return err_set(e, ERR_INVALID, "the command line cannot be read");
    int r = o.config ? options_read_file(o.config, &o, e) : 0;
    if (r < 0)
        options_done(&o);
    else
        *ret = o;
    return r;
}

void options_done(struct options *o)
{
    char **fields[] = {
        &o->coordinator,      &o->state_dir,    &o->trainer, &o->shim,   &o->name,
        &o->token_file,       &o->token,        &o->run_as,  &o->config, &o->checkpoint_dir,
        &o->checkpoint_share, &o->trainer_cuda, &o->gpus,    &o->nvml};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        free(*fields[i]);
    for (int i = 0; i < o->data_root_count; i++)
        free(o->data_roots[i]);
    *o = (struct options){.cpu_devices = -1};
}

/* ---- defaults and checks ---- */

static int resolve(char **path, const char *what, struct err *e)
{
    char *full = realpath(*path, NULL);
    if (!full)
        return err_errno(e, "%s %s", what, *path);
    free(*path);
    *path = full;
    return 0;
}

/* `name` beside our own executable, else in LIBEXECDIR; where given, what was given. */
static int find_program(char **path, const char *name, struct err *e)
{
    if (!*path) {
        char own[PATH_MAX];
        ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
        own[n > 0 ? n : 0] = '\0';
        char *slash = strrchr(own, '/');
        *path = mem_printf("%.*s/%s", slash ? (int)(slash - own) : 0, own, name);
        if (access(*path, X_OK) < 0) {
            free(*path);
            *path = mem_printf("%s/%s", TRAINYARD_LIBEXECDIR, name);
        }
    }
    int r = resolve(path, name, e);
    if (r == 0 && access(*path, X_OK) < 0)
        r = err_errno(e, "cannot run %s", *path);
    return r;
}

/* A node without GPUs, or for command jobs alone, needs none; one that is named must be there. */
static int find_trainer_cuda(struct options *o, struct err *e)
{
    struct err absent;
    if (o->trainer_cuda)
        return find_program(&o->trainer_cuda, "trainyard-trainer-cuda", e);
    if (find_program(&o->trainer_cuda, "trainyard-trainer-cuda", &absent) < 0) {
        free(o->trainer_cuda);
        o->trainer_cuda = NULL;
    }
    return 0;
}

static int check_gpus(struct options *o, struct err *e)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-/,";
    if (!o->nvml)
        o->nvml = mem_strdup(DEFAULT_NVML);
    if (!o->gpus)
        o->gpus = mem_strdup("auto");
    if (strcmp(o->gpus, "auto") == 0 || strcmp(o->gpus, "none") == 0)
        return 0;
    int is_list = strspn(o->gpus, allowed) == strlen(o->gpus);
    for (const char *p = o->gpus; is_list && *p; p += strcspn(p, ",") + (strchr(p, ',') != NULL))
        is_list = strncmp(p, "GPU-", 4) == 0 || strncmp(p, "MIG-", 4) == 0;
    if (is_list)
        return 0;
    return err_set(e, ERR_INVALID,
                   "--gpus \"%.100s\" must be auto, none, or UUIDs such as GPU-5a2c8f10-… as "
                   "nvidia-smi -L prints them, separated by commas",
                   o->gpus);
}

static int check_name(struct options *o, struct err *e)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789.-"; /* as the coordinator */
    if (!o->name) {
        char host[256] = "";
        if (gethostname(host, sizeof host - 1) < 0)
            return err_errno(e, "cannot read the host's name; use --name");
        o->name = mem_strdup(host);
    }
    size_t n = strlen(o->name);
    if (n < 1 || n > 63 || strspn(o->name, allowed) != n || strchr(".-", o->name[0]))
        return err_set(e, ERR_INVALID,
                       "the node name \"%.80s\" must be 1 to 63 of a-z, 0-9, '.' and '-', and not "
                       "begin with '.' or '-'; give another with --name",
                       o->name);
    return 0;
}

/* A typing error is told at the start, not by tries without end. */
static int check_url(const char *text, struct err *e)
{
    CURLU *url = curl_url();
    CURLUcode code = url ? curl_url_set(url, CURLUPART_URL, text, 0) : CURLUE_OUT_OF_MEMORY;
    curl_url_cleanup(url);
    if (code == CURLUE_OK)
        return 0;
    return err_set(e, ERR_INVALID,
                   "the coordinator's address \"%.100s\" is not a URL such as %s: %s", text,
                   DEFAULT_COORDINATOR, curl_url_strerror(code));
}

static int check_coordinator(struct options *o, struct err *e)
{
    if (!o->coordinator)
        o->coordinator = mem_strdup(DEFAULT_COORDINATOR);
    if (strncmp(o->coordinator, "http://", 7) != 0 && strncmp(o->coordinator, "https://", 8) != 0)
        return err_set(e, ERR_INVALID,
                       "the coordinator's address \"%.100s\" must begin with http:// or https://",
                       o->coordinator);
    int r = check_url(o->coordinator, e);
    if (r < 0)
        return r;
    for (size_t n = strlen(o->coordinator); n > 0 && o->coordinator[n - 1] == '/'; n--)
        o->coordinator[n - 1] = '\0';
    return 0;
}

static int check_token(struct options *o, struct err *e)
{
    if (!o->token_file)
        return 0;
    struct buf b = BUF_INIT;
    int r = file_read(o->token_file, TOKEN_MAX, &b, e);
    if (r < 0)
        return r;
    while (b.len > 0 && strchr(" \t\r\n", b.data[b.len - 1]))
        b.data[--b.len] = '\0';
    int fits = b.len > 0 && strlen(b.data) == b.len && !strpbrk(b.data, " \t\r\n");
    if (fits)
        o->token = mem_strdup(b.data);
    else
        r = err_set(e, ERR_INVALID, "%s must hold one token, a single word", o->token_file);
    buf_done(&b);
    return r;
}

static int check_state_dir(struct options *o, struct err *e)
{
    if (!o->state_dir)
        return err_set(e, ERR_INVALID, "--state-dir is required: a directory of this agent alone");
    /* 0711: a job's user must reach its own artifacts/, and can list nothing. */
    int r = file_mkdirs(o->state_dir, 0711, e);
    if (r == 0)
        r = resolve(&o->state_dir, "state directory", e);
    if (r < 0)
        return r;
    CLEANUP(mem_freep) char *attempts = mem_printf("%s/attempts", o->state_dir);
    return file_mkdirs(attempts, 0711, e);
}

/* A word, for it stands in sentences and names a place. */
static int check_share(const struct options *o, struct err *e)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const char *name = o->checkpoint_share;
    if (!name)
        return 0;
    if (!o->checkpoint_dir)
        return err_set(e, ERR_INVALID,
                       "--checkpoint-share says that other nodes see this node's checkpoints, so "
                       "it needs --checkpoint-dir, a directory on that file system");
    if (strspn(name, allowed) != strlen(name) || strlen(name) > OPTIONS_MAX_SHARE)
        return err_set(e, ERR_INVALID,
                       "--checkpoint-share \"%.80s\" must be 1 to %d of letters, digits, '.', '_' "
                       "and '-'",
                       name, OPTIONS_MAX_SHARE);
    return 0;
}

/* Jobs' users own the directories in it, never it itself: whoever can write in it could put another
 * in a job's place. */
static int check_checkpoints(struct options *o, struct err *e)
{
    struct stat st;
    int r = check_share(o, e);
    if (r == 0 && !o->checkpoint_dir) {
        o->checkpoint_dir = mem_printf("%s/checkpoints", o->state_dir);
        r = file_mkdirs(o->checkpoint_dir, 0711, e);
    }
    if (r == 0)
        r = resolve(&o->checkpoint_dir, "checkpoint directory", e);
    if (r < 0)
        return r;
    if (stat(o->checkpoint_dir, &st) < 0)
        return err_errno(e, "checkpoint directory %s", o->checkpoint_dir);
    if (!S_ISDIR(st.st_mode))
        return err_set(e, ERR_INVALID, "the checkpoint directory %s is not a directory",
                       o->checkpoint_dir);
    if ((st.st_mode & 022) == 0)
        return 0;
    return err_set(e, ERR_INVALID,
                   "the checkpoint directory %s can be written by others than its owner; \"chmod "
                   "go-w\" it",
                   o->checkpoint_dir);
}

static int check_data_roots(struct options *o, struct err *e)
{
    for (int i = 0; i < o->data_root_count; i++) {
        struct stat st;
        int r = resolve(&o->data_roots[i], "data root", e);
        if (r < 0)
            return r;
        if (stat(o->data_roots[i], &st) < 0 || !S_ISDIR(st.st_mode))
            return err_set(e, ERR_INVALID, "the data root %s is not a directory", o->data_roots[i]);
    }
    return 0;
}

static int check_user(const struct options *o, struct err *e)
{
    if (o->run_as && !getpwnam(o->run_as))
        return err_set(e, ERR_INVALID, "--run-as names the user \"%.100s\", who does not exist",
                       o->run_as);
    return 0;
}

static void default_devices(struct options *o)
{
    cpu_set_t set;
    o->default_cpus = o->cpu_devices < 0;
    if (!o->default_cpus)
        return;
    o->cpu_devices = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int options_check(struct options *o, struct err *e)
{
    int r = check_coordinator(o, e);
    if (r == 0)
        r = check_name(o, e);
    if (r == 0)
        r = check_token(o, e);
    if (r == 0)
        r = check_user(o, e);
    if (r == 0)
        r = find_program(&o->shim, "trainyard-shim", e);
    if (r == 0)
        r = find_program(&o->trainer, "trainyard-trainer", e);
    if (r == 0)
        r = find_trainer_cuda(o, e);
    if (r == 0)
        r = check_gpus(o, e);
    if (r == 0)
        r = check_data_roots(o, e);
    if (r == 0)
        r = check_state_dir(o, e);
    if (r == 0)
        r = check_checkpoints(o, e);
    default_devices(o);
    return r;
}
