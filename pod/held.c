#include "held.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memfd.h"

struct held *held_open(int *memfd, struct reason *reason)
{
	static const char empty[HELD_SLOTS * HELD_SLOT_BYTES];
	int fd = memfd_with("held output", empty, sizeof(empty), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, reason);
	void *memory = MAP_FAILED;

	if (fd < 0)
		goto out;
	memory = mmap(NULL, sizeof(empty), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED) {
		refuse(reason, "cannot map the held output: %s", strerror(errno));
		close(fd);
		goto out;
	}
	*memfd = fd;
out:
	return memory == MAP_FAILED ? NULL : memory;
}

uint32_t held_stated_size(const struct held *held)
{
	/* one load: another process may write */
	return __atomic_load_n(&held->size, __ATOMIC_ACQUIRE);
}

size_t held_size(const struct held *held)
{
	uint32_t size = held_stated_size(held);

	return size < HELD_LIMIT ? size : 0;
}

void held_set(struct held *held, const char *bytes, size_t size)
{
	memcpy(held->bytes, bytes, size);
	__atomic_store_n(&held->size, (uint32_t)size, __ATOMIC_RELEASE);
}
