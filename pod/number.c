#include "number.h"

#include <stddef.h>

static int digit_value(char c)
{
	int value = 99;

	if (c >= '0' && c <= '9')
		value = c - '0';
	else if (c >= 'a' && c <= 'f')
		value = c - 'a' + 10;
	else if (c >= 'A' && c <= 'F')
		value = c - 'A' + 10;
	return value;
}

/* The number at text; sets *end behind its last digit. False when there is no digit, or the number is above max. */
static bool scan(const char *text, int base, uint64_t max, uint64_t *value, const char **end)
{
	const char *at = text;
	uint64_t sum = 0;
	bool fits = true;

	for (; fits && digit_value(*at) < base; at++) {
		uint64_t digit = (uint64_t)digit_value(*at);

		fits = sum <= (max - (digit > max ? max : digit)) / (uint64_t)base && digit <= max;
		sum = sum * (uint64_t)base + digit;
	}
	*value = sum;
	*end = at;
	return fits && at != text;
}

bool parse_number(const char *text, int base, uint64_t max, uint64_t *value)
{
	const char *end = NULL;

	return text && scan(text, base, max, value, &end) && *end == '\0';
}

bool parse_list_item(const char **text, char separator, uint64_t max, uint64_t *value)
{
	const char *end = NULL;
	bool good = scan(*text, 10, max, value, &end) && (*end == '\0' || (*end == separator && end[1] != '\0'));

	if (good)
		*text = *end ? end + 1 : end;
	return good;
}
