#include "credentials.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "number.h"

/* (uid_t)-1 means "leave as it is" to the kernel, so it is nobody's id */
#define ID_MAX (UINT32_MAX - 1)

static int parse_groups(const char *text, struct credentials *credentials, struct reason *reason)
{
	uint64_t number;

	/* every group takes at least one digit and a separator */
	credentials->groups = calloc(strlen(text) / 2 + 1, sizeof(*credentials->groups));
	if (!credentials->groups)
		return refuse(reason, "out of memory");
	while (*text) {
		if (!parse_list_item(&text, ',', ID_MAX, &number))
			return refuse(reason, "groups= is not a list of group ids");
		credentials->groups[credentials->group_count++] = (gid_t)number;
	}
	return 0;
}

int credentials_parse(const char *uid, const char *gid, const char *groups, struct credentials *credentials, struct reason *reason)
{
	uint64_t user, group;

	memset(credentials, 0, sizeof(*credentials));
	if (!parse_number(uid, 10, ID_MAX, &user))
		return refuse(reason, "uid=%s is not a user id", uid ? uid : "");
	if (!parse_number(gid, 10, ID_MAX, &group))
		return refuse(reason, "gid=%s is not a group id", gid ? gid : "");
	if (!groups)
		return refuse(reason, "groups= is missing");
	credentials->uid = (uid_t)user;
	credentials->gid = (gid_t)group;
	return parse_groups(groups, credentials, reason);
}

void credentials_free(struct credentials *credentials)
{
	free(credentials->groups);
	memset(credentials, 0, sizeof(*credentials));
}

static int drop_capabilities(struct reason *reason)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct sets[2] = {0};

	/* the kernel has emptied the others with the change of the ids, unless somebody set securebits; the inheritable set it never empties */
	if (syscall(SYS_capset, &header, sets))
		return refuse(reason, "cannot drop capabilities: %s", strerror(errno));
	return 0;
}

static int verify(const struct credentials *want, struct reason *reason)
{
	uid_t uids[3];
	gid_t gids[3];

	if (getresuid(&uids[0], &uids[1], &uids[2]) || getresgid(&gids[0], &gids[1], &gids[2]))
		return refuse(reason, "cannot read the ids back: %s", strerror(errno));
	for (int i = 0; i < 3; i++) {
		if (uids[i] != want->uid || gids[i] != want->gid)
			return refuse(reason, "the ids are %u:%u, not %u:%u", uids[i], gids[i], want->uid, want->gid);
	}
	if (getgroups(0, NULL) != (int)want->group_count)
		return refuse(reason, "%d supplementary groups, not %zu", getgroups(0, NULL), want->group_count);
	if (want->uid != 0 && setuid(0) == 0)
		return refuse(reason, "uid %u could become root again", want->uid);
	return 0;
}

int credentials_assume(const struct credentials *credentials, struct reason *reason)
{
	if (setgroups(credentials->group_count, credentials->groups))
		return refuse(reason, "cannot set %zu groups: %s", credentials->group_count, strerror(errno));
	if (setresgid(credentials->gid, credentials->gid, credentials->gid))
		return refuse(reason, "cannot become group %u: %s", credentials->gid, strerror(errno));
	if (setresuid(credentials->uid, credentials->uid, credentials->uid))
		return refuse(reason, "cannot become user %u: %s", credentials->uid, strerror(errno));
	if (credentials->uid != 0 && drop_capabilities(reason))
		return -1;
	return verify(credentials, reason);
}
