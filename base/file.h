/* file.h: files written whole or not at all, and paths that cannot leave their root. */
#ifndef TRAINYARD_BASE_FILE_H
#define TRAINYARD_BASE_FILE_H

#include <jansson.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"

/* Reads at most `max` bytes; ERR_TOO_LARGE if the file has more, ERR_NOT_FOUND if absent. */
int file_read(const char *path, size_t max, struct buf *ret, struct err *e);

/* Temporary name beside it, fsync, rename, fsync of the directory: after a crash the file is
 * the old one or the new one, never half of one. */
int file_write_atomic(const char *path, const void *bytes, size_t n, mode_t mode, struct err *e);
int file_write_json(const char *path, const json_t *doc, mode_t mode, struct err *e);
int file_read_json(const char *path, size_t max, json_t **ret, struct err *e);

/* Opens `relative` beneath the directory `root_fd` (openat2 with RESOLVE_BENEATH and
 * RESOLVE_NO_MAGICLINKS): no "..", absolute path or symlink leads outside. fd in *ret. */
int file_open_beneath(int root_fd, const char *relative, int flags, mode_t mode, int *ret,
                      struct err *e);

/* mkdir -p with `mode` for each new directory. */
int file_mkdirs(const char *path, mode_t mode, struct err *e);

/* Deletes a directory and all below it, never following symlinks. Missing is success. */
int file_remove_tree(const char *path, struct err *e);
int file_remove_at(int dir_fd, const char *name, struct err *e); /* `name` in that directory */

/* 1 if this errno of an open says that we are out of descriptors or memory: nothing is known of the
 * file, and the same call may succeed later. */
int file_is_short(int errno_value);

#endif
