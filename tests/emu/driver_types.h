/* driver_types.h: what headers of CUDA's libraries include for cudaStream_t and its like. */
#include "emu_types.h"
