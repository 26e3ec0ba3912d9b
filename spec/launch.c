#include "spec/launch.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/field_err.h"
#include "spec/names.h"

#define ROOTS_MAX 64

static void free_list(char **list, int count)
{
    for (int i = 0; i < count; i++)
        free(list[i]);
    free(list);
}

char *launch_checkpoint_name(int64_t step, char out[LAUNCH_CHECKPOINT_NAME_SIZE])
{
    snprintf(out, LAUNCH_CHECKPOINT_NAME_SIZE, "step-%010lld", (long long)step);
    return out;
}

static void rank_done(struct launch_rank *r)
{
    free(r->node);
    free(r->uuid);
}

static void checkpoint_done(struct launch_checkpoint *c)
{
    free(c->name);
    free(c->sum);
}

void launch_done(struct launch *l)
{
    free(l->job);
    free(l->job_name);
    free(l->attempt);
    free(l->node);
    job_spec_free(l->spec);
    plan_done(&l->plan);
    free(l->secret);
    free(l->master_addr);
    for (int i = 0; i < l->rank_count; i++)
        rank_done(&l->ranks[i]);
    free(l->ranks);
    free_list(l->data_roots, l->data_root_count);
    free(l->trainer);
    free(l->run_as);
    free(l->checkpoints);
    for (int i = 0; i < l->resume_count; i++)
        checkpoint_done(&l->resume[i]);
    free(l->resume);
    *l = (struct launch){0};
}

/* It becomes the value of a variable, and goes into sentences. */
static void check_uuid(struct decoding *d, const struct where *at, const char *text)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-/";
    if (strspn(text, allowed) != strlen(text))
        field_fault(d, at, "invalid", NULL,
                    "A GPU's UUID is of letters, digits, '-' and '/', as nvidia-smi -L prints it.");
}

static const struct field rank_fields[] = {
    {.name = "rank",
     .kind = FIELD_INT,
     FIELD_AT(struct launch_rank, rank),
     .required = 1,
     .max = PLAN_MAX_RANKS - 1,
     .help = "number in the gang",
     .example = "0"},
    {.name = "local_rank",
     .kind = FIELD_INT,
     FIELD_AT(struct launch_rank, local_rank),
     .required = 1,
     .max = PLAN_MAX_RANKS - 1,
     .help = "number on the node",
     .example = "0"},
    {.name = "device",
     .kind = FIELD_INT,
     FIELD_AT(struct launch_rank, device),
     .required = 1,
     .max = INT_MAX,
     .help = "index of its device",
     .example = "0"},
    {.name = "kind",
     .kind = FIELD_ENUM,
     FIELD_AT(struct launch_rank, kind),
     .required = 1,
     .words = &device_kind_words,
     .help = "kind of its device",
     .example = "\"cpu\""},
    {.name = "cpu",
     .kind = FIELD_INT,
     FIELD_AT(struct launch_rank, cpu),
     .fallback = -1,
     .min = -1,
     .max = INT_MAX,
     .help = "core that it is bound to",
     .example = "0"},
    {.name = "node",
     .kind = FIELD_TEXT,
     FIELD_AT(struct launch_rank, node),
     .min = 1,
     .max = 63,
     .help = "where it runs, if not here",
     .example = "\"n1\""},
    {.name = "uuid",
     .kind = FIELD_TEXT,
     FIELD_AT(struct launch_rank, uuid),
     .min = 1,
     .max = 95,
     .check = check_uuid,
     .help = "of its GPU",
     .example = "\"GPU-5a2c8f10-3d4e-4f6a-9b1c-0a1b2c3d4e5f\""},
};
static const struct object rank_object = OBJECT("a rank", rank_fields, NULL);

