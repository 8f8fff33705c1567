#include "memory.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process.h"
#include "settings.h"

/* Addresses that no process has mapped: a program that uses device memory as if it were its own dies of it. */
#define FIRST_ADDRESS 0x7fff00000000000ull
#define ALIGNMENT (1ull << 21)
#define MAX_DEVICES_OPEN (SIMULATED_MAX_DEVICES + 1)

struct allocation {
	struct allocation *next;
	uint64_t address;
	size_t size;
	int device;
	int file; /* on the device; -1 while it is in the process */
	void *taken_out;
};

static struct allocation *first;
static uint64_t next_address = FIRST_ADDRESS;
static int held[MAX_DEVICES_OPEN];
static int held_count;

static int device_file(size_t size)
{
	char path[512];
	int file;

	snprintf(path, sizeof(path), "%s/memory", settings_directory());
	mkdir(path, 01777);
	chmod(path, 01777);
	file = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (file >= 0 && ftruncate(file, (off_t)size)) {
		close(file);
		file = -1;
	}
	return file;
}

/* Numbers below 3 are the program's; a file that is closed and opened again must not take one of them. */
static int above_standard(int file)
{
	int moved = file >= 0 && file < 3 ? fcntl(file, F_DUPFD_CLOEXEC, 3) : file;

	if (moved != file)
		close(file);
	return moved;
}

static struct allocation *find(uint64_t pointer, size_t size)
{
	struct allocation *each = first;

	while (each && !(pointer >= each->address && size <= each->size && pointer - each->address <= each->size - size))
		each = each->next;
	return each;
}

static void count(const struct allocation *one, bool more)
{
	process_shared()->device_bytes[one->device] += more ? one->size : -one->size;
}

int memory_allocate(int device, size_t size, uint64_t *pointer)
{
	struct allocation *one;

	if (!size)
		return INVALID_VALUE;
	if (memory_used(device) + size > (uint64_t)settings_number("memory", 1ll << 30))
		return OUT_OF_MEMORY;
	one = calloc(1, sizeof(*one));
	if (!one)
		return OUT_OF_MEMORY;
	*one = (struct allocation){.next = first, .address = next_address, .size = size, .device = device};
	one->file = above_standard(device_file(size));
	if (one->file < 0) {
		free(one);
		return OUT_OF_MEMORY;
	}
	next_address += (size + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	first = one;
	count(one, true);
	*pointer = one->address;
	return SUCCESS;
}

int memory_free(uint64_t pointer)
{
	struct allocation **each = &first, *found;

	while (*each && (*each)->address != pointer)
		each = &(*each)->next;
	found = *each;
	if (!found)
		return INVALID_VALUE;
	*each = found->next;
	count(found, false);
	close(found->file);
	free(found);
	return SUCCESS;
}

static int transfer(struct allocation *one, size_t offset, void *host, size_t size, bool to_device)
{
	size_t done = 0;
	ssize_t part = 1;

	while (done < size && part > 0) {
		part = to_device ? pwrite(one->file, (char *)host + done, size - done, (off_t)(offset + done))
				 : pread(one->file, (char *)host + done, size - done, (off_t)(offset + done));
		done += part > 0 ? (size_t)part : 0;
	}
	return done == size ? SUCCESS : UNKNOWN;
}

int memory_write(uint64_t pointer, const void *from, size_t size)
{
	struct allocation *one = find(pointer, size);

	return one ? transfer(one, pointer - one->address, (void *)(uintptr_t)from, size, true) : INVALID_VALUE;
}

int memory_read(uint64_t pointer, void *to, size_t size)
{
	struct allocation *one = find(pointer, size);

	return one ? transfer(one, pointer - one->address, to, size, false) : INVALID_VALUE;
}

uint64_t memory_used(int device)
{
	return process_shared()->device_bytes[device];
}

int memory_take_out(void)
{
	int result = SUCCESS;

	for (struct allocation *each = first; each && result == SUCCESS; each = each->next) {
		void *host = mmap(NULL, each->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		result = host == MAP_FAILED ? OUT_OF_MEMORY : transfer(each, 0, host, each->size, false);
		if (host != MAP_FAILED && result != SUCCESS)
			munmap(host, each->size);
		if (result == SUCCESS) {
			each->taken_out = host;
			close(each->file);
			each->file = -1;
		}
	}
	return result;
}

int memory_put_back(void)
{
	int result = SUCCESS;

	for (struct allocation *each = first; each && result == SUCCESS; each = each->next) {
		if (!each->taken_out)
			continue;
		each->file = above_standard(device_file(each->size));
		result = each->file < 0 ? OUT_OF_MEMORY : transfer(each, 0, each->taken_out, each->size, true);
		if (result == SUCCESS) {
			munmap(each->taken_out, each->size);
			each->taken_out = NULL;
		} else if (each->file >= 0) {
			close(each->file);
			each->file = -1;
		}
	}
	return result;
}

static void hold(const char *path)
{
	int file = above_standard(open(path, O_RDWR | O_CLOEXEC));

	if (file >= 0)
		held[held_count++] = file;
}

void memory_hold_devices(void)
{
	char path[64];

	hold("/dev/nvidiactl");
	for (int device = 0; device < settings_devices(); device++) {
		snprintf(path, sizeof(path), "/dev/nvidia%d", device);
		hold(path);
	}
}

void memory_drop_devices(void)
{
	while (held_count)
		close(held[--held_count]);
}
