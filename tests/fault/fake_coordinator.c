/* fake_coordinator DIR [INSTANCE_EPOCH [PORT]]: a scripted coordinator for tests of the agent.
 *
 * DIR/wanted.json is the wish list (an array of the protocol's wishes, replaced by rename); what
 * removals.json, if there, is what it wants removed of checkpoints ("checkpoints" of an answer).
 * What agents say lands in DIR: NAME.json (the attempt as last reported, without reports),
 * NAME.lines (report lines, each once), NAME.files/ (uploads), syncs (one byte per sync), sequences
 * (a line "RUN SEQUENCE WAIT_MS" per sync), held.json (the checkpoints as last told), port. It
 * keeps offsets on disk, so that it can be killed and started again. One thread per connection.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BODY_MAX (1024 * 1024) /* as the coordinator */

struct body {
    char *data;
    size_t n;
};

static const char *dir;
static int instance_epoch = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int seen = 1;
static char *last_wanted;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void path_of(char out[4096], const char *name, const char *suffix)
{
    snprintf(out, 4096, "%s/%s%s", dir, name, suffix);
}

static void write_json(const char *name, const json_t *doc)
{
    char path[4096];
    char tmp[4096];
    path_of(path, name, ".json");
    path_of(tmp, name, ".json.tmp");
    if (json_dump_file(doc, tmp, JSON_COMPACT) < 0 || rename(tmp, path) < 0)
        die(path);
}

/* ---- reports: the offset is kept beside the lines ---- */

static json_int_t read_offset(const char *att)
{
    char path[4096];
    long long n = 0;
    path_of(path, att, ".offset");
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%lld", &n) != 1)
            n = 0;
        fclose(f);
    }
    return n;
}

static void take_reports(const char *att, const json_t *reports)
{
    json_int_t from = json_integer_value(json_object_get(reports, "from"));
    json_int_t to = json_integer_value(json_object_get(reports, "to"));
    char path[4096];
    json_t *line;
    size_t i;
    if (from != read_offset(att) || to == from)
        return;
    path_of(path, att, ".lines");
    FILE *f = fopen(path, "a");
    if (!f)
        die(path);
    json_array_foreach(json_object_get(reports, "lines"), i, line)
    {
        json_dumpf(line, f, JSON_COMPACT);
        fputc('\n', f);
    }
    fclose(f);
    path_of(path, att, ".offset");
    f = fopen(path, "w");
    if (!f)
        die(path);
    fprintf(f, "%lld\n", (long long)to);
    fclose(f);
}

/* ---- sync ---- */

static json_t *load_list(const char *name)
{
    char path[4096];
    path_of(path, name, ".json");
    json_t *list = json_load_file(path, 0, NULL);
    return list ? list : json_array();
}

static json_t *load_wanted(json_t **ret_removals)
{
    json_t *wanted = load_list("wanted");
    *ret_removals = load_list("removals");
    json_t *both = json_pack("[O, O]", wanted, *ret_removals);
    char *text = json_dumps(both, JSON_COMPACT);
    json_decref(both);
    if (!last_wanted || strcmp(text, last_wanted) != 0) {
        seen++;
        free(last_wanted);
        last_wanted = text;
    } else {
        free(text);
    }
    return wanted;
}

static char *answer_text(void)
{
    json_t *removals;
    json_t *wanted = load_wanted(&removals);
    json_t *wish;
    size_t i;
    json_array_foreach(wanted, i, wish)
    {
        const char *att = json_string_value(json_object_get(wish, "attempt"));
        if (att && !json_object_get(wish, "report_offset"))
            json_object_set_new(wish, "report_offset", json_integer(read_offset(att)));
    }
    json_t *doc =
        json_pack("{s:s, s:i, s:i, s:o, s:o}", "instance", "inst_fake", "instance_epoch",
                  instance_epoch, "seen", seen, "wanted", wanted, "checkpoints", removals);
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    return text;
}

static void note_sequence(const json_t *doc)
{
    char path[4096];
    path_of(path, "sequences", "");
    FILE *f = fopen(path, "a");
    if (!f)
        die(path);
    fprintf(f, "%s %lld %lld\n", json_string_value(json_object_get(doc, "run")),
            (long long)json_integer_value(json_object_get(doc, "sequence")),
            (long long)json_integer_value(json_object_get(doc, "wait_ms")));
    fclose(f);
}

static void note_sync(const json_t *doc)
{
    char path[4096];
    json_t *a;
    size_t i;
    note_sequence(doc);
    if (json_object_get(doc, "checkpoints"))
        write_json("held", json_object_get(doc, "checkpoints"));
    path_of(path, "syncs", "");
    FILE *f = fopen(path, "a");
    if (!f)
        die(path);
    fputc('.', f);
    fclose(f);
    write_json("last", doc);
    json_array_foreach(json_object_get(doc, "attempts"), i, a)
    {
        const char *att = json_string_value(json_object_get(a, "attempt"));
        take_reports(att, json_object_get(a, "reports"));
        json_object_del(a, "reports");
        write_json(att, a);
    }
}