static void decode_ranks(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct launch *l = base;
    size_t n = json_array_size(v);
    if (n == 0 || n > PLAN_MAX_RANKS) {
        field_fault(d, at, "invalid", NULL, "\"ranks\" must be a list of 1 to %d ranks.",
                    PLAN_MAX_RANKS);
        return;
    }
    l->ranks = mem_zalloc(n * sizeof *l->ranks);
    l->rank_count = (int)n;
    for (size_t i = 0; i < n; i++)
        field_decode_object(d, &rank_object, json_array_get(v, i), FIELD_ITEM(at, i), &l->ranks[i]);
}

static void decode_roots(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct launch *l = base;
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n > ROOTS_MAX) {
        field_fault(d, at, "invalid", NULL, "\"data_roots\" must be a list of at most %d paths.",
                    ROOTS_MAX);
        return;
    }
    l->data_roots = mem_zalloc((n + 1) * sizeof *l->data_roots);
    for (size_t i = 0; i < n; i++) {
        const char *path = json_string_value(json_array_get(v, i));
        if (!path || path[0] != '/') {
            field_fault(d, FIELD_ITEM(at, i), "invalid", NULL, "A data root is an absolute path.");
            return;
        }
        l->data_roots[l->data_root_count++] = mem_strdup(path);
    }
}

static void check_sum(struct decoding *d, const struct where *at, const char *text)
{
    if (strspn(text, "0123456789abcdef") != 32)
        field_fault(d, at, "invalid", NULL, "A checkpoint's sum is 32 hex digits.");
}

static const struct field checkpoint_fields[] = {
    {.name = "name",
     .kind = FIELD_TEXT,
     FIELD_AT(struct launch_checkpoint, name),
     .required = 1,
     .min = 1,
     .max = LAUNCH_CHECKPOINT_NAME_SIZE - 1,
     .help = "its directory",
     .example = "\"step-0000000400\""},
    {.name = "step",
     .kind = FIELD_INT,
     FIELD_AT(struct launch_checkpoint, step),
     .required = 1,
     .max = (double)INT64_MAX,
     .help = "steps that it holds",
     .example = "400"},
    {.name = "sum",
     .kind = FIELD_TEXT,
     FIELD_AT(struct launch_checkpoint, sum),
     .required = 1,
     .min = 1,
     .max = 32,
     .check = check_sum,
     .help = "of its manifest",
     .example = "\"99aa06d3014798d86001c324468d497f\""},
};
static const struct object checkpoint_object = OBJECT("a checkpoint", checkpoint_fields, NULL);

static void decode_checkpoint(struct decoding *d, const json_t *v, const struct where *at,
                              struct launch_checkpoint *c)
{
    char name[LAUNCH_CHECKPOINT_NAME_SIZE];
    field_decode_object(d, &checkpoint_object, v, at, c);
    if (c->name && strcmp(c->name, launch_checkpoint_name(c->step, name)) != 0)
        field_fault(d, at, "invalid", NULL, "The checkpoint of step %lld is named %s.",
                    (long long)c->step, name);
}

static void decode_resume(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct launch *l = base;
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n > LAUNCH_MAX_RESUME) {
        field_fault(d, at, "invalid", NULL, "\"resume\" must be a list of at most %d checkpoints.",
                    LAUNCH_MAX_RESUME);
        return;
    }
    l->resume = mem_zalloc((n + 1) * sizeof *l->resume);
    l->resume_count = (int)n;
    for (size_t i = 0; i < n; i++)
        decode_checkpoint(d, json_array_get(v, i), FIELD_ITEM(at, i), &l->resume[i]);
}

static void decode_plan(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct launch *l = base;
    struct err e;
    if (plan_from_json(v, &l->plan, &e) < 0)
        field_fault(d, at, "invalid", NULL, "%s.", e.text);
}

static void decode_spec(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct launch *l = base;
    struct faults faults = {0}, warnings = {0};
    struct err e;
    l->spec = job_spec_parse(v, 0, &faults, &warnings);
    if (field_first_fault(&faults, "the job", &e) < 0)
        field_fault(d, at, "invalid", NULL, "%s", e.text);
    faults_done(&faults);
    faults_done(&warnings);
}

