/* routes.c: THE endpoint table, and the search in it.
 *
 * Order matters only where two patterns fit one path: the first wins, so "*" stands last. The table
 * is small enough (some thirty rows) that a linear search by segments costs less than a
 * microsecond.
 */
#include "api/routes.h"

#include <string.h>

#include "api/handlers.h"
#include "base/buf.h"
#include "base/mem.h"

/* clang-format off */
const struct route ROUTES[] = {
    /* method  pattern                               role        body                agents  params  handler */
    {"POST", "/v1/jobs",                            ROLE_USER,  BODY_JSON,          0, "dry_run strict", jobs_submit},
    {"GET",  "/v1/jobs",                            ROLE_USER,  BODY_NONE,          0, "state label user limit after", jobs_list},
    {"GET",  "/v1/jobs/{id}",                       ROLE_USER,  BODY_NONE,          0, "", jobs_show},
    {"POST", "/v1/jobs/{id}/cancel",                ROLE_USER,  BODY_OPTIONAL_JSON, 0, "", jobs_cancel},
    {"POST", "/v1/jobs/{id}/suspend",               ROLE_USER,  BODY_OPTIONAL_JSON, 0, "", jobs_suspend},
    {"POST", "/v1/jobs/{id}/resume",                ROLE_USER,  BODY_OPTIONAL_JSON, 0, "", jobs_resume},
    {"POST", "/v1/jobs/{id}/retry",                 ROLE_USER,  BODY_OPTIONAL_JSON, 0, "", jobs_retry},
    {"GET",  "/v1/jobs/{id}/checkpoints",           ROLE_USER,  BODY_NONE,          0, "", jobs_checkpoints},
    {"GET",  "/v1/jobs/{id}/plan",                  ROLE_USER,  BODY_NONE,          0, "", jobs_plan},
    {"GET",  "/v1/jobs/{id}/attempts",              ROLE_USER,  BODY_NONE,          0, "", jobs_attempts},
    {"GET",  "/v1/jobs/{id}/events",                ROLE_USER,  BODY_NONE,          0, "after limit", events_of_job},
    {"GET",  "/v1/jobs/{id}/metrics",               ROLE_USER,  BODY_NONE,          0, "max_points after_step after_epoch", jobs_metrics},
    {"GET",  "/v1/jobs/{id}/logs",                  ROLE_USER,  BODY_NONE,          0, "rank attempt offset tail limit", files_log},
    {"GET",  "/v1/jobs/{id}/artifacts",             ROLE_USER,  BODY_NONE,          0, "", files_artifact_list},
    {"GET",  "/v1/jobs/{id}/artifacts/{name}",      ROLE_USER,  BODY_NONE,          0, "", files_artifact},
    {"GET",  "/v1/events",                          ROLE_USER,  BODY_NONE,          0, "after limit", events_all},
    {"GET",  "/v1/nodes",                           ROLE_USER,  BODY_NONE,          0, "limit after", nodes_list},
    {"GET",  "/v1/nodes/{name}",                    ROLE_USER,  BODY_NONE,          0, "", nodes_show},
    {"POST", "/v1/nodes/{name}/drain",              ROLE_USER,  BODY_OPTIONAL_JSON, 0, "", nodes_drain},
    {"POST", "/v1/nodes/{name}/undrain",            ROLE_USER,  BODY_OPTIONAL_JSON, 0, "", nodes_undrain},
    {"GET",  "/v1/version",                         ROLE_USER,  BODY_NONE,          0, "", ops_version},
    {"POST", "/v1/agent/sync",                      ROLE_AGENT, BODY_JSON,          1, "", agents_sync},
    {"POST", "/v1/agent/files",                     ROLE_AGENT, BODY_BYTES,         1, "node attempt epoch name offset", agents_file},
    {"GET",  "/healthz",                            ROLE_OPEN,  BODY_NONE,          1, "", ops_health},
    {"GET",  "/readyz",                             ROLE_OPEN,  BODY_NONE,          0, "", ops_ready},
    {"GET",  "/metrics",                            ROLE_USER,  BODY_NONE,          0, "", ops_metrics},
    {"GET",  "/openapi.json",                       ROLE_OPEN,  BODY_NONE,          0, "", ops_openapi},
    {"GET",  "/*",                                  ROLE_OPEN,  BODY_NONE,          0, NULL, files_page},
};
/* clang-format on */
const size_t ROUTE_COUNT = ARRAY_LEN(ROUTES);

static int part_fits(const char *part, size_t n, const char *segment)
{
    if (*part == '{')
        return *segment != '\0';
    return strlen(segment) == n && memcmp(segment, part, n) == 0;
}

/* 1 if the segments fit the pattern; the args are then noted in `args`. */
static int pattern_fits(const char *pattern, const struct request *q, const char *args[2])
{
    int arg = 0;
    int i = 0;
    for (const char *p = pattern; *p; i++) {
        p++; /* the slash */
        size_t n = strcspn(p, "/");
        if (n == 1 && *p == '*')
            return i > 0 || q->segment_count == 0 || strcmp(q->segments[0], "v1") != 0;
        if (i == q->segment_count)
            return 0;
        if (!part_fits(p, n, q->segments[i]))
            return 0;
        if (*p == '{')
            args[arg++] = q->segments[i];
        p += n;
    }
    return i == q->segment_count;
}

static int is_wild(const struct route *route)
{
    return strchr(route->pattern, '*') != NULL;
}

static int method_fits(const struct route *route, const struct request *q)
{
    const char *wanted = q->method == METHOD_HEAD ? "GET" : q->method_name;
    return strcmp(route->method, wanted) == 0;
}

static int method_refused(struct request *q, const char *allow, struct service_reply *r)
{
    request_out(q, "Allow", "%s", allow);
    return service_fail(r, 405, "method_not_allowed",
                        "%.40s is not possible on %.200s; it takes %s.", q->method_name, q->target,
                        allow);
}

static int nothing_there(const struct request *q, int agents_only, struct service_reply *r)
{
    if (agents_only)
        return service_fail(r, 404, "not_found",
                            "There is nothing at %.200s on this listener, which serves agents "
                            "alone (/v1/agent/...).",
                            q->target);
    return service_fail(r, 404, "not_found",
                        "There is nothing at %.200s; /openapi.json lists what there is.",
                        q->target);
}

int routes_find(struct request *q, int agents_only, struct service_reply *r)
{
    struct buf allow = BUF_INIT;
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        const struct route *route = &ROUTES[i];
        const char *args[2] = {NULL, NULL};
        if ((agents_only && !route->for_agents) || !pattern_fits(route->pattern, q, args))
            continue;
        /* "POST /nothing" is a wrong path, not a wrong method. */
        if (is_wild(route) && (allow.len || (!method_fits(route, q) && q->segment_count > 0)))
            continue;
        if (method_fits(route, q)) {
            q->route = route;
            memcpy(q->args, args, sizeof args);
            buf_done(&allow);
            return 0;
        }
        buf_addf(&allow, "%s%s", allow.len ? ", " : "",
                 strcmp(route->method, "GET") == 0 ? "GET, HEAD" : route->method);
    }
    int rc = allow.len ? method_refused(q, allow.data, r) : nothing_there(q, agents_only, r);
    buf_done(&allow);
    return rc;
}
