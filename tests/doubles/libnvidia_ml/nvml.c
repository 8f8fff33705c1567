/*
 * DOUBLE (simulated device): libnvidia-ml.so.1 over the simulated hardware of ../libcuda, for the real bindings of nvidia-ml-py.
 * It has the same settings; `nvml` is one of them: "unloaded" is a node without the driver's module, "broken" one whose GPUs do not answer.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../libcuda/settings.h"
#include "../libcuda/shared.h"

/* nvml.h, nvmlReturn_t */
enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

struct memory {
	unsigned long long total, free, used;
};

struct process_info {
	unsigned pid;
	unsigned long long used;
	unsigned gpu_instance, compute_instance;
};

struct confidential {
	unsigned environment, feature, tools;
};

static bool plays(const char *role)
{
	char text[32];

	settings_text("nvml", "", text, sizeof(text));
	return !strcmp(text, role);
}

static int index_of(const void *device)
{
	return (int)(uintptr_t)device - 1;
}

int nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	return plays("unloaded") ? DRIVER_NOT_LOADED : OK;
}

int nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

int nvmlShutdown(void)
{
	return OK;
}

const char *nvmlErrorString(int code)
{
	return code == GPU_IS_LOST ? "GPU is lost" : "other";
}

int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
	settings_text("driver", "580.95.05", text, size);
	return OK;
}

int nvmlSystemGetConfComputeState(struct confidential *state)
{
	*state = (struct confidential){.feature = (unsigned)settings_number("confidential", 0)};
	return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = (unsigned)settings_devices();
	return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
	*device = (void *)(uintptr_t)(index + 1);
	return plays("broken") ? GPU_IS_LOST : OK;
}

int nvmlDeviceGetName(void *device, char *text, unsigned size)
{
	(void)device;
	settings_text("name", "NVIDIA H200", text, size);
	return OK;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned size)
{
	uint8_t u[SIMULATED_UUID];

	settings_uuid(index_of(device), u);
	snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5],
		 u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
	return OK;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
	(void)device;
	*memory = (struct memory){.total = (unsigned long long)settings_number("memory", 1ll << 30)};
	return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
	char text[16];

	(void)device;
	settings_text("capability", "9.0", text, sizeof(text));
	return sscanf(text, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

/* mig=1: on the second device. The first answers like a GPU that cannot be divided. */
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
	*current = *pending = (unsigned)settings_number("mig", 0);
	return index_of(device) == 0 ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetPersistenceMode(void *device, unsigned *mode)
{
	(void)device;
	*mode = (unsigned)settings_number("persistence", 1);
	return OK;
}

/* Bytes of a device that a process holds: from what it shares, see shared.h. */
static uint64_t bytes_of(const char *pid, int device)
{
	char path[300], link[600], target[64];
	struct dirent *entry;
	uint64_t found = 0;
	DIR *directory;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	directory = opendir(path);
	while (directory && (entry = readdir(directory))) {
		struct simulated *place;
		ssize_t length;
		int file;

		snprintf(link, sizeof(link), "%s/%s", path, entry->d_name);
		length = readlink(link, target, sizeof(target) - 1);
		target[length > 0 ? length : 0] = '\0';
		if (strncmp(target, "/memfd:" SIMULATED_MEMFD, strlen("/memfd:" SIMULATED_MEMFD)))
			continue;
		file = open(link, O_RDONLY | O_CLOEXEC);
		place = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(*place), PROT_READ, MAP_SHARED, file, 0);
		if (file >= 0)
			close(file);
		if (place != MAP_FAILED) {
			found = place->state == STATE_CHECKPOINTED ? 0 : place->device_bytes[device];
			munmap(place, sizeof(*place));
		}
	}
	if (directory)
		closedir(directory);
	return found;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process_info *infos)
{
	unsigned room = *count;
	struct dirent *entry;
	DIR *directory = opendir("/proc");

	*count = 0;
	while (directory && (entry = readdir(directory))) {
		uint64_t bytes = entry->d_name[0] >= '0' && entry->d_name[0] <= '9' ? bytes_of(entry->d_name, index_of(device)) : 0;

		if (!bytes)
			continue;
		if (infos && *count < room)
			infos[*count] = (struct process_info){(unsigned)atoi(entry->d_name), bytes, ~0u, ~0u};
		++*count;
	}
	if (directory)
		closedir(directory);
	return *count > room ? INSUFFICIENT_SIZE : OK;
}
