/* handlers.h: one function per endpoint of the table in routes.c, kept by noun in jobs.c, events.c,
 * nodes.c, files.c, agents.c and ops.c. The contract is that of struct route's `handler`. */
#ifndef TRAINYARD_API_HANDLERS_H
#define TRAINYARD_API_HANDLERS_H

#include "api/request.h"
#include "api/service.h"

#define HANDLER(name) int name(struct service *s, struct request *q, struct service_reply *r)

HANDLER(jobs_submit);
HANDLER(jobs_list);
HANDLER(jobs_show);
HANDLER(jobs_cancel);
HANDLER(jobs_suspend);
HANDLER(jobs_resume);
HANDLER(jobs_retry);
HANDLER(jobs_checkpoints);
HANDLER(jobs_plan);
HANDLER(jobs_attempts);
HANDLER(jobs_metrics);

HANDLER(events_of_job);
HANDLER(events_all);

HANDLER(nodes_list);
HANDLER(nodes_show);
HANDLER(nodes_drain);
HANDLER(nodes_undrain);

HANDLER(files_log);
HANDLER(files_artifact_list);
HANDLER(files_artifact);
HANDLER(files_page);

HANDLER(agents_sync);
HANDLER(agents_file);

HANDLER(ops_version);
HANDLER(ops_health);
HANDLER(ops_ready);
HANDLER(ops_metrics);
HANDLER(ops_openapi);

/* openapi.c: the document as it is served. Not NUL-terminated. */
extern const char OPENAPI_TEXT[];
extern const char OPENAPI_TEXT_END[];

/* reply.c: 1 if the client holds what `etag` names (If-None-Match). */
int reply_not_modified(const struct request *q, const char *etag);

#endif
