/* A libnvidia-ml.so.1 with two GPUs, for the real bindings of nvidia-ml-py. NVML_DOUBLE chooses what it plays:
 * "none" no GPU, "unloaded" no driver, "broken" a driver that stops answering, otherwise two GPUs, MIG on the second. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

struct memory {
	unsigned long long total, free, used;
};

static int plays(const char *name)
{
	const char *role = getenv("NVML_DOUBLE");
	return role && !strcmp(role, name);
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return plays("unloaded") ? DRIVER_NOT_LOADED : OK; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "other"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
	strncpy(text, "570.86.15", size);
	return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = plays("none") ? 0 : 2;
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
	strncpy(text, "NVIDIA H200", size);
	return OK;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
	(void)device;
	memory->total = 150754820096ULL;
	return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
	(void)device;
	*major = 9;
	*minor = 0;
	return OK;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
	if (device == (void *)1)
		return NOT_SUPPORTED;
	*current = *pending = 1;
	return OK;
}
