/* The verbs against a scripted server: exit statuses, what goes to stdout and stderr, what is
 * asked for. The server is a child that answers a list of exchanges in order, each over a
 * connection of its own, and writes down what it was asked; the program runs in another child. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/cli.h"

#define JOB  "job_01k8z4q9tw3v7m2c5xd8hbn6"
#define JOB2 "job_01k8z4q9tw3v7m2c5xd8hbn7"
#define JOB3 "job_01k9000000000000000000zz"

/* One exchange. `status` 0: the connection is closed without an answer; -1: end of the script. */
struct exchange {
    const char *request; /* the beginning of the request line */
    int status;
    const char *headers; /* more headers, each with \r\n, or "" */
    const char *body;
};
#define END                                                                                        \
    {                                                                                              \
        NULL, -1, NULL, NULL                                                                       \
    }
#define JSON    "Content-Type: application/json\r\n"
#define PROBLEM "Content-Type: application/problem+json\r\n"

struct result {
    int status;
    struct buf out, err; /* of the program */
    struct buf asked;    /* what the server was sent, and "UNEXPECTED" where it differed */
    int port;
};

static void result_done(struct result *r)
{
    buf_done(&r->out);
    buf_done(&r->err);
    buf_done(&r->asked);
}

/* ---- the server ---- */

static int request_complete(const struct buf *b)
{
    const char *end = b->data ? strstr(b->data, "\r\n\r\n") : NULL;
    if (!end)
        return 0;
    const char *length = strcasestr(b->data, "content-length:");
    size_t body = length && length < end ? (size_t)atol(length + 15) : 0;
    return b->len >= (size_t)(end + 4 - b->data) + body;
}

static void serve_one(int fd, const struct exchange *x, int log)
{
    struct buf b = BUF_INIT;
    char chunk[4096];
    ssize_t n;
    while (!request_complete(&b) && (n = read(fd, chunk, sizeof chunk)) > 0)
        buf_add(&b, chunk, (size_t)n);
    if (!b.data || strncmp(b.data, x->request, strlen(x->request)) != 0)
        dprintf(log, "UNEXPECTED, wanted %s\n", x->request);
    dprintf(log, "%s\n", b.data ? b.data : "");
    if (x->status > 0)
        dprintf(fd, "HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n%s",
                x->status, strlen(x->body), x->headers, x->body);
    shutdown(fd, SHUT_WR);
    while (read(fd, chunk, sizeof chunk) > 0)
        ;
    buf_done(&b);
    close(fd);
}

/* Bound, and listening unless `refuse`: then connections are refused, and nobody else gets the
 * port. */
static int open_listener(int refuse, int *ret_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    if (!refuse)
        assert_int_equal(listen(fd, 16), 0);
    getsockname(fd, (struct sockaddr *)&a, &size);
    *ret_port = ntohs(a.sin_port);
    return fd;
}

static pid_t start_server(int listener, const struct exchange *script, int log)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    signal(SIGPIPE, SIG_IGN);
    alarm(60);
    for (; script->status >= 0; script++)
        serve_one(accept(listener, NULL, NULL), script, log);
    close(listener);
    _exit(0);
}

/* ---- the program ---- */

static void take_file(int fd, struct buf *out)
{
    char chunk[4096];
    ssize_t n;
    buf_adds(out, "");
    lseek(fd, 0, SEEK_SET);
    while ((n = read(fd, chunk, sizeof chunk)) > 0)
        buf_add(out, chunk, (size_t)n);
    close(fd);
}

_Noreturn static void run_program(char **argv, int port, int out, int err)
{
    char url[64];
    int argc = 0;
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    setenv("TRAINYARD_SERVER", url, 1);
    unsetenv("TRAINYARD_TOKEN_FILE");
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    alarm(60);
    while (argv[argc])
        argc++;
    exit(cli_main(argc, argv));
}

/* Runs "trainyard ARGS" against the script; `words` is split at blanks. */
static struct result run(const struct exchange *script, const char *words)
{
    struct result r = {0};
    int out = memfd_create("out", 0), err = memfd_create("err", 0), log = memfd_create("log", 0);
    int listener = open_listener(script->status < 0, &r.port);
    pid_t server = start_server(listener, script, log);
    if (script->status >= 0)
        close(listener);
    char *copy = mem_strdup(words);
    char *argv[32] = {mem_strdup("trainyard")};
    int argc = 1;
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        run_program(argv, r.port, out, err);
    int status;
    waitpid(pid, &status, 0);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    if (script->status < 0)
        close(listener);
    take_file(out, &r.out);
    take_file(err, &r.err);
    take_file(log, &r.asked);
    free(argv[0]);
    free(copy);
    if (strstr(r.asked.data, "UNEXPECTED"))
        fail_msg("the server was asked:\n%s", r.asked.data);
    return r;
}

