/* ending.c: an exit record to a verdict on the job.
 *
 *   done                                         -> succeeded, also when a stop was asked for
 *   stopped, or a retryable end, and a cancel    -> cancelled
 *   the same, and a suspend                      -> suspended
 *   spawn_failed or shim_lost before any rank ran,
 *   retryable                                    -> pending, started again after 1, 2, 4 s:
 *                                                   ENDING_MAX_STARTS starts in a row
 *   a retryable end of what ran                  -> pending, started again after 1, 2, 4, ... s,
 *                                                   job.max_restarts times
 *   everything else                              -> failed, with the record's code and sentence
 *
 * Running twice what has run once is safe for a training job: it writes nothing but its own
 * artifacts, and goes on from a checkpoint. What a command does we do not know: it has restarts
 * only where its document asks for them (max_restarts).
 */
#include "daemon/coordinator/ending.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/coordinator/job.h"

static const char *const outcomes[] = {[OUTCOME_DONE] = "done",
                                       [OUTCOME_FAILED] = "failed",
                                       [OUTCOME_STOPPED] = "stopped",
                                       [OUTCOME_TIME_LIMIT] = "time_limit",
                                       [OUTCOME_PREPARE_FAILED] = "prepare_failed",
                                       [OUTCOME_SPAWN_FAILED] = "spawn_failed",
                                       [OUTCOME_SHIM_LOST] = "shim_lost"};
_Static_assert(ARRAY_LEN(outcomes) == OUTCOME__MAX, "a name for each outcome");

const char *outcome_name(enum outcome o)
{
    return outcomes[o];
}

/* ---- decoding ---- */
static int outcome_parse(const char *name, enum outcome *ret)
{
    for (int i = 0; i < OUTCOME__MAX; i++) {
        if (strcmp(outcomes[i], name) == 0) {
            *ret = (enum outcome)i;
            return 0;
        }
    }
    return ERR_INVALID;
}

/* An integer or null (or nothing), which is -1. */
static int optional_int(const json_t *doc, const char *key, int64_t max, int64_t *ret,
                        struct err *e)
{
    const json_t *v = json_object_get(doc, key);
    *ret = -1;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > max)
        return err_set(e, ERR_INVALID, "exit.%s is neither null nor 0 to %lld", key,
                       (long long)max);
    *ret = json_integer_value(v);
    return 0;
}

static int is_word(const char *s, size_t max)
{
    size_t n = strlen(s);
    return n > 0 && n <= max &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ +") == n;
}

static int check_texts(const char *code, const char *reason, const char *signal, struct err *e)
{
    if (!is_word(code, 63))
        return err_set(e, ERR_INVALID, "exit.code is not a short word");
    if (strlen(reason) > ENDING_REASON_MAX)
        return err_set(e, ERR_INVALID, "exit.reason has more than %d bytes", ENDING_REASON_MAX);
    if (signal && !is_word(signal, 23))
        return err_set(e, ERR_INVALID, "exit.signal is not the name of a signal");
    return 0;
}

static int check_size(const json_t *doc, struct err *e)
{
    size_t n = json_dumpb(doc, NULL, 0, JSON_COMPACT);
    if (n > ENDING_MAX_BYTES)
        return err_set(e, ERR_TOO_LARGE, "exit has %zu bytes; at most %d are taken", n,
                       ENDING_MAX_BYTES);
    return 0;
}

/* What the node left out of the files: shown to users as it is. */
static int check_left_out(const json_t *doc, struct err *e)
{
    const json_t *list = json_object_get(doc, "left_out");
    const json_t *count = json_object_get(doc, "left_out_count");
    size_t n = json_array_size(list);
    if (!list && !count)
        return 0;
    if (!json_is_array(list) || n < 1 || n > ENDING_MAX_LEFT_OUT || !json_is_integer(count) ||
        json_integer_value(count) < (json_int_t)n)
        return err_set(e, ERR_INVALID, "exit.left_out is not a list of 1 to %d with its count",
                       ENDING_MAX_LEFT_OUT);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        const json_t *name = json_object_get(item, "name"), *why = json_object_get(item, "why");
        if (!json_is_string(name) || !json_is_string(why) || json_object_size(item) != 2 ||
            json_string_length(name) > ENDING_LEFT_OUT_TEXT ||
            json_string_length(why) > ENDING_LEFT_OUT_TEXT)
            return err_set(e, ERR_INVALID, "exit.left_out[%zu] is no name and why of at most %d", i,
                           ENDING_LEFT_OUT_TEXT);
    }
    return 0;
}

