#include "base/faults.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

void faults_init(struct faults *f)
{
    *f = (struct faults){0};
}

void faults_done(struct faults *f)
{
    for (size_t i = 0; i < f->count; i++) {
        free(f->items[i].pointer);
        free(f->items[i].code);
        free(f->items[i].message);
        free(f->items[i].hint);
    }
    free(f->items);
    faults_init(f);
}

int faults_add(struct faults *f, const char *pointer, const char *code, const char *hint,
               const char *message, ...)
{
    f->total++;
    if (f->count == FAULTS_MAX)
        return ERR_INVALID;
    if (!f->items)
        f->items = mem_zalloc(FAULTS_MAX * sizeof *f->items);
    char text[1024];
    va_list ap;
    va_start(ap, message);
    vsnprintf(text, sizeof text, message, ap);
    va_end(ap);
    f->items[f->count++] = (struct fault){
        .pointer = mem_strdup(pointer),
        .code = mem_strdup(code),
        .message = mem_strdup(text),
        .hint = hint ? mem_strdup(hint) : NULL,
    };
    return ERR_INVALID;
}

static json_t *fault_to_json(const struct fault *fault)
{
    json_t *o = json_pack("{s:s, s:s, s:s}", "pointer", fault->pointer, "code", fault->code,
                          "message", fault->message);
    if (!o)
        return json_pack("{s:s}", "code", "unprintable");
    if (fault->hint)
        json_object_set_new(o, "hint", json_string(fault->hint));
    return o;
}

json_t *faults_to_json(const struct faults *f)
{
    json_t *list = json_array();
    for (size_t i = 0; i < f->count; i++)
        json_array_append_new(list, fault_to_json(&f->items[i]));
    if (f->total > f->count) {
        json_t *more = json_pack(
            "{s:s, s:s, s:o}", "pointer", "", "code", "more_faults", "message",
            json_sprintf("%zu more faults are not listed; mend these first.", f->total - f->count));
        json_array_append_new(list, more);
    }
    return list;
}
