/* Arithmetic of reductions. */
#include "reduce.h"

#include <stdint.h>

size_t type_size(ncclDataType_t type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 0, 4, 8};
  return (size_t)type < sizeof(sizes) / sizeof(sizes[0]) ? sizes[type] : 0;
}

const char *type_name(ncclDataType_t type) {
  static const char *const names[] = {"ncclInt8",   "ncclUint8",   "ncclInt32",   "ncclUint32", "ncclInt64",
                                      "ncclUint64", "ncclFloat16", "ncclFloat32", "ncclFloat64"};
  return (size_t)type < sizeof(names) / sizeof(names[0]) ? names[type] : "Unknown";
}

#define COMBINE(TYPE)                                                                                                                        \
  do {                                                                                                                                       \
    TYPE *left = into;                                                                                                                       \
    const TYPE *right = from;                                                                                                                \
    for (size_t i = 0; i < count; i++) {                                                                                                     \
      if (op == ncclProd)                                                                                                                    \
        left[i] = (TYPE)(left[i] * right[i]);                                                                                                \
      else if (op == ncclMax)                                                                                                                \
        left[i] = left[i] > right[i] ? left[i] : right[i];                                                                                   \
      else if (op == ncclMin)                                                                                                                \
        left[i] = left[i] < right[i] ? left[i] : right[i];                                                                                   \
      else                                                                                                                                   \
        left[i] = (TYPE)(left[i] + right[i]);                                                                                                \
    }                                                                                                                                        \
  } while (0)

#define DIVIDE(TYPE)                                                                                                                         \
  do {                                                                                                                                       \
    TYPE *values = into;                                                                                                                     \
    for (size_t i = 0; i < count; i++)                                                                                                       \
      values[i] = (TYPE)(values[i] / (TYPE)ranks);                                                                                           \
  } while (0)

#define FOR_TYPE(DO)                                                                                                                         \
  switch (type) {                                                                                                                            \
  case ncclInt8:                                                                                                                             \
    DO(int8_t);                                                                                                                              \
    break;                                                                                                                                   \
  case ncclUint8:                                                                                                                            \
    DO(uint8_t);                                                                                                                             \
    break;                                                                                                                                   \
  case ncclInt32:                                                                                                                            \
    DO(int32_t);                                                                                                                             \
    break;                                                                                                                                   \
  case ncclUint32:                                                                                                                           \
    DO(uint32_t);                                                                                                                            \
    break;                                                                                                                                   \
  case ncclInt64:                                                                                                                            \
    DO(int64_t);                                                                                                                             \
    break;                                                                                                                                   \
  case ncclUint64:                                                                                                                           \
    DO(uint64_t);                                                                                                                            \
    break;                                                                                                                                   \
  case ncclFloat32:                                                                                                                          \
    DO(float);                                                                                                                               \
    break;                                                                                                                                   \
  case ncclFloat64:                                                                                                                          \
    DO(double);                                                                                                                              \
    break;                                                                                                                                   \
  default:                                                                                                                                   \
    break;                                                                                                                                   \
  }

void reduce(void *into, const void *from, size_t count, ncclDataType_t type, ncclRedOp_t op) { FOR_TYPE(COMBINE) }

void reduce_average(void *into, size_t count, ncclDataType_t type, int ranks) { FOR_TYPE(DIVIDE) }
