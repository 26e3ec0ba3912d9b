/* trainer.h: the trainer's C headers, for the C++ that CUDA is. Standard headers come first, whose
 * templates may not stand within extern "C". */
#ifndef TRAINYARD_TRAINER_CUDA_TRAINER_H
#define TRAINYARD_TRAINER_CUDA_TRAINER_H

#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include <jansson.h>

extern "C" {
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "spec/launch.h"
#include "trainer/comm.h"
#include "trainer/elem.h"
#include "trainer/ops.h"
#include "trainer/random.h"
}

#endif
