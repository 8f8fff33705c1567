#include "origin.h"

#include <sys/stat.h>

struct origin origin_now(void)
{
	struct origin origin = { 0 };
	struct stat st;

	if (stat("/", &st) == 0) {
		origin.root_dev = st.st_dev;
		origin.root_ino = st.st_ino;
	}
	if (stat("/proc/self/ns/user", &st) == 0) {
		origin.user_dev = st.st_dev;
		origin.user_ino = st.st_ino;
	}
	return origin;
}

bool origin_equal(const struct origin *a, const struct origin *b)
{
	return a->root_dev == b->root_dev && a->root_ino == b->root_ino && a->user_dev == b->user_dev &&
	       a->user_ino == b->user_ino;
}