#define RUN(words, ...) run((const struct exchange[]){__VA_ARGS__ __VA_OPT__(, ) END}, words)

static void expect_in(const struct buf *b, const char *want)
{
    if (!strstr(b->data, want))
        fail_msg("\"%s\" is not in:\n%s", want, b->data);
}

/* A file of this text; the path is static. */
static const char *document(const char *text)
{
    static char path[64];
    static int fd = -1;
    if (fd >= 0)
        close(fd);
    fd = memfd_create("document", 0);
    assert_true(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

static char *words(const char *fmt, const char *path)
{
    static char line[256];
    const char *mark = strchr(fmt, '@');
    snprintf(line, sizeof line, "%.*s%s%s", (int)(mark - fmt), fmt, path, mark + 1);
    return line;
}

/* ---- usage ---- */

static void usage_errors(void **state)
{
    (void)state;
    static const char *const lines[] = {"",
                                        "frob",
                                        "submit",
                                        "submit a b",
                                        "show",
                                        "wait a b",
                                        "wait x --timeout 0",
                                        "wait x --timeout soon",
                                        "list x",
                                        "list --limit 0",
                                        "list --limit 1x",
                                        "logs x --rank -1",
                                        "nodes x",
                                        "submit --key= x",
                                        "submit --key=a\xc3\xa4 x",
                                        "show a/b",
                                        "artifacts",
                                        "events",
                                        "artifacts x --force",
                                        "artifacts x -o y",
                                        "artifacts " JOB " a/b",
                                        "artifacts " JOB " ..",
                                        "artifacts " JOB " a b",
                                        "artifacts " JOB " a -o -",
                                        "show ../jobs",
                                        "show LAST",
                                        "submit /nonexistent/file",
                                        "list --bogus",
                                        "version x",
                                        "--server ftp://x list",
                                        "--retry nan list"};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        CLEANUP(result_done) struct result r = RUN(lines[i]);
        if (r.status != EXIT_USAGE)
            fail_msg("\"trainyard %s\" ended with %d:\n%s", lines[i], r.status, r.err.data);
        assert_true(r.err.len > 0);
        assert_int_equal(r.out.len, 0);
    }
}

static void nobody_there(void **state)
{
    (void)state;
    static const char *const lines[] = {"list --retry 0",
                                        "nodes --retry 0",
                                        "--retry 0 show last",
                                        "wait " JOB " --retry 0",
                                        "cancel " JOB " --retry 0",
                                        "logs " JOB " --retry 0",
                                        "metrics " JOB " --retry 0",
                                        "events " JOB " --retry 0",
                                        "artifacts " JOB " --retry 0",
                                        "version"};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        CLEANUP(result_done) struct result r = RUN(lines[i]);
        assert_int_equal(r.status, EXIT_NO_SERVER);
        expect_in(&r.err, "Is the coordinator running?");
    }
}

static void somebody_else_there(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("list --retry 0", {"GET /v1/jobs", 200, "Content-Type: text/html\r\n", "<html>"});
    assert_int_equal(r.status, EXIT_NO_SERVER);
    expect_in(&r.err, "is no Trainyard coordinator");
}

/* ---- submit ---- */

static const char *key_of(const struct buf *asked, int n)
{
    static char keys[4][80];
    const char *p = asked->data;
    for (int i = 0; i <= n; i++) {
        p = strstr(p, "Idempotency-Key: ");
        assert_non_null(p);
        p += 17;
    }
    snprintf(keys[n], sizeof keys[0], "%.*s", (int)strcspn(p, "\r\n"), p);
    return keys[n];
}

