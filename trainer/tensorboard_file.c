/* tensorboard_file.c: records, checksums and the few protocol-buffer fields of a scalar. */
#include "trainer/tensorboard_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

/* ---- checksums ---- */

#define POLYNOMIAL 0x82f63b78u /* 0x1edc6f41, bits reversed */

static uint32_t table[256];

static void make_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = c & 1 ? c >> 1 ^ POLYNOMIAL : c >> 1;
        table[i] = c;
    }
}

uint32_t tensorboard_crc32c(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint32_t c = ~0u;
    if (!table[1])
        make_table();
    for (size_t i = 0; i < n; i++)
        c = c >> 8 ^ table[(c ^ p[i]) & 0xff];
    return ~c;
}

/* So that the checksum of data that holds its own checksum is no special case. */
static uint32_t masked(const void *bytes, size_t n)
{
    uint32_t c = tensorboard_crc32c(bytes, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

/* ---- protocol buffers ---- */

enum wire { WIRE_VARINT = 0, WIRE_64_BIT = 1, WIRE_BYTES = 2, WIRE_32_BIT = 5 };

static void add_little(struct buf *b, uint64_t value, int bytes)
{
    unsigned char raw[8];
    for (int i = 0; i < bytes; i++)
        raw[i] = (unsigned char)(value >> (8 * i));
    buf_add(b, raw, (size_t)bytes);
}

static void add_varint(struct buf *b, uint64_t value)
{
    unsigned char raw[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        raw[n++] = (unsigned char)(value | 0x80);
    raw[n++] = (unsigned char)value;
    buf_add(b, raw, n);
}

static void add_key(struct buf *b, unsigned field, enum wire wire)
{
    add_varint(b, field << 3 | (unsigned)wire);
}

static void add_bytes(struct buf *b, unsigned field, const void *bytes, size_t n)
{
    add_key(b, field, WIRE_BYTES);
    add_varint(b, n);
    buf_add(b, bytes, n);
}

static void add_double(struct buf *b, unsigned field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_key(b, field, WIRE_64_BIT);
    add_little(b, bits, 8);
}

static void add_float(struct buf *b, unsigned field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_key(b, field, WIRE_32_BIT);
    add_little(b, bits, 4);
}

/* ---- events ---- */

enum event_field { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5 };
enum summary_field { SUMMARY_VALUE = 1 };
enum value_field { VALUE_TAG = 1, VALUE_SIMPLE_VALUE = 2 };

static void add_record(struct buf *b, const struct buf *payload)
{
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)payload->len >> (8 * i));
    buf_add(b, length, sizeof length);
    add_little(b, masked(length, sizeof length), 4);
    buf_add(b, payload->data, payload->len);
    add_little(b, masked(payload->data, payload->len), 4);
}

static void add_version(struct tensorboard_file *f, int64_t wall_us)
{
    static const char version[] = "brain.Event:2";
    struct buf event = BUF_INIT;
    add_double(&event, EVENT_WALL_TIME, (double)wall_us * 1e-6);
    add_bytes(&event, EVENT_FILE_VERSION, version, sizeof version - 1);
    add_record(&f->records, &event);
    buf_done(&event);
}

void tensorboard_file_add(struct tensorboard_file *f, int64_t wall_us, int64_t step,
                          const struct tensorboard_scalar *scalars, int count)
{
    struct buf value = BUF_INIT, summary = BUF_INIT, event = BUF_INIT;
    for (int i = 0; i < count; i++) {
        buf_clear(&value);
        add_bytes(&value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        add_float(&value, VALUE_SIMPLE_VALUE, (float)scalars[i].value);
        add_bytes(&summary, SUMMARY_VALUE, value.data, value.len);
    }
    add_double(&event, EVENT_WALL_TIME, (double)wall_us * 1e-6);
    add_key(&event, EVENT_STEP, WIRE_VARINT);
    add_varint(&event, (uint64_t)step);
    add_bytes(&event, EVENT_SUMMARY, summary.data ? summary.data : "", summary.len);
    add_record(&f->records, &event);
    buf_done(&value);
    buf_done(&summary);
    buf_done(&event);
}

/* ---- the file ---- */

int tensorboard_file_open(struct tensorboard_file *f, const char *name, int64_t wall_us,
                          struct err *e)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return err_errno(e, "cannot create the event file %s", name);
    *f = (struct tensorboard_file){.fd = fd, .name = mem_strdup(name)};
    add_version(f, wall_us);
    return tensorboard_file_flush(f, e);
}

int tensorboard_file_flush(struct tensorboard_file *f, struct err *e)
{
    while (f->records.len > 0) {
        ssize_t n = write(f->fd, f->records.data, f->records.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, "cannot write to the event file %s", f->name);
        buf_drop(&f->records, (size_t)n);
    }
    return 0;
}

void tensorboard_file_close(struct tensorboard_file *f)
{
    if (f->name)
        close(f->fd);
    free(f->name);
    buf_done(&f->records);
    *f = (struct tensorboard_file){0};
}
