/* spec_job.c: bytes as a job document: read, parsed, cut into stages, answered, released; and what
 * was read as a launch document and as a plan. A crash, a leak or a broken promise is a find. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/err.h"
#include "spec/job.h"
#include "spec/launch.h"
#include "spec/plan.h"

static void cut(const struct job_spec *s)
{
    int first[5];
    struct err e;
    for (int stages = 1; stages <= 4; stages++) {
        if (plan_cut(s, stages, first, &e) < 0)
            continue;
        if (first[0] != 0 || first[stages] != s->model.layer_count)
            BUG("a cut that is not of the whole model");
        for (int i = 0; i < stages; i++)
            if (first[i] >= first[i + 1] && s->model.layer_count > 0)
                BUG("an empty stage");
        struct plan p = {.kind = STRATEGY_PIPELINE,
                         .ranks = stages,
                         .data = 1,
                         .pipeline = stages,
                         .tensor = 1,
                         .chunks = 1,
                         .microbatches = 4,
                         .stage_first = first};
        if (plan_memory(s, &p) < 0)
            BUG("less than no memory");
    }
}

static void parse(const json_t *doc, int strict)
{
    struct faults f = {0}, w = {0};
    struct job_spec *s = job_spec_parse(doc, strict, &f, &w);
    if ((s != NULL) != (f.total == 0))
        BUG("%zu faults, but %s", f.total, s ? "a job" : "no job");
    if (s)
        cut(s);
    json_decref(faults_to_json(&f));
    json_decref(faults_to_json(&w));
    job_spec_free(s);
    faults_done(&f);
    faults_done(&w);
}

static void parse_ours(const json_t *doc)
{
    struct err e;
    struct plan p;
    struct launch l;
    if (plan_from_json(doc, &p, &e) == 0) {
        json_decref(plan_to_json(&p));
        plan_done(&p);
    }
    if (launch_from_json(doc, &l, &e) == 0)
        launch_done(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *doc;
    struct err e;
    if (job_spec_read((const char *)data, size, &doc, &e) < 0)
        return 0;
    parse(doc, 0);
    parse(doc, 1);
    parse_ours(doc);
    json_decref(doc);
    return 0;
}
