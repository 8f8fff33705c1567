/*
 * Who makes a pipe owns it, and only its owner may open it by a name, as /dev/stderr, /dev/fd/63 and bash's <(...) do. CRIU makes the pipes of a
 * restore as root: a script could not open its own any more.
 */
#include "pipes.h"

#include <stdint.h>
#include <unistd.h>

#include "as_user.h"
#include "imports.h"

static int pipe_of_user(int ends[2])
{
	int result;

	/* a call may be made for a process whose ids are the user's already */
	if (geteuid() || !as_user_begin())
		return pipe(ends);
	result = pipe(ends);
	as_user_end();
	return result;
}

void pipes_are_users(void)
{
	static const struct import all[] = {{"pipe", (uintptr_t)pipe_of_user}};

	imports_replace(all, sizeof(all) / sizeof(all[0]));
}
