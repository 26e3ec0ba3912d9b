/* backend.cu: the backend of trainyard-trainer-cuda. */
#include "trainer/cuda/comm_nccl.h"
#include "trainer/cuda/ops_cuda.h"

extern "C" const struct backend backend = {DEVICE_GPU, &ops_cuda, comm_nccl_open,
                                           comm_nccl_foretold};