int ending_parse(const json_t *doc, struct ending *ret, struct err *e)
{
    struct ending x = {.rank = -1, .exit_code = -1};
    const char *outcome, *code, *reason, *signal = NULL;
    json_int_t started = 0, ended = 0;
    const json_t *signal_value = json_object_get(doc, "signal");
    const json_t *retryable = json_object_get(doc, "retryable");
    json_error_t je;
    if (json_unpack_ex((json_t *)doc, &je, 0, "{s:s, s:s, s:s, s?I, s?I}", "outcome", &outcome,
                       "code", &code, "reason", &reason, "started_us", &started, "ended_us",
                       &ended) != 0)
        return err_set(e, ERR_INVALID, "exit: %s", je.text);
    if (outcome_parse(outcome, &x.outcome) != 0)
        return err_set(e, ERR_INVALID, "exit.outcome is not one that is known");
    if (signal_value && !json_is_null(signal_value) && !json_is_string(signal_value))
        return err_set(e, ERR_INVALID, "exit.signal is neither null nor a string");
    if (retryable && !json_is_boolean(retryable))
        return err_set(e, ERR_INVALID, "exit.retryable is neither true nor false");
    signal = json_string_value(signal_value);
    if (check_texts(code, reason, signal, e) != 0 ||
        optional_int(doc, "rank", 1000000, &x.rank, e) != 0 ||
        optional_int(doc, "exit_code", 255, &x.exit_code, e) != 0 || check_left_out(doc, e) != 0 ||
        check_size(doc, e) != 0)
        return ERR_INVALID;
    snprintf(x.code, sizeof(x.code), "%s", code);
    snprintf(x.reason, sizeof(x.reason), "%s", reason);
    snprintf(x.signal, sizeof(x.signal), "%s", signal ? signal : "");
    x.started_us = started > 0 ? started : 0;
    x.ended_us = ended > 0 ? ended : 0;
    x.retryable = json_is_true(retryable);
    *ret = x;
    return 0;
}

/* ---- judging ---- */
/* The record's sentence, with rank, node and signal or status behind it where it lacks them. */
static void describe(const struct ending *x, const struct attempt_row *a, char *out, size_t size)
{
    char who[40] = "", how[60] = "";
    int names_node = strstr(x->reason, a->node) != NULL;
    if (x->rank >= 0)
        snprintf(who, sizeof(who), "rank %lld on ", (long long)x->rank);
    if (x->signal[0] && !strstr(x->reason, x->signal))
        snprintf(how, sizeof(how), ", %s", x->signal);
    else if (x->exit_code > 0 && !strstr(x->reason, "status"))
        snprintf(how, sizeof(how), ", exit status %lld", (long long)x->exit_code);
    const char *reason = x->reason[0] ? x->reason : "The attempt ended without a reason.";
    if (names_node && how[0] == '\0')
        snprintf(out, size, "%s", reason);
    else
        snprintf(out, size, "%s (%snode %s%s)", reason, who, a->node, how);
}

static int was_asked(const struct attempt_row *a, const char *code)
{
    return a->stop_code && strcmp(a->stop_code, code) == 0;
}

static void decide(struct verdict *ret, enum job_state to, const char *code, const char *reason)
{
    ret->to = to;
    ret->rest_us = 0;
    snprintf(ret->code, sizeof(ret->code), "%s", code);
    snprintf(ret->reason, sizeof(ret->reason), "%s", reason);
}

const char *ending_next(const struct job_row *job, char out[ENDING_NEXT_SIZE])
{
    if (job->checkpoint_step >= 0)
        snprintf(out, ENDING_NEXT_SIZE, "resumes at step %lld", (long long)job->checkpoint_step);
    else if (job_is_command(job))
        snprintf(out, ENDING_NEXT_SIZE, "runs its command from the beginning");
    else if (job->keep == 0)
        snprintf(out, ENDING_NEXT_SIZE,
                 "starts at step 0, since it takes no checkpoints (\"checkpoint\": false)");
    else
        snprintf(out, ENDING_NEXT_SIZE, "starts at step 0, since no checkpoint was taken");
    return out;
}

/* It ended as it was asked to, or of something that is no fault of its own. */
static void judge_asked(const struct attempt_row *a, const struct job_row *job, struct verdict *ret)
{
    char next[ENDING_NEXT_SIZE];
    const char *reason = a->stop_reason ? a->stop_reason : "Stopped by a request.";
    if (!was_asked(a, "suspended")) {
        decide(ret, JOB_CANCELLED, "cancelled", reason);
        return;
    }
    decide(ret, JOB_SUSPENDED, "suspended", "");
    snprintf(ret->reason, sizeof(ret->reason), "%s The next attempt %s.", reason,
             ending_next(job, next));
}

