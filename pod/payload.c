#include "payload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memfd.h"
#include "number.h"

/* ---- writing ---- */

static void write_limit(FILE *out, int resource)
{
	struct rlimit limit;
	char soft[24] = "inf", hard[24] = "inf";

	if (getrlimit((__rlimit_resource_t)resource, &limit))
		return;
	if (limit.rlim_cur != RLIM_INFINITY)
		snprintf(soft, sizeof(soft), "%llu", (unsigned long long)limit.rlim_cur);
	if (limit.rlim_max != RLIM_INFINITY)
		snprintf(hard, sizeof(hard), "%llu", (unsigned long long)limit.rlim_max);
	fprintf(out, "rlimit.%d=%s:%s%c", resource, soft, hard, 0);
}

static void write_affinity(FILE *out)
{
	unsigned char mask[PAYLOAD_MAX_AFFINITY] = {0};
	long size = syscall(SYS_sched_getaffinity, 0, sizeof(mask), mask);

	while (size > 1 && !mask[size - 1])
		size--;
	if (size > 0) {
		fputs("affinity=", out);
		while (size--)
			fprintf(out, "%02x", mask[size]);
		fputc(0, out);
	}
}

static void write_strings(FILE *out, char **strings)
{
	for (; *strings; strings++)
		fwrite(*strings, strlen(*strings) + 1, 1, out);
}

static size_t count_strings(char **strings)
{
	size_t count = 0;

	while (strings[count])
		count++;
	return count;
}

static void write_numbers(FILE *out, const char *key, const int *numbers, size_t count)
{
	fprintf(out, "%s=", key);
	for (size_t i = 0; i < count; i++)
		fprintf(out, "%s%d", i ? "," : "", numbers[i]);
	fputc(0, out);
}

static void write_header(FILE *out, const struct payload_source *source, const char *cwd)
{
	mode_t mask = umask(0);

	umask(mask);
	fprintf(out, "v=1%cargc=%zu%cenvc=%zu%ccwd=%s%cumask=%03o%c", 0, count_strings(source->argv), 0, count_strings(source->envp), 0,
		cwd, 0, (unsigned int)mask, 0);
	write_numbers(out, "fds", source->fds, source->fd_count);
	write_numbers(out, "relays", source->relays, source->relay_count);
	fprintf(out, "nice=%d%csigign=%llx%csigmask=%llx%c", getpriority(PRIO_PROCESS, 0), 0, (unsigned long long)source->ignored, 0,
		(unsigned long long)source->blocked, 0);
	write_affinity(out);
	for (int resource = 0; resource < RLIM_NLIMITS; resource++)
		write_limit(out, resource);
	fputc(0, out);
}

int payload_write(const struct payload_source *source, struct reason *reason)
{
	char cwd[PATH_MAX];
	char *bytes = NULL;
	size_t size = 0;
	FILE *out = NULL;
	int fd = -1, failed;

	/* glibc would look for a name by itself where the kernel gives "(unreachable)..." */
	if (syscall(SYS_getcwd, cwd, sizeof(cwd)) < 0 || cwd[0] != '/') {
		refuse(reason, "the working directory cannot be named: %s", cwd[0] == '(' ? "it is unreachable" : strerror(errno));
		goto out;
	}
	out = open_memstream(&bytes, &size);
	if (!out) {
		refuse(reason, "out of memory");
		goto out;
	}
	write_header(out, source, cwd);
	write_strings(out, source->argv);
	write_strings(out, source->envp);
	failed = ferror(out);
	if (fclose(out) || failed)
		refuse(reason, "out of memory");
	else if (size > PAYLOAD_MAX_BYTES)
		refuse(reason, "arguments and environment have %zu bytes, at most %d are possible", size, PAYLOAD_MAX_BYTES);
	else
		fd = memfd_with("payload", bytes, size, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL, reason);
out:
	free(bytes);
	return fd;
}

/* ---- reading ---- */

