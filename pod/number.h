/* Numbers in text, read strictly: digits only, no sign, no blank, no overflow. */
#ifndef SLURMCKPT_NUMBER_H
#define SLURMCKPT_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* base is 8, 10 or 16; the value must not exceed max. text may be NULL (false). */
bool parse_number(const char *text, int base, uint64_t max, uint64_t *value);

/* The decimal number that `*text` starts with, up to `separator` or the end; moves *text behind it. For lists such as "1,2,3". */
bool parse_list_item(const char **text, char separator, uint64_t max, uint64_t *value);

#endif
