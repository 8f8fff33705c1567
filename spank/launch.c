#include "launch.h"

#include <stdlib.h>
#include <string.h>

#define VARIABLE "SLURM_CKPT_LAUNCH"

int32_t launch_take(spank_t spank)
{
	char text[11] = ""; /* one more than the nine digits that are accepted, and its NUL */
	size_t digits;

	if (spank_getenv(spank, VARIABLE, text, sizeof(text)) != ESPANK_SUCCESS)
		return LAUNCH_NONE;
	digits = strspn(text, "0123456789");
	if (digits == 0 || digits > 9 || text[digits] != '\0')
		return LAUNCH_NONE;
	spank_unsetenv(spank, VARIABLE);
	return (int32_t)strtol(text, NULL, 10);
}
