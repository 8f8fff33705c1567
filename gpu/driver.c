#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

/* CUDA 12.0: the oldest release whose driver has the functions below in the versions meant here, and cuGetProcAddress_v2. */
#define CUDA_VERSION 12000

typedef int (*get_address)(const char *name, void **function, int version, uint64_t flags, int *status);

bool driver_load(struct driver *driver)
{
	const struct {
		const char *name;
		void *place;
	} wanted[] = {
		{"cuInit", &driver->init},
		{"cuDeviceGet", &driver->device_get},
		{"cuDeviceGetName", &driver->device_name},
		{"cuDevicePrimaryCtxRetain", &driver->context_retain},
		{"cuCtxSetCurrent", &driver->context_set},
		{"cuMemAlloc", &driver->allocate},
		{"cuMemcpyHtoD", &driver->copy_in},
		{"cuMemcpyDtoH", &driver->copy_out},
		{"cuModuleLoadData", &driver->module_load},
		{"cuModuleGetFunction", &driver->module_function},
		{"cuLaunchKernel", &driver->launch},
		{"cuCtxSynchronize", &driver->synchronize},
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	get_address address = NULL;
	bool complete;

	if (library)
		*(void **)&address = dlsym(library, "cuGetProcAddress_v2");
	complete = address;
	if (!complete)
		printf("error %s 0\n", library ? "cuGetProcAddress_v2" : "libcuda.so.1");
	for (size_t i = 0; complete && i < sizeof(wanted) / sizeof(*wanted); i++) {
		int status = 0;

		*(void **)wanted[i].place = NULL;
		complete = !address(wanted[i].name, wanted[i].place, CUDA_VERSION, 0, &status) && *(void **)wanted[i].place;
		if (!complete)
			printf("error %s 0\n", wanted[i].name);
	}
	return complete;
}
