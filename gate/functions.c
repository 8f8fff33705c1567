/* Names of operations, as NCCL's profiler events have them (src/include/nccl_common.h, ncclFuncToString). */
#include <string.h>

#include "gate.h"

/* The order is part of the layout; 0 is none. layout.py has the same. */
static const char *const names[] = {
    "",         "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce",
    "SendRecv", "Send",      "Recv",   "AlltoAll",  "Scatter",       "Gather",
};

uint32_t gate_function_code(const char *name) {
  uint32_t code = 0;
  for (uint32_t i = 1; name != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
    if (strcmp(name, names[i]) == 0)
      code = i;
  }
  return code;
}
