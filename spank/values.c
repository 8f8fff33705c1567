#include "values.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "duration.h"

enum { MAX_KEEP = 1000, MAX_MODEL = 255, MAX_COMMAND = 1000 };

bool interval_parse(const char *text, struct interval *interval)
{
	static const struct {
		const char *word;
		enum interval_kind kind;
	} words[] = {
		{ "auto", INTERVAL_AUTO },       { "off", INTERVAL_OFF }, { "infinite", INTERVAL_MANUAL },
		{ "unlimited", INTERVAL_MANUAL },
	};

	*interval = (struct interval){ .kind = INTERVAL_FIXED };
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcasecmp(text, words[i].word) == 0) {
			interval->kind = words[i].kind;
			return true;
		}
	}
	return duration_parse(text, &interval->seconds);
}

bool valid_interval(const char *text)
{
	struct interval interval;

	return interval_parse(text, &interval);
}

/* The length of a text without control characters, or SIZE_MAX. */
static size_t plain_length(const char *text)
{
	size_t length = 0;

	for (; text[length] != '\0'; length++) {
		unsigned char c = (unsigned char)text[length];

		if (c < 0x20 || c == 0x7f)
			return SIZE_MAX;
	}
	return length;
}

bool valid_dir(const char *text)
{
	return text[0] == '/' && plain_length(text) < PATH_MAX;
}

bool valid_command(const char *text)
{
	return text[strspn(text, " ")] != '\0' && plain_length(text) <= MAX_COMMAND;
}

bool valid_keep(const char *text)
{
	int value = 0;

	/* No leading zero: 010 would be eight to some and ten to others. */
	if (text[0] < '1' || text[0] > '9')
		return false;
	for (; *text != '\0'; text++) {
		if (*text < '0' || *text > '9')
			return false;
		value = value * 10 + (*text - '0');
		if (value > MAX_KEEP)
			return false;
	}
	return true;
}

bool valid_recover(const char *text)
{
	static const char *const events[] = { "nodefail", "preempt", "crash", "hang", "timelimit" };

	for (;;) {
		size_t length = strcspn(text, ",");
		bool known = false;

		for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
			known = known || (strlen(events[i]) == length && strncmp(text, events[i], length) == 0);
		if (!known)
			return false;
		if (text[length] == '\0')
			return true;
		text += length + 1;
	}
}

bool valid_model(const char *text)
{
	size_t length = 0;

	for (; text[length] != '\0'; length++) {
		if (text[length] < 0x21 || text[length] > 0x7e)
			return false;
	}
	return length >= 1 && length <= MAX_MODEL;
}
