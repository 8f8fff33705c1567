/* Finding the user's profiler plugin, as NCCL does (src/plugin/plugin_open.cc, src/plugin/profiler.cc of 2.28.9). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "chain.h"

#define LONGEST_NAME 255

static bool is_library_name(const char *name) {
  size_t length = strlen(name);
  return strchr(name, '/') != NULL || (strncmp(name, "lib", 3) == 0 && length >= 3 && strcmp(name + length - 3, ".so") == 0);
}

static void *open_library(const char *name) {
  char path[LONGEST_NAME + 32];
  void *library = dlopen(strcasecmp(name, "STATIC_PLUGIN") == 0 ? NULL : name, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL && !is_library_name(name)) {
    snprintf(path, sizeof(path), "libnccl-profiler-%s.so", name);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  return library;
}

enum chain_result chain_load(unsigned newest, const struct nccl_profiler *own, const struct nccl_profiler **next, unsigned *version) {
  static const char *const symbols[] = {"ncclProfiler_v5", "ncclProfiler_v6", "ncclProfiler_v7"};
  const char *name = getenv(CHAIN_VARIABLE);
  bool is_set = name != NULL && name[0] != '\0';
  enum chain_result result = CHAIN_NONE;
  void *library = NULL;
  if (is_set && (strcasecmp(name, "none") == 0 || strlen(name) > LONGEST_NAME))
    goto out;
  library = open_library(is_set ? name : "libnccl-profiler.so");
  for (*version = newest; library != NULL && *version >= 5 && result == CHAIN_NONE; (*version)--) {
    *next = dlsym(library, symbols[*version - 5]);
    if (*next == own)
      goto out;
    if (*next != NULL) {
      result = CHAIN_LOADED;
      break;
    }
  }
  if (result == CHAIN_NONE && (is_set || library != NULL))
    result = CHAIN_LOST;
out:
  if (library != NULL && result != CHAIN_LOADED)
    dlclose(library);
  return result;
}

unsigned chain_mask(int mask, unsigned version) {
  unsigned known = version >= 7 ? NCCL_EVENT_V7 : version == 6 ? NCCL_EVENT_V6 : NCCL_EVENT_V5;
  unsigned asked = (unsigned)mask & known;
  return (asked & NCCL_EVENT_KERNEL_PHASE) != 0 ? asked | NCCL_EVENT_KERNEL_CH : asked;
}

/* The masks of src/plugin/profiler.cc: an event is started when a child of it was asked for, too. */
bool chain_wants(unsigned mask, uint64_t type) {
  const unsigned steps = NCCL_EVENT_PROXY_STEP | NCCL_EVENT_NET_PLUGIN;
  const unsigned operations = NCCL_EVENT_PROXY_OP | NCCL_EVENT_KERNEL_CH | steps;
  const unsigned tasks = NCCL_EVENT_COLL | NCCL_EVENT_P2P | operations;
  unsigned any = (unsigned)type;
  switch (type) {
  case NCCL_EVENT_GROUP_API:
    any = NCCL_EVENT_GROUP_API | NCCL_EVENT_P2P_API | NCCL_EVENT_COLL_API | NCCL_EVENT_KERNEL_LAUNCH | NCCL_EVENT_GROUP | NCCL_EVENT_CE |
          tasks;
    break;
  case NCCL_EVENT_COLL_API:
    any = NCCL_EVENT_COLL_API | NCCL_EVENT_COLL | NCCL_EVENT_CE | operations;
    break;
  case NCCL_EVENT_P2P_API:
    any = NCCL_EVENT_P2P_API | NCCL_EVENT_P2P | operations;
    break;
  case NCCL_EVENT_GROUP:
    any = NCCL_EVENT_GROUP | tasks;
    break;
  case NCCL_EVENT_COLL:
    any = NCCL_EVENT_COLL | operations;
    break;
  case NCCL_EVENT_P2P:
    any = NCCL_EVENT_P2P | operations;
    break;
  case NCCL_EVENT_PROXY_OP:
    any = NCCL_EVENT_PROXY_OP | steps;
    break;
  case NCCL_EVENT_PROXY_STEP:
    any = steps;
    break;
  default:
    break;
  }
  return (mask & any) != 0;
}