static void check_absolute(struct decoding *d, const struct where *at, const char *text)
{
    if (text[0] != '/')
        field_fault(d, at, "invalid", NULL, "This must be an absolute path.");
}

#define LAUNCH_TEXT(name_, member_, required_)                                                     \
    {                                                                                              \
        .name = (name_), .kind = FIELD_TEXT, FIELD_AT(struct launch, member_),                     \
        .required = (required_), .min = 1, .max = 4096, .help = "a text", .example = "\"text\""    \
    }

static const struct field launch_fields[] = {
    LAUNCH_TEXT("job", job, 1),
    LAUNCH_TEXT("job_name", job_name, 1),
    LAUNCH_TEXT("attempt", attempt, 1),
    LAUNCH_TEXT("node", node, 1),
    {.name = "number",
     .kind = FIELD_INT,
     FIELD_AT(struct launch, number),
     .required = 1,
     .min = 1,
     .max = INT_MAX,
     .help = "of the attempt within the job",
     .example = "1"},
    {.name = "epoch",
     .kind = FIELD_INT,
     FIELD_AT(struct launch, epoch),
     .required = 1,
     .max = (double)INT64_MAX,
     .help = "of the attempt",
     .example = "1"},
    {.name = "spec",
     .kind = FIELD_CUSTOM,
     .decode = decode_spec,
     .required = 1,
     .help = "the job as submitted",
     .example = "{}"},
    {.name = "plan",
     .kind = FIELD_CUSTOM,
     .decode = decode_plan,
     .required = 1,
     .help = "the plan",
     .example = "{}"},
    LAUNCH_TEXT("secret", secret, 1),
    {.name = "transport",
     .kind = FIELD_ENUM,
     FIELD_AT(struct launch, transport),
     .words = &transport_words,
     .fallback = TRANSPORT_SHM,
     .help = "what the ranks speak through",
     .example = "\"shm\""},
    LAUNCH_TEXT("master_addr", master_addr, 1),
    {.name = "master_port",
     .kind = FIELD_INT,
     FIELD_AT(struct launch, master_port),
     .required = 1,
     .min = 0,
     .max = 65535,
     .help = "where rank 0 listens",
     .example = "23001"},
    {.name = "time_limit_s",
     .kind = FIELD_INT,
     FIELD_AT(struct launch, time_limit_s),
     .max = (double)INT64_MAX,
     .help = "seconds, 0 for none",
     .example = "7200"},
    {.name = "grace_s",
     .kind = FIELD_INT,
     FIELD_AT(struct launch, grace_s),
     .required = 1,
     .max = 86400,
     .help = "seconds from SIGTERM to SIGKILL",
     .example = "30"},
    {.name = "ranks",
     .kind = FIELD_CUSTOM,
     .decode = decode_ranks,
     .required = 1,
     .help = "the node's ranks",
     .example = "[]"},
    {.name = "data_roots",
     .kind = FIELD_CUSTOM,
     .decode = decode_roots,
     .help = "where data lies",
     .example = "[]"},
    {.name = "trainer",
     .kind = FIELD_TEXT,
     FIELD_AT(struct launch, trainer),
     .min = 1,
     .max = 4096,
     .check = check_absolute,
     .help = "the program",
     .example = "\"/usr/bin/x\""},
    LAUNCH_TEXT("run_as", run_as, 0),
    {.name = "checkpoints",
     .kind = FIELD_TEXT,
     FIELD_AT(struct launch, checkpoints),
     .min = 1,
     .max = 4096,
     .check = check_absolute,
     .help = "the job's checkpoint directory",
     .example = "\"/srv/checkpoints/job_x\""},
    {.name = "resume",
     .kind = FIELD_CUSTOM,
     .decode = decode_resume,
     .help = "checkpoints to go on from, newest first",
     .example = "[]"},
};
static const struct object launch_object = OBJECT("a launch document", launch_fields, NULL);

