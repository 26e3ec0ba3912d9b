#include "cli/problem.h"

#include <string.h>

#include "cli/text.h"

static void add_text(struct buf *out, const json_t *doc, const char *key)
{
    const json_t *v = json_object_get(doc, key);
    if (json_is_string(v))
        text_escape(out, json_string_value(v), json_string_length(v), TEXT_LINE);
}

static int has_text(const json_t *doc, const char *key)
{
    return json_string_length(json_object_get(doc, key)) > 0;
}

static void print_fault(const json_t *fault, struct buf *out)
{
    buf_adds(out, "  ");
    if (has_text(fault, "pointer")) {
        add_text(out, fault, "pointer");
        buf_adds(out, ": ");
    }
    add_text(out, fault, has_text(fault, "message") ? "message" : "code");
    if (has_text(fault, "hint")) {
        buf_adds(out, " (");
        add_text(out, fault, "hint");
        buf_adds(out, ")");
    }
    buf_adds(out, "\n");
}

void problem_faults(const json_t *faults, struct buf *out)
{
    size_t i;
    json_t *fault;
    json_array_foreach((json_t *)faults, i, fault)
    {
        print_fault(fault, out);
    }
}

static void print_other(const struct http_reply *r, struct buf *out)
{
    size_t n = r->body.len < 200 ? r->body.len : 200;
    buf_addf(out, "the server answered HTTP %d", r->status);
    if (n > 0 && !strstr(r->content_type, "html")) {
        buf_adds(out, ": ");
        text_escape(out, r->body.data, n, TEXT_LINE);
    }
    buf_adds(out, "\n");
}

void problem_print(const struct http_reply *r, struct buf *out)
{
    const char *key = has_text(r->doc, "detail") ? "detail" : "title";
    if (!has_text(r->doc, key)) {
        print_other(r, out);
        return;
    }
    add_text(out, r->doc, key);
    buf_adds(out, "\n");
    problem_faults(json_object_get(r->doc, "errors"), out);
    if (r->retry_after_s > 0)
        buf_addf(out, "  try again in %d s\n", r->retry_after_s);
    if (r->status >= 500 && has_text(r->doc, "request_id")) {
        buf_adds(out, "  request ");
        add_text(out, r->doc, "request_id");
        buf_adds(out, "\n");
    }
}
