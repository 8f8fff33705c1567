#include "reason.h"

#include <stdarg.h>
#include <stdio.h>

int refuse(struct reason *reason, const char *format, ...)
{
	va_list values;

	va_start(values, format);
	vsnprintf(reason->text, sizeof(reason->text), format, values);
	va_end(values);
	return -1;
}
