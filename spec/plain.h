/* plain.h: a reader of the JSON that nearly all documents are made of, beside Jansson's. */
#ifndef TRAINYARD_SPEC_PLAIN_H
#define TRAINYARD_SPEC_PLAIN_H

#include <jansson.h>
#include <stddef.h>

/* The document, an object or an array, as json_loadb(text, n, JSON_REJECT_DUPLICATES) gives it; or
 * NULL if it is not plain (an escape, a long number) or not right: Jansson then has the word. It
 * recurses as deep as the text nests, so the caller bounds the depth first. */
json_t *plain_read(const char *text, size_t n);

#endif
