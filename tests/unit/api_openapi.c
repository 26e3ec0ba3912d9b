/* api_openapi.c: openapi.json and the endpoint table say the same: every route is in the document
 * with its parameters, body and credential, and the document has nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/routes.h"
#include "base/mem.h"

static json_t *doc;

static int load(void **state)
{
    (void)state;
    json_error_t e;
    doc = json_loadb(OPENAPI_TEXT, (size_t)(OPENAPI_TEXT_END - OPENAPI_TEXT),
                     JSON_REJECT_DUPLICATES, &e);
    if (!doc)
        print_error("openapi.json, line %d: %s\n", e.line, e.text);
    return doc ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    json_decref(doc);
    return 0;
}

/* A reference within the document, followed; anything else as it is. */
static const json_t *follow(const json_t *o)
{
    const char *ref = json_string_value(json_object_get(o, "$ref"));
    if (!ref)
        return o;
    const json_t *at = doc;
    if (strncmp(ref, "#/", 2) != 0)
        fail_msg("%s leads outside the document", ref);
    CLEANUP(mem_freep) char *copy = mem_strdup(ref + 2);
    char *rest = copy;
    for (char *part; at && (part = strsep(&rest, "/"));)
        at = json_object_get(at, part);
    if (!at)
        fail_msg("%s leads nowhere", ref);
    return at;
}

static const json_t *operation_of(const struct route *route)
{
    const char *pattern = strcmp(route->pattern, "/*") == 0 ? "/" : route->pattern;
    const json_t *path = json_object_get(json_object_get(doc, "paths"), pattern);
    const char *method = strcmp(route->method, "GET") == 0 ? "get" : "post";
    const json_t *o = json_object_get(path, method);
    if (!o)
        fail_msg("%s %s is not in openapi.json", route->method, pattern);
    return o;
}

static void every_route_is_described(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        const json_t *o = operation_of(&ROUTES[i]);
        assert_true(strlen(json_string_value(json_object_get(o, "summary"))) > 5);
        assert_non_null(json_object_get(json_object_get(o, "responses"), "default"));
    }
}

static void everything_described_is_a_route(void **state)
{
    (void)state;
    const char *pattern;
    json_t *path;
    size_t operations = 0;
    json_object_foreach(json_object_get(doc, "paths"), pattern, path)
    {
        const char *method;
        json_t *o;
        json_object_foreach(path, method, o)
        {
            if (strcmp(method, "parameters") == 0)
                continue;
            int found = 0;
            for (size_t i = 0; i < ROUTE_COUNT; i++)
                found |= operation_of(&ROUTES[i]) == o;
            if (!found)
                fail_msg("%s %s is described, but there is no such route", method, pattern);
            operations++;
        }
    }
    assert_int_equal(operations, ROUTE_COUNT);
}

/* The names of the parameters that are `in`, each with a space behind it, in order. */
static char *names_in(const json_t *list, const char *in)
{
    struct buf b = BUF_INIT;
    size_t i;
    json_t *p;
    buf_adds(&b, "");
    json_array_foreach(list, i, p)
    {
        const json_t *q = follow(p);
        assert_non_null(json_object_get(q, "description"));
        assert_non_null(json_object_get(q, "schema"));
        if (strcmp(json_string_value(json_object_get(q, "in")), in) == 0)
            buf_addf(&b, "%s ", json_string_value(json_object_get(q, "name")));
    }
    return buf_steal(&b);
}

static void parameters_agree(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        const json_t *list = json_object_get(operation_of(&ROUTES[i]), "parameters");
        CLEANUP(mem_freep) char *said = names_in(list, "query");
        CLEANUP(mem_freep)
        char *taken = mem_printf("%s%s", ROUTES[i].params ? ROUTES[i].params : "",
                                 ROUTES[i].params && *ROUTES[i].params ? " " : "");
        assert_string_equal(said, taken);
    }
}