static char *sync_answer(const struct body *b, int *ret_status)
{
    json_t *doc = json_loadb(b->data ? b->data : "", b->n, JSON_REJECT_DUPLICATES, NULL);
    json_int_t wait_ms = json_integer_value(json_object_get(doc, "wait_ms"));
    json_int_t their_seen = json_integer_value(json_object_get(doc, "seen"));
    if (!doc) {
        *ret_status = 400;
        return strdup("{\"title\":\"not JSON\"}");
    }
    pthread_mutex_lock(&lock);
    note_sync(doc);
    char *text = answer_text();
    while (wait_ms > 0 && their_seen == seen) {
        free(text);
        pthread_mutex_unlock(&lock);
        usleep(2000);
        wait_ms -= 2;
        pthread_mutex_lock(&lock);
        text = answer_text();
    }
    pthread_mutex_unlock(&lock);
    json_decref(doc);
    return text;
}

/* ---- files ---- */

static const char *argument(struct MHD_Connection *c, const char *name)
{
    const char *v = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, name);
    return v ? v : "";
}

static char *files_answer(struct MHD_Connection *c, const struct body *b, int *ret_status)
{
    char path[4096];
    char answer[100];
    const char *name = argument(c, "name");
    struct stat st;
    if (strchr(name, '/') || strncmp(argument(c, "attempt"), "att_", 4) != 0) {
        *ret_status = 400;
        return strdup("{\"title\":\"bad name\"}");
    }
    if (strchr(name, ' ')) {
        *ret_status = 400;
        return strdup("{\"title\":\"bad name\",\"detail\":\"no blanks\"}");
    }
    pthread_mutex_lock(&lock);
    path_of(path, argument(c, "attempt"), ".files");
    mkdir(path, 0755);
    size_t used = strlen(path);
    snprintf(path + used, sizeof path - used, "/%s", name);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0 || fstat(fd, &st) < 0)
        die(path);
    if (st.st_size != atoll(argument(c, "offset"))) {
        *ret_status = 409;
    } else if (write(fd, b->data ? b->data : "", b->n) == (ssize_t)b->n) {
        st.st_size += (off_t)b->n;
    } else {
        die(path);
    }
    close(fd);
    pthread_mutex_unlock(&lock);
    snprintf(answer, sizeof answer, "{\"size\":%lld}", (long long)st.st_size);
    return strdup(answer);
}

/* ---- server ---- */

static enum MHD_Result reply(struct MHD_Connection *c, int status, char *take_text)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(strlen(take_text), take_text, MHD_RESPMEM_MUST_FREE);
    enum MHD_Result ok = MHD_queue_response(c, (unsigned)status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *c, const char *url,
                              const char *method, const char *version, const char *data, size_t *n,
                              void **state)
{
    struct body *b = *state;
    int status = 200;
    (void)cls;
    (void)method;
    (void)version;
    if (!b) {
        *state = calloc(1, sizeof(struct body));
        return MHD_YES;
    }
    if (*n > 0) {
        if (b->n + *n > BODY_MAX)
            return MHD_NO;
        b->data = realloc(b->data, b->n + *n);
        memcpy(b->data + b->n, data, *n);
        b->n += *n;
        *n = 0;
        return MHD_YES;
    }
    char *text =
        strcmp(url, "/v1/agent/files") == 0 ? files_answer(c, b, &status) : sync_answer(b, &status);
    return reply(c, status, text);
}

static void finished(void *cls, struct MHD_Connection *c, void **state,
                     enum MHD_RequestTerminationCode why)
{
    struct body *b = *state;
    (void)cls;
    (void)c;
    (void)why;
    if (b)
        free(b->data);
    free(b);
}

static void write_port(int port)
{
    char path[4096];
    char tmp[4096];
    path_of(path, "port", "");
    path_of(tmp, "port", ".tmp");
    FILE *f = fopen(tmp, "w");
    if (!f)
        die(tmp);
    fprintf(f, "%d\n", port);
    fclose(f);
    if (rename(tmp, path) < 0)
        die(path);
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    sigset_t set;
    int got;
    if (argc < 2)
        return 2;
    dir = argv[1];
    if (argc > 2)
        instance_epoch = atoi(argv[2]);
    if (argc > 3)
        at.sin_port = htons((uint16_t)atoi(argv[3]));
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    struct MHD_Daemon *d = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, handle,
        NULL, MHD_OPTION_SOCK_ADDR, &at, MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u,
        MHD_OPTION_NOTIFY_COMPLETED, finished, NULL, MHD_OPTION_END);
    if (!d)
        die("listen");
    write_port(MHD_get_daemon_info(d, MHD_DAEMON_INFO_BIND_PORT)->port);
    sigwait(&set, &got);
    _exit(0); /* parked requests end with their connections */
}
