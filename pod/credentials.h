/* Becoming the job's user, for good. */
#ifndef SLURMCKPT_CREDENTIALS_H
#define SLURMCKPT_CREDENTIALS_H

#include <stddef.h>
#include <sys/types.h>

#include "reason.h"

struct credentials {
	uid_t uid;
	gid_t gid;
	gid_t *groups;
	size_t group_count;
};

/* From decimal text; groups is "1,2" or "". Release with credentials_free. */
int credentials_parse(const char *uid, const char *gid, const char *groups, struct credentials *credentials, struct reason *reason);
void credentials_free(struct credentials *credentials);

/* Real, effective and saved ids, supplementary groups and all capabilities; looks afterwards whether it is so. */
int credentials_assume(const struct credentials *credentials, struct reason *reason);

#endif