static void submit_prints_the_id(void **state)
{
    (void)state;
    const char *path = document("{\"name\":\"x\"}");
    CLEANUP(result_done)
    struct result r =
        RUN(words("submit @", path),
            {"POST /v1/jobs HTTP", 201, JSON,
             "{\"id\":\"" JOB "\",\"name\":\"x\\u001b[0m\",\"state\":\"pending\","
             "\"strategy\":{\"name\":\"mirrored\",\"ranks\":2,\"why\":\"It fits.\"},"
             "\"warnings\":[{\"pointer\":\"/nane\",\"message\":\"unknown field\"}]}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, JOB "\n");
    expect_in(&r.err, "x\\e[0m: mirrored over 2 ranks: It fits.");
    expect_in(&r.err, "  /nane: unknown field");
    expect_in(&r.asked, "\r\n\r\n{\"name\":\"x\"}");
    expect_in(&r.asked, "Content-Type: application/json");
    assert_true(strlen(key_of(&r.asked, 0)) > 20);
}

static void submit_repeats_with_the_same_key(void **state)
{
    (void)state;
    const char *path = document("{}");
    CLEANUP(result_done)
    struct result r =
        RUN(words("submit @ --json", path), {"POST /v1/jobs", 0, NULL, NULL},
            {"POST /v1/jobs", 0, NULL, NULL},
            {"POST /v1/jobs", 200, JSON, "{\"id\":\"" JOB "\",\"state\":\"pending\"}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(key_of(&r.asked, 0), key_of(&r.asked, 1));
    assert_string_equal(key_of(&r.asked, 0), key_of(&r.asked, 2));
    expect_in(&r.err, "trying again");
    expect_in(&r.out, "\"id\": \"" JOB "\"");
}

static void submit_options(void **state)
{
    (void)state;
    const char *path = document("{}");
    CLEANUP(result_done)
    struct result r = RUN(words("submit @ --dry-run --strict --key mine", path),
                          {"POST /v1/jobs?dry_run=1&strict=1 HTTP", 200, JSON,
                           "{\"plan\":{\"name\":\"none\",\"ranks\":1,\"memory_bytes\":2048}}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(key_of(&r.asked, 0), "mine");
    assert_string_equal(r.out.data, "The document is valid. Plan: none over 1 rank\n"
                                    "Memory of the heaviest rank: 2.00 KiB\n");
}

static void submit_refused(void **state)
{
    (void)state;
    const char *path = document("{}");
    CLEANUP(result_done)
    struct result r =
        RUN(words("submit @", path),
            {"POST /v1/jobs", 422, PROBLEM,
             "{\"detail\":\"It cannot run.\",\"errors\":[{\"pointer\":\"/fit/batch_size\","
             "\"message\":\"is 0\",\"hint\":\"at least 1\"}]}"});
    assert_int_equal(r.status, EXIT_REFUSED);
    assert_string_equal(r.err.data,
                        "trainyard: It cannot run.\n  /fit/batch_size: is 0 (at least 1)\n");
    assert_int_equal(r.out.len, 0);
}

static void submit_refused_with_warnings(void **state)
{
    (void)state;
    const char *path = document("{}");
    CLEANUP(result_done)
    struct result r =
        RUN(words("submit @", path),
            {"POST /v1/jobs", 422, PROBLEM,
             "{\"detail\":\"No.\",\"errors\":[{\"pointer\":\"/fit\",\"message\":\"is 0\"}],"
             "\"warnings\":[{\"pointer\":\"/fitt\",\"message\":\"is ignored\"}]}"});
    assert_int_equal(r.status, EXIT_REFUSED);
    assert_string_equal(r.err.data,
                        "trainyard: No.\n  /fit: is 0\nwarnings:\n  /fitt: is ignored\n");
}

static void submit_and_wait(void **state)
{
    (void)state;
    const char *path = document("{}");
    CLEANUP(result_done)
    struct result r = RUN(words("submit @ --wait", path),
                          {"POST /v1/jobs", 201, JSON, "{\"id\":\"" JOB "\",\"name\":\"n\"}"},
                          {"GET /v1/jobs/" JOB " ", 200, JSON,
                           "{\"name\":\"n\",\"state\":\"failed\",\"reason\":\"Rank 1 died.\"}"});
    assert_int_equal(r.status, EXIT_REFUSED);
    expect_in(&r.err, "n (" JOB ") failed: Rank 1 died.");
}

static void too_large_a_document(void **state)
{
    (void)state;
    char *big = mem_alloc(1024 * 1024 + 2);
    memset(big, ' ', 1024 * 1024 + 1);
    big[1024 * 1024 + 1] = '\0';
    CLEANUP(result_done) struct result r = RUN(words("submit @", document(big)));
    assert_int_equal(r.status, EXIT_USAGE);
    expect_in(&r.err, "larger than the limit");
    free(big);
}

/* ---- wait ---- */

static void wait_tells_by_status(void **state)
{
    (void)state;
    static const struct {
        const char *document;
        int status;
        const char *says;
    } ends[] = {
        {"{\"name\":\"n\",\"state\":\"succeeded\",\"started_at\":\"2026-01-01T00:00:00Z\","
         "\"finished_at\":\"2026-01-01T00:00:04.5Z\"}",
         EXIT_OK, "succeeded after 4.5 s"},
        {"{\"name\":\"n\",\"state\":\"failed\",\"reason\":\"Bad \\u001b[2J.\"}", EXIT_REFUSED,
         "failed: Bad \\e[2J."},
        {"{\"name\":\"n\",\"state\":\"cancelled\",\"reason\":\"By a request.\"}", EXIT_REFUSED,
         "was cancelled: By a request."},
    };
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        CLEANUP(result_done)
        struct result r = RUN("wait " JOB, {"GET /v1/jobs/" JOB " ", 200, JSON, ends[i].document});
        assert_int_equal(r.status, ends[i].status);
        expect_in(&r.err, ends[i].says);
        assert_int_equal(r.out.len, 0);
    }
}

static void wait_shows_changes(void **state)
{
    (void)state;
    const char *pending = "{\"name\":\"n\",\"state\":\"pending\",\"reason\":\"2 are busy.\","
                          "\"progress\":{\"step\":0,\"steps\":0}}";
    const char *running = "{\"name\":\"n\",\"state\":\"running\",\"spec\":{\"fit\":{\"epochs\":5}},"
                          "\"progress\":{\"step\":10,\"steps\":100}}";
    CLEANUP(result_done)
    struct result r =
        RUN("wait " JOB " --json", {"GET /v1/jobs/" JOB " ", 200, JSON, pending},
            {"GET /v1/jobs/" JOB " ", 200, JSON, pending},
            {"GET /v1/jobs/" JOB " ", 200, JSON, running},
            {"GET /v1/jobs/" JOB "/metrics?after_step=0&max_points=200 ", 200, JSON,
             "{\"steps\":[{\"step\":9,\"samples_per_second\":600},"
             "{\"step\":10,\"epoch\":1,\"loss\":0.5,\"samples_per_second\":1200}],"
             "\"epochs\":[{\"epoch\":1,\"loss\":0.75}]}"},
            {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"succeeded\",\"name\":\"n\"}"});
    assert_int_equal(r.status, EXIT_OK);
    expect_in(&r.err, "n  pending: 2 are busy.\nn  epoch 1/5  [");
    expect_in(&r.err, "10/100  loss 0.5000  800 samples/s\n");
    expect_in(&r.err, "succeeded, loss 0.5000 at the last step, 0.7500 over the last epoch\n");
    expect_in(&r.out, "\"state\": \"succeeded\"");
}

static void wait_survives_a_restart(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("wait " JOB, {"GET /v1/jobs/" JOB " ", 0, NULL, NULL},
                          {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"succeeded\"}"});
    assert_int_equal(r.status, EXIT_OK);
}

/* A coordinator that is ending or starting answers 503 for a moment: nothing was done, so that is
 * no refusal. */
static void submit_and_wait_outlast_a_503(void **state)
{
    (void)state;
    const char *path = document("{}");
    static const char busy[] = "{\"detail\":\"The server is shutting down.\",\"status\":503}";
    CLEANUP(result_done)
    struct result s =
        RUN(words("submit @", path), {"POST /v1/jobs", 503, PROBLEM "Retry-After: 1\r\n", busy},
            {"POST /v1/jobs", 201, JSON, "{\"id\":\"" JOB "\",\"state\":\"pending\"}"});
    assert_int_equal(s.status, EXIT_OK);
    assert_string_equal(key_of(&s.asked, 0), key_of(&s.asked, 1));
    assert_string_equal(s.out.data, JOB "\n");
    CLEANUP(result_done)
    struct result w = RUN("wait " JOB, {"GET /v1/jobs/" JOB " ", 503, PROBLEM, busy},
                          {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"succeeded\"}"});
    assert_int_equal(w.status, EXIT_OK);
    CLEANUP(result_done)
    struct result refused =
        RUN("wait " JOB " --retry 0", {"GET /v1/jobs/" JOB " ", 503, PROBLEM, busy});
    assert_int_equal(refused.status, EXIT_NO_SERVER);
    expect_in(&refused.err, "shutting down");
}

static void wait_gives_up(void **state)
{
    (void)state;
    const char *running = "{\"name\":\"n\",\"state\":\"starting\"}";
    CLEANUP(result_done)
    struct result r =
        RUN("wait " JOB " --timeout 1", {"GET /v1/jobs/", 200, JSON, running},
            {"GET /v1/jobs/", 200, JSON, running}, {"GET /v1/jobs/", 200, JSON, running});
    assert_int_equal(r.status, EXIT_NO_SERVER);
    expect_in(&r.err, "has not ended within 1 s");
}

static void wait_for_an_unknown_job(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("wait " JOB, {"GET /v1/jobs/" JOB " ", 404, PROBLEM,
                                        "{\"detail\":\"There is no job " JOB ".\"}"});
    assert_int_equal(r.status, EXIT_REFUSED);
    expect_in(&r.err, "There is no job");
}

/* ---- ids ---- */

static const char three[] = "{\"jobs\":[{\"id\":\"" JOB3 "\",\"name\":\"c\"},{\"id\":\"" JOB2
                            "\",\"name\":\"b\"},{\"id\":\"" JOB "\",\"name\":\"a\"},"
                            "{\"id\":\"job_../../x\"}]}";

static void ids_by_prefix(void **state)
{
    (void)state;
    static const char *const unique[] = {"job_01k9", "01k9", "job_01k900"};
    static const char *const ambiguous[] = {"01k8", "j", "job_", "job_01k8z4q9tw3v7m2c5xd8hbn",
                                            "0"};
    for (size_t i = 0; i < ARRAY_LEN(unique); i++) {
        CLEANUP(mem_freep) char *line = mem_printf("show %s --json", unique[i]);
        CLEANUP(result_done)
        struct result r = RUN(line, {"GET /v1/jobs?limit=", 200, JSON, three},
                              {"GET /v1/jobs/" JOB3 " ", 200, JSON, "{\"id\":\"" JOB3 "\"}"});
        assert_int_equal(r.status, EXIT_OK);
    }
    for (size_t i = 0; i < ARRAY_LEN(ambiguous); i++) {
        CLEANUP(mem_freep) char *line = mem_printf("cancel %s", ambiguous[i]);
        CLEANUP(result_done) struct result r = RUN(line, {"GET /v1/jobs?limit=", 200, JSON, three});
        assert_int_equal(r.status, EXIT_USAGE);
        expect_in(&r.err, JOB2);
    }
    CLEANUP(result_done)
    struct result r = RUN("show job_..", {"GET /v1/jobs?limit=", 200, JSON, three});
    assert_int_equal(r.status, EXIT_USAGE);
}

static void ids_over_pages(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN(
        "show 01k8",
        {"GET /v1/jobs?limit=1000 ", 200, JSON,
         "{\"jobs\":[{\"id\":\"" JOB3 "\"}],\"next\":\"a&b\"}"},
        {"GET /v1/jobs?limit=1000&after=a%26b ", 200, JSON, "{\"jobs\":[{\"id\":\"" JOB "\"}]}"},
        {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"id\":\"" JOB "\"}"});
    assert_int_equal(r.status, EXIT_OK);
    CLEANUP(result_done)
    struct result none = RUN("show last", {"GET /v1/jobs?limit=1 ", 200, JSON, "{\"jobs\":[]}"});
    assert_int_equal(none.status, EXIT_USAGE);
    expect_in(&none.err, "there is no job yet");
    CLEANUP(result_done)
    struct result missing = RUN("show 01kz", {"GET /v1/jobs?limit=", 200, JSON, three});
    assert_int_equal(missing.status, EXIT_USAGE);
    expect_in(&missing.err, "no job has an id that begins with");
}

static void last_is_the_newest(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN(
        "cancel last",
        {"GET /v1/jobs?limit=1 ", 200, JSON, "{\"jobs\":[{\"id\":\"" JOB "\"}],\"next\":\"1\"}"},
        {"POST /v1/jobs/" JOB "/cancel ", 200, JSON, "{\"state\":\"stopping\"}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, JOB " stopping\n");
}

static void a_cancel_believes_no_stranger(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("cancel " JOB, {"POST /v1/jobs/" JOB "/cancel ", 200, JSON, "null"});
    assert_int_equal(r.status, EXIT_NO_SERVER);
    expect_in(&r.err, "is no Trainyard coordinator");
    CLEANUP(result_done)
    struct result evil = RUN(
        "cancel " JOB, {"POST /v1/jobs/" JOB "/cancel ", 200, JSON, "{\"state\":\"\\u001b[31m\"}"});
    assert_int_equal(evil.status, EXIT_OK);
    assert_string_equal(evil.out.data, JOB " \\e[31m\n");
}

/* ---- the rest ---- */

static void list_follows_the_cursor(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("list --all --json --state pending,running --label a=b&c",
            {"GET /v1/jobs?limit=1000&state=pending%2Crunning&label=a%3Db%26c ", 200, JSON,
             "{\"jobs\":[{\"id\":\"a\"}],\"next\":\"7\"}"},
            {"GET /v1/jobs?limit=1000&state=pending%2Crunning&label=a%3Db%26c&after=7 ", 200, JSON,
             "{\"jobs\":[{\"id\":\"b\"}]}"});
    assert_int_equal(r.status, EXIT_OK);
    json_auto_t *doc = json_loads(r.out.data, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(doc, "jobs")), 2);
    assert_null(json_object_get(doc, "next"));
}

static void list_limit(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("list --limit 1", {"GET /v1/jobs?limit=1 ", 200, JSON,
                                             "{\"jobs\":[{\"id\":\"" JOB "\",\"state\":\"running\","
                                             "\"name\":\"n\\u0007\",\"strategy\":\"mirrored\","
                                             "\"progress\":{\"step\":3,\"steps\":9},"
                                             "\"devices\":[{},{}]}],\"next\":\"7\"}"});
    assert_int_equal(r.status, EXIT_OK);
    expect_in(&r.out, JOB "  running  n\\x07  mirrored      2   3/9\n");
    expect_in(&r.err, "There are more");
}

static void logs_by_chunk(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("logs " JOB " --rank 1 --attempt 2",
                          {"GET /v1/jobs/" JOB "/logs?rank=1&offset=0&limit=262144&attempt=2 ", 200,
                           "X-Log-Offset: 0\r\nX-Log-Size: 9\r\n", "one\n\033["},
                          {"GET /v1/jobs/" JOB "/logs?rank=1&offset=6&limit=262144&attempt=2 ", 200,
                           "X-Log-Offset: 6\r\nX-Log-Size: 9\r\n", "x\n!"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, "one\n\033[x\n!"); /* no terminal: as it is */
}

static void logs_tail(void **state)
{
    (void)state;
    static const struct {
        const char *words, *want;
    } rows[] = {{"logs " JOB " --tail 2", "b\nc\n"},
                {"logs " JOB " --tail 0", ""},
                {"logs " JOB " --tail 9", "a\nb\nc\n"}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CLEANUP(result_done)
        struct result r = RUN(rows[i].words, {"GET /v1/jobs/" JOB "/logs?rank=0&tail=65536 ", 200,
                                              "X-Log-Offset: 0\r\nX-Log-Size: 6\r\n", "a\nb\nc\n"});
        assert_int_equal(r.status, EXIT_OK);
        assert_string_equal(r.out.data, rows[i].want);
    }
    CLEANUP(result_done)
    struct result r = RUN("logs " JOB " --tail 1",
                          {"GET /v1/jobs/" JOB "/logs?rank=0&tail=65536 ", 200,
                           "X-Log-Offset: 10\r\nX-Log-Size: 12\r\n", "xx"},
                          {"GET /v1/jobs/" JOB "/logs?rank=0&tail=262144 ", 200,
                           "X-Log-Offset: 6\r\nX-Log-Size: 12\r\n", "\nlast\n"});
    assert_string_equal(r.out.data, "last\n");
}

static void logs_follow_to_the_end(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("logs -f " JOB,
            {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"running\",\"attempt\":1}"},
            {"GET /v1/jobs/" JOB "/logs?rank=0&offset=0&", 200, "X-Log-Size: 2\r\n", "a\n"},
            {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"running\",\"attempt\":2}"},
            {"GET /v1/jobs/" JOB "/logs?rank=0&offset=0&", 200, "X-Log-Size: 2\r\n", "b\n"},
            {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"failed\",\"attempt\":2}"},
            {"GET /v1/jobs/" JOB "/logs?rank=0&offset=2&", 200, "X-Log-Size: 4\r\n", "c\n"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, "a\nb\nc\n");
}

static void metrics_table(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("metrics " JOB,
                          {"GET /v1/jobs/" JOB "/metrics?max_points=1 ", 200, JSON,
                           "{\"steps\":[],\"epochs\":[{\"epoch\":1,\"loss\":0.25,\"val_loss\":0.5},"
                           "{\"epoch\":2,\"loss\":\"nan\"}]}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, "epoch  loss  val_loss\n"
                                    "    1  0.25       0.5\n"
                                    "    2   nan\n");
    CLEANUP(result_done)
    struct result none =
        RUN("metrics " JOB " --steps", {"GET /v1/jobs/" JOB "/metrics ", 200, JSON, "{}"});
    assert_int_equal(none.status, EXIT_OK);
    expect_in(&none.err, "No figures yet.");
}

static void the_token_comes_from_a_file(void **state)
{
    (void)state;
    const char *path = document("s3cret\n");
    CLEANUP(result_done)
    struct result r = RUN(words("nodes --token-file @", path),
                          {"GET /v1/nodes", 401, PROBLEM, "{\"detail\":\"No.\"}"});
    assert_int_equal(r.status, EXIT_REFUSED);
    expect_in(&r.asked, "Authorization: Bearer s3cret\r\n");
    assert_null(strstr(r.err.data, "s3cret"));
    CLEANUP(result_done)
    struct result bad = RUN(words("nodes --token-file @", document("a b\r\nX: y")));
    assert_int_equal(bad.status, EXIT_USAGE);
    CLEANUP(result_done) struct result empty = RUN(words("nodes --token-file @", document("\n")));
    assert_int_equal(empty.status, EXIT_USAGE);
}

/* ---- what a job left behind, and what happened to it ---- */

static const char files[] =
    "{\"artifacts\":[{\"name\":\"model.safetensors\",\"bytes\":2048}],\"left_out\":["
    "{\"name\":\"a\\u001bb\",\"why\":\"Its name.\"}],\"left_out_count\":3}";

static void show_tells_figures_and_files(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("show " JOB,
            {"GET /v1/jobs/" JOB " ", 200, JSON,
             "{\"name\":\"n\",\"state\":\"succeeded\",\"attempt\":1,"
             "\"progress\":{\"step\":9,\"steps\":9}}"},
            {"GET /v1/jobs/" JOB "/metrics?max_points=1 ", 200, JSON,
             "{\"steps\":[{\"step\":9,\"loss\":0.5}],\"epochs\":[{\"epoch\":1,\"loss\":9},"
             "{\"epoch\":2,\"loss\":0.75,\"seconds\":3,\"val_accuracy\":0.25}]}"},
            {"GET /v1/jobs/" JOB "/artifacts ", 200, JSON, files});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(strstr(r.out.data, "loss  "), "loss       0.5 at step 9\n"
                                                      "epoch 2    loss 0.75, val_accuracy 0.25\n"
                                                      "artifacts  model.safetensors, 2.00 KiB\n"
                                                      "left out   a\\eb: Its name.\n"
                                                      "left out   2 more\n");
}

static void artifacts_are_listed(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("artifacts " JOB, {"GET /v1/jobs/" JOB "/artifacts ", 200, JSON, files});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, "NAME                   SIZE\n"
                                    "model.safetensors  2.00 KiB\n");
    assert_string_equal(r.err.data, "left out   a\\eb: Its name.\nleft out   2 more\n");
}

/* The file's content, "" where there is none. */
static const char *content(const char *path)
{
    static char text[64];
    FILE *f = fopen(path, "r");
    text[f ? fread(text, 1, sizeof text - 1, f) : 0] = '\0';
    if (f)
        fclose(f);
    return text;
}

static void an_artifact_is_whole_or_not_there(void **state)
{
    (void)state;
    static const char plain[] = "Content-Type: application/octet-stream\r\n";
    char dir[] = "/tmp/cli_verbs.XXXXXX";
    assert_non_null(mkdtemp(dir));
    CLEANUP(mem_freep) char *path = mem_printf("%s/m", dir);
    CLEANUP(mem_freep) char *line = mem_printf("artifacts " JOB " m+x -o %s", path);
    CLEANUP(mem_freep) char *force = mem_printf("%s --force --json", line);
    CLEANUP(result_done)
    struct result none = RUN(line, {"GET /v1/jobs/" JOB "/artifacts/m%2Bx ", 404, PROBLEM,
                                    "{\"detail\":\"There is none.\"}"});
    assert_int_equal(none.status, EXIT_REFUSED);
    expect_in(&none.err, "There is none.");
    assert_int_equal(rmdir(dir), 0); /* nothing is left of it */
    assert_int_equal(mkdir(dir, 0700), 0);
    CLEANUP(result_done)
    struct result broken = RUN(line,
                               {"GET /v1/jobs/" JOB "/artifacts/m%2Bx ", 200,
                                "Transfer-Encoding: chunked\r\n", "6\r\nlonger\r\n6\r\nlo"},
                               {"GET /v1/jobs/" JOB "/artifacts/m%2Bx ", 200, plain, "first"});
    assert_int_equal(broken.status, EXIT_OK); /* and of the first try no byte */
    expect_in(&broken.err, "m: 5 B\n");
    assert_string_equal(content(path), "first");
    CLEANUP(result_done) struct result again = RUN(line);
    assert_int_equal(again.status, EXIT_USAGE);
    expect_in(&again.err, "is there already; --force replaces it");
    assert_string_equal(content(path), "first");
    CLEANUP(result_done)
    struct result forced = RUN(force, {"GET /v1/jobs/" JOB "/artifacts/", 200, plain, ""});
    assert_int_equal(forced.status, EXIT_OK);
    expect_in(&forced.out, "\"bytes\": 0");
    assert_string_equal(content(path), "");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void a_folder_that_is_not_there(void **state)
{
    (void)state;
    CLEANUP(result_done) struct result r = RUN("artifacts " JOB " m -o /nonexistent/m");
    assert_int_equal(r.status, EXIT_REFUSED);
    expect_in(&r.err, "cannot write /nonexistent/m: No such file");
}

static void events_table(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("events " JOB,
            {"GET /v1/jobs/" JOB "/events?after=0&limit=1000 ", 200, JSON,
             "{\"events\":[{\"seq\":4,\"time\":\"T1\",\"type\":\"job_state\",\"data\":{\"from\":"
             "\"pending\",\"to\":\"starting\",\"reason\":\"On n1.\"}},"
             "{\"seq\":5,\"time\":\"T2\",\"type\":\"ready\",\"node\":\"n1\",\"data\":{\"type\":"
             "\"ready\",\"rank\":1,\"seconds\":0.5,\"x\":[],\"note\":\"\"}},"
             "{\"seq\":6,\"time\":\"T3\",\"type\":\"verdict\",\"node\":\"n1\",\"data\":{\"rank\":0,"
             "\"reason\":\"Done \\u001b.\"}},7]}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, "TIME  EVENT      NODE  WHAT\n"
                                    "T1    job_state        pending > starting: On n1.\n"
                                    "T2    ready      n1    rank 1, seconds 0.5\n"
                                    "T3    verdict    n1    rank 0: Done \\e.\n"
                                    "\n");
}

/* Documents of the right form and nonsense values never crash a verb. */
static const char odd_job[] =
    "{\"id\":7,\"state\":\"\",\"name\":null,\"strategy\":[],\"progress\":7,\"devices\":{},"
    "\"spec\":\"x\",\"submitted_at\":\"yesterday\",\"warnings\":{\"a\":1}}";

/* Some terminals take U+009B for ESC [, and JSON lets it stand. */
static void json_is_safe_on_a_terminal(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result s = RUN("show " JOB " --json", {"GET /v1/jobs/" JOB " ", 200, JSON,
                                                  "{\"reason\":\"\xc2\x9b"
                                                  "31m\"}"});
    assert_int_equal(s.status, EXIT_OK);
    assert_string_equal(s.out.data, "{\n  \"reason\": \"\\u009B31m\"\n}\n");
    CLEANUP(result_done)
    struct result l =
        RUN("logs " JOB " --json", {"GET /v1/jobs/" JOB "/logs", 200,
                                    "Content-Type: text/plain\r\nX-Log-Size: 2\r\n", "\xc2\x9b"});
    assert_int_equal(l.status, EXIT_OK);
    expect_in(&l.out, "\"text\":\"\\u009B\"");
}

static void odd_documents(void **state)
{
    (void)state;
    static const char *const odd[] = {
        "{}", "{\"jobs\":7,\"nodes\":7,\"steps\":7,\"epochs\":7,\"plan\":7}",
        "{\"jobs\":[7,null,{}],\"nodes\":[7,{}],\"steps\":[7],\"epochs\":[null,{\"epoch\":[]}]}",
        odd_job};
    static const char *const lines[] = {"list",           "show " JOB,       "nodes",
                                        "metrics " JOB,   "metrics -s " JOB, "version",
                                        "artifacts " JOB, "events " JOB};
    for (size_t i = 0; i < ARRAY_LEN(odd) * ARRAY_LEN(lines); i++) {
        CLEANUP(result_done)
        struct result r =
            RUN(lines[i % ARRAY_LEN(lines)], {"GET /v1/", 200, JSON, odd[i / ARRAY_LEN(lines)]});
        if (r.status != EXIT_OK)
            fail_msg("%s of %s: %d\n%s", lines[i % ARRAY_LEN(lines)], odd[i / ARRAY_LEN(lines)],
                     r.status, r.err.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_errors),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(somebody_else_there),
        cmocka_unit_test(submit_prints_the_id),
        cmocka_unit_test(submit_repeats_with_the_same_key),
        cmocka_unit_test(submit_options),
        cmocka_unit_test(submit_refused),
        cmocka_unit_test(submit_refused_with_warnings),
        cmocka_unit_test(submit_and_wait),
        cmocka_unit_test(too_large_a_document),
        cmocka_unit_test(wait_tells_by_status),
        cmocka_unit_test(wait_shows_changes),
        cmocka_unit_test(wait_survives_a_restart),
        cmocka_unit_test(submit_and_wait_outlast_a_503),
        cmocka_unit_test(wait_gives_up),
        cmocka_unit_test(wait_for_an_unknown_job),
        cmocka_unit_test(ids_by_prefix),
        cmocka_unit_test(ids_over_pages),
        cmocka_unit_test(last_is_the_newest),
        cmocka_unit_test(a_cancel_believes_no_stranger),
        cmocka_unit_test(list_follows_the_cursor),
        cmocka_unit_test(list_limit),
        cmocka_unit_test(logs_by_chunk),
        cmocka_unit_test(logs_tail),
        cmocka_unit_test(logs_follow_to_the_end),
        cmocka_unit_test(metrics_table),
        cmocka_unit_test(show_tells_figures_and_files),
        cmocka_unit_test(artifacts_are_listed),
        cmocka_unit_test(an_artifact_is_whole_or_not_there),
        cmocka_unit_test(a_folder_that_is_not_there),
        cmocka_unit_test(events_table),
        cmocka_unit_test(the_token_comes_from_a_file),
        cmocka_unit_test(odd_documents),
        cmocka_unit_test(json_is_safe_on_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
