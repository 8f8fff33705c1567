/* Lines for the user, on a descriptor that may be anything. */
#ifndef SLURMCKPT_LINE_H
#define SLURMCKPT_LINE_H

/*
 * Writes text as exactly one line: control characters become '?', long text is cut. Never waits for more than a second for the
 * reader, and leaves no SIGPIPE pending; a line that cannot be written is lost. All signals must be blocked.
 */
void print_line(int fd, const char *text);

void print_format(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
