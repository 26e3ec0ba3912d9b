/* openapi.c: openapi.json inside the program, so that what is served is what was built.
 *
 * The assembler reads the file relative to the repository root, where the compiler runs. */
#include "api/handlers.h"

__asm__(".section .rodata\n"
        ".global OPENAPI_TEXT\n"
        ".global OPENAPI_TEXT_END\n"
        "OPENAPI_TEXT:\n"
        ".incbin \"api/openapi.json\"\n"
        "OPENAPI_TEXT_END:\n"
        ".byte 0\n"
        ".previous\n");
