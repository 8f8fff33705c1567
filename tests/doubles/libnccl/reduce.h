/* Arithmetic of reductions. */
#ifndef NCCL_DOUBLE_REDUCE_H
#define NCCL_DOUBLE_REDUCE_H

#include "nccl.h"

/* Bytes of one element; 0: a type that the double does not know. */
size_t type_size(ncclDataType_t type);
const char *type_name(ncclDataType_t type);

/* into = into (op) from; averages are sums until reduce_average. */
void reduce(void *into, const void *from, size_t count, ncclDataType_t type, ncclRedOp_t op);
void reduce_average(void *into, size_t count, ncclDataType_t type, int ranks);

#endif
