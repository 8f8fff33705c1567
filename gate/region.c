/* Mapping the region. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gate.h"

static bool is_region(const struct gate_header *header) {
  return header->magic == GATE_MAGIC && header->version == GATE_VERSION && header->members == GATE_MEMBERS && header->pairs == GATE_PAIRS;
}

int gate_attach(struct gate *gate, const char *path, uint32_t pid) {
  int result = -1;
  struct stat status;
  void *mapped = MAP_FAILED;
  int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0 || fstat(file, &status) < 0)
    goto out;
  if (!S_ISREG(status.st_mode) || status.st_size != (off_t)sizeof(struct gate_region)) {
    errno = EINVAL;
    goto out;
  }
  mapped = mmap(NULL, sizeof(struct gate_region), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED)
    goto out;
  if (!is_region(mapped)) {
    munmap(mapped, sizeof(struct gate_region));
    errno = EINVAL;
    goto out;
  }
  memset(gate, 0, sizeof(*gate));
  pthread_mutex_init(&gate->mutex, NULL);
  gate->region = mapped;
  gate->pid = pid;
  result = 0;
out:
  if (file >= 0) {
    int error = errno;
    close(file);
    errno = error;
  }
  return result;
}

void gate_detach(struct gate *gate) {
  while (gate->owns != NULL)
    gate_leave(gate, gate->owns);
  munmap(gate->region, sizeof(struct gate_region));
  pthread_mutex_destroy(&gate->mutex);
  gate->region = NULL;
}