static void judge_never_ran(const struct ending *x, const struct job_row *job, const char *sentence,
                            struct verdict *ret)
{
    int64_t starts = job->failed_starts + 1;
    ret->failed_starts = starts;
    if (starts < ENDING_MAX_STARTS) {
        decide(ret, JOB_PENDING, "retrying", "");
        ret->rest_us = 1000000LL << (starts - 1);
        snprintf(ret->reason, sizeof(ret->reason),
                 "Start %lld of at most %d failed, trying again after %lld s: %s",
                 (long long)starts, ENDING_MAX_STARTS, (long long)(ret->rest_us / 1000000),
                 sentence);
    } else {
        decide(ret, JOB_FAILED, x->code, "");
        snprintf(ret->reason, sizeof(ret->reason), "%lld starts failed, the last one so: %s",
                 (long long)starts, sentence);
    }
}

static void judge_restart(const struct attempt_row *a, const struct job_row *job,
                          const char *sentence, struct verdict *ret)
{
    char next[ENDING_NEXT_SIZE];
    int64_t rest_s = job->restarts < 6 ? 1LL << job->restarts : ENDING_REST_MAX_S;
    decide(ret, JOB_PENDING, "restarting", "");
    ret->rest_us = rest_s * 1000000;
    ret->restarts = job->restarts + 1;
    snprintf(ret->reason, sizeof(ret->reason),
             "%s Attempt %lld of at most %lld comes after %lld s; it %s.", sentence,
             (long long)a->number + 1, (long long)(a->number + job->max_restarts - job->restarts),
             (long long)rest_s, ending_next(job, next));
}

/* Whoever reads why it failed is told that it need not have. */
static void judge_failed(const struct ending *x, const struct job_row *job, const char *sentence,
                         struct verdict *ret)
{
    char more[200] = "";
    if (x->retryable && job->max_restarts > 0)
        snprintf(more, sizeof(more),
                 " It was started again %lld times (\"max_restarts\"); a retry does so once more.",
                 (long long)job->restarts);
    else if (x->retryable)
        snprintf(more, sizeof(more), " Another attempt may succeed: a retry starts one.");
    decide(ret, JOB_FAILED, x->code, "");
    snprintf(ret->reason, sizeof(ret->reason), "%s%s", sentence, more);
}

/* Stopped for the sake of a device: whatever its ranks said of it, no fault of the job. */
static int blame_device(const struct ending *x, const struct attempt_row *a, struct ending *ret)
{
    if (!was_asked(a, "device_failed") && !was_asked(a, "device_lost"))
        return 0;
    if (x->outcome == OUTCOME_DONE || x->outcome == OUTCOME_TIME_LIMIT)
        return 0;
    *ret = (struct ending){.outcome = OUTCOME_SHIM_LOST,
                           .rank = -1,
                           .exit_code = -1,
                           .started_us = x->started_us,
                           .ended_us = x->ended_us,
                           .retryable = 1};
    snprintf(ret->code, sizeof(ret->code), "%s", a->stop_code);
    snprintf(ret->reason, sizeof(ret->reason), "%s", a->stop_reason ? a->stop_reason : "");
    return 1;
}

void ending_judge(const struct ending *x, const struct attempt_row *a, const struct job_row *job,
                  int ran, struct verdict *ret)
{
    char sentence[1200];
    struct ending device;
    if (blame_device(x, a, &device))
        x = &device;
    int infrastructure = x->outcome == OUTCOME_SPAWN_FAILED || x->outcome == OUTCOME_SHIM_LOST;
    int asked = was_asked(a, "cancelled") || was_asked(a, "suspended");
    ret->restarts = job->restarts;
    ret->failed_starts = ran ? 0 : job->failed_starts;
    describe(x, a, sentence, sizeof(sentence));
    if (x->outcome == OUTCOME_DONE)
        decide(ret, JOB_SUCCEEDED, "done", x->reason[0] ? x->reason : "All ranks finished.");
    else if (asked && (x->outcome == OUTCOME_STOPPED || infrastructure || x->retryable))
        judge_asked(a, job, ret);
    else if (infrastructure && !ran && x->retryable)
        judge_never_ran(x, job, sentence, ret);
    else if (x->outcome == OUTCOME_TIME_LIMIT)
        decide(ret, JOB_FAILED, "time_limit", sentence);
    else if (x->retryable && job->restarts < job->max_restarts)
        judge_restart(a, job, sentence, ret);
    else
        judge_failed(x, job, sentence, ret);
}
