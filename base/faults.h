/* faults.h: every fault of a document, collected, so that one answer can name them all.
 *
 * A fault points into the document with a JSON pointer (RFC 6901), has a short stable code for
 * programs, a message for people, and a hint: the nearest thing that would work.
 */
#ifndef TRAINYARD_BASE_FAULTS_H
#define TRAINYARD_BASE_FAULTS_H

#include <jansson.h>
#include <stddef.h>

#define FAULTS_MAX 64 /* more faults than this are counted, not kept; the last one kept says so */

struct fault {
    char *pointer; /* "/fit/batch_size" */
    char *code;    /* "required", "wrong_type", "out_of_range", "unknown_field", ... */
    char *message; /* one sentence */
    char *hint;    /* one sentence, or NULL */
};

struct faults {
    struct fault *items;
    size_t count; /* kept */
    size_t total; /* found */
};

void faults_init(struct faults *f);
void faults_done(struct faults *f); /* frees; safe on an initialised or zeroed struct */

/* Adds a fault; `message` and `hint` are printf formats joined in one call by callers that need
 * values: format the hint beforehand. `hint` may be NULL. Always returns ERR_INVALID. */
int faults_add(struct faults *f, const char *pointer, const char *code, const char *hint,
               const char *message, ...) __attribute__((format(printf, 5, 6)));

/* [{"pointer","code","message","hint"?}, ...]; a new reference. */
json_t *faults_to_json(const struct faults *f);

#endif
