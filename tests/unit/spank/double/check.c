/* Reads "KIND NUL VALUE NUL" from stdin and answers each with one line: the checks of values.c, for test_values.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "values.h"

static const struct {
	const char *kind;
	bool (*valid)(const char *text);
} checks[] = {
	{ "dir", valid_dir }, { "keep", valid_keep }, { "recover", valid_recover }, { "model", valid_model },
	{ "pre", valid_command },
};

static void answer_interval(const char *text)
{
	struct interval interval;

	if (!interval_parse(text, &interval))
		puts("refused");
	else if (interval.kind == INTERVAL_FIXED)
		printf("fixed %lld\n", (long long)interval.seconds);
	else
		puts(interval.kind == INTERVAL_AUTO ? "auto" : interval.kind == INTERVAL_OFF ? "off" : "manual");
}

int main(void)
{
	char *kind = NULL, *value = NULL;
	size_t kind_size = 0, value_size = 0;

	while (getdelim(&kind, &kind_size, '\0', stdin) > 0 && getdelim(&value, &value_size, '\0', stdin) > 0) {
		if (strcmp(kind, "interval") == 0)
			answer_interval(value);
		for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
			if (strcmp(kind, checks[i].kind) == 0)
				puts(checks[i].valid(value) ? "good" : "refused");
		}
		fflush(stdout);
	}
	free(kind);
	free(value);
	return 0;
}