static int parse_fds(const char *text, struct payload *payload, struct reason *reason)
{
	uint64_t number;

	while (*text) {
		if (payload->fd_count == PAYLOAD_MAX_FDS)
			return refuse(reason, "payload: more than %d descriptors", PAYLOAD_MAX_FDS);
		if (!parse_list_item(&text, ',', INT_MAX, &number))
			return refuse(reason, "payload: fds= is not a list of numbers");
		payload->fds[payload->fd_count++] = (int)number;
	}
	return 0;
}

static int parse_affinity(const char *text, struct payload *payload, struct reason *reason)
{
	size_t digits = strlen(text);

	if (digits == 0 || digits > 2 * PAYLOAD_MAX_AFFINITY)
		return refuse(reason, "payload: affinity= has %zu digits, accepted are 1 to %d", digits, 2 * PAYLOAD_MAX_AFFINITY);
	for (size_t i = 0; i < digits; i++) {
		char digit[2] = {text[digits - 1 - i], '\0'};
		uint64_t value;

		if (!parse_number(digit, 16, 15, &value))
			return refuse(reason, "payload: affinity= is not a hexadecimal mask");
		payload->affinity[i / 2] |= (unsigned char)(value << (i % 2 ? 4 : 0));
	}
	payload->affinity_size = (digits + 1) / 2;
	return 0;
}

static bool parse_limit_value(const char *text, rlim_t *limit)
{
	uint64_t value = RLIM_INFINITY;
	bool good = !strcmp(text, "inf") || parse_number(text, 10, UINT64_MAX, &value);

	*limit = value;
	return good;
}

/* text is "<number>=soft:hard" */
static int parse_limit(char *text, struct payload *payload, struct reason *reason)
{
	char *equals = strchr(text, '='), *colon = equals ? strchr(equals, ':') : NULL;
	struct rlimit limit;
	uint64_t resource;

	if (!colon)
		return refuse(reason, "payload: a limit is not <number>=soft:hard");
	*equals = *colon = '\0';
	if (!parse_number(text, 10, INT_MAX, &resource) || !parse_limit_value(equals + 1, &limit.rlim_cur) ||
	    !parse_limit_value(colon + 1, &limit.rlim_max))
		return refuse(reason, "payload: a limit is not <number>=soft:hard");
	/* a newer kernel's limits, unknown here, stay as they are */
	if (resource < RLIM_NLIMITS) {
		payload->has_limit[resource] = true;
		payload->limits[resource] = limit;
	}
	return 0;
}

static int parse_nice(const char *text, struct payload *payload, struct reason *reason)
{
	bool negative = text[0] == '-';
	uint64_t value;

	if (!parse_number(text + negative, 10, 20, &value))
		return refuse(reason, "payload: nice= is not a number from -20 to 20");
	payload->has_nice = true;
	payload->nice = negative ? -(int)value : (int)value;
	return 0;
}

struct header {
	bool version, has_fds, has_umask;
	bool has_argc, has_envc;
	uint64_t argc, envc;
};

/* text is one "key=value" of the header; unknown keys are skipped */
static int parse_header_line(char *text, struct header *header, struct payload *payload, struct reason *reason)
{
	char *value = strchr(text, '=');
	uint64_t number = 0;
	int result = 0;

	if (!value)
		return refuse(reason, "payload: a header line has no '='");
	if (!strncmp(text, "rlimit.", 7))
		return parse_limit(text + 7, payload, reason);
	*value++ = '\0';
	if (!strcmp(text, "v")) {
		header->version = !strcmp(value, "1");
		if (!header->version)
			result = refuse(reason, "payload: only version 1 is known");
	} else if (!strcmp(text, "argc")) {
		header->has_argc = parse_number(value, 10, PAYLOAD_MAX_BYTES, &header->argc);
	} else if (!strcmp(text, "envc")) {
		header->has_envc = parse_number(value, 10, PAYLOAD_MAX_BYTES, &header->envc);
	} else if (!strcmp(text, "cwd")) {
		payload->cwd = value;
	} else if (!strcmp(text, "umask")) {
		header->has_umask = parse_number(value, 8, 0777, &number);
		payload->umask = (mode_t)number;
	} else if (!strcmp(text, "fds")) {
		header->has_fds = true;
		payload->fd_count = 0;
		result = parse_fds(value, payload, reason);
	} else if (!strcmp(text, "nice")) {
		result = parse_nice(value, payload, reason);
	} else if (!strcmp(text, "affinity")) {
		memset(payload->affinity, 0, sizeof(payload->affinity));
		result = parse_affinity(value, payload, reason);
	} else if (!strcmp(text, "sigign")) {
		if (!parse_number(value, 16, UINT64_MAX, &payload->ignored))
			result = refuse(reason, "payload: sigign= is not a hexadecimal mask");
	} else if (!strcmp(text, "sigmask")) {
		if (!parse_number(value, 16, UINT64_MAX, &payload->blocked))
			result = refuse(reason, "payload: sigmask= is not a hexadecimal mask");
	}
	return result;
}

