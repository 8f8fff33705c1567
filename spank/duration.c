#include "duration.h"

#include <stddef.h>

enum { MAX_DIGITS = 9, MAX_FIELDS = 4 }; /* 9 digits of days are below 2^47 seconds: no sum here can overflow */

static const int64_t unit_seconds[MAX_FIELDS] = { 86400, 3600, 60, 1 };

/* Reads a number of 1 to MAX_DIGITS digits and moves *text behind it. */
static bool read_number(const char **text, int64_t *number)
{
	const char *p = *text;
	int64_t value = 0;

	while (*p >= '0' && *p <= '9' && p - *text < MAX_DIGITS)
		value = value * 10 + (*p++ - '0');
	if (p == *text || (*p >= '0' && *p <= '9'))
		return false;
	*text = p;
	*number = value;
	return true;
}

/* Index into unit_seconds of a unit letter, MAX_FIELDS when it is none. */
static int unit_of(char letter)
{
	static const char names[] = "dhms";
	char lower = letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
	int unit = 0;

	while (unit < MAX_FIELDS && names[unit] != lower)
		unit++;
	return unit;
}

static bool parse_units(const char *text, int64_t *seconds)
{
	int64_t sum = 0;
	int64_t number;
	int next = 0; /* the largest unit that may still follow */

	do {
		int unit;

		if (!read_number(&text, &number))
			return false;
		unit = unit_of(*text++);
		if (unit < next || unit == MAX_FIELDS)
			return false;
		sum += number * unit_seconds[unit];
		next = unit + 1;
	} while (*text != '\0');
	*seconds = sum;
	return true;
}

/*
 * [D-]N[:N[:N]]. With days the first N is hours; without, one or two numbers are M or M:S and three are H:M:S
 * (sbatch(1), --time). As in Slurm, a field may exceed its usual range: 90:00 is 90 minutes.
 */
static bool parse_slurm(const char *text, int64_t *seconds)
{
	int64_t field[MAX_FIELDS];
	int64_t sum = 0;
	bool days = false;
	int count = 0;
	int first;

	for (;;) {
		if (count == MAX_FIELDS || !read_number(&text, &field[count++]))
			return false;
		if (*text == '\0')
			break;
		if (*text == '-' && count == 1)
			days = true;
		else if (*text != ':')
			return false;
		text++;
	}
	if (!days && count == MAX_FIELDS)
		return false;
	if (days)
		first = 0;
	else
		first = count == 3 ? 1 : 2;
	for (int i = 0; i < count; i++)
		sum += field[i] * unit_seconds[first + i];
	*seconds = sum;
	return true;
}

bool duration_parse(const char *text, int64_t *seconds)
{
	int64_t value;

	if (!parse_slurm(text, &value) && !parse_units(text, &value))
		return false;
	if (value < DURATION_MIN_SECONDS || value > DURATION_MAX_SECONDS)
		return false;
	*seconds = value;
	return true;
}
