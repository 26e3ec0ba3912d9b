/* ending.c: an exit record to a verdict on the job.
 *
 *   done                                         -> succeeded, also when a stop was asked for
 *   stopped or shim_terminated, and a cancel     -> cancelled
 *   an attempt that never ran, and a cancel      -> cancelled
 *   spawn_failed or shim_lost before any rank ran,
 *   retryable                                    -> pending, started again after 1, 2, 4 s:
 *                                                   ENDING_MAX_STARTS starts in all
 *   everything else                              -> failed, with the record's code and sentence
 */
#include "daemon/coordinator/ending.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

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

static int was_cancelled(const struct attempt_row *a)
{
    return a->stop_code && strcmp(a->stop_code, "cancelled") == 0;
}

/* An agent whose disk is full ends a shim by SIGTERM. */
static int was_stopped(const struct ending *x)
{
    return x->outcome == OUTCOME_STOPPED ||
           (x->outcome == OUTCOME_FAILED && strcmp(x->code, "shim_terminated") == 0);
}

static void decide(struct verdict *ret, enum job_state to, const char *code, const char *reason)
{
    ret->to = to;
    ret->rest_us = 0;
    snprintf(ret->code, sizeof(ret->code), "%s", code);
    snprintf(ret->reason, sizeof(ret->reason), "%s", reason);
}

static void judge_never_ran(const struct ending *x, const struct attempt_row *a,
                            const char *sentence, struct verdict *ret)
{
    if (was_cancelled(a)) {
        decide(ret, JOB_CANCELLED, "cancelled", a->stop_reason ? a->stop_reason : "Cancelled.");
    } else if (a->number < ENDING_MAX_STARTS) {
        decide(ret, JOB_PENDING, "retrying", "");
        ret->rest_us = 1000000LL << (a->number - 1);
        snprintf(ret->reason, sizeof(ret->reason),
                 "Start %lld of at most %d failed, trying again after %lld s: %s",
                 (long long)a->number, ENDING_MAX_STARTS, (long long)(ret->rest_us / 1000000),
                 sentence);
    } else {
        decide(ret, JOB_FAILED, x->code, "");
        snprintf(ret->reason, sizeof(ret->reason), "%lld starts failed, the last one so: %s",
                 (long long)a->number, sentence);
    }
}

/* Whoever reads why it failed is told that it need not have. */
static void judge_failed(const struct ending *x, const char *sentence, struct verdict *ret)
{
    decide(ret, JOB_FAILED, x->code, "");
    snprintf(ret->reason, sizeof(ret->reason), "%s%s", sentence,
             x->retryable ? " Another attempt may succeed, but a job that has run is not started "
                            "again by itself: submit it again."
                          : "");
}

void ending_judge(const struct ending *x, const struct attempt_row *a, int ran, struct verdict *ret)
{
    char sentence[1200];
    int infrastructure = x->outcome == OUTCOME_SPAWN_FAILED || x->outcome == OUTCOME_SHIM_LOST;
    describe(x, a, sentence, sizeof(sentence));
    if (x->outcome == OUTCOME_DONE)
        decide(ret, JOB_SUCCEEDED, "done", x->reason[0] ? x->reason : "All ranks finished.");
    else if (infrastructure && !ran && x->retryable)
        judge_never_ran(x, a, sentence, ret);
    else if (was_cancelled(a) && (was_stopped(x) || infrastructure))
        decide(ret, JOB_CANCELLED, "cancelled", a->stop_reason ? a->stop_reason : "Cancelled.");
    else if (x->outcome == OUTCOME_TIME_LIMIT)
        decide(ret, JOB_FAILED, "time_limit", sentence);
    else
        judge_failed(x, sentence, ret);
}