static const char *missing_key(const struct header *header, const struct payload *payload)
{
	return !header->version	   ? "v"
	       : !header->has_argc ? "argc"
	       : !header->has_envc ? "envc"
	       : !payload->cwd	   ? "cwd"
	       : !header->has_umask ? "umask"
	       : !header->has_fds  ? "fds"
				   : NULL;
}

/* Points count entries of a new, NULL-ended list at the strings from `at` on; NULL when they are fewer (or memory is short). */
static char **split_strings(char **at, const char *end, uint64_t count)
{
	char **list = (uint64_t)(end - *at) >= count ? calloc(count + 1, sizeof(*list)) : NULL;
	uint64_t i = 0;

	for (; list && i < count && *at < end; i++) {
		list[i] = *at;
		*at += strlen(*at) + 1;
	}
	if (list && i < count) {
		free(list);
		list = NULL;
	}
	return list;
}

int payload_parse(char *bytes, size_t size, struct payload *payload, struct reason *reason)
{
	struct header header = {0};
	char *at = bytes, *end = bytes + size;
	const char *missing;

	memset(payload, 0, sizeof(*payload));
	payload->bytes = bytes;
	if (size == 0 || end[-1] != '\0')
		return refuse(reason, "payload: it does not end with a NUL byte");
	while (at < end && *at) {
		char *next = at + strlen(at) + 1;

		if (parse_header_line(at, &header, payload, reason))
			return -1;
		at = next;
	}
	missing = missing_key(&header, payload);
	if (missing)
		return refuse(reason, "payload: %s= is missing or not acceptable", missing);
	if (at == end)
		return refuse(reason, "payload: the empty string after the header is missing");
	at++;
	if (header.argc == 0)
		return refuse(reason, "payload: argc=0, at least 1 is needed");
	payload->argv = split_strings(&at, end, header.argc);
	payload->envp = payload->argv ? split_strings(&at, end, header.envc) : NULL;
	if (!payload->envp || at != end)
		return refuse(reason, "payload: argc= and envc= do not fit the strings that follow");
	return 0;
}

int payload_read(int fd, struct payload *payload, struct reason *reason)
{
	size_t size = 0, room = 0;
	char *bytes = NULL;
	ssize_t got = 1;

	memset(payload, 0, sizeof(*payload));
	/* pread: the descriptor may be shared, so its position belongs to nobody */
	while (got > 0 && size <= PAYLOAD_MAX_BYTES) {
		if (size == room) {
			char *grown = realloc(bytes, room + 256 * 1024);

			if (!grown) {
				got = -1;
				break;
			}
			bytes = grown;
			room += 256 * 1024;
		}
		got = pread(fd, bytes + size, room - size, (off_t)size);
		if (got > 0)
			size += (size_t)got;
		else if (got < 0 && errno == EINTR)
			got = 1;
	}
	if (got < 0) {
		free(bytes);
		return refuse(reason, "payload: cannot read it: %s", strerror(errno));
	}
	if (size > PAYLOAD_MAX_BYTES) {
		free(bytes);
		return refuse(reason, "payload: more than %d bytes", PAYLOAD_MAX_BYTES);
	}
	return payload_parse(bytes, size, payload, reason);
}

void payload_free(struct payload *payload)
{
	free(payload->argv);
	free(payload->envp);
	free(payload->bytes);
	memset(payload, 0, sizeof(*payload));
}