static void path_parameters_are_described(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        const char *pattern = ROUTES[i].pattern;
        struct buf wanted = BUF_INIT;
        buf_adds(&wanted, "");
        for (const char *p = strchr(pattern, '{'); p; p = strchr(p + 1, '{'))
            buf_addf(&wanted, "%.*s ", (int)strcspn(p + 1, "}"), p + 1);
        const json_t *path = json_object_get(json_object_get(doc, "paths"), pattern);
        CLEANUP(mem_freep) char *said = names_in(json_object_get(path, "parameters"), "path");
        assert_string_equal(said, wanted.data);
        buf_done(&wanted);
    }
}

static void bodies_agree(void **state)
{
    (void)state;
    static const char *const types[] = {[BODY_NONE] = NULL,
                                        [BODY_JSON] = "application/json",
                                        [BODY_OPTIONAL_JSON] = "application/json",
                                        [BODY_BYTES] = "application/octet-stream"};
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        const json_t *body = json_object_get(operation_of(&ROUTES[i]), "requestBody");
        const char *type = types[ROUTES[i].body];
        assert_int_equal(body != NULL, type != NULL);
        if (!type)
            continue;
        assert_non_null(json_object_get(json_object_get(body, "content"), type));
        assert_int_equal(json_is_true(json_object_get(body, "required")),
                         ROUTES[i].body != BODY_OPTIONAL_JSON);
    }
}

static void credentials_agree(void **state)
{
    (void)state;
    static const char *const schemes[] = {
        [ROLE_OPEN] = NULL, [ROLE_USER] = "userToken", [ROLE_AGENT] = "agentToken"};
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        const json_t *list = json_object_get(operation_of(&ROUTES[i]), "security");
        const char *scheme = schemes[ROUTES[i].role];
        assert_true(json_is_array(list));
        assert_int_equal(json_array_size(list), scheme ? 2 : 0);
        if (scheme)
            assert_non_null(json_object_get(json_array_get(list, 1), scheme));
    }
}

static void check_references(const json_t *v)
{
    const char *key;
    size_t i;
    json_t *item;
    follow(v);
    if (json_is_object(v))
        json_object_foreach((json_t *)(uintptr_t)v, key, item) check_references(item);
    else
        json_array_foreach(v, i, item) check_references(item);
}

static void references_lead_somewhere(void **state)
{
    (void)state;
    check_references(doc);
}

static void what_is_required_is_described(void **state)
{
    (void)state;
    const char *name;
    json_t *schema;
    json_object_foreach(json_object_get(json_object_get(doc, "components"), "schemas"), name,
                        schema)
    {
        size_t i;
        json_t *key;
        json_array_foreach(json_object_get(schema, "required"), i,
                           key) if (!json_object_get(json_object_get(schema, "properties"),
                                                     json_string_value(key)))
            fail_msg("%s requires %s, which it does not describe", name, json_string_value(key));
    }
}

static void operation_ids_are_unique(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROUTE_COUNT; i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(
                json_string_value(json_object_get(operation_of(&ROUTES[i]), "operationId")),
                json_string_value(json_object_get(operation_of(&ROUTES[j]), "operationId")));
}

static void the_version_is_ours(void **state)
{
    (void)state;
    assert_string_equal(json_string_value(json_object_get(doc, "openapi")), "3.1.0");
    assert_string_equal(json_string_value(json_object_get(json_object_get(doc, "info"), "version")),
                        TRAINYARD_VERSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_route_is_described),
        cmocka_unit_test(everything_described_is_a_route),
        cmocka_unit_test(parameters_agree),
        cmocka_unit_test(path_parameters_are_described),
        cmocka_unit_test(bodies_agree),
        cmocka_unit_test(credentials_agree),
        cmocka_unit_test(references_lead_somewhere),
        cmocka_unit_test(what_is_required_is_described),
        cmocka_unit_test(operation_ids_are_unique),
        cmocka_unit_test(the_version_is_ours),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
