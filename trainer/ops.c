/* ops.c: what users of all backends say alike. */
#include "trainer/ops.h"

#include "base/err.h"

int ops_no_memory(const struct ops *o, size_t bytes, const char *what, struct err *e)
{
    return err_set(e, ERR_NO_MEMORY, "The %s device has no %zu bytes left for %s.", o->name, bytes,
                   what);
}
