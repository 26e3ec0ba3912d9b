/* device_parts.h: the device's own state, for device*.cu, tape.cu and ops_device.cu. */
#ifndef TRAINYARD_TRAINER_CUDA_DEVICE_PARTS_H
#define TRAINYARD_TRAINER_CUDA_DEVICE_PARTS_H

#include "trainer/cuda/device.h"

/* Pageable memory travels through two pinned buffers of so many bytes. */
#define DEVICE_STAGING ((size_t)4 << 20)

/* Of cuBLASLt: what the library's own documentation gives for Hopper; more is of no use. */
#define DEVICE_BLAS_WORKSPACE ((size_t)32 << 20)

struct device_staging {
    void *host; /* [DEVICE_STAGING], pinned */
    cudaEvent_t done;
    int is_busy; /* until `done` has happened */
};

/* What is to come to pinned memory with the next wait. */
#define DEVICE_FETCHES 4
struct device_fetch {
    void *host;
    const void *from;
    size_t bytes;
};

struct device_state {
    int is_open;
    struct ops_options options;
    struct device_traits traits;
    cudaStream_t compute, beside; /* beside: copies that do not wait for compute */
    cudaEvent_t ready;            /* whatever is waited for next */
    cudaEvent_t joined;           /* the compute stream's place at the last join_uploads() */
    cudaEvent_t uploaded;         /* the uploads' place */
    int is_asked;                 /* of the compute stream, since it was last waited for */
    int64_t waits;                /* that the host has made */
    int is_uploading;             /* since the last join */
    int uploads_unknown;          /* not waited for since */
    struct device_staging staging[2];
    int next_staging;
    struct device_fetch fetches[DEVICE_FETCHES];
    int fetch_count;
    cublasLtHandle_t blas;
    void *blas_workspace;
    uint16_t *operands[2]; /* [operand_room] each, where products round them; NULL */
    unsigned char *scratch;
    size_t scratch_used;
    device_poll *poll;
    void *poll_context;

    struct err failure; /* code 0: none */
    struct err *trial;  /* where failures go instead while something is only tried */
};
extern struct device_state device;

/* Which GPU this is: exactly one is visible, and it takes us. Fills device.traits. */
int device_take(struct err *e);

/* ---- memory, device_memory.cu ---- */

/* Streams are there. Takes scratch, staging and the workspace of cuBLASLt. */
int device_memory_open(struct err *e);
void device_memory_close(void);
/* Elements of each of device.operands; 0 where products take float32. */
size_t device_operand_room(const struct ops_options *o);
int device_is_pinned(const void *p); /* of alloc_host() */
void *device_alloc_host(size_t bytes);
void device_release_host(void *p);

/* ---- waiting and failing ---- */

/* Issues what is recorded, and what is to be fetched after it. */
void device_issue(void);
/* Until all that has been issued to `s` is done. */
void device_wait_stream(cudaStream_t s);
/* Between the two, failures are left in `e` and are not the device's; nested never. */
void device_try(struct err *e);
void device_tried(void);

/* ---- the tape, for sentences ---- */

/* "adam_step, gemm": what has been issued since the device was last known to be well; "" for
 * nothing. */
const char *tape_issued_names(void);
void tape_issued_well(void);

#endif