static void check_ranks(struct decoding *d, const struct launch *l, const struct where *at)
{
    char *seen = mem_zalloc(PLAN_MAX_RANKS);
    const struct where *list = FIELD_WHERE(at, "ranks");
    for (int i = 0; i < l->rank_count; i++) {
        int rank = l->ranks[i].rank;
        if (rank >= l->plan.ranks)
            field_fault(d, FIELD_ITEM(list, (size_t)i), "invalid", NULL,
                        "Rank %d is not one of the plan's %d.", rank, l->plan.ranks);
        else if (seen[rank]++)
            field_fault(d, FIELD_ITEM(list, (size_t)i), "invalid", NULL, "Rank %d is there twice.",
                        rank);
    }
    free(seen);
}

static int is_here(const struct launch *l, const struct launch_rank *r)
{
    return !r->node || strcmp(r->node, l->node) == 0;
}

static void keep_own_ranks(struct launch *l)
{
    int kept = 0;
    for (int i = 0; i < l->rank_count; i++) {
        if (is_here(l, &l->ranks[i]))
            l->ranks[kept++] = l->ranks[i];
        else
            rank_done(&l->ranks[i]);
    }
    l->rank_count = kept;
}

static void check_nodes(struct decoding *d, const struct launch *l, const struct where *at)
{
    int here = 0;
    for (int i = 0; i < l->rank_count; i++)
        here += is_here(l, &l->ranks[i]);
    const struct where *list = FIELD_WHERE(at, "ranks");
    if (here == 0)
        field_fault(d, list, "invalid", NULL, "No rank is of this node, %s.", l->node);
    else if (here < l->rank_count && l->transport == TRANSPORT_SHM)
        field_fault(d, list, "invalid", NULL,
                    "Ranks of several nodes need \"transport\": \"tcp\".");
}

/* A GPU's number is this node's own; what CUDA knows it by, whatever the order it finds them in, is
 * the UUID. */
static void check_uuids(struct decoding *d, const struct launch *l, const struct where *at)
{
    const struct where *list = FIELD_WHERE(at, "ranks");
    for (int i = 0; i < l->rank_count; i++) {
        const struct launch_rank *r = &l->ranks[i];
        if (!is_here(l, r))
            continue;
        if (r->kind == DEVICE_GPU && !r->uuid)
            field_fault(d, FIELD_ITEM(list, (size_t)i), "required", NULL,
                        "Rank %d is to run on GPU %d of node %s, but its \"uuid\" is missing: "
                        "without it the rank could not be given that GPU and no other.",
                        r->rank, r->device, l->node);
        else if (r->kind != DEVICE_GPU && r->uuid)
            field_fault(d, FIELD_ITEM(list, (size_t)i), "invalid", NULL,
                        "Rank %d has a \"uuid\", but device %d is no GPU.", r->rank, r->device);
    }
}

static void check_launch(struct decoding *d, const struct launch *l, const struct where *at)
{
    if (d->faults->total > 0)
        return;
    check_ranks(d, l, at);
    check_nodes(d, l, at);
    check_uuids(d, l, at);
    int layers = l->plan.stage_first[plan_stages(&l->plan)];
    if (layers != l->spec->model.layer_count)
        field_fault(d, FIELD_WHERE(at, "plan"), "invalid", NULL,
                    "The plan's stages end at layer %d, but the model has %d.", layers,
                    l->spec->model.layer_count);
}

int launch_from_json(const json_t *doc, struct launch *ret, struct err *e)
{
    struct faults faults = {0}, warnings = {0};
    struct decoding d = {.faults = &faults, .warnings = &warnings};
    struct where root = {.key = ""};
    struct launch l = {0};
    field_decode_object(&d, &launch_object, doc, &root, &l);
    check_launch(&d, &l, &root);
    int r = field_first_fault(&faults, "the launch document", e);
    faults_done(&faults);
    faults_done(&warnings);
    if (r < 0) {
        launch_done(&l);
        return r;
    }
    keep_own_ranks(&l);
    *ret = l;
    return 0;
}
