#include "spec/field_err.h"

int field_first_fault(const struct faults *f, const char *what, struct err *e)
{
    if (f->total == 0)
        return 0;
    const struct fault *first = &f->items[0];
    if (!first->pointer[0])
        return err_set(e, ERR_INVALID, "%s: %s", what, first->message);
    return err_set(e, ERR_INVALID, "%s, %s: %s", what, first->pointer, first->message);
}
