#include "as_user.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "number.h"

static unsigned user, group;
static gid_t *user_groups;
static size_t user_group_count;

/* Root's, from as_user_begin() to as_user_end(). */
static gid_t *root_groups;
static int root_group_count;

static bool take_groups(const char *text)
{
	uint64_t number;

	user_groups = calloc(NGROUPS_MAX, sizeof(*user_groups));
	while (user_groups && text && *text && user_group_count < NGROUPS_MAX && parse_list_item(&text, ',', UINT32_MAX - 1, &number))
		user_groups[user_group_count++] = (gid_t)number;
	return user_groups && (!text || !*text);
}

bool as_user_is(unsigned uid, unsigned gid, const char *groups)
{
	if (take_groups(groups)) {
		user = uid;
		group = gid;
	}
	return as_user_known();
}

bool as_user_known(void)
{
	return user != 0;
}

/* Unlike the C library's setgroups() of this thread alone. With the file-system id go the capabilities that concern files, and come back. */
bool as_user_begin(void)
{
	bool done = false;

	root_group_count = getgroups(0, NULL);
	root_groups = root_group_count < 0 ? NULL : calloc((size_t)root_group_count + 1, sizeof(gid_t));
	if (root_groups && (!root_group_count || getgroups(root_group_count, root_groups) == root_group_count) &&
	    !syscall(SYS_setgroups, user_group_count, user_groups)) {
		setfsgid(group);
		setfsuid(user);
		done = true;
	} else {
		free(root_groups);
	}
	return done;
}

void as_user_end(void)
{
	const int kept = errno;

	setfsuid(0);
	setfsgid(getegid());
	syscall(SYS_setgroups, root_group_count, root_groups);
	free(root_groups);
	errno = kept;
}
