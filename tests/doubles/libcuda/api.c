/* DOUBLE (simulated device): what else of cuda.h this driver has. Handles of contexts, modules and functions are small numbers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checkpoint.h"
#include "memory.h"
#include "process.h"
#include "settings.h"
#include "stream.h"

/* The context of device n is n + 1; a thread without one has 0. */
static _Thread_local uintptr_t current;

static int with_device(int (*what)(void *), void *data)
{
	int result = process_enter();

	if (result != SUCCESS)
		return result;
	result = what(data);
	process_leave();
	return result;
}

int cuInit(unsigned flags)
{
	int error = (int)settings_number("init.error", 0);

	(void)flags;
	if (error)
		return error;
	return settings_devices() ? process_init() : 100; /* CUDA_ERROR_NO_DEVICE */
}

int cuDriverGetVersion(int *version)
{
	*version = (int)settings_number("cuda", 13000);
	return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
	*count = settings_devices();
	return process_shared() ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return ordinal >= 0 && ordinal < settings_devices() ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int size, int device)
{
	(void)device;
	settings_text("name", "NVIDIA H200", name, (size_t)size);
	return SUCCESS;
}

int cuDeviceGetUuid(uint8_t *uuid, int device)
{
	settings_uuid(device, uuid);
	return SUCCESS;
}

int cuDeviceTotalMem(size_t *bytes, int device)
{
	(void)device;
	*bytes = (size_t)settings_number("memory", 1ll << 30);
	return SUCCESS;
}

/* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR are 75 and 76; everything else is 0. */
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	char text[16], *minor;

	(void)device;
	settings_text("capability", "9.0", text, sizeof(text));
	*value = attribute == 75 ? (int)strtol(text, &minor, 10) : 0;
	if (attribute == 76 && (minor = strchr(text, '.')))
		*value = atoi(minor + 1);
	return SUCCESS;
}

int cuDevicePrimaryCtxRetain(uintptr_t *context, int device)
{
	*context = (uintptr_t)device + 1;
	return process_shared() ? SUCCESS : NOT_INITIALIZED;
}

int cuCtxSetCurrent(uintptr_t context)
{
	current = context;
	return SUCCESS;
}

struct allocate {
	uint64_t *pointer;
	size_t size;
};

static int allocate(void *data)
{
	struct allocate *wanted = data;

	return memory_allocate(current ? (int)current - 1 : 0, wanted->size, wanted->pointer);
}

int cuMemAlloc(uint64_t *pointer, size_t size)
{
	return with_device(allocate, &(struct allocate){pointer, size});
}

static int release(void *data)
{
	return memory_free(*(uint64_t *)data);
}

int cuMemFree(uint64_t pointer)
{
	return with_device(release, &pointer);
}

struct copy {
	uint64_t pointer;
	void *host;
	size_t size;
	uint8_t fill;
};

static int copy_in(void *data)
{
	struct copy *one = data;

	return memory_write(one->pointer, one->host, one->size);
}

static int copy_out(void *data)
{
	struct copy *one = data;

	return memory_read(one->pointer, one->host, one->size);
}

static int fill(void *data)
{
	struct copy *one = data;
	char *block = malloc(one->size);
	int result = OUT_OF_MEMORY;

	if (block) {
		memset(block, one->fill, one->size);
		result = memory_write(one->pointer, block, one->size);
		free(block);
	}
	return result;
}

/* Copies come after what the default stream has to do. */
static int in_order(int (*what)(void *), struct copy *one)
{
	if (!process_shared())
		return NOT_INITIALIZED;
	stream_synchronize(stream_find(0));
	return with_device(what, one);
}

int cuMemcpyHtoD(uint64_t to, const void *from, size_t size)
{
	return in_order(copy_in, &(struct copy){to, (void *)(uintptr_t)from, size, 0});
}

int cuMemcpyDtoH(void *to, uint64_t from, size_t size)
{
	return in_order(copy_out, &(struct copy){from, to, size, 0});
}

int cuMemsetD8(uint64_t to, unsigned char value, size_t size)
{
	return in_order(fill, &(struct copy){to, NULL, size, value});
}

int cuMemGetInfo(size_t *left, size_t *total)
{
	int device = current ? (int)current - 1 : 0;

	if (!process_shared())
		return NOT_INITIALIZED;
	cuDeviceTotalMem(total, device);
	*left = *total - memory_used(device);
	return SUCCESS;
}

int cuMemHostAlloc(void **place, size_t size, unsigned flags)
{
	(void)flags;
	*place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return *place == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}

int cuModuleLoadData(uintptr_t *module, const void *image)
{
	*module = 1;
	return image ? SUCCESS : INVALID_VALUE;
}

int cuModuleGetFunction(uintptr_t *function, uintptr_t module, const char *name)
{
	(void)module;
	*function = stream_kernel(name);
	return *function ? SUCCESS : NOT_FOUND;
}

struct submit {
	uintptr_t stream;
	struct work work;
};

static int submit(void *data)
{
	struct submit *one = data;
	struct stream *stream = stream_find(one->stream);

	return stream ? stream_submit(stream, &one->work) : INVALID_HANDLE;
}

