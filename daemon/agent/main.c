/* trainyard-agent: runs what the coordinator wants on this node. */
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/agent/agent.h"

static int fail(const struct err *e)
{
    log_event(LOG_LEVEL_ERROR, "failed", "error=%s", log_quote(e->text));
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    struct options options;
    struct agent agent;
    struct err e;
    log_setup("trainyard-agent", LOG_LEVEL_INFO);
    if (options_read(argc, argv, &options, &e) < 0)
        return fail(&e);
    if (options.verbose)
        log_setup("trainyard-agent", LOG_LEVEL_DEBUG);
    umask(022);
    if (options_check(&options, &e) < 0) {
        options_done(&options);
        return fail(&e);
    }
    if (geteuid() == 0 && !options.run_as)
        log_event(LOG_LEVEL_WARNING, "root",
                  "note=\"jobs run as root; --run-as USER names another\"");
    int r = agent_init(&agent, &options, &e);
    if (r == 0)
        r = agent_loop(&agent, &e);
    agent_done(&agent);
    return r < 0 ? fail(&e) : EXIT_SUCCESS;
}
