/* Lines for the user, on a descriptor that may be anything. */
#ifndef SLURMCKPT_LINE_H
#define SLURMCKPT_LINE_H

#include <stddef.h>

/* Below PIPE_BUF: a pipe that poll() calls writable takes the line at once and in one piece. */
#define LINE_MAX_BYTES 4000

/* Text as exactly one line: control characters become '?', long text is cut. Returns its size; there is no NUL at the end. */
size_t make_line(char line[LINE_MAX_BYTES], const char *text);

/*
 * Writes text as make_line makes it. Never waits for more than a second for the reader, and leaves no SIGPIPE pending; a line that cannot
 * be written is lost. All signals must be blocked.
 */
void print_line(int fd, const char *text);

void print_format(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
