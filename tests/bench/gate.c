/* What the gate costs per call of NCCL without a request: the events of one collective outside of a group, and of one send in a group. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../gate/nccl.h"

enum { CALLS = 2000000, ROUNDS = 7 };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void one_event(const struct nccl_profiler *plugin, void *context, struct nccl_event *event) {
  void *handle = NULL;
  plugin->start_event(context, &handle, event);
  if (handle != NULL)
    plugin->stop_event(handle);
}

/* As NCCL 2.28.9 calls a plugin for ncclAllReduce. */
static void collective(const struct nccl_profiler *plugin, void *context) {
  struct nccl_event group = {.type = NCCL_EVENT_GROUP_API}, api = {.type = NCCL_EVENT_COLL_API}, launch = {.type = NCCL_EVENT_GROUP};
  void *handle = NULL;
  plugin->start_event(context, &handle, &group);
  plugin->record_event_state(handle, 23, NULL);
  api.parent = handle;
  api.coll_api.function = "AllReduce";
  api.coll_api.count = 1024;
  one_event(plugin, context, &api);
  plugin->record_event_state(handle, 24, NULL);
  one_event(plugin, context, &launch);
  plugin->stop_event(handle);
}

static void transfer(const struct nccl_profiler *plugin, void *context) {
  struct nccl_event group = {.type = NCCL_EVENT_GROUP_API}, api = {.type = NCCL_EVENT_P2P_API}, launch = {.type = NCCL_EVENT_P2P};
  void *handle = NULL;
  plugin->start_event(context, &handle, &group);
  api.parent = handle;
  api.p2p_api.function = "Send";
  api.p2p_api.count = 1024;
  plugin->start_event(context, &launch.parent, &api);
  launch.p2p.function = "Send";
  launch.p2p.peer = 1;
  one_event(plugin, context, &launch);
  plugin->stop_event(launch.parent);
  plugin->stop_event(handle);
}

static double best(void (*call)(const struct nccl_profiler *, void *), const struct nccl_profiler *plugin, void *context) {
  double fastest = 1e9;
  for (int round = 0; round < ROUNDS; round++) {
    double began = now();
    for (int i = 0; i < CALLS; i++)
      call(plugin, context);
    double each = (now() - began) / CALLS;
    fastest = each < fastest ? each : fastest;
  }
  return fastest;
}

int main(int argc, char **argv) {
  void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  const struct nccl_profiler *plugin = library != NULL ? dlsym(library, "ncclProfiler_v5") : NULL;
  void *context = NULL;
  int mask = 0;
  if (plugin == NULL) {
    fprintf(stderr, "usage: gate PLUGIN: %s\n", argc == 2 ? dlerror() : "one argument");
    return 1;
  }
  plugin->init(&context, 1, &mask, NULL, 1, 2, 0, NULL);
  if (mask == 0) {
    fprintf(stderr, "gate: SLURM_CKPT_GATE names no gate\n");
    return 1;
  }
  printf("%.1f %.1f\n", best(collective, plugin, context), best(transfer, plugin, context));
  plugin->finalize(context);
  return 0;
}