int cuLaunchKernel(uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned bytes,
		   uintptr_t stream, void **arguments, void **extra)
{
	/* how many arguments each kernel has: add_u32 a pointer and two numbers, and so on */
	static const int wide[] = {[KERNEL_ADD] = 1, [KERNEL_WAIT] = 0, [KERNEL_MEET] = 1};
	static const int narrow[] = {[KERNEL_ADD] = 2, [KERNEL_WAIT] = 1, [KERNEL_MEET] = 3};
	struct submit one = {.stream = stream, .work = {.kernel = (enum kernel)function}};

	(void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)bytes, (void)extra;
	if (function < KERNEL_ADD || function > KERNEL_MEET || !arguments)
		return INVALID_VALUE;
	for (int i = 0; i < wide[function]; i++)
		one.work.arguments[i] = *(uint64_t *)arguments[i];
	for (int i = wide[function]; i < wide[function] + narrow[function]; i++)
		one.work.arguments[i] = *(uint32_t *)arguments[i];
	return with_device(submit, &one);
}

int cuLaunchHostFunc(uintptr_t stream, void (*function)(void *), void *data)
{
	return with_device(submit, &(struct submit){stream, {.host = function, .host_data = data}});
}

struct created {
	uintptr_t *stream;
};

static int create_stream(void *data)
{
	return stream_create(((struct created *)data)->stream);
}

int cuStreamCreate(uintptr_t *stream, unsigned flags)
{
	(void)flags;
	return with_device(create_stream, &(struct created){stream});
}

int cuStreamSynchronize(uintptr_t handle)
{
	struct stream *stream = process_shared() ? stream_find(handle) : NULL;

	return stream ? stream_synchronize(stream) : INVALID_HANDLE;
}

int cuStreamQuery(uintptr_t handle)
{
	struct stream *stream = process_shared() ? stream_find(handle) : NULL;

	if (!stream)
		return INVALID_HANDLE;
	return stream_is_idle(stream) ? SUCCESS : NOT_READY;
}

int cuCtxSynchronize(void)
{
	return process_shared() ? stream_synchronize_all() : NOT_INITIALIZED;
}

int cuGetErrorName(int error, const char **text)
{
	*text = "CUDA_ERROR_OF_A_SIMULATED_DEVICE";
	return error >= 0 ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int error, const char **text)
{
	*text = "an error of a simulated device";
	return error >= 0 ? SUCCESS : INVALID_VALUE;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status);

int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

#define HAS(name) {#name, (void *)(uintptr_t)name}

static const struct {
	const char *name;
	void *function;
} functions[] = {
	HAS(cuInit),
	HAS(cuDriverGetVersion),
	HAS(cuDeviceGetCount),
	HAS(cuDeviceGet),
	HAS(cuDeviceGetName),
	HAS(cuDeviceGetUuid),
	HAS(cuDeviceTotalMem),
	HAS(cuDeviceGetAttribute),
	HAS(cuDevicePrimaryCtxRetain),
	HAS(cuCtxSetCurrent),
	HAS(cuCtxSynchronize),
	HAS(cuMemAlloc),
	HAS(cuMemFree),
	HAS(cuMemcpyHtoD),
	HAS(cuMemcpyDtoH),
	HAS(cuMemsetD8),
	HAS(cuMemGetInfo),
	HAS(cuMemHostAlloc),
	HAS(cuModuleLoadData),
	HAS(cuModuleGetFunction),
	HAS(cuLaunchKernel),
	HAS(cuLaunchHostFunc),
	HAS(cuStreamCreate),
	HAS(cuStreamSynchronize),
	HAS(cuStreamQuery),
	HAS(cuGetErrorName),
	HAS(cuGetErrorString),
	HAS(cuGetProcAddress),
	HAS(cuCheckpointProcessLock),
	HAS(cuCheckpointProcessCheckpoint),
	HAS(cuCheckpointProcessRestore),
	HAS(cuCheckpointProcessUnlock),
	HAS(cuCheckpointProcessGetState),
	HAS(cuCheckpointProcessGetRestoreThreadId),
};

/* Names come without the suffix of their version (cuMemAlloc, not cuMemAlloc_v2), but for this function itself. */
int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
	size_t length = strlen(symbol);
	bool knows = settings_number("cuda", 13000) >= 12080;

	(void)version, (void)flags;
	*function = NULL;
	if (!strcmp(symbol, "cuGetProcAddress_v2"))
		*function = (void *)(uintptr_t)cuGetProcAddress_v2;
	if (length > 3 && !strncmp(symbol + length - 3, "_v2", 3))
		length -= 3;
	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions) && !*function; i++) {
		/* CUDA 12.8, driver 570, brought the checkpoint calls */
		if (!knows && !strncmp(functions[i].name, "cuCheckpoint", 12))
			continue;
		if (strlen(functions[i].name) == length && !strncmp(functions[i].name, symbol, length))
			*function = functions[i].function;
	}
	if (status)
		*status = *function ? 0 : 1; /* CU_GET_PROC_ADDRESS_SUCCESS, ..._SYMBOL_NOT_FOUND */
	return *function ? SUCCESS : NOT_FOUND;
}
