/*
 * gpu-probe [BYTES]: a CUDA program as small as possible, for `slurmckpt selftest --gpu`: memory on the first GPU, and a kernel over it.
 * Says "ready PID NAME", then answers each line of its standard input: "run" executes the kernel, "sum" prints a checksum of the memory.
 * Ends at the end of its input. Needs no CUDA toolkit: libcuda is loaded when it starts. On an error it says "error CALL CODE" and ends with 1.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define DEFAULT_BYTES (16u << 20)
#define THREADS 256

/* Adds a number to each 32-bit word. PTX of 2013 that every later GPU takes (PTX ISA, "Directives: .target"). */
static const char ptx[] = ".version 6.0\n"
			  ".target sm_50\n"
			  ".address_size 64\n"
			  ".visible .entry add_u32(.param .u64 words, .param .u32 count, .param .u32 summand)\n"
			  "{\n"
			  "	.reg .pred %outside;\n"
			  "	.reg .u32 %count, %summand, %block, %size, %thread, %index, %word;\n"
			  "	.reg .u64 %words, %offset, %place;\n"
			  "	ld.param.u64 %words, [words];\n"
			  "	ld.param.u32 %count, [count];\n"
			  "	ld.param.u32 %summand, [summand];\n"
			  "	cvta.to.global.u64 %words, %words;\n"
			  "	mov.u32 %block, %ctaid.x;\n"
			  "	mov.u32 %size, %ntid.x;\n"
			  "	mov.u32 %thread, %tid.x;\n"
			  "	mad.lo.u32 %index, %block, %size, %thread;\n"
			  "	setp.ge.u32 %outside, %index, %count;\n"
			  "	@%outside bra done;\n"
			  "	mul.wide.u32 %offset, %index, 4;\n"
			  "	add.u64 %place, %words, %offset;\n"
			  "	ld.global.u32 %word, [%place];\n"
			  "	add.u32 %word, %word, %summand;\n"
			  "	st.global.u32 [%place], %word;\n"
			  "done:\n"
			  "	ret;\n"
			  "}\n";

struct probe {
	struct driver driver;
	device_pointer memory;
	uintptr_t kernel;
	size_t size;
	uint32_t *host;
	char name[128];
};

static bool failed(const char *call, int code)
{
	if (code)
		printf("error %s %d\n", call, code);
	return code != 0;
}

static bool set_up(struct probe *probe)
{
	const struct driver *cuda = &probe->driver;
	uintptr_t context = 0, module = 0;
	int device = 0;

	for (size_t i = 0; i < probe->size / 4; i++)
		probe->host[i] = (uint32_t)(i * 2654435761u);
	return !failed("cuInit", cuda->init(0)) && !failed("cuDeviceGet", cuda->device_get(&device, 0)) &&
	       !failed("cuDeviceGetName", cuda->device_name(probe->name, sizeof(probe->name), device)) &&
	       !failed("cuDevicePrimaryCtxRetain", cuda->context_retain(&context, device)) &&
	       !failed("cuCtxSetCurrent", cuda->context_set(context)) &&
	       !failed("cuMemAlloc", cuda->allocate(&probe->memory, probe->size)) &&
	       !failed("cuMemcpyHtoD", cuda->copy_in(probe->memory, probe->host, probe->size)) &&
	       !failed("cuModuleLoadData", cuda->module_load(&module, ptx)) &&
	       !failed("cuModuleGetFunction", cuda->module_function(&probe->kernel, module, "add_u32"));
}

static bool run(struct probe *probe)
{
	const struct driver *cuda = &probe->driver;
	uint32_t count = (uint32_t)(probe->size / 4), summand = 7;
	void *arguments[] = {&probe->memory, &count, &summand};
	unsigned blocks = (count + THREADS - 1) / THREADS;

	if (failed("cuLaunchKernel", cuda->launch(probe->kernel, blocks, 1, 1, THREADS, 1, 1, 0, 0, arguments, NULL)) ||
	    failed("cuCtxSynchronize", cuda->synchronize()))
		return false;
	printf("ok\n");
	return true;
}

/* FNV-1a over 32-bit words: it only has to tell a memory from a changed one. */
static bool sum(struct probe *probe)
{
	uint64_t hash = 14695981039346656037u;

	if (failed("cuMemcpyDtoH", probe->driver.copy_out(probe->host, probe->memory, probe->size)))
		return false;
	for (size_t i = 0; i < probe->size / 4; i++)
		hash = (hash ^ probe->host[i]) * 1099511628211u;
	printf("%016" PRIx64 "\n", hash);
	return true;
}

int main(int argc, char **argv)
{
	struct probe probe = {.size = argc > 1 ? strtoull(argv[1], NULL, 10) / 4 * 4 : DEFAULT_BYTES};
	char line[32];
	bool good;

	setvbuf(stdout, NULL, _IOLBF, 0);
	probe.host = malloc(probe.size);
	good = probe.host && probe.size && driver_load(&probe.driver) && set_up(&probe);
	if (good)
		printf("ready %d %s\n", getpid(), probe.name);
	while (good && fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "run\n"))
			good = run(&probe);
		else if (!strcmp(line, "sum\n"))
			good = sum(&probe);
		else
			good = false;
	}
	free(probe.host);
	return good ? 0 : 1;
}
