/* log.h: one key=value line per event on stderr, with the journal's <N> priority in front when
 * stderr is the journal. Only programs log; rooms below daemon return errors instead. */
#ifndef TRAINYARD_BASE_LOG_H
#define TRAINYARD_BASE_LOG_H

enum log_level {
    LOG_LEVEL_ERROR = 3,
    LOG_LEVEL_WARNING = 4,
    LOG_LEVEL_INFO = 6,
    LOG_LEVEL_DEBUG = 7
};

/* `program` is printed in each line; lines above `max` are dropped (default INFO). */
void log_setup(const char *program, enum log_level max);

/* log_event(LOG_LEVEL_INFO, "job_finished", "job=%s state=%s", id, state): the format is
 * key=value pairs; a value with spaces must be quoted by the caller with %s of log_quote().
 * Control characters in the formatted text are printed as \xNN, so that no value can forge a line.
 */
void log_event(enum log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Quotes into one of eight rotating static buffers (truncated at 500 bytes). */
const char *log_quote(const char *value);

#endif
