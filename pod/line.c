#include "line.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "signals.h"

#define LINE_PATIENCE_MS 1000

static size_t clean_copy(char *out, size_t room, const char *text)
{
	const unsigned char *in = (const unsigned char *)text;
	size_t size = 0;

	for (; *in && size < room; in++) {
		unsigned char byte = *in;
		/* C1 control characters are U+0080 to U+009F, in UTF-8 C2 80 to C2 9F */
		int c1 = byte == 0xc2 && in[1] >= 0x80 && in[1] <= 0x9f;

		if (byte < 0x20 || byte == 0x7f || c1)
			byte = '?';
		if (c1)
			in++;
		out[size++] = (char)byte;
	}
	return size;
}

size_t make_line(char line[LINE_MAX_BYTES], const char *text)
{
	size_t size = clean_copy(line, LINE_MAX_BYTES - 1, text);

	line[size++] = '\n';
	return size;
}

void print_line(int fd, const char *text)
{
	struct pollfd wait = {.fd = fd, .events = POLLOUT};
	char line[LINE_MAX_BYTES];
	int had_sigpipe = signals_pending(SIGPIPE);
	size_t size = make_line(line, text);

	if (fd >= 0 && poll(&wait, 1, LINE_PATIENCE_MS) == 1 && (wait.revents & POLLOUT) && write(fd, line, size) < 0 &&
	    errno == EPIPE && !had_sigpipe)
		signals_discard(SIGPIPE);
}

void print_format(int fd, const char *format, ...)
{
	char text[LINE_MAX_BYTES];
	va_list values;

	va_start(values, format);
	vsnprintf(text, sizeof(text), format, values);
	va_end(values);
	print_line(fd, text);
}
